"""Owns all subscriptions of a server: follows the streams, opens and announces wakes, and watches the leases.

Everything is saved before it is answered or announced, so a server that stops at any point can continue. Generations
never repeat, leases keep running, and unannounced wakes are announced again.
"""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import quote

import orjson

from holdfast.api.access.tenants import DEFAULT_TENANT
from holdfast.api.errors import Gone, NotFound, Refused, Unavailable
from holdfast.threads.access.credentials import AUDIT
from holdfast.threads.access.seals import Seals
from holdfast.threads.protocol.framing import SEPARATOR
from holdfast.threads.store import AppendRequest, Change, Keyed, StreamStore, is_json
from holdfast.threads.subscriptions import rules, schemas
from holdfast.threads.subscriptions.clock import Clock, SystemClock
from holdfast.threads.subscriptions.delivery import DELIVERY_SECONDS, DeliveryFailed, TransportFactory, WebhookSender
from holdfast.threads.subscriptions.errors import InvalidSubscription, SubscriptionNotFound
from holdfast.threads.subscriptions.event_sender import EventSender
from holdfast.threads.subscriptions.events import MOST_DELIVERIES, WebhookSecrets
from holdfast.threads.subscriptions.links import Links
from holdfast.threads.subscriptions.live import LiveSubscription
from holdfast.threads.subscriptions.records import (
    BEFORE_FIRST,
    Kind,
    Link,
    Phase,
    Subscription,
    SubscriptionConfig,
    Transition,
    WakeReport,
)
from holdfast.threads.subscriptions.schemas import Limits
from holdfast.threads.subscriptions.signing import CallbackTokens, TokenClaims, WebhookSigner
from holdfast.threads.subscriptions.store import SubscriptionStore
from holdfast.threads.subscriptions.urls import Resolver, resolve

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

log = logging.getLogger(__name__)

Result = TypeVar("Result")

_MAX_ROUTES: Final = 100_000
"""For how many paths the concerned subscriptions are cached."""
_BATCH: Final = 200
"""How many streams are looked up before the event loop gets a turn."""


@dataclass(frozen=True, slots=True)
class Created:
    description: dict[str, Any]
    new: bool
    """False if the same subscription already existed."""


@dataclass(frozen=True, slots=True)
class Reported:
    next_wake: bool
    """More is pending, and the next wake is already open."""
    token: str | None = None
    """Use this token from now on. The one that was used will expire soon."""


