"""What a copy of a box's files keeps, and what is said where there is none."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from holdfast.api.errors.boxes import BoxError
from holdfast.providers.host import copier
from holdfast.providers.host.disk.data_dir import FOLDER
from holdfast.providers.host.disk.layer_copy import check_copied


@pytest.fixture
def trees(tmp_path: Path) -> tuple[Path, Path]:
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir()
    target.mkdir()
    return source, target


def copy(source: Path, target: Path) -> int:
    descriptors = [os.open(each, FOLDER) for each in (source, target)]
    try:
        return copier.copy(*descriptors)
    finally:
        for each in descriptors:
            os.close(each)


def described(root: Path) -> dict[str, object]:
    """All that a copy is to keep, by path."""
    found: dict[str, object] = {}
    for path in (root, *root.rglob("*")):
        about = path.lstat()
        content = path.read_bytes() if stat.S_ISREG(about.st_mode) else b""
        attributes = {} if path.is_symlink() else {name: os.getxattr(path, name) for name in os.listxattr(path)}
        link = str(path.readlink()) if path.is_symlink() else ""
        links = 0 if path.is_dir() else about.st_nlink
        told = (about.st_mode, about.st_mtime_ns, about.st_rdev, links, content, attributes, link)
        found[str(path.relative_to(root))] = told
    return found


def test_everything_is_kept(trees: tuple[Path, Path]) -> None:
    source, target = trees
    (source / "a" / "b").mkdir(parents=True)
    (source / "a" / "file").write_bytes(os.urandom(100_000))
    (source / "a" / "b" / "again").hardlink_to(source / "a" / "file")
    (source / "link").symlink_to("/etc/passwd")
    os.mkfifo(source / "pipe")
    os.mknod(source / "deleted", stat.S_IFCHR, 0)
    with (source / "holes").open("wb") as file:
        file.truncate(50 << 20)
        file.seek(20 << 20)
        file.write(b"content")
    os.setxattr(source / "a", "user.overlay.opaque", b"y")
    (source / "name that is no text \udcff").write_text("x")
    (source / "a" / "file").chmod(0o4751)
    (source / "a" / "b").chmod(0o700)
    os.utime(source / "a", ns=(1, 1_000_000_000_000_000_001))
    assert copy(source, target) == 9
    assert described(target) == described(source)
    assert (target / "a" / "file").samefile(target / "a" / "b" / "again")
    assert (target / "holes").stat().st_blocks < 1000


def test_a_source_that_changes_before_the_end_is_told(
    trees: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = trees
    (source / "first").write_text("as it was")
    (source / "second").write_text("as it is")
    copied = copier._copy_content

    def change_the_first(from_: int, to: int, size: int) -> None:
        copied(from_, to, size)
        if size == len("as it is"):
            (source / "first").write_text("as it IS!")

    monkeypatch.setattr(copier, "_copy_content", change_the_first)
    with pytest.raises(copier.Changed):
        copy(source, target)


def test_a_folder_that_became_a_link_is_not_entered(trees: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    source, target = trees
    (source / "folder").mkdir()
    (source.parent / "outside").mkdir()
    (source.parent / "outside" / "secret").write_text("secret")
    real = os.mkdir

    def exchange_then_make(name: bytes, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        (source / "folder").rmdir()
        (source / "folder").symlink_to(source.parent / "outside")
        real(name, mode, dir_fd=dir_fd)

    monkeypatch.setattr(os, "mkdir", exchange_then_make)
    with pytest.raises(copier.Changed):
        copy(source, target)
    assert not list(target.rglob("secret"))


def test_more_folders_in_one_another_than_are_held_open_are_refused(
    trees: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = trees
    monkeypatch.setattr(copier, "DEEPEST", 3)
    (source / "1" / "2" / "3").mkdir(parents=True)
    assert copy(source, target) == 3
    (source / "1" / "2" / "3" / "4").mkdir()
    (target.parent / "other").mkdir()
    with pytest.raises(copier.TooDeep):
        copy(source, target.parent / "other")


@pytest.mark.parametrize(
    ("outcome", "running", "code", "hint"),
    [
        ({"changed": True}, True, "box_not_still", "holdfast box stop b-1"),
        ({"changed": True}, False, "box_not_still", "shared a volume with b-1"),
        ({"error": 13, "about": "shut"}, True, "file_problem", "holdfast box stop b-1"),
    ],
)
def test_what_was_not_copied_says_what_to_do(outcome: dict[str, object], running: bool, code: str, hint: str) -> None:
    check_copied("b-1", {"names": 3}, running=running)
    with pytest.raises(BoxError, match="b-1") as refused:
        check_copied("b-1", outcome, running=running)
    assert refused.value.code == code
    assert hint in (refused.value.hint or "")


def test_a_link_that_is_none_any_more_is_a_change(trees: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    source, target = trees
    (source / "link").symlink_to("somewhere")
    readlink = os.readlink

    def exchanged(name: bytes, *, dir_fd: int) -> bytes:
        os.unlink(name, dir_fd=dir_fd)
        os.mkdir(name, dir_fd=dir_fd)
        return readlink(name, dir_fd=dir_fd)

    monkeypatch.setattr(os, "readlink", exchanged)
    with pytest.raises(copier.Changed):
        copy(source, target)
