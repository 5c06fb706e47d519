"""What is appended is there once: through lost answers, overload, time-outs and cancellations."""

from __future__ import annotations

import socket

import anyio
import pytest
from tests.client.proxy import Fault, Proxy

from holdfast import Client, Entry
from holdfast.api.limits import MOST_BYTES, MOST_MESSAGES
from holdfast.client import (
    Closed,
    DiskFull,
    InvalidRequest,
    NotFound,
    ProducerGap,
    RetryNotice,
    StaleEpoch,
    Thread,
    TooLarge,
    Unreachable,
)
from holdfast.client.connection import encode_json
from holdfast.client.thread import thread as thread_module
from holdfast.testing.server import ServerProcess

pytestmark = pytest.mark.anyio


async def texts_of(thread: Thread) -> list[str]:
    return [entry.payload["text"] async for entry in thread.entries(types="chat")]


async def test_an_append_is_on_the_thread_when_it_returns(thread: Thread) -> None:
    acknowledged = await thread.append({"type": "chat", "text": "hello"}, author_id="u-1")
    stored = [entry async for entry in thread.entries(types="chat")]
    assert stored == [acknowledged.entry]
    assert (await thread.page(since=acknowledged.next_offset)).entries == ()


async def test_a_list_is_appended_in_order_and_an_empty_one_not_at_all(thread: Thread) -> None:
    before = Entry("e-own", 1, {"type": "pi.assistant", "text": "from elsewhere"})
    acknowledged = await thread.append([before, {"type": "chat", "text": "one"}, {"type": "chat", "text": "two"}])
    assert acknowledged.entries[0] is before
    assert tuple([entry async for entry in thread.entries()][-3:]) == acknowledged.entries
    assert (await thread.append([])).next_offset is None


async def test_chat_speaks_as_the_user(thread: Thread) -> None:
    entry = await thread.chat("hi", author_id="u-2")
    assert entry.payload == {"type": "chat", "role": "user", "text": "hi"}
    assert [each async for each in thread.entries(types="chat")] == [entry]


@pytest.mark.parametrize(
    "faults",
    [
        [Fault.LOSE_ANSWER],
        [Fault.LOSE_ANSWER, Fault.LOSE_ANSWER, Fault.LOSE_REQUEST],
        [Fault.BUSY, Fault.LOSE_ANSWER, Fault.SLOW_DOWN],
    ],
)
async def test_a_lost_answer_does_not_duplicate(
    thread: Thread, shaky: Client, proxy: Proxy, faults: list[Fault]
) -> None:
    writer = shaky.thread(thread.id)
    await writer.append({"type": "chat", "text": "before"})
    proxy.faults.extend(faults)
    await writer.append([{"type": "chat", "text": "one"}, {"type": "chat", "text": "two"}])
    assert not proxy.faults
    await writer.append({"type": "chat", "text": "after"})
    assert await texts_of(thread) == ["before", "one", "two", "after"]


async def test_the_producer_alone_keeps_appends_single(thread: Thread, shaky: Client, proxy: Proxy) -> None:
    """Ids deduplicate as well; this takes that second net away."""
    writer = shaky.thread(thread.id)
    proxy.faults.append(Fault.LOSE_ANSWER)
    async with writer._producer.request() as headers:
        body = b'{"payload":{"type":"chat","text":"once"}}'
        answer = await shaky._connection.ask("POST", writer._stream, body=body, headers=headers)
    assert answer.repeated
    assert answer.status == 204
    assert await texts_of(thread) == ["once"]


async def test_whoever_wants_to_know_is_told_of_retries(thread: Thread, proxy: Proxy, server: ServerProcess) -> None:
    notices: list[RetryNotice] = []
    proxy.faults.extend([Fault.BUSY, Fault.LOSE_REQUEST])
    async with Client(proxy.url, api_key=server.api_key, on_retry=notices.append) as client:
        await client.thread(thread.id).chat("hello")
    assert [notice.attempt for notice in notices] == [1, 2]
    assert "503" in notices[0].reason


async def test_nobody_there_names_what_was_not_acknowledged() -> None:
    with socket.socket() as reserved:  # bound, so that nobody else listens there
        reserved.bind(("127.0.0.1", 0))
        port = reserved.getsockname()[1]
        async with Client(f"http://127.0.0.1:{port}", retry_seconds=0.3) as client:
            entry = Entry("e-lost", 1, {"type": "chat", "text": "hello"})
            with pytest.raises(Unreachable, match=r"e-lost.*t-1.*connection refused") as raised:
                await client.thread("t-1").append(entry)
    assert raised.value.unacknowledged == (entry,)
    assert raised.value.hint is not None
    assert raised.value.code == "unreachable"


async def test_after_an_unknown_fate_the_handle_goes_on(thread: Thread, proxy: Proxy, server: ServerProcess) -> None:
    async with Client(proxy.url, api_key=server.api_key, retry_seconds=0) as client:
        writer = client.thread(thread.id)
        await writer.chat("first")
        proxy.faults.append(Fault.LOSE_ANSWER)
        with pytest.raises(Unreachable) as raised:
            await writer.chat("written, but not acknowledged")
        await writer.chat("next")
        await writer.append(raised.value.unacknowledged)
        await writer.chat("last")
    assert await texts_of(thread) == ["first", "written, but not acknowledged", "next", "last"]


