"""Asks the server which limit of its box killed an agent. The box itself cannot see that: the kernel tells only the
process that created the box.
"""

from __future__ import annotations

import json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.guest.runner.event_loop import Loop, Timer
    from holdfast.guest.runner.http_client import Answer, HttpClient
    from holdfast.guest.runner.token import Token

_AGAIN = 1.0
"""Seconds until the next attempt while the server is away. Without it the end cannot be posted either."""
_PATIENCE = 60.0
"""Seconds after which the run ends without the answer."""
_LONGEST = 2000
"""How many characters of each text in the answer are used."""


class LimitQuestion:
    """Asks once. `then` is always called, with the error that names the limit, or None."""

    def __init__(
        self, loop: Loop, client: HttpClient, token: Token, run: str, then: Callable[[dict[str, str] | None], None]
    ):
        self._loop = loop
        self._client = client
        self._token = token
        self._path = "/v1/runs/%s/limit" % run
        self._then: Callable[[dict[str, str] | None], None] | None = then
        self._again: Timer | None = None
        self._given_up = loop.after(_PATIENCE, lambda: self._finish(None))
        self._ask()

    def close(self) -> None:
        """Stop asking."""
        self._then = None
        self._loop.cancel(self._again)
        self._loop.cancel(self._given_up)
        self._client.close()

    def _ask(self) -> None:
        self._client.post(self._path, "", b"{}", self._answered)

    def _answered(self, answer: Answer | None) -> None:
        if self._then is None:
            return
        if answer is not None and answer.status == 401:
            self._token.refused()
        if answer is None or answer.status >= 500 or answer.status in (401, 408, 425, 429):
            self._again = self._loop.after(_AGAIN, self._ask)
            return
        self._finish(limit_in(answer.body) if answer.status == 200 else None)

    def _finish(self, limit: dict[str, str] | None) -> None:
        then = self._then
        self.close()
        if then is not None:
            then(limit)


def limit_in(body: bytes) -> dict[str, str] | None:
    """Returns the error in a response: code, message and hint."""
    try:
        found = json.loads(body)["limit"]
        texts = {name: found[name] for name in ("code", "message", "hint")}
    except (ValueError, LookupError, TypeError):
        return None
    if not all(isinstance(text, str) for text in texts.values()):
        return None
    return {name: text[:_LONGEST] for name, text in texts.items()}
