"""The data of a subscription, and how it is serialised. Decisions are in `rules`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, Final

import orjson

BEFORE_FIRST: Final = -1
"""Nothing is acknowledged, not even that the stream exists. A new stream is pending even if it is empty."""


class Kind(StrEnum):
    """How a subscriber is woken."""

    WEBHOOK = "webhook"
    """By a signed request to a URL."""
    PULL_WAKE = "pull-wake"
    """By an event on a stream that workers read. One of them claims the wake."""
    EVENTS = "events"
    """By one signed request for each event: `events`. The server reads the streams itself."""


class Status(StrEnum):
    ACTIVE = "active"
    FAILED = "failed"
    """The last attempt to wake the subscriber failed and will be retried."""


class Phase(StrEnum):
    """The state of a subscription: idle → announcing → waiting or leased → idle."""

    IDLE = "idle"
    """No wake; everything is acknowledged."""
    ANNOUNCING = "announcing"
    """A wake is open, and the subscriber has not been told yet."""
    WAITING = "waiting"
    """The event is on the wake stream, but no worker has claimed it."""
    LEASED = "leased"
    """A worker holds the wake until its lease ends."""


@dataclass(frozen=True, slots=True)
class SubscriptionConfig:
    """What a client requests. Two requests with equal configurations create one subscription."""

    kind: Kind
    pattern: str | None
    streams: tuple[str, ...]
    """Sorted, without duplicates."""
    webhook_url: str | None
    wake_stream: str | None
    lease_ttl_ms: int
    description: str | None
    events: tuple[str, ...] = ()
    """What the requests of kind `events` are about."""


@dataclass(frozen=True, slots=True)
class Link:
    """One stream of a subscription, and how far its subscriber has read."""

    acked: int
    """Position, or BEFORE_FIRST."""
    explicit: bool = False
    """Whether the client named it."""
    glob: bool = False
    """Whether it matches the pattern."""


@dataclass(frozen=True, slots=True)
class Wake:
    """One turn of a subscriber. At most one is open at a time, fenced by its id and the generation."""

    id: str
    trigger: str
    """The stream that caused it."""
    snapshot: Mapping[str, int]
    """The announced streams with their tails at that time. A plain `done` acknowledges these."""
    announced: bool = False
    holder: str | None = None
    lease_until: int | None = None
    """UTC milliseconds, or None without a lease."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """One attempt to send one event."""

    event: str
    type: str
    thread: str
    at: int
    """UTC milliseconds."""
    state: str
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Subscription:
    """The state of a subscription without its links, which are many and change one by one."""

    id: str
    config: SubscriptionConfig
    created_at: int
    generation: int = 0
    """Counts the wakes. A worker with an older one is refused."""
    wake: Wake | None = None
    attempts: int = 0
    """How often in a row announcing the wake failed."""
    next_attempt_at: int | None = None
    last_error: str | None = None
    secret_version: int = 1
    """Of the secret that signs events."""
    rotated_at: int | None = None
    deliveries: tuple[Delivery, ...] = ()
    """The latest ones of events, oldest first."""

    @property
    def status(self) -> Status:
        return Status.FAILED if self.attempts else Status.ACTIVE

    @property
    def phase(self) -> Phase:
        if self.wake is None:
            return Phase.IDLE
        if self.wake.lease_until is not None:
            return Phase.LEASED
        return Phase.WAITING if self.wake.announced else Phase.ANNOUNCING


@dataclass(frozen=True, slots=True)
class Ack:
    stream: str
    offset: str
    """As the client sent it."""


@dataclass(frozen=True, slots=True)
class WakeReport:
    """A worker's report on its wake: how far it has read, and whether it is done."""

    wake_id: str | None
    generation: int | None
    acks: tuple[Ack, ...] = ()
    done: bool = False


@dataclass(frozen=True, slots=True)
class Transition:
    """The result of a decision, saved in one step: the subscription and its changed links."""

    subscription: Subscription
    links: Mapping[str, Link | None] = field(default_factory=dict)
    """None removes a link."""


def dump_subscription(subscription: Subscription) -> str:
    fields = asdict(subscription)
    return orjson.dumps(fields).decode()


def load_subscription(text: str) -> Subscription:
    fields: dict[str, Any] = orjson.loads(text)
    config = fields.pop("config")
    wake = fields.pop("wake")
    deliveries = tuple(Delivery(**each) for each in fields.pop("deliveries", ()))
    lists = {name: tuple(config[name]) for name in ("streams", "events") if name in config}
    return Subscription(
        **fields,
        config=SubscriptionConfig(**{**config, **lists, "kind": Kind(config["kind"])}),
        deliveries=deliveries,
        wake=Wake(**wake) if wake is not None else None,
    )
