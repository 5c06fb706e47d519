"""Reads multipart/form-data as it arrives: each part is a stream, so that files of any size pass through."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Final

from holdfast.compat.daytona.http.errors import bad_request

_MAX_HEADERS: Final = 16_384
_MOST_PARTS: Final = 20_000
_PARAMETER: Final = re.compile(r';\s*([a-z]+\*?)=("((?:[^"\\]|\\.)*)"|[^;"\s]*)', re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Part:
    name: str
    filename: str | None
    data: AsyncIterator[bytes]
    """What is not read of it is skipped."""


def boundary_of(content_type: str) -> bytes:
    kind, _, _ = content_type.partition(";")
    boundary = {name.lower(): value for name, value in _parameters(content_type)}.get("boundary", "")
    if kind.strip().lower() != "multipart/form-data" or not 1 <= len(boundary) <= 200:
        raise bad_request("a body of multipart/form-data is expected")
    return boundary.encode("latin-1", "replace")


def _parameters(header: str) -> list[tuple[str, str]]:
    return [
        (match[1].lower(), re.sub(r"\\(.)", r"\1", match[3]) if match[3] is not None else match[2])
        for match in _PARAMETER.finditer(header)
    ]


class _Reader:
    """The bytes of a body, with a look at what comes."""

    def __init__(self, body: AsyncIterator[bytes], boundary: bytes) -> None:
        self._body = body
        self._delimiter = b"\r\n--" + boundary
        self._buffer = bytearray(b"\r\n")  # so that the first delimiter is like the others
        self._ended = False

    async def _more(self) -> bool:
        async for piece in self._body:
            if piece:
                self._buffer += piece
                return True
        self._ended = True
        return False

    async def data(self) -> AsyncIterator[bytes]:
        """What comes before the next delimiter."""
        while True:
            found = self._buffer.find(self._delimiter)
            if found >= 0:
                piece = bytes(self._buffer[:found])
                del self._buffer[: found + len(self._delimiter)]
                if piece:
                    yield piece
                return
            ready = len(self._buffer) - len(self._delimiter)
            if ready > 0:
                piece = bytes(self._buffer[:ready])
                del self._buffer[:ready]
                yield piece
            if not await self._more():
                raise bad_request("the body ends in the middle of a part")

    async def at_end(self) -> bool:
        """After a delimiter: whether it was the last."""
        while len(self._buffer) < 2:
            if not await self._more():
                raise bad_request("the body ends in the middle of a part")
        return bytes(self._buffer[:2]) == b"--"

    async def headers(self) -> dict[str, str]:
        while (end := self._buffer.find(b"\r\n\r\n")) < 0:
            if len(self._buffer) > _MAX_HEADERS or not await self._more():
                raise bad_request("a part of the body has malformed headers")
        lines = bytes(self._buffer[:end]).decode("utf-8", "replace").split("\r\n")
        del self._buffer[: end + 4]
        pairs = (line.partition(":") for line in lines if ":" in line)
        return {name.strip().lower(): value.strip() for name, _, value in pairs}


async def parts_of(body: AsyncIterator[bytes], content_type: str) -> AsyncIterator[Part]:
    """Yields the parts of a body. The data of a part can be read until the next part is asked for."""
    reader = _Reader(body, boundary_of(content_type))
    async for _ in reader.data():  # before the first delimiter
        pass
    count = 0
    while not await reader.at_end():
        count += 1
        if count > _MOST_PARTS:
            raise bad_request(f"the body has more than {_MOST_PARTS} parts")
        headers = await reader.headers()
        parameters = dict(_parameters(headers.get("content-disposition", "")))
        data = reader.data()
        yield Part(parameters.get("name", ""), parameters.get("filename"), data)
        async for _ in data:
            pass
