"""Wake-ups reach whoever follows a stream, also where they come from another server and carry no bytes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from holdfast.storage.sqlite.streams import SqliteStreams
from holdfast.threads.access.authority import KEY, Authority
from holdfast.threads.access.seals import Seals
from holdfast.threads.protocol.messages import Request, Response
from holdfast.threads.protocol.surface import StreamSurface
from holdfast.threads.protocol.tails import Tails
from holdfast.threads.store import AppendRequest, Change, ChangeFeed, StreamConfig, StreamStore

pytestmark = pytest.mark.anyio


class Notifications(ChangeFeed):
    """A feed as a database gives it: it says that a stream has grown, and not by what."""

    def announce(self, stream: int, change: Change) -> None:
        super().announce(stream, replace(change, data=None, start=change.end))


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[StreamStore]:
    store = await SqliteStreams.open(tmp_path / "db", changes=Notifications())
    await store.create("a", StreamConfig(content_type="text/plain"))
    yield store
    await store.close()


class Heard:
    """A channel that keeps what it is given."""

    congested = False

    def __init__(self) -> None:
        self.data = b""
        self._grown = asyncio.Event()

    def start(self, response: Response) -> None:
        assert response.status == 200

    def write(self, data: bytes) -> None:
        self.data += data
        self._grown.set()

    def finish(self) -> None:
        self._grown.set()

    async def drain(self) -> None: ...

    async def until(self, wanted: bytes) -> None:
        async with asyncio.timeout(240):
            while wanted not in self.data:
                self._grown.clear()
                await self._grown.wait()


async def test_a_tail_reads_what_a_wake_up_does_not_carry(store: StreamStore) -> None:
    heard = Heard()
    serving = asyncio.create_task(Tails(store).serve(Request("GET", "a", b"offset=now&live=sse", {}), heard))
    await heard.until(b"upToDate")
    for word in (b"first", b"second"):
        await store.append("a", AppendRequest(word))
        await heard.until(b"data:" + word)
    await store.append("a", AppendRequest(close=True))
    await asyncio.wait_for(serving, 30)
    assert heard.data.count(b"data:first") == heard.data.count(b"data:second") == 1
    assert b'"streamClosed":true' in heard.data


async def test_a_long_poll_reads_what_a_wake_up_does_not_carry(store: StreamStore) -> None:
    surface = StreamSurface(store, Authority(Seals(b"key"), frozenset()), long_poll_timeout=30)
    polling = asyncio.create_task(surface.respond(Request("GET", "a", b"offset=now&live=long-poll", {}), KEY))
    for _ in range(20):  # turns of the loop, after which it waits
        await asyncio.sleep(0)
    await store.append("a", AppendRequest(b"news"))
    assert (await asyncio.wait_for(polling, 30)).body == b"news"


def test_a_watcher_is_told_until_it_stops_or_its_stream_is_deleted() -> None:
    feed, told = ChangeFeed(), list[str]()
    stop = feed.watch(1, lambda change: told.append(f"1 {change.end}"))
    feed.watch(2, lambda change: told.append(f"2 {change.end}"))
    feed.announce(1, Change("a", 0, b"x", 1))
    stop()
    stop()
    assert not feed.is_followed(1)
    feed.announce(1, Change("a", 1, b"x", 2))
    feed.announce(2, Change("b", 0, b"", 0, deleted=True))
    feed.announce(2, Change("b", 0, b"x", 5))
    assert told == ["1 1", "2 0"]


def test_a_watcher_that_fails_keeps_nobody_from_being_told(caplog: pytest.LogCaptureFixture) -> None:
    feed, told = ChangeFeed(), list[Change]()
    feed.watch(1, lambda change: [][1])
    feed.observe(told.append)
    feed.announce(1, Change("a", 0, b"x", 1))
    assert len(told) == 1
    assert "stream a failed" in caplog.text
