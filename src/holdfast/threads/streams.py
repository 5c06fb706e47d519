"""The data types that stream stores take and return. The decisions are in `protocol.rules`."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Final, NamedTuple

MAX_SAFE_INTEGER: Final = 2**53 - 1


@functools.lru_cache(maxsize=256)
def normalize_content_type(value: str) -> str:
    """Returns the media type in lower case, without parameters such as charset."""
    return value.split(";", 1)[0].strip().lower()


def is_json(content_type: str) -> bool:
    return normalize_content_type(content_type) == "application/json"


@dataclass(frozen=True, slots=True)
class Producer:
    """The claim of an idempotent producer that this is request `seq` of incarnation `epoch`."""

    id: str
    epoch: int
    seq: int


@dataclass(frozen=True, slots=True)
class ForkPoint:
    """Where a new stream forks from another."""

    source: str
    """Path of the stream to fork."""
    offset: int | None
    """Position in the source; None means its current tail."""
    sub_offset: int
    """Messages (JSON) or bytes past that position."""


@dataclass(frozen=True, slots=True)
class StreamConfig:
    """The configuration that a client requests. Creating a stream twice with equal configurations yields one stream."""

    content_type: str | None = None
    """None: inherited from the source of a fork, otherwise application/octet-stream."""
    ttl_seconds: int | None = None
    """Sliding: counted from the last read or write."""
    expires_at: int | None = None
    """UTC milliseconds."""
    closed: bool = False
    fork: ForkPoint | None = None


@dataclass(frozen=True, slots=True)
class StreamInfo:
    """The current state of a stream."""

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
    """A message with a deduplication key. It is appended only if the stream has no message with that key yet."""

    key: str
    data: bytes
    fresh: bool = False
    """The key was generated at random for this message, so no other message can have it."""


@dataclass(slots=True)
class AppendRequest:
    """One append. `data` is already framed. `keyed` replaces it when messages are deduplicated by key."""

    data: bytes = b""
    content_type: str | None = None
    """As the client sent it. None is not checked (an empty body, or the server's own entries)."""
    producer: Producer | None = None
    seq: str | None = None
    close: bool = False
    keyed: tuple[Keyed, ...] = ()


class Appended(NamedTuple):
    """The acknowledgement of an append that is on disk."""

    tail: int
    closed: bool = False
    duplicate: bool = False
    producer: Producer | None = None
    """The producer's highest accepted state, which the response echoes."""


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
    """One durable commit to a stream, as watchers see it."""

    path: str
    start: int
    data: bytes | None
    """None if the watcher must read the bytes from the store, because another server may have written them."""
    end: int
    closed: bool = False
    deleted: bool = False
