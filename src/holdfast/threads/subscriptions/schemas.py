"""Subscriptions as JSON: parses and validates requests, and formats responses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import quote

from holdfast.api.errors import InvalidRequest
from holdfast.threads.access.credentials import AUDIT
from holdfast.threads.protocol.framing import parse_json
from holdfast.threads.protocol.offsets import BEGINNING, format_offset_text
from holdfast.threads.protocol.surface import THREADS, stream_path
from holdfast.threads.store import MAX_SAFE_INTEGER
from holdfast.threads.subscriptions.errors import InvalidSubscription
from holdfast.threads.subscriptions.glob import Glob
from holdfast.threads.subscriptions.links import Links
from holdfast.threads.subscriptions.records import (
    BEFORE_FIRST,
    Ack,
    Kind,
    Link,
    Subscription,
    SubscriptionConfig,
    WakeReport,
)
from holdfast.threads.subscriptions.rules import is_pending

DEFAULT_LEASE_MS: Final = 30_000
MIN_LEASE_MS: Final = 1_000
MAX_LEASE_MS: Final = 600_000
MAX_ID: Final = 256
MAX_WORKER: Final = 256
MAX_DESCRIPTION: Final = 2048
CONTROL: Final = "__ds"
"""The first segment of paths that are not streams."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of subscriptions. What exceeds a limit is refused."""

    subscriptions: int = 1_000
    streams: int = 20_000
    """Per subscription, named and matched together."""
    wake_streams: int = 1_000
    """How many streams one wake lists. The rest comes with the next wake."""
    deliveries: int = 64
    """How many webhook requests run at once."""


def parse_object(body: bytes) -> dict[str, Any]:
    try:
        value = parse_json(body) if body else {}
    except InvalidRequest as error:
        raise InvalidSubscription(error.message) from None
    if not isinstance(value, dict):
        raise InvalidSubscription("the body must be a JSON object")
    return value


def parse_id(id: str) -> str:
    if not 0 < len(id) <= MAX_ID or not id.isprintable() or "/" in id:
        raise InvalidSubscription(f"a subscription id must have 1 to {MAX_ID} printable characters and no slash")
    return id


def parse_path(value: object, field: str) -> str:
    """Validate the path of a stream in a JSON body: relative and not quoted. Surrounding slashes are ignored."""
    if not isinstance(value, str) or not (path := value.strip("/")):
        raise InvalidSubscription(f"{field} must be stream paths such as threads/t-1")
    try:
        stream_path(quote(path, safe="/"))
    except (InvalidRequest, UnicodeError):
        raise InvalidSubscription(f"{field}: {path[:200]!r} is not a valid stream path") from None
    if path.split("/", 1)[0] == CONTROL:
        raise InvalidSubscription(f"{field}: paths that begin with {CONTROL} are not streams")
    if path == AUDIT:
        raise InvalidSubscription(f"{field}: {path} is reserved")
    return path


def parse_streams(value: object, limits: Limits) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise InvalidSubscription("streams must be an array of paths")
    if len(value) > limits.streams:
        raise InvalidSubscription(f"a subscription can have at most {limits.streams} streams")
    return tuple(sorted({parse_path(each, "streams") for each in value}))


def parse_config(body: bytes, limits: Limits) -> SubscriptionConfig:
    fields = parse_object(body)
    try:
        kind = Kind(fields.get("type", ""))
        if kind is Kind.EVENTS:  # which have their own routes
            raise ValueError
    except ValueError:
        raise InvalidSubscription('type must be "webhook" or "pull-wake"') from None
    pattern = Glob.parse(text).text if (text := _text(fields, "pattern")) else None
    streams = parse_streams(fields.get("streams", []), limits)
    if pattern is None and not streams:
        raise InvalidSubscription("a subscription needs a pattern, streams, or both")
    url = wake_stream = None
    if kind is Kind.WEBHOOK:
        webhook = fields.get("webhook")
        url = _text(webhook, "url") if isinstance(webhook, dict) else None
        if not url:
            raise InvalidSubscription("a webhook subscription needs webhook.url")
    else:
        wake_stream = _wake_stream(fields, streams)
    description = _text(fields, "description")
    if description is not None and len(description) > MAX_DESCRIPTION:
        raise InvalidSubscription(f"a description can have at most {MAX_DESCRIPTION} characters")
    return SubscriptionConfig(kind, pattern, streams, url, wake_stream, _lease(fields), description)


