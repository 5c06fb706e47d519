"""The part of one stream that is durable in the journal, but not yet in the tables that are read by stream."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from holdfast.api.errors import InvalidRequest
from holdfast.storage.sqlite.streams.journal import StreamFiling
from holdfast.threads.store import Producer


class Unfiled:
    """The last bytes of a stream in memory, with their state. Owned by the event loop."""

    __slots__ = ("closed", "closed_by", "ends", "keys", "last_seq", "pieces", "producers", "start")

    def __init__(self, start: int) -> None:
        self.start = start
        """The stream is in its table up to this position."""
        self.pieces: list[bytes] = []
        self.ends: list[int] = []
        self.producers: dict[str, tuple[int, int]] = {}
        self.keys: dict[str, int] = {}
        self.last_seq: str | None = None
        self.closed = False
        self.closed_by: Producer | None = None

    def add(
        self,
        data: bytes,
        end: int,
        producer: Producer | None,
        seq: str | None,
        close: bool,
        keys: Sequence[tuple[str, int]],
    ) -> None:
        if data:
            self.pieces.append(data)
            self.ends.append(end)
        if producer is not None:
            self.producers[producer.id] = (producer.epoch, producer.seq)
        if seq is not None:
            self.last_seq = seq
        if close:
            self.closed, self.closed_by = True, producer
        if keys:
            self.keys.update(keys)

    def filing(self, stream: int) -> StreamFiling:
        """Returns all of it as it is now. Later entries are left to the next filing."""
        return StreamFiling(
            stream,
            self.ends[-1] if self.ends else self.start,
            list(self.pieces),
            dict(self.producers),
            dict(self.keys),
            self.last_seq,
            self.closed,
            self.closed_by,
        )

    def filed(self, filing: StreamFiling) -> None:
        """Discard what has been filed."""
        del self.pieces[: len(filing.pieces)]
        del self.ends[: len(filing.pieces)]
        self.start = filing.end
        for key in filing.keys:
            del self.keys[key]
        for id, state in filing.producers.items():
            if self.producers[id] == state:
                del self.producers[id]
        if self.last_seq == filing.last_seq:
            self.last_seq = None
        if filing.closed:
            self.closed, self.closed_by = False, None

    @property
    def is_empty(self) -> bool:
        return not (self.pieces or self.producers or self.keys or self.closed or self.last_seq is not None)

    def read(self, low: int, high: int, limit: int, *, whole_messages: bool) -> list[bytes]:
        """Returns the bytes from `low` (not before `start`) to `high`, stopping after about `limit` bytes."""
        pieces: list[bytes] = []
        size = 0
        for index in range(bisect_right(self.ends, low), len(self.pieces)):
            data, end = self.pieces[index], self.ends[index]
            begin = end - len(data)
            if begin >= high or size >= limit:
                break
            first, last = max(low - begin, 0), min(end, high) - begin
            if first and whole_messages and data[first - 1] != 0x0A:
                raise InvalidRequest("the offset is not at the start of a message of this stream")
            if last - first > limit - size and (newline := data.find(b"\n", first + limit - size - 1, last)) >= 0:
                last = newline + 1  # one append can be many times longer than the limit
            pieces.append(data[first:last])
            size += last - first
        return pieces
