"""Lists sandboxes: which match a query, in which order, one page at a time. Pure but for reading the query."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from starlette.requests import HTTPConnection

from holdfast.compat.daytona.http.errors import bad_request
from holdfast.compat.daytona.http.requests import flag_of, number_of, time_of
from holdfast.compat.daytona.sandbox_record import CLASS, Sandbox

STATES: Final = frozenset(
    {
        "creating", "restoring", "destroyed", "destroying", "started", "stopped", "starting", "stopping", "error",
        "build_failed", "pending_build", "building_snapshot", "unknown", "pulling_snapshot", "archived", "archiving",
        "resizing", "snapshotting", "forking", "pausing", "paused", "resuming",
    }
)  # fmt: skip
_MOST_LABELS: Final = 64
_MAX_FILTER: Final = 16_384
_SORTS: Final[dict[str, Callable[[Sandbox], Any]]] = {
    "createdAt": lambda sandbox: sandbox.record.created_at,
    "updatedAt": lambda sandbox: max(sandbox.record.changed_at, sandbox.row.changed_at),
    "lastActivityAt": lambda sandbox: sandbox.row.last_active_at,
    "name": lambda sandbox: sandbox.record.name,
    "cpu": lambda sandbox: sandbox.details.cpu,
    "memoryGib": lambda sandbox: sandbox.details.memory,
    "diskGib": lambda sandbox: sandbox.details.disk,
}


@dataclass(frozen=True, slots=True)
class Page:
    sandboxes: list[Sandbox]
    next_cursor: str | None
    total: int


def label_filter(text: str | None) -> dict[str, str]:
    """Labels as the SDK sends them: one JSON object of strings."""
    if not text:
        return {}
    if len(text) > _MAX_FILTER:
        raise bad_request(f"labels: at most {_MAX_FILTER} characters")
    try:
        labels = json.loads(text)
    except (ValueError, RecursionError):
        raise bad_request("labels: a JSON object of strings is expected") from None
    if not isinstance(labels, dict) or not all(isinstance(value, str) for value in labels.values()):
        raise bad_request("labels: a JSON object of strings is expected")
    if len(labels) > _MOST_LABELS:
        raise bad_request(f"labels: at most {_MOST_LABELS}")
    return labels


def select(sandboxes: list[Sandbox], connection: HTTPConnection) -> list[Sandbox]:
    """The sandboxes that match all filters of a query, in its order."""
    tests = _tests(connection)
    found = [sandbox for sandbox in sandboxes if all(test(sandbox) for test in tests)]
    query = connection.query_params
    sort, order = query.get("sort") or "createdAt", query.get("order") or "desc"
    if sort not in _SORTS and sort not in ("lastEventAt", "state", "snapshot", "region", "regionId", "autoDestroyAt"):
        raise bad_request(f"sort {sort[:50]!r}: one of {', '.join(sorted(_SORTS))} is expected")
    if order not in ("asc", "desc"):
        raise bad_request("order: asc or desc is expected")
    key = _SORTS.get(sort, _SORTS["lastActivityAt"])
    return sorted(found, key=lambda sandbox: (key(sandbox), sandbox.id), reverse=order == "desc")


def page_of(sandboxes: list[Sandbox], connection: HTTPConnection) -> Page:
    """The page that a cursor names. A cursor is the id of the last sandbox before it."""
    limit = number_of(connection, "limit", 100, 1, 200)
    found = select(sandboxes, connection)
    start, next_cursor = cursors(connection.query_params.get("cursor"), [each.id for each in found], limit)
    return Page(found[start : start + limit], next_cursor, len(found))


def numbered_page(sandboxes: list[Sandbox], connection: HTTPConnection) -> tuple[list[Sandbox], int, int, int]:
    """A page by its number, as older SDKs ask for it: the sandboxes, how many there are, the page, how many pages."""
    limit, page = number_of(connection, "limit", 100, 1, 200), number_of(connection, "page", 1, 1, 1_000_000)
    found = select(sandboxes, connection)
    return found[(page - 1) * limit : page * limit], len(found), page, -(-len(found) // limit)


def cursors(cursor: str | None, ids: list[str], limit: int) -> tuple[int, str | None]:
    """Where the page of a cursor begins in a list, and the cursor of the next one."""
    start = _after(cursor, ids)
    end = start + limit
    return start, base64.urlsafe_b64encode(f"{end}:{ids[end - 1]}".encode()).decode() if end < len(ids) else None


def _after(cursor: str | None, ids: list[str]) -> int:
    if not cursor:
        return 0
    try:
        position, _, last = base64.b64decode(cursor.encode(), b"-_", validate=True).decode().partition(":")
        start = int(position)
    except (ValueError, binascii.Error):
        raise bad_request("this cursor was not issued by this server") from None
    if start < 0 or len(position) > 9:
        raise bad_request("this cursor was not issued by this server")
    # Some may have come and gone. Where the last one is still there, the page begins after it.
    return ids.index(last) + 1 if last in ids else start


def _tests(connection: HTTPConnection) -> list[Callable[[Sandbox], bool]]:
    query = connection.query_params
    tests: list[Callable[[Sandbox], bool]] = []
    if labels := label_filter(query.get("labels")):
        tests.append(lambda sandbox: labels.items() <= sandbox.details.labels.items())
    if id := query.get("id", "").lower():
        tests.append(lambda sandbox: sandbox.id.lower().startswith(id))
    if name := query.get("name", "").lower():
        tests.append(lambda sandbox: sandbox.record.name.lower().startswith(name))
    if states := _list(connection, "states"):
        if unknown := sorted(states - STATES):
            raise bad_request(f"states: {unknown[0][:50]!r} is not a state of a sandbox")
        tests.append(lambda sandbox: sandbox.state in states)
    if snapshots := _list(connection, "snapshots"):
        tests.append(lambda sandbox: sandbox.details.snapshot in snapshots)
    if targets := _list(connection, "regionIds") | _list(connection, "regions"):
        tests.append(lambda sandbox: sandbox.details.target in targets)
    if classes := _list(connection, "sandboxClasses"):
        tests.append(lambda _: CLASS in classes)
    if (public := flag_of(connection, "isPublic")) is not None:
        tests.append(lambda sandbox: sandbox.details.public == public)
    if (recoverable := flag_of(connection, "isRecoverable")) is not None:
        tests.append(lambda _: not recoverable)
    for parameter, field in (("Cpu", "cpu"), ("MemoryGiB", "memory"), ("DiskGiB", "disk")):
        tests += _range(connection, parameter, field)
    times: tuple[tuple[str, Callable[[Sandbox], int | None]], ...] = (
        ("createdAt", lambda sandbox: sandbox.record.created_at),
        ("lastEvent", lambda sandbox: sandbox.row.last_active_at),
        ("autoDestroyAt", _destroyed_at),
    )
    for prefix, value in times:
        tests += _period(connection, prefix, value)
    return tests


def _destroyed_at(sandbox: Sandbox) -> int | None:
    minutes = sandbox.details.ttl_minutes
    return sandbox.record.created_at + minutes * 60_000 if minutes else None


def _list(connection: HTTPConnection, name: str) -> set[str]:
    values = connection.query_params.getlist(name) + connection.query_params.getlist(f"{name}[]")
    return {part for value in values for part in value.split(",") if part}


def _range(connection: HTTPConnection, parameter: str, field: str) -> list[Callable[[Sandbox], bool]]:
    tests: list[Callable[[Sandbox], bool]] = []
    if connection.query_params.get(f"min{parameter}"):
        least = number_of(connection, f"min{parameter}", 0, 0, 1 << 40)
        tests.append(lambda sandbox: getattr(sandbox.details, field) >= least)
    if connection.query_params.get(f"max{parameter}"):
        most = number_of(connection, f"max{parameter}", 0, 0, 1 << 40)
        tests.append(lambda sandbox: getattr(sandbox.details, field) <= most)
    return tests


def _period(
    connection: HTTPConnection, prefix: str, value: Callable[[Sandbox], int | None]
) -> list[Callable[[Sandbox], bool]]:
    after, before = time_of(connection, f"{prefix}After"), time_of(connection, f"{prefix}Before")
    if after is None and before is None:
        return []

    def test(sandbox: Sandbox) -> bool:
        at = value(sandbox)
        return at is not None and (after is None or at >= after) and (before is None or at <= before)

    return [test]