async def test_a_cancelled_append_does_not_swallow_the_next_one(thread: Thread, shaky: Client, proxy: Proxy) -> None:
    writer = shaky.thread(thread.id)
    proxy.faults.append(Fault.HOLD_ANSWER)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(writer.chat, "cancelled")
        await proxy.held.wait()
        tasks.cancel_scope.cancel()
    await writer.chat("next")
    assert await texts_of(thread) == ["cancelled", "next"]


async def test_concurrent_appends_of_one_handle_are_all_there_once(thread: Thread, shaky: Client, proxy: Proxy) -> None:
    writer = shaky.thread(thread.id)
    proxy.faults.extend([Fault.LOSE_ANSWER, Fault.LOSE_REQUEST] * 3)
    async with anyio.create_task_group() as tasks:
        for number in range(20):
            tasks.start_soon(writer.chat, str(number))
    assert sorted(await texts_of(thread), key=int) == [str(number) for number in range(20)]


async def test_the_same_entry_is_written_once(thread: Thread, client: Client) -> None:
    entry = Entry("e-1", 1, {"type": "chat", "text": "hello"})
    await thread.append(entry)
    await client.thread(thread.id).append(entry)
    assert await texts_of(thread) == ["hello"]


async def test_a_full_disk_is_not_retried(thread: Thread, shaky: Client, proxy: Proxy) -> None:
    writer = shaky.thread(thread.id)
    proxy.faults.append(Fault.DISK_FULL)
    with pytest.raises(DiskFull, match="no room left"):
        await writer.chat("too much")
    await writer.chat("there is room again")
    assert await texts_of(thread) == ["there is room again"]


async def test_a_producer_that_was_replaced_is_told(thread: Thread, client: Client) -> None:
    await thread.chat("mine")
    newer = {"producer-id": thread._producer.id, "producer-epoch": "1", "producer-seq": "0"}
    body = b'{"payload":{"type":"chat","text":"theirs"}}'
    await client._connection.ask("POST", thread._stream, body=body, headers=newer)
    for _ in range(2):
        with pytest.raises(StaleEpoch, match="1"):
            await thread.chat("mine again")
    assert await texts_of(thread) == ["mine", "theirs"]


async def test_a_gap_is_told_and_the_next_epoch_begins(thread: Thread) -> None:
    thread._producer.seq = 5
    with pytest.raises(ProducerGap) as raised:
        await thread.chat("too far ahead")
    assert raised.value.status == 409
    await thread.chat("in order")
    assert await texts_of(thread) == ["in order"]


async def test_mistakes_are_told_by_type(thread: Thread, client: Client) -> None:
    with pytest.raises(InvalidRequest, match=r"payload\.type"):
        await thread.append({"text": "no type"})
    with pytest.raises(TypeError, match="str"):
        await thread.append("text")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="Out of range"):
        await thread.append({"type": "chat", "number": float("nan")})
    with pytest.raises(ValueError, match="empty"):
        client.thread("")
    with pytest.raises(NotFound, match="t-nowhere") as raised:
        await client.thread("t-nowhere").chat("hello")
    assert raised.value.request_id
    await client._connection.ask("POST", f"/v1/stream/threads/{thread.id}", headers={"stream-closed": "true"})
    with pytest.raises(Closed):
        await thread.chat("too late")
    assert await texts_of(thread) == []


async def test_a_body_over_the_limit_is_told_by_type(thread: Thread) -> None:
    with pytest.raises(TooLarge):
        await thread.append({"type": "chat", "text": "x" * 17_000_000})


async def test_numbers_of_any_length_survive(thread: Thread) -> None:
    payload = {"type": "chat", "whole": 2**80, "text": "\u2028 \x85 \u0000 ✓"}
    await thread.append(payload)
    assert [entry.payload async for entry in thread.entries(types="chat")] == [payload]


def numbered(count: int) -> list[Entry]:
    return [Entry(f"e-{number:06}", number, {"type": "chat", "text": str(number)}) for number in range(count)]


def encoded(entries: list[Entry]) -> list[bytes]:
    return [encode_json(entry.to_json()) for entry in entries]


async def ids_of(thread: Thread) -> list[str]:
    return [entry.id async for entry in thread.entries(types="chat")]


@pytest.fixture
def three_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches of three: the proxy's faults are for small requests."""
    monkeypatch.setattr(thread_module, "MOST_MESSAGES", 3)


async def test_more_entries_than_fit_in_a_request_are_appended_in_order(client: Client) -> None:
    entries = numbered(2 * MOST_MESSAGES + 1)
    one, other = await client.threads.create(), await client.threads.create()
    acknowledged = await one.append(entries)
    assert acknowledged.entries == tuple(entries)
    assert (await one.page(since=acknowledged.next_offset)).entries == ()
    await other.append_encoded(encoded(entries))
    for thread in (one, other):
        assert await ids_of(thread) == [entry.id for entry in entries]
        assert (thread._producer.epoch, thread._producer.seq) == (0, 3), "each batch has its own number"


