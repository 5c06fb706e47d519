"""What happened in an interpreter, on its thread: noted at once, written in the background in order, and read back.

Whoever notes something never waits for the disk. `replay` folds the entries of a thread into what happened.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import math
import random
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final

import orjson

from holdfast.api.errors.interpreters import RecordUnwritten
from holdfast.api.ids import new_entry_id, now_ms
from holdfast.time_limit import time_limit

log = logging.getLogger(__name__)

STARTED: Final = "interpreter.started"
EXECUTION: Final = "interpreter.execution"
CALL: Final = "interpreter.call"
WORKSPACE: Final = "interpreter.workspace"
STATE: Final = "interpreter.state"
ENDED: Final = "interpreter.ended"
GAP: Final = "interpreter.gap"
"""`count` entries are not on the thread: it could not be written for so long that no more could be held."""

SETTINGS: Final = "interpreter.settings"
"""What an interpreter of a server was made with."""

ALL: Final = "interpreter.*"

THREAD_LABEL: Final = "interpreter"
"""The label of a thread that names its interpreter."""

_GATHER_SECONDS: Final = 0.05
_BATCH: Final = 500
_BATCH_BYTES: Final = 4 << 20
_MOST_BYTES: Final = 64 << 20
"""Held in memory while the thread cannot be written."""
_MOST_OF_ONE: Final = 1 << 20
_KEPT: Final = ("type", "id", "execution", "name", "ok", "status")
"""Of an entry that is too large."""
_PATIENCE: Final = 60.0
_LONGEST_PAUSE: Final = 5.0
_DEPTH: Final = 100
_BITS: Final = 8192


@dataclass(frozen=True, slots=True)
class Noted:
    """An entry that is on its way."""

    id: str
    data: bytes
    """The whole entry, as JSON."""


Write = Callable[[Sequence[Noted]], Awaitable[None]]
"""Appends entries, all or none, each once by its id."""
Read = Callable[[Sequence[str]], AsyncIterator[Mapping[str, Any]]]


class QueuedRecord:
    """A thread that is written in the background. Owns the task that does so, until `close`."""

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
        """`is_final`: whether an error of `write` says that no other attempt can succeed. `patience`: how many seconds
        `flush` waits for a thread that cannot be written."""
        self.thread = thread
        self._write = write
        self._read = read
        self._is_final = is_final
        self._clock = clock
        self._most_bytes = most_bytes
        self._patience = _PATIENCE if patience is None else patience
        self._queue: deque[Noted] = deque()
        self._held = 0
        """Bytes in the queue."""
        self._left_out = 0
        self._noted = 0
        self._written = 0
        self._stuck_at = -1
        """How many entries were written when a `flush` lost its patience."""
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []
        self._failure: Exception | None = None
        """The latest error, until something is written again."""
        self._is_dead = False
        self._writer: asyncio.Task[None] | None = None
        self._wrote_at = -math.inf
        self._hurry = asyncio.Event()
        """Somebody waits for it to be written."""

    def note(self, payload: Mapping[str, Any]) -> None:
        """Write an entry: at once, in order, without waiting for the disk."""
        if self._is_dead:
            self._left_out += 1
            return
        noted = self._encode(payload)
        if self._held + len(noted.data) > self._most_bytes:
            self._left_out += 1
            return
        if self._left_out:
            self._tell_gap()
        self._put(noted)

    async def flush(self) -> None:
        """Until all that was noted is on disk. Raises `RecordUnwritten` where that cannot be."""
        if self._left_out and not self._is_dead:
            self._tell_gap()
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
            # As long as something is written, it goes on.
            if progress == self._written:
                self._waiting = [each for each in self._waiting if each[1] is not written]
                self._stuck_at = self._written
                raise self._unwritten()
            progress = self._written
            await asyncio.wait({written}, timeout=self._patience)
        written.result()

    def entries(self, types: Sequence[str] = ()) -> AsyncIterator[Mapping[str, Any]]:
        """What is on the thread: `{id, ts, payload}` each."""
        return self._read(types)

    async def close(self) -> None:
        """Write what is left, and end. What cannot be written is said in the log."""
        try:
            if self._queue and self._stuck_at == self._written:  # it was waited for, in vain
                raise self._unwritten()
            await self.flush()
        except RecordUnwritten as error:
            log.warning("%s", error)
        writer, self._writer, self._is_dead = self._writer, None, True
        if writer is not None:
            writer.cancel()
            await asyncio.gather(writer, return_exceptions=True)

    # --- the queue ---

    def _encode(self, payload: Mapping[str, Any]) -> Noted:
        id = new_entry_id()
        data = encode_entry({"id": id, "ts": self._clock(), "payload": payload})
        if len(data) > _MOST_OF_ONE:
            cut = {**{name: payload[name] for name in _KEPT if name in payload}, "cut": True, "size": len(data)}
            data = encode_entry({"id": id, "ts": self._clock(), "payload": cut})
        return Noted(id, data)

    def _tell_gap(self) -> None:
        count, self._left_out = self._left_out, 0
        self._put(self._encode({"type": GAP, "count": count}))

    def _put(self, noted: Noted) -> None:
        self._queue.append(noted)
        self._held += len(noted.data)
        self._noted += 1
        if self._writer is None or self._writer.done():
            self._writer = asyncio.get_running_loop().create_task(self._write_all(), name=f"record {self.thread}")

    def _batch(self) -> list[Noted]:
        batch, size = [self._queue[0]], len(self._queue[0].data)
        for noted in islice(self._queue, 1, _BATCH):
            size += len(noted.data)
            if size > _BATCH_BYTES:
                break
            batch.append(noted)
        return batch

    async def _write_all(self) -> None:
        attempt = 0
        while self._queue:
            await self._gather()
            batch = self._batch()
            try:
                await self._write(batch)
            except Exception as error:  # whatever it is: told to who flushes, and tried again where that may help
                self._failure = error
                if self._is_final(error):
                    self._give_up(error)
                    return
                await asyncio.sleep(_pause(attempt))
                attempt += 1
                continue
            attempt, self._failure = 0, None
            for noted in batch:
                self._queue.popleft()
                self._held -= len(noted.data)
            self._written += len(batch)
            self._settle()

    async def _gather(self) -> None:
        """Not more often than so: a request costs more than what it writes, and code that runs waits for the loop."""
        loop = asyncio.get_running_loop()
        rest = self._wrote_at + _GATHER_SECONDS - loop.time()
        if rest > 0 and not self._waiting and self._held < _BATCH_BYTES:
            self._hurry.clear()
            with contextlib.suppress(TimeoutError):
                async with time_limit(rest):
                    await self._hurry.wait()
        self._wrote_at = loop.time()

    def _settle(self) -> None:
        left = []
        for target, future in self._waiting:
            if target > self._written:
                left.append((target, future))
            elif not future.done():
                future.set_result(None)
        self._waiting = left

    def _give_up(self, error: Exception) -> None:
        log.warning("thread %s takes no more entries: %s", self.thread, error)
        self._is_dead = True
        self._left_out += len(self._queue)
        self._queue.clear()
        self._held = 0
        for _, future in self._waiting:
            if not future.done():
                future.set_exception(self._unwritten())
        self._waiting = []

    def _unwritten(self) -> RecordUnwritten:
        count = len(self._queue) + self._left_out
        why = f": {self._failure}" if self._failure is not None else ""
        hint = getattr(self._failure, "hint", None) or "check that the server runs and that the thread is there"
        return RecordUnwritten(f"{count} entries of thread {self.thread} are not written{why}", hint=hint)


def _pause(attempt: int) -> float:
    return min(_LONGEST_PAUSE, 0.05 * 2.0 ** min(attempt, 16)) * (0.5 + random.random() / 2)


def encode_entry(entry: Mapping[str, Any]) -> bytes:
    """JSON, whatever is in it: what JSON cannot say is said as near as it can."""
    try:
        return orjson.dumps(entry)
    except TypeError:  # numbers of any length, broken text, keys that are no text
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


# --- reading it back ---


@dataclass(frozen=True, slots=True)
class ReplayedCall:
    """Something that code in the box asked of the host."""

    id: str
    name: str
    status: str
    seconds: float
    payload: Mapping[str, Any] = field(repr=False)


@dataclass(frozen=True, slots=True)
class ReplayedExecution:
    id: str
    code: str | None
    """None where only calls of it are on the thread: it was cut short."""
    ok: bool | None
    """None where nobody saw its end."""
    seconds: float
    calls: tuple[ReplayedCall, ...]
    payload: Mapping[str, Any] = field(repr=False)
    at: int = 0
    """UTC milliseconds."""


@dataclass(frozen=True, slots=True)
class Replay:
    """What happened in an interpreter, by its thread alone."""

    started: Mapping[str, Any] | None = None
    """The latest start."""
    ended: Mapping[str, Any] | None = None
    """Its end, where it has not been started again since."""
    settings: Mapping[str, Any] | None = None
    """What it was made with, where it lives in a server."""
    starts: int = 0
    executions: tuple[ReplayedExecution, ...] = ()
    """In the order in which they began, as far as the thread tells."""
    workspace: Mapping[str, Any] | None = None
    """The latest transition."""
    workspaces: tuple[Mapping[str, Any], ...] = ()
    states: tuple[Mapping[str, Any], ...] = ()
    """What was saved, loaded, forked or lost."""
    input_tokens: int = 0
    output_tokens: int = 0
    cost: float = 0.0
    missing: int = 0
    """Entries that could not be written."""

    @property
    def calls(self) -> int:
        return sum(len(each.calls) for each in self.executions)

    @property
    def submitted(self) -> Mapping[str, Any] | None:
        """The latest answer that was submitted."""
        for each in reversed(self.executions):
            found = each.payload.get("submitted")
            if isinstance(found, Mapping):
                return found
        return None


def replay(entries: Iterable[Mapping[str, Any]]) -> Replay:
    """Fold the entries of a thread. Those of others, and what cannot be read, are passed over."""
    starts, missing = 0, 0
    started: Mapping[str, Any] | None = None
    ended: Mapping[str, Any] | None = None
    executions: dict[str, tuple[int, Mapping[str, Any]]] = {}
    calls: dict[str, list[ReplayedCall]] = {}
    workspaces: list[Mapping[str, Any]] = []
    states: list[Mapping[str, Any]] = []
    settings: Mapping[str, Any] | None = None
    read = said = 0
    cost = 0.0
    for entry in entries:
        payload = entry.get("payload")
        if not isinstance(payload, Mapping):
            continue
        match payload.get("type"):
            case "interpreter.started":
                starts, started, ended = starts + 1, payload, None
            case "interpreter.ended":
                ended = payload
            case "interpreter.workspace":
                workspaces.append(payload)
            case "interpreter.state":
                states.append(payload)
            case "interpreter.settings":
                settings = given if isinstance(given := payload.get("settings"), Mapping) else settings
            case "interpreter.gap":
                missing += int(_number(payload.get("count")))
            case "interpreter.execution":
                id = str(payload.get("id"))
                # Once when it begins, and once when it has ended.
                at = executions[id][0] if id in executions else int(_number(entry.get("ts")))
                executions[id] = at, {**(executions[id][1] if id in executions else {}), **payload}
                calls.setdefault(id, [])
            case "interpreter.call":
                calls.setdefault(str(payload.get("execution")), []).append(
                    ReplayedCall(
                        str(payload.get("id")),
                        str(payload.get("name")),
                        str(payload.get("status")),
                        _number(payload.get("seconds")),
                        payload,
                    )
                )
                usage = payload.get("usage")
                if isinstance(usage, Mapping):
                    read += int(_number(usage.get("input_tokens")))
                    said += int(_number(usage.get("output_tokens")))
                    cost += _number(usage.get("cost"))
    return Replay(
        started=started,
        ended=ended,
        settings=settings,
        starts=starts,
        executions=tuple(_execution(id, made, executions.get(id)) for id, made in calls.items()),
        workspace=workspaces[-1] if workspaces else None,
        workspaces=tuple(workspaces),
        states=tuple(states),
        input_tokens=read,
        output_tokens=said,
        cost=cost,
        missing=missing,
    )


def _execution(
    id: str, calls: Sequence[ReplayedCall], found: tuple[int, Mapping[str, Any]] | None
) -> ReplayedExecution:
    if found is None:
        return ReplayedExecution(id, None, None, 0.0, tuple(calls), {})
    at, payload = found
    code, ok = payload.get("code"), payload.get("ok")
    return ReplayedExecution(
        id,
        code if isinstance(code, str) else None,
        ok if isinstance(ok, bool) else None,
        _number(payload.get("seconds")),
        tuple(calls),
        payload,
        at,
    )


def _number(value: object) -> float:
    with contextlib.suppress(OverflowError):
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            return float(value)
    return 0.0
