"""`holdfast interpreter`: code in a box from the command line, and whether all of it works here."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli.conftest import Cli

from holdfast.testing.model import ScriptedModel
from holdfast.testing.server import ServerProcess


@pytest.fixture
def py(bare_cli: Cli, box_server: ServerProcess, monkeypatch: pytest.MonkeyPatch) -> Cli:
    monkeypatch.setenv("HOLDFAST_HOME", str(box_server.home))
    return bare_cli


@pytest.fixture
def kept(py: Cli) -> Iterator[str]:
    made = py("interpreter", "run", "--keep", stdin="kept = 41")
    assert made.exit == 0, made.err
    (id,) = [word for word in made.err.split() if word.startswith("i-")][:1]
    yield id
    py("interpreter", "delete", id, "--yes")


def test_code_runs_in_a_box_of_its_own_which_goes_with_it(py: Cli, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text("import sys\nprint('said')\nprint('warned', file=sys.stderr)\n6 * 7\n")
    assert "give only one of them" in py("interpreter", "run", str(program), "-c", "1").err
    assert py("interpreter", "run", "-c", "6 * 7").out == "42\n"
    done = py("interpreter", "run", str(program))
    assert (done.exit, done.out, done.err) == (0, "said\n42\n", "warned\n")
    assert "there are no interpreters" in py("interpreter", "list").err


def test_what_the_code_does_wrong_is_told_without_lines_of_ours(py: Cli) -> None:
    wrong = py("interpreter", "run", stdin="def half(n):\n    return n / 0\nhalf(1)")
    assert wrong.exit == 1
    assert wrong.err.splitlines()[-1] == "ZeroDivisionError: division by zero"
    assert "return n / 0" in wrong.err
    assert "holdfast" not in wrong.err


def test_one_that_is_kept_is_gone_on_with_listed_shown_and_deleted(py: Cli, kept: str) -> None:
    assert py("interpreter", "run", "--id", kept[-7:], stdin="kept + 1").out == "42\n"
    told = py("interpreter", "run", "--id", kept, "--json", stdin="print('x'); SUBMIT(kept)").json()
    assert (told["stdout"], told["submitted"]) == ("x\n", {"output": 41})
    assert kept in py("interpreter", "list").out
    assert py("interpreter", "list", "-q").out.split() == [kept]
    shown = py("interpreter", "show", kept, "--json").json()
    assert (shown["executions"], shown["thread"]) == (3, f"t-{kept}")
    text = py("interpreter", "show", kept).out
    assert "Python 3" in text
    assert "tenant default" in text
    other = py("interpreter", "run", "--id", kept, "--template", "data", stdin="1")
    assert (other.exit, "already has its box" in other.err) == (2, True)
    assert py("interpreter", "delete", kept, "--yes", "--json").json() == {"deleted": [kept]}
    assert py("interpreter", "run", "--id", kept, stdin="1").exit == 3
    assert kept in py("interpreter", "list", "--deleted", "-q").out


def test_a_port_of_its_box_has_a_url(py: Cli, kept: str) -> None:
    box = py("interpreter", "show", kept, "--json").json()["box"]
    told = py("interpreter", "port", kept[-7:], "8000", "--json").json()
    assert told["url"].startswith(f"http://8000-{box}.localhost:")
    assert "_token=" in py("interpreter", "port", kept, "8000").out
    assert py("interpreter", "port", kept, "8000", "9000").exit == 2
    assert py("interpreter", "port", "i-nobody", "8000").exit == 3


def test_what_is_not_there_is_said(py: Cli) -> None:
    assert py("interpreter", "show", "i-nobody").exit == 3
    missing = py("interpreter", "run", "/nowhere.py")
    assert (missing.exit, "cannot read" in missing.err) == (2, True)


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("repository")
    (folder / "a.txt").write_text("a")
    settings = ["-c", "user.name=a", "-c", "user.email=a@example.com"]
    for command in (["init", "-q", "-b", "main"], ["add", "."], [*settings, "commit", "-qm", "first"], ["tag", "v1"]):
        subprocess.run(["git", *command], cwd=folder, check=True)
    return folder


def test_the_smoke_test_goes_all_the_way_and_leaves_nothing(py: Cli, repository: Path) -> None:
    before = py("box", "list", "-q").out
    done = py("interpreter", "smoke", "--repo", str(repository), "--ref", "v1", "--json")
    report = done.json()
    assert (report["ok"], report["category"]) == (True, None)
    names = [each["name"] for each in report["phases"]]
    assert names == ["config", "box", "clone", "driver", "execute", "state", "cleanup"]
    assert all(each["seconds"] >= 0 for each in report["phases"])
    assert py("box", "list", "-q").out == before
    shown = py("interpreter", "smoke")
    assert (shown.exit, "state kept" in shown.out) == (0, True)


def test_a_smoke_test_that_fails_says_whose_turn_it_is(py: Cli, repository: Path) -> None:
    before = py("box", "list", "-q").out
    cases = [
        (("--repo", str(repository), "--ref", "nowhere"), "clone", "repository"),
        (("--repo", str(repository / "missing")), "config", "config"),
        (("--ref", "main"), "config", "config"),
        (("--provider", "nowhere"), "box", "config"),
        (("--server", "http://127.0.0.1:1", "--api-key", "x"), "box", "server"),
        (("--model", "nobody"), "model", "model"),
    ]
    for options, phase, category in cases:
        done = py("interpreter", "smoke", *options, "--json")
        report = json.loads(done.out)
        failed = [each for each in report["phases"] if not each["ok"]]
        assert (done.exit, failed[0]["name"], report["category"]) == (1, phase, category), report
        assert failed[0]["error"]["message"]
    assert py("box", "list", "-q").out == before


def test_a_model_can_be_part_of_it(py: Cli) -> None:
    with ScriptedModel() as model:
        model.answer_sides("ready")
        added = ("--api", "openai-chat", "--base-url", model.url, "--model", "scripted")
        assert py("model", "add", "smoked", *added).exit == 0
        report = py("interpreter", "smoke", "--model", "smoked", "--json").json()
        assert report["phases"][-1]["name"] == "model"
        assert "smoked/scripted answered 'ready'" in report["phases"][-1]["detail"]
        py("model", "remove", "smoked", "--yes")
