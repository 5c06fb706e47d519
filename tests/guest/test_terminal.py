"""What a terminal keeps of its output."""

from __future__ import annotations

import os
import tty
from pathlib import Path

import pytest

from holdfast.guest.init import terminal
from holdfast.providers.host.process import _next_data

PIECE = b"x" * 2048


def test_a_terminal_forgets_its_oldest_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may carry a stream for days, and its file must not grow with it. Offsets stay what they were."""
    monkeypatch.setattr(terminal, "_KEPT", 1 << 20)
    file = tmp_path / "stdout"
    master, slave = os.openpty()
    tty.setraw(slave)
    opened = terminal.Terminal(
        master, os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND), lambda *_: None, lambda _: None
    )
    for _ in range(8 << 9):
        os.write(slave, PIECE)
        opened.copy()
    os.write(slave, b"the end")
    opened.copy()
    size = file.stat().st_size
    assert size == (8 << 20) + 7
    assert file.stat().st_blocks * 512 <= 2.1 * (1 << 20)
    begin = _next_data(file, 0)
    assert size - (2 << 20) <= begin <= size - (1 << 20)
    data = file.read_bytes()
    assert set(data[begin:-7]) == {ord("x")}
    assert data.endswith(b"the end")
    opened.close()
    os.close(slave)
