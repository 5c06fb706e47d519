"""The host's side of one byte stream to a box: many calls at once, each with byte streams of its own.

The box is not trusted: every length, number and amount is checked against what was granted, and a bridge that violates
the protocol is disconnected. Nothing here waits for the box without a limit, or buffers more than the box was allowed
to send. `process` and `files` define what the calls mean.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import logging
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any, Final

from holdfast.api.box.box import Wake
from holdfast.api.errors.boxes import BoxConflict, BoxError, BoxGone, BoxStopped, BoxUnreachable, file_problem
from holdfast.boxes.shielded import to_the_end
from holdfast.guest.init import codec, frames
from holdfast.providers.guest_protocol import ArchiveRefused, GuestRefused, check_refused, read_answer
from holdfast.providers.stream.transport import Dial, Transport
from holdfast.time_limit import time_limit

log = logging.getLogger(__name__)

DEFAULT_SECONDS: Final = 30.0
_DIAL_SECONDS: Final = 60.0
_GREET_SECONDS: Final = 30.0
_CLOSE_SECONDS: Final = 5.0
_VERDICT_SECONDS: Final = 5.0
_SHUT_DOWN_SECONDS: Final = 2.0
"""How much longer than the grace period the guest may take to end what runs."""
_ROOM: Final = 1 << 20
"""Bytes in flight to the box above which writers wait."""
_FLOOD: Final = 16 << 20
"""Bytes in flight to the box, including those without a waiting writer, above which the stream is closed."""
_LONG: Final = 64 * 1024
"""Bytes from which a message is decoded on a thread."""
_MAX_UNREAD: Final = 8
"""Unread messages of one call."""
_MAX_PARTS: Final = 2 * codec.LIMIT
"""Bytes of all incomplete messages together."""
_MAX_CREDIT: Final = 16 << 20
_MAX_OPENED: Final = 512
"""Calls at a time that the box started."""
_LATE: Final = 4096
"""Bytes that may still arrive for a call that was closed here, in addition to its answer and its grants."""
_MOST_LATE: Final = 256 << 20
_REDIAL_FIRST: Final = 0.1
_REDIAL_MOST: Final = 10.0

Verdict = Callable[[], Awaitable[BoxError | None]]
"""Returns the error if a box whose stream was lost is gone or stopped, or None if it runs."""
Opened = Callable[["Call"], Coroutine[Any, Any, None]]
"""Serves a call that the box started, until it returns."""


class Stream:
    """One byte stream of a call, in both directions. One reader and one writer at a time."""

    def __init__(self, call: Call, number: int) -> None:
        self._call = call
        self._number = number
        self._pieces: collections.deque[bytes] = collections.deque()
        self._window = frames.Window()
        self._ended = False
        """The box sends no more."""
        self._stopped = False
        """The box accepts no more."""
        self._finished = False
        """We send no more."""
        self._credit = frames.FIRST_CREDIT
        self._arrival: asyncio.Future[None] | None = None
        self._room: asyncio.Future[None] | None = None

    @property
    def outstanding(self) -> int:
        return 0 if self._ended else self._window.outstanding

    async def read(self, limit: int = 1 << 16) -> bytes:
        """Returns some bytes; none at the end. Raises `BoxUnreachable` if the stream was cut. Cancelling loses
        nothing."""
        while not self._pieces:
            if self._ended:
                return b""
            self._call.check_open()
            self._arrival = asyncio.get_running_loop().create_future()
            await self._arrival
        data = self._pieces.popleft()
        if len(data) > limit:
            self._pieces.appendleft(data[limit:])
            data = data[:limit]
        more = self._window.taken(len(data))
        if more and not self._ended:
            self._call.post(frames.frame(frames.CREDIT, self._number, more.to_bytes(4, "big")))
        return data

    async def write(self, data: bytes) -> None:
        """Write everything, as fast as the box accepts it. Raises `BrokenPipeError` if it accepts no more."""
        view = memoryview(data)
        while view:
            if self._stopped or self._finished:
                raise BrokenPipeError("the other end no longer reads")
            self._call.check_open()
            if self._credit <= 0:
                self._room = asyncio.get_running_loop().create_future()
                await self._room
                continue
            await self._call.room()
            size = min(len(view), self._credit, frames.LONGEST)
            if size > 0 and not self._stopped:
                self._credit -= size
                self._call.post(frames.frame(frames.DATA, self._number, bytes(view[:size])))
                view = view[size:]

    def finish(self) -> None:
        """Send no more."""
        if not self._finished:
            self._finished = True
            self._call.post(frames.frame(frames.END, self._number))

    # --- what the box sends ---

    def on_data(self, data: bytes) -> None:
        if not data or self._ended or not self._window.arrived(len(data)):
            raise _ProtocolError("bytes that it was not granted")
        self._pieces.append(data)
        _wake(self._arrival)

    def on_end(self) -> None:
        if self._ended:
            raise _ProtocolError("an end after the end")
        self._ended = True
        _wake(self._arrival)

    def on_stop(self) -> None:
        self._stopped = True
        _wake(self._room)

    def on_credit(self, payload: bytes) -> None:
        count = int.from_bytes(payload, "big")
        if len(payload) != 4 or not count or self._credit + count > _MAX_CREDIT:
            raise _ProtocolError("an invalid credit")
        self._credit += count
        _wake(self._room)

    def on_close(self) -> None:
        _wake(self._arrival)
        _wake(self._room)


class Call:
    """One request in progress. Closing it before its end ends what it started."""

    def __init__(self, wire: _Wire, number: int) -> None:
        self._wire = wire
        self.number = number
        self.streams = [Stream(self, number * frames.STREAMS + each) for each in range(frames.STREAMS)]
        self._messages: collections.deque[bytes] = collections.deque()
        self._parts = bytearray()
        self._waiting: asyncio.Future[None] | None = None
        self._over: BoxError | None = None
        """Why no more messages come."""
        self._closed = False
        self._answered = False

    async def answer(self, seconds: float | None = DEFAULT_SECONDS) -> dict[str, Any]:
        """Returns the next message. Raises `GuestRefused`, `ArchiveRefused`, or `BoxUnreachable` if none comes."""
        try:
            async with time_limit(seconds):
                while not self._messages:
                    self.check_open()
                    self._waiting = asyncio.get_running_loop().create_future()
                    await self._waiting
        except TimeoutError:
            raise BoxUnreachable(
                f"box {self._wire.box} did not answer in {seconds:.0f} s",
                hint=f"see what it is busy with: holdfast box diagnose {self._wire.box}",
            ) from None
        data, box = self._messages.popleft(), self._wire.box
        # Millions of values take seconds, which a box can cause. On a thread, they hold up nobody else.
        message = read_answer(data, box) if len(data) < _LONG else await asyncio.to_thread(read_answer, data, box)
        check_refused(message)
        if "unreachable" in message:
            raise BoxUnreachable(f"box {self._wire.box}: {str(message['unreachable'])[:200]}")
        return message

    @property
    def has_answer(self) -> bool:
        """Whether there is an unread message, even if the call is over."""
        return bool(self._messages)

    def check_open(self) -> None:
        if self._over is not None:
            raise type(self._over)(self._over.message, hint=self._over.hint)

    def post(self, data: bytes) -> None:
        if self._over is None and not self._closed:
            self._wire.post(data)

    async def room(self) -> None:
        await self._wire.room()

    def close(self) -> None:
        if self._closed:
            return
        if self._over is None:
            self.post(frames.frame(frames.CLOSE, self.number))
            late = _LATE if self._answered else codec.LIMIT + _LATE
            self._wire.forget(self, late=late + sum(stream.outstanding for stream in self.streams))
            self.end(BoxUnreachable(f"the call to box {self._wire.box} was closed"))
        self._closed = True

    def __enter__(self) -> Call:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- what the box sends ---

    def on_part(self, payload: bytes) -> int:
        """Store a piece of a message. Returns how many bytes are stored."""
        self._parts += payload
        if len(self._parts) > codec.LIMIT:
            raise _ProtocolError("a message without an end")
        return len(payload)

    def on_message(self, payload: bytes) -> int:
        """Store the last piece of a message. Returns how many bytes of it were stored before."""
        self._answered = True
        kept = len(self._parts)
        if len(self._messages) >= _MAX_UNREAD:
            raise _ProtocolError("more messages than were requested")
        self._messages.append(bytes(self._parts + payload))
        self._parts = bytearray()
        _wake(self._waiting)
        return kept

    @property
    def unfinished(self) -> int:
        return len(self._parts)

    def end(self, why: BoxError) -> None:
        """No more messages come."""
        if self._over is None:
            self._over = why
            _wake(self._waiting)
            for stream in self.streams:
                stream.on_close()


class _ProtocolError(Exception):
    """The bridge violated the protocol."""


class _Wire:
    """One transport and its calls, from its first byte until it is lost."""

    def __init__(
        self,
        box: str,
        transport: Transport,
        verdict: Verdict,
        opened: Callable[[], Opened | None],
        held: Callable[[], bool],
    ) -> None:
        self.box = box
        self._transport = transport
        self._opened = opened
        """Serves calls that the box starts."""
        self._held = held
        self._verdict = verdict
        self._calls: dict[int, Call] = {}
        self._last = 0
        self._late = 0
        self._stored = 0
        self._buffer = b""
        self._queue: list[bytes] = []
        self._queued = 0
        self._queue_ready = asyncio.Event()
        self._room_ready = asyncio.Event()
        self._room_ready.set()
        self._received_at = 0.0
        self._pinged = 0
        """Pings without an answer."""
        self._serving: set[asyncio.Task[None]] = set()
        self.lost: str | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._ending: asyncio.Task[None] | None = None

    @property
    def busy(self) -> bool:
        return bool(self._calls or self._serving)

    async def open(self) -> None:
        """Wait for the greeting, then serve."""
        async with time_limit(_GREET_SECONDS):
            while len(self._buffer) < len(frames.GREETING):
                if not frames.GREETING.startswith(self._buffer):
                    raise _ProtocolError("no greeting")
                data = await self._transport.read()
                if not data:
                    raise ConnectionResetError("it closed the connection without an answer")
                self._buffer += data
        if not self._buffer.startswith(frames.GREETING):
            raise _ProtocolError("no greeting")
        self._buffer = self._buffer[len(frames.GREETING) :]
        self._received_at = asyncio.get_running_loop().time()
        self._tasks = [
            asyncio.create_task(self._guarded(work)) for work in (self._read(), self._write(), self._keep_alive())
        ]

    async def close(self, why: str) -> None:
        self._lose(why)
        for task in self._tasks:
            task.cancel()
        everything = [*self._tasks, *([self._ending] if self._ending is not None else [])]
        await asyncio.gather(*everything, return_exceptions=True)
        await self._end()

    def _lose(self, why: str) -> None:
        """Fail all pending calls. The owner closes this object."""
        if self.lost is not None:
            return
        self.lost = why
        self._queue.clear()
        self._room_ready.set()
        for task in self._tasks:
            if task is not asyncio.current_task():
                task.cancel()
        self._ending = asyncio.create_task(self._end())

    async def _end(self) -> None:
        """Pending calls fail with what has become of the box, if its provider knows. The loss itself does not tell."""
        found: BoxError | None = None
        if self._calls:
            with contextlib.suppress(OSError, BoxError, TimeoutError):
                async with time_limit(_VERDICT_SECONDS):
                    found = await self._verdict()
        for call in list(self._calls.values()):
            call.end(found or BoxUnreachable(self.lost or f"the stream to box {self.box} was lost"))
        self._calls.clear()
        for task in list(self._serving):
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)
        with contextlib.suppress(OSError, BoxError, TimeoutError):
            async with time_limit(_CLOSE_SECONDS):
                await self._transport.close()

    async def _guarded(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except _ProtocolError as error:
            log.warning("box %s: closed the stream, because its bridge sent %s", self.box, error)
            self._lose(f"box {self.box} sends invalid data: {error}")
        except (OSError, BoxError) as error:
            self._lose(f"the stream to box {self.box} was lost ({error})")
        except Exception as error:  # a transport's own errors count as a loss
            log.warning("the stream to box %s failed: %r", self.box, error)
            self._lose(f"the stream to box {self.box} was lost ({error!r})")

    # --- to the box ---

    def call(self, message: dict[str, Any]) -> Call:
        data = codec.frame(message)[4:]
        for _ in range(frames.FIRST_OWN):
            self._last = (self._last + 1) % frames.FIRST_OWN
            if self._last not in self._calls:
                break
        call = Call(self, self._last)
        self._calls[call.number] = call
        self.post(frames.message_frames(call.number, data))
        return call

    def post(self, data: bytes) -> None:
        """Send without waiting. Callers with much data wait for room first."""
        if self.lost is not None:
            return
        self._queue.append(data)
        self._queued += len(data)
        if self._queued > _ROOM:
            self._room_ready.clear()
        self._queue_ready.set()

    async def room(self) -> None:
        await self._room_ready.wait()

    def forget(self, call: Call, *, late: int) -> None:
        if self._calls.pop(call.number, None) is not None:
            self._stored -= call.unfinished
            self._late = min(self._late + late, _MOST_LATE)

    async def _write(self) -> None:
        while True:
            await self._queue_ready.wait()
            self._queue_ready.clear()
            queue, self._queue = self._queue, []
            data = b"".join(queue)
            await self._transport.write(data)
            self._queued -= len(data)
            if self._queued <= _ROOM:
                self._room_ready.set()

    async def _keep_alive(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(frames.PING_SECONDS)
            self._pinged += 1
            self.post(frames.frame(frames.PING, 0))
            if self._held():
                self._received_at = loop.time()
            if loop.time() - self._received_at > frames.SILENCE_SECONDS:
                raise ConnectionAbortedError(f"it was silent for {frames.SILENCE_SECONDS:.0f} s")

    # --- from the box ---

    async def _read(self) -> None:
        loop = asyncio.get_running_loop()
        head, size = frames.HEAD, frames.HEAD.size
        while True:
            data = self._buffer
            start = 0
            while len(data) - start >= size:
                kind, number, length = head.unpack_from(data, start)
                if length > frames.LONGEST:
                    raise _ProtocolError(f"a frame of {length} bytes")
                if len(data) - start - size < length:
                    break
                self._on_frame(kind, number, data[start + size : start + size + length])
                start += size + length
            self._buffer = data[start:]
            data = await self._transport.read()
            if not data:
                raise ConnectionResetError("it closed the connection")
            self._received_at = loop.time()
            self._buffer = self._buffer + data if self._buffer else data

    def _on_frame(self, kind: int, number: int, payload: bytes) -> None:
        if kind == frames.PONG:
            if not self._pinged:
                raise _ProtocolError("an answer without a request")
            self._pinged -= 1
            return
        if kind == frames.OPEN:
            self._on_open(number)
            return
        on_stream = kind in (frames.DATA, frames.END, frames.STOP, frames.CREDIT)
        call = self._calls.get(number // frames.STREAMS if on_stream else number)
        if call is None:
            self._late -= len(payload) + frames.HEAD.size
            if self._late < 0:
                raise _ProtocolError("what belongs to nothing")
        elif on_stream:
            stream = call.streams[number % frames.STREAMS]
            if kind == frames.DATA:
                stream.on_data(payload)
            elif kind == frames.END:
                stream.on_end()
            elif kind == frames.STOP:
                stream.on_stop()
            else:
                stream.on_credit(payload)
        elif kind == frames.PART:
            self._stored += call.on_part(payload)
            if self._stored > _MAX_PARTS:
                raise _ProtocolError("messages without an end")
        elif kind == frames.MESSAGE:
            self._stored -= call.on_message(payload)
        elif kind == frames.CLOSE:
            self.forget(call, late=0)
            call.end(BoxUnreachable(f"box {self.box} closed the call"))
        else:
            raise _ProtocolError(f"a frame of kind {kind}")

    def _on_open(self, number: int) -> None:
        opened = self._opened()
        if opened is None or not frames.FIRST_OWN <= number <= frames.LAST or number in self._calls:
            raise _ProtocolError("a call that is not served")
        if len(self._serving) >= _MAX_OPENED:
            self.post(frames.frame(frames.CLOSE, number))
            self._late = min(self._late + frames.FIRST_CREDIT + 1024, _MOST_LATE)
            if self._queued > _FLOOD:
                raise _ProtocolError("more calls than can be refused")
            return
        call = Call(self, number)
        self._calls[number] = call
        task = asyncio.create_task(self._serve(call, opened))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    async def _serve(self, call: Call, opened: Opened) -> None:
        with call:
            try:
                await opened(call)
            except (OSError, BoxError) as error:
                log.debug("a connection of box %s ended: %s", self.box, error)


class GuestRequests(ABC):
    """Sends requests to a box."""

    box: str

    @abstractmethod
    async def call(self, message: dict[str, Any]) -> Call:
        """Start a request. The caller closes it."""

    async def ask(self, message: dict[str, Any], *, seconds: float | None = DEFAULT_SECONDS) -> dict[str, Any]:
        with await self.call(message) as call:
            return await call.answer(seconds)

    async def ask_path(self, message: dict[str, Any], path: str, *, seconds: float | None = None) -> dict[str, Any]:
        """Send a request about a path. A refusal raises the matching file error."""
        try:
            return await self.ask(message, seconds=seconds)
        except ArchiveRefused:
            raise
        except GuestRefused as refused:
            raise file_problem(refused.number, refused.about or path) from None


class StreamGuestClient(GuestRequests):
    """Sends requests to the guest of one box. Dials when needed, and again after a stream was lost.

    A provider owns it, and all handles on the box share it. Calls pending on a lost stream fail with the error that the
    provider's `verdict` returns, or with `BoxUnreachable` if the box lives or its state is unknown.
    """

    def __init__(self, box: str, dial: Dial, verdict: Verdict | None = None) -> None:
        self.box = box
        self._dial = dial
        self._verdict = verdict or _no_verdict
        self._wire: _Wire | None = None
        self._attempt: asyncio.Task[_Wire] | None = None
        self._paused = False
        self._stopping = False
        self._opened: Opened | None = None
        self._listening: asyncio.Task[None] | None = None

    @property
    def alive(self) -> bool:
        """Whether there is a stream now. A box may run without one."""
        return self._wire is not None and self._wire.lost is None

    def set_paused(self, paused: bool) -> None:
        """While the box is paused, requests fail at once, and its silence does not count as a loss."""
        self._paused = paused

    @contextlib.asynccontextmanager
    async def stopping(self, grace_ms: int, *, dial: bool = True) -> AsyncIterator[None]:
        """End what runs in the box. Until the block ends, in which the caller stops the box, every request fails.

        The guest would accept requests until its provider has ended it, and what they began would be lost. If the box
        could not be stopped, it can be used again after the block. Without `dial`, an open stream is needed to end
        what runs.
        """
        self._stopping = True
        try:
            if dial or self.alive:
                with contextlib.suppress(BoxError, GuestRefused):
                    wire = await self._connected()
                    with wire.call({"op": "shut_down", "grace": grace_ms}) as call:
                        await call.answer(grace_ms / 1000 + _SHUT_DOWN_SECONDS)
            yield
        finally:
            self._stopping = False

    def _check_usable(self) -> None:
        if self._paused:
            raise BoxStopped(f"box {self.box} is paused", hint=f"resume it: holdfast box start {self.box}")
        self._check_not_stopping()

    def _check_not_stopping(self) -> None:
        if self._stopping:
            raise BoxStopped(f"box {self.box} is being stopped", hint=f"start it then: holdfast box start {self.box}")

    async def open(self) -> None:
        """Dial, unless there is a stream. Raises the error of dialling, or `BoxUnreachable`."""
        self._check_not_stopping()
        await self._connected()

    async def close(self) -> None:
        """Close the stream. Commands that use it end; spawned processes continue. It can be opened again."""
        await self.stop_serving()
        if self._attempt is not None:
            self._attempt.cancel()
            await asyncio.gather(self._attempt, return_exceptions=True)
            self._attempt = None
        await self._drop("the client was closed")

    @property
    def busy(self) -> bool:
        """Whether a call is open now, on either side."""
        return self._wire is not None and self._wire.busy

    async def hang_up(self) -> None:
        """Close the stream, unless it is busy. Whoever calls from now on dials again."""
        if self._wire is not None and not self._wire.busy:
            await self._drop("nothing happened on it")

    async def _drop(self, why: str) -> None:
        if self._wire is not None:
            wire, self._wire = self._wire, None
            await to_the_end(wire.close(f"the stream to box {self.box} is gone: {why}"))

    async def _connected(self) -> _Wire:
        if self._wire is not None and self._wire.lost is None:
            return self._wire
        if self._attempt is None or self._attempt.done():
            self._attempt = asyncio.create_task(self._connect())
            self._attempt.add_done_callback(_retrieve_failure)
        attempt = self._attempt
        try:
            return await asyncio.shield(attempt)  # other callers may wait for the same attempt
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if attempt.cancelled() and (task is None or not task.cancelling()):
                raise BoxUnreachable(f"the stream to box {self.box} was closed") from None
            raise

    async def _connect(self) -> _Wire:
        await self._drop("it was lost")
        try:
            async with time_limit(_DIAL_SECONDS):
                transport = await self._dial()
        except TimeoutError:
            raise BoxUnreachable(f"box {self.box} could not be reached within {_DIAL_SECONDS:.0f} s") from None
        wire = _Wire(self.box, transport, self._verdict, lambda: self._opened, lambda: self._paused)
        try:
            await wire.open()
        except BaseException as error:
            await to_the_end(wire.close("it did not come up"))
            if isinstance(error, TimeoutError):
                raise BoxUnreachable(f"box {self.box} did not answer within {_GREET_SECONDS:.0f} s") from None
            if isinstance(error, (OSError, _ProtocolError)):
                raise (
                    await self._what_became() or BoxUnreachable(f"box {self.box} cannot be talked to: {error}")
                ) from None
            raise
        self._wire = wire
        return wire

    async def _what_became(self) -> BoxError | None:
        with contextlib.suppress(OSError, BoxError, TimeoutError):
            async with time_limit(_VERDICT_SECONDS):
                return await self._verdict()
        return None

    async def call(self, message: dict[str, Any]) -> Call:
        self._check_usable()
        wire = await self._connected()
        await wire.room()
        self._check_usable()  # it may have changed since
        if wire.lost is not None:
            raise BoxUnreachable(wire.lost)
        return wire.call(message)

    # --- the egress ---

    async def serve(self, port: int, opened: Opened) -> int:
        """Serve every connection that the box makes to its own `port`. Returns the port.

        Continues over later streams: a lost one is dialled again until the box does not run. Ends when another host
        serves the box. Raises `BoxConflict` if that is so from the start.
        """
        await self.stop_serving()
        self._opened = opened
        ready: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._listening = asyncio.create_task(self._keep_listening(port, ready))
        try:
            return await asyncio.shield(ready)
        except BaseException:
            await self.stop_serving()
            raise

    @property
    def serving(self) -> bool:
        """Whether connections of the box are served, now or as soon as it can be reached."""
        return self._listening is not None and not self._listening.done()

    async def stop_serving(self) -> None:
        if self._listening is not None:
            self._listening.cancel()
            await asyncio.gather(self._listening, return_exceptions=True)
            self._listening = None

    async def _keep_listening(self, port: int, ready: asyncio.Future[int]) -> None:
        pause = _REDIAL_FIRST
        while True:
            try:
                with await self.call({"op": "listen", "port": port, "looks": True}) as call:
                    answer = await call.answer()
                    if "replaced" not in answer:
                        if not ready.done():
                            listening = answer.get("port")
                            ready.set_result(listening if isinstance(listening, int) else port)
                        pause = _REDIAL_FIRST
                        answer = await call.answer(None)  # none comes until the stream or the egress is lost
                if "replaced" in answer:
                    await self._drop("another server serves it")  # the bridge ends
                    raise BoxConflict(
                        f"another server serves box {self.box}", hint="use one server for the boxes of a home"
                    )
            except (BoxStopped, BoxGone, BoxConflict) as error:
                log.info("the egress of box %s is no longer served: %s", self.box, error)
                if not ready.done():
                    ready.set_exception(error)
                return
            except (BoxError, GuestRefused, OSError) as error:
                if not ready.done():
                    ready.set_exception(error)
                    return
                log.info("the egress of box %s is dialled again: %s", self.box, error)
            except asyncio.CancelledError:
                if not ready.done():
                    ready.cancel()
                raise
            await asyncio.sleep(pause)
            pause = min(2 * pause, _REDIAL_MOST)


class WakingGuestClient(GuestRequests):
    """The client of one handle. Wakes a sleeping box for a request, if the caller can do that."""

    def __init__(self, guest: StreamGuestClient, wake: Wake | None) -> None:
        self.box = guest.box
        self._guest = guest
        self._wake = wake

    async def call(self, message: dict[str, Any]) -> Call:
        try:
            return await self._guest.call(message)
        except BoxStopped:
            if self._wake is None or not await self._wake():
                raise
        return await self._guest.call(message)


async def _no_verdict() -> BoxError | None:
    return None


def _retrieve_failure(attempt: asyncio.Task[_Wire]) -> None:
    """Retrieve the failure of an attempt, in case no caller waits for it any more."""
    if not attempt.cancelled():
        attempt.exception()


def _wake(future: asyncio.Future[None] | None) -> None:
    if future is not None and not future.done():
        future.set_result(None)
