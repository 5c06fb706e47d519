"""An append of many messages: so many and no more, and nobody else waits while they are read and checked."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import orjson
import pytest

from holdfast.api.errors.threads import InvalidEntry
from holdfast.api.limits import MOST_MESSAGES
from holdfast.storage.sqlite.streams import SqliteStreams
from holdfast.testing.server import ServerProcess
from holdfast.threads.access.authority import KEY, Authority
from holdfast.threads.access.seals import Seals
from holdfast.threads.protocol import framing
from holdfast.threads.protocol.framing import SLICE_MESSAGES, WHOLE_BYTES
from holdfast.threads.protocol.messages import Request
from holdfast.threads.protocol.surface import Slices, StreamSurface

JSON = {b"content-type": b"application/json"}
THREAD = "threads/t-many"


class Turns:
    """Counts the turns of the event loop: what anybody else gets to do."""

    def __init__(self) -> None:
        self.count = 0
        self._on = True
        asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        self.count += 1
        if self._on:
            asyncio.get_running_loop().call_soon(self._turn)

    def stop(self) -> None:
        self._on = False


@pytest.fixture
async def turns() -> AsyncIterator[Turns]:
    turns = Turns()
    yield turns
    turns.stop()


@pytest.fixture
async def surface(tmp_path: Path) -> AsyncIterator[StreamSurface]:
    store = await SqliteStreams.open(tmp_path / "db")
    surface = StreamSurface(store, Authority(Seals(b"tests")))
    for path in (THREAD, "plain"):
        await surface.respond(Request("PUT", path, b"", JSON), KEY)
    yield surface
    await store.close()


def entries(count: int, prefix: str = "e") -> bytes:
    return orjson.dumps(
        [{"id": f"{prefix}-{number}", "ts": number, "payload": {"type": "chat"}} for number in range(count)]
    )


async def read_ids(surface: StreamSurface) -> list[str]:
    response = await surface.respond(Request("GET", THREAD, b"", {}), KEY)
    body = response.body
    if response.rest is not None:
        body += b"".join([piece async for piece in response.rest.pieces])
    return [each["id"] for each in orjson.loads(body)]


@pytest.mark.anyio
@pytest.mark.parametrize(("method", "path"), [("POST", THREAD), ("POST", "plain"), ("PUT", "threads/t-new")])
async def test_others_get_a_turn_between_slices(
    surface: StreamSurface, turns: Turns, monkeypatch: pytest.MonkeyPatch, method: str, path: str
) -> None:
    read: list[int] = []
    parse = framing.parse_json

    def parse_json(body: bytes) -> object:
        read.append(turns.count)
        return parse(body)

    monkeypatch.setattr(framing, "parse_json", parse_json)
    response = await surface.respond(Request(method, path, b"", JSON, entries(MOST_MESSAGES)), KEY)
    assert response.status in (201, 204)
    assert len(read) >= MOST_MESSAGES / SLICE_MESSAGES
    assert len(set(read)) == len(read), "two slices in one turn"


@pytest.mark.anyio
async def test_many_large_appends_at_once_have_one_slice_a_turn_among_them(turns: Turns) -> None:
    taken: list[tuple[int, str]] = []

    def work(name: str) -> Iterator[str]:
        for _ in range(5):
            taken.append((turns.count, name))
            yield name

    slices = Slices()
    done = await asyncio.gather(*(slices.gather(work(name)) for name in "abc"))
    assert done == [["a"] * 5, ["b"] * 5, ["c"] * 5]
    assert len({turn for turn, _ in taken}) == len(taken)
    assert [name for _, name in taken] == ["a", "b", "c"] * 5, "they take turns"


@pytest.mark.anyio
async def test_slices_go_on_after_one_that_failed_or_was_cancelled() -> None:
    slices = Slices()

    def fail() -> Iterator[int]:
        yield 1
        raise InvalidEntry("no")

    def never_end() -> Iterator[int]:
        while True:
            yield 1

    endless = asyncio.create_task(slices.gather(never_end()))
    with pytest.raises(InvalidEntry):
        await slices.gather(fail())
    endless.cancel()
    with pytest.raises(asyncio.CancelledError):
        await endless
    assert await slices.gather([1, 2]) == [1, 2]


@pytest.mark.anyio
async def test_a_large_append_is_written_whole_in_its_order_and_once(surface: StreamSurface) -> None:
    count = WHOLE_BYTES // 10
    await surface.respond(Request("POST", THREAD, b"", JSON, entries(10)), KEY)
    for _ in range(2):
        await surface.respond(Request("POST", THREAD, b"", JSON, entries(count)), KEY)
    assert await read_ids(surface) == [f"e-{number}" for number in range(count)]


@pytest.mark.anyio
async def test_a_small_append_does_not_overtake_a_large_one_of_its_producer(surface: StreamSurface) -> None:
    """A client may send the next before the last is acknowledged: arriving in order, neither is refused."""

    def post(seq: int, body: bytes) -> Request:
        producer = {b"producer-id": b"p", b"producer-epoch": b"0", b"producer-seq": b"%d" % seq}
        return Request("POST", THREAD, b"", JSON | producer, body)

    assert surface.takes_at_once
    large = asyncio.create_task(surface.respond(post(0, entries(WHOLE_BYTES // 10)), KEY))
    await asyncio.sleep(0)
    assert not surface.takes_at_once
    small = asyncio.create_task(surface.respond(post(1, entries(1, "small")), KEY))
    await surface.respond(Request("POST", THREAD, b"", JSON, entries(1, "other")), KEY)
    assert [(await each).status for each in (large, small)] == [200, 200]
    assert surface.takes_at_once
    ids = await read_ids(surface)
    assert ids[0] == "other-0", "others do not wait for it"
    assert ids[-1] == "small-0"


@pytest.mark.anyio
async def test_a_large_append_with_one_wrong_entry_leaves_nothing(surface: StreamSurface) -> None:
    body = entries(WHOLE_BYTES)[:-1] + b',{"payload":{"type":"NO"}}]'
    with pytest.raises(InvalidEntry):
        await surface.respond(Request("POST", THREAD, b"", JSON, body), KEY)
    assert await read_ids(surface) == []


def test_an_append_of_too_many_messages_is_refused_and_says_how_many_fit(open_server: ServerProcess) -> None:
    headers = {"content-type": "application/json"}
    for path in ("/v1/stream/many", "/v1/stream/threads/t-many-messages"):
        with httpx.Client(base_url=open_server.url, timeout=240) as client:
            if "threads" in path:
                assert client.post("/v1/threads", json={"id": "t-many-messages"}).status_code == 201
                message = b'{"payload":{"type":"chat"}}'
            else:
                assert client.put(path, headers=headers).status_code == 201
                message = b"0"
            refused = client.post(
                path, content=b"[" + (message + b",") * MOST_MESSAGES + message + b"]", headers=headers
            )
            assert refused.status_code == 413
            assert f"more than {MOST_MESSAGES} messages in one append" in refused.text
            fits = client.post(
                path, content=b"[" + (message + b",") * (MOST_MESSAGES - 1) + message + b"]", headers=headers
            )
            assert fits.status_code == 204
            assert len(client.get(path).json()) == MOST_MESSAGES + ("threads" in path)


def test_a_large_append_over_http_is_refused_for_what_it_is(open_server: ServerProcess) -> None:
    with httpx.Client(base_url=open_server.url, timeout=240, headers={"content-type": "application/json"}) as client:
        assert client.post("/v1/threads", json={"id": "t-large-refused"}).status_code == 201
        path = "/v1/stream/threads/t-large-refused"
        large = b" " * WHOLE_BYTES
        assert client.post(path, content=large + b'[{"payload":{"type":"chat"}},{}]').status_code == 400
        assert client.post(path, content=large + b"[]").status_code == 400
        assert client.post(path, content=large + b'[{"payload":{"type":"chat"}},"\xff"]').status_code == 400
        assert client.post("/v1/stream/nowhere", content=large + b"[1]").status_code == 404
        stale = {"producer-id": "p", "producer-epoch": "0", "producer-seq": "3"}
        body = large + b'[{"payload":{"type":"chat"}}]'
        assert client.post(path, content=body, headers=stale).status_code == 409
        first = stale | {"producer-seq": "0"}
        assert [client.post(path, content=body, headers=first).status_code for _ in range(2)] == [200, 204]
        assert len(client.get(path).json()) == 2
