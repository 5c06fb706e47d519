"""The secrets of a server: set, list, rotate and remove them. Values go in and never come out. Needs an API key."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import quote

from holdfast.api.errors import NotFound
from holdfast.api.secrets import (
    Binding,
    Exposure,
    RotateSecret,
    SecretEvent,
    SecretEventList,
    SecretRecord,
    SecretRecordList,
    SetSecret,
)
from holdfast.client.connection import ServerConnection, encode_json


class SecretStore:
    """All secrets of one server: `client.secrets`."""

    def __init__(self, connection: ServerConnection) -> None:
        self._connection = connection

    async def list(self) -> list[SecretRecord]:
        """Returns all secrets by name, without their values."""
        answer = await self._connection.ask("GET", "/v1/secrets")
        return list(answer.read(SecretRecordList.from_json).secrets)

    async def get(self, name: str) -> SecretRecord:
        return (await self._connection.ask("GET", _path(name))).read(SecretRecord.from_json)

    async def set(
        self,
        name: str,
        value: str,
        bindings: Sequence[Binding] = (),
        *,
        expose: Exposure | None = None,
        placeholder: str | None = None,
    ) -> SecretRecord:
        """Store a secret, in place of the one of that name. It needs a binding, or an exposure."""
        wanted = SetSecret(value=value, bindings=tuple(bindings), expose=expose, placeholder=placeholder)
        body = encode_json(wanted.to_request())
        return (await self._connection.ask("PUT", _path(name), body=body)).read(SecretRecord.from_json)

    async def rotate(self, name: str, value: str) -> SecretRecord:
        """Give a secret a new value. Its bindings stay."""
        body = encode_json(RotateSecret(value=value).to_request())
        answer = await self._connection.ask("POST", f"{_path(name)}/rotate", body=body)
        return answer.read(SecretRecord.from_json)

    async def remove(self, name: str) -> None:
        """Remove a secret. Boxes can no longer use it."""
        try:
            await self._connection.ask("DELETE", _path(name))
        except NotFound as error:
            if not error.repeated:
                raise

    async def events(self, name: str, *, limit: int = 100) -> tuple[SecretEvent, ...]:
        """Returns who changed a secret and which boxes used it where, newest first."""
        path = f"{_path(name)}/events"
        answer = await self._connection.ask("GET", path, parameters=[("limit", str(limit))])
        return answer.read(SecretEventList.from_json).events


def _path(name: str) -> str:
    return f"/v1/secrets/{quote(name, safe='')}"
