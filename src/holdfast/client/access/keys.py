"""The API keys of a server: create, list and revoke them. Needs an API key."""

from __future__ import annotations

from typing import Literal
from urllib.parse import quote

from holdfast.api.access.keys import Caller, CreatedKey, Key, KeyList, NewKey
from holdfast.api.errors import NotFound
from holdfast.client.connection import ServerConnection, encode_json


class Keys:
    """All API keys of one server: `client.keys`."""

    def __init__(self, connection: ServerConnection) -> None:
        self._connection = connection

    async def create(
        self, name: str, *, role: Literal["owner", "member", "viewer"] = "owner", member: str | None = None
    ) -> CreatedKey:
        """Create a key. Its `secret` is returned only once, because the server stores only a digest.

        `role` is what it may do at most. The key of a `member` never does more than their role allows.
        """
        body = encode_json(NewKey(name=name, role=role, member=member).to_request())
        # If the response is lost, a retry would create a second key and leave the first unused.
        return (await self._connection.ask("POST", "/v1/keys", body=body, repeatable=False)).read(CreatedKey.from_json)

    async def caller(self) -> Caller:
        """Returns who this client is to the server: its tenant, and the name of its key."""
        return (await self._connection.ask("GET", "/v1/caller")).read(Caller.from_json)

    async def list(self) -> list[Key]:
        answer = await self._connection.ask("GET", "/v1/keys")
        return list(answer.read(KeyList.from_json).keys)

    async def revoke(self, id: str) -> None:
        """Revoke a key on all servers that share the storage."""
        try:
            await self._connection.ask("DELETE", f"/v1/keys/{quote(id, safe='')}")
        except NotFound as error:
            if not error.repeated:
                raise
