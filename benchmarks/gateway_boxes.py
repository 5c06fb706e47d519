"""Boxes for benchmarks/gateway.py whose ports are this machine's, so that both proxies reach the same program."""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.boxes.network_policy import Egress
from holdfast.boxes.provider import Provider
from holdfast.server.config import Settings
from holdfast.testing.dummy import DummyProvider


async def open_boxes(settings: Settings, egress: Egress) -> Mapping[str, Provider]:
    local = DummyProvider(settings.home / "boxes", name="local")
    await local.open()
    return {"local": local}
