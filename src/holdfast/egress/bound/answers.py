"""Keeps secrets out of answers: a server may repeat in an answer what it was sent.

A box chooses most of a request. So it can have its secret repeated compressed, or in lines that break within it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from holdfast.egress.http_body import read_body
from holdfast.egress.http_head import BadHead, Body, Response
from holdfast.egress.sockets import Wire
from holdfast.redaction import Scrubber

_SHORTEST: Final = 16
"""As in `redaction`."""
_BREAK: Final = re.compile(rb"[\r\n]|\\{1,8}[rn]")
"""The end of a line, as it is or as JSON writes it, also JSON in JSON."""
_ANCHOR: Final = 8
"""Bytes at the start of a form that are searched first, so that a long secret takes no long time."""
_MOST_BREAKS: Final = 1024
"""Bytes of breaks that are held back."""


class Answers:
    """Removes all forms of some secrets from answers, in their heads and bodies. Lengths stay as they are."""

    def __init__(self, forms: Iterable[str]) -> None:
        self._forms = tuple(forms)

    def head(self, response: Response) -> Response:
        """Raises `BadHead` for an answer that is compressed although it must not be."""
        if self._forms:
            for name, value in response.headers:
                if name.lower() == b"content-encoding" and value.strip().lower() not in (b"", b"identity"):
                    raise BadHead("it is compressed, so a secret in it could not be found")
        scrub, lines = Scrubber(*self._forms), _Lines(self._forms)

        def clean(data: bytes) -> bytes:
            return scrub.whole(lines.whole(data))

        headers = [(clean(name), clean(value)) for name, value in response.headers]
        return replace(response, reason=clean(response.reason), headers=headers)

    async def body(self, source: Wire, to: Wire, body: Body) -> None:
        """Relay a body. Trailers are dropped. Raises `BadHead` and `Ended`."""
        scrub, lines = Scrubber(*self._forms), _Lines(self._forms)

        async def write(piece: bytes) -> None:
            if piece:
                await to.write(b"%x\r\n%s\r\n" % (len(piece), piece) if body.chunked else piece)

        async for piece in read_body(source, body):
            await write(scrub.feed(lines.feed(piece)))
        await write(scrub.feed(lines.rest()))
        await write(scrub.rest())
        if body.chunked:
            await to.write(b"0\r\n\r\n")

    async def stream(self, source: Wire, to: Wire) -> None:
        """Relay everything until the end, such as the messages of a WebSocket."""
        await self.body(source, to, Body(None))


class _Lines:
    """Removes forms of secrets that are broken into lines, anywhere: base64 in mails has lines of 76 characters."""

    def __init__(self, forms: Iterable[str]) -> None:
        self._forms = [_BREAK.sub(b"", form.encode()) for form in forms if len(form) >= _SHORTEST]
        self._held = b""

    def whole(self, data: bytes) -> bytes:
        if _BREAK.search(data) is None:
            return data
        squeezed = _BREAK.sub(b"", data)
        found = [(at, at + len(form)) for form in self._forms for at in _all_of(form, squeezed)]
        if not found:
            return data
        places = _places(data)
        cleaned = bytearray(data)
        for begin, end in found:
            for number in range(begin, end):
                cleaned[places[number]] = ord("*")
        return bytes(cleaned)

    def feed(self, piece: bytes) -> bytes:
        if not self._forms:
            return piece
        data = self.whole(self._held + piece)
        keep = max(self._begun(form, data) for form in self._forms)
        self._held = data[len(data) - keep :]
        return data[: len(data) - keep]

    def rest(self) -> bytes:
        held, self._held = self._held, b""
        return held

    def _begun(self, form: bytes, data: bytes) -> int:
        """Returns how many bytes at the end could begin the form, with breaks in it."""
        tail = data[-(len(form) + _MOST_BREAKS) :]
        places = _places(tail.rstrip(b"\\"))  # these may be the beginning of a break
        squeezed = bytes(tail[place] for place in places[-len(form) :])
        for at in _all_of(form[:_ANCHOR], squeezed):
            if len(squeezed) - at < len(form) and form.startswith(squeezed[at:]):
                return len(tail) - places[at - len(squeezed)]
        for length in range(min(len(squeezed), _ANCHOR - 1), 0, -1):
            if form.startswith(squeezed[-length:]):
                return len(tail) - places[-length]
        return 0


def _all_of(form: bytes, data: bytes) -> list[int]:
    found, at = [], data.find(form)
    while at >= 0:
        found.append(at)
        at = data.find(form, at + 1)
    return found


def _places(data: bytes) -> list[int]:
    """Returns where the bytes are that belong to no break."""
    places: list[int] = []
    end = 0
    for each in _BREAK.finditer(data):
        places += range(end, each.start())
        end = each.end()
    places += range(end, len(data))
    return places
