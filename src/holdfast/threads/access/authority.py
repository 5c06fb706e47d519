"""Who may write what on a thread: a table, and the check for every append from outside the server.

`MAY_WRITE` is the table; docs/threads.md documents it. The server's own appends skip this check. Entries that the
server later acts on also carry its seal (`seals`), so an entry that got past this check is shown but not obeyed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from holdfast.api.errors import Forbidden
from holdfast.api.errors.threads import InvalidEntry
from holdfast.api.limits import RESERVED_ENTRY_IDS
from holdfast.api.run.info import RunStatus
from holdfast.api.thread.entries import Entry
from holdfast.threads.access.seals import Seals
from holdfast.threads.entries import Admit, keyed, keyed_entries, keyed_slices
from holdfast.threads.run_events import FINISHED, PREFIX, PRODUCER, end_id
from holdfast.threads.session_events import QUESTION, SESSION_PRODUCER, is_prompt
from holdfast.threads.store import Keyed


class Writer(StrEnum):
    """The authors other than the server itself. All others (links, read and subscription tokens) may not append."""

    KEY = "key"
    """An API key, or any client if the server requires no key."""
    TOKEN = "token"
    """A thread token with scope write."""
    RUNNER = "runner"
    """The token of a run, used at the guest API of its box."""


class EntryKind(StrEnum):
    """The kinds of entries that differ in who may write them."""

    CHAT = "chat"
    PROMPT = "prompt"
    """A chat that is queued for launch (`queued`), or for a session (`prompt`)."""
    RUN_END = "run-end"
    RUN_SIGNAL = "run-signal"
    THREAD_SIGNAL = "thread-signal"
    SIGNAL = "signal"
    """A signal of any other scope."""
    INTERPRETER = "interpreter"
    AGENT = "agent"
    """`<agent>.<event>` of an agent that a run can use."""
    OTHER = "other"
    """Types that have no meaning to Holdfast."""


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
"""A runner may only write the end of its own run and entries of its own agent. A key may write PROMPT, RUN_END,
RUN_SIGNAL and interpreter settings, but they have no seal: they are shown and not acted on. To act, use the REST API.
"""

_MAY_ALL: Final = frozenset.intersection(*MAY_WRITE.values())
"""Writers that may write every kind, so the kind need not be determined. Most appends are theirs."""
_RUNNER_ENDINGS: Final = (RunStatus.COMPLETED.value, RunStatus.FAILED.value, RunStatus.CANCELLED.value)


@dataclass(frozen=True, slots=True)
class Author:
    """The author of an append."""

    writer: Writer
    run: str = ""
    epoch: int = 0
    agent: str = ""
    """The prefix of its agent's entry types. Set for runners only, as are `run` and `epoch`."""


KEY: Final = Author(Writer.KEY)
TOKEN: Final = Author(Writer.TOKEN)


def kind_of(payload: Mapping[str, Any], agents: frozenset[str]) -> EntryKind:
    kind: str = payload["type"]
    if kind == "chat":
        is_queued = payload.get("queued") not in (None, False) or is_prompt(payload)
        return EntryKind.PROMPT if is_queued else EntryKind.CHAT
    scope, _, rest = kind.partition(".")
    if scope == "signal":
        if kind.startswith(PREFIX):
            return EntryKind.RUN_END if kind == FINISHED else EntryKind.RUN_SIGNAL
        return EntryKind.THREAD_SIGNAL if rest.partition(".")[0] == "thread" else EntryKind.SIGNAL
    if scope == "interpreter":
        return EntryKind.INTERPRETER
    return EntryKind.AGENT if scope in agents else EntryKind.OTHER


def may_append(author: Author, id: str | None, payload: Mapping[str, Any], agents: frozenset[str]) -> str | None:
    """Returns why this author may not write this entry, or None. `agents` are the names that runs can have."""
    if author.writer is Writer.RUNNER:
        return _may_run(author, id, payload)
    if id is not None and id.startswith(RESERVED_ENTRY_IDS):
        return f"the id {id!r} is reserved for runs: use another one, or none"
    if author.writer in _MAY_ALL:
        return None
    kind = kind_of(payload, agents)
    if author.writer in MAY_WRITE[kind]:
        return None
    if kind is EntryKind.PROMPT:
        return "a thread token cannot queue a prompt: use an API key and POST /v1/runs/{thread}/steer"
    return f"a thread token cannot write {payload['type']}: it may write chats and types that Holdfast does not use"


def _may_run(author: Author, id: str | None, payload: Mapping[str, Any]) -> str | None:
    kind: str = payload["type"]
    if kind == FINISHED:
        if id != end_id(author.run) or payload.get("run") != author.run:
            return f"this runner may only end its own run, {author.run}"
        if payload.get("by") != "runner" or payload.get("status") not in _RUNNER_ENDINGS:
            return "a runner must end its run with by=runner and status completed, failed or cancelled"
        if payload.get("epoch", author.epoch) != author.epoch:
            return f"a runner must end its run in its own epoch, {author.epoch}"
        return None
    if not author.agent or not kind.startswith(f"{author.agent}."):
        return f"a runner of {author.agent} cannot write {kind}: it may write entries of its agent and end its run"
    if id is None or not id.startswith(f"{author.run}-{author.epoch}-"):
        return f"the ids of this runner's entries must begin with {author.run}-{author.epoch}-"
    return None


class Authority:
    """Parses the entries of a request, and refuses those that the author may not write."""

    def __init__(self, seals: Seals, agents: frozenset[str] = frozenset()) -> None:
        self._seals = seals
        self._agents = agents

    def entries(self, body: bytes, now: int, thread: str, author: Author) -> tuple[Keyed, ...]:
        """Returns the entries, ready to append. Raises `InvalidEntry` or `Forbidden` if any of them is refused."""
        return keyed_entries(body, now, self._admit(now, thread, author))

    def slices(self, body: bytes, now: int, thread: str, author: Author) -> Iterator[tuple[Keyed, ...]]:
        """Like `entries`, but yields the entries of a large body one slice at a time."""
        return keyed_slices(body, now, self._admit(now, thread, author))

    def _admit(self, now: int, thread: str, author: Author) -> Admit:
        def admit(value: dict[str, Any]) -> Keyed | None:
            payload = value["payload"]
            if (reason := may_append(author, value.get("id"), payload, self._agents)) is not None:
                # A runner that gets `Forbidden` gives up its run. On `InvalidEntry` it reports the error and continues.
                raise InvalidEntry(reason) if author.writer is Writer.RUNNER else Forbidden(reason)
            if author.writer is Writer.RUNNER and payload["type"] in (FINISHED, QUESTION):
                # This check makes the entry the true end, or a true question, of the run. The seal tells later readers
                # so.
                try:
                    return keyed(self._seals.seal(thread, Entry.from_json({"ts": now, **value})))
                except ValueError as error:
                    raise InvalidEntry(str(error)) from None
            return None

        return admit


def check_producer(author: Author, producer: str) -> None:
    """Raises `Forbidden` if the author may not use this producer. Writing as the runs' producer with a higher epoch
    would take the thread away from its run. Writing as that of a session would keep it in its state.
    """
    if producer == PRODUCER and author.writer is not Writer.RUNNER:
        raise Forbidden(f"the producer {PRODUCER!r} is reserved for runs", hint="use another Producer-Id")
    if producer == SESSION_PRODUCER:
        raise Forbidden(f"the producer {SESSION_PRODUCER!r} is reserved for sessions", hint="use another Producer-Id")
