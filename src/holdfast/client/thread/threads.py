"""The threads of a server: create, list and find them. `thread` has the operations on one thread."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Final, Literal

from holdfast.api.access.keys import Token
from holdfast.api.errors import Conflict
from holdfast.api.ids import new_id
from holdfast.api.thread.threads import NewThread, ThreadInfo, ThreadPage
from holdfast.client.connection import ServerConnection, encode_json
from holdfast.client.thread.thread import Thread

_PAGE: Final = 200

Archived = bool | Literal["any"]
Labels = Mapping[str, str | None]
"""Labels that a thread must have, with this value, or with any value if it is None."""


class Threads:
    """All threads of one server: `client.threads`."""

    def __init__(self, connection: ServerConnection) -> None:
        self._connection = connection

    async def create(
        self,
        *,
        title: str | None = None,
        parent: str | None = None,
        labels: Mapping[str, str] | None = None,
        id: str | None = None,
    ) -> Thread:
        """Create a thread, and return a handle on it. Raises `Conflict` if the id is taken."""
        # Nobody else uses an id generated here, so a retry that finds it taken has found our own thread.
        chosen = id or new_id("t")
        new = NewThread(id=chosen, title=title, parent=parent, labels=dict(labels or {}))
        try:
            await self._connection.ask("POST", "/v1/threads", body=encode_json(new.to_request()), repeatable=id is None)
        except Conflict as error:
            if id is not None or not error.repeated:
                raise
        return Thread(self._connection, chosen)

    async def list(
        self,
        *,
        parent: str | None = None,
        status: str | None = None,
        labels: Labels | None = None,
        archived: Archived = False,
        limit: int | None = None,
    ) -> AsyncIterator[ThreadInfo]:
        """Yields matching threads, latest activity first, at most `limit`."""
        left, cursor = limit, None
        while left is None or left > 0:
            page = await self.page(
                parent=parent,
                status=status,
                labels=labels,
                archived=archived,
                cursor=cursor,
                limit=_PAGE if left is None else min(left, _PAGE),
            )
            for info in page.threads:
                yield info
            left = None if left is None else left - len(page.threads)
            cursor = page.next_cursor
            if cursor is None:
                return

    async def page(
        self,
        *,
        parent: str | None = None,
        status: str | None = None,
        labels: Labels | None = None,
        archived: Archived = False,
        search: str | None = None,
        cursor: str | None = None,
        limit: int = 50,
    ) -> ThreadPage:
        """Returns up to `limit` threads (200 at most) and the cursor of the next page.

        `search` has words that are all in the title or the id.
        """
        wanted = {"parent": parent, "status": status, "search": search, "cursor": cursor, "limit": str(limit)}
        parameters = [(name, value) for name, value in wanted.items() if value is not None]
        parameters.append(("archived", archived if isinstance(archived, str) else str(archived).lower()))
        for name, value in (labels or {}).items():
            parameters.append(("label", name if value is None else f"{name}:{value}"))
        answer = await self._connection.ask("GET", "/v1/threads", parameters=parameters)
        return answer.read(ThreadPage.from_json)

    async def get(self, id: str) -> ThreadInfo:
        return await self._thread(id).info()

    async def rename(self, id: str, title: str) -> ThreadInfo:
        return await self._thread(id).rename(title)

    async def update(
        self, id: str, *, labels: Mapping[str, str] | None = None, archived: bool | None = None
    ) -> ThreadInfo:
        return await self._thread(id).update(labels=labels, archived=archived)

    async def delete(self, id: str) -> None:
        await self._thread(id).delete()

    async def token(self, id: str, scope: str = "read", *, ttl_seconds: int = 7200) -> Token:
        return await self._thread(id).token(scope, ttl_seconds=ttl_seconds)

    def _thread(self, id: str) -> Thread:
        return Thread(self._connection, id)
