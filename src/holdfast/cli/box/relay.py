"""Runs a command in a box with our standard streams, over one WebSocket and without an event loop.

One `poll` waits for standard input and the socket. A slow reader of our output slows the command down, as it would on
this machine.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final, NoReturn

from holdfast.api.errors.boxes import BoxNotFound
from holdfast.cli.names import LIKE_AN_ID, find_by_other_name
from holdfast.cli.session import ask_blocking
from holdfast.client.resource import END, STDERR, STDIN, STDOUT, exit_of, read_frame

if TYPE_CHECKING:
    from holdfast.cli.options import Where
    from holdfast.client.client import Client
    from holdfast.client.transport.blocking import BlockingSocket

_PIECE: Final = 1 << 16


class _Terminated(BaseException):
    """We received SIGTERM or SIGHUP."""


def relay(where: Where, box: str, request: dict[str, Any], stdin: int | None) -> int:
    """Run a command and return its exit code. It is killed if we end before it does.

    `stdin` is the descriptor that the command reads from, or None for no input.
    """

    async def work(client: Client) -> int:
        socket = await _open(client, box)
        try:
            return _exchange(socket, request, stdin)
        finally:
            socket.close()

    try:
        with _ended_by_signals():
            return ask_blocking(where, work)
    except _Terminated:
        return 128 + signal.SIGTERM


async def _open(client: Client, box: str) -> BlockingSocket:
    """Open the socket of a box. The server knows ids and keys; we resolve parts of ids."""
    if LIKE_AN_ID.fullmatch(box):
        with contextlib.suppress(BoxNotFound):
            return await client.box_resource(box).open_blocking_socket("/exec")
    return await client.box_resource((await find_by_other_name(client, box)).id).open_blocking_socket("/exec")


def _exchange(socket: BlockingSocket, request: dict[str, Any], stdin: int | None) -> int:
    socket.send(json.dumps(request if stdin is not None else {**request, "stdin": ""}))
    while True:
        while (message := socket.receive()) is not None:
            received = read_frame(message, socket.asked)
            if isinstance(received, dict):
                return exit_of(received)
            _print(received)
        # Read no more input while some is unsent: the command reads more slowly than our input is written.
        if stdin is None or not socket.is_sent:
            socket.wait()
        elif socket.wait(stdin):
            data = _read(stdin)
            socket.send(bytes((STDIN,)) + data if data else bytes((END,)))
            stdin = stdin if data else None


def _print(frame: bytes) -> None:
    if frame[:1] in (bytes((STDOUT,)), bytes((STDERR,))):
        left = memoryview(frame)[1:]
        while left:
            left = left[os.write(frame[0], left) :]


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, _PIECE)
    except OSError:  # a closed terminal, or a folder: there is nothing to read
        return b""


@contextlib.contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Treat SIGTERM and SIGHUP like Ctrl-C, so that the command is killed."""

    def end(_number: int, _frame: object) -> NoReturn:
        raise _Terminated

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
