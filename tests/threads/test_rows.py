"""A thread's row is the fold of its entries, and can be lost."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.api.errors import Conflict, InvalidRequest, NotFound
from holdfast.api.thread.threads import ThreadStatus
from holdfast.storage.sqlite.streams import SqliteStreams
from holdfast.storage.sqlite.thread_rows import SqliteThreadRows
from holdfast.threads import projection, selection, service
from holdfast.threads.access.seals import Seals
from holdfast.threads.entries import keyed_entries, type_matches
from holdfast.threads.projection import Projection
from holdfast.threads.rows import RowFilter, ThreadRow, fold, format_cursor, parse_cursor
from holdfast.threads.selection import Selected, Selection
from holdfast.threads.service import EntryPage, Threads
from holdfast.threads.store import AppendRequest, ForkPoint, StreamConfig

pytestmark = pytest.mark.anyio


SEALS = Seals(b"of these tests")


def entry(kind: str, ts: int = 1, **fields: Any) -> dict[str, Any]:
    return {"id": f"e-{ts}", "ts": ts, "payload": {"type": kind, **fields}}


def test_signals_shape_the_row() -> None:
    row = fold(
        ThreadRow("t", 1),
        [
            entry("signal.thread.created", 5, title="a", parent="t-0", labels={"team": "x", "bad": 1}),
            entry("chat", 9, text="hello" * 100),
            entry("signal.thread.renamed", 8, title="b"),
            entry("signal.thread.status_changed", 7, status="running"),
            entry("signal.thread.status_changed", 7, status="nonsense"),
            entry("signal.thread.status_changed", 7, status=["running"]),
            entry("signal.thread.archived", 6),
            entry("signal.other.renamed", 6, title="c"),
            entry("chat", 6, text="bye"),
        ],
        SEALS,
    )
    assert row == ThreadRow(
        "t",
        1,
        title="b",
        status=ThreadStatus.RUNNING,
        parent="t-0",
        labels={"team": "x"},
        archived=True,
        entry_count=9,
        last_activity_at=9,
        last_entry={"id": "e-6", "ts": 6, "type": "chat", "text": "bye"},
    )


def test_folding_in_parts_is_folding_the_whole() -> None:
    entries = [entry("signal.thread.renamed", ts, title=str(ts)) for ts in range(10)]
    whole = fold(ThreadRow("t", 1), entries, SEALS)
    for cut in range(10):
        assert fold(fold(ThreadRow("t", 1), entries[:cut], SEALS), entries[cut:], SEALS) == whole


def test_a_cursor_is_read_back_or_refused() -> None:
    assert parse_cursor(format_cursor(ThreadRow("t-1", 1, last_activity_at=77))) == (77, "t-1")
    for cursor in ("", "x", "!!!!", "Og", "bm9uc2Vuc2U", "é"):
        with pytest.raises(InvalidRequest):
            parse_cursor(cursor)


class Fixture:
    """Threads on a store in a folder, opened and closed like a server does."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "holdfast.db"

    async def __aenter__(self) -> Threads:
        self.store = await SqliteStreams.open(self.path)
        self.projection = Projection(self.store, SqliteThreadRows(self.store), SEALS)
        await self.projection.start()
        return Threads(self.store, self.projection)

    async def __aexit__(self, *_: object) -> None:
        await self.projection.close()
        await self.store.close()


async def everything(threads: Threads, **wanted: Any) -> list[ThreadRow]:
    rows: list[ThreadRow] = []
    after = None
    while True:
        page = await threads.list(RowFilter(limit=7, after=after, **wanted))
        rows += page.rows
        if page.next_cursor is None:
            return rows
        after = parse_cursor(page.next_cursor)


