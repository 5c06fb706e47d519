"""Work that comes home: a private repository goes into a box, and what an agent changed comes back.

The repository is at an https server that asks for a password, which only the git of the user knows.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from tests.agents import InstalledAgents
from tests.repositories.git_servers import HttpsGit, with_home
from tests.repositories.repository import git, new_repository

from holdfast.api.model.models import Api
from holdfast.client import SyncClient
from holdfast.testing.forge import Forge
from holdfast.testing.model import ScriptedModel, bash, text
from holdfast.testing.server import ServerProcess

pytestmark = [pytest.mark.box, pytest.mark.agent, pytest.mark.xdist_group("runs of the command line")]

PASSWORD = "hunter2-hunter2-hunter2"
CHANGE = (
    "printf 'one\\nTWO\\nthree\\n' > a.txt; printf 'new\\n' > new.txt; mkdir -p .GIT; echo x > .GIT/config;"
    " ln -s /etc/passwd out; ln -s a.txt inside; git rev-parse HEAD > head.txt; cat .git/config > config.txt;"
    " mkdir .vscode; echo '{}' > .vscode/tasks.json;"
    " (echo looked; env; grep -rIs 'hunter[2]' /workspace /tmp /run $HOME /etc) | grep 'looked\\|hunter[2]' > found.txt"
)


@dataclass(frozen=True)
class World:
    home: Path
    user: dict[str, str]
    """Variables of the user's commands: a home with the credentials of git."""
    forge: Forge
    url: str
    remote: Path
    checkout: Path
    thread: str
    entries: list[Any]

    def run(self, *arguments: str, cwd: Path | None = None) -> tuple[int, str, str]:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "holdfast", *arguments],
            env={**os.environ, **self.user, "HOLDFAST_HOME": str(self.home), "COLUMNS": "100", "GH_TOKEN": "t0ken"},
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
    with (
        Forge(folder / "forge", token="t0ken") as forge,
        HttpsGit(folder / "forge", password=PASSWORD) as https,
        ScriptedModel() as model,
        ServerProcess(home) as server,
    ):
        remote, url = forge.create("owner", "name"), https.url("owner/name.git")
        git(remote, "config", "http.receivepack", "true")
        git(checkout, "push", "-q", str(remote), "main")
        git(checkout, "remote", "add", "origin", url)
        (folder / "ca.pem").write_bytes(https.certificate())
        user = with_home(folder / "me", host=https.host, password=PASSWORD)
        user["GIT_SSL_CAINFO"] = str(folder / "ca.pem")
        with SyncClient(server.url, api_key=server.api_key) as client:
            client.models.add("scripted", apis=[Api.OPENAI_CHAT], base_url=model.openai_url, model="scripted")
            model.script([bash(CHANGE), text("Changed.")])
            world = World(home, user, forge, url, remote, checkout, "", [])
            code, out, err = world.run(
                "run", "Change it.", "--agent", "pi", "--repo", f"{url}@main", "--json", cwd=folder
            )
            assert code == 0, err + out
            entries = [json.loads(line) for line in out.splitlines()]
            yield replace(world, thread=entries[-1]["thread"], entries=entries[:-1])
            for box in client.boxes.list():
                client.boxes.delete(box.id)


def test_the_base_commit_is_on_the_thread_and_the_box_has_a_clean_clone(world: World) -> None:
    (started,) = [each["payload"] for each in world.entries if each["payload"]["type"] == "signal.run.started"]
    commit = git(world.checkout, "rev-parse", "HEAD")
    assert started["options"]["source"] == {"repository": world.url, "ref": "main", "commit": commit}
    assert PASSWORD not in json.dumps(world.entries)


