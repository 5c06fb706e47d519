"""One request of an agent and its answer, in terms of ASGI."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import httpx
import orjson

from holdfast.api.model.models import Api
from holdfast.egress.models.background import BackgroundLook
from holdfast.egress.models.headers import Header, headers_for_agent
from holdfast.guest.agent_reader import GATEWAY
from holdfast.redaction import Scrubber
from holdfast.time_limit import time_limit, time_limit_at

REASON: Final = b"x-holdfast-reason"
"""A header of the gateway's own refusals, which tells them from the provider's."""
_MAX_DIGITS: Final = 15

Receive = Callable[[], Awaitable[Any]]
Send = Callable[[dict[str, Any]], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class GatewayLimits:
    """Times in seconds, sizes in bytes."""

    body: int = 64 * 1024 * 1024
    """Of a request."""
    body_idle: float = 60.0
    """Between two pieces of a request's body."""
    connect: float = 15.0
    idle: float = 900.0
    """How long a provider may send nothing. One that thinks without streaming is silent for minutes."""
    at_once: int = 64
    """Concurrent requests of one run."""


class Refused(Exception):
    """The gateway answers by itself."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.message = message


def over_budget_status(api: Api) -> int:
    """Returns the status for a call that no budget has room for: one after which agents do not try again.

    Codex, which uses this API, repeats after every status but 400 and 429, and reads 429 as a limit of its own account.
    """
    return 400 if api is Api.OPENAI_RESPONSES else 402


class Left(Exception):
    """The agent has disconnected."""


class Cut(Exception):
    """The provider's answer was cut off."""


class Exchange:
    """One request of an agent and its answer, in terms of ASGI."""

    def __init__(self, scope: Any, receive: Receive, send: Send, limits: GatewayLimits) -> None:
        self.scope = scope
        self.sent = 0
        self.received = 0
        self.background = BackgroundLook()
        self.is_whole = False
        """Whether the agent has all of its answer. From then on it may disconnect."""
        self._receive = receive
        self._send = send
        self._limits = limits
        self._begun = False
        self._read = asyncio.Event()
        """Set when the whole body has arrived."""

    @property
    def is_compressed(self) -> bool:
        """Whether the size of the body says nothing about what is in it."""
        encodings = (value for name, value in self.scope["headers"] if name.lower() == b"content-encoding")
        return any(value.strip().lower() != b"identity" for value in encodings)

    def check_length(self) -> int | None:
        """Returns the declared length of the body. Refuses one that is too large before it is sent."""
        for name, value in self.scope["headers"]:
            if name.lower() == b"content-length":
                if len(value) > _MAX_DIGITS or int(value) > self._limits.body:
                    raise self._too_large()
                return int(value)
        return None

    async def body(self) -> AsyncGenerator[bytes]:
        while True:
            try:
                async with time_limit(self._limits.body_idle):
                    message = await self._receive()
            except TimeoutError:
                raise Refused(408, "slow", "the request did not arrive in time") from None
            if message["type"] == "http.disconnect":
                raise Left
            piece = message.get("body", b"")
            self.sent += len(piece)
            if self.sent > self._limits.body:
                raise self._too_large()
            if piece:
                self.background.feed(piece)
                yield piece
            if not message.get("more_body"):
                self.has_read()
                return

    def has_read(self) -> None:
        """The rest of the body is not needed."""
        self._read.set()

    async def until_disconnected(self) -> None:
        """Returns when the agent has disconnected. After the body, ASGI delivers nothing else."""
        await self._read.wait()
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def pass_on(
        self,
        response: httpx.Response,
        pieces: AsyncIterator[bytes],
        scrubber: Scrubber,
        before_end: Callable[[], Awaitable[None]],
    ) -> None:
        """Send the provider's answer as it comes. `before_end` is awaited before the agent can see that it is whole."""
        forwarded = headers_for_agent(response.headers.raw)
        headers = [(name, scrubber.text(value.decode("latin-1")).encode("latin-1")) for name, value in forwarded]
        await self._start(response.status_code, headers)
        length = response.headers.get("content-length", "")
        left = int(length) if length.isdigit() and len(length) <= _MAX_DIGITS else None
        # One time limit for all pieces, which is moved on now and then: one for each would take as long as the sending.
        now, idle = asyncio.get_running_loop().time, self._limits.idle
        due = now() + 2 * idle
        try:
            async with time_limit_at(due) as limit:
                async for piece in pieces:
                    if left is not None:
                        left -= len(piece)
                        if left <= 0:  # the agent waits for no more than this
                            await before_end()
                    if now() + idle > due:
                        due = now() + 2 * idle
                        limit.reschedule(due)
                    if clean := scrubber.feed(piece):
                        await self._send({"type": "http.response.body", "body": clean, "more_body": True})
        except TimeoutError:
            raise Left from None
        await before_end()
        self.is_whole = True
        await self._send({"type": "http.response.body", "body": scrubber.rest()})

    async def give(self, status: int, headers: Sequence[Header], body: bytes) -> None:
        """Send an answer that was read before."""
        kept = [(name, value) for name, value in headers if name != b"content-length"]
        await self._start(status, [*kept, (b"content-length", b"%d" % len(body))])
        self.is_whole = True
        await self._send({"type": "http.response.body", "body": body})

    async def answer(self, status: int, content: Any) -> int:
        """Send our own answer."""
        body = orjson.dumps(content)
        length = b"%d" % len(body)
        await self._start(status, [(b"content-type", b"application/json"), (b"content-length", length)])
        await self._send({"type": "http.response.body", "body": b"" if self.scope["method"] == "HEAD" else body})
        return status

    async def refuse(self, status: int, reason: str, message: str) -> None:
        if not self._begun:
            self._begun = True
            await send_refusal(self.scope, self._send, status, reason, message)

    async def _start(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        self._begun = True
        await self._send({"type": "http.response.start", "status": status, "headers": headers})

    def _too_large(self) -> Refused:
        return Refused(413, "too_large", f"a request to a model has at most {self._limits.body} bytes")


_TYPES: Final = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
}


async def send_refusal(scope: Any, send: Send, status: int, reason: str, message: str) -> None:
    """In the format of all APIs at once: each finds its own fields in it."""
    kind = _TYPES.get(status, "api_error")
    error = {"type": kind, "message": GATEWAY + message, "code": reason, "param": None}
    body = orjson.dumps({"type": "error", "error": error})
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(body)),
        (REASON, reason.encode()),
    ]
    if status in (429, 503):
        headers.append((b"retry-after", b"1"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})
