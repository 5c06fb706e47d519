"""The end of long-lived responses."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from typing import Any

import pytest

from holdfast.server.shutdown import Shutdown

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("turns", range(6))
async def test_a_reader_that_leaves_at_the_end_leaves_no_error_behind(turns: int) -> None:
    complaints: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
    ends = asyncio.Event()

    async def pieces() -> AsyncIterator[bytes]:
        yield b"first"
        await ends.wait()

    async def read() -> None:
        async for _ in Shutdown().until_stopping(pieces()):
            pass

    reading = asyncio.create_task(read())
    for _ in range(10):
        await asyncio.sleep(0)
    ends.set()
    for _ in range(turns):  # in one of them, the source has ended, and its reader does not know yet
        await asyncio.sleep(0)
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)
    del reading
    await asyncio.sleep(0)
    gc.collect()
    assert complaints == []