async def test_the_cache_tables_are_rebuilt_from_the_streams(tmp_path: Path) -> None:
    fixture = Fixture(tmp_path)
    async with fixture as threads:
        for number in range(30):
            row = await threads.create(title=f"thread {number}", labels={"even": str(number % 2 == 0)})
            await threads.chat(row.id, f"hello {number}")
        last = await threads.create(title="last")
        await threads.rename(last.id, "renamed")
        await threads.archive(last.id, True)
        before = await everything(threads, archived=None)
    assert len(before) == 31

    connection = sqlite3.connect(fixture.path)
    tables = [
        name for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE name LIKE '%\\_cache' ESCAPE '\\'")
    ]
    assert sorted(tables) == ["model_calls_cache", "row_marks_cache", "runs_cache", "threads_cache"]
    for table in tables:
        connection.execute(f"DROP TABLE {table}")
    connection.commit()
    connection.close()

    async with fixture as threads:
        assert await everything(threads, archived=None) == before
        assert [row.title for row in await everything(threads, archived=True)] == ["renamed"]


async def test_a_row_left_behind_by_a_crash_catches_up(tmp_path: Path) -> None:
    fixture = Fixture(tmp_path)
    async with fixture as threads:
        row = await threads.create(title="a")
        gone = await threads.create(title="gone")
        await threads.list(RowFilter())
    # What a crash leaves: entries and deletions that no row knows of.
    store = await SqliteStreams.open(fixture.path)
    threads = Threads(store, Projection(store, SqliteThreadRows(store), SEALS))
    await threads._signal(row.id, "renamed", title="b")
    await store.delete(f"threads/{gone.id}")
    await store.close()
    async with fixture as threads:
        assert [row.title for row in await everything(threads)] == ["b"]


async def test_a_row_is_never_older_than_what_was_acknowledged(tmp_path: Path) -> None:
    """Also where a sweep is folding the very thread, and has not saved it yet."""
    fixture = Fixture(tmp_path)
    async with fixture as threads:
        row = await threads.create(title="0")
        for number in range(1, 50):
            await threads.rename(row.id, str(number))
            sweep = asyncio.create_task(fixture.projection.settle_all())
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert (await threads.get(row.id)).title == str(number)
            await sweep


class BusyRows(SqliteThreadRows):
    """Rows of a thread that is written to again whenever they are saved."""

    def __init__(self, store: SqliteStreams) -> None:
        super().__init__(store)
        self.writer: Threads | None = None
        self.saved = 0

    async def save_rows(self, rows: list[ThreadRow], gone: list[str]) -> None:
        await super().save_rows(rows, gone)
        self.saved += len(rows)
        if self.writer is not None:
            await self.writer.chat("t-busy", "and another")


async def test_a_list_does_not_wait_for_writers_that_never_stop(tmp_path: Path) -> None:
    store = await SqliteStreams.open(tmp_path / "db")
    rows = BusyRows(store)
    projection = Projection(store, rows, SEALS)
    threads = Threads(store, projection)
    await threads.create(id="t-busy")
    await threads.chat("t-busy", "first")
    saved = rows.saved
    rows.writer = threads
    async with asyncio.timeout(240):
        (row,) = (await threads.list(RowFilter())).rows
    assert row.entry_count == 2
    assert rows.saved == saved + 1
    rows.writer = None
    await projection.close()
    await store.close()


async def test_lists_filter_and_page(tmp_path: Path) -> None:
    async with Fixture(tmp_path) as threads:
        parent = await threads.create(title="parent")
        for number in range(20):
            await threads.create(parent=parent.id, labels={"n": str(number), "kind": "child"})
        assert len(await everything(threads, parent=parent.id)) == 20
        assert len(await everything(threads, labels=(("kind", "child"),))) == 20
        assert len(await everything(threads, labels=(("kind", None), ("n", "3")))) == 1
        assert len(await everything(threads, labels=(("kind", "other"),))) == 0
        assert len(await everything(threads, status=ThreadStatus.RUNNING)) == 0
        rows = await everything(threads)
        assert len({row.id for row in rows}) == 21
        keys = [(row.last_activity_at, row.id) for row in rows]
        assert keys == sorted(keys, reverse=True)


