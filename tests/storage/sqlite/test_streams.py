"""The embedded store keeps the contract, and what is its own: folding, purging, failing commits."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.api.errors import DiskFull, NotFound, Refused
from holdfast.api.errors.threads import SequenceConflict
from holdfast.storage.sqlite.streams import SqliteStreams
from holdfast.storage.sqlite.streams.writer import Operation
from holdfast.testing.store_suites.streams import Reopen, StreamSuite, append_many, read_all
from holdfast.threads.entries import keyed_entries
from holdfast.threads.store import Acknowledgement, AppendRequest, ForkPoint, Keyed, Producer, StreamConfig

TEXT = StreamConfig(content_type="text/plain")


class TestSqliteStreams(StreamSuite):
    @pytest.fixture
    def reopen(self, tmp_path: Path) -> Reopen:
        def reopen(clock: Callable[[], int]) -> object:
            return SqliteStreams.open(tmp_path / "holdfast.db", clock=clock)

        return reopen  # type: ignore[return-value]


pytestmark = pytest.mark.anyio


async def test_small_chunks_are_folded_into_few(tmp_path: Path) -> None:
    store = await SqliteStreams.open(tmp_path / "db")
    await store.create("a", TEXT)
    for number in range(1000):
        await store.append("a", AppendRequest(b"%04d" % number))
        if number % 5 == 0:
            await store._file()
    await store._file()
    ((chunks,),) = store.look_up("SELECT count(*) FROM chunks")
    assert isinstance(chunks, int)
    assert chunks < 70
    assert await read_all(store, "a") == b"".join(b"%04d" % number for number in range(1000))
    await store.close()


async def test_a_fork_into_the_middle_of_a_folded_chunk_reads_right(tmp_path: Path) -> None:
    store = await SqliteStreams.open(tmp_path / "db")
    await store.create("a", TEXT)
    for number in range(600):
        await store.append("a", AppendRequest(b"%04d" % number))
    await store._file()
    await store.create("b", StreamConfig(fork=ForkPoint("a", 404, 0)), b"!")
    assert await read_all(store, "b") == b"".join(b"%04d" % number for number in range(101)) + b"!"
    await store.close()


async def test_what_was_not_filed_is_there_after_a_crash(tmp_path: Path) -> None:
    """A copy of the files, taken while the store is open, is what a killed server leaves."""
    store = await SqliteStreams.open(tmp_path / "db")
    await store.create("a", TEXT)
    await store.append("a", AppendRequest(b"filed-"))
    await store._file()
    await store.append("a", AppendRequest(b"journal-", seq="1", producer=Producer("p", 0, 0)))
    await store.create("j", StreamConfig(content_type="application/json"))
    await store.append("j", AppendRequest(keyed=(Keyed("k", b"1,\n"),)))
    await store.create("b", StreamConfig(fork=ForkPoint("a", None, 0)))
    await store.append("b", AppendRequest(b"b", producer=Producer("q", 0, 0), close=True))
    await store.create("gone", TEXT, b"x")
    await store.append("gone", AppendRequest(b"y"))
    await store.delete("gone")
    crashed = tmp_path / "crashed"
    crashed.mkdir()
    for name in ("db", "db-wal"):
        shutil.copy(tmp_path / name, crashed / name)
    await store.close()

    store = await SqliteStreams.open(crashed / "db")
    assert store.unfiled_paths()
    assert await read_all(store, "a") == b"filed-journal-"
    assert await read_all(store, "a", start=3) == b"ed-journal-"
    assert await read_all(store, "b", limit=4) == b"filed-journal-b"
    assert (await store.append("a", AppendRequest(b"again", producer=Producer("p", 0, 0)))).duplicate
    with pytest.raises(SequenceConflict):
        await store.append("a", AppendRequest(b"again", seq="1"))
    assert (await store.append("j", AppendRequest(keyed=(Keyed("k", b"1,\n"),)))).duplicate
    assert (await store.append("b", AppendRequest(b"b", producer=Producer("q", 0, 0), close=True))).duplicate
    with pytest.raises(NotFound):
        await store.head("gone")
    await store.append("a", AppendRequest(b"more", producer=Producer("p", 0, 1)))
    await store.close()

    store = await SqliteStreams.open(crashed / "db")
    assert not store.unfiled_paths()
    assert store.look_up("SELECT count(*) FROM journal") == [(0,)]
    assert await read_all(store, "a") == b"filed-journal-more"
    assert await read_all(store, "b") == b"filed-journal-b"
    await store.close()


async def test_reads_and_duplicates_are_right_at_every_moment_of_a_filing(tmp_path: Path) -> None:
    store = await SqliteStreams.open(tmp_path / "db")
    await store.create("a", TEXT)
    expected = b""
    for number in range(60):
        piece = b"%d," % number
        expected += piece
        filing = asyncio.ensure_future(store._file()) if number % 3 == 0 else None
        await store.append("a", AppendRequest(piece, producer=Producer("p", 0, number)))
        assert await read_all(store, "a", limit=7) == expected
        assert (await store.append("a", AppendRequest(piece, producer=Producer("p", 0, number)))).duplicate
        if filing is not None:
            await filing
            assert await read_all(store, "a", limit=7) == expected
    await store.close()


async def test_a_stream_goes_on_from_the_journal_after_a_failed_commit(tmp_path: Path) -> None:
    store = await SqliteStreams.open(tmp_path / "db")
    await store.create("a", TEXT)
    await store.append("a", AppendRequest(b"kept", seq="1", producer=Producer("p", 0, 0)))
    assert store.unfiled_paths() == ["a"]
    pages = store._writer._connection.execute("PRAGMA page_count").fetchone()[0]
    store._writer._connection.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(DiskFull):
        await store.append("a", AppendRequest(b"x" * 100_000, seq="2", producer=Producer("p", 0, 1)))
    store._writer._connection.execute("PRAGMA max_page_count = 1000000000")
    store._writer._connection.execute("PRAGMA query_only = ON")
    with pytest.raises(Refused):
        await store.delete("a")
    store._writer._connection.execute("PRAGMA query_only = OFF")
    assert await read_all(store, "a") == b"kept"
    assert (await store.append("a", AppendRequest(b"kept", producer=Producer("p", 0, 0)))).duplicate
    assert (await store.append("a", AppendRequest(b"!", seq="2", producer=Producer("p", 0, 1)))).tail == 5
    await store.close()
    store = await SqliteStreams.open(tmp_path / "db")
    assert await read_all(store, "a") == b"kept!"
    await store.close()


async def test_an_append_that_is_written_beside_one_that_is_not_is_filed_once(tmp_path: Path) -> None:
    """Both are in one group; alone, the small one is written, and the large one finds no room."""
    store = await SqliteStreams.open(tmp_path / "db")
    await store.create("a", TEXT)
    gate = threading.Event()
    ((pages,),) = store.look_up("PRAGMA page_count")
    assert isinstance(pages, int)

    await store.write(lambda connection: connection.execute(f"PRAGMA max_page_count = {pages + 20}").close())
    held = threading.Event()

    def hold(_: sqlite3.Connection) -> None:
        held.set()
        gate.wait(10)

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(store.write(hold))
        await asyncio.to_thread(held.wait, 10)  # from now on, appends gather for one commit
        small = store.append("a", AppendRequest(b"small", producer=Producer("p", 0, 0)))
        large = store.append("a", AppendRequest(b"x" * 400_000, producer=Producer("q", 0, 0)))
        gate.set()
        await small
        with pytest.raises(DiskFull):
            await large
    await store.write(lambda connection: connection.execute("PRAGMA max_page_count = 1000000000").close())
    await store._file()
    assert store.unfiled_paths() == []
    assert (await store.append("a", AppendRequest(b"small", producer=Producer("p", 0, 0)))).duplicate
    assert await read_all(store, "a") == b"small"
    await store.close()


async def test_a_failed_commit_fails_its_appends_and_nothing_else(tmp_path: Path) -> None:
    """The disk is full for a moment: what was not acknowledged is not there, and the stream goes on from what is."""
    store = await SqliteStreams.open(tmp_path / "db")
    await store.create("a", TEXT)
    await store.append("a", AppendRequest(b"kept"))
    seen: list[bytes] = []
    store.watch("a", lambda change: seen.append(change.data or b""))
    pages = store._writer._connection.execute("PRAGMA page_count").fetchone()[0]
    store._writer._connection.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(DiskFull):
        await store.append("a", AppendRequest(b"x" * 100_000))
    assert await read_all(store, "a") == b"kept"
    store._writer._connection.execute("PRAGMA max_page_count = 1000000000")
    assert (await store.append("a", AppendRequest(b"-more"))).tail == 9
    assert await read_all(store, "a") == b"kept-more"
    assert seen == [b"-more"]
    await store.close()


async def test_one_bad_write_does_not_fail_its_neighbours(tmp_path: Path) -> None:
    store = await SqliteStreams.open(tmp_path / "db")
    await store.create("a", TEXT)
    gate = threading.Event()  # holds the writer until all three wait for the same commit

    def hold(_: sqlite3.Connection) -> None:
        gate.wait(10)

    def broken(_: sqlite3.Connection) -> None:
        raise sqlite3.OperationalError("no such table: nonsense")

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(store.write(hold))
        await asyncio.sleep(0)
        good = store.append("a", AppendRequest(b"1"))
        bad = tasks.create_task(_refused(store, broken))
        await asyncio.sleep(0)
        also_good = store.append("a", AppendRequest(b"2"))
        gate.set()
        await good
        await also_good
        await bad
    assert await read_all(store, "a") == b"12"
    await store.close()


async def _refused(store: SqliteStreams, write: Callable[[sqlite3.Connection], None]) -> None:
    with pytest.raises(Refused):
        await store.write(write)


async def test_the_bytes_of_deleted_streams_are_removed(tmp_path: Path) -> None:
    store = await SqliteStreams.open(tmp_path / "db")
    await store.create("a", TEXT, b"x" * 1000)
    for _ in range(40):
        await store.append("a", AppendRequest(b"y" * 100_000))
    await store.delete("a")
    while store.look_up("SELECT 1 FROM purges"):
        await store._purger.run()
    assert store.look_up("SELECT count(*) FROM chunks") == [(0,)]
    await store.close()


async def test_the_bytes_of_an_append_in_the_commit_of_the_deletion_are_removed(tmp_path: Path) -> None:
    store = await SqliteStreams.open(tmp_path / "db")
    await store.create("a", TEXT)
    appended = store.append("a", AppendRequest(b"last"))
    await store.delete("a")
    await appended
    while store.look_up("SELECT 1 FROM purges"):
        await store._purger.run()
    assert store.unfiled_paths() == []
    await store._file()
    assert store.look_up("SELECT count(*) FROM chunks") == [(0,)]
    await store.close()


async def test_a_deleted_stream_that_a_crash_left_without_forks_frees_its_path(tmp_path: Path) -> None:
    store = await SqliteStreams.open(tmp_path / "db")
    await store.create("a", TEXT, b"old")
    await store.write(lambda connection: connection.execute("UPDATE streams SET deleted = 1").close())
    await store.close()
    store = await SqliteStreams.open(tmp_path / "db")
    await store.create("a", TEXT, b"new")
    assert await read_all(store, "a") == b"new"
    await store.close()


async def test_ids_of_deleted_streams_are_never_used_again(tmp_path: Path) -> None:
    store = await SqliteStreams.open(tmp_path / "db")
    first = (await store.create("a", TEXT)).info.id
    await store.delete("a")
    await store.close()
    store = await SqliteStreams.open(tmp_path / "db")
    assert (await store.create("a", TEXT)).info.id > first
    await store.close()


async def test_appends_of_one_turn_of_the_loop_share_one_commit(tmp_path: Path) -> None:
    store = await SqliteStreams.open(tmp_path / "db")
    for number in range(64):
        await store.create(f"s-{number}", TEXT)
    before = store.statistics()["commits"]
    appends = []
    for number in range(64):
        appends.append(asyncio.ensure_future(store.append(f"s-{number}", AppendRequest(b"x"))))
        time.sleep(0.001)  # noqa: ASYNC251 - as reading a socket does, it lets other threads run
    await asyncio.gather(*appends)
    assert store.statistics()["commits"] == before + 1
    await store.close()


async def test_an_append_is_acknowledged_before_its_readers_are_told(tmp_path: Path) -> None:
    store = await SqliteStreams.open(tmp_path / "db")
    await store.create("a", TEXT)
    told: list[str] = []
    for _ in range(3):
        store.watch("a", lambda _: told.append("reader"))
    acknowledged = store.append("a", AppendRequest(b"x"))
    acknowledged.then(lambda *_: told.append("writer"))
    await acknowledged
    assert told == ["writer", "reader", "reader", "reader"]
    await store.close()


async def test_a_writer_that_appends_from_its_acknowledgement_cannot_double_a_message(tmp_path: Path) -> None:
    store = await SqliteStreams.open(tmp_path / "db")
    await store.create("a", StreamConfig(content_type="application/json"))
    again: list[Acknowledgement] = []
    request = AppendRequest(keyed=(Keyed("k", b"1,\n"),))
    first = store.append("a", request)
    first.then(lambda *_: again.append(store.append("a", request)))
    await first
    assert (await again[0]).duplicate
    assert await read_all(store, "a") == b"1,\n"
    await store.close()


async def test_keys_that_come_in_any_order_are_known_again(tmp_path: Path) -> None:
    """A key that is greater than all before it is new without a look-up; every other one is looked for."""
    store = await SqliteStreams.open(tmp_path / "db")
    await store.create("a", StreamConfig(content_type="application/json"))
    for key in ("m", "a", "z", "k"):
        assert not (await store.append("a", AppendRequest(keyed=(Keyed(key, b"1,\n"),)))).duplicate
        assert (await store.append("a", AppendRequest(keyed=(Keyed(key, b"1,\n"),)))).duplicate
    await store.create("b", StreamConfig(fork=ForkPoint("a", None, 0)))
    await store.append("a", AppendRequest(keyed=(Keyed("zz", b"1,\n"),)))
    for _ in range(2):
        assert all([(await store.append("b", AppendRequest(keyed=(Keyed(key, b"1,\n"),)))).duplicate for key in "amzk"])
        await store.close()
        store = await SqliteStreams.open(tmp_path / "db")
    assert not (await store.append("b", AppendRequest(keyed=(Keyed("zz", b"2,\n"), Keyed("b", b"2,\n"))))).duplicate
    assert (await store.append("b", AppendRequest(keyed=(Keyed("b", b"2,\n"),)))).duplicate
    await store.close()


async def test_an_id_that_the_server_made_is_not_looked_for(tmp_path: Path) -> None:
    store = await SqliteStreams.open(tmp_path / "db")
    await store.create("a", StreamConfig(content_type="application/json"), keyed=(Keyed("z", b"0,\n"),))
    statements: list[str] = []
    store._lookup.set_trace_callback(statements.append)
    (entry,) = keyed_entries(b'{"payload":{"type":"chat"}}', 1)
    await store.append("a", AppendRequest(keyed=(entry,)))
    store._lookup.set_trace_callback(None)
    assert [each for each in statements if "message_keys" in each] == []
    await store.close()


async def test_removing_a_long_thread_is_done_in_short_steps(tmp_path: Path) -> None:
    """No commit removes more than a bounded number of rows, so that no append waits long for it."""
    store = await SqliteStreams.open(tmp_path / "db")
    await store.create("a", StreamConfig(content_type="application/json"))
    for batch in range(20):
        keyed = tuple(Keyed(f"{batch:03d}-{number:04d}", b'"%s",\n' % (b"x" * 300)) for number in range(1000))
        await store.append("a", AppendRequest(keyed=keyed))
    await store._file()
    writer, sizes = store._writer._connection, []
    original = store._writer._write_others

    def measured(operations: list[Operation]) -> None:
        before = writer.total_changes
        original(operations)
        sizes.append(writer.total_changes - before)

    store._writer._write_others = measured  # type: ignore[method-assign]
    await store.delete("a")
    while store.look_up("SELECT 1 FROM purges"):
        await store._purger.run()
    assert store.look_up("SELECT count(*) FROM message_keys") == store.look_up("SELECT count(*) FROM chunks") == [(0,)]
    assert max(sizes) < 5000 < sum(sizes)
    await store.close()


async def test_the_room_of_deleted_streams_is_given_back(tmp_path: Path) -> None:
    path = tmp_path / "db"
    store = await SqliteStreams.open(path)
    await store.create("a", TEXT)
    await store.create("b", TEXT, b"kept")
    for _ in range(32):
        await store.append("a", AppendRequest(bytes(1024 * 1024)))
        await store._file()
    await store.delete("a")
    before = path.stat().st_size
    while store._purger._next_step() is not None:
        await store._purger.run()
    await store.close()
    assert before > 24 * 1024 * 1024
    assert path.stat().st_size < 12 * 1024 * 1024
    store = await SqliteStreams.open(path)
    assert await read_all(store, "b") == b"kept"
    await store.close()


@pytest.mark.parametrize("filings", [1, 100])
async def test_a_key_that_is_filed_while_keys_are_looked_up_is_not_written_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, filings: int
) -> None:
    """It is in the table too late for the look-up, and not in memory any more when the append is decided."""
    store = await SqliteStreams.open(tmp_path / "db")
    await store.create("a", StreamConfig(content_type="application/json"), keyed=(Keyed("z", b"0,\n"),))
    find = store._reader.find_keys
    numbers = iter(range(filings))

    async def find_keys(stream: int, keys: list[str], *, up_to: int) -> list[str]:
        found = await find(stream, keys, up_to=up_to)
        if (number := next(numbers, None)) is not None:
            await store.append("a", AppendRequest(keyed=(Keyed(f"k{number}", b"1,\n"),)))
            await store._file()
        return found

    monkeypatch.setattr(store._reader, "find_keys", find_keys)
    many = tuple(Keyed(f"k{number}", b"1,\n") for number in range(5))
    await append_many(store, "a", AppendRequest(keyed=many))
    assert await read_all(store, "a") == b"0,\n" + b"1,\n" * 5
    await store.close()


async def test_keys_of_many_messages_are_not_looked_up_on_the_event_loop(
    tmp_path: Path,
) -> None:
    store = await SqliteStreams.open(tmp_path / "db")
    await store.create("a", StreamConfig(content_type="application/json"), keyed=(Keyed("z", b"0,\n"),))
    await append_many(store, "a", AppendRequest(keyed=(Keyed("b", b"1,\n"),)))
    asked: list[str] = []
    store._lookup.set_trace_callback(asked.append)
    many = tuple(Keyed(key, b"2,\n") for key in ("a", "b", "c"))
    await append_many(store, "a", AppendRequest(keyed=many))
    assert not asked
    assert await read_all(store, "a") == b"0,\n1,\n2,\n2,\n"
    await store.close()