class SubscriptionService:
    """Start it after the store is opened, and close it before the store. Must be used on the store's event loop."""

    def __init__(
        self,
        store: StreamStore,
        *,
        subscriptions: SubscriptionStore,
        seals: Seals,
        public_url: str,
        tenant: str = DEFAULT_TENANT,
        callback_secret: bytes,
        signing_key: Ed25519PrivateKey,
        allow_local_webhooks: bool,
        clock: Clock | None = None,
        limits: Limits | None = None,
        resolver: Resolver = resolve,
        transport: TransportFactory | None = None,
        delivery_timeout: float = DELIVERY_SECONDS,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._store = store
        self._subscriptions = subscriptions
        self._whose = "" if tenant == DEFAULT_TENANT else f"?tenant={tenant}"
        self._control_url = f"{public_url.rstrip('/')}/v1/stream/{schemas.CONTROL}"
        self._clock = clock or SystemClock()
        self.limits = limits or Limits()
        self._chance = chance
        self._tokens = CallbackTokens(callback_secret, tenant)
        self._signer = WebhookSigner(signing_key)
        self.secrets = WebhookSecrets(callback_secret)
        self._sender = WebhookSender(
            allow_local=allow_local_webhooks, resolver=resolver, transport=transport, timeout=delivery_timeout
        )
        self._live: dict[str, LiveSubscription] = {}
        self._routes: dict[str, tuple[LiveSubscription, ...]] = {}
        """The subscriptions that a stream concerns. Filled on demand, and cleared when it may have changed."""
        self._membership = asyncio.Lock()
        """Held while a subscription is created or removed."""
        self._on_the_way = asyncio.Semaphore(self.limits.deliveries)
        self.events = EventSender(store, self._sender, self.secrets, seals, self._clock, self._on_the_way)
        self._operations: set[asyncio.Task[Any]] = set()
        self._stop_observing: Callable[[], None] | None = None
        self._closed = False

    # Lifecycle

    async def start(self) -> None:
        """Load the saved subscriptions, apply what has changed since, and continue."""
        for subscription, links in await self._subscriptions.load_all():
            self._live[subscription.id] = LiveSubscription(subscription, Links(links), max_streams=self.limits.streams)
        self._stop_observing = self._store.observe(self._on_change)
        for live in list(self._live.values()):
            await self._catch_up(live)
            self._kick(live)

    async def close(self) -> None:
        """Stop everything in progress. The next start finds what was not finished."""
        self._closed = True
        if self._stop_observing is not None:
            self._stop_observing()
        tasks: list[asyncio.Task[Any]] = []
        # Accepted operations finish: each is one short save.
        while self._operations:
            await asyncio.wait(self._operations)
        for live in self._live.values():
            tasks += live.stop()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._live.clear()
        self._routes.clear()

    async def _catch_up(self, live: LiveSubscription) -> None:
        """Bring the links up to date with the streams, which may have been created, extended or deleted in the
        meantime.
        """
        for count, path in enumerate(list(live.links.links)):
            if count % _BATCH == 0:
                await asyncio.sleep(0)
            if path == AUDIT:  # of a time when subscriptions could have it
                live.set_link(path, None)
                continue
            tail = await self._tail(path)
            link = live.links.links.get(path)
            if link is None:
                continue
            if tail is None:
                if link.glob or link.acked > 0:  # otherwise the client named it before it exists
                    live.set_link(path, None)
            else:
                if link.acked > tail:  # deleted and created again
                    live.set_link(path, Link(BEFORE_FIRST, link.explicit, link.glob))
                live.links.advance(path, tail)
        if live.glob is None:
            return
        for count, path in enumerate(await self._store.list_paths(live.glob.prefix)):
            if count % _BATCH == 0:
                await asyncio.sleep(0)
            if path not in live.links and live.adopt(path):
                live.links.advance(path, await self._tail(path) or 0)
        if live.truncated:
            self._warn_of_truncated(live)

    async def _tail(self, path: str) -> int | None:
        try:
            return (await self._store.head(path)).tail
        except (NotFound, Gone):
            return None

    # Following the streams

    def _on_change(self, change: Change) -> None:
        """Called for every commit of every stream, so it must cost nothing without subscriptions."""
        if not self._live:
            return
        concerned = self._routes.get(change.path)
        if concerned is None:
            if len(self._routes) >= _MAX_ROUTES:
                self._routes.clear()
            concerned = tuple(live for live in self._live.values() if live.concerns(change.path))
            self._routes[change.path] = concerned
        for live in concerned:
            truncated = live.truncated
            if live.notice(change):
                self._kick(live)
            if live.truncated and not truncated:
                self._warn_of_truncated(live)
        if change.deleted:
            self._routes.pop(change.path, None)

    def _warn_of_truncated(self, live: LiveSubscription) -> None:
        log.warning("subscription %s matches over %d streams; the others do not wake it", live.id, self.limits.streams)

    # Requests of clients

    async def create(self, id: str, config: SubscriptionConfig) -> Created:
        """Create a subscription, or confirm that the same one exists."""
        existing = self._live.get(id)
        if existing is None and config.webhook_url is not None:
            await self._sender.check(config.webhook_url)
        return await self._own(self._create(id, config))

    async def _create(self, id: str, config: SubscriptionConfig) -> Created:
        async with self._membership:
            existing = self._live.get(id)
            if existing is not None:
                rules.check_same(existing.subscription, config)
                return Created(self._describe(existing), new=False)
            if len(self._live) >= self.limits.subscriptions:
                raise InvalidSubscription(
                    f"this server already has {self.limits.subscriptions} subscriptions",
                    hint="delete subscriptions that are no longer used",
                )
            live = LiveSubscription(
                Subscription(id, config, self._clock.now()), Links(), max_streams=self.limits.streams
            )
            # Changes during the setup are recorded, and replayed once the subscription follows the streams itself.
            missed = _Missed(live)
            stop = self._store.observe(missed.note)
            try:
                await self._link_existing(live)
                await self._subscriptions.save(live.subscription, live.links.links)
            finally:
                stop()
            self._live[id] = live
            self._routes.clear()
            missed.replay()
            self._kick(live)
            return Created(self._describe(live), new=True)

    async def _link_existing(self, live: LiveSubscription) -> None:
        """Link existing streams at their current tails."""
        for path in live.subscription.config.streams:
            link = await self._explicit_link(live, path)
            live.links.set(path, link)
            live.links.advance(path, link.acked)
        if live.glob is None:
            return
        for count, path in enumerate(await self._store.list_paths(live.glob.prefix)):
            if count % _BATCH == 0:
                await asyncio.sleep(0)
            if not live.matches(path):
                continue
            known = live.links.links.get(path)
            if known is None and len(live.links) >= self.limits.streams:
                raise InvalidSubscription(
                    f"pattern {live.glob.text} matches more than {self.limits.streams} streams",
                    hint="use several subscriptions with narrower patterns",
                )
            tail = await self._tail(path)
            if known is not None:
                live.links.set(path, Link(known.acked, explicit=True, glob=True))
            elif tail is not None:
                live.links.set(path, Link(tail, glob=True))
                live.links.advance(path, tail)

    async def _explicit_link(self, live: LiveSubscription, path: str) -> Link:
        """Returns a link that begins at the tail, or the existing link marked as explicit."""
        known = live.links.links.get(path)
        if known is not None:
            return replace(known, explicit=True)
        return Link(await self._tail(path) or 0, explicit=True)

    def now(self) -> int:
        return self._clock.now()

    def record(self, id: str) -> Subscription:
        return self._find(id).subscription

    def of_kind(self, kind: Kind) -> list[Subscription]:
        return [live.subscription for live in self._live.values() if live.subscription.config.kind is kind]

    async def change(self, id: str, change: Callable[[Subscription, int], Subscription]) -> Subscription:
        """Save a subscription as `change` returns it at this time."""
        return await self._own(self._change(id, change))

    async def _change(self, id: str, change: Callable[[Subscription, int], Subscription]) -> Subscription:
        async with self._locked(id) as live:
            await self._commit(live, Transition(change(live.subscription, self._clock.now())))
            return live.subscription

    def describe(self, id: str) -> dict[str, Any]:
        return self._describe(self._find(id))

    async def delete(self, id: str) -> None:
        """Remove a subscription. Does nothing if it does not exist."""
        await self._own(self._delete(id))

    async def _delete(self, id: str) -> None:
        async with self._membership:
            live = self._live.get(id)
            if live is None:
                return
            async with live.lock:
                await self._subscriptions.delete(id)
                tasks = live.stop()
                del self._live[id]
                self._routes.clear()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def add_streams(self, id: str, paths: tuple[str, ...]) -> None:
        await self._own(self._add_streams(id, paths))

    async def _add_streams(self, id: str, paths: tuple[str, ...]) -> None:
        async with self._locked(id) as live:
            if live.subscription.config.wake_stream in paths:
                raise InvalidSubscription("a subscription cannot follow its own wake stream")
            new = sum(path not in live.links for path in paths)
            if len(live.links) + new > self.limits.streams:
                raise InvalidSubscription(f"a subscription can have at most {self.limits.streams} streams")
            links = {path: await self._explicit_link(live, path) for path in paths}
            await self._commit(live, Transition(live.subscription, links))
            for path in paths:
                self._routes.pop(path, None)
                # The stream may have grown during the save, before it was routed to this subscription.
                tail = await self._tail(path)
                if tail is not None and path in live.links and live.links.advance(path, tail):
                    self._kick(live)

    async def remove_stream(self, id: str, path: str) -> None:
        """Unlink a named stream. It stays linked if it matches the pattern."""
        await self._own(self._remove_stream(id, path))

    async def _remove_stream(self, id: str, path: str) -> None:
        async with self._locked(id) as live:
            link = live.links.links.get(path)
            if link is None or not link.explicit:
                return
            rest = Link(link.acked, glob=True) if link.glob else None
            await self._commit(live, Transition(live.subscription, {path: rest}))
            self._routes.pop(path, None)
            self._kick(live)

    async def claim(self, id: str, worker: str) -> dict[str, Any]:
        """Give the pending work to a worker for the time of its lease."""
        return await self._own(self._claim(id, worker))

    async def _claim(self, id: str, worker: str) -> dict[str, Any]:
        async with self._locked(id) as live:
            now = self._clock.now()
            before = rules.lapse(live.subscription, live.links.has_pending, now)
            after = rules.claim(before, worker, _new_wake_id(), live.links.pending(self.limits.wake_streams), now)
            await self._commit(live, Transition(after))
            assert after.wake is not None
            return {
                "wake_id": after.wake.id,
                "generation": after.generation,
                "token": self._tokens.issue(id, after.generation, now),
                "streams": schemas.describe_streams(live.links, self.limits),
                "lease_ttl_ms": after.config.lease_ttl_ms,
            }

    async def report(self, id: str, token: str, report: WakeReport, *, kind: Kind | None = None) -> Reported:
        """Apply a worker's acknowledgements, and extend its lease or end its wake. With `kind`, only for that kind."""
        claims = self._tokens.check(token, id, self._clock.now())
        return await self._own(self._report(id, claims, report, kind))

    async def _report(self, id: str, claims: TokenClaims, report: WakeReport, kind: Kind | None) -> Reported:
        async with self._locked(id) as live:
            if kind is not None:
                rules.check_kind(live.subscription, kind)
            now = self._clock.now()
            current = rules.lapse(live.subscription, True, now)
            transition = rules.report(current, claims.generation, report, live.links.links, live.links.tails, now)
            next_wake = await self._commit_with_next(live, transition)
            refresh = not report.done and claims.needs_refresh(now)
            return Reported(next_wake, self._tokens.issue(id, claims.generation, now) if refresh else None)

    async def release(self, id: str, token: str, report: WakeReport) -> None:
        """Give a wake back. Pending work opens the next one."""
        claims = self._tokens.check(token, id, self._clock.now())
        await self._own(self._release(id, claims, report))

    async def _release(self, id: str, claims: TokenClaims, report: WakeReport) -> None:
        async with self._locked(id) as live:
            current = rules.lapse(live.subscription, True, self._clock.now())
            await self._commit_with_next(live, Transition(rules.release(current, claims.generation, report)))

    def key_set(self) -> dict[str, Any]:
        """Returns the public keys of webhook signatures (JWKS)."""
        return self._signer.key_set()

    def _describe(self, live: LiveSubscription) -> dict[str, Any]:
        signing = {
            "alg": "ed25519",
            "kid": self._signer.key_id,
            "jwks_url": f"{self._control_url}/jwks.json{self._whose}",
        }
        return schemas.describe(live.subscription, live.links, signing, truncated=live.truncated)

    # Changing a subscription

    def _find(self, id: str) -> LiveSubscription:
        live = self._live.get(id)
        if live is None:
            raise SubscriptionNotFound(f"there is no subscription {id}")
        return live

    @asynccontextmanager
    async def _locked(self, id: str) -> AsyncIterator[LiveSubscription]:
        live = self._find(id)
        async with live.lock:
            if live.closed:
                raise SubscriptionNotFound(f"there is no subscription {id}")
            yield live

    async def _own(self, operation: Coroutine[Any, Any, Result]) -> Result:
        """Run an operation to its end even if the client disconnects, so that disk and memory do not diverge."""
        if self._closed:
            operation.close()
            raise Unavailable("the server is shutting down")
        task = asyncio.create_task(operation)
        self._operations.add(task)
        task.add_done_callback(self._settled)
        return await asyncio.shield(task)

    def _settled(self, task: asyncio.Task[Any]) -> None:
        self._operations.discard(task)
        if not task.cancelled():
            task.exception()  # retrieve it, because the client may be gone

    async def _commit(self, live: LiveSubscription, transition: Transition) -> None:
        """Save, then apply in memory. Links that streams changed in the meantime are newer than the transition's."""
        taken, live.unsaved = live.unsaved, {}
        try:
            await self._subscriptions.save(transition.subscription, {**taken, **transition.links})
        except BaseException:
            live.unsaved = {**taken, **live.unsaved}
            raise
        live.stumbles = live.resume_at = 0
        live.subscription = transition.subscription
        for path, link in transition.links.items():
            if path not in live.unsaved:
                live.links.set(path, link)
        self._arm(live)

    async def _commit_with_next(self, live: LiveSubscription, transition: Transition) -> bool:
        """Commit the end of a wake, together with the next wake if more is pending. Returns whether it is."""
        if transition.subscription.wake is not None:
            await self._commit(live, transition)
            return False
        pending = live.links.pending(self.limits.wake_streams, transition.links)
        if pending:
            transition = Transition(
                rules.begin_wake(transition.subscription, _new_wake_id(), pending), transition.links
            )
        await self._commit(live, transition)
        return bool(pending)

    # Driving: work that is due

    def _kick(self, live: LiveSubscription) -> None:
        live.kicked = True
        if live.driver is None and not live.closed and not self._closed:
            live.driver = asyncio.create_task(self._drive(live), name=f"subscription-{live.id}")

    async def _drive(self, live: LiveSubscription) -> None:
        """Process until nothing more happens. At most one driver per subscription, and none while there is nothing to
        do.
        """
        try:
            while live.kicked:
                live.kicked = False
                async with live.lock:
                    if live.closed:
                        return
                    await self._guard(live, self._settle(live))
        finally:
            live.driver = None

    async def _settle(self, live: LiveSubscription) -> None:
        now = self._clock.now()
        if now < live.resume_at:
            self._arm(live)
            return
        live.resume_at = 0
        before = live.subscription
        after = rules.lapse(before, live.links.has_pending, now)
        if after.wake is None and live.links.has_pending:
            after = rules.begin_wake(after, _new_wake_id(), live.links.pending(self.limits.wake_streams))
        if after is not before or live.unsaved:
            await self._commit(live, Transition(after))
        else:
            self._arm(live)

    async def _guard(self, live: LiveSubscription, step: Awaitable[None]) -> None:
        """Run a step that no caller waits for. If saving fails, log it and retry later."""
        try:
            await step
        except Exception as error:
            live.stumbles += 1
            live.resume_at = self._clock.now() + rules.retry_delay(live.stumbles, self._chance())
            unexpected = None if isinstance(error, Refused) else error
            log.warning("subscription %s could not be saved; will retry: %s", live.id, error, exc_info=unexpected)
            self._arm(live)

    def _arm(self, live: LiveSubscription) -> None:
        """Start the announcement that is due, and set the timer for what is due next."""
        if live.timer is not None:
            live.timer.cancel()
            live.timer = None
        if live.closed or self._closed:
            return
        now = self._clock.now()
        subscription = live.subscription
        due: int | None = live.resume_at or None
        if subscription.phase is Phase.LEASED:
            assert subscription.wake is not None
            due = max(subscription.wake.lease_until or 0, live.resume_at)
        elif subscription.phase is Phase.ANNOUNCING and live.delivery is None:
            due = max(0 if live.hurried else subscription.next_attempt_at or 0, live.resume_at)
            if due <= now:
                live.hurried = False
                live.delivery = asyncio.create_task(self._deliver(live, subscription), name=f"wake-{subscription.id}")
                return
        if due is not None and due <= now:
            self._kick(live)
        elif due is not None:
            live.timer = self._clock.call_at(due, lambda: self._kick(live))

    # Announcing

    async def _deliver(self, live: LiveSubscription, subscription: Subscription) -> None:
        """Try once to announce one generation. At most one attempt per subscription is in progress."""
        try:
            done, reason = await self._announce(live, subscription)
            async with live.lock:
                live.delivery = None  # not earlier: no other delivery may begin before the outcome is known
                if not live.closed:
                    await self._guard(live, self._delivered(live, subscription.generation, done, reason))
        finally:
            if live.delivery is asyncio.current_task():
                live.delivery = None

    async def _announce(self, live: LiveSubscription, subscription: Subscription) -> tuple[bool, str | None]:
        """Returns whether the subscriber is already done, and why it was not reached (None if it was)."""
        try:
            if subscription.config.kind is Kind.EVENTS:
                await self.events.send_all(live, subscription)
                return True, None
            if subscription.config.kind is Kind.WEBHOOK:
                async with self._on_the_way:
                    return await self._call_webhook(live, subscription), None
            await self._write_wake_event(subscription)
            return False, None
        except DeliveryFailed as error:
            log.info("subscription %s, wake %d: %s", subscription.id, subscription.generation, error)
            return False, str(error)
        except Exception:
            log.exception("subscription %s, wake %d", subscription.id, subscription.generation)
            return False, "the server failed to announce the wake"

    async def _delivered(self, live: LiveSubscription, generation: int, done: bool, reason: str | None) -> None:
        now = self._clock.now()
        if reason is not None:
            failed = rules.announcement_failed(live.subscription, generation, reason, now, self._chance())
            transition = Transition(failed) if failed is not None else None
        else:
            transition = rules.announced(live.subscription, generation, done, live.links.links, now)
        if transition is None:
            self._arm(live)
            return
        if live.unsaved_deliveries:
            last, more = live.subscription.deliveries, live.unsaved_deliveries
            kept = (*last, *more)[-MOST_DELIVERIES:]
            transition = replace(transition, subscription=replace(transition.subscription, deliveries=kept))
        await self._commit_with_next(live, transition)
        live.unsaved_deliveries.clear()
        if reason is None:
            live.sent.clear()

    async def _call_webhook(self, live: LiveSubscription, subscription: Subscription) -> bool:
        assert subscription.wake is not None
        assert subscription.config.webhook_url is not None
        now = self._clock.now()
        body = orjson.dumps(
            {
                "subscription_id": subscription.id,
                "wake_id": subscription.wake.id,
                "generation": subscription.generation,
                "streams": schemas.describe_streams(live.links, self.limits, subscription.wake.snapshot),
                "callback_url": f"{self._control_url}/subscriptions/{quote(subscription.id, safe='')}/callback",
                "callback_token": self._tokens.issue(subscription.id, subscription.generation, now),
            }
        )
        headers = {"content-type": "application/json", "webhook-signature": self._signer.sign(body, now)}
        return await self._sender.send(subscription.config.webhook_url, body, headers)

    async def _write_wake_event(self, subscription: Subscription) -> None:
        """Write the event once. Its key makes a second attempt, for example after a restart, do nothing."""
        assert subscription.wake is not None
        path = subscription.config.wake_stream
        assert path is not None
        event = orjson.dumps(
            {
                "type": "wake",
                "subscription_id": subscription.id,
                "stream": subscription.wake.trigger,
                "generation": subscription.generation,
                "ts": self._clock.now(),
            }
        )
        try:
            info = await self._store.head(path)
            data = event + (SEPARATOR if is_json(info.content_type) else b"\n")
            await self._store.append(path, AppendRequest(keyed=(Keyed(subscription.wake.id, data),)))
        except Refused as error:
            raise DeliveryFailed(f"the wake stream cannot be written: {error.message}") from error


class _Missed:
    """Changes while a subscription is created: the last one of each stream, and whether it was deleted before."""

    def __init__(self, live: LiveSubscription) -> None:
        self._live = live
        self._changes: dict[str, tuple[bool, Change]] = {}

    def note(self, change: Change) -> None:
        if self._live.concerns(change.path):
            deleted, _ = self._changes.get(change.path, (False, change))
            self._changes[change.path] = (deleted or change.deleted, replace(change, data=b""))

    def replay(self) -> None:
        for deleted, change in self._changes.values():
            if deleted:
                self._live.notice(replace(change, deleted=True))
            if not change.deleted:
                self._live.notice(change)


def _new_wake_id() -> str:
    return f"w_{secrets.token_hex(12)}"
