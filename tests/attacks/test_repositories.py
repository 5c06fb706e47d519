"""A git repository that came out of a box, used on this machine: as the folder of a run, and as `repo_url`.

All of `.git` is the box's own making: settings, index, and files that say where the history is.
"""

from __future__ import annotations

import io
import subprocess
import tarfile
from pathlib import Path

import pytest
from tests.attacks.conftest import Outside

from holdfast import SyncClient
from holdfast.api.errors.interpreters import WorkspaceFailed
from holdfast.cli.run.workspace.folder import Folder, pack
from holdfast.interpreter.workspace.repositories import HostGit

pytestmark = pytest.mark.anyio

SECRET = "a secret of this machine\n"


def git(folder: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=A", "-c", "user.email=a@example.com", "-c", "commit.gpgsign=false")
    done = subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def make_repository(folder: Path, **files: str) -> Path:
    folder.mkdir(parents=True)
    git(folder, "init", "-q", "-b", "main")
    for name, text in files.items():
        path = folder / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "first")
    return folder


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    return make_repository(tmp_path / "hostile", kept__a="a\n", other__b="b\n")


@pytest.fixture
def private(tmp_path: Path) -> Path:
    return make_repository(tmp_path / "private", secret=SECRET)


def lose(repository: Path, object_name: str, started: Path) -> None:
    """Remove an object, and say that a program of the repository's choice brings it."""
    (repository / ".git" / "objects" / object_name[:2] / object_name[2:]).unlink()
    for name, value in (
        ("core.repositoryformatversion", "1"),
        ("extensions.partialClone", "origin"),
        ("remote.origin.url", str(repository)),
        ("remote.origin.promisor", "true"),
        ("remote.origin.uploadpack", f"touch {started}; git-upload-pack"),
        ("protocol.allow", "always"),
        ("protocol.file.allow", "always"),
    ):
        git(repository, "config", name, value)


def names_and_contents(folder: Path) -> dict[str, bytes]:
    """Of the archive that a run would begin with, without the history."""
    file = io.BytesIO()
    pack(Folder(folder, repository=True), file)
    file.seek(0)
    with tarfile.open(fileobj=file) as archive:
        return {
            each.name: archive.extractfile(each).read() if each.isfile() else b""  # type: ignore[union-attr]
            for each in archive
            if not each.name.startswith(".git/")
        }


async def bundled(folder: Path, target: Path) -> bytes:
    """What a box would get of a repository."""
    host = HostGit(folder)
    await host.bundle(await host.tip(None), (), target)
    return target.read_bytes()


# --- programs ---


async def test_a_missing_object_is_not_brought_by_a_program_of_the_repository(hostile: Path, tmp_path: Path) -> None:
    started = tmp_path / "started"
    lose(hostile, git(hostile, "rev-parse", "HEAD:kept/a"), started)
    with pytest.raises(WorkspaceFailed) as raised:
        await bundled(hostile, tmp_path / "bundle")
    assert not started.exists()
    assert "--refetch" in (raised.value.hint or ""), "who has a partial clone is told what to do"
    assert "came from a box" in (raised.value.hint or ""), "and where not to do it"


def test_an_index_without_its_trees_starts_no_program_either(hostile: Path, tmp_path: Path) -> None:
    started = tmp_path / "started"
    git(hostile, "sparse-checkout", "set", "--cone", "--sparse-index", "kept")
    lose(hostile, git(hostile, "rev-parse", "HEAD:other"), started)
    names_and_contents(hostile)
    assert not started.exists()


# --- history that is another's ---


@pytest.mark.parametrize("way", ["a file", "a common folder", "a forged working tree", "a bare one", "links"])
async def test_the_history_of_another_repository_is_not_given_away(private: Path, tmp_path: Path, way: str) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    history = folder / ".git"
    if way == "a file":
        history.write_text("gitdir: ../private/.git\n")
    elif way == "links":
        history.mkdir()
        for name in ("HEAD", "objects", "refs"):
            (history / name).symlink_to(private / ".git" / name)
    else:
        made = {"a common folder": history, "a forged working tree": folder / "made", "a bare one": folder}[way]
        made.mkdir(exist_ok=True)
        (made / "HEAD").write_text("ref: refs/heads/main\n")
        (made / "commondir").write_text(f"{private}/.git\n")
        if way == "a forged working tree":
            history.write_text("gitdir: made\n")
            (made / "gitdir").write_text(f"{history}\n")
    with pytest.raises(WorkspaceFailed, match="history"):
        await bundled(folder, tmp_path / "bundle")


async def test_working_trees_and_submodules_have_their_history_elsewhere(private: Path, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    git(private, "worktree", "add", "-q", "--detach", str(tree))
    whole = make_repository(tmp_path / "whole", a="a\n")
    git(whole, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(private), "inner")
    within = private / "folder"
    within.mkdir()
    for number, folder in enumerate((tree, whole / "inner", private, within, private / ".git")):
        assert await bundled(folder, tmp_path / f"bundle-{number}")


# --- names that lead out ---


def test_a_tracked_name_behind_a_link_is_not_packed(hostile: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "a").write_text(SECRET)
    (hostile / "kept" / "a").unlink()
    (hostile / "kept").rmdir()
    (hostile / "kept").symlink_to(outside)
    (hostile / ".git" / "info" / "exclude").write_text("/kept\n")
    assert names_and_contents(hostile) == {"other/b": b"b\n"}


def test_a_repository_within_that_became_a_link_is_not_packed(hostile: Path, private: Path) -> None:
    commit = git(hostile, "rev-parse", "HEAD")
    git(hostile, "update-index", "--add", "--cacheinfo", f"160000,{commit},up/private")
    (hostile / "up").symlink_to("..")
    assert set(names_and_contents(hostile)) == {"kept/a", "other/b", "up"}


def test_a_submodule_that_was_never_fetched_is_an_empty_folder(hostile: Path) -> None:
    commit = git(hostile, "rev-parse", "HEAD")
    git(hostile, "update-index", "--add", "--cacheinfo", f"160000,{commit},empty")
    (hostile / "empty").mkdir()
    assert set(names_and_contents(hostile)) == {"kept/a", "other/b", "empty"}


# --- what goes along ---


def test_a_client_keeps_the_credentials_of_git_to_itself(outside: Outside, hostile: Path) -> None:
    git(hostile, "remote", "add", "origin", "https://me:s3cret@example.com/a.git")
    (hostile / "second").hardlink_to(hostile / "kept" / "a")
    (hostile / "link").symlink_to("/etc/passwd")
    with SyncClient(outside.server.url, api_key=outside.server.api_key) as client:
        digest = client.runs.upload(hostile, leave_out=lambda path: path == Path("other"))
    [kept] = outside.server.home.rglob(digest)
    assert b"s3cret" not in kept.read_bytes()
    with tarfile.open(kept) as archive:
        names = {each.name for each in archive if not each.name.startswith(".git/")}
        assert names == {".", ".git", "kept", "kept/a", "second", "link"}
        assert archive.extractfile("second").read() == b"a\n"  # type: ignore[union-attr]
        assert archive.getmember("link").linkname == "/etc/passwd"
        assert b"url = https://example.com/a.git" in archive.extractfile(".git/config").read()  # type: ignore[union-attr]
