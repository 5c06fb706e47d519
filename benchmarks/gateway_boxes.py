"""Boxes for benchmarks/gateway.py whose ports are this machine's, so that both proxies reach the same program.

A dummy reads and writes files with each connection, to be inspected by tests. These do not.
"""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.api.box.box import Box, Wake
from holdfast.api.box.process import Connection
from holdfast.boxes.network_policy import Egress
from holdfast.boxes.provider import Provider
from holdfast.server.config import Settings
from holdfast.testing.dummy import DummyBox, DummyProvider
from holdfast.testing.dummy_processes import connect


class PlainBox(DummyBox):
    async def connect(self, port: int) -> Connection:
        return await connect(port, lambda: None)


class PlainProvider(DummyProvider):
    async def attach(self, id: str, *, wake: Wake | None = None) -> Box:
        return PlainBox(self, self.describe(id), wake)


async def open_boxes(settings: Settings, egress: Egress) -> Mapping[str, Provider]:
    local = PlainProvider(settings.home / "boxes", name="local")
    await local.open()
    return {"local": local}
