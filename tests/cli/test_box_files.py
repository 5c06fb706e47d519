"""`holdfast box cp`: files and folders both ways, and what a box must not do to us."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path

import pytest
from tests.cli.conftest import BoxCli, Cli

from holdfast.cli.exits import Exit


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def in_box(box_cli: Cli, box: str, script: str) -> str:
    done = box_cli("box", "exec", box, "--", "sh", "-c", script)
    assert done.exit == 0, done.err
    return done.out


def test_a_file_goes_in_and_comes_back(box_cli: Cli, box: str, here: Path) -> None:
    data = os.urandom(9 << 20)
    (here / "data.bin").write_bytes(data)
    (here / "data.bin").chmod(0o750)
    assert box_cli("box", "cp", "data.bin", f"{box}:copy.bin").exit == 0
    assert in_box(box_cli, box, "stat -c '%a %s' copy.bin").split() == ["750", str(len(data))]
    assert box_cli("box", "cp", f"{box}:copy.bin", "back.bin").exit == 0
    assert (here / "back.bin").read_bytes() == data
    assert (here / "back.bin").stat().st_mode & 0o777 == 0o750
    assert sorted(each.name for each in here.iterdir()) == ["back.bin", "data.bin"]


def test_into_a_folder_it_goes_by_its_own_name(box_cli: Cli, box: str, here: Path) -> None:
    (here / "a.txt").write_text("a")
    in_box(box_cli, box, "mkdir folder")
    assert box_cli("box", "cp", "a.txt", f"{box}:folder").exit == 0
    assert box_cli("box", "cp", "a.txt", f"{box}:").exit == 0
    assert in_box(box_cli, box, "cat folder/a.txt a.txt") == "aa"
    in_box(box_cli, box, "echo new > folder/a.txt")
    assert box_cli("box", "cp", f"{box}:folder/a.txt", ".").exit == 0
    assert (here / "a.txt").read_text() == "new\n"


def test_a_folder_goes_in_and_comes_back_and_is_added_to(box_cli: Cli, box: str, here: Path) -> None:
    (here / "tree" / "sub").mkdir(parents=True)
    (here / "tree" / "sub" / "run.sh").write_text("#!/bin/sh\n")
    (here / "tree" / "sub" / "run.sh").chmod(0o755)
    (here / "tree" / "link").symlink_to("sub/run.sh")
    assert box_cli("box", "cp", "tree", f"{box}:project").exit == 0
    assert in_box(box_cli, box, "cd project; stat -c %a sub/run.sh; readlink link").split() == ["755", "sub/run.sh"]
    assert box_cli("box", "cp", "tree", f"{box}:project").exit == 0
    assert in_box(box_cli, box, "ls project").split() == ["link", "sub", "tree"]
    in_box(box_cli, box, "rm -r project/tree; echo more > project/sub/more")
    assert box_cli("box", "cp", f"{box}:project", "back").exit == 0
    assert sorted(path.relative_to(here / "back").as_posix() for path in (here / "back").rglob("*")) == [
        "link",
        "sub",
        "sub/more",
        "sub/run.sh",
    ]
    assert (here / "back" / "link").is_symlink()
    in_box(box_cli, box, "echo again > project/sub/more; echo x > project/new")
    (here / "back" / "mine").write_text("mine")
    assert box_cli("box", "cp", f"{box}:project/.", "back").exit == 0
    assert (here / "back" / "sub" / "more").read_text() == "again\n"
    assert {each.name for each in (here / "back").iterdir()} == {"link", "mine", "new", "sub"}


def test_dash_is_an_archive(box_cli: Cli, boxes: BoxCli, box: str) -> None:
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        info = tarfile.TarInfo("folder/file")
        info.size = 5
        tar.addfile(info, io.BytesIO(b"hello"))
    assert boxes.run("cp", "-", f"{box}:unpacked", stdin=archive.getvalue()).returncode == 0
    assert in_box(box_cli, box, "cat unpacked/folder/file") == "hello"
    done = boxes.run("cp", f"{box}:unpacked", "-")
    assert done.returncode == 0, done.stderr
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as tar:
        [name] = [each for each in tar.getnames() if each.endswith("file")]
        file = tar.extractfile(name)
        assert file is not None
        assert file.read() == b"hello"


def test_a_hostile_box_writes_nowhere_else(box_cli: Cli, box: str, here: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    in_box(box_cli, box, f"mkdir trap && ln -s {outside} trap/way && ln -s {outside}/file trap-file && mkfifo pipe")
    box_cli("box", "cp", f"{box}:trap", "trap")
    assert list(outside.iterdir()) == []
    fifo = box_cli("box", "cp", f"{box}:pipe", "pipe")
    assert fifo.exit != 0
    assert box_cli("box", "cp", f"{box}:trap-file", "taken").exit != 0 or not (here / "taken").is_symlink()
    assert list(outside.iterdir()) == []
    assert [each.name for each in here.iterdir() if each.name.startswith(".holdfast")] == []


@pytest.mark.parametrize("linked", [False, True])
def test_a_copy_replaces_no_device_and_no_pipe(box_cli: Cli, box: str, here: Path, linked: bool) -> None:
    """As root, a copy to /dev/stdout or /dev/null would replace it for the whole machine."""
    in_box(box_cli, box, "mkdir -p special && echo hello > special/place")
    os.mkfifo(here / "fifo")
    (here / "target").mkdir()
    place = here / "target" / "place"
    place.symlink_to(here / "fifo") if linked else os.mkfifo(place)
    for source, target in (("special/place", "target/place"), ("special/.", "target")):
        done = box_cli("box", "cp", f"{box}:{source}", target)
        assert done.exit == Exit.CONFLICT
        assert "is a device or a pipe" in done.err
    assert place.is_fifo()
    assert place.is_symlink() == linked


def test_a_repository_here_gets_no_settings_and_no_hooks_from_a_box(box_cli: Cli, box: str, here: Path) -> None:
    """Git would run them as the user, at the next look."""
    hostile = "printf '[core]\\n\\tfsmonitor = touch started' > config && mkdir hooks && echo x > hooks/pre-commit"
    in_box(box_cli, box, f"mkdir -p repo/.git repo/in/.GIT && echo new > repo/file && cd repo/.git && {hostile}")
    project = here / "repo"
    (project / ".git").mkdir(parents=True)
    (project / ".git" / "config").write_text("mine")
    done = box_cli("box", "cp", f"{box}:repo/.", str(project))
    assert done.exit == 0, done.err
    assert (project / "file").read_text() == "new\n"
    assert (project / ".git" / "config").read_text() == "mine"
    assert not (project / ".git" / "hooks").exists()
    assert "left out" in done.err
    fresh = box_cli("box", "cp", f"{box}:repo", "fresh")
    assert fresh.exit == 0, fresh.err
    assert (here / "fresh" / ".git" / "config").exists(), "a copy is whole, and its user is told"
    assert "careful" in fresh.err
    assert "fresh/in/.GIT" in fresh.err


def test_what_cannot_be_copied_is_told(box_cli: Cli, box: str, here: Path) -> None:
    (here / "folder").mkdir()
    (here / "file").write_text("x")
    in_box(box_cli, box, "echo x > file; mkdir folder")
    cases = [
        (("nothing", f"{box}:x"), Exit.NOT_FOUND, "nothing"),
        ((f"{box}:nothing", "x"), Exit.NOT_FOUND, "nothing"),
        (("folder", f"{box}:file"), Exit.CONFLICT, "is a file in the box"),
        (("file", f"{box}:missing/"), Exit.FAILURE, "is not a folder in the box"),
        ((f"{box}:file", "missing/x"), Exit.NOT_FOUND, "is not a local folder"),
        ((f"{box}:file", "missing/"), Exit.FAILURE, "is not a local folder"),
        (("file", "b-nowhere:x"), Exit.NOT_FOUND, "b-nowhere"),
    ]
    for arguments, exit, what in cases:
        outcome = box_cli("box", "cp", *arguments)
        assert (outcome.exit, outcome.out) == (exit, ""), outcome.err
        assert what in outcome.err
