"""Shares of a thread: links by which anybody can read it as a page."""

from __future__ import annotations

from urllib.parse import quote

from holdfast.api.access.shares import CreatedShare, NewShare, ShareList, ShareRecord
from holdfast.api.errors import NotFound
from holdfast.client.connection import ServerConnection, encode_json


class Shares:
    """The shares of threads: `client.shares`."""

    def __init__(self, connection: ServerConnection) -> None:
        self._connection = connection

    async def create(self, thread: str, *, seconds: int = 7 * 24 * 3600) -> CreatedShare:
        """Share a thread. The link is returned only once."""
        body = encode_json(NewShare(ttl_seconds=seconds).to_request())
        answer = await self._connection.ask("POST", _path(thread), body=body, repeatable=False)
        return answer.read(CreatedShare.from_json)

    async def list(self, thread: str) -> list[ShareRecord]:
        return list((await self._connection.ask("GET", _path(thread))).read(ShareList.from_json).shares)

    async def revoke(self, thread: str, id: str) -> None:
        """Revoke a share. Its link stops working at once."""
        try:
            await self._connection.ask("DELETE", f"{_path(thread)}/{quote(id, safe='')}")
        except NotFound as error:
            if not error.repeated:
                raise


def _path(thread: str) -> str:
    return f"/v1/threads/{quote(thread, safe='')}/shares"
