"""Keeps secrets out of answers: a server may repeat in an answer what it was sent."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from holdfast.egress.http_body import read_body
from holdfast.egress.http_head import Body, Response
from holdfast.egress.sockets import Wire
from holdfast.redaction import Scrubber


class Answers:
    """Removes all forms of some secrets from answers, in their heads and bodies. Lengths stay as they are."""

    def __init__(self, forms: Iterable[str]) -> None:
        self._forms = tuple(forms)

    def head(self, response: Response) -> Response:
        scrub = Scrubber(*self._forms)
        headers = [(scrub.whole(name), scrub.whole(value)) for name, value in response.headers]
        return replace(response, reason=scrub.whole(response.reason), headers=headers)

    async def body(self, source: Wire, to: Wire, body: Body) -> None:
        """Relay a body. Trailers are dropped. Raises `BadHead` and `Ended`."""
        scrub = Scrubber(*self._forms)

        async def write(piece: bytes) -> None:
            if piece:
                await to.write(b"%x\r\n%s\r\n" % (len(piece), piece) if body.chunked else piece)

        async for piece in read_body(source, body):
            await write(scrub.feed(piece))
        await write(scrub.rest())
        if body.chunked:
            await to.write(b"0\r\n\r\n")

    async def stream(self, source: Wire, to: Wire) -> None:
        """Relay everything until the end, such as the messages of a WebSocket."""
        await self.body(source, to, Body(None))
