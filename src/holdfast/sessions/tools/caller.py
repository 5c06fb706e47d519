"""Who calls an operation: a session, and where it is in its tree. A tree is a session with all sessions below it."""

from __future__ import annotations

import hashlib
from base64 import b32encode
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from holdfast.api.errors import NotFound
from holdfast.api.errors.sessions import SessionNotFound
from holdfast.api.ids import new_id
from holdfast.api.session.sessions import SessionState
from holdfast.sessions.session_log import SessionLog, session_of
from holdfast.threads.projection import Projection
from holdfast.threads.rows import RowFilter, ThreadRow
from holdfast.threads.session_events import Session

MOST_IN_TREE: Final = 1_000
_HIGHEST: Final = 64


@dataclass(frozen=True, slots=True)
class Caller:
    """A session that calls an operation, or a person in its name."""

    row: ThreadRow
    root: str
    """The topmost session of its tree."""
    depth: int
    """Levels below that."""
    person: str | None = None
    """Who calls, if it is not the session itself."""

    @property
    def id(self) -> str:
        return self.row.id

    @property
    def session(self) -> Session:
        return session_of(self.row)

    @property
    def run(self) -> str | None:
        """The run of the session that calls. None if a person does."""
        live = self.row.runs.live
        return None if live is None or self.person is not None else live.run

    @property
    def name(self) -> str:
        """Who is the author of what it writes."""
        return self.person or self.id

    def new_id(self, kind: str, input: Mapping[str, Any]) -> str:
        """Returns the id of what the call creates. With a key, it is always the same one."""
        key = input.get("key")
        return new_id(kind) if key is None else keyed_id(kind, self.id, str(key))


Handler = Callable[[Caller, Mapping[str, Any]], Awaitable[dict[str, Any]]]
"""Carries out an operation. The input has been checked."""


def keyed_id(kind: str, *parts: str) -> str:
    """Returns an id that follows from these texts."""
    digest = hashlib.sha256("\n".join((kind, *parts)).encode()).digest()
    return f"{kind}-{b32encode(digest).decode().lower()[:20]}"


class SessionTree:
    """Finds the sessions around a session."""

    def __init__(self, sessions: SessionLog, projection: Projection) -> None:
        self._sessions = sessions
        self._projection = projection

    async def caller(self, id: str, person: str | None = None) -> Caller:
        """Raises `SessionNotFound`."""
        row = await self._sessions.find(id)
        root, depth = row.id, 0
        above = session_of(row).parent
        while above is not None and depth < _HIGHEST:
            try:
                found = await self._sessions.find(above)
            except NotFound:  # it was deleted
                break
            root, depth, above = above, depth + 1, session_of(found).parent
        return Caller(row, root, depth, person)

    async def below(self, caller: Caller, id: str) -> ThreadRow:
        """Returns a session below the caller's. Raises `SessionNotFound` for every other one, whether it exists or
        not.
        """
        try:
            found = await self.caller(id)
        except NotFound:
            raise missing(id) from None
        above: ThreadRow | None = found.row
        for _ in range(_HIGHEST):
            parent = None if above is None else session_of(above).parent
            if parent is None:
                break
            if parent == caller.id:
                return found.row
            try:
                above = await self._sessions.find(parent)
            except NotFound:
                break
        raise missing(id)

    async def in_tree(self, caller: Caller, id: str) -> ThreadRow:
        """Returns a session of the caller's tree. Raises `SessionNotFound`."""
        try:
            found = await self.caller(id)
        except NotFound:
            raise missing(id) from None
        if found.root != caller.root:
            raise missing(id)
        return found.row

    async def children_of(self, id: str) -> list[ThreadRow]:
        wanted = RowFilter(parent=id, session=tuple(SessionState), archived=None, limit=MOST_IN_TREE)
        return [row for row in await self._projection.rows(wanted) if session_of(row).parent == id]

    async def all_below(self, root: str) -> list[ThreadRow]:
        found: list[ThreadRow] = []
        pending = [root]
        while pending and len(found) < MOST_IN_TREE:
            children = await self.children_of(pending.pop(0))
            found += children
            pending += [row.id for row in children]
        return found


def missing(id: str) -> SessionNotFound:
    return SessionNotFound(f"there is no session {id} below this one")
