"""Heartbeats: tell the server that the run is alive, and learn whether it should be cancelled."""

from __future__ import annotations

import json
import sys

from holdfast.guest.runner.producer import message_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.guest.runner.event_loop import Loop, Timer
    from holdfast.guest.runner.http_client import Answer, HttpClient
    from holdfast.guest.runner.token import Token


class Heartbeat:
    """Sends a heartbeat at regular intervals by the monotonic clock, and at once on request."""

    def __init__(
        self,
        loop: Loop,
        client: HttpClient,
        token: Token,
        run: str,
        seconds: float,
        *,
        on_cancel: Callable[[str], None],
        on_over: Callable[[], None],
    ) -> None:
        self._on_cancel = on_cancel
        self._on_over = on_over
        self._loop = loop
        self._client = client
        self._token = token
        self._path = "/v1/runs/%s/beat" % run
        self._seconds = seconds
        self._timer: Timer | None = None
        self._asked = False
        self._closed = False
        self._away = False

    def beat(self) -> None:
        """Send a heartbeat now. If one is in progress, which may be too early to learn what is new, another one
        follows.
        """
        if self._closed:
            return
        if self._client.busy:
            self._asked = True
            return
        self._loop.cancel(self._timer)
        self._timer = self._loop.after(self._seconds, self.beat)
        self._client.post(self._path, "", b"{}", self._answered)

    def close(self) -> None:
        self._closed = True
        self._loop.cancel(self._timer)
        self._client.close()

    def _answered(self, answer: Answer | None) -> None:
        if self._closed:
            return
        self._note(answer)
        if answer is None or _is_away(answer.status):
            pass  # the next one is soon enough
        elif answer.status == 401:
            self._token.refused()
        elif answer.status in (403, 404, 409, 410):
            self._on_over()
        elif answer.status == 200:
            how = cancel_in(answer.body)
            if how is not None:
                self._on_cancel(how)
        if self._asked:
            self._asked = False
            self.beat()

    def _note(self, answer: Answer | None) -> None:
        """Say when the server is away, and when it is back. A diagnosis reads it in the box: the thread has no way."""
        away = answer is None or _is_away(answer.status)
        if away != self._away:
            self._away = away
            why = self._client.problem if answer is None else message_of(answer)
            what = "does not answer: %s" % " ".join(why.split()) if away else "answers again"
            sys.stderr.write("runner: the server %s\n" % what)
            sys.stderr.flush()


def _is_away(status: int) -> bool:
    return status >= 500 or status in (408, 425, 429)


def cancel_in(body: bytes) -> str | None:
    try:
        how = json.loads(body).get("cancel")
    except (ValueError, AttributeError):
        return None
    return how if how in ("cancel", "interrupt") else None
