"""Decides what a relay forwards, and what it answers itself. Pure functions."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from typing import Final
from urllib.parse import unquote_to_bytes

from holdfast.api.guest_url import GUEST_PREFIX
from holdfast.egress.http_head import Request

HEALTH: Final = b"/healthz"
_REASONS: Final = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    408: "Request Timeout",
    413: "Content Too Large",
    502: "Bad Gateway",
    503: "Service Unavailable",
    504: "Gateway Timeout",
}
_CLAIMS: Final = (b"forwarded", b"x-forwarded-", b"x-real-ip")
_METHODS: Final = frozenset({"GET", "HEAD", "POST"})
_MISREAD: Final = re.compile(rb"[/\\%\x00-\x1f\x7f]")
"""What another parser could read as the end of a segment, once it has decoded it."""


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer of the relay itself. Its JSON has the form of the server's errors, so that agents show the message."""

    status: int
    code: str
    message: str
    hint: str = ""

    def to_bytes(self, *, last: bool) -> bytes:
        error = {"code": self.code, "message": self.message, **({"hint": self.hint} if self.hint else {})}
        body = json.dumps({"status": "ok"} if self.status == 200 else {"error": error}).encode()
        lines = (
            f"HTTP/1.1 {self.status} {_REASONS[self.status]}",
            "Content-Type: application/json",
            f"Content-Length: {len(body)}",
            "X-Holdfast-Relay: answered",
            *(("Connection: close",) if last else ()),
        )
        return "\r\n".join((*lines, "", "")).encode() + body


def own_answer(request: Request) -> Answer | None:
    """Returns the relay's own answer to a request, or None if it is to be forwarded."""
    path = request.path.partition(b"?")[0]
    if path == HEALTH and request.method in ("GET", "HEAD"):
        return Answer(200, "ok", "")
    if not is_for_guests(path):
        return Answer(
            404,
            "not_found",
            "this is a relay for boxes: it forwards the guest API and nothing else",
            f"the address of other clients is that of the server itself, and boxes use {GUEST_PREFIX}/",
        )
    if request.method not in _METHODS:
        return Answer(405, "method_not_allowed", f"boxes use {', '.join(sorted(_METHODS))}, not {request.method}")
    return None


def for_server(request: Request) -> Request:
    """Returns the request without headers by which a box could claim to be another client."""
    headers = [each for each in request.headers if not each[0].lower().startswith(_CLAIMS)]
    return replace(request, headers=headers)


def is_for_guests(path: bytes) -> bool:
    """Returns whether a path is below the guest API's, however somebody behind us decodes or shortens it."""
    prefix, *segments = path.removeprefix(b"/").split(b"/")
    if b"/" + prefix != GUEST_PREFIX.encode() or not segments:
        return False
    decoded = [unquote_to_bytes(each) for each in segments]
    return not any(each in (b"", b".", b"..") or _MISREAD.search(each) for each in decoded)
