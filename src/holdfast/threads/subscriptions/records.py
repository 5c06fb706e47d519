"""What a subscription is: frozen data, and how it is written down. Decisions about it are in rules."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, Final

import orjson

BEFORE_FIRST: Final = -1
"""Acknowledged nothing, not even that the stream exists: a new stream pends although it is empty."""


class Kind(StrEnum):
    """How a subscriber is woken."""

    WEBHOOK = "webhook"
    """By a signed request to a URL."""
    PULL_WAKE = "pull-wake"
    """By an event on a stream that workers read; one of them claims the wake."""


class Status(StrEnum):
    ACTIVE = "active"
    FAILED = "failed"
    """The last attempt to wake the subscriber failed; it is tried again."""


class Phase(StrEnum):
    """Where a subscription stands. Idle → announcing → waiting or leased → idle."""

    IDLE = "idle"
    """No wake: all is acknowledged."""
    ANNOUNCING = "announcing"
    """A wake has been made, and the subscriber does not know yet."""
    WAITING = "waiting"
    """The event is on the wake stream; no worker has claimed it."""
    LEASED = "leased"
    """A worker has the wake until its lease ends."""


@dataclass(frozen=True, slots=True)
class SubscriptionConfig:
    """What a client asks for. Two requests with equal configurations make one subscription."""

    kind: Kind
    pattern: str | None
    streams: tuple[str, ...]
    """Sorted, each once."""
    webhook_url: str | None
    wake_stream: str | None
    lease_ttl_ms: int
    description: str | None


@dataclass(frozen=True, slots=True)
class Link:
    """One stream of a subscription, and how far its subscriber has come."""

    acked: int
    """Position, or BEFORE_FIRST."""
    explicit: bool = False
    """Named by the client."""
    glob: bool = False
    """Matches the pattern."""


@dataclass(frozen=True, slots=True)
class Wake:
    """One turn of a subscriber. At most one is open at a time, fenced by its id and the generation."""

    id: str
    trigger: str
    """The stream because of which it was made."""
    snapshot: Mapping[str, int]
    """The streams that it announces, each with its tail then: what a plain `done` acknowledges."""
    announced: bool = False
    holder: str | None = None
    lease_until: int | None = None
    """UTC milliseconds; None while there is no lease."""


@dataclass(frozen=True, slots=True)
class Subscription:
    """A subscription as it stands, without its links, which are many and change one by one."""

    id: str
    config: SubscriptionConfig
    created_at: int
    generation: int = 0
    """Counts the wakes. A worker that still has an older one is refused."""
    wake: Wake | None = None
    attempts: int = 0
    """Failed attempts to announce the wake, in a row."""
    next_attempt_at: int | None = None
    last_error: str | None = None

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
    """What a worker says of its wake: how far it has come, and whether it is done."""

    wake_id: str | None
    generation: int | None
    acks: tuple[Ack, ...] = ()
    done: bool = False


@dataclass(frozen=True, slots=True)
class Transition:
    """The outcome of a decision, to be saved in one step: the subscription, and the links that change."""

    subscription: Subscription
    links: Mapping[str, Link | None] = field(default_factory=dict)
    """None: the link goes."""


def dump_subscription(subscription: Subscription) -> str:
    fields = asdict(subscription)
    return orjson.dumps(fields).decode()


def load_subscription(text: str) -> Subscription:
    fields: dict[str, Any] = orjson.loads(text)
    config = fields.pop("config")
    wake = fields.pop("wake")
    return Subscription(
        **fields,
        config=SubscriptionConfig(**{**config, "kind": Kind(config["kind"]), "streams": tuple(config["streams"])}),
        wake=Wake(**wake) if wake is not None else None,
    )
