"""A transport over the stdin and stdout of a command in a sprite, which a WebSocket carries."""

from __future__ import annotations

import contextlib
from collections import deque
from typing import Final

from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed

from holdfast.providers.sprites.api import EXIT, STDERR, STDIN, STDOUT, session_in
from holdfast.providers.stream import Transport

_LAST_WORDS: Final = 4096
_PIECE: Final = 1 << 18


class SpriteTransport(Transport):
    """Owns the WebSocket. Keeps the end of what the command prints to stderr, to explain its exit.

    A lost WebSocket is not attached to again: nobody can tell which bytes were lost with it, so the next transport
    starts another command.
    """

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self._pieces: deque[bytes] = deque()
        self._complaints = b""
        self._ended = False
        self.session: str | None = None

    @property
    def last_words(self) -> str:
        return self._complaints.decode("utf-8", "replace").strip()

    async def read(self) -> bytes:
        while not self._pieces:
            if self._ended:
                return b""
            try:
                message = await self._socket.recv()
            except ConnectionClosed:
                self._ended = True
                return b""
            if isinstance(message, str):
                self.session = session_in(message) or self.session
            elif message[:1] == bytes([STDOUT]):
                self._pieces.extend(message[start : start + _PIECE] for start in range(1, len(message), _PIECE))
            elif message[:1] == bytes([STDERR]):
                self._complaints = (self._complaints + message[1:])[-_LAST_WORDS:]
            elif message[:1] == bytes([EXIT]):
                self._ended = True
        return self._pieces.popleft()

    async def write(self, data: bytes) -> None:
        try:
            for start in range(0, len(data), _PIECE):
                await self._socket.send(bytes([STDIN]) + data[start : start + _PIECE])
        except ConnectionClosed as error:
            raise ConnectionResetError(f"the WebSocket is closed: {error}") from None

    async def close(self) -> None:
        self._ended = True
        with contextlib.suppress(OSError):
            await self._socket.close()
