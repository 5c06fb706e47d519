"""A tail tells every entry once, in order, whatever happens to connections and servers in between."""

from __future__ import annotations

import socket
from pathlib import Path

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.client.proxy import Fault, Proxy

from holdfast import Client, Entry
from holdfast.client import NotFound, Tail, Thread, Unauthorized, Unreachable
from holdfast.client.thread.tail import Progress
from holdfast.client.thread.thread import Position, parse_position
from holdfast.testing.server import ServerProcess

pytestmark = pytest.mark.anyio


async def write(thread: Thread, *numbers: int) -> None:
    await thread.append([{"type": "test.number", "number": number} for number in numbers])


async def next_number(tail: Tail) -> int:
    with anyio.fail_after(30):
        async for entry in tail:
            if entry.type == "test.number":
                return int(entry.payload["number"])
    raise EOFError


async def test_it_tells_what_was_and_then_what_comes(thread: Thread) -> None:
    await write(thread, 1, 2)
    async with thread.tail() as tail:
        assert [await next_number(tail), await next_number(tail)] == [1, 2]
        await write(thread, 3)
        assert await next_number(tail) == 3


async def test_now_is_when_the_tail_was_entered(thread: Thread) -> None:
    await write(thread, 1)
    async with thread.tail(since="now") as tail:
        await write(thread, 2)
        assert await next_number(tail) == 2


async def test_it_goes_on_at_any_offset_it_had(thread: Thread) -> None:
    await write(thread, 0, 1, 2)
    await write(thread, 3)
    offsets = []
    async with thread.tail() as tail:
        for _ in range(4):
            await next_number(tail)
            offsets.append(tail.offset)
    await write(thread, 4)
    for number, offset in enumerate(offsets):
        async with thread.tail(since=offset) as tail:
            assert await next_number(tail) == number + 1
        page = await thread.page(since=offset, types="test.*")
        assert [entry.payload["number"] for entry in page.entries] == list(range(number + 1, 5))


async def test_it_survives_lost_connections(thread: Thread, shaky: Client, proxy: Proxy) -> None:
    async with shaky.thread(thread.id).tail() as tail:
        for number in range(10):
            await write(thread, number)
            assert await next_number(tail) == number
            if number % 3 == 0:
                await proxy.cut()
            if number == 7:
                await proxy.cut()
                proxy.faults.extend([Fault.BUSY, Fault.LOSE_REQUEST, Fault.LOSE_ANSWER])
    assert not proxy.faults


async def test_it_survives_servers_that_are_killed(tmp_path: Path) -> None:
    async with ServerProcess(tmp_path / "home", auth=False) as server, Client(server.url) as client:
        thread = await client.threads.create()
        total = 300
        seen: list[int] = []
        half_read = anyio.Event()

        async def write_all() -> None:
            for number in range(total):
                await write(thread, number)
                if number == total // 2:
                    await half_read.wait()

        async def read_all() -> None:
            async with thread.tail() as tail:
                while len(seen) < total:
                    seen.append(await next_number(tail))
                    if len(seen) == total // 4:
                        half_read.set()

        async def kill_again_and_again() -> None:
            for _ in range(3):
                await anyio.to_thread.run_sync(server.kill)
                await anyio.to_thread.run_sync(server.start)

        with anyio.fail_after(60):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(write_all)
                tasks.start_soon(read_all)
                await half_read.wait()
                await kill_again_and_again()
        assert seen == list(range(total))


async def test_it_follows_through_the_server_ending_every_connection_after_a_while(tmp_path: Path) -> None:
    async with (
        ServerProcess(tmp_path / "home", auth=False, tail_cycle=0.1) as server,
        Proxy(server.address) as proxy,
        Client(server.url) as writer,
        Client(proxy.url) as reader,
    ):
        thread = await writer.threads.create()
        async with reader.thread(thread.id).tail() as tail:
            number = 0
            while proxy.requests < 4:
                await write(thread, number)
                assert await next_number(tail) == number
                number += 1


async def test_it_ends_when_the_stream_is_closed(thread: Thread, client: Client) -> None:
    await write(thread, 1)
    async with thread.tail() as tail:
        assert await next_number(tail) == 1
        closing = {"stream-closed": "true"}
        await client._connection.ask("POST", f"/v1/stream/threads/{thread.id}", headers=closing)
        with pytest.raises(EOFError):
            await next_number(tail)
        with pytest.raises(StopAsyncIteration):
            await anext(tail)


