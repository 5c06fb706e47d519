"""Work that comes home: a repository goes into a box, and what an agent changed comes back."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.agents import InstalledAgents
from tests.repositories.repository import git, new_repository

from holdfast.api.models import Api
from holdfast.client import SyncClient
from holdfast.testing.forge import Forge
from holdfast.testing.model import ScriptedModel, bash, text
from holdfast.testing.server import ServerProcess

pytestmark = [pytest.mark.box, pytest.mark.agent, pytest.mark.xdist_group("runs of the command line")]

CHANGE = (
    "printf 'one\\nTWO\\nthree\\n' > a.txt; printf 'new\\n' > new.txt; mkdir -p .GIT; echo x > .GIT/config;"
    " ln -s /etc/passwd out; ln -s a.txt inside; git rev-parse HEAD > head.txt; cat .git/config > config.txt"
)


@dataclass(frozen=True)
class World:
    home: Path
    forge: Forge
    remote: Path
    checkout: Path
    thread: str
    entries: list[Any]

    def run(self, *arguments: str, cwd: Path | None = None) -> tuple[int, str, str]:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "holdfast", *arguments],
            env={**os.environ, "HOLDFAST_HOME": str(self.home), "COLUMNS": "100", "GH_TOKEN": "t0ken"},
            cwd=cwd or self.checkout,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=180,
        )
        return done.returncode, done.stdout, done.stderr


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, installed_agents: InstalledAgents) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("work")
    home, checkout = folder / "home", folder / "checkout"
    installed_agents.install("pi")
    installed_agents.share_with(home)
    new_repository(checkout, {"a.txt": "one\ntwo\nthree\n", ".gitignore": "*.log\n"})
    git(checkout, "config", "user.name", "Me")
    git(checkout, "config", "user.email", "me@example.com")
    with Forge(folder / "forge", token="t0ken") as forge, ScriptedModel() as model, ServerProcess(home) as server:
        remote = forge.create("owner", "name")
        git(checkout, "remote", "add", "origin", f"file://{remote}")
        git(checkout, "push", "-q", "origin", "main")
        with SyncClient(server.url, api_key=server.api_key) as client:
            client.models.add("scripted", apis=[Api.OPENAI_CHAT], base_url=model.openai_url, model="scripted")
            model.script([bash(CHANGE), text("Changed.")])
            world = World(home, forge, remote, checkout, "", [])
            code, out, err = world.run(
                "run", "Change it.", "--agent", "pi", "--repo", f"file://{remote}@main", "--json", cwd=folder
            )
            assert code == 0, err + out
            entries = [json.loads(line) for line in out.splitlines()]
            yield World(home, forge, remote, checkout, entries[-1]["thread"], entries[:-1])
            for box in client.boxes.list():
                client.boxes.delete(box.id)


def test_the_base_commit_is_on_the_thread_and_the_box_has_a_clean_clone(world: World) -> None:
    (started,) = [each["payload"] for each in world.entries if each["payload"]["type"] == "signal.run.started"]
    commit = git(world.checkout, "rev-parse", "HEAD")
    assert started["options"]["source"] == {"repository": f"file://{world.remote}", "ref": "main", "commit": commit}


def test_apply_push_and_pull_request_bring_it_home(world: World) -> None:
    code, out, err = world.run("apply", world.thread, "--check")
    assert code == 0, err
    assert git(world.checkout, "status", "--porcelain") == ""
    (world.checkout / "a.txt").write_text("ONE\ntwo\nthree\n")
    code, out, err = world.run("apply", world.thread)
    assert code == 6, err
    assert "a.txt has changes that are not committed, and they conflict" in err
    git(world.checkout, "checkout", "-q", "--", "a.txt")
    code, out, err = world.run("apply", world.thread, "--json")
    assert code == 0, err
    told = json.loads(out)
    assert set(told["changed"]) == {"a.txt", "new.txt", "inside", "head.txt", "config.txt"}
    assert {each["path"] for each in told["leftOut"]} == {".GIT/config", "out"}
    assert (world.checkout / "a.txt").read_text() == "one\nTWO\nthree\n"
    assert (world.checkout / "head.txt").read_text().strip() == git(world.checkout, "rev-parse", "HEAD")
    assert "t0ken" not in (world.checkout / "config.txt").read_text()
    assert world.run("apply", world.thread)[0] == 0

    pushed: dict[str, Any] = {}
    for folder in (world.checkout.parent, world.checkout):  # through the mirror, and from the checkout
        code, out, err = world.run("push", world.thread, "--json", cwd=folder)
        assert code == 0, err
        pushed = json.loads(out)
        assert pushed["new"] is (folder == world.checkout.parent)
    tree = git(world.remote, "rev-parse", f"{pushed['branch']}^{{tree}}")
    assert git(world.checkout, "rev-parse", f"{pushed['commit']}^{{tree}}") == tree
    code, out, err = world.run("pr", world.thread, "--api", world.forge.api, "--title", "Change it")
    assert code == 0, err
    assert out == "https://forge.example/owner/name/pull/1\n"
    assert world.run("pr", world.thread, "--api", world.forge.api)[1] == out
    assert len(world.forge.pulls) == 1
    code, out, err = world.run("apply", world.thread, "--branch", "mine", "--json")
    assert json.loads(out)["commit"] == pushed["commit"], "the same commit as in the checkout"


def test_a_repository_that_cannot_be_used_is_named_before_anything_starts(world: World) -> None:
    for repo, told in (
        ("ext::sh -c x", "names a program"),
        ("http://example.com/a", "http:// is not allowed"),
        (f"file://{world.remote}@nope", "no branch, tag or commit 'nope'"),
    ):
        code, _, err = world.run("run", "x", "--agent", "pi", "--repo", repo)
        assert code == 2, err
        assert told in err
    code, _, err = world.run("run", "x", "--agent", "pi", "--repo", ".", "--dir", ".")
    assert code == 2
    assert "--dir and --repo exclude each other" in err
