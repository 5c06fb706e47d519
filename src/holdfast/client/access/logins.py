"""Logins of browsers: links that log one in, and the browsers that are logged in."""

from __future__ import annotations

from urllib.parse import quote

from holdfast.api.access.login import LoginLink, LoginList, LoginRecord
from holdfast.api.errors import NotFound
from holdfast.client.connection import ServerConnection


class Logins:
    """The logins of the caller's tenant: `client.logins`."""

    def __init__(self, connection: ServerConnection) -> None:
        self._connection = connection

    async def create_link(self) -> LoginLink:
        """Create a link that logs one browser in as the caller, once, within ten minutes."""
        return (await self._connection.ask("POST", "/v1/login/links", repeatable=False)).read(LoginLink.from_json)

    async def list(self) -> list[LoginRecord]:
        """Returns the browsers that are logged in. Needs an owner's key, as `end` does."""
        return list((await self._connection.ask("GET", "/v1/logins")).read(LoginList.from_json).logins)

    async def end(self, id: str) -> None:
        """Log a browser out."""
        try:
            await self._connection.ask("DELETE", f"/v1/logins/{quote(id, safe='')}")
        except NotFound as error:
            if not error.repeated:
                raise
