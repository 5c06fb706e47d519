"""Who may write what on a thread: one table, and the check that every append from outside the server goes through.

`MAY_WRITE` is the table; docs/threads.md shows it to people. The server's own appends do not come here. What it acts on
later carries its seal as well (`seals`), so an entry that slipped in by any way is shown and not obeyed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from holdfast.api.limits import RESERVED_ENTRY_IDS
from holdfast.threads.access.seals import Seals
from holdfast.threads.entries import Admit, Entry, keyed, keyed_entries, keyed_slices
from holdfast.threads.errors import Forbidden, InvalidEntry
from holdfast.threads.run_events import FINISHED, PREFIX, PRODUCER, RunStatus, end_id
from holdfast.threads.streams import Keyed


class Writer(StrEnum):
    """Who appends, apart from the server itself. Whoever is not here (a link, a read or subscription token) may not."""

    KEY = "key"
    """An API key; anybody, where the server asks for none."""
    TOKEN = "token"
    """A thread token with scope write."""
    RUNNER = "runner"
    """The token of a run, at the guest API of its box."""


class EntryKind(StrEnum):
    """What an entry is, as far as it matters who wrote it."""

    CHAT = "chat"
    PROMPT = "prompt"
    """A chat that waits to be launched (`queued`)."""
    RUN_END = "run-end"
    RUN_SIGNAL = "run-signal"
    THREAD_SIGNAL = "thread-signal"
    SIGNAL = "signal"
    """Of any other scope."""
    INTERPRETER = "interpreter"
    AGENT = "agent"
    """`<agent>.<event>` of an agent that runs can have."""
    OTHER = "other"
    """Types that mean nothing to Holdfast."""


MAY_WRITE: Final[Mapping[EntryKind, frozenset[Writer]]] = {
    EntryKind.CHAT: frozenset((Writer.KEY, Writer.TOKEN)),
    EntryKind.PROMPT: frozenset((Writer.KEY,)),
    EntryKind.RUN_END: frozenset((Writer.KEY, Writer.RUNNER)),
    EntryKind.RUN_SIGNAL: frozenset((Writer.KEY,)),
    EntryKind.THREAD_SIGNAL: frozenset((Writer.KEY,)),
    EntryKind.SIGNAL: frozenset((Writer.KEY,)),
    EntryKind.INTERPRETER: frozenset((Writer.KEY,)),
    EntryKind.AGENT: frozenset((Writer.KEY, Writer.RUNNER)),
    EntryKind.OTHER: frozenset((Writer.KEY, Writer.TOKEN)),
}
"""A runner writes its own run's end and its own agent's entries alone. What a key writes of PROMPT, RUN_END, RUN_SIGNAL
and of an interpreter's settings is kept and shown, but has no seal: to act, a key asks by REST for the thing itself."""

_MAY_ALL: Final = frozenset.intersection(*MAY_WRITE.values())
"""Of whose entries nobody has to find out what they are: most appends are theirs."""
_RUNNER_ENDINGS: Final = (RunStatus.COMPLETED.value, RunStatus.FAILED.value, RunStatus.CANCELLED.value)


@dataclass(frozen=True, slots=True)
class Author:
    """One who appends."""

    writer: Writer
    run: str = ""
    epoch: int = 0
    agent: str = ""
    """What the types of its agent's entries begin with. Of a runner, as the two before."""


KEY: Final = Author(Writer.KEY)
TOKEN: Final = Author(Writer.TOKEN)


def kind_of(payload: Mapping[str, Any], agents: frozenset[str]) -> EntryKind:
    kind: str = payload["type"]
    if kind == "chat":
        return EntryKind.PROMPT if payload.get("queued") not in (None, False) else EntryKind.CHAT
    scope, _, rest = kind.partition(".")
    if scope == "signal":
        if kind.startswith(PREFIX):
            return EntryKind.RUN_END if kind == FINISHED else EntryKind.RUN_SIGNAL
        return EntryKind.THREAD_SIGNAL if rest.partition(".")[0] == "thread" else EntryKind.SIGNAL
    if scope == "interpreter":
        return EntryKind.INTERPRETER
    return EntryKind.AGENT if scope in agents else EntryKind.OTHER


