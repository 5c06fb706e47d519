"""WebSockets of a box: exec, channels, terminals and ports.

Frames are binary, and their first byte tells what they contain; text frames are JSON. Binary frames of a terminal have
no such byte: they are the terminal's bytes.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any, Final, TypeVar

from fastapi import APIRouter, WebSocket
from pydantic import TypeAdapter, ValidationError

from holdfast.api.box.box import Box
from holdfast.api.box.process import Command, Connection, ExecuteFrames, Process
from holdfast.api.errors import InvalidRequest
from holdfast.api.errors.boxes import BoxError, InvalidSpec
from holdfast.server.routes.box.views import decode
from holdfast.server.routes.services import Services
from holdfast.server.wire.websockets import Left, problems_of, receive, serve
from holdfast.time_limit import time_limit

T = TypeVar("T")

_COMMAND: Final = TypeAdapter(Command)
_EXECUTE: Final = TypeAdapter(ExecuteFrames)

STDIN: Final = 0
STDOUT: Final = 1
STDERR: Final = 2
END: Final = 4
MAX_FRAME: Final = 256 * 1024
_WAITING_FRAMES: Final = 4
"""Most frames of stdin to queue for a command. If there are more, we stop reading, and the client waits."""
_FIRST_FRAME_SECONDS: Final = 30.0

router = APIRouter(prefix="/v1/boxes")


Work = Callable[[Box], Awaitable[None]]


async def _serve(socket: WebSocket, name: str, work: Work) -> None:
    """Check the credential and open the box by id or key. `work` accepts the socket."""

    async def with_box(services: Services) -> None:
        async with contextlib.AsyncExitStack() as stack:
            boxes = await services.boxes.get()
            id = await boxes.resolve(name)
            stack.enter_context(boxes.working(id))
            box = await boxes.open(id)
            stack.push_async_callback(box.close)
            await work(box)

    await serve(socket, with_box)


# --- frames ---


async def _first_frame(socket: WebSocket, kind: TypeAdapter[T]) -> T:
    try:
        async with time_limit(_FIRST_FRAME_SECONDS):
            frame = await receive(socket)
    except TimeoutError:
        raise InvalidRequest("the first frame, which has the command, did not arrive in time") from None
    if not isinstance(frame, str):
        raise InvalidRequest("the first frame must be text: JSON with the command")
    try:
        return kind.validate_json(frame)
    except ValidationError as error:
        raise InvalidSpec(f"the first frame is invalid: {problems_of(error)}") from None


async def _tagged(socket: WebSocket) -> tuple[int, bytes]:
    frame = await receive(socket)
    if isinstance(frame, str) or not frame or frame[0] not in (STDIN, END):
        raise InvalidRequest("frames must be binary, and start with 0 (stdin) or 4 (its end)")
    return frame[0], frame[1:]


async def _send(socket: WebSocket, tag: int, data: bytes) -> None:
    """Send. Waits for a slow client."""
    head = bytes((tag,))
    for start in range(0, len(data), MAX_FRAME):
        await socket.send_bytes(head + data[start : start + MAX_FRAME])


async def _both(socket: WebSocket, down: Coroutine[Any, Any, None], up: Coroutine[Any, Any, None]) -> None:
    """Run both until `down` has ended. If `up` fails, for example because the client leaves, both end.

    The end of the connection also ends both: `up` may be waiting for a command that reads nothing, and not notice.
    """
    downward, upward = asyncio.create_task(down), asyncio.create_task(up)
    lost = asyncio.create_task(socket.scope["state"]["lost"].wait())
    try:
        await asyncio.wait((downward, upward, lost), return_when=asyncio.FIRST_COMPLETED)
        if not downward.done() and upward.done():
            upward.result()
        await asyncio.wait((downward, lost), return_when=asyncio.FIRST_COMPLETED)
        if not downward.done():
            raise Left
        await downward
    finally:
        for task in (downward, upward, lost):
            task.cancel()
        await asyncio.gather(downward, upward, lost, return_exceptions=True)


# --- exec and channels ---


@router.websocket("/{id}/exec")
async def exec_socket(socket: WebSocket, id: str) -> None:
    """Run a command, and send its output as it comes. The command is killed when the socket closes."""

    async def work(box: Box) -> None:
        await socket.accept()
        command = await _first_frame(socket, _EXECUTE)
        if command.stdin is not None:
            await _both(socket, _execute(socket, box, command, decode(command.stdin)), _ignore(socket))
            return
        pieces: asyncio.Queue[bytes] = asyncio.Queue(_WAITING_FRAMES)
        await _both(socket, _execute(socket, box, command, _fed(pieces)), _take_stdin(socket, pieces))

    await _serve(socket, id, work)


async def _execute(socket: WebSocket, box: Box, command: ExecuteFrames, stdin: bytes | AsyncIterator[bytes]) -> None:
    done = await box.exec(
        command.argv,
        env=command.env,
        cwd=command.cwd,
        timeout=command.timeout,
        stdin=stdin,
        on_stdout=lambda data: _send(socket, STDOUT, data),
        on_stderr=lambda data: _send(socket, STDERR, data),
    )
    await socket.send_text(json.dumps({"exit": done.exit_code}))


async def _take_stdin(socket: WebSocket, pieces: asyncio.Queue[bytes]) -> None:
    """Yield stdin for a command, as fast as it reads; after its end, wait for the client to leave."""
    while True:
        tag, data = await _tagged(socket)
        if tag == END:
            await pieces.put(b"")
            await _ignore(socket)
        if data:
            await pieces.put(data)


async def _fed(pieces: asyncio.Queue[bytes]) -> AsyncIterator[bytes]:
    while piece := await pieces.get():
        yield piece


async def _ignore(socket: WebSocket) -> None:
    while True:
        await receive(socket)


@router.websocket("/{id}/channel")
async def channel_socket(socket: WebSocket, id: str) -> None:
    """Connect to a command's stdin and stdout. It is killed when the socket closes."""

    async def work(box: Box) -> None:
        await socket.accept()
        command = await _first_frame(socket, _COMMAND)
        async with await box.channel(command.argv, env=command.env, cwd=command.cwd) as channel:
            await socket.send_text('{"started": true}')

            async def down() -> None:
                while data := await channel.read():
                    await _send(socket, STDOUT, data)
                code = await channel.wait()
                await _send(socket, STDERR, channel.stderr)
                await socket.send_text(json.dumps({"exit": code}))

            await _both(socket, down(), _write_frames(socket, channel))

    await _serve(socket, id, work)


