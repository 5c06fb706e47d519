"""Damage is found and said, and stays where it is: other streams go on."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
from pathlib import Path
from random import Random

import pytest

from holdfast.api.errors.threads import StreamDamaged
from holdfast.storage.errors import DatabaseDamaged
from holdfast.storage.sqlite import DATABASE
from holdfast.storage.sqlite.maintenance import backup, check, compact
from holdfast.storage.sqlite.streams import SqliteStreams
from holdfast.storage.sqlite.streams.journal import decode
from holdfast.storage.sqlite.thread_rows import SqliteThreadRows
from holdfast.testing.store_suites.streams import read_all
from holdfast.threads.access.seals import Seals
from holdfast.threads.projection import Projection
from holdfast.threads.rows import RowFilter
from holdfast.threads.service import Threads
from holdfast.threads.store import AppendRequest, Keyed, StreamConfig

pytestmark = pytest.mark.anyio

JSON = StreamConfig(content_type="application/json")
PAGE = 4096
SEALS = Seals(b"of these tests")


def entry(mark: str, number: int, size: int = 30_000) -> Keyed:
    text = b'{"id":"e-%d","ts":1,"payload":{"type":"chat","text":"%s"}},\n' % (number, mark[:1].encode() * size)
    return Keyed(f"e-{number}", text)


async def fill(path: Path, *names: str, entries: int = 40) -> None:
    """Threads that are whole and filed, each with a letter of its own in it."""
    store = await SqliteStreams.open(path)
    projection = Projection(store, SqliteThreadRows(store), SEALS)
    for name in names:
        await store.create(f"threads/{name}", JSON)
        for number in range(entries):
            await store.append(f"threads/{name}", AppendRequest(keyed=(entry(name, number),)))
    await projection.close()
    await store.close()
    compact(path)  # free pages hold what was there before


def overwrite_pages(path: Path, mark: str, *, which: slice) -> int:
    """Write over the beginning of those pages where rows of a thread begin; returns how many."""
    content = bytearray(path.read_bytes())
    begins = b'"text":"' + mark.encode() * 300  # a preview of it, elsewhere, is shorter
    pages = sorted({at // PAGE for at in range(len(content)) if content.startswith(begins, at)})
    for page in pages[which]:
        content[page * PAGE : page * PAGE + 64] = b"\xff" * 64
    path.write_bytes(content)
    return len(pages[which])


def copy_as_crashed(source: Path, target: Path) -> None:
    for suffix in ("", "-wal"):
        shutil.copy(f"{source}{suffix}", f"{target}{suffix}")


async def test_a_wrong_byte_is_found_when_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "db"
    await fill(path, "a", "b")
    content = path.read_bytes()
    middle = content.index(b"a" * 2000) + 1000
    path.write_bytes(content[:middle] + b"x" + content[middle + 1 :])
    store = await SqliteStreams.open(path)
    with pytest.raises(StreamDamaged, match="differ from what was written"):
        await read_all(store, "threads/a")
    assert len(await read_all(store, "threads/b")) > 40 * 30_000
    await store.append("threads/a", AppendRequest(keyed=(entry("a", 99),)))  # its end is whole
    await store.close()


def test_damage_is_not_taken_for_a_full_disk(tmp_path: Path) -> None:
    """SQLite says that the disk is full when it copies a row whose damaged head promises more than there can be."""
    path = tmp_path / DATABASE
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE kept (data BLOB)")
        connection.executemany("INSERT INTO kept VALUES (?)", [(b"a" * 3000,)] * 50)
    content = bytearray(path.read_bytes())
    at = content.index(b"a" * 3000)
    content[at - 20 : at] = b"\xff" * 20
    path.write_bytes(content)
    with (
        contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection,
        pytest.raises(sqlite3.OperationalError, match="disk is full"),
    ):
        connection.execute("VACUUM INTO ?", (str(tmp_path / "by-sqlite"),))
    (tmp_path / "copy").mkdir()
    with pytest.raises(DatabaseDamaged, match="is damaged and cannot be copied completely"):
        backup(tmp_path, tmp_path / "copy")


@pytest.mark.parametrize("which", [slice(1, 2), slice(-1, None)], ids=["one", "the last"])
async def test_damaged_pages_of_one_thread_do_not_stop_the_others(tmp_path: Path, which: slice) -> None:
    path = tmp_path / "db"
    await fill(path, "a", "x-between", "b")  # a page may hold rows of neighbours
    assert overwrite_pages(path, "a", which=which)
    store = await SqliteStreams.open(path)
    projection = Projection(store, SqliteThreadRows(store), SEALS)
    await projection.start()
    threads = Threads(store, projection)
    with pytest.raises(StreamDamaged):
        await read_all(store, "threads/a")
    await threads.chat("b", "goes on")
    assert {row.id for row in (await threads.list(RowFilter())).rows} == {"a", "x-between", "b"}
    assert (await threads.get("b")).entry_count == 41
    await store._file()
    await threads.delete("a")
    assert {row.id for row in (await threads.list(RowFilter())).rows} == {"x-between", "b"}
    await projection.close()
    await store.close()

    store = await SqliteStreams.open(path)
    assert b"goes on" in await read_all(store, "threads/b")
    await store.close()


async def test_a_check_reports_damage_wherever_it_is(tmp_path: Path) -> None:
    """SQLite stops its own check at some damage. The rest is checked all the same, and the streams are counted."""
    path, damaged = tmp_path / "db", tmp_path / "damaged"
    await fill(path, "a", "b", entries=3)
    content = path.read_bytes()
    random = Random(12)
    for begin in range(PAGE, len(content), PAGE):
        if b"CREATE " in content[begin : begin + PAGE]:
            continue  # without its schema, a file is no database of ours
        damaged.write_bytes(content[:begin] + random.randbytes(PAGE) + content[begin + PAGE :])
        assert check(damaged).damage, f"the page at {begin} is not what it was"


async def test_what_cannot_be_filed_stays_in_the_journal(tmp_path: Path) -> None:
    path, crashed = tmp_path / "db", tmp_path / "crashed"
    await fill(path, "a", "x-between", "b")
    store = await SqliteStreams.open(path)
    for name in "ab":
        await store.append(f"threads/{name}", AppendRequest(keyed=(entry(name, 98), entry(name, 99))))
    copy_as_crashed(path, crashed)
    await store.close()
    assert overwrite_pages(crashed, "a", which=slice(-3, None))

    for _ in range(2):
        store = await SqliteStreams.open(crashed)
        with pytest.raises(StreamDamaged, match="cannot be appended to"):
            await store.append("threads/a", AppendRequest(keyed=(entry("a", 100),)))
        assert b'"e-99"' in await read_all(store, "threads/b")
        await store.append("threads/b", AppendRequest(keyed=(entry("b", 100),)))
        await store.close()
    with sqlite3.connect(crashed) as connection:
        rows = [row for (row,) in connection.execute("SELECT entries FROM journal")]
    kept = [key for row in rows for each in decode(row) for key, _ in each.keys]
    assert kept == ["e-98", "e-99"]


async def test_a_damaged_row_of_the_journal_is_set_aside(tmp_path: Path) -> None:
    path, crashed = tmp_path / "db", tmp_path / "crashed"
    store = await SqliteStreams.open(path)
    for name in "ab":
        await store.create(f"threads/{name}", JSON)
    for number, name in enumerate("abaab"):
        await store.append(f"threads/{name}", AppendRequest(keyed=(entry(name, number, 10),)))
    copy_as_crashed(path, crashed)
    await store.close()
    with sqlite3.connect(crashed, isolation_level=None) as connection:
        (third, row) = connection.execute("SELECT number, entries FROM journal LIMIT 1 OFFSET 2").fetchone()
        connection.execute("UPDATE journal SET entries = ? WHERE number = ?", (row[:-10] + b"x" + row[-9:], third))

    store = await SqliteStreams.open(crashed)
    assert (await read_all(store, "threads/b")).count(b"\n") == 2
    assert (await read_all(store, "threads/a")).count(b"\n") == 1
    with pytest.raises(StreamDamaged, match="is lost"):
        await store.append("threads/a", AppendRequest(keyed=(entry("a", 9, 10),)))
    await store.append("threads/b", AppendRequest(keyed=(entry("b", 9, 10),)))
    await store.close()
    with sqlite3.connect(crashed) as connection:
        assert connection.execute("SELECT count(*) FROM damaged_rows").fetchone() == (1,)
