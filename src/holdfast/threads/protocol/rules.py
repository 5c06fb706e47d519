"""The protocol's decisions as pure functions, without clock, disk or network. All stores share them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from holdfast.api.errors import Conflict, InvalidRequest
from holdfast.api.errors.threads import ContentTypeMismatch, SequenceConflict
from holdfast.threads.errors import producer_gap, stale_epoch, stream_closed
from holdfast.threads.protocol.offsets import format_offset
from holdfast.threads.store import AppendRequest, Producer, StreamConfig, normalize_content_type


class AppendState(Protocol):
    """The state of a stream that decides on an append."""

    path: str
    media_type: str
    tail: int
    closed: bool
    closed_by: Producer | None
    last_seq: str | None


@dataclass(frozen=True, slots=True)
class Duplicate:
    """The append was accepted before. The response repeats what was accepted then."""

    producer: Producer | None
    closed: bool


@dataclass(frozen=True, slots=True)
class Accept:
    """The append may be written."""


ACCEPT = Accept()

ProducerLookup = Callable[[str], tuple[int, int] | None]
"""Returns the epoch and last sequence number of a producer of this stream, or None if it has not written yet."""


def decide_append(state: AppendState, request: AppendRequest, producer_of: ProducerLookup) -> Accept | Duplicate:
    """Decide on an append. Checks closed, content type, producer and `Stream-Seq` in this order, so that retries
    deduplicate.
    """
    producer = request.producer
    if state.closed:
        return _decide_on_closed(state, request)
    content_type = request.content_type
    if (
        content_type is not None
        and content_type != state.media_type
        and normalize_content_type(content_type) != state.media_type
    ):
        raise ContentTypeMismatch(f"stream {state.path} holds {state.media_type}, not {content_type}")
    if producer is not None:
        known = producer_of(producer.id)
        if known is not None and (duplicate := _decide_producer(producer, *known)):
            return duplicate
        if known is None and producer.seq != 0:
            raise producer_gap(0, producer.seq)
    if request.seq is not None and state.last_seq is not None and request.seq.encode() <= state.last_seq.encode():
        raise SequenceConflict(f"Stream-Seq {request.seq!r} must be greater than {state.last_seq!r}")
    return ACCEPT


def _decide_on_closed(state: AppendState, request: AppendRequest) -> Duplicate:
    producer = request.producer
    if producer is not None and producer == state.closed_by:
        return Duplicate(producer, closed=True)
    if producer is None and request.close and not request.data and not request.keyed:
        return Duplicate(None, closed=True)
    raise stream_closed(state.path, format_offset(state.tail))


def _decide_producer(producer: Producer, epoch: int, last_seq: int) -> Duplicate | None:
    if producer.epoch < epoch:
        raise stale_epoch(epoch)
    if producer.epoch > epoch:
        if producer.seq != 0:
            raise InvalidRequest(f"a new producer epoch must start at sequence 0, not {producer.seq}")
        return None
    if producer.seq <= last_seq:
        return Duplicate(Producer(producer.id, epoch, last_seq), closed=False)
    if producer.seq != last_seq + 1:
        raise producer_gap(last_seq + 1, producer.seq)
    return None


@dataclass(frozen=True, slots=True)
class ExistingStream:
    """The state of a stream that decides on a second request to create it."""

    path: str
    content_type: str
    closed: bool
    config: StreamConfig
    """As requested first."""


def check_same(existing: ExistingStream, wanted: StreamConfig) -> None:
    """Raises `StreamConflict` if creating this stream again would change it."""
    config = existing.config
    media_type = normalize_content_type(existing.content_type)
    differences = [
        name
        for name, differs in (
            (
                "content type",
                (wanted.content_type is not None or wanted.fork is None)
                and normalize_content_type(wanted.content_type or "application/octet-stream") != media_type,
            ),
            ("TTL", wanted.ttl_seconds != config.ttl_seconds),
            ("expiry", wanted.expires_at != config.expires_at),
            ("closed state", wanted.closed != existing.closed),
            ("fork", not _same_fork(config, wanted)),
        )
        if differs
    ]
    if differences:
        raise Conflict(f"stream {existing.path} exists with a different {' and a different '.join(differences)}")


def _same_fork(existing: StreamConfig, wanted: StreamConfig) -> bool:
    if existing.fork is None or wanted.fork is None:
        return existing.fork is wanted.fork
    return (
        existing.fork.source == wanted.fork.source
        and existing.fork.sub_offset == wanted.fork.sub_offset
        and wanted.fork.offset in (None, existing.fork.offset)
    )


def deadline_of(ttl_seconds: int | None, expires_at: int | None, last_access: int) -> int | None:
    """Returns when a stream expires, in UTC milliseconds. Every access restarts a TTL, but not an expiry."""
    if ttl_seconds is not None:
        return last_access + ttl_seconds * 1000
    return expires_at
