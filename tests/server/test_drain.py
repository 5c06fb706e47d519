"""A server that stops ends its streams so that clients connect again and miss nothing."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from holdfast.client import Client
from holdfast.testing.server import ServerProcess

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

READERS, THREADS, ENTRIES = 200, 10, 20
WAIT = 90.0


async def test_two_hundred_readers_see_every_entry_once_over_a_restart(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "home") as server:
        # The key of the home changes with each start, so these clients have one that stays.
        async with Client(server.url, api_key=server.api_key) as first:
            key = (await first.keys.create("readers")).secret
        async with Client(server.url, api_key=key, retry_seconds=WAIT) as client, asyncio.timeout(WAIT):
            ids = [(await client.threads.create(title=f"number {number}")).id for number in range(THREADS)]
            reading = 0
            ready, restarted = asyncio.Event(), asyncio.Event()

            async def read(thread: str) -> list[str]:
                nonlocal reading
                seen: list[str] = []
                async with client.thread(thread).tail() as tail:
                    async for entry in tail:
                        if entry.type != "chat":
                            continue
                        if not seen:
                            reading += 1
                            if reading == READERS:
                                ready.set()
                        seen.append(str(entry.payload["text"]))
                        if len(seen) == ENTRIES:
                            break
                return seen

            async def write(thread: str) -> None:
                for number in range(ENTRIES):
                    if number == ENTRIES // 2:
                        await ready.wait()  # some are written while the server stops, some after
                    if number == ENTRIES - 5:
                        await restarted.wait()
                    await client.thread(thread).append({"type": "chat", "text": f"{thread} {number}"})

            async def restart() -> None:
                await ready.wait()
                await asyncio.to_thread(server.restart)
                restarted.set()

            readers = [asyncio.create_task(read(ids[number % THREADS])) for number in range(READERS)]
            await asyncio.gather(*(write(thread) for thread in ids), restart())
            for number, seen in enumerate(await asyncio.gather(*readers)):
                thread = ids[number % THREADS]
                assert seen == [f"{thread} {each}" for each in range(ENTRIES)]
