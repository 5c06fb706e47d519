"""Writes what a runner says about its turn on the thread: as the runner of that run, in its epoch, each entry once.

There is no second way to write: the entries are checked as those that a runner appends itself, and a runner that has
lost its run is refused. Entries are deduplicated by their ids, so a message that comes twice is written once.
"""

from __future__ import annotations

import hashlib
import logging
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Final

import orjson

from holdfast.api.errors import Conflict, Forbidden, Gone, InvalidRequest, NotFound, TooLarge
from holdfast.api.errors.threads import ProducerGap
from holdfast.threads.access.authority import Author, Writer
from holdfast.threads.protocol.messages import Request
from holdfast.threads.protocol.surface import THREADS, StreamSurface
from holdfast.threads.run_events import PRODUCER, Run

log = logging.getLogger(__name__)

_TRIES: Final = 8
_REMEMBERED: Final = 10_000


class TurnOver(Exception):
    """The run has ended, or another runner has it. The message says which."""


class TurnWriter:
    """Remembers the next number of each run, which is only a guess: the store knows."""

    def __init__(
        self,
        surface: StreamSurface,
        next_request_id: Callable[[], str],
        check_append: Callable[[int], None] = lambda size: None,
    ) -> None:
        """`check_append` raises `TooLarge` if a runner may not add so many bytes."""
        self._check_append = check_append
        self._surface = surface
        self._next_request_id = next_request_id
        self._numbers: OrderedDict[str, int] = OrderedDict()

    async def write(self, thread: str, run: Run, entries: Sequence[str]) -> None:
        """Append encoded entries, in order. One that is refused is replaced by a notice. Raises `TurnOver`."""
        try:
            await self._append(thread, run, entries)
        except (InvalidRequest, TooLarge) as error:
            if len(entries) > 1:
                for each in entries:
                    await self.write(thread, run, (each,))
                return
            log.warning("an entry of run %s was refused: %s", run.run, error)
            await self._append(thread, run, (_notice(run, entries[0], error.message),))

    async def _append(self, thread: str, run: Run, entries: Sequence[str]) -> None:
        author = Author(Writer.RUNNER, run.run, run.epoch, run.harness)
        body = b"[%s]" % b",".join(each.encode() for each in entries)
        self._check_append(len(body))
        number = self._numbers.pop(run.run, 1)
        for _ in range(_TRIES):
            headers = {
                b"content-type": b"application/json",
                b"producer-id": PRODUCER.encode(),
                b"producer-epoch": b"%d" % run.epoch,
                b"producer-seq": b"%d" % number,
            }
            request = Request("POST", THREADS + thread, b"", headers, body, self._next_request_id())
            try:
                response = await self._surface.respond(request, author)
            except ProducerGap as gap:
                number = _number(gap.headers, b"producer-expected-seq", number + 1)
                continue
            except (Conflict, Forbidden, Gone, NotFound) as error:
                raise TurnOver(error.message) from error
            if response.status == 204:  # the number is taken, by an earlier hub: these entries were not looked at
                number = _number(response.headers, b"producer-seq", number) + 1
                continue
            self._remember(run.run, number + 1)
            return
        raise TurnOver(f"the number of the next entry of run {run.run} is not known")

    def _remember(self, run: str, number: int) -> None:
        self._numbers[run] = number
        while len(self._numbers) > _REMEMBERED:
            self._numbers.popitem(last=False)


def _number(headers: Sequence[tuple[bytes, bytes]], name: bytes, otherwise: int) -> int:
    value = dict(headers).get(name, b"")
    return int(value) if value.isdigit() and len(value) <= 16 else otherwise


def _notice(run: Run, entry: str, why: str) -> str:
    """Returns an entry in place of one that is refused, with its id if that is one of this run."""
    try:
        found = orjson.loads(entry)
        id, kind = str(found["id"]), str(found["payload"]["type"])
    except (orjson.JSONDecodeError, KeyError, TypeError):
        id, kind = "", "unreadable"
    own = f"{run.run}-{run.epoch}-"
    text = f"an entry ({kind[:100]}, {len(entry)} characters) was refused by the server and skipped: {why}"
    payload = {"type": f"{run.harness}.notice", "level": "error", "text": text[:2000]}
    if not id.startswith(own) or len(id) > 128:
        id = f"{own}refused-{hashlib.sha256(entry.encode()).hexdigest()[:12]}"
    return orjson.dumps({"id": id, "ts": 0, "payload": payload}).decode()
