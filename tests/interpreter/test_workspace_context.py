"""Context files of an interpreter: of this machine, by content, in a real box."""

from __future__ import annotations

import os
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.interpreter.workspaces import Shop, opened, sh

from holdfast.api.errors.interpreters import InvalidInterpreter
from holdfast.interpreter.workspace import context_files
from holdfast.interpreter.workspace.volumes import MEMORY
from holdfast.interpreter.workspace.workspace import Kind, Workspace, WorkspaceConfig

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
async def shop(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Shop]:
    async with opened(tmp_path_factory.mktemp("contexts")) as shop:
        yield shop


@pytest.fixture(scope="module")
async def workspace(shop: Shop) -> Workspace:
    made = shop.workspace()
    await made.configure(WorkspaceConfig(volume="team"))
    return made


async def test_files_and_folders_are_staged_whole_and_replaced_when_they_change(
    shop: Shop, workspace: Workspace, tmp_path: Path
) -> None:
    table, folder = tmp_path / "sales.csv", tmp_path / "papers"
    table.write_text("amount\n1\n")
    (folder / "deep" / "empty").mkdir(parents=True)
    (folder / "deep" / "run.sh").write_text("#!/bin/sh\necho ran\n")
    (folder / "deep" / "run.sh").chmod(0o755)
    (folder / "deep" / "short").symlink_to("run.sh")
    (folder / "up").symlink_to("deep/../deep/run.sh")
    odd = folder / os.fsdecode(b"-rf \xff\n; $(x) \xc3\xa4")
    odd.write_text("odd")
    done = await workspace.configure(WorkspaceConfig(context_paths=[table, str(folder)]))
    assert (done.kind, done.changed, done.context_files) == (Kind.REUSED, ("staged 5 context files",), 5)
    assert await sh(workspace.box, "cat .holdfast/context/sales.csv context/sales.csv") == "amount\n1\namount\n1"
    assert await sh(workspace.box, "context/papers/deep/short; cat context/papers/-rf*; ls -A context/papers/deep") == (
        "ran\nodd" + "empty\nrun.sh\nshort"
    )
    assert workspace.box is not None
    names = [each.name for each in await workspace.box.files.list("context/papers")]
    assert os.fsencode(names[0]) == os.fsencode(odd.name)

    await sh(workspace.box, "echo mine > context/mine.txt")
    again = await workspace.configure(WorkspaceConfig(context_paths=[table, folder]))
    assert again.changed == ()
    assert await sh(workspace.box, "cat context/mine.txt") == "mine", "what did not change is left alone"
    table.write_text("amount\n2\n")
    changed = await workspace.configure(WorkspaceConfig(context_paths=[table]))
    assert changed.changed == ("staged 1 context file",)
    assert await sh(workspace.box, "ls -A context; cat context/sales.csv") == "sales.csv\namount\n2"
    cleared = await workspace.configure(WorkspaceConfig(context_paths=[]))
    assert cleared.changed == ("cleared the context",)
    assert await sh(workspace.box, "ls -A context") == ""
    assert await sh(workspace.box, "ls -A .holdfast") == "context\ncontext.json", "nothing half staged is left"


async def test_every_change_of_a_file_is_seen(tmp_path: Path) -> None:
    path, known = tmp_path / "data", context_files.Digests()
    seen = set()
    for text in ("a", "b", "ab"):
        path.write_text(text)
        seen.add((await context_files.survey([path], None, known)).digest)
    path.chmod(0o755)
    seen.add((await context_files.survey([path], None, known)).digest)
    path.rename(tmp_path / "other")
    seen.add((await context_files.survey([tmp_path / "other"], None, known)).digest)
    assert len(seen) == 5
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "other").write_text("ab")
    (tmp_path / "x" / "other").chmod(0o755)
    assert (await context_files.survey([tmp_path / "x" / "other"], None, {})).digest in seen, "by content, not by place"


