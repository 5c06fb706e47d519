"""`holdfast audit`: who changed what in your tenant."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Any

from holdfast.cli.options import JsonOption, Where
from holdfast.cli.parsing.parameters import Option
from holdfast.cli.session import connect
from holdfast.cli.terminal.console import write_field, write_json, write_table


def audit(
    limit: Annotated[int, Option("--limit", metavar="N", min=1, max=100_000, help="How many, the latest ones.")] = 50,
    *,
    where: Where,
    as_json: JsonOption = False,
) -> None:
    """Show who changed what in your tenant, the latest last. Needs an owner's key."""
    with connect(where) as client:
        page = client.members.audit(limit=1000)
        entries = deque(page.entries, maxlen=limit)
        while not page.up_to_date:
            page = client.members.audit(page.next_offset, 1000)
            entries.extend(page.entries)
    if as_json:
        write_json({"entries": [entry.to_json() for entry in entries]})
        return
    if not entries:
        write_field("audit log", "nothing yet")
        return
    rows = [
        (
            datetime.fromtimestamp(entry.ts / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S"),
            str(entry.payload.get("user", "")),
            str(entry.payload.get("role", "")),
            str(entry.payload.get("status", "")),
            _describe(entry.payload),
        )
        for entry in entries
    ]
    write_table(("time (UTC)", "user", "role", "status", "request"), rows)


def _describe(payload: Mapping[str, Any]) -> str:
    """Returns the request that an entry is about, or the end of a session."""
    if payload.get("type") != "signal.audit.session_ended":
        return f"{payload.get('method', '')} {payload.get('path', '')}"
    why = f": {payload['why']}" if payload.get("why") else ""
    return f"session {payload.get('thread')} is {payload.get('state')}{why}"
