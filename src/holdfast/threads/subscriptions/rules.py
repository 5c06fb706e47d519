"""The decisions of subscriptions, as functions of what is known. No clock, no disk, no network.

A wake is open from `begin_wake` until it is finished, released or expired. Its generation and id fence it: whoever
reports on a wake that is not the open one is refused, so two workers never acknowledge over each other.
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
"""Streams with something new, the longest waiting first, each with its tail."""


def check_same(existing: Subscription, wanted: SubscriptionConfig) -> None:
    """Raise unless creating this subscription again would change nothing."""
    if existing.config != wanted:
        raise SubscriptionExists(
            f"subscription {existing.id} exists with another configuration",
            hint="delete it first, or choose another id",
        )


def is_pending(link: Link, tail: int) -> bool:
    return tail > link.acked


def begin_wake(subscription: Subscription, wake_id: str, pending: Pending) -> Subscription:
    """Open the next wake, because of these streams."""
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
    """Give the wake to a worker. Where none is open yet, this opens one that nobody has to be told of."""
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
    """The open wake, if it is the one that the worker reports on."""
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
            f"this wake of subscription {subscription.id} is over, or the request does not name it",
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
    """Take a worker's word: all of its acknowledgements or none. Either way the lease begins anew, or the wake ends."""
    wake = check_fence(subscription, token_generation, report)
    changes: dict[str, Link | None] = {}
    for ack in report.acks:
        link = changes.get(ack.stream) or links.get(ack.stream)
        if link is None and ack.stream in wake.snapshot:
            continue  # deleted since: the worker could not know, and there is nothing left to acknowledge
        if link is None:
            raise InvalidAck(f"{ack.stream[:200]!r} is not a stream of subscription {subscription.id}")
        position = _position(ack.offset)
        if position < link.acked:
            raise InvalidAck(f"offset {ack.offset} of {ack.stream} is before what was acknowledged already")
        if position > tails.get(ack.stream, 0):
            raise InvalidAck(f"offset {ack.offset} of {ack.stream} is past the end of the stream")
        changes[ack.stream] = replace(link, acked=position)
    if report.done:
        return Transition(end_wake(subscription), changes)
    lease = now + subscription.config.lease_ttl_ms
    # A report is proof that the wake arrived, also where the answer to its announcement is still on the way.
    leased = replace(wake, announced=True, lease_until=lease)
    return Transition(replace(subscription, wake=leased, attempts=0, next_attempt_at=None, last_error=None), changes)


def _position(offset: str) -> int:
    try:
        return parse_offset(offset)
    except InvalidRequest as error:
        raise InvalidAck(f"an acknowledged offset must be one that this server gave out: {error.message}") from None


def release(subscription: Subscription, token_generation: int, report: WakeReport) -> Subscription:
    """The worker gives the wake back, with nothing more acknowledged."""
    check_kind(subscription, Kind.PULL_WAKE)
    check_fence(subscription, token_generation, report)
    return end_wake(subscription)


def lapse(subscription: Subscription, has_pending: bool, now: int) -> Subscription:
    """End a wake that is over by itself: its lease ran out, or nobody has it and nothing pends any more.

    Without the latter a wake for a stream that was deleted would stay open, and the next one would wake nobody.
    """
    wake = subscription.wake
    if wake is None:
        return subscription
    over = now >= wake.lease_until if wake.lease_until is not None else not has_pending
    return end_wake(subscription) if over else subscription


def announced(
    subscription: Subscription, generation: int, done: bool, links: Mapping[str, Link], now: int
) -> Transition | None:
    """The announcement of this generation arrived. None where that changes nothing any more."""
    wake = subscription.wake
    if wake is None or subscription.generation != generation:
        return None
    if done and subscription.config.kind is Kind.WEBHOOK:
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
    """The announcement of this generation did not arrive: try it again later. None where nobody waits for it now."""
    wake = subscription.wake
    if wake is None or wake.announced or subscription.generation != generation:
        return None
    attempts = subscription.attempts + 1
    return replace(
        subscription, attempts=attempts, next_attempt_at=now + retry_delay(attempts, chance), last_error=reason
    )


def retry_delay(attempts: int, chance: float) -> int:
    """Milliseconds to wait after this many failures; `chance` (0 to 1) spreads those that failed together."""
    base = min(FIRST_RETRY_MS << min(attempts - 1, 16), LAST_RETRY_MS)
    return max(FIRST_RETRY_MS, min(round(base * (1 - _JITTER + 2 * _JITTER * chance)), LAST_RETRY_MS))
