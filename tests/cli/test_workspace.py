"""What is packed of a folder, and what never is."""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
from pathlib import Path

import pytest

from holdfast.cli.errors import CommandError
from holdfast.cli.run.workspace import folder as workspace
from holdfast.cli.run.workspace.folder import Folder, Packed, choose_folder, pack
from holdfast.client.host_git import without_credentials


def packed(folder: Folder) -> tuple[Packed, dict[str, tarfile.TarInfo], dict[str, bytes]]:
    file = io.BytesIO()
    told = pack(folder, file)
    assert told.size == len(file.getvalue())
    file.seek(0)
    with tarfile.open(fileobj=file) as archive:
        members = {each.name: each for each in archive.getmembers()}
        contents = {name: archive.extractfile(each).read() for name, each in members.items() if each.isfile()}  # type: ignore[union-attr]
    return told, members, contents


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    top = tmp_path / "project"
    top.mkdir()
    git(top, "init", "-q", "-b", "main")
    (top / "price.py").write_text("PRICE = 1\n")
    (top / ".gitignore").write_text("build/\n*.log\n")
    (top / "tool.sh").write_text("#!/bin/sh\n")
    (top / "tool.sh").chmod(0o755)
    git(top, "add", ".")
    git(top, "commit", "-q", "-m", "first")
    (top / "new.py").write_text("not tracked yet\n")
    (top / "build").mkdir()
    (top / "build" / "big").write_text("made again\n")
    (top / "secret.log").write_text("ignored\n")
    (top / "deep" / "er").mkdir(parents=True)
    (top / "deep" / "er" / "ünï.txt").write_text("é\n")
    return top


def git(folder: Path, *arguments: str) -> None:
    identity = ("-c", "user.name=A", "-c", "user.email=a@example.com", "-c", "commit.gpgsign=false")
    subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True)


def test_a_repository_goes_with_what_git_knows_or_would_and_its_history(repository: Path, tmp_path: Path) -> None:
    told, members, contents = packed(Folder(repository, repository=True))
    names = {name for name in members if not name.startswith(".git/")}
    assert names == {".gitignore", "price.py", "tool.sh", "new.py", "deep/er/ünï.txt"}
    assert contents["price.py"] == b"PRICE = 1\n"
    assert members["tool.sh"].mode & 0o111
    assert told.files == sum(not each.isdir() for each in members.values())
    copy = tmp_path / "copy"
    copy.mkdir()
    file = io.BytesIO()
    pack(Folder(repository, repository=True), file)
    subprocess.run(["tar", "-x", "-C", str(copy)], input=file.getvalue(), check=True, timeout=240)
    done = subprocess.run(["git", "status", "--short"], cwd=copy, check=True, capture_output=True, text=True)
    assert done.stdout == "?? deep/\n?? new.py\n"


def test_the_same_files_make_the_same_archive(repository: Path) -> None:
    first, second = io.BytesIO(), io.BytesIO()
    pack(Folder(repository, repository=True), first)
    pack(Folder(repository, repository=True), second)
    assert first.getvalue() == second.getvalue()


def test_links_are_packed_as_links_and_never_followed(repository: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "key").write_text("do not take me")
    (repository / "to-file").symlink_to(secret / "key")
    (repository / "to-folder").symlink_to(secret)
    (repository / ".git" / "hooks-of-others").symlink_to(secret)
    for folder in (Folder(repository, repository=True), Folder(repository, repository=False)):
        _, members, contents = packed(folder)
        assert members["to-file"].issym()
        assert members["to-folder"].issym()
        assert b"do not take me" not in b"".join(contents.values())
        assert not any("key" in name.split("/") for name in members)


def test_credentials_of_git_stay_here(repository: Path) -> None:
    git(repository, "remote", "add", "origin", "https://me:s3cret@example.com/a.git")
    git(repository, "config", "http.https://example.com/.extraheader", "AUTHORIZATION: basic c2VjcmV0")
    _, _, contents = packed(Folder(repository, repository=True))
    configuration = contents[".git/config"]
    assert b"url = https://example.com/a.git" in configuration
    assert not any(b"s3cret" in each or b"c2VjcmV0" in each for each in contents.values())
    assert without_credentials(b"url = ssh://git@example.com/a\n") == b"url = ssh://git@example.com/a\n"


