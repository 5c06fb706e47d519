"""Reads one HTTP/1.1 answer from a box, which is not trusted: sizes are limited, and framing must be unambiguous."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Final, NamedTuple

import httptools

from holdfast.api.box.process import Connection
from holdfast.api.errors.boxes import BoxError
from holdfast.gateway.proxy.headers import BadAnswer, Header

MAX_HEAD_BYTES: Final = 64 * 1024
MAX_HEADERS: Final = 256
_PIECE: Final = 64 * 1024


class CutShort(Exception):
    """The answer of the box was cut off, which the client must notice."""


class Head(NamedTuple):
    """The head of an answer."""

    status: int
    headers: list[Header]
    """In their original order; names in lower case."""
    length: int | None
    """The length of the body, if it is known."""


class _Parsing:
    """Callbacks of httptools for one answer. Skips informational heads, and ignores what follows the answer."""

    def __init__(self) -> None:
        self.parser: Any = httptools.HttpResponseParser(self)
        self.headers: list[Header] = []
        self.status = 0
        """The head of the answer, once it is complete."""
        self.body: list[bytes] = []
        self.complete = False
        self.keeps_open = False
        """Whether the program takes another request on the same connection, and sent nothing after the answer."""

    def on_message_begin(self) -> None:
        if not self.status:
            self.headers = []
        self.keeps_open = False

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.status:
            return  # trailers
        if len(self.headers) >= MAX_HEADERS:
            raise BadAnswer(f"the program in the box answered with more than {MAX_HEADERS} headers")
        self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        if not self.status and ((status := self.parser.get_status_code()) == 101 or status >= 200):
            self.status = status

    def on_body(self, data: bytes) -> None:
        if not self.complete:
            self.body.append(data)

    def on_message_complete(self) -> None:
        if self.status and not self.complete:
            self.complete = True
            self.keeps_open = bool(self.parser.should_keep_alive())


class Answer:
    """One answer: first the head, then the body."""

    def __init__(self, connection: Connection, *, method: bytes) -> None:
        self._connection = connection
        self._method = method
        self._parsing = _Parsing()
        self._ends_with_connection = False
        self._begun = False
        self.rest = b""
        """The bytes after the head of an answer that switches protocols."""

    @property
    def begun(self) -> bool:
        """Whether anything of it has arrived."""
        return self._begun

    @property
    def keeps_open(self) -> bool:
        """Whether another request can follow on the connection, now that the answer is complete. Never after HEAD,
        where the parser waits for a body."""
        return self._parsing.keeps_open and not self._ends_with_connection and self._method != b"HEAD"

    async def head(self) -> Head:
        """Raises `BadAnswer`."""
        parsing, seen, upgraded = self._parsing, 0, False
        while not parsing.status:
            if seen > MAX_HEAD_BYTES:
                raise BadAnswer(f"the program in the box answered with a head of more than {MAX_HEAD_BYTES} bytes")
            data = await self._read()
            if not data:
                raise BadAnswer("the program in the box closed the connection without an answer")
            seen += len(data)
            upgraded = self._feed(data)
        status = parsing.status
        if status > 599 or (status == 101 and not upgraded):
            raise BadAnswer(f"the program in the box answered with status {status}")
        return Head(status, parsing.headers, None if status == 101 else self._length())

    def _feed(self, data: bytes) -> bool:
        """Returns whether the answer switches protocols."""
        try:
            self._parsing.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self.rest = data[upgrade.args[0] :]
            return True
        except httptools.HttpParserError as error:
            if isinstance(error.__context__, BadAnswer):
                raise error.__context__ from None
            if self._parsing.complete and self._parsing.status != 101:
                self._parsing.keeps_open = False
                return False  # garbage after the answer
            raise BadAnswer(f"the program in the box does not speak HTTP: {error}") from None
        return False

    def _length(self) -> int | None:
        """Refuse ambiguous framing that the parser accepts but others do not."""
        headers = self._parsing.headers
        codings = [value.strip().lower() for name, value in headers if name == b"transfer-encoding"]
        lengths = {value.strip() for name, value in headers if name == b"content-length"}
        if codings not in ([], [b"chunked"]) or len(lengths) > 1 or (codings and lengths):
            raise BadAnswer("the program in the box answered with a body of ambiguous length")
        length = lengths.pop() if lengths else None
        if length is not None and (not length.isdigit() or len(length) > 18):
            raise BadAnswer("the program in the box answered with a length that is not a number")
        self._ends_with_connection = not codings and length is None
        return None if length is None else int(length)

    async def body(self, head: Head) -> AsyncIterator[bytes]:
        """Yield the body in pieces. Raises `CutShort` if it ends too early."""
        if self._method == b"HEAD" or head.status in (204, 304):
            return
        parsing = self._parsing
        while True:
            pieces, parsing.body = parsing.body, []
            for piece in pieces:
                yield piece
            if parsing.complete:
                return
            try:
                data = await self._read()
                if data:
                    self._feed(data)
            except BadAnswer:
                raise CutShort from None
            if not data:
                if self._ends_with_connection:
                    return
                raise CutShort

    async def _read(self) -> bytes:
        try:
            data = await self._connection.read(_PIECE)
            self._begun = self._begun or bool(data)
            return data
        except (BoxError, OSError) as error:
            raise BadAnswer(f"the connection to the box was lost: {error}") from None
