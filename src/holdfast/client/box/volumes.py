"""The volumes of a server: files that outlive the boxes that use them."""

from __future__ import annotations

from holdfast.api.box.records import Freed
from holdfast.api.box.snapshots import NewVolume, Volume, VolumeList
from holdfast.client.connection import ServerConnection
from holdfast.client.resource import LONG_SECONDS, Resource


class Volumes:
    """All volumes of one server: `client.boxes.volumes`."""

    def __init__(self, connection: ServerConnection) -> None:
        self._volumes = Resource(connection, "/v1/volumes")

    async def create(self, name: str, *, provider: str = "local") -> Volume:
        answer = await self._volumes.ask(
            "POST", "", NewVolume(name=name, provider=provider).to_request(), repeatable=False
        )
        return answer.read(Volume.from_json)

    async def delete(self, name: str, *, provider: str = "local") -> int:
        """Delete a volume. Returns the bytes freed."""
        answer = await self._volumes.below(name).ask(
            "DELETE", parameters=[("provider", provider)], repeatable=False, timeout=LONG_SECONDS
        )
        return answer.read(Freed.from_json).freed

    async def list(self, *, provider: str = "local") -> list[Volume]:
        answer = await self._volumes.ask("GET", parameters=[("provider", provider)])
        return list(answer.read(VolumeList.from_json).volumes)
