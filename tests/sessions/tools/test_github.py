"""Pull requests and files of repositories, at a stand-in for GitHub: what a session may use, and what it gets."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from tests.runs.world import SPEC
from tests.sessions.tools.world import ToolWorld

from holdfast.api.box.network import NetworkPolicy
from holdfast.api.errors import Forbidden, HoldfastError, InvalidRequest
from holdfast.api.errors.repositories import RepositoryFailed
from holdfast.api.ids import new_id
from holdfast.api.run.repositories import Source
from holdfast.api.secrets import Binding, Placement
from holdfast.runs.launch.plan import Options
from holdfast.sessions.tools.github import GitHub
from holdfast.testing.forge import Forge
from holdfast.threads.session_events import created

pytestmark = pytest.mark.anyio
TOKEN = "ghp_0123456789abcdefghij"


def git(*words: str, cwd: Path) -> None:
    name = ["-c", "user.name=a", "-c", "user.email=a@example.com"]
    subprocess.run(["git", *name, *words], cwd=cwd, check=True, capture_output=True, timeout=240)


@pytest.fixture
def forge(tmp_path: Path, world: ToolWorld) -> Iterator[Forge]:
    with Forge(tmp_path / "forge", token=TOKEN) as forge:
        for name in ("app", "other"):
            bare, work = forge.create("acme", name), tmp_path / "clones" / name
            work.parent.mkdir(exist_ok=True)
            git("clone", "-q", str(bare), str(work), cwd=tmp_path)
            (work / "src").mkdir()
            (work / "src" / "main.py").write_text("print('büro')\n")
            (work / "image").write_bytes(b"\xff\xfe\x00")
            git("add", "-A", cwd=work)
            git("commit", "-qm", "first", cwd=work)
            git("push", "-q", "origin", "HEAD:main", "HEAD:feature", cwd=work)
        world.forge_api = forge.api
        world.secrets.add("TOKEN", TOKEN, bindings=(_binding("acme/app"),))
        world.secrets.add("ALL", TOKEN, bindings=(_binding("acme/other"), Binding(host="api.example.com")))
        yield forge


def _binding(*repositories: str) -> Binding:
    return Binding(host="github.com", placement=Placement.GIT, repositories=repositories)


async def a_session(world: ToolWorld, *secrets: str, repository: str | None = "https://github.com/acme/app.git") -> str:
    """As the thread has it: the dummy boxes of these tests cannot have secrets."""
    spec = replace(SPEC, network=NetworkPolicy(secrets=secrets))
    options = Options("scripted", "m/x", spec, source=Source(repository=repository), tools=("github",)).to_json()
    made = created(agent="scripted", model="m/x", options=options, parent=None, by=None)
    log, id = world.base.base.log, new_id("t")
    about: dict[str, Any] = {"type": "signal.thread.created", "title": None, "parent": None, "labels": {}}
    await log.create(id, log.entry(about), log.entry(made))
    return id


async def test_a_session_opens_changes_and_inspects_a_pull_request(world: ToolWorld, forge: Forge) -> None:
    session = await a_session(world, "TOKEN:push")
    for _ in range(2):
        made = await world.call(session, "create_pull_request", branch="feature", title="A change", body="why")
        assert (made["number"], made["title"], made["state"]) == (1, "A change", "open")
    changed = await world.call(
        session, "update_pull_request", pr_number=1, title="Better", labels=["bug"], state="closed"
    )
    assert (changed["title"], changed["state"]) == ("Better", "closed")
    assert forge.pulls[0]["labels"] == [{"name": "bug"}]
    assert (await world.call(session, "list_pull_requests"))["pulls"] == []
    [listed] = (await world.call(session, "list_pull_requests", state="all"))["pulls"]
    assert (listed["head"], listed["base"]) == ("feature", "main")
    forge.files[1] = [{"filename": "a.py", "status": "modified", "additions": 2, "deletions": 1, "patch": "x" * 10_000}]
    forge.comments[1] = [{"user": {"login": "bob"}, "body": "fine", "created_at": "2026"}] * 3
    data = (await world.call(session, "inspect_pull_request", prNumber=1, commentsLimit=2))["data"]
    assert (data["files"][0]["path"], len(data["files"][0]["patch"])) == ("a.py", 8000)
    assert [each["author"] for each in data["comments"]] == ["bob", "bob"]


async def test_a_session_reads_files_without_cloning(world: ToolWorld, forge: Forge) -> None:
    session = await a_session(world, "TOKEN", "ALL")
    found = await world.call(session, "read_repo_file", path="/src/main.py", ref="main")
    assert (found["content"], found["encoding"], found["truncated"]) == ("print('büro')\n", "utf-8", False)
    assert (await world.call(session, "read_repo_file", path="image"))["encoding"] == "base64"
    other = await world.call(session, "read_repo_file", path="src/main.py", owner="acme", repo="other")
    assert other["repo"] == "acme/other"
    url = await world.call(session, "read_repo_file", path="image", repoUrl="git@github.com:acme/other.git")
    assert url["repo"] == "acme/other"
    repos = (await world.call(session, "list_repositories"))["repos"]
    assert [(each["fullName"], each["push"]) for each in repos] == [("acme/app", False), ("acme/other", False)]
    for path in ("../etc/passwd", "a/../b", "a//b", ".", "/"):
        with pytest.raises(InvalidRequest):
            await world.call(session, "read_repo_file", path=path)
    with pytest.raises(HoldfastError, match="404"):
        await world.call(session, "read_repo_file", path="nothing")


async def test_a_tenant_reaches_no_private_address_and_learns_nothing_about_its_ports(
    world: ToolWorld, forge: Forge
) -> None:
    session = await a_session(world, "TOKEN")
    caller = await world.tree.caller(session)
    port = urlsplit(forge.api).port
    told = set()
    for api in (
        forge.api,
        f"http://localhost:{port}",
        "http://localhost:1",
        f"https://127.0.0.1:{port}",
        "https://[::1]:1",
    ):
        github = GitHub(world.secrets, world.base.base.log, {"github.com": api}.__getitem__, public_only=True)
        with pytest.raises(RepositoryFailed) as failed:
            await github.list_(caller, {})
        told.add(failed.value.message.replace(urlsplit(api).hostname or "", "HOST"))
    assert told == {"cannot reach HOST"}
    assert forge.requests == []


async def test_a_session_uses_only_the_repositories_of_its_secrets(world: ToolWorld, forge: Forge) -> None:
    none, reads, another = await a_session(world), await a_session(world, "TOKEN"), await a_session(world, "ALL")
    before = len(forge.requests)
    for session, given in (
        (none, {}),
        (another, {}),
        (reads, {"owner": "acme", "repo": "other"}),
        (reads, {"repo": "other"}),
        (reads, {"repoUrl": "https://evil.example.com/acme/app"}),
    ):
        with pytest.raises(Forbidden):
            await world.call(session, "read_repo_file", path="x", **given)
    for tool, more in (
        ("create_pull_request", {"branch": "feature", "title": "t"}),
        ("update_pull_request", {"prNumber": 1, "title": "t"}),
    ):
        with pytest.raises(Forbidden, match="not change it"):
            await world.call(reads, tool, **more)
    assert len(forge.requests) == before


async def test_what_the_forge_answers_never_has_the_token(world: ToolWorld, forge: Forge) -> None:
    session = await a_session(world, "TOKEN:push")
    with pytest.raises(HoldfastError) as refused:
        await world.call(session, "create_pull_request", branch=f"no-{TOKEN}", title="t")
    assert TOKEN not in refused.value.message
    forge.token = "another token that is right"
    with pytest.raises(HoldfastError, match="401"):
        await world.call(session, "list_pull_requests")


async def test_the_state_of_git_is_told_on_the_thread(world: ToolWorld) -> None:
    session = await a_session(world)
    await world.call(session, "report_git_state", branch="feature", base_branch="main", commit_count=2)
    [told] = [
        each["payload"]
        for each in await world.base.base.entries(session)
        if each["payload"]["type"] == "signal.git.state"
    ]
    assert told == {"type": "signal.git.state", "branch": "feature", "base": "main", "commits": 2}
