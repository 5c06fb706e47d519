"""The runner's token: in memory only, renewed at half its life, and at once where the server takes it no more."""

from __future__ import annotations

import json
from binascii import a2b_base64

from holdfast.guest.runner.backoff import Backoff

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.guest.runner.event_loop import Loop, Timer
    from holdfast.guest.runner.http_client import Answer, HttpClient

_PATH = "/v1/tokens/renew"
_UNKNOWN_LIFE = 1800.0
_SHORTEST = 1.0


class Token:
    """Whoever is refused calls `refused`; `on_renewed` are told when there is a new one."""

    def __init__(self, loop: Loop, value: str) -> None:
        self.value = value
        self.on_renewed: list[Callable[[], None]] = []
        self.on_over: Callable[[], None] | None = None
        """Told when the server renews it no more: the run is over."""
        self._loop = loop
        self._client: HttpClient | None = None
        self._backoff = Backoff()
        self._timer: Timer | None = None
        self._trying = False

    def renew_through(self, client: HttpClient) -> None:
        self._client = client
        self._later(lifetime(self.value) / 2)

    def refused(self) -> None:
        """The server does not take it: renew it now, unless that is being tried already."""
        if not self._trying:
            self._renew()

    def _later(self, seconds: float) -> None:
        self._loop.cancel(self._timer)
        self._timer = self._loop.after(max(_SHORTEST, seconds), self._renew)

    def _renew(self) -> None:
        self._loop.cancel(self._timer)
        self._timer = None
        self._trying = True
        if self._client is not None and not self._client.busy:
            self._client.post(_PATH, "", b"{}", self._answered)

    def _answered(self, answer: Answer | None) -> None:
        if self._client is not None:
            self._client.close()  # the next one is half an hour away
        if answer is not None and answer.status in (403, 404, 409, 410):
            if self.on_over is not None:
                self.on_over()
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
    """Seconds that a token is good for from when it was made: its own words, so that no clock here can be wrong."""
    try:
        part = token.split(".")[1]
        claims = json.loads(a2b_base64(part.replace("-", "+").replace("_", "/") + "=" * (-len(part) % 4)))
        return float(claims["exp"]) - float(claims["iat"])
    except (ValueError, LookupError, TypeError):
        return _UNKNOWN_LIFE
