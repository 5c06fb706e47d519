"""When a sandbox is stopped, paused, archived or deleted because nobody uses it. Pure decisions."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from holdfast.api.box.records import BoxState
from holdfast.compat.daytona.sandbox_record import Sandbox

_MINUTE: Final = 60_000


class Due(StrEnum):
    STOP = "stop"
    PAUSE = "pause"
    ARCHIVE = "archive"
    DELETE = "delete"
    END = "end"
    """Delete it, also if it is in use."""


def due(sandbox: Sandbox, now: int, *, in_use: bool) -> Due | None:
    """What is to be done with a sandbox now. Times are UTC milliseconds."""
    details, row = sandbox.details, sandbox.row
    if details.ttl_minutes and now >= sandbox.record.created_at + details.ttl_minutes * _MINUTE:
        return Due.END
    if row.state is BoxState.RUNNING:
        idle = 0 if in_use else now - max(row.last_active_at, row.changed_at)
        if details.auto_stop and idle >= details.auto_stop * _MINUTE:
            return Due.STOP
        if details.auto_pause and idle >= details.auto_pause * _MINUTE:
            return Due.PAUSE
    if row.state is BoxState.STOPPED:
        stopped = now - row.changed_at
        if details.auto_delete >= 0 and stopped >= details.auto_delete * _MINUTE:
            return Due.DELETE
        if details.auto_archive and not details.archived and stopped >= details.auto_archive * _MINUTE:
            return Due.ARCHIVE
    return None