async def test_it_raises_when_the_thread_is_deleted(thread: Thread) -> None:
    await write(thread, 1)
    async with thread.tail() as tail:
        assert await next_number(tail) == 1
        await thread.delete()
        with pytest.raises(NotFound):
            await next_number(tail)
    with pytest.raises(NotFound):
        await next_number(thread.tail())
    with pytest.raises(NotFound):
        await next_number(thread.tail(since="now"))


async def test_it_raises_when_the_key_is_refused_and_goes_on_with_a_good_one(
    client: Client, thread: Thread, proxy: Proxy
) -> None:
    key = await client.keys.create("for a test")
    async with Client(proxy.url, api_key=key.secret) as other:
        tail = other.thread(thread.id).tail()
        await write(thread, 1)
        assert await next_number(tail) == 1
        await client.keys.revoke(key.id)
        await proxy.cut()
        await write(thread, 2)
        with pytest.raises(Unauthorized):
            await next_number(tail)
        other._connection.use_credential((await client.keys.create("another")).secret)
        assert await next_number(tail) == 2
        await tail.aclose()


async def test_giving_up_waiting_for_an_entry_loses_nothing(thread: Thread) -> None:
    async with thread.tail(since="now") as tail:
        for number in range(3):
            with anyio.move_on_after(0.05):
                await anext(tail)
            await write(thread, number)
            assert await next_number(tail) == number


async def test_closing_it_from_elsewhere_ends_the_iteration(thread: Thread) -> None:
    tail = thread.tail()
    await write(thread, 1)
    assert await next_number(tail) == 1
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(tail.aclose)
        with pytest.raises(EOFError):
            await next_number(tail)
    await tail.aclose()


async def test_patience_ends(thread: Thread, proxy: Proxy, shaky: Client) -> None:
    tail = shaky.thread(thread.id).tail(patience=0.3)
    await write(thread, 1)
    assert await next_number(tail) == 1
    proxy.faults.extend([Fault.LOSE_REQUEST] * 100)
    await proxy.cut()
    with pytest.raises(Unreachable):
        await next_number(tail)
    proxy.faults.clear()
    await write(thread, 2)
    assert await next_number(tail) == 2
    await tail.aclose()


async def test_a_server_that_was_never_there_is_not_waited_for_without_end() -> None:
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        async with Client(f"http://127.0.0.1:{reserved.getsockname()[1]}", retry_seconds=0.2) as client:
            with pytest.raises(Unreachable, match="connection refused"):
                await next_number(client.thread("t-1").tail())


async def test_one_reader_at_a_time(thread: Thread) -> None:
    async with thread.tail(since="now") as tail, anyio.create_task_group() as tasks:

        async def read() -> None:
            await next_number(tail)
            tasks.cancel_scope.cancel()

        tasks.start_soon(read)
        await anyio.wait_all_tasks_blocked()
        with pytest.raises(anyio.BusyResourceError):
            await anext(tail)
        await write(thread, 1)


@pytest.mark.parametrize("text", ["-1", "now", "0000_0001", "0000_0001+3", "-1+12"])
def test_a_position_reads_as_it_is_written(text: str) -> None:
    assert str(parse_position(text)) == text


@pytest.mark.parametrize("text", ["+3", "now+1", "0000+", "0000+x", "0000+-1"])
def test_what_is_no_position_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a position on a thread"):
        parse_position(text)


@given(sizes=st.lists(st.integers(0, 4), max_size=6), stop=st.integers(0, 20), other=st.lists(st.integers(1, 5)))
def test_progress_can_be_taken_up_anywhere_whatever_the_batches(sizes: list[int], stop: int, other: list[int]) -> None:
    """The second reader begins where the first one stopped, and the server cuts its batches differently."""
    entries = [Entry(f"e-{number}", number, {"type": "x"}) for number in range(sum(sizes))]
    first, seen = Progress(Position("0")), list[Entry]()
    begin = 0
    for size in sizes:
        first.receive(entries[begin : begin + size], str(begin + size))
        begin += size
        while len(seen) < stop and (entry := first.hand_out()) is not None:
            seen.append(entry)
        if len(seen) == stop:
            break
    position = parse_position(str(first.position))
    second, begin = Progress(position), int(position.offset)
    for size in [*other, len(entries)]:
        second.receive(entries[begin : begin + size], str(min(begin + size, len(entries))))
        begin = min(begin + size, len(entries))
        while (entry := second.hand_out()) is not None:
            seen.append(entry)
    assert seen == entries
