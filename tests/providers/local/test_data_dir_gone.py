"""A box whose folder was deleted ends by itself: nobody could reach it any more, and it would run for ever."""

from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path

import pytest

from holdfast.api.box.spec import BoxSpec
from holdfast.providers.host.guest_client import GuestClient
from holdfast.providers.local import LocalProvider
from holdfast.providers.pipes import readable

pytestmark = pytest.mark.anyio

_SECONDS = 240.0


async def test_a_box_ends_when_its_home_is_deleted(tmp_path: Path) -> None:
    async with LocalProvider(tmp_path / "home") as provider:
        box = await provider.create(BoxSpec(), id="lost")
        await box.spawn(["sleep", "1000"])
        pid = GuestClient(box.id, provider.data_dir.box(box.id)).pid()
        assert pid is not None
        guest = os.pidfd_open(pid)
    try:
        # As `rm -rf` does it for an ordinary user: a folder of the overlay's own is closed to its owner, and stays.
        shutil.rmtree(tmp_path / "home", ignore_errors=os.geteuid() != 0)
        await asyncio.wait_for(readable(guest), _SECONDS)
    finally:
        os.close(guest)