async def test_a_fork_of_a_thread_has_a_row_of_its_own(tmp_path: Path) -> None:
    fixture = Fixture(tmp_path)
    async with fixture as threads:
        source = await threads.create(title="source")
        await fixture.store.create("threads/t-fork", StreamConfig(fork=ForkPoint(f"threads/{source.id}", None, 0)))
        await threads.rename("t-fork", "fork")
        fork = await threads.get("t-fork")
        assert (fork.title, fork.entry_count) == ("fork", 2)
        assert (await threads.get(source.id)).title == "source"


async def test_a_thread_that_replaced_another_starts_a_new_row(tmp_path: Path) -> None:
    async with Fixture(tmp_path) as threads:
        await threads.create(id="t-1", title="old")
        await threads.delete("t-1")
        with pytest.raises(NotFound):
            await threads.get("t-1")
        assert (await threads.create(id="t-1")).title is None


async def test_a_thread_is_created_once(tmp_path: Path) -> None:
    async with Fixture(tmp_path) as threads:
        await threads.create(id="t-1")
        with pytest.raises(Conflict):
            await threads.create(id="t-1")
        with pytest.raises(NotFound):
            await threads.create(parent="t-none")
        with pytest.raises(InvalidRequest):
            await threads.create(id="../x")


async def test_entries_are_filtered_and_paged_by_position(tmp_path: Path) -> None:
    async with Fixture(tmp_path) as threads:
        row = await threads.create()
        for number in range(25):
            await threads.chat(row.id, str(number))
            await threads.label(row.id, {"n": str(number)})
        texts, position = [], 0
        while True:
            page = await threads.entries(row.id, types=("chat",), since=position, limit=4)
            texts += [each["payload"]["text"] for each in page.entries]
            position = page.position
            if page.up_to_date:
                break
        assert texts == [str(number) for number in range(25)]


async def pages(threads: Threads, id: str, *types: str, limit: int = 1000) -> list[EntryPage]:
    found: list[EntryPage] = []
    while not found or not found[-1].up_to_date:
        since = found[-1].position if found else 0
        found.append(await threads.entries(id, types=types, since=since, limit=limit))
    return found


async def test_a_page_is_bounded_in_bytes(tmp_path: Path) -> None:
    async with Fixture(tmp_path) as threads:
        row = await threads.create()
        texts = [str(number) * 1024 * 1024 for number in range(9)]
        for text in texts:
            await threads.chat(row.id, text)
        for types in ((), ("chat",)):
            found = await pages(threads, row.id, *types)
            assert max(sum(len(str(each)) for each in page.entries) for page in found) < 6 * 1024 * 1024
            said = [each["payload"].get("text") for page in found for each in page.entries]
            assert [each for each in said if each is not None] == texts


async def test_a_search_is_bounded_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "_SEARCH_BYTES", 512 * 1024)
    async with Fixture(tmp_path) as threads:
        row = await threads.create()
        await threads.chat(row.id, "first")
        for _ in range(30):
            await threads.label(row.id, {"filler": "x" * 100_000})
        await threads.chat(row.id, "last")
        found = await pages(threads, row.id, "chat")
        assert [each["payload"]["text"] for page in found for each in page.entries] == ["first", "last"]
        assert len(found) > 3


