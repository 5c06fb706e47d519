"""The row of a stream, without its bytes."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from holdfast.storage.sqlite.streams.record import StreamRecord, dump_config


def insert_stream(connection: sqlite3.Connection, tenant: str, record: StreamRecord) -> None:
    connection.execute(
        "INSERT INTO streams (id, tenant, path, content_type, config, ttl_seconds, expires_at, last_access, created_at,"
        " closed, source, fork_offset) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            record.id,
            tenant,
            record.path,
            record.content_type,
            dump_config(record.config),
            record.ttl_seconds,
            record.expires_at,
            record.last_access,
            record.created_at,
            record.config.closed,
            record.source,
            record.fork_offset,
        ),
    )


def touch_streams(connection: sqlite3.Connection, rows: Sequence[tuple[int, int]]) -> None:
    """Save when streams were last used: time and id of each."""
    connection.executemany("UPDATE streams SET last_access = ? WHERE id = ?", rows)


def delete_streams(connection: sqlite3.Connection, ids: Sequence[tuple[int]]) -> None:
    """Remove the rows of streams, and note that their bytes must be removed."""
    connection.executemany("DELETE FROM streams WHERE id = ?", ids)
    connection.executemany("INSERT OR IGNORE INTO purges (stream) VALUES (?)", ids)


def soft_delete_stream(connection: sqlite3.Connection, id: int) -> None:
    connection.execute("UPDATE streams SET deleted = 1 WHERE id = ?", (id,))
