"""`holdfast box move`: between two providers of a real server, over HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli.conftest import Cli
from tests.server.box_providers import here_and_there

from holdfast.cli.exits import Exit
from holdfast.testing.server import ServerProcess


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    home = tmp_path_factory.mktemp("moving") / "home"
    with ServerProcess(home, providers=here_and_there):
        yield home


@pytest.fixture
def moving_cli(bare_cli: Cli, home: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    monkeypatch.setenv("HOLDFAST_HOME", str(home))
    return bare_cli


def create(cli: Cli, *options: str) -> str:
    made = cli("box", "create", "--provider", "here", *options)
    assert made.exit == 0, made.err
    return made.out.strip()


def test_a_move_shows_its_steps_and_prints_the_new_id(moving_cli: Cli) -> None:
    id = create(moving_cli, "--key", "work")
    assert moving_cli("box", "exec", id, "--", "sh", "-c", "echo one > a.txt").exit == 0
    moved = moving_cli("box", "move", "work", "--to", "there")
    assert moved.exit == 0, moved.err
    new = moved.out.strip()
    assert new != id
    steps = [line.split() for line in moved.err.splitlines()]
    assert [line[0] for line in steps] == ["box", "files", "old"]
    assert steps[0][1:3] == [new, "there"]
    assert "1 entry, compared" in moved.err
    assert steps[2][1:4] == ["box", id, "deleted"]
    assert moving_cli("box", "exec", "work", "--", "cat", "a.txt").out == "one\n"
    shown = moving_cli("box", "show", id)
    assert f"moved to box {new} of there" in shown.out
    gone = moving_cli("box", "exec", id, "--", "true")
    assert f"moved to box {new}" in gone.err


def test_a_kept_box_is_stopped_and_json_has_all_of_it(moving_cli: Cli) -> None:
    id = create(moving_cli)
    moved = moving_cli("box", "move", id, "--to", "there", "--keep", "--json").json()
    assert (moved["movedFrom"], moved["kept"], moved["entries"], moved["bytes"]) == (id, True, 0, 0)
    assert (moved["box"]["provider"], moved["box"]["state"]) == ("there", "running")
    assert moving_cli("box", "show", id, "--json").json()["state"] == "stopped"


def test_what_the_target_lacks_is_an_error_with_a_next_step(moving_cli: Cli) -> None:
    id = create(moving_cli)
    for provider, words in (
        ("nowhere", "there is no provider nowhere"),
        ("less", "provider less does not support network-none"),
    ):
        refused = moving_cli("box", "move", id, "--to", provider)
        assert (refused.exit, refused.out) == (Exit.USAGE, "")
        assert words in refused.err
    assert moving_cli("box", "show", id, "--json").json()["state"] == "running"


def test_an_image_is_not_pulled_elsewhere_unless_it_is_named(moving_cli: Cli) -> None:
    id = create(moving_cli, "--image", "registry.test/evil:1")
    refused = moving_cli("box", "move", id, "--to", "there")
    assert refused.exit == Exit.CONFLICT, refused.err
    assert "there would pull image registry.test/evil:1, which nobody has named for there" in refused.err
    assert f"holdfast box move {id} --to there --image registry.test/evil:1" in refused.err
    assert moving_cli("box", "move", id, "--to", "there", "--image", "registry.test/evil:1").exit == 0
