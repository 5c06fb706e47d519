"""Paths that lead through a link at any step are refused, also where the link came a moment ago."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.providers.host.disk.data_dir import FOLDER, measure, open_beneath, open_by_steps

_EXCHANGE = 2


@pytest.mark.parametrize("opens", [open_beneath, open_by_steps])
def test_a_folder_is_opened_through_folders_alone(tmp_path: Path, opens: Callable[[int, str], int]) -> None:
    (tmp_path / "root" / "a" / "b").mkdir(parents=True)
    (tmp_path / "outside" / "b").mkdir(parents=True)
    (tmp_path / "root" / "link").symlink_to("../outside")
    (tmp_path / "root" / "absolute").symlink_to(tmp_path / "outside")
    (tmp_path / "root" / "inner").symlink_to("a")
    (tmp_path / "root" / "file").write_text("text")
    root = os.open(tmp_path / "root", FOLDER)
    try:
        for path in (".", "./a", "a/b", "./a/b"):
            descriptor = opens(root, path)
            assert os.fstat(descriptor).st_ino == (tmp_path / "root" / path).stat().st_ino
            os.close(descriptor)
        for path in ("link/b", "absolute/b", "inner/b", "inner", "..", "a/../..", "../outside/b", "file", "nothing/b"):
            with pytest.raises(OSError, match=r"Errno"):
                opens(root, path)
    finally:
        os.close(root)


def test_a_measured_folder_that_becomes_a_link_does_not_have_the_machine_measured(tmp_path: Path) -> None:
    outside, root = tmp_path / "outside", tmp_path / "root"
    (outside / "inner" / "deeper").mkdir(parents=True)
    (outside / "inner" / "deeper" / "large").write_bytes(os.urandom(8 << 20))
    for number in range(50):
        (root / f"{number}" / "inner" / "deeper").mkdir(parents=True)
        (root / f"{number}.link").symlink_to(outside)
    done = threading.Event()
    libc = ctypes.CDLL(None)

    def exchange() -> None:
        while not done.is_set():
            for number in range(50):
                here, there = os.fsencode(root / f"{number}"), os.fsencode(root / f"{number}.link")
                libc.renameat2(-100, here, -100, there, _EXCHANGE)

    thread = threading.Thread(target=exchange)
    thread.start()
    try:
        assert max(measure(root) for _ in range(100)) < 8 << 20
    finally:
        done.set()
        thread.join()
