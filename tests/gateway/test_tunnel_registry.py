"""Tunnels as a box registers them: what is written on the thread, and how often."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from holdfast.api.box.box import Box
from holdfast.change_limit import AT_ONCE, SECONDS_EACH, Allowance, ChangeLimit, spend
from holdfast.gateway.hosts import SessionHosts
from holdfast.gateway.internal_api import InternalApi
from holdfast.gateway.records import Records
from holdfast.gateway.sessions import ProgramView, SessionView
from holdfast.gateway.tunnel.registry import TunnelRegistry
from holdfast.gateway.visitors import Visitors
from holdfast.storage.sqlite.storage import SqliteStorage
from holdfast.threads.access.seals import Seals
from holdfast.threads.protocol.surface import THREADS
from holdfast.threads.store import StreamConfig

pytestmark = pytest.mark.anyio

SESSION = SessionView("t-1", "t-1", "running", "b-1")


@dataclass
class Clock:
    now: int = 1_000_000

    def __call__(self) -> int:
        return self.now


class OneSession:
    async def find(self, id: str) -> SessionView | None:
        return SESSION

    async def programs(self, session: SessionView) -> list[ProgramView]:
        return []

    def open_box(self, session: SessionView) -> AbstractAsyncContextManager[Box]:
        raise NotImplementedError

    async def of_box(self, box: str) -> SessionView | None:
        return SESSION


@dataclass
class Inside:
    """The internal API, as the box sees it."""

    storage: SqliteStorage
    clock: Clock = field(default_factory=Clock)

    def __post_init__(self) -> None:
        records = Records(self.storage.streams, Seals(b"s" * 32), self.clock)
        hosts = SessionHosts("http", "")
        self.registry = TunnelRegistry(records, hosts, Visitors(), ChangeLimit(self.clock))
        self.api = InternalApi(OneSession(), self.registry.internal_routes())

    async def ask(self, method: str, path: str, **body: Any) -> tuple[int, Any]:
        status, answer = await self.api.respond("b-1", method, path, b"", json.dumps(body).encode())
        return status, json.loads(answer)

    async def written(self) -> int:
        """Bytes on the thread."""
        return len((await self.storage.streams.read(THREADS + "t-1", 0, 1 << 30)).data)


@pytest.fixture
async def inside(tmp_path: Path) -> AsyncIterator[Inside]:
    async with await SqliteStorage.open(tmp_path) as storage:
        await storage.streams.create(THREADS + "t-1", StreamConfig(content_type="application/json"))
        yield Inside(storage)


async def test_a_box_that_changes_its_tunnels_without_end_is_slowed_down(inside: Inside) -> None:
    answers = [await inside.ask("POST", "/api/tunnels", name="app", port=10_000 + each) for each in range(600)]
    assert [status for status, _ in answers] == [200] * AT_ONCE + [429] * (600 - AT_ONCE)
    assert "wait 2 seconds" in answers[-1][1]["error"]
    full = await inside.written()
    assert full < AT_ONCE * 1000
    assert (await inside.ask("DELETE", "/api/tunnels/app"))[0] == 429
    # What changes nothing is neither counted nor written.
    assert (await inside.ask("POST", "/api/tunnels", name="app", port=10_000 + AT_ONCE - 1))[0] == 200
    assert await inside.written() == full
    # People outside are not held up by the box.
    await inside.registry.delete(SESSION, "app")
    inside.clock.now += SECONDS_EACH * 1000
    assert (await inside.ask("POST", "/api/tunnels", name="app", port=1))[0] == 200
    assert (await inside.ask("POST", "/api/tunnels", name="app", port=2))[0] == 429


async def test_a_change_writes_one_tunnel_however_many_there_are(inside: Inside) -> None:
    sizes = []
    for each in range(50):
        before = await inside.written()
        await inside.registry.register(SESSION, {"name": f"tunnel-{each:02}", "port": 3000 + each})
        sizes.append(await inside.written() - before)
    assert max(sizes) - min(sizes) < 16
    assert len(await inside.registry.list(SESSION)) == 50


def test_an_allowance_is_regained_up_to_its_limit() -> None:
    assert spend(Allowance(1, 0), 0) == Allowance(0, 0)
    assert spend(Allowance(0, 0), SECONDS_EACH * 1000 - 1) is None
    assert spend(Allowance(0, 0), SECONDS_EACH * 1000) == Allowance(0, SECONDS_EACH * 1000)
    assert spend(Allowance(0, 0), 1 << 50) == Allowance(AT_ONCE - 1, 1 << 50)
    assert spend(Allowance(0, 5000), 0) is None  # the clock was set back
