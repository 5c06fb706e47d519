"""The runner's token: in memory only, renewed at half its lifetime, and at once if the server refuses it."""

from __future__ import annotations

import json
from binascii import a2b_base64

from holdfast.guest.runner.backoff import Backoff
from holdfast.guest.runner.http_client import HttpClient

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.guest.runner.event_loop import Loop, Timer
    from holdfast.guest.runner.http_client import Answer

_PATH = "/v1/tokens/renew"
_UNKNOWN_LIFE = 1800.0
_SHORTEST = 1.0


class Token:
    """A client that the server refused calls `refused`. The functions in `on_renewed` are called with each new token,
    and `on_over` when the server no longer renews it, because the run is over.
    """

    def __init__(self, loop: Loop, url: str, value: str, on_over: Callable[[], None]) -> None:
        self.value = value
        self.on_renewed: list[Callable[[], None]] = []
        self._on_over = on_over
        self._loop = loop
        self._client = HttpClient(loop, url, lambda: self.value)
        self._backoff = Backoff()
        self._timer: Timer | None = None
        self._trying = False
        self._later(lifetime(value) / 2)

    def refused(self) -> None:
        """Renew the token now, because the server refused it, unless that is in progress."""
        if not self._trying:
            self._renew()

    def _later(self, seconds: float) -> None:
        self._loop.cancel(self._timer)
        self._timer = self._loop.after(max(_SHORTEST, seconds), self._renew)

    def _renew(self) -> None:
        self._loop.cancel(self._timer)
        self._timer = None
        self._trying = True
        if not self._client.busy:
            self._client.post(_PATH, "", b"{}", self._answered)

    def _answered(self, answer: Answer | None) -> None:
        self._client.close()  # the next renewal is half an hour away
        if answer is not None and answer.status in (403, 404, 409, 410):
            self._on_over()
            return
        renewed = token_in(answer.body) if answer is not None and 200 <= answer.status < 300 else None
        if renewed is None:
            self._timer = self._loop.after(self._backoff.wait(), self._renew)
            return
        self.value = renewed
        self._trying = False
        self._backoff.reset()
        self._later(lifetime(renewed) / 2)
        for notify in self.on_renewed:
            notify()


def token_in(body: bytes) -> str | None:
    try:
        token = json.loads(body)["token"]
    except (ValueError, LookupError, TypeError):
        return None
    return token if isinstance(token, str) and token.isprintable() else None


def lifetime(token: str) -> float:
    """Returns the lifetime of a token in seconds, from its own claims, so that the clock of the box does not matter."""
    try:
        part = token.split(".")[1]
        claims = json.loads(a2b_base64(part.replace("-", "+").replace("_", "/") + "=" * (-len(part) % 4)))
        return float(claims["exp"]) - float(claims["iat"])
    except (ValueError, LookupError, TypeError):
        return _UNKNOWN_LIFE