def may_append(author: Author, id: str | None, payload: Mapping[str, Any], agents: frozenset[str]) -> str | None:
    """Why this author may not write this entry; None where it may. `agents` are the names that runs can have."""
    if author.writer is Writer.RUNNER:
        return _may_run(author, id, payload)
    if id is not None and id.startswith(RESERVED_ENTRY_IDS):
        return f"the id {id!r} is kept for runs: use another, or none"
    if author.writer in _MAY_ALL:
        return None
    kind = kind_of(payload, agents)
    if author.writer in MAY_WRITE[kind]:
        return None
    if kind is EntryKind.PROMPT:
        return "a thread token cannot queue a prompt: it takes an API key, and POST /v1/runs/{thread}/steer"
    return f"a thread token cannot write {payload['type']}: it writes chats, and types of its own"


def _may_run(author: Author, id: str | None, payload: Mapping[str, Any]) -> str | None:
    kind: str = payload["type"]
    if kind == FINISHED:
        if id != end_id(author.run) or payload.get("run") != author.run:
            return f"a runner ends run {author.run} and no other"
        if payload.get("by") != "runner" or payload.get("status") not in _RUNNER_ENDINGS:
            return "a runner ends its run by its own name, as completed, failed or cancelled"
        if payload.get("epoch", author.epoch) != author.epoch:
            return f"a runner ends its run in its own epoch, {author.epoch}"
        return None
    if not author.agent or not kind.startswith(f"{author.agent}."):
        return f"a runner of {author.agent} cannot write {kind}: it writes its agent's entries, and its own end"
    if id is None or not id.startswith(f"{author.run}-{author.epoch}-"):
        return f"the ids of a runner's entries begin with {author.run}-{author.epoch}-"
    return None


class Authority:
    """Reads the entries of a request, and refuses those that its author may not write."""

    def __init__(self, seals: Seals, agents: frozenset[str] = frozenset()) -> None:
        self._seals = seals
        self._agents = agents

    def entries(self, body: bytes, now: int, thread: str, author: Author) -> tuple[Keyed, ...]:
        """Ready to append; all of them or none. Raises `InvalidEntry` and `Forbidden`."""
        return keyed_entries(body, now, self._admit(now, thread, author))

    def slices(self, body: bytes, now: int, thread: str, author: Author) -> Iterator[tuple[Keyed, ...]]:
        """The same for a large body, a slice at a time."""
        return keyed_slices(body, now, self._admit(now, thread, author))

    def _admit(self, now: int, thread: str, author: Author) -> Admit:
        def admit(value: dict[str, Any]) -> Keyed | None:
            payload = value["payload"]
            if (reason := may_append(author, value.get("id"), payload, self._agents)) is not None:
                # A runner that is forbidden to write gives its run up; of an entry that is wrong it tells, and goes on.
                raise InvalidEntry(reason) if author.writer is Writer.RUNNER else Forbidden(reason)
            if author.writer is Writer.RUNNER and payload["type"] == FINISHED:
                # What was checked just now is what makes it the run's true end: later readers know it by the seal.
                try:
                    return keyed(self._seals.seal(thread, Entry.from_json({"ts": now, **value})))
                except ValueError as error:
                    raise InvalidEntry(str(error)) from None
            return None

        return admit


def check_producer(author: Author, producer: str) -> None:
    """The producer of runs fences: who writes as it in a higher epoch takes the thread from its run."""
    if producer == PRODUCER and author.writer is not Writer.RUNNER:
        raise Forbidden(f"the producer {PRODUCER!r} of a thread is kept for its runs", hint="use another Producer-Id")
