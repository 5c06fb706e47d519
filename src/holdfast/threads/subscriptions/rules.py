"""The decisions of subscriptions, as pure functions without clock, disk or network.

A wake is open from `begin_wake` until it is finished, released or expired. Its generation and id fence it: a report on
any other wake is refused, so two workers never overwrite each other's acknowledgements.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from holdfast.api.errors import InvalidRequest
from holdfast.threads.protocol.offsets import parse_offset
from holdfast.threads.subscriptions.errors import (
    AlreadyClaimed,
    Fenced,
    InvalidAck,
    InvalidSubscription,
    NoPendingWork,
    SubscriptionExists,
)
from holdfast.threads.subscriptions.records import (
    Kind,
    Link,
    Subscription,
    SubscriptionConfig,
    Transition,
    Wake,
    WakeReport,
)

FIRST_RETRY_MS: Final = 1_000
LAST_RETRY_MS: Final = 60_000
_JITTER: Final = 0.2

Pending = Sequence[tuple[str, int]]
"""Streams with something new, longest waiting first, each with its tail."""


def check_same(existing: Subscription, wanted: SubscriptionConfig) -> None:
    """Raises `SubscriptionExists` if creating this subscription again would change it."""
    if existing.config != wanted:
        raise SubscriptionExists(
            f"subscription {existing.id} already exists with a different configuration",
            hint="delete it first, or choose another id",
        )


def is_pending(link: Link, tail: int) -> bool:
    return tail > link.acked


def begin_wake(subscription: Subscription, wake_id: str, pending: Pending) -> Subscription:
    """Open the next wake for these streams."""
    return replace(
        subscription,
        generation=subscription.generation + 1,
        wake=Wake(wake_id, trigger=pending[0][0], snapshot=dict(pending)),
        attempts=0,
        next_attempt_at=None,
        last_error=None,
    )


def end_wake(subscription: Subscription) -> Subscription:
    return replace(subscription, wake=None, attempts=0, next_attempt_at=None, last_error=None)


def claim(subscription: Subscription, worker: str, wake_id: str, pending: Pending, now: int) -> Subscription:
    """Give the wake to a worker. If none is open, open one that need not be announced."""
    check_kind(subscription, Kind.PULL_WAKE)
    wake = subscription.wake
    if wake is not None and wake.holder is not None:
        raise AlreadyClaimed(
            f"{wake.holder} has claimed subscription {subscription.id}",
            hint="wait for the next event on the wake stream",
            current_holder=wake.holder,
            generation=subscription.generation,
        )
    if not pending:
        raise NoPendingWork(f"subscription {subscription.id} has no pending work")
    if wake is None:
        subscription = begin_wake(subscription, wake_id, pending)
        wake = subscription.wake
        assert wake is not None
    return replace(
        subscription,
        wake=replace(wake, announced=True, holder=worker, lease_until=now + subscription.config.lease_ttl_ms),
        attempts=0,
        next_attempt_at=None,
        last_error=None,
    )


def check_kind(subscription: Subscription, kind: Kind) -> None:
    if subscription.config.kind is not kind:
        raise InvalidSubscription(f"subscription {subscription.id} is {subscription.config.kind}, not {kind}")


def check_fence(subscription: Subscription, token_generation: int, report: WakeReport) -> Wake:
    """Returns the open wake. Raises `Fenced` if the worker reports on another one."""
    wake = subscription.wake
    generation = subscription.generation
    if (
        wake is None
        or token_generation != generation
        or report.generation != generation
        or report.wake_id != wake.id
        or (subscription.config.kind is Kind.PULL_WAKE and wake.holder is None)
    ):
        raise Fenced(
            f"this wake of subscription {subscription.id} is over, or the request names another wake",
            hint="send the wake_id and generation that came with the token; if you did, stop: another wake has begun",
        )
    return wake


def report(
    subscription: Subscription,
    token_generation: int,
    report: WakeReport,
    links: Mapping[str, Link],
    tails: Mapping[str, int],
    now: int,
) -> Transition:
    """Apply all of a worker's acknowledgements, or none. Then the lease is renewed or the wake ends."""
    wake = check_fence(subscription, token_generation, report)
    changes: dict[str, Link | None] = {}
    for ack in report.acks:
        link = changes.get(ack.stream) or links.get(ack.stream)
        if link is None and ack.stream in wake.snapshot:
            continue  # deleted since, so there is nothing left to acknowledge
        if link is None:
            raise InvalidAck(f"{ack.stream[:200]!r} is not a stream of subscription {subscription.id}")
        position = _position(ack.offset)
        if position < link.acked:
            raise InvalidAck(f"offset {ack.offset} of {ack.stream} is before the offset that is already acknowledged")
        if position > tails.get(ack.stream, 0):
            raise InvalidAck(f"offset {ack.offset} of {ack.stream} is past the end of the stream")
        changes[ack.stream] = replace(link, acked=position)
    if report.done:
        return Transition(end_wake(subscription), changes)
    lease = now + subscription.config.lease_ttl_ms
    # A report proves that the wake arrived, even if the response to its announcement has not come yet.
    leased = replace(wake, announced=True, lease_until=lease)
    return Transition(replace(subscription, wake=leased, attempts=0, next_attempt_at=None, last_error=None), changes)


