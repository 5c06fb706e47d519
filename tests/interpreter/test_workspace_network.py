"""Repositories by HTTPS, over the egress of a real box."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.interpreter.workspaces import AS_SOMEBODY, Repository, sh
from tests.providers.local.networking import CA, TRUST, Net, networked
from tests.providers.local.world import git_site

from holdfast.api.box.box import Box
from holdfast.api.box.network import Network
from holdfast.api.box.spec import BoxSpec
from holdfast.api.errors.interpreters import WorkspaceFailed
from holdfast.boxes.service.acquire_rules import How
from holdfast.interpreter.host import AcquiredBox
from holdfast.interpreter.workspace.workspace import Workspace, WorkspaceConfig

pytestmark = pytest.mark.anyio


@dataclass
class OneBox:
    """A host that has one box."""

    box: Box

    async def acquire(self, key: str, spec: BoxSpec, *, fresh: bool = False) -> AcquiredBox:
        return AcquiredBox(self.box, How.RESUMED, "it was there")

    async def ensure_volume(self, name: str, provider: str) -> None: ...


@pytest.fixture(scope="module")
async def net(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Net]:
    async with networked(tmp_path_factory.mktemp("n")) as net:
        yield net


def served(net: Net, folder: Path, host: str) -> Repository:
    made = Repository(folder / "boat")
    made.commit("first", a_txt="one\n")
    net.world.serve(host, git_site(folder))
    return made


async def a_box(net: Net, *allow: str, mode: Network = Network.ALLOW) -> Workspace:
    box = await net.box(*allow, mode=mode, env=TRUST, workdir="/workspace/work")
    await box.files.move("ca.pem", CA)
    return Workspace(OneBox(box), "key", box.spec)  # type: ignore[arg-type]


async def test_a_repository_is_cloned_and_followed_over_the_way_out(net: Net, tmp_path: Path) -> None:
    source = served(net, tmp_path, "git.test")
    workspace = await a_box(net, "git.test")
    url = "https://git.test/boat/.git"
    done = await workspace.configure(WorkspaceConfig(repo_url=url))
    assert done.checkout is not None
    assert (done.checkout.branch, done.checkout.commit) == ("main", source.git("rev-parse", "HEAD"))
    box, folder = workspace.box, "cd /workspace/work; "
    assert await sh(box, folder + "cat a.txt; git remote get-url origin; git status -sb") == (
        f"one\n{url}\n## main...origin/main"
    )
    second = source.commit("second", a_txt="two\n")
    source.git("tag", "v2")
    hidden = source.git("commit-tree", "-m", "hidden", "HEAD^{tree}")
    source.git("update-ref", "refs/pull/7/head", hidden)
    asked = len(net.world.connected)
    assert (await workspace.configure(WorkspaceConfig(repo_url=url))).changed == ()
    assert len(net.world.connected) == asked, "the same ref asks nobody"
    for ref, commit in (("v2", second), ("main", second), ("refs/pull/7/head", hidden), (second[:12], second)):
        moved = await workspace.configure(WorkspaceConfig(ref=ref))
        assert moved.checkout is not None
        assert moved.checkout.commit == commit == await sh(box, folder + "git rev-parse HEAD")
    await sh(box, folder + f"git switch -q main; echo mine > mine; git add mine; {AS_SOMEBODY} commit -qm mine")
    with pytest.raises(WorkspaceFailed, match="no branch, tag or commit nowhere") as raised:
        await workspace.configure(WorkspaceConfig(ref="nowhere"))
    assert raised.value.hint == "its branches are main"


async def test_what_cannot_be_reached_says_what_to_do_and_leaves_the_workspace(net: Net, tmp_path: Path) -> None:
    served(net, tmp_path, "other-git.test")
    workspace = await a_box(net, "somewhere.test")
    with pytest.raises(WorkspaceFailed, match="could not be fetched") as raised:
        await workspace.configure(WorkspaceConfig(repo_url="https://other-git.test/boat/.git"))
    assert "--allow other-git.test" in (raised.value.hint or "")
    closed = await a_box(net, mode=Network.NONE)
    with pytest.raises(WorkspaceFailed, match="could not be fetched") as raised:
        await closed.configure(WorkspaceConfig(repo_url="https://other-git.test/boat/.git"))
    assert "--allow other-git.test" in (raised.value.hint or "")
    missing = await a_box(net, "other-git.test")
    with pytest.raises(WorkspaceFailed, match="could not be fetched"):
        await missing.configure(WorkspaceConfig(repo_url="https://other-git.test/nothing.git"))
    assert await sh(missing.box, "ls -A /workspace/work") == ".holdfast"
