"""What the boxes of a server under test find beyond it: names for servers of the test, as a file beside the home says.

Loaded in the server's process; the file can change while it runs.
"""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from holdfast.api.box.network import Rule
from holdfast.egress import CannotConnect, CannotResolve, DefaultList, Source
from holdfast.server.config import Settings
from holdfast.server.egress import Outside

ADDRESS = "45.33.32.1"


class Names:
    """By name and port, where on loopback. All names share an address."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._asked = ""

    def _names(self) -> dict[str, dict[str, int]]:
        found: dict[str, dict[str, int]] = json.loads(self._path.read_text())
        return found

    async def resolve(self, host: str, port: int) -> Sequence[str]:
        if host not in self._names():
            raise CannotResolve(f"{host} has no address")
        self._asked = host
        return [ADDRESS]

    async def connect(self, address: str, port: int) -> socket.socket:
        here = self._names().get(self._asked, {}).get(str(port))
        if address != ADDRESS or here is None:
            raise CannotConnect(f"{address}:{port} is no place of this world")
        connection = socket.socket()
        connection.setblocking(False)
        await asyncio.get_running_loop().sock_connect(connection, ("127.0.0.1", here))
        return connection


def names_beside(home: Path) -> Path:
    return home.with_name("names.json")


def authority_beside(home: Path) -> Path:
    """The certificate of the authority of this world."""
    return home.with_name("authority.pem")


def outside(settings: Settings) -> Outside:
    async def find_defaults() -> DefaultList:
        pip = {"PIP_INDEX_URL": "http://registry.test/", "PIP_TRUSTED_HOST": "registry.test"}
        return DefaultList((Source(Rule.parse("registry.test"), "pip"),), pip)

    names = Names(names_beside(settings.home))
    trust = None
    if (authority := authority_beside(settings.home)).exists():
        trust = ssl.create_default_context(cafile=str(authority))
    return Outside(names, names, find_defaults, trust=trust)


def outside_with_packages(settings: Settings) -> Outside:
    """The same, where pip and npm of this machine use registry.test, over TLS."""

    async def find_defaults() -> DefaultList:
        return DefaultList(
            (Source(Rule.parse("registry.test"), "pip"), Source(Rule.parse("registry.test"), "npm")),
            registries=("https://registry.test/",),
            indexes={"pip": "https://registry.test/simple", "npm": "https://registry.test/"},
        )

    return replace(outside(settings), find_defaults=find_defaults)
