"""The sync twin: the same client, without await."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator

import pytest

from holdfast import Entry, SyncClient
from holdfast.api.limits import MOST_MESSAGES
from holdfast.client import NotFound
from holdfast.client.connection import encode_json
from holdfast.loop_thread import LoopThread
from holdfast.testing.server import ServerProcess


@pytest.fixture
def client(server: ServerProcess) -> Iterator[SyncClient]:
    with SyncClient(server.url, api_key=server.api_key) as client:
        yield client


def use(client: SyncClient) -> None:
    """All of it, once."""
    thread = client.threads.create(title="first", labels={"sync": "yes"})
    entry = thread.chat("hello")
    thread.append([{"type": "test.number", "number": number} for number in range(3)])
    assert list(thread.entries(types="chat")) == [entry]
    assert thread.page(types="test.*", limit=2).entries[1].payload["number"] == 1
    with thread.tail() as tail:
        seen = [next(tail) for _ in range(3)]
    assert seen[1] == entry
    with thread.tail(since=tail.offset) as tail:
        assert next(tail).payload["number"] == 1
    assert thread.rename("second").title == "second"
    assert thread.update(archived=True).archived
    assert not client.threads.update(thread.id, labels={"sync": "no"}, archived=False).archived
    assert client.threads.rename(thread.id, "third").title == "third"
    assert thread.info() == client.threads.get(thread.id)
    assert thread.id in {info.id for info in client.threads.list(labels={"sync": "no"})}
    assert client.threads.page(limit=1).next_cursor is None or client.threads.page(limit=1).threads
    assert client.threads.token(thread.id).thread == thread.token("write").thread
    key = client.keys.create("sync")
    assert key.id in {each.id for each in client.keys.list()}
    client.keys.revoke(key.id)
    assert client.health()["status"] == "ok"
    thread.delete()
    with pytest.raises(NotFound):
        client.threads.delete(thread.id)


def test_without_an_event_loop(client: SyncClient) -> None:
    use(client)


@pytest.mark.anyio
async def test_inside_a_running_event_loop(client: SyncClient) -> None:
    use(client)


def test_threads_share_a_client(client: SyncClient) -> None:
    thread = client.threads.create()
    writers = [
        threading.Thread(target=lambda n=number: thread.append({"type": "test.number", "number": n}))
        for number in range(8)
    ]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert sorted(entry.payload["number"] for entry in thread.entries(types="test.*")) == list(range(8))


def test_a_tail_waits_for_what_another_thread_writes(client: SyncClient) -> None:
    thread = client.threads.create()
    with thread.tail(since="now") as tail:
        writer = threading.Thread(target=thread.chat, args=("from another thread",))
        writer.start()
        assert next(tail).payload["text"] == "from another thread"
        writer.join()


def test_closing_is_idempotent_and_final(server: ServerProcess) -> None:
    client = SyncClient(server.url, api_key=server.api_key)
    client.health()
    client.close()
    client.close()
    with pytest.raises(RuntimeError, match="closed"):
        client.health()
    unused = SyncClient(server.url)
    unused.close()


def test_a_program_that_forgets_to_close_ends_all_the_same(server: ServerProcess) -> None:
    program = f"""
from holdfast import SyncClient
client = SyncClient({server.url!r}, api_key={server.api_key!r})
tail = client.threads.create().tail()
print(next(tail).type)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=240, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "signal.thread.created\n", "")


def test_the_key_stays_out_of_sight(server: ServerProcess) -> None:
    with SyncClient(server.url, api_key="hf_secret") as client:
        assert "hf_secret" not in repr(client) + repr(client.thread("t-1")) + repr(vars(client))


def test_a_generator_that_is_dropped_at_the_very_end_is_closed_too(caplog: pytest.LogCaptureFixture) -> None:
    async def slow_to_close() -> AsyncIterator[int]:
        try:
            yield 1
        finally:
            for _ in range(10):
                await asyncio.sleep(0)

    async def hold(held: asyncio.Event) -> None:
        generator = slow_to_close()
        await anext(generator)
        held.set()
        try:
            await asyncio.Event().wait()
        finally:
            del generator  # now the loop closes it, by a task

    async def begin() -> None:
        held = asyncio.Event()
        tasks.append(asyncio.create_task(hold(held)))
        await held.wait()

    tasks: list[asyncio.Task[None]] = []
    loop = LoopThread()
    loop.run(begin())
    loop.close()
    tasks.clear()
    gc.collect()
    assert "was destroyed but it is pending" not in caplog.text


def test_more_entries_than_fit_in_a_request_are_appended_in_order(server: ServerProcess) -> None:
    entries = [Entry(f"e-{number:06}", number, {"type": "chat"}) for number in range(MOST_MESSAGES + 1)]
    with SyncClient(server.url, api_key=server.api_key) as client:
        thread = client.threads.create()
        thread.append(entries)
        thread.append_encoded([encode_json(entry.to_json()) for entry in reversed(entries)])  # all there already
        assert list(thread.entries(types="chat")) == entries