@pytest.mark.parametrize(
    ("written", "kept"),
    [
        ('[http "https://a.example/]"] extraheader = s3cret\n[core]\n', '[http "https://a.example/]"]\n[core]\n'),
        ("[http]\n\textraHeader = AUTHORIZATION: \\\n  basic s3cret\n\tx = 1\n", "[http]\n\tx = 1\n"),
        ("[hub]\n\toauth-token = s3cret\n", "[hub]\n"),
        ("[sendemail]\n\tsmtpPass=s3cret\n", "[sendemail]\n"),
        (
            '[credential]\n\thelper = "!f() { echo password=s3cret; }; f"\n[a]\n\tb = c\n',
            "[credential]\n[a]\n\tb = c\n",
        ),
        ('[credential "https://a.example"]\n\tusername = s3cret\n', '[credential "https://a.example"]\n'),
        ("[Credential.a] helper = s3cret", "[Credential.a]\n"),
        ("url = https://me@corp.example:s3cret@a.example/b\n", "url = https://a.example/b\n"),
        ("url = ssh://me:s3cret@a.example/b\n", "url = ssh://me@a.example/b\n"),
        ('[url "https://s3cret@a.example/"]\n\tinsteadOf = gh:\n', '[url "https://a.example/"]\n\tinsteadOf = gh:\n'),
        ("[a]\r\n\ttoken = s3cret\r\n\tb = c\\\\\r\n\td = e", "[a]\r\n\tb = c\\\\\r\n\td = e"),
        ("token = s3cret\\", ""),
        ("# a token\n[core]\n\tbare = false\n\teditor = vi\n", "# a token\n[core]\n\tbare = false\n\teditor = vi\n"),
    ],
)
def test_no_way_to_write_a_credential_is_overlooked(written: str, kept: str) -> None:
    assert without_credentials(written.encode()).decode() == kept


def test_a_repository_cannot_start_a_program_by_being_packed(repository: Path, tmp_path: Path) -> None:
    started = tmp_path / "started"
    git(repository, "config", "core.fsmonitor", f"touch {started};")
    packed(Folder(repository, repository=True))
    assert not started.exists()


def test_sockets_and_pipes_and_what_cannot_be_there_are_left_out(repository: Path) -> None:
    os.mkfifo(repository / "pipe")
    (repository / "price.py").unlink()
    (repository / ".git" / "index.lock").touch()
    _, members, _ = packed(Folder(repository, repository=False))
    assert "pipe" not in members
    assert "price.py" not in members
    _, members, _ = packed(Folder(repository, repository=True))
    assert "pipe" not in members
    assert ".git/index.lock" not in members


def test_a_repository_within_goes_along_by_its_own_rules(repository: Path) -> None:
    inner = repository / "inner"
    inner.mkdir()
    git(inner, "init", "-q")
    (inner / ".gitignore").write_text("*.tmp\n")
    (inner / "a.tmp").touch()
    (inner / "a.py").touch()
    _, members, _ = packed(Folder(repository, repository=True))
    assert "inner/a.py" in members
    assert "inner/.git/HEAD" in members
    assert "inner/a.tmp" not in members


def test_a_working_tree_leaves_its_history_where_it_is(repository: Path, tmp_path: Path) -> None:
    git(repository, "worktree", "add", "-q", str(tmp_path / "tree"))
    told, members, _ = packed(Folder(tmp_path / "tree", repository=True))
    assert "price.py" in members
    assert ".git" not in members
    assert told.left_out == ("the history, which is outside this working tree",)


def test_a_folder_within_a_repository_goes_without_history(repository: Path) -> None:
    _, members, _ = packed(Folder(repository / "deep", repository=False))
    assert set(members) == {"er/ünï.txt"}


def test_a_folder_without_git_goes_as_it_is(tmp_path: Path) -> None:
    folder = tmp_path / "plain"
    (folder / "empty").mkdir(parents=True)
    (folder / "a.log").write_text("x")
    _, members, _ = packed(Folder(folder, repository=False))
    assert set(members) == {"empty", "a.log"}


def test_the_default_is_the_repository_around_here_or_this_folder(repository: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    assert choose_folder(None, repository / "deep" / "er", home) == Folder(repository, repository=True)
    plain = tmp_path / "plain"
    assert choose_folder(None, plain, home) == Folder(plain, repository=False, named=False)
    assert choose_folder(repository / "deep", tmp_path, home) == Folder(repository / "deep", repository=False)
    with pytest.raises(CommandError, match="is not a folder"):
        choose_folder(tmp_path / "missing", tmp_path, home)


def test_a_users_whole_home_is_never_taken_unless_it_is_named(tmp_path: Path) -> None:
    home = tmp_path / "users" / "ada"
    home.mkdir(parents=True)
    assert choose_folder(None, home, home) is None
    assert choose_folder(None, tmp_path, home) is None
    assert choose_folder(home, tmp_path, home) == Folder(home, repository=False)


def test_a_folder_that_nobody_named_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workspace, "_MOST_FILES_UNNAMED", 3)
    for number in range(4):
        (tmp_path / str(number)).write_text("x")
    with pytest.raises(CommandError, match="is not a git repository, and large") as raised:
        pack(Folder(tmp_path, repository=False, named=False), io.BytesIO())
    assert "with --dir ." in str(raised.value.next_step)
    assert pack(Folder(tmp_path, repository=False), io.BytesIO()).files == 4


def test_what_is_too_large_is_refused_with_a_way_out(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workspace, "MOST_BYTES", 1000)
    with pytest.raises(CommandError, match="too large for a workspace"):
        pack(Folder(repository, repository=True), io.BytesIO())
