"""A world without anything in it, for servers and providers under test: whatever boxes ask for, nothing leaves."""

from __future__ import annotations

import socket
from collections.abc import Sequence

from holdfast.egress import CannotConnect, CannotResolve, DefaultList
from holdfast.server.config import Settings
from holdfast.server.egress import Outside


class Nowhere:
    """Resolver and connector at once."""

    async def resolve(self, host: str, port: int) -> Sequence[str]:
        raise CannotResolve(f"{host} has no address here")

    async def connect(self, address: str, port: int) -> socket.socket:
        raise CannotConnect(f"{address} is not there")


def nowhere(settings: Settings) -> Outside:
    """For `ServerProcess(outside=…)`; what it does unless told otherwise."""

    async def find_defaults() -> DefaultList:
        return DefaultList()

    return Outside(Nowhere(), Nowhere(), find_defaults)
