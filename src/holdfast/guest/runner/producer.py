"""Posts the journal to the thread, in order and each entry once, whatever happens in between.

One request at a time. A batch keeps its sequence number and bytes until the server has it, and the server recognises
repeated numbers. Entries also have ids, so even a batch under a second number does no harm.
"""

from __future__ import annotations

import json
from collections import deque

from holdfast.guest.runner.backoff import Backoff

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.guest.runner.event_loop import Loop, Timer
    from holdfast.guest.runner.http_client import Answer, HttpClient
    from holdfast.guest.runner.journal import Journal
    from holdfast.guest.runner.token import Token

MAX_BATCH = 512 << 10
MAX_ENTRIES = 500
PACE = 0.005
"""Seconds between requests while there is much to post, because few large ones cost less. The first one after a pause
does not wait.
"""

_TRIES = 3
"""How often a single entry that the server refuses is tried before it is replaced."""


class Producer:
    """Posts entries from the journal to the guest API. Notifies its listeners of progress, when everything is posted,
    and when the server reports that another runner has the run now.
    """

    def __init__(
        self,
        loop: Loop,
        client: HttpClient,
        token: Token,
        journal: Journal,
        thread: str,
        epoch: int,
        seq: int,
        *,
        replace: Callable[[bytes, str], bytes | None],
        on_progress: Callable[[], None],
        on_empty: Callable[[], None],
        on_fenced: Callable[[str], None],
    ) -> None:
        """`replace` returns what to post instead of an entry that the server refuses for good, or None."""
        self._replace = replace
        self._on_progress = on_progress
        self._on_empty = on_empty
        self._on_fenced = on_fenced
        self.away_since: float | None = None
        self._loop = loop
        self._client = client
        self._token = token
        self._journal = journal
        self._path = "/v1/stream/threads/" + thread
        self._epoch = epoch
        self._seq = seq
        self._batch: list[bytes] = []
        self._body = b""
        self._tries = 0
        self._parts: deque[list[bytes]] = deque()
        """The parts of a batch that was refused, to be posted before anything else."""
        self._backoff = Backoff()
        self._timer: Timer | None = None
        self._sent_at = -1.0
        self._closed = False
        token.on_renewed.append(self._try_now)

    @property
    def empty(self) -> bool:
        return not self._batch and not self._parts and not len(self._journal)

    def wake(self) -> None:
        """The journal has entries."""
        if not self._batch and self._timer is None and not self._closed:
            wait = self._sent_at + PACE - self._loop.clock()
            if wait <= 0 or len(self._journal) >= MAX_BATCH:
                self._next()
            else:
                self._timer = self._loop.after(wait, self._on_timer)

    def close(self) -> None:
        self._closed = True
        self._loop.cancel(self._timer)
        self._client.close()

    def _on_timer(self) -> None:
        self._timer = None
        if self._batch:
            self._post()
        else:
            self._next()

    def _try_now(self) -> None:
        """Retry now, because something has changed."""
        if self._batch and self._timer is not None:
            self._loop.cancel(self._timer)
            self._on_timer()

    def _next(self) -> None:
        self._batch = self._parts.popleft() if self._parts else self._journal.take(MAX_BATCH, MAX_ENTRIES)
        if self._batch:
            self._body = b"[" + b",".join(self._batch) + b"]"
            self._tries = 0
            self._post()

    def _post(self) -> None:
        if self._closed or self._client.busy:
            return
        headers = "Producer-Id: run\r\nProducer-Epoch: %d\r\nProducer-Seq: %d\r\n" % (self._epoch, self._seq)
        self._sent_at = self._loop.clock()
        self._tries += 1
        self._client.post(self._path, headers, self._body, self._answered)

    def _answered(self, answer: Answer | None) -> None:
        status = 0 if answer is None else answer.status
        if answer is None or status == 429 or status >= 500:
            self._again()
        elif status == 401:
            self._again()
            self._token.refused()
        elif status == 204 and self._tries == 1 and _number(answer, b"producer-seq") is not None:
            # The server already had this number, unknown to us, so it did not accept our batch.
            self._seq = (_number(answer, b"producer-seq") or 0) + 1
            self._again()
        elif 200 <= status < 300:
            self._acknowledged()
        elif status == 409 and (expected := _number(answer, b"producer-expected-seq")) is not None:
            self._seq = expected
            self._again()
        elif status in (400, 413, 422):
            self._split(answer)
        elif status in (403, 404, 409, 410):
            self._closed = True
            self._on_fenced(message_of(answer))
        else:
            self._again()

    def _again(self) -> None:
        if self.away_since is None:
            self.away_since = self._loop.clock()
        if self._timer is None:
            self._timer = self._loop.after(self._backoff.wait(), self._on_timer)

    def _acknowledged(self) -> None:
        self.away_since = None
        self._backoff.reset()
        self._seq += 1
        self._batch = []
        self._body = b""
        self._on_progress()
        if self.empty:
            self._on_empty()
        else:
            self.wake()

    def _split(self, answer: Answer) -> None:
        """The server refuses something in this batch and accepted none of it. Find what it is, and post the rest."""
        if len(self._batch) == 1 and answer.status != 413 and self._tries < _TRIES:
            self._again()  # it may have been damaged on its way
            return
        batch, self._batch, self._body = self._batch, [], b""
        if len(batch) > 1:
            middle = len(batch) // 2
            self._parts.extendleft([batch[middle:], batch[:middle]])
        else:
            instead = self._replace(batch[0], message_of(answer))
            if instead is not None and instead != batch[0]:
                self._parts.appendleft([instead])
        if self._parts or len(self._journal):
            self._next()
        else:
            self._on_empty()


def _number(answer: Answer, name: bytes) -> int | None:
    value = answer.headers.get(name, b"")
    return int(value) if value.isdigit() and len(value) <= 16 else None


def message_of(answer: Answer) -> str:
    try:
        found = json.loads(answer.body)
        found = found.get("error", found)
        return "%d: %s" % (answer.status, str(found["message"] if isinstance(found, dict) else found)[:500])
    except (ValueError, LookupError, TypeError, AttributeError):
        return "%d" % answer.status