def _wake_stream(fields: dict[str, Any], streams: tuple[str, ...]) -> str:
    if not fields.get("wake_stream"):
        raise InvalidSubscription("a pull-wake subscription needs wake_stream")
    path = parse_path(fields["wake_stream"], "wake_stream")
    if path.startswith(THREADS):
        raise InvalidSubscription(f"wake_stream: {path} is a thread, which cannot hold wake events: use another stream")
    if path in streams:
        raise InvalidSubscription(f"wake_stream: {path} is also subscribed to, so each wake would cause the next")
    return path


def _lease(fields: dict[str, Any]) -> int:
    lease = fields.get("lease_ttl_ms", DEFAULT_LEASE_MS)
    if isinstance(lease, float) and lease.is_integer():
        lease = int(lease)  # JSON does not distinguish integers
    if type(lease) is not int or not MIN_LEASE_MS <= lease <= MAX_LEASE_MS:
        raise InvalidSubscription(f"lease_ttl_ms must be an integer from {MIN_LEASE_MS} to {MAX_LEASE_MS}")
    return lease


def _text(fields: dict[str, Any], name: str) -> str | None:
    value = fields.get(name)
    if value is not None and not isinstance(value, str):
        raise InvalidSubscription(f"{name} must be a string")
    return value


def parse_worker(body: bytes) -> str:
    worker = _text(parse_object(body), "worker")
    if not worker or len(worker) > MAX_WORKER or not worker.isprintable():
        raise InvalidSubscription(f"worker must be a name of 1 to {MAX_WORKER} printable characters")
    return worker


def parse_report(body: bytes, limits: Limits) -> WakeReport:
    fields = parse_object(body)
    generation = fields.get("generation")
    if generation is not None and (type(generation) is not int or not 0 <= generation <= MAX_SAFE_INTEGER):
        raise InvalidSubscription("generation must be the number that came with the wake")
    done = fields.get("done", False)
    if type(done) is not bool:
        raise InvalidSubscription("done must be true or false")
    acks = fields.get("acks", [])
    if not isinstance(acks, list) or len(acks) > limits.streams:
        raise InvalidSubscription(f"acks must be an array of at most {limits.streams} objects with stream and offset")
    return WakeReport(_text(fields, "wake_id"), generation, tuple(_ack(each) for each in acks), done)


def _ack(value: object) -> Ack:
    if not isinstance(value, dict) or not isinstance(offset := value.get("offset"), str):
        raise InvalidSubscription("every item of acks must be an object with stream and offset")
    stream = value.get("stream", value.get("path"))
    if not isinstance(stream, str):
        raise InvalidSubscription("every item of acks must name its stream")
    return Ack(stream.strip("/"), offset)


def format_acked(link: Link) -> str:
    return BEGINNING if link.acked == BEFORE_FIRST else format_offset_text(link.acked)


def describe_stream(path: str, link: Link) -> dict[str, Any]:
    return {
        "path": path,
        "link_type": "explicit" if link.explicit else "glob",
        "acked_offset": format_acked(link),
    }


def describe_streams(links: Links, limits: Limits, snapshot: Mapping[str, int] | None = None) -> list[dict[str, Any]]:
    """Returns what a worker is told: pending streams first, each with its tail.

    With a snapshot, its streams come first, with their tails at that time. A worker that answers only `done`
    acknowledges the snapshot, so that is what it must be told.
    """
    snapshot = snapshot or {}
    told = [(path, links.links[path], tail) for path, tail in snapshot.items() if path in links]
    for path, link in links.pending_first(limits.wake_streams):
        if len(told) >= limits.wake_streams:
            break
        if path not in snapshot:
            told.append((path, link, links.tail(path)))
    return [
        {**describe_stream(path, link), "tail_offset": format_offset_text(tail), "has_pending": is_pending(link, tail)}
        for path, link, tail in told
    ]


def describe(subscription: Subscription, links: Links, signing: dict[str, str], *, truncated: bool) -> dict[str, Any]:
    """Returns a subscription as its owner sees it."""
    config = subscription.config
    fields = {
        "id": subscription.id,
        "subscription_id": subscription.id,
        "type": config.kind.value,
        "pattern": config.pattern,
        "streams": [describe_stream(path, link) for path, link in links.links.items()],
        "webhook": {"url": config.webhook_url, "signing": signing} if config.webhook_url else None,
        "wake_stream": config.wake_stream,
        "lease_ttl_ms": config.lease_ttl_ms,
        "created_at": format_time(subscription.created_at),
        "status": subscription.status.value,
        "description": config.description,
        "last_error": subscription.last_error,
        "next_attempt_at": format_time(subscription.next_attempt_at),
        "streams_truncated": truncated or None,
    }
    return {name: value for name, value in fields.items() if value is not None}


def format_time(milliseconds: int | None) -> str | None:
    if milliseconds is None:
        return None
    at = datetime.fromtimestamp(milliseconds / 1000, UTC)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
