"""A metered gateway as a server mounts it: with prices, budgets and a thread on which every call is written."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from tests.egress.model_world import KEY, SECRET, WAIT, grant_of, serving

from holdfast.api.ids import now_ms
from holdfast.api.model.budgets import Budget
from holdfast.api.model.models import Api, Price
from holdfast.egress.models import Budgets, LoopbackUpstream, Meter, ModelGateway, Models, Prices, ThreadJournal
from holdfast.egress.models.ledger import load_from
from holdfast.egress.models.meter import Terms
from holdfast.storage.sqlite.storage import SqliteStorage
from holdfast.testing.model import ScriptedModel
from holdfast.threads.access.seals import Seals
from holdfast.threads.projection import Projection
from holdfast.threads.service import Threads
from holdfast.threads.store import StreamStore

SEALS = Seals(b"k" * 32)
PRICE = Price(input=2, output=10, cache_read=0.2, cache_write=2.5)
"""A call of the scripted model with 100 tokens in and 10 out costs 0.0003 dollars."""
CALL_COST = 0.0003


@dataclass
class MeteredWorld:
    models: Models
    meter: Meter
    gateway: ModelGateway
    provider: ScriptedModel
    other: ScriptedModel
    """The provider of `spare/scripted`."""
    agent: httpx.AsyncClient
    threads: Threads
    projection: Projection
    streams: StreamStore
    terms: dict[str, Terms] = field(default_factory=dict)
    """By run. A request names its run by a header."""
    ticks: int = 0

    async def entries(self, kind: str = "signal.model.call", thread: str = "t-1") -> list[dict[str, Any]]:
        page = await self.threads.entries(thread, types=(kind,), since=0, limit=1000)
        return [entry["payload"] for entry in page.entries]

    async def settled(self, count: int) -> list[dict[str, Any]]:
        """The calls on the thread, once there are this many: an agent that left does not wait for its entry."""
        async with asyncio.timeout(WAIT):
            changed = asyncio.Event()
            stop = self.streams.watch("threads/t-1", lambda change: changed.set())
            try:
                while len(found := await self.entries()) < count:
                    await changed.wait()
                    changed.clear()
            finally:
                stop()
        return found

    def use(self, *, run: str = "r-1", budget: Budget | None = None, fallbacks: tuple[str, ...] = ()) -> None:
        self.terms[run] = Terms("t-1", run, ("t-1",), fallbacks, budget)

    async def add(self, name: str, provider: ScriptedModel, **more: Any) -> None:
        given: dict[str, Any] = {"apis": list(Api), "base_url": provider.url, "key": KEY, "model": "scripted"}
        await self.models.put(name, **{**given, **more})


@asynccontextmanager
async def open_metered(folder: Path, *, models: tuple[ScriptedModel, ScriptedModel]) -> AsyncIterator[MeteredWorld]:
    """A gateway on the storage in a folder, which may have been used before."""
    provider, other = models
    async with await SqliteStorage.open(folder) as storage:
        projection = Projection(storage.streams, storage.thread_rows, SEALS)
        await projection.start()
        threads = Threads(storage.streams, projection)
        if not await storage.streams.list_paths("threads/"):
            await threads.create(id="t-1")
        world: MeteredWorld
        async with (
            Models(storage.models, SECRET) as registry,
            Prices(storage.model_prices) as prices,
            Budgets(storage.budgets) as budgets,
        ):
            began = time.monotonic_ns()
            ticks = lambda: (time.monotonic_ns() - began) // 1_000_000 + world.ticks  # noqa: E731
            journal = ThreadJournal(storage.streams, SEALS, now_ms)
            meter = Meter(prices, budgets, load_from(projection), journal, clock=now_ms, ticks=ticks)
            gateway = ModelGateway(registry, LoopbackUpstream, meter=meter, ticks=ticks)

            async def app(scope: Any, receive: Any, send: Any) -> None:
                headers: Mapping[bytes, bytes] = dict(scope["headers"])
                run = headers.get(b"x-run", b"r-1").decode()
                await gateway.handle(scope, receive, send, grant_of(run), terms=world.terms[run])

            async with serving(app) as port:
                base = f"http://127.0.0.1:{port}/model"
                async with httpx.AsyncClient(base_url=base, timeout=WAIT, trust_env=False) as agent:
                    world = MeteredWorld(
                        registry, meter, gateway, provider, other, agent, threads, projection, storage.streams
                    )
                    world.use()
                    await world.add("mine", provider)
                    await world.add("spare", other)
                    for model in ("mine/scripted", "spare/scripted"):
                        await prices.put(model, PRICE)
                    yield world
            await gateway.close()
        await projection.close()


@asynccontextmanager
async def make_metered(folder: Path) -> AsyncIterator[MeteredWorld]:
    async with (
        ScriptedModel(key=KEY) as provider,
        ScriptedModel(key=KEY) as other,
        open_metered(folder, models=(provider, other)) as world,
    ):
        yield world
