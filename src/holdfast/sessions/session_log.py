"""Reads sessions, and writes their entries. The one place that changes the state of a session.

A change is a compare-and-swap: it is appended with the next number, as the epoch of a producer. If another process was
faster, the append is a duplicate or stale, and the thread is read again.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from holdfast.api.errors import NotFound, Unavailable
from holdfast.api.errors.sessions import SessionConflict, SessionNotFound
from holdfast.api.errors.threads import StaleEpoch
from holdfast.api.session.sessions import SessionState
from holdfast.runs.run_log import RunLog
from holdfast.threads.rows import ThreadRow
from holdfast.threads.session_events import SESSION_PRODUCER, TRANSITIONS, Session, change_id, changed
from holdfast.threads.store import Producer

_TRIES: Final = 10
_NEXT: Final[Mapping[SessionState, str]] = {
    SessionState.TERMINATED: "holdfast session new starts another one",
    SessionState.ERROR: "end it with holdfast session terminate {id}",
    SessionState.HIBERNATED: "wake it with holdfast session restore {id}",
}


class SessionLog:
    def __init__(self, log: RunLog) -> None:
        self.runs = log

    async def find(self, id: str) -> ThreadRow:
        """Returns the row of a session's thread. Raises `SessionNotFound`."""
        missing = SessionNotFound(f"there is no session {id}", hint="holdfast session list shows all sessions")
        try:
            row = await self.runs.row(id)
        except NotFound:
            raise missing from None
        if row.runs.session is None:
            raise missing
        return row

    async def move(
        self,
        id: str,
        to: SessionState,
        *,
        only_from: Collection[SessionState] = frozenset(SessionState),
        why: str | None = None,
        by: str | None = None,
        box: str | None = None,
        ms: int | None = None,
        error: Mapping[str, str] | None = None,
    ) -> ThreadRow:
        """Change the state of a session. Raises `SessionConflict` if its state does not allow that, or not any more."""
        for _ in range(_TRIES):
            session = session_of(await self.find(id))
            if to not in TRANSITIONS[session.state] or session.state not in only_from:
                raise conflict(id, session.state, f"become {to}")
            version = session.version + 1
            payload = changed(to, version, before=session.state, why=why, by=by, box=box, ms=ms, error=error)
            entry = self.runs.entry(payload, id=change_id(version), author=by)
            try:
                appended = await self.runs.append(id, entry, producer=Producer(SESSION_PRODUCER, version, 0))
            except StaleEpoch:
                continue
            if not appended.duplicate:
                return await self.find(id)
        raise Unavailable(f"other processes keep changing session {id}: try again in a moment")


def session_of(row: ThreadRow) -> Session:
    assert row.runs.session is not None
    return row.runs.session


def conflict(id: str, state: SessionState, what: str) -> SessionConflict:
    hint = _NEXT.get(state)
    return SessionConflict(
        f"session {id} is {state}, and cannot {what}", hint=None if hint is None else hint.format(id=id)
    )
