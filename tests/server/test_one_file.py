"""Everything of a server is in one file, with several connections to it: none of them endangers the others."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest
from tests.stores import open_policies, open_records

from holdfast.storage.sqlite.boxes import SqliteBoxes
from holdfast.storage.sqlite.streams import SqliteStreams
from holdfast.threads.store import AppendRequest, StreamConfig

pytestmark = pytest.mark.anyio

_VISIT = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1])
connection.execute("SELECT count(*) FROM streams").fetchone()
connection.close()
"""


async def test_a_visitor_from_another_process_takes_nothing_along_when_it_leaves(tmp_path: Path) -> None:
    """The last connection to leave removes the log. Who is the last, SQLite knows by the locks on the file."""
    database = tmp_path / "holdfast.db"
    store = await SqliteStreams.open(database)
    await store.create("notes", StreamConfig())
    async with open_records(database), open_policies(database) as policies, SqliteBoxes(database) as boxes:
        assert policies.all() == {}
        assert await boxes.live("default", "here") == []
        log = (tmp_path / "holdfast.db-wal").stat().st_ino
        await store.append("notes", AppendRequest(b"kept"))
        visit = await asyncio.create_subprocess_exec(sys.executable, "-c", _VISIT, str(database))
        assert await asyncio.wait_for(visit.wait(), 60) == 0
        assert (tmp_path / "holdfast.db-wal").stat().st_ino == log
    await store.close()
    again = await SqliteStreams.open(database)
    assert (await again.read("notes", 0, 100)).data == b"kept"
    await again.close()
