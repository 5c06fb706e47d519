"""A socket with just enough HTTP to read answers: for clients that no library would let us be."""

from __future__ import annotations

import contextlib
import json
import select
import socket
import struct
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

TIMEOUT = 240.0


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def error(self) -> str:
        """The code of an error, which every error has in the same place."""
        error: dict[str, Any] = json.loads(self.body)["error"]
        assert error["message"], self.body
        assert error["requestId"] == self.headers["x-request-id"]
        return str(error["code"])


class RawClient:
    """One connection. Everything blocks for at most half a minute."""

    def __init__(self, address: tuple[str, int], *, receive_buffer: int | None = None) -> None:
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        if receive_buffer is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.settimeout(TIMEOUT)
        self.socket.connect(address)
        self._reader = self.socket.makefile("rb")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._reader.close()
        self.socket.close()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def try_send(self, data: bytes) -> None:
        """Send as much as the server cares to take."""
        with contextlib.suppress(ConnectionError):
            self.socket.sendall(data)

    def finish_sending(self) -> None:
        self.socket.shutdown(socket.SHUT_WR)

    def vanish(self) -> None:
        """Be gone without a goodbye: the server gets a reset."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._reader.close()
        self.socket.close()

    def hears_something(self, seconds: float) -> bool:
        """Whether there is something to read, an end included, within so many seconds."""
        readable, _, _ = select.select([self.socket], [], [], seconds)
        return bool(readable)

    def answer(self, method: str = "GET") -> Answer:
        """The next answer, which is one to a request of this method."""
        status, headers = self.head()
        return Answer(status, headers, self._body(method, status, headers))

    def head(self) -> tuple[int, dict[str, str]]:
        line = self._reader.readline()
        assert line.startswith(b"HTTP/1.1 "), f"not an answer: {line!r}"
        headers = {}
        while (header := self._reader.readline()) not in (b"\r\n", b""):
            name, _, value = header.decode("latin-1").partition(":")
            headers[name.lower()] = value.strip()
        return int(line.split(b" ")[1]), headers

    def read_chunk(self) -> bytes:
        """A piece of a chunked body; empty at its end."""
        size = int(self._reader.readline(), 16)
        data = self._reader.read(size)
        self._reader.readline()
        return data

    def rest(self) -> bytes:
        """Everything up to the end of the connection."""
        data = b""
        with contextlib.suppress(ConnectionResetError):
            while piece := self._reader.read1(65536):
                data += piece
        return data

    def is_over(self) -> bool:
        """Whether the server has nothing more to say and has hung up."""
        return self.rest() == b""

    def _body(self, method: str, status: int, headers: dict[str, str]) -> bytes:
        if method == "HEAD" or status in (204, 304) or status < 200:
            return b""
        if headers.get("transfer-encoding") == "chunked":
            return b"".join(iter(self.read_chunk, b""))
        if "content-length" in headers:
            return self._reader.read(int(headers["content-length"]))
        return self.rest()


def request(method: str, target: str, body: bytes = b"", /, **headers: str) -> bytes:
    """A request as it goes over the wire. Underscores in header names stand for hyphens."""
    named = {"host": "127.0.0.1", **{name.replace("_", "-"): value for name, value in headers.items()}}
    if body and "transfer-encoding" not in named:
        named.setdefault("content-length", str(len(body)))
    lines = [f"{method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in named.items())]
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body


def chunked(body: bytes, size: int = 16384) -> bytes:
    pieces = [body[start : start + size] for start in range(0, len(body), size)]
    return b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"
