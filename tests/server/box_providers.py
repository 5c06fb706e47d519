"""Providers for servers under test: the dummy, standing where an installation has its local boxes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterable, Mapping

from holdfast.boxes.errors import CannotIsolate
from holdfast.boxes.provider import Provider
from holdfast.providers.unusable import UnusableProvider
from holdfast.server.config import Settings
from holdfast.testing import dummy_processes
from holdfast.testing.dummy import DummyProvider

_feed_of_the_dummy = dummy_processes._feed


async def _feed(writer: asyncio.StreamWriter, data: bytes | AsyncIterable[bytes]) -> None:
    """The dummy's own, for the server's event loop: uvloop has another error for a pipe that is closed already."""
    with contextlib.suppress(RuntimeError):
        await _feed_of_the_dummy(writer, data)


async def dummies(settings: Settings) -> Mapping[str, Provider]:
    dummy_processes._feed = _feed  # until the dummy does this itself
    local = DummyProvider(settings.home / "dummy", name="local")
    await local.open()
    return {"local": local}


async def nothing_works(settings: Settings) -> Mapping[str, Provider]:
    return {"local": UnusableProvider("local", CannotIsolate("no user namespaces here", hint="sysctl something"))}