async def _write_frames(socket: WebSocket, connection: Connection, ended: asyncio.Event | None = None) -> None:
    """Forward what the client sends, until it leaves. `ended` is set once it has sent everything."""
    broken = False
    while True:
        tag, data = await _tagged(socket)
        if tag == END and ended is not None:
            ended.set()
        if broken:
            continue
        try:
            if tag == END:
                await connection.close_write()
            elif data:
                await connection.write(data)
        except (BoxError, OSError):
            broken = True  # it reads no more, but may still write


# --- terminals and ports ---


@router.websocket("/{id}/processes/{process}/attach")
async def attach_socket(socket: WebSocket, id: str, process: str) -> None:
    """Connect to a process's terminal, from an offset on. The process keeps running when the socket closes."""

    async def work(box: Box) -> None:
        offset = _number(socket, "offset", 0, 1 << 62)
        found = await box.process(process)
        await socket.accept()

        async def down() -> None:
            async for chunk in found.output("stdout", offset):
                for start in range(0, len(chunk.data), MAX_FRAME):
                    await socket.send_bytes(chunk.data[start : start + MAX_FRAME])
            await socket.send_text(json.dumps({"exit": await found.wait()}))

        await _both(socket, down(), _type(socket, found))

    await _serve(socket, id, work)


async def _type(socket: WebSocket, process: Process) -> None:
    while True:
        frame = await receive(socket)
        try:
            if isinstance(frame, str):
                size = _terminal_size(frame)
                await process.resize(*size)
            elif frame:
                await process.write(frame)
        except (BoxError, OSError):
            # It has ended, or reads nothing: still show its output.
            continue


def _terminal_size(frame: str) -> tuple[int, int]:
    try:
        rows, columns = json.loads(frame)["resize"]
    except (ValueError, TypeError, LookupError, RecursionError):
        rows = columns = None
    for number in (rows, columns):
        if not isinstance(number, int) or isinstance(number, bool) or not 1 <= number <= 10_000:
            raise InvalidRequest('a text frame must have the form {"resize": [24, 80]}')
    return rows, columns


@router.websocket("/{id}/connect/{port}")
async def connect_socket(socket: WebSocket, id: str, port: str) -> None:
    """Connect to a port in the box, byte for byte."""

    async def work(box: Box) -> None:
        if not port.isascii() or not port.isdigit() or not 1 <= int(port[:6]) <= 65535:
            raise InvalidRequest(f"port {port!r} is not a number from 1 to 65535")
        async with await box.connect(int(port)) as connection:
            await socket.accept()

            ended = asyncio.Event()

            async def down() -> None:
                while data := await connection.read():
                    await _send(socket, STDOUT, data)
                await socket.send_bytes(bytes((END,)))
                await ended.wait()  # the client may still be sending

            await _both(socket, down(), _write_frames(socket, connection, ended))

    await _serve(socket, id, work)


def _number(socket: WebSocket, name: str, default: int, most: int) -> int:
    text = socket.query_params.get(name, str(default))
    if not text.isascii() or not text.isdigit() or len(text) > 20 or int(text) > most:
        raise InvalidRequest(f"{name} {text!r} is not a number from 0 to {most}")
    return int(text)
