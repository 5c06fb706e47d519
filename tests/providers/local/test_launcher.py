"""What the launcher of a root server leaves on the machine: nothing, however it ends."""

from __future__ import annotations

import contextlib
import os
import select
import signal
from pathlib import Path

import pytest

from holdfast.api.box.spec import BoxSpec
from holdfast.providers.host.launcher_client import stage_for
from holdfast.providers.local import LocalProvider

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(os.geteuid() != 0, reason="a server that is not root has no stage"),
]


async def test_a_stage_is_never_seen_outside_of_its_launcher_even_one_that_was_killed(tmp_path: Path) -> None:
    home = tmp_path / "home"
    async with LocalProvider(home) as provider:
        stage = Path(stage_for(provider.data_dir.path))
        first = await provider.create(BoxSpec(), id="first")
        assert not stage.exists()
        assert Path(f"/proc/{_launcher_of(stage)}/root{stage}/local/boxes/first").is_dir()
        _kill(_launcher_of(stage))
        second = await provider.create(BoxSpec(), id="second")
        assert not stage.exists()
        for box in (first, second):  # whoever started it
            await box.files.write("file", b"text")
            assert (await box.exec(["cat", "file"])).stdout == b"text"
            await box.delete()
    assert not stage.exists()


async def test_launchers_of_several_homes_do_not_hide_each_other(tmp_path: Path) -> None:
    async with LocalProvider(tmp_path / "one") as one, LocalProvider(tmp_path / "two") as two:
        for provider in (one, two, one):
            box = await provider.create(BoxSpec(), id="same-name")
            assert (await box.exec(["true"])).ok
            await box.delete()


def _kill(pid: int) -> None:
    """Returns when it has ended."""
    handle = os.pidfd_open(pid)
    try:
        signal.pidfd_send_signal(handle, signal.SIGKILL)
        assert select.select([handle], [], [], 30.0)[0]
    finally:
        os.close(handle)


def _launcher_of(stage: Path) -> int:
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            command = path.read_bytes()
            if b"launcher.py" in command and os.fsencode(stage) in command:
                return int(path.parent.name)
    raise AssertionError(f"no launcher has {stage}")
