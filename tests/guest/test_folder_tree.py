"""The program that summarizes a folder in a box: what it notices, and what an archive of a tree keeps."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.guest import folder_tree
from holdfast.guest.init import tree

PROGRAM = Path(folder_tree.__file__).read_text()


def ask(folder: Path, **request: Any) -> dict[str, Any]:
    command = [sys.executable, "-I", "-S", "-c", PROGRAM, json.dumps(request)]
    done = subprocess.run(command, cwd=folder, capture_output=True, check=True, timeout=240)
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def digest(folder: Path) -> str:
    return str(ask(folder, op="summarize")["digest"])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """All kinds of files. None was changed just now."""
    folder = tmp_path / "folder"
    (folder / "a/b").mkdir(parents=True)
    (folder / "a/b").chmod(0o755)
    (folder / "a/file").write_bytes(b"one")
    (folder / "a/hard").hardlink_to(folder / "a/file")
    (folder / "copy").write_bytes(b"one")
    (folder / "link").symlink_to("a/file")
    (folder / os.fsdecode(b"not \xff utf-8")).write_bytes(b"")
    os.mkfifo(folder / "pipe")
    for each in sorted(folder.rglob("*"), reverse=True):
        os.utime(each, (1_000_000_000.5, 1_000_000_000.5), follow_symlinks=False)
    return folder


CHANGES: dict[str, Callable[[Path], object]] = {
    "content": lambda folder: (folder / "copy").write_bytes(b"two"),
    "mode of a file": lambda folder: (folder / "copy").chmod(0o700),
    "mode of a folder": lambda folder: (folder / "a/b").chmod(0o700),
    "time of a file": lambda folder: os.utime(folder / "copy", (1, 1)),
    "time of a folder": lambda folder: os.utime(folder / "a/b", (1, 1)),
    "time of a link": lambda folder: os.utime(folder / "link", (1, 1), follow_symlinks=False),
    "name": lambda folder: (folder / "copy").rename(folder / "other"),
    "new folder": lambda folder: (folder / "new").mkdir(),
}


@pytest.mark.parametrize("change", CHANGES)
def test_every_change_is_noticed(folder: Path, change: str) -> None:
    before = digest(folder)
    assert digest(folder) == before
    CHANGES[change](folder)
    assert digest(folder) != before


def test_the_target_of_a_link_and_hard_links_are_noticed(folder: Path) -> None:
    before = digest(folder)
    for name in ("link", "a/hard"):
        (folder / name).unlink()
        if name == "link":
            (folder / name).symlink_to("a/else")
        else:
            (folder / name).write_bytes(b"one")
        for each in (folder / name, (folder / name).parent):
            os.utime(each, (1_000_000_000, 1_000_000_000), follow_symlinks=False)
        assert digest(folder) != before
        before = digest(folder)


def test_an_archive_of_a_tree_keeps_all_that_is_summarized(folder: Path, tmp_path: Path) -> None:
    packed = io.BytesIO()
    tree.pack(str(folder), packed)
    packed.seek(0)
    tree.unpack(packed, str(tmp_path / "there"), links="anywhere")
    found = ask(folder, op="summarize")
    there = ask(tmp_path / "there", op="finish", mode=found["mode"], modified=found["modified"])
    assert there == found
    assert (found["entries"], found["bytes"]) == (7, 6)


def test_a_folder_is_cleared_of_all_and_of_nothing_that_a_link_leads_to(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/kept").write_text("")
    (folder / "out").symlink_to(tmp_path / "outside")
    assert ask(folder, op="clear") == {}
    assert list(folder.iterdir()) == []
    assert (tmp_path / "outside/kept").exists()
