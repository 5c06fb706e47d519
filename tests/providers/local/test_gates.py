"""A snapshot restarts the guest of an idle box, and nobody who uses the box meanwhile notices."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from holdfast.api.box.box import Power
from holdfast.boxes import BoxSpec
from holdfast.providers.host.gates import Gates
from holdfast.providers.local import LocalProvider

pytestmark = pytest.mark.anyio


async def test_requests_wait_while_a_gate_is_closed() -> None:
    gates = Gates()
    await gates.passed("b")
    with gates.closed("b"):
        waiting = asyncio.ensure_future(gates.passed("b"))
        await gates.passed("another")
        await asyncio.sleep(0)
        assert not waiting.done()
    await waiting


async def test_whoever_uses_a_box_does_not_notice_its_snapshots(tmp_path: Path) -> None:
    async with LocalProvider(tmp_path) as provider:
        box = await provider.create(BoxSpec(), id="used")
        try:
            over = False
            done = 0

            async def use() -> None:
                nonlocal done
                while not over:
                    await box.files.write("counted", str(done).encode())
                    assert await box.power() is Power.RUNNING
                    assert (await box.exec(["cat", "counted"])).text == str(done)
                    done += 1

            using = asyncio.ensure_future(use())
            for _ in range(10):
                await box.snapshot()
            over = True
            await using
            assert done
            left = await box.snapshot()
            assert left.kind == "layers"
        finally:
            await box.delete()
