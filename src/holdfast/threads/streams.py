"""The vocabulary of streams: what a store is asked, and what it answers. Data only; the decisions are in rules."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Final, NamedTuple

MAX_SAFE_INTEGER: Final = 2**53 - 1


@functools.lru_cache(maxsize=256)
def normalize_content_type(value: str) -> str:
    """The media type alone, lower-case: parameters such as charset do not make another type."""
    return value.split(";", 1)[0].strip().lower()


def is_json(content_type: str) -> bool:
    return normalize_content_type(content_type) == "application/json"


@dataclass(frozen=True, slots=True)
class Producer:
    """An idempotent producer's claim: this is request `seq` of incarnation `epoch`."""

    id: str
    epoch: int
    seq: int


@dataclass(frozen=True, slots=True)
class ForkPoint:
    """Where a new stream branches off another."""

    source: str
    """Path of the stream to branch off."""
    offset: int | None
    """Position in the source; None is its tail at the time."""
    sub_offset: int
    """Messages (JSON) or bytes past that position."""


@dataclass(frozen=True, slots=True)
class StreamConfig:
    """What a client asks a stream to be. Two requests with equal configurations make one stream."""

    content_type: str | None = None
    """None: inherited from the source of a fork, else application/octet-stream."""
    ttl_seconds: int | None = None
    """Sliding: counted from the last read or write."""
    expires_at: int | None = None
    """UTC milliseconds."""
    closed: bool = False
    fork: ForkPoint | None = None


@dataclass(frozen=True, slots=True)
class StreamInfo:
    """A stream as it stands."""

    id: int
    path: str
    content_type: str
    tail: int
    closed: bool
    ttl_seconds: int | None
    expires_at: int | None
    created_at: int
    fork_source: str | None
    fork_offset: int


class Keyed(NamedTuple):
    """A message with a dedup key: appended only where no message of the stream has that key yet."""

    key: str
    data: bytes
    fresh: bool = False
    """The key was made for this very message, out of randomness: no other can have it."""


@dataclass(slots=True)
class AppendRequest:
    """One append. `data` is framed already; `keyed` replaces it where messages are deduplicated by key."""

    data: bytes = b""
    content_type: str | None = None
    """As the client sent it; None is not checked (an empty body, or the server's own entries)."""
    producer: Producer | None = None
    seq: str | None = None
    close: bool = False
    keyed: tuple[Keyed, ...] = ()


class Appended(NamedTuple):
    """The acknowledgement of an append: it is on disk."""

    tail: int
    closed: bool = False
    duplicate: bool = False
    producer: Producer | None = None
    """The producer's highest accepted state, to be echoed."""


@dataclass(frozen=True, slots=True)
class Slice:
    """Consecutive bytes of a stream."""

    data: bytes
    start: int
    end: int
    tail: int
    closed: bool

    @property
    def up_to_date(self) -> bool:
        return self.end == self.tail


@dataclass(frozen=True, slots=True)
class Change:
    """One commit to a stream, as watchers see it, after it is durable."""

    path: str
    start: int
    data: bytes | None
    """None where the bytes have to be read from the store: another server may have written them."""
    end: int
    closed: bool = False
    deleted: bool = False