def test_what_runs_without_being_started_needs_consent(world: World, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    git(tmp_path, "clone", "-q", str(world.remote), str(mine))
    code, _, err = world.run("apply", world.thread, "--check", cwd=mine)
    assert code == 0, err
    assert ".vscode/tasks.json  an editor can run it when the folder is opened" in err
    api = world.forge.api
    for command in (("apply",), ("apply", "--branch", "work"), ("push", "--branch", "other"), ("pr", "--api", api)):
        code, _, err = world.run(command[0], world.thread, *command[1:], cwd=mine)
        assert code == 2, err
        assert "changes a file that runs without being started, and there is no terminal to ask" in err
        assert f"holdfast diff {world.thread}, then" in err
    code, out, err = world.run("diff", world.thread, "--json")
    accepted = json.loads(out)["digest"]
    assert f"--accept {accepted}" in world.run("apply", world.thread, cwd=mine)[2]
    other = "0" * len(accepted)
    for command in (("apply",), ("apply", "--branch", "work"), ("push", "--branch", "other"), ("pr", "--api", api)):
        code, _, err = world.run(command[0], world.thread, *command[1:], "--accept", other, cwd=mine)
        assert (code, "other changes than those you accepted" in err) == (6, True), err
    assert git(mine, "status", "--porcelain") == ""
    assert git(mine, "branch", "--list", "--format=%(refname:short)") == "main"
    assert git(world.remote, "branch", "--list", "other") == ""
    assert world.run("apply", world.thread, "--accept", accepted, cwd=mine)[0] == 0
    code, _, err = world.run("apply", world.thread, cwd=mine)  # nothing of it is left to do, so nothing is asked
    assert (code, "has no change that is not there already" in err) == (0, True), err
    (mine / "new.txt").unlink()
    code, _, err = world.run("apply", world.thread, cwd=mine)
    assert (code, "1 file applied before, and discarded since: new.txt" in err) == (0, True), err
    assert world.run("apply", world.thread, "--again", cwd=mine)[0] == 0
    assert (mine / "new.txt").read_text() == "new\n"


def test_no_pull_request_is_tried_where_there_is_none_or_where_the_token_does_not_belong(
    world: World, tmp_path: Path
) -> None:
    mine = tmp_path / "mine"
    git(tmp_path, "clone", "-q", str(world.remote), str(mine))
    code, _, err = world.run("pr", world.thread, "--yes", "--branch", "nowhere", cwd=mine)
    assert code == 2, err
    assert "this remote is a folder on this machine, which has no pull requests" in err
    assert "holdfast push" in err
    # The remote of a repository may be anybody's: a token of GitHub is not sent there.
    git(mine, "remote", "set-url", "origin", "https://127.0.0.1:1/owner/name.git")
    code, _, err = world.run("pr", world.thread, "--yes", "--branch", "nowhere", cwd=mine)
    assert "there is no token for the forge" in err
    assert "set GH_ENTERPRISE_TOKEN" in err
    assert git(world.remote, "branch", "--list", "nowhere") == ""


def test_apply_push_and_pull_request_bring_it_home(world: World) -> None:
    code, out, err = world.run("apply", world.thread, "--check")
    assert code == 0, err
    assert git(world.checkout, "status", "--porcelain") == ""
    (world.checkout / "a.txt").write_text("ONE\ntwo\nthree\n")
    code, out, err = world.run("apply", world.thread, "--yes")
    assert code == 6, err
    assert "a.txt has changes that are not committed, and they conflict" in err
    git(world.checkout, "checkout", "-q", "--", "a.txt")
    code, out, err = world.run("apply", world.thread, "--yes", "--json")
    assert code == 0, err
    told = json.loads(out)
    assert set(told["changed"]) == {
        "a.txt", "new.txt", "inside", "head.txt", "config.txt", "found.txt", ".vscode/tasks.json",
    }  # fmt: skip
    assert (world.checkout / "found.txt").read_text() == "looked\n"
    assert {each["path"] for each in told["leftOut"]} == {".GIT/config", "out"}
    assert (world.checkout / "a.txt").read_text() == "one\nTWO\nthree\n"
    assert (world.checkout / "head.txt").read_text().strip() == git(world.checkout, "rev-parse", "HEAD")
    assert "t0ken" not in (world.checkout / "config.txt").read_text()
    assert world.run("apply", world.thread)[0] == 0

    pushed: dict[str, Any] = {}
    for folder in (world.checkout.parent, world.checkout):  # through the mirror, and from the checkout
        code, out, err = world.run("push", world.thread, "--yes", "--json", cwd=folder)
        assert code == 0, err
        pushed = json.loads(out)
        assert pushed["new"] is (folder == world.checkout.parent)
    tree = git(world.remote, "rev-parse", f"{pushed['branch']}^{{tree}}")
    assert git(world.checkout, "rev-parse", f"{pushed['commit']}^{{tree}}") == tree
    code, out, err = world.run("pr", world.thread, "--yes", "--api", world.forge.api, "--title", "Change it")
    assert code == 0, err
    assert out == "https://forge.example/owner/name/pull/1\n"
    assert world.run("pr", world.thread, "--yes", "--api", world.forge.api)[1] == out
    assert len(world.forge.pulls) == 1
    code, out, err = world.run("apply", world.thread, "--yes", "--branch", "mine", "--json")
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