def _position(offset: str) -> int:
    try:
        return parse_offset(offset)
    except InvalidRequest as error:
        raise InvalidAck(f"an acknowledged offset must come from this server: {error.message}") from None


def release(subscription: Subscription, token_generation: int, report: WakeReport) -> Subscription:
    """Give the wake back without further acknowledgements."""
    check_kind(subscription, Kind.PULL_WAKE)
    check_fence(subscription, token_generation, report)
    return end_wake(subscription)


def lapse(subscription: Subscription, has_pending: bool, now: int) -> Subscription:
    """End a wake whose lease expired, or that no worker holds and for which nothing is pending any more.

    Without the second case, a wake for a deleted stream would stay open and block the next one.
    """
    wake = subscription.wake
    if wake is None:
        return subscription
    over = now >= wake.lease_until if wake.lease_until is not None else not has_pending
    return end_wake(subscription) if over else subscription


def announced(
    subscription: Subscription, generation: int, done: bool, links: Mapping[str, Link], now: int
) -> Transition | None:
    """Record that the announcement of this generation arrived. Returns None if that changes nothing any more."""
    wake = subscription.wake
    if wake is None or subscription.generation != generation:
        return None
    if done and subscription.config.kind is not Kind.PULL_WAKE:
        changes = {
            path: replace(links[path], acked=position)
            for path, position in wake.snapshot.items()
            if path in links and links[path].acked < position
        }
        return Transition(end_wake(subscription), changes)
    if wake.announced:
        return None
    lease = now + subscription.config.lease_ttl_ms if subscription.config.kind is Kind.WEBHOOK else None
    return Transition(
        replace(
            subscription,
            wake=replace(wake, announced=True, lease_until=lease),
            attempts=0,
            next_attempt_at=None,
            last_error=None,
        )
    )


def announcement_failed(
    subscription: Subscription, generation: int, reason: str, now: int, chance: float
) -> Subscription | None:
    """Schedule a retry of a failed announcement. Returns None if it is no longer needed."""
    wake = subscription.wake
    if wake is None or wake.announced or subscription.generation != generation:
        return None
    attempts = subscription.attempts + 1
    return replace(
        subscription, attempts=attempts, next_attempt_at=now + retry_delay(attempts, chance), last_error=reason
    )


def retry_delay(attempts: int, chance: float) -> int:
    """Returns the milliseconds to wait after this many failures. `chance` (0 to 1) spreads retries out."""
    base = min(FIRST_RETRY_MS << min(attempts - 1, 16), LAST_RETRY_MS)
    return max(FIRST_RETRY_MS, min(round(base * (1 - _JITTER + 2 * _JITTER * chance)), LAST_RETRY_MS))
