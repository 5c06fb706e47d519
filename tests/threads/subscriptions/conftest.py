"""A server's subscriptions without the server: a real store on disk, a clock turned by hand, real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import httpx
import orjson
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from tests.threads.subscriptions.webhooks import WebhookReceiver

from holdfast.api.errors import Conflict, Refused
from holdfast.api.thread.entries import Entry
from holdfast.storage.sqlite.streams import SqliteStreams
from holdfast.storage.sqlite.subscriptions import SqliteSubscriptions
from holdfast.testing.clock import ManualClock
from holdfast.threads.access.seals import Seals
from holdfast.threads.entries import keyed
from holdfast.threads.protocol.framing import as_array, frame_json
from holdfast.threads.store import AppendRequest, StreamConfig
from holdfast.threads.subscriptions import Limits, SubscriptionRoutes, SubscriptionService
from holdfast.threads.subscriptions.records import Link, Subscription
from holdfast.threads.subscriptions.store import Stored, SubscriptionStore

SECRET = b"a secret of the tests, 32 bytes."
WAIT_SECONDS = 240.0


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class WatchedSubscriptions:
    """Another store, with eyes on it: wait for a save, hold saves up, or make them fail."""

    def __init__(self, inner: SubscriptionStore) -> None:
        self._inner = inner
        self._waiting: list[tuple[Callable[[Subscription], bool], asyncio.Future[Subscription]]] = []
        self.saved: list[Subscription] = []
        self.open = asyncio.Event()
        self.open.set()
        self.held = asyncio.Event()
        """A save waits for `open`."""
        self.failure: Refused | None = None

    async def load_all(self) -> list[Stored]:
        return await self._inner.load_all()

    async def save(self, subscription: Subscription, links: Mapping[str, Link | None]) -> None:
        if not self.open.is_set():
            self.held.set()
        await self.open.wait()
        if self.failure is not None:
            raise self.failure
        await self._inner.save(subscription, links)
        self.saved.append(subscription)
        for condition, future in self._waiting:
            if not future.done() and condition(subscription):
                future.set_result(subscription)

    async def delete(self, id: str) -> None:
        await self._inner.delete(id)

    async def until(self, condition: Callable[[Subscription], bool]) -> Subscription:
        """The last saved state if it is like this, or the first to come that is."""
        if self.saved and condition(self.saved[-1]):
            return self.saved[-1]
        future: asyncio.Future[Subscription] = asyncio.get_running_loop().create_future()
        self._waiting.append((condition, future))
        async with asyncio.timeout(WAIT_SECONDS):
            return await future


class Bench:
    """Everything that a test of subscriptions needs, and a way to stop and start it."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "holdfast.db"
        self.clock = ManualClock()
        self.key = Ed25519PrivateKey.generate()
        self.limits = Limits()
        self.seals = Seals(SECRET)
        self.allow_local = True
        self.delivery_timeout = 5.0
        self.resolved: list[str] = []
        self.addresses: dict[str, list[str]] = {}
        self.transport: httpx.AsyncBaseTransport | None = None

    async def open(self) -> None:
        self.store = await SqliteStreams.open(self.path, clock=self.clock.now)
        self.subscriptions = WatchedSubscriptions(SqliteSubscriptions(self.store))
        transport = self.transport
        self.service = SubscriptionService(
            self.store,
            subscriptions=self.subscriptions,
            seals=self.seals,
            public_url="http://holdfast.test",
            callback_secret=SECRET,
            signing_key=self.key,
            allow_local_webhooks=self.allow_local,
            clock=self.clock,
            limits=self.limits,
            resolver=self.resolve,
            transport=None if transport is None else lambda: transport,
            delivery_timeout=self.delivery_timeout,
            chance=lambda: 0.5,
        )
        self.routes = SubscriptionRoutes(self.service)
        await self.service.start()

    async def close(self) -> None:
        await self.service.close()
        await self.store.close()

    async def restart(self) -> None:
        await self.close()
        await self.open()

    async def resolve(self, host: str, port: int) -> list[str]:
        self.resolved.append(host)
        if host not in self.addresses:
            raise OSError(f"nothing known of {host}")
        return self.addresses[host]

    async def call(self, method: str, path: str, body: Any = None, token: str | None = None) -> tuple[int, Any]:
        """A request to `__ds/<path>`: its status, and its body as JSON."""
        headers = {b"authorization": f"Bearer {token}".encode()} if token is not None else {}
        raw = body if isinstance(body, bytes) else b"" if body is None else orjson.dumps(body)
        response = await self.routes.handle(method, f"__ds/{unquote(path)}", headers, raw, "q-1")
        assert response is not None
        return response.status, orjson.loads(response.body) if response.body else None

    async def subscribe(self, id: str, **fields: Any) -> dict[str, Any]:
        status, body = await self.call("PUT", f"subscriptions/{id}", fields)
        assert status == 201, body
        return dict(body)

    async def webhook(self, id: str, url: str, pattern: str = "events/*", lease_ttl_ms: int = 5_000) -> dict[str, Any]:
        return await self.subscribe(
            id, type="webhook", pattern=pattern, webhook={"url": url}, lease_ttl_ms=lease_ttl_ms
        )

    async def pull(self, id: str, pattern: str = "events/*", lease_ttl_ms: int = 5_000) -> dict[str, Any]:
        await self.put("wakes", None)
        return await self.subscribe(
            id, type="pull-wake", pattern=pattern, wake_stream="wakes", lease_ttl_ms=lease_ttl_ms
        )

    async def put(self, path: str, value: Any = None) -> int:
        data = b"" if value is None else frame_json(orjson.dumps(value))
        return (await self.store.create(path, StreamConfig("application/json"), data)).info.tail

    async def append(self, path: str, value: Any) -> int:
        return (await self.store.append(path, AppendRequest(frame_json(orjson.dumps(value))))).tail

    async def record(self, path: str, *entries: dict[str, Any]) -> int:
        """Append entries as the server writes them, with its seal. Creates the thread if there is none."""
        thread = path.removeprefix("threads/")
        sealed = tuple(keyed(self.seals.seal(thread, Entry.from_json(each))) for each in entries)
        with suppress(Conflict):  # it is a fork
            await self.store.create(path, StreamConfig("application/json"))
        return (await self.store.append(path, AppendRequest(keyed=sealed))).tail

    async def events(self, count: int, path: str = "wakes") -> list[dict[str, Any]]:
        """The events of a wake stream, once there are so many."""
        return await self._events(lambda events: len(events) >= count, path)

    async def announced(self, generation: int, path: str = "wakes") -> None:
        """Wait for the event of a generation. One that is claimed before it is announced has none."""
        await self._events(lambda events: any(event["generation"] == generation for event in events), path)

    async def _events(self, enough: Callable[[list[dict[str, Any]]], bool], path: str) -> list[dict[str, Any]]:
        grown = asyncio.Event()
        stop = self.store.watch(path, lambda change: grown.set())
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                while True:
                    grown.clear()
                    events: list[dict[str, Any]] = orjson.loads(
                        as_array((await self.store.read(path, 0, 1_000_000)).data) or b"[]"
                    )
                    if enough(events):
                        return events
                    await grown.wait()
        finally:
            stop()

    def stored(self, id: str) -> Subscription:
        return self.service._live[id].subscription


@pytest.fixture
async def receiver() -> AsyncIterator[WebhookReceiver]:
    async with WebhookReceiver() as made:
        yield made


@pytest.fixture
async def bench(tmp_path: Path, receiver: WebhookReceiver) -> AsyncIterator[Bench]:
    """Ends before the receiver does, so that nothing is sent to one that is gone."""
    made = Bench(tmp_path)
    await made.open()
    yield made
    await made.close()
