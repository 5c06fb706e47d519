"""What comes out of a box is anybody's: a bridge that breaks the rules is hung up on, and costs nobody else."""

from __future__ import annotations

import asyncio
import os
import random
import resource
import socket
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from holdfast.api.errors.boxes import BoxError, BoxUnreachable, CreateFailed, ProcessNotFound
from holdfast.guest.init import codec, frames
from holdfast.guest.init.frames import frame, message_frames
from holdfast.providers.stream import PipeTransport, StreamFiles, StreamGuestClient, StreamProcesses, Transport
from holdfast.providers.stream.home_guest import read_place

pytestmark = pytest.mark.anyio
PATIENCE = 240.0
ENV: dict[str, str] = {}


class FakeBridge:
    """The far end of a stream, which says whatever a test wants. Each dial finds it anew."""

    def __init__(self) -> None:
        self.dials = 0
        self.greeting = frames.GREETING
        self.hangs_up = False
        self.answering: Callable[[int, Any], bytes] = lambda number, request: b""
        """What to send for a request."""
        self.ends: list[socket.socket] = []
        self._tasks: list[asyncio.Task[None]] = []

    async def dial(self) -> Transport:
        self.dials += 1
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        theirs.setblocking(False)
        self.ends.append(ours)
        if self.hangs_up:
            ours.shutdown(socket.SHUT_RDWR)
        self._tasks.append(asyncio.create_task(self._serve(ours)))
        descriptor = theirs.detach()
        return PipeTransport(descriptor, os.dup(descriptor))

    async def _serve(self, end: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        received = b""
        try:
            await loop.sock_sendall(end, self.greeting)
            while data := await loop.sock_recv(end, 1 << 16):
                received += data
                while len(received) >= frames.HEAD.size:
                    kind, number, length = frames.HEAD.unpack_from(received)
                    if len(received) < frames.HEAD.size + length:
                        break
                    payload = received[frames.HEAD.size : frames.HEAD.size + length]
                    received = received[frames.HEAD.size + length :]
                    if kind == frames.MESSAGE:
                        await loop.sock_sendall(end, self.answering(number, codec.decode(payload)))
        except OSError:
            pass

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for end in self.ends:
            end.close()


@pytest.fixture
async def bridge() -> AsyncIterator[FakeBridge]:
    bridge = FakeBridge()
    yield bridge
    await bridge.close()


@pytest.fixture
async def guest(bridge: FakeBridge) -> AsyncIterator[StreamGuestClient]:
    guest = StreamGuestClient("box", bridge.dial)
    yield guest
    await guest.close()


def says(answer: Any) -> Callable[[int, Any], bytes]:
    return lambda number, request: message_frames(number, codec.encode(answer))


def first(number: int) -> int:
    """The first stream of a call."""
    return number * frames.STREAMS


async def fails(work: Any) -> BoxError:
    with pytest.raises(BoxUnreachable) as caught:
        async with asyncio.timeout(PATIENCE):
            await work
    return caught.value


@pytest.mark.parametrize(
    "greeting",
    [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\0" * 1000, frames.GREETING[:5] + b"x" * 20, b"holdfast bridge 2\n"],
)
async def test_what_does_not_greet_is_no_bridge(bridge: FakeBridge, guest: StreamGuestClient, greeting: bytes) -> None:
    bridge.greeting = greeting
    await fails(guest.open())
    assert not guest.alive


NONSENSE: dict[str, Callable[[int], bytes]] = {
    "garbage": lambda number: random.Random(1).randbytes(5000),
    "a huge length": lambda number: frames.HEAD.pack(frames.DATA, first(number), 0xFFFFFFFF) + b"x" * 100,
    "a length just too large": lambda number: frames.HEAD.pack(frames.DATA, first(number), frames.LONGEST + 1),
    "an unknown kind": lambda number: frame(200, number),
    "a kind of nothing": lambda number: frame(0, number),
    "more than was granted": lambda number: 2 * frame(frames.DATA, first(number), bytes(frames.FIRST_CREDIT)),
    "bytes without bytes": lambda number: frame(frames.DATA, first(number)),
    "bytes after the end": lambda number: frame(frames.END, first(number)) + frame(frames.DATA, first(number), b"x"),
    "two ends": lambda number: 2 * frame(frames.END, first(number)),
    "a credit of nothing": lambda number: frame(frames.CREDIT, first(number), bytes(4)),
    "a credit beyond all reason": lambda number: frame(frames.CREDIT, first(number), b"\xff" * 4),
    "a credit that is no number": lambda number: frame(frames.CREDIT, first(number), b"1"),
    "messages that nobody reads": lambda number: 20 * frame(frames.MESSAGE, number, codec.encode({})),
    "an answer to no ping": lambda number: frame(frames.PONG, 0),
    "a ping of its own": lambda number: frame(frames.PING, 0),
    "a call that nobody takes": lambda number: frame(frames.OPEN, frames.FIRST_OWN + 1),
    "what belongs to nothing": lambda number: frame(frames.DATA, 4_000_000, b"x"),
    "a close of nothing": lambda number: frame(frames.CLOSE, 12345),
    "a message for nothing": lambda number: frame(frames.MESSAGE, 777, b"x" * 1000),
}


@pytest.mark.parametrize("name", NONSENSE)
async def test_a_bridge_that_breaks_the_rules_is_hung_up_on(
    bridge: FakeBridge, guest: StreamGuestClient, name: str
) -> None:
    bridge.answering = lambda number, request: NONSENSE[name](number)
    call = await guest.call({"op": "exec"})
    with call:
        error = await fails(_until_it_fails(call))
    assert "invalid data" in error.message
    assert not guest.alive
    bridge.answering = says({"fine": 1})
    assert (await guest.ask({"op": "ping"}))["fine"] == 1
    assert bridge.dials == 2


async def _until_it_fails(call: Any) -> None:
    while True:
        await call.answer()


async def test_a_message_without_an_end_is_cut_off(bridge: FakeBridge, guest: StreamGuestClient) -> None:
    part = frame(frames.PART, 1, bytes(frames.LONGEST))
    bridge.answering = lambda number, request: part * (codec.LIMIT // frames.LONGEST + 2)
    await fails(guest.ask({"op": "ping"}))
    assert not guest.alive


async def test_answers_that_are_none_fail_alone(bridge: FakeBridge, guest: StreamGuestClient) -> None:
    for wrong in (b"", b"garbage", b"9999999:x", codec.encode([1, 2]), b"1:" * 5000):
        bridge.answering = lambda number, request, wrong=wrong: frame(frames.MESSAGE, number, wrong)  # type: ignore[misc]
        await fails(guest.ask({"op": "ping"}))
        assert guest.alive
    assert bridge.dials == 1


@pytest.mark.parametrize(
    "answer",
    [{}, {"code": "7"}, {"code": True}, {"code": None}, {"code": [1]}, {"unreachable": 1}, {"code": 1.5 and b"7"}],
)
async def test_an_exit_code_that_is_none_is_not_believed(
    bridge: FakeBridge, guest: StreamGuestClient, answer: Any
) -> None:
    def ends(number: int, request: Any) -> bytes:
        ends = b"".join(frame(frames.END, first(number) + stream) for stream in (1, 2))
        return ends + message_frames(number, codec.encode(answer)) + frame(frames.CLOSE, number)

    bridge.answering = ends
    await fails(StreamProcesses(guest).exec(["true"], ENV, "/"))


_PROCESS = {"id": "p-00000", "argv": ["x"], "pty": False, "stdin": False, "startedAt": 1, "code": 3, "endedAt": 2}


@pytest.mark.parametrize(
    "change",
    [
        {"id": "../../etc"},
        {"id": 7},
        {"argv": []},
        {"argv": [1]},
        {"argv": None},
        {"startedAt": -1},
        {"startedAt": 1 << 60},
        {"startedAt": "now"},
        {"code": 1 << 40},
        {"code": "3"},
        {"endedAt": b"x"},
    ],
)
async def test_a_process_that_makes_no_sense_is_not_believed(
    bridge: FakeBridge, guest: StreamGuestClient, change: dict[str, Any]
) -> None:
    bridge.answering = says({"processes": [{**_PROCESS, **change}]})
    await fails(StreamProcesses(guest).all())


async def test_another_process_than_the_one_asked_for_is_not_taken(
    bridge: FakeBridge, guest: StreamGuestClient
) -> None:
    bridge.answering = says({"processes": [_PROCESS]})
    with pytest.raises(ProcessNotFound):
        await StreamProcesses(guest).get("p-11111")


async def test_more_of_a_file_than_was_asked_for_is_refused(bridge: FakeBridge, guest: StreamGuestClient) -> None:
    def too_much(number: int, request: Any) -> bytes:
        info = ["/f", "file", 3, 0o644, 0, None]
        data = frame(frames.DATA, first(number), b"12345") + frame(frames.END, first(number))
        return message_frames(number, codec.encode({"file": info})) + data + message_frames(number, codec.encode({}))

    bridge.answering = too_much
    await fails(StreamFiles(guest, "/").read("f", length=3))


async def test_streams_that_nobody_reads_keep_little_and_hold_nobody_up(
    bridge: FakeBridge, guest: StreamGuestClient
) -> None:
    """Each may send what it was granted first, which is little, and the link goes on beside them."""

    def fills(number: int, request: Any) -> bytes:
        if request["op"] == "ping":
            return message_frames(number, codec.encode({"fine": 1}))
        return b"".join(frame(frames.DATA, first(number) + each, bytes(frames.FIRST_CREDIT)) for each in range(4))

    bridge.answering = fills
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    calls = [await guest.call({"op": "exec"}) for _ in range(100)]
    for _ in range(50):
        assert (await guest.ask({"op": "ping"}))["fine"] == 1
    assert guest.alive
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 * 4 * 2 * frames.FIRST_CREDIT // 1024
    for call in calls:
        call.close()
    assert (await guest.ask({"op": "ping"}))["fine"] == 1


async def test_what_is_late_for_a_closed_call_is_dropped_and_a_flood_of_it_is_not(
    bridge: FakeBridge, guest: StreamGuestClient
) -> None:
    bridge.answering = lambda number, request: b""
    call = await guest.call({"op": "exec"})
    number = call.number
    call.close()
    bridge.answering = lambda other, request: (
        frame(frames.DATA, first(number), b"late") + message_frames(other, codec.encode({}))
    )
    await guest.ask({"op": "ping"})
    assert guest.alive
    flood = frame(frames.DATA, first(number), bytes(frames.LONGEST)) * 400
    bridge.answering = lambda other, request: flood
    await fails(guest.ask({"op": "ping"}))
    assert bridge.dials == 1


async def test_a_bridge_that_hangs_up_at_once_every_time_is_an_error_every_time(
    bridge: FakeBridge, guest: StreamGuestClient
) -> None:
    bridge.hangs_up = True
    for _ in range(3):
        await fails(guest.open())
    assert bridge.dials == 3
    bridge.hangs_up = False
    await guest.open()


async def test_whoever_waits_with_more_than_the_box_takes_waits_without_a_bound_on_others(
    bridge: FakeBridge, guest: StreamGuestClient
) -> None:
    """A bridge that grants nothing: the writer waits, keeps no more than was granted, and can be cancelled."""
    bridge.answering = lambda number, request: (
        message_frames(number, codec.encode({"fine": 1})) if request["op"] == "ping" else b""
    )
    with await guest.call({"op": "write"}) as call:
        writing = asyncio.create_task(call.streams[0].write(bytes(1 << 22)))
        for _ in range(20):
            assert (await guest.ask({"op": "ping"}))["fine"] == 1
        assert not writing.done()
        writing.cancel()
        await asyncio.gather(writing, return_exceptions=True)


@pytest.mark.parametrize(
    "told",
    [
        "",
        "[" * 100_000,
        "[]",
        "{}",
        '{"version": "new"}',
        '{"version": [3, 12], "environment": [], "guest": "/g", "python": "/p", "runs": true}',
        '{"version": [3, 12], "environment": {}, "guest": "/g", "python": "/p", "runs": true}',
        '{"version": [2, 7], "environment": {"HOME": "/"}, "guest": "/g", "python": "/p", "runs": true}',
    ],
)
def test_a_report_of_a_machine_that_makes_no_sense_is_no_guest(told: str) -> None:
    with pytest.raises(CreateFailed):
        read_place(0, told, "")


async def test_a_message_of_millions_of_values_holds_up_nobody_else(
    bridge: FakeBridge, guest: StreamGuestClient
) -> None:
    values = b"0:n" * 2_000_000
    text = b"%d:%sl" % (len(values), values)
    inner = b"6:values,".replace(b",", b"s") + text
    data = b"%d:%sd" % (len(inner), inner)
    bridge.answering = lambda number, request: message_frames(number, data)
    turns = 0
    with await guest.call({"op": "ping"}) as call:
        async with asyncio.timeout(6 * PATIENCE):
            while not call.has_answer:  # noqa: ASYNC110  # nothing tells of it, and reading it would begin
                await asyncio.sleep(0)
            answering = asyncio.create_task(call.answer())
            while not answering.done():
                turns += 1
                await asyncio.sleep(0)
            answer = await answering
    assert len(answer["values"]) == 2_000_000
    assert turns > 10
