"""The record of an interpreter: what happens in it, as entries on its thread.

Entries are queued and written in the background, in order, so `note` never waits for the disk. `show` bounds values
for entries. `replay` reads a thread back.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import math
import random
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

import orjson

from holdfast.api.errors.interpreters import RecordUnwritten
from holdfast.api.ids import new_entry_id, now_ms
from holdfast.interpreter.host import Host, Record
from holdfast.time_limit import time_limit

log = logging.getLogger(__name__)

STARTED: Final = "interpreter.started"
EXECUTION: Final = "interpreter.execution"
CALL: Final = "interpreter.call"
WORKSPACE: Final = "interpreter.workspace"
STATE: Final = "interpreter.state"
ENDED: Final = "interpreter.ended"
GAP: Final = "interpreter.gap"
"""`count` entries are missing: the thread could not be written, and the queue was full."""

SETTINGS: Final = "interpreter.settings"
"""The settings of an interpreter that lives in a server."""

ALL: Final = "interpreter.*"

THREAD_LABEL: Final = "interpreter"
"""The label of a thread that names its interpreter."""

_GATHER_SECONDS: Final = 0.05
_BATCH: Final = 500
_BATCH_BYTES: Final = 4 << 20
_MOST_BYTES: Final = 64 << 20
"""Bytes held in memory while the thread cannot be written."""
_MOST_OF_ONE: Final = 1 << 20
_KEPT: Final = ("type", "id", "execution", "name", "ok", "status")
"""What remains of an entry that is too large."""
_PATIENCE: Final = 60.0
_LONGEST_PAUSE: Final = 5.0
_DEPTH: Final = 100
_BITS: Final = 8192
_SHOWN_CHARACTERS: Final = 8_000
_SHOWN_DEPTH: Final = 8


@dataclass(frozen=True, slots=True)
class PendingEntry:
    """An entry that is not written yet."""

    id: str
    data: bytes
    """The whole entry, as JSON."""


Write = Callable[[Sequence[PendingEntry]], Awaitable[None]]
"""Appends all entries or none, and each id only once."""
Read = Callable[[Sequence[str]], AsyncIterator[Mapping[str, Any]]]


class LazyRecord:
    """The record of an interpreter before and after its first start. Drops entries until it is open.

    Branches share the record of the interpreter that they were forked from.
    """

    def __init__(self, interpreter: str, thread: str | None) -> None:
        """Without a `thread`, the thread is named after the interpreter."""
        self._interpreter = interpreter
        self._wanted = thread or f"t-{interpreter}"
        self._record: Record | None = None

    @property
    def thread(self) -> str:
        return self._wanted if self._record is None else self._record.thread

    @property
    def is_open(self) -> bool:
        return self._record is not None

    async def open(self, host: Host) -> None:
        """Opening it again does nothing."""
        if self._record is None:
            title, labels = f"Interpreter {self._interpreter}", {THREAD_LABEL: self._interpreter}
            self._record = await host.record(self._wanted, title=title, labels=labels)

    def note(self, payload: Mapping[str, Any]) -> None:
        if self._record is not None:
            self._record.note(payload)

    async def flush(self) -> None:
        if self._record is not None:
            await self._record.flush()

    async def entries(self, types: Sequence[str] = ()) -> AsyncIterator[Mapping[str, Any]]:
        if self._record is not None:
            async for entry in self._record.entries(types):
                yield entry


class QueuedRecord:
    """A thread that is written in the background. Owns the task that writes it, until `close`."""

    def __init__(
        self,
        thread: str,
        write: Write,
        read: Read,
        *,
        is_final: Callable[[Exception], bool],
        clock: Callable[[], int] = now_ms,
        most_bytes: int = _MOST_BYTES,
        patience: float | None = None,
    ) -> None:
        """`is_final` returns whether retrying `write` after an error is pointless. `patience` is how many seconds
        `flush` waits without progress."""
        self.thread = thread
        self._write = write
        self._read = read
        self._is_final = is_final
        self._clock = clock
        self._most_bytes = most_bytes
        self._patience = _PATIENCE if patience is None else patience
        self._queue: deque[PendingEntry] = deque()
        self._queued_bytes = 0
        self._left_out = 0
        self._noted = 0
        self._written = 0
        self._stuck_at = -1
        """The value of `_written` when a `flush` ran out of patience."""
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []
        self._failure: Exception | None = None
        """The latest error, until a write succeeds."""
        self._is_dead = False
        self._writer: asyncio.Task[None] | None = None
        self._wrote_at = -math.inf
        self._hurry = asyncio.Event()
        """Set when a caller waits for the write."""

    def note(self, payload: Mapping[str, Any]) -> None:
        """Queue an entry. Does not wait for the disk."""
        if self._is_dead:
            self._left_out += 1
            return
        entry = self._encode(payload)
        if self._queued_bytes + len(entry.data) > self._most_bytes:
            self._left_out += 1
            return
        if self._left_out:
            self._note_gap()
        self._put(entry)

    async def flush(self) -> None:
        """Wait until every entry is on disk. Raises `RecordUnwritten` if that fails."""
        if self._left_out and not self._is_dead:
            self._note_gap()
        target = self._noted
        if self._written >= target and not self._left_out:
            return
        if self._is_dead:
            raise self._unwritten()
        written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((target, written))
        self._hurry.set()
        progress = -1
        while not written.done():
            # The patience starts again with every write that succeeds.
            if progress == self._written:
                self._waiting = [each for each in self._waiting if each[1] is not written]
                self._stuck_at = self._written
                raise self._unwritten()
            progress = self._written
            await asyncio.wait({written}, timeout=self._patience)
        written.result()

    def entries(self, types: Sequence[str] = ()) -> AsyncIterator[Mapping[str, Any]]:
        """The entries of the thread: `{id, ts, payload}` each."""
        return self._read(types)

    async def close(self) -> None:
        """Write what is queued, and stop. Logs what cannot be written."""
        try:
            if self._queue and self._stuck_at == self._written:  # a flush has already waited in vain
                raise self._unwritten()
            await self.flush()
        except RecordUnwritten as error:
            log.warning("%s", error)
        writer, self._writer, self._is_dead = self._writer, None, True
        if writer is not None:
            writer.cancel()
            await asyncio.gather(writer, return_exceptions=True)

    # --- the queue ---

    def _encode(self, payload: Mapping[str, Any]) -> PendingEntry:
        id = new_entry_id()
        data = encode_entry({"id": id, "ts": self._clock(), "payload": payload})
        if len(data) > _MOST_OF_ONE:
            cut = {**{name: payload[name] for name in _KEPT if name in payload}, "cut": True, "size": len(data)}
            data = encode_entry({"id": id, "ts": self._clock(), "payload": cut})
        return PendingEntry(id, data)

    def _note_gap(self) -> None:
        count, self._left_out = self._left_out, 0
        self._put(self._encode({"type": GAP, "count": count}))

    def _put(self, entry: PendingEntry) -> None:
        self._queue.append(entry)
        self._queued_bytes += len(entry.data)
        self._noted += 1
        if self._writer is None or self._writer.done():
            self._writer = asyncio.get_running_loop().create_task(self._write_all(), name=f"record {self.thread}")

    def _batch(self) -> list[PendingEntry]:
        batch, size = [self._queue[0]], len(self._queue[0].data)
        for entry in islice(self._queue, 1, _BATCH):
            size += len(entry.data)
            if size > _BATCH_BYTES:
                break
            batch.append(entry)
        return batch

    async def _write_all(self) -> None:
        attempt = 0
        while self._queue:
            await self._gather()
            batch = self._batch()
            try:
                await self._write(batch)
            except Exception as error:  # any error is reported by `flush`, and retried unless it is final
                self._failure = error
                if self._is_final(error):
                    self._give_up(error)
                    return
                await asyncio.sleep(_pause(attempt))
                attempt += 1
                continue
            attempt, self._failure = 0, None
            for entry in batch:
                self._queue.popleft()
                self._queued_bytes -= len(entry.data)
            self._written += len(batch)
            self._notify_flushes()

    async def _gather(self) -> None:
        """Wait a moment for more entries: a request costs more than the entries in it, and competes with running code
        for the event loop."""
        loop = asyncio.get_running_loop()
        rest = self._wrote_at + _GATHER_SECONDS - loop.time()
        if rest > 0 and not self._waiting and self._queued_bytes < _BATCH_BYTES:
            self._hurry.clear()
            with contextlib.suppress(TimeoutError):
                async with time_limit(rest):
                    await self._hurry.wait()
        self._wrote_at = loop.time()

    def _notify_flushes(self) -> None:
        left = []
        for target, future in self._waiting:
            if target > self._written:
                left.append((target, future))
            elif not future.done():
                future.set_result(None)
        self._waiting = left

    def _give_up(self, error: Exception) -> None:
        log.warning("thread %s accepts no more entries: %s", self.thread, error)
        self._is_dead = True
        self._left_out += len(self._queue)
        self._queue.clear()
        self._queued_bytes = 0
        for _, future in self._waiting:
            if not future.done():
                future.set_exception(self._unwritten())
        self._waiting = []

    def _unwritten(self) -> RecordUnwritten:
        count = len(self._queue) + self._left_out
        why = f": {self._failure}" if self._failure is not None else ""
        hint = getattr(self._failure, "hint", None) or "check that the server runs and that the thread exists"
        return RecordUnwritten(f"{count} entries of thread {self.thread} are not written{why}", hint=hint)


def _pause(attempt: int) -> float:
    return min(_LONGEST_PAUSE, 0.05 * 2.0 ** min(attempt, 16)) * (0.5 + random.random() / 2)


# --- values in entries ---


def encode_entry(entry: Mapping[str, Any]) -> bytes:
    """Encode an entry as JSON. Values that JSON lacks are replaced by the closest value that it has."""
    try:
        return orjson.dumps(entry)
    except TypeError:  # large integers, broken text, keys that are not strings
        return json.dumps(_plain(entry, 0), ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def _plain(value: Any, depth: int) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return value if value.bit_length() <= _BITS else hex(value)[:1000]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if depth >= _DEPTH:
        return "…"
    if isinstance(value, Mapping):
        return {_plain(str(name), depth): _plain(each, depth + 1) for name, each in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray | memoryview):
        return [_plain(each, depth + 1) for each in value]
    return _plain(repr(value)[:1000], depth)


def show(value: Any, characters: int = _SHOWN_CHARACTERS) -> Any:
    """Shorten a value for an entry: plain JSON of about this many characters, which says what was left out.

    The time it takes is bounded too, however large the value is.
    """
    return _Shortener(characters).shorten(value, 0)


class _Shortener:
    def __init__(self, characters: int) -> None:
        self._left = characters

    def shorten(self, value: Any, depth: int) -> Any:
        self._left -= 8
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, int):
            return int(value) if abs(value) < 2**53 else self._text(_digits(value))
        if isinstance(value, float):
            return float(value) if value - value == 0 else repr(float(value))
        if isinstance(value, str):
            return self._text(value)
        if depth >= _SHOWN_DEPTH:
            return f"<{type(value).__name__}>"
        if isinstance(value, Mapping):
            return self._mapping(value, depth)
        if isinstance(value, list | tuple | set | frozenset):
            return self._items(value, depth)
        if isinstance(value, bytes | bytearray):
            return f"<{len(value)} bytes>"
        return f"<{type(value).__name__}>"

    def _text(self, value: str) -> str:
        room = max(0, self._left)
        self._left -= len(value)
        clean = value[:room].encode("utf-8", "replace").decode()  # a lone surrogate is not valid in JSON
        return clean if len(value) <= room else f"{clean}… {len(value) - room} characters more"

    def _mapping(self, value: Mapping[Any, Any], depth: int) -> dict[str, Any]:
        shortened: dict[str, Any] = {}
        for number, (key, each) in enumerate(value.items()):
            if self._left <= 0:
                shortened["…"] = f"{len(value) - number} more"
                break
            # The name first, so that its value does not use up the characters.
            name = self._text(key if isinstance(key, str) else f"<{type(key).__name__}>")
            shortened[name] = self.shorten(each, depth + 1)
        return shortened

    def _items(self, value: Any, depth: int) -> list[Any]:
        shortened: list[Any] = []
        for number, each in enumerate(value):
            if self._left <= 0:
                shortened.append(f"… {len(value) - number} more")
                break
            shortened.append(self.shorten(each, depth + 1))
        return shortened


def _digits(value: int) -> str:
    return str(value) if value.bit_length() < 1000 else f"<an integer of {value.bit_length()} bits>"