async def test_what_leads_elsewhere_or_is_no_file_is_refused_by_name(
    workspace: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = tmp_path / "kept.txt"
    kept.write_text("kept")
    await workspace.configure(WorkspaceConfig(context_paths=[kept]))

    async def refused(match: str, *paths: Path | str) -> None:
        with pytest.raises(InvalidInterpreter, match=match):
            await workspace.configure(WorkspaceConfig(context_paths=paths))
        assert await sh(workspace.box, "ls -A context") == "kept.txt", "what was staged stays"

    secret = tmp_path / "secret"
    secret.write_text("secret")
    for number, target in enumerate((str(secret), "../secret", "sub/../../secret", "/", "..")):
        folder = tmp_path / f"folder{number}"
        (folder / "sub").mkdir(parents=True)
        (folder / "link").symlink_to(target)
        await refused("link is a link that leads out", folder)
    pipes = tmp_path / "pipes"
    pipes.mkdir()
    os.mkfifo(pipes / "pipe")
    await refused("neither a file nor a folder", pipes)
    await refused("neither a file nor a folder", pipes / "pipe")
    await refused("neither a file nor a folder", "/dev/zero")
    monkeypatch.chdir(tmp_path)
    sockets = Path("s")
    sockets.mkdir()
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("s/k")
        await refused("neither a file nor a folder", sockets)
    await refused("does not exist on this machine", tmp_path / "nowhere")
    await refused("no valid name", "/")
    await refused("no valid name", _made(tmp_path / "line\nbreak"))
    await refused("no valid name", _made(tmp_path / os.fsdecode(b"\xff")))
    other = tmp_path / "folder0" / "kept.txt"
    other.write_text("another")
    await refused("two context paths are called kept.txt", kept, other)
    deep = tmp_path / "deep"
    (deep / "/".join("d" * 120)).mkdir(parents=True)
    await refused("folders deep", deep)
    monkeypatch.setattr(context_files, "MOST_FILES", 2)
    many = tmp_path / "many"
    many.mkdir()
    for name in "abc":
        _made(many / name)
    await refused("too large", many)
    monkeypatch.setattr(context_files, "MOST_BYTES", 3)
    await refused("too large", kept)
    with pytest.raises(InvalidInterpreter, match="must be a list"):
        WorkspaceConfig(context_paths=str(kept))


def _made(path: Path) -> Path:
    path.write_text("x")
    return path


async def test_a_link_that_is_named_stands_for_what_it_leads_to(workspace: Workspace, tmp_path: Path) -> None:
    (tmp_path / "real.txt").write_text("real")
    (tmp_path / "named.txt").symlink_to("real.txt")
    await workspace.configure(WorkspaceConfig(context_paths=[tmp_path / "named.txt"]))
    assert (
        await sh(workspace.box, "ls -A context; test ! -L context/named.txt; cat context/named.txt")
        == "named.txt\nreal"
    )


async def test_a_server_stages_nothing_from_outside_its_folders(shop: Shop, tmp_path: Path) -> None:
    inside = tmp_path / "inside"
    inside.mkdir()
    (inside / "ok.txt").write_text("ok")
    (inside / "out").symlink_to("/etc/passwd")
    guarded = shop.workspace(roots=[inside])
    await guarded.configure(WorkspaceConfig(context_paths=[inside / "ok.txt"]))
    for path in ("/etc/passwd", inside / "out", inside / ".." / "x", "~/.ssh"):
        with pytest.raises(InvalidInterpreter, match="not among the folders"):
            await guarded.configure(WorkspaceConfig(context_paths=[path]))
    assert await sh(guarded.box, "ls -A context") == "ok.txt"


async def test_what_a_box_puts_in_the_place_of_the_context_is_not_followed(
    workspace: Workspace, tmp_path: Path
) -> None:
    (tmp_path / "new.txt").write_text("new")
    await sh(workspace.box, f"echo precious > {MEMORY}/memory/x; rm -rf .holdfast context")
    for planted in (
        f"mkdir -p .holdfast; ln -s {MEMORY}/memory .holdfast/context",
        f"rm -rf .holdfast; ln -s {MEMORY}/memory .holdfast",
        "rm -rf .holdfast; touch .holdfast",
        f"rm -rf .holdfast/context; mkfifo .holdfast/context; ln -sf {MEMORY}/memory/x .holdfast/context.json",
    ):
        await sh(workspace.box, planted)
        done = await workspace.configure(WorkspaceConfig(context_paths=[tmp_path / "new.txt"]))
        assert done.changed == ("staged 1 context file",)
        assert await sh(workspace.box, f"cat .holdfast/context/new.txt; cat {MEMORY}/memory/x; ls {MEMORY}/memory") == (
            "newprecious\nx"
        )


async def test_the_context_and_a_checkout_do_not_know_of_each_other(shop: Shop, tmp_path: Path) -> None:
    (tmp_path / "data.txt").write_text("data")
    plain, with_context = shop.repository(), shop.repository()
    (with_context.folder / "context").mkdir()
    with_context.commit("own", **{"context/theirs.txt": "theirs"})
    with_context.git("mv", "context/theirs.txt", "context/own")
    with_context.commit("own")
    mixed = shop.workspace()
    await mixed.configure(WorkspaceConfig(repo_url=plain.folder, context_paths=[tmp_path / "data.txt"]))
    assert await sh(mixed.box, "cat context/data.txt; git status --porcelain") == "data"
    await mixed.configure(WorkspaceConfig(repo_url=with_context.folder))
    assert await sh(mixed.box, "ls context; cat .holdfast/context/data.txt; git status --porcelain") == "own\ndata"
    await mixed.configure(WorkspaceConfig(repo_url=plain.folder))
    assert await sh(mixed.box, "cat context/data.txt; git status --porcelain") == "data"
