"""Reads a session file of Codex. Its records are those that the reader takes from the driver."""

from __future__ import annotations

from holdfast.harnesses.codex.reader import Reader
from holdfast.harnesses.imports import ImportedSession, lines_of, not_a_session, read_with, time_of


def read_session(data: bytes) -> ImportedSession:
    records = list(lines_of("codex", data))
    if not records or records[0].get("type") != "session_meta":
        raise not_a_session("codex", "it does not begin with session_meta")
    return read_with(
        Reader(),
        ((time_of(record.get("timestamp")), record) for record in records if isinstance(record.get("payload"), dict)),
    )