async def test_more_bytes_than_fit_in_a_request_are_appended_in_order(client: Client) -> None:
    text = "ü" * (MOST_BYTES // 10)
    entries = [Entry(f"e-{number}", number, {"type": "chat", "text": text}) for number in range(6)]
    one, other = await client.threads.create(), await client.threads.create()
    await one.append(entries)
    await other.append_encoded(encoded(entries))
    for thread in (one, other):
        assert [entry async for entry in thread.entries(types="chat")] == entries
        assert thread._producer.seq == 2


@pytest.mark.usefixtures("three_at_most")
@pytest.mark.parametrize(
    "faults",
    [
        [Fault.LOSE_ANSWER],
        [Fault.LOSE_REQUEST, Fault.LOSE_ANSWER, Fault.BUSY, Fault.LOSE_ANSWER, Fault.SLOW_DOWN],
    ],
)
async def test_batches_are_written_once_through_faults(
    thread: Thread, shaky: Client, proxy: Proxy, faults: list[Fault]
) -> None:
    """The producer alone keeps them single here: these entries have no ids that could."""
    writer = shaky.thread(thread.id)
    proxy.faults.extend(faults)
    await writer.append_encoded([b'{"payload":{"type":"chat","text":"%d"}}' % number for number in range(10)])
    assert not proxy.faults
    assert await texts_of(thread) == [str(number) for number in range(10)]
    assert (writer._producer.epoch, writer._producer.seq) == (0, 4)


@pytest.mark.usefixtures("three_at_most")
async def test_a_lost_batch_names_itself_and_what_was_not_sent(
    thread: Thread, proxy: Proxy, server: ServerProcess
) -> None:
    entries = numbered(10)
    async with Client(proxy.url, api_key=server.api_key, retry_seconds=0) as client:
        writer = client.thread(thread.id)
        proxy.faults.extend([Fault.NONE, Fault.LOSE_ANSWER])
        with pytest.raises(Unreachable, match="7 entries") as raised:
            await writer.append(entries)
        assert raised.value.unacknowledged == tuple(entries[3:])
        assert await ids_of(thread) == [entry.id for entry in entries[:6]]
        await writer.append(raised.value.unacknowledged)
        assert await ids_of(thread) == [entry.id for entry in entries]


@pytest.mark.usefixtures("three_at_most")
async def test_a_refused_batch_says_how_many_entries_were_written(thread: Thread) -> None:
    entries = encoded(numbered(10))
    entries[7] = b'{"payload":{}}'
    with pytest.raises(InvalidRequest, match=r"payload\.type") as raised:
        await thread.append_encoded(entries)
    assert raised.value.__notes__ == ["The first 6 of 10 entries are on the thread."]
    assert len(await ids_of(thread)) == 6
    await thread.append_encoded([*entries[:7], *entries[8:]])
    assert await ids_of(thread) == [f"e-{number:06}" for number in range(10) if number != 7]


@pytest.mark.usefixtures("three_at_most")
async def test_entries_that_cannot_be_sent_are_found_before_any_is(thread: Thread) -> None:
    with pytest.raises(ValueError, match="Out of range"):
        await thread.append([*numbered(9), {"type": "chat", "number": float("nan")}])
    assert await ids_of(thread) == []


@pytest.mark.usefixtures("three_at_most")
async def test_batches_of_two_tasks_do_not_mix(thread: Thread) -> None:
    async with anyio.create_task_group() as tasks:
        for name in ("a", "b", "c"):
            tasks.start_soon(thread.append, [{"type": "chat", "text": name} for _ in range(10)])
    texts = await texts_of(thread)
    assert sorted("".join(texts[begin : begin + 10]) for begin in (0, 10, 20)) == ["a" * 10, "b" * 10, "c" * 10]


async def test_no_entries_are_no_request(shaky: Client, proxy: Proxy) -> None:
    await shaky.thread("t-nowhere").append_encoded([])
    assert proxy.requests == 0


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([], []),
        ([5], [[5]]),
        ([3, 3, 2], [[3, 3], [2]]),
        ([8], [[8]]),
        ([9, 1, 9], [[9], [1], [9]]),
        ([1, 1, 1, 1], [[1, 1, 1], [1]]),
        ([2, 2, 2], [[2, 2, 2]]),
        ([2, 2, 3], [[2, 2], [3]]),
    ],
)
def test_batches_fit_in_a_request_and_keep_their_order(
    monkeypatch: pytest.MonkeyPatch, sizes: list[int], expected: list[list[int]]
) -> None:
    monkeypatch.setattr(thread_module, "MOST_MESSAGES", 3)
    monkeypatch.setattr(thread_module, "MOST_BYTES", 10)
    split = list(thread_module.split_batches([b"x" * size for size in sizes]))
    assert [[len(each) for each in batch] for batch in split] == expected
