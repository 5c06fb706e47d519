"""Request heads that a connection has sent before.

A client that appends sends the same head with every request: only the length of the body changes. The parser has
accepted that head once, so the next request with the same bytes needs no second parse. Whatever differs in more than
the digits of the length goes to the parser.
"""

from __future__ import annotations

import re
from typing import Final

from holdfast.threads.protocol.messages import Request

_LENGTH: Final = re.compile(rb"\r\ncontent-length:[ \t]*([0-9]+)(?=[ \t]*\r\n)", re.IGNORECASE)
_HEAD_END: Final = b"\r\n\r\n"
_MOST_DIGITS: Final = 7


class RepeatedHead:
    """The head of one request, split around the digits of its content length."""

    __slots__ = ("_after", "_before", "headers", "query", "target")

    def __init__(self, before: bytes, after: bytes, request: Request, target: str) -> None:
        self._before = before
        self._after = after
        self.headers = request.headers
        self.query = request.query
        self.target = target

    @classmethod
    def learn(cls, data: bytes, request: Request, target: str) -> RepeatedHead | None:
        """The head of `request`, which the parser found in `data`, with nothing before or after it in there.

        Returns None for a head that has no content length, or for data that holds more than this one request.
        """
        head_end = data.find(_HEAD_END) + len(_HEAD_END)
        lengths = list(_LENGTH.finditer(data, 0, head_end))
        if len(lengths) != 1 or lengths[0][1] != request.headers.get(b"content-length"):
            return None
        if int(lengths[0][1]) != len(data) - head_end or b"transfer-encoding" in request.headers:
            return None
        begin, end = lengths[0].span(1)
        return cls(data[:begin], data[end:head_end], request, target)

    def body_in(self, data: bytes) -> bytes | None:
        """The body of the next request, if `data` is exactly one request with this head."""
        before, after = self._before, self._after
        if not data.startswith(before):
            return None
        begin = len(before)
        end = data.find(after, begin, begin + _MOST_DIGITS + len(after))
        length = data[begin:end]
        if end < 0 or not length.isdigit():
            return None
        body = data[end + len(after) :]
        return body if len(body) == int(length) else None