async def test_others_get_a_turn_while_a_long_thread_is_searched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of it is one append, which is still in memory: nothing has to be waited for."""
    turns = 0
    taken: list[tuple[int, int]] = []
    take = Selection.take

    def turn() -> None:
        nonlocal turns
        turns += 1
        ticking.append(asyncio.get_running_loop().call_soon(turn))

    def note(each: Selection, framed: bytes) -> Iterator[Selected]:
        taken.append((turns, len(framed)))
        return take(each, framed)

    monkeypatch.setattr(Selection, "take", note)
    async with Fixture(tmp_path) as threads:
        row = await threads.create()
        body = json.dumps([{"payload": {"type": "pi.tool", "text": "x" * 100}}] * 10_000).encode()
        await threads._store.append(f"threads/{row.id}", AppendRequest(keyed=keyed_entries(body, 1)))
        ticking: list[asyncio.Handle] = []
        turn()
        searches = (pages(threads, row.id, kind) for kind in ("pi.tool", "chat", "pi.*"))
        tool, chat, all_of_pi = await asyncio.gather(*searches)
        ticking[-1].cancel()
    assert sum(len(page.entries) for page in tool) == sum(len(page.entries) for page in all_of_pi) == 10_000
    assert not chat[0].entries
    assert max(size for _, size in taken) < service._READ_BYTES + 1000
    assert len({turn for turn, _ in taken}) == len(taken) > 20, "two slices in one turn"


async def test_others_get_a_turn_while_a_long_append_is_folded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    turns = 0
    folded: list[tuple[int, int]] = []

    def turn() -> None:
        nonlocal turns
        turns += 1
        ticking.append(asyncio.get_running_loop().call_soon(turn))

    def note(row: ThreadRow, entries: list[dict[str, Any]], *rest: Any) -> ThreadRow:
        folded.append((turns, len(entries)))
        return fold(row, entries, *rest)

    monkeypatch.setattr(projection, "fold", note)
    async with Fixture(tmp_path) as threads:
        row = await threads.create()
        body = json.dumps([{"payload": {"type": "chat", "text": "x" * 100}}] * 10_000).encode()
        folded.clear()
        ticking: list[asyncio.Handle] = []
        turn()
        await threads._store.append(f"threads/{row.id}", AppendRequest(keyed=keyed_entries(body, 1)))
        await threads.get(row.id)
        ticking[-1].cancel()
    assert sum(count for _, count in folded) == 10_000
    assert len({turn for turn, _ in folded}) == len(folded) > 20, "two pieces in one turn"


async def test_what_cannot_match_is_not_parsed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[bytes] = []

    def loads(text: bytes) -> Any:
        parsed.append(text)
        return json.loads(text)

    monkeypatch.setattr(selection, "orjson", SimpleNamespace(loads=loads))
    async with Fixture(tmp_path) as threads:
        row = await threads.create()
        for number in range(100):
            await threads.label(row.id, {"n": str(number)})
        await threads.chat(row.id, "here")
        parsed.clear()
        (page,) = await pages(threads, row.id, "chat")
        assert [each["payload"]["text"] for each in page.entries] == ["here"]
        assert len([each for each in parsed if b"labelled" in each]) == 0


def test_entries_are_selected_however_their_type_is_written() -> None:
    types = ["chat", "pi.assistant", "pi.delta", "pixel", "signal.thread.renamed", "chat.other"]
    written = [
        b'{"id":"%d","ts":1,"payload":{%s"text":"\\"chat\\" pi.","type":%s}}'
        % (number, b'"more":"x",' * (number % 3), kind)
        for number, name in enumerate(types * 4)
        for kind in (
            f'"{name}"'.encode(),
            b' "%s"' % name.encode(),
            b'"%s"' % "".join(f"\\u{ord(letter):04x}" for letter in name).encode(),
        )
    ]
    framed = b"".join(each + b",\n" for each in written)
    for wanted in ((), ("chat",), ("pi.*",), ("pi.*", "chat"), ("signal.thread.renamed",), ("nothing",)):
        for live in (True, False):
            found = [each.entry for each in Selection(wanted, live=live).take(framed)]
            expected = [
                value
                for value in map(json.loads, written)
                if type_matches(value["payload"]["type"], wanted) and (live or value["payload"]["type"] != "pi.delta")
            ]
            assert found == expected
    ends = [each.end for each in Selection((), live=True).take(framed)]
    assert ends == [end + 1 for end in range(len(framed)) if framed[end : end + 1] == b"\n"]
