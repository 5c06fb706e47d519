"""A thread as a file of JSON lines, and how such a file is read again. Pure.

The first line names the thread, all others are its entries. A file is untrusted: anyone can write one. So nothing that
the server of its thread acted on is taken over, but what was said and done is: `runs.thread_import` writes it onto a
new thread, with signals of its own.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

from holdfast.api.errors.runs import InvalidRun
from holdfast.api.errors.threads import InvalidEntry
from holdfast.api.thread.entries import Entry, is_passing
from holdfast.threads.access.seals import SEAL
from holdfast.threads.entries import check_entry, check_storable
from holdfast.threads.lineage import REWOUND
from holdfast.threads.run_events import FINISHED, STARTED, is_control

EXPORTED: Final = "signal.thread.exported"
MOST_ENTRIES: Final = 20_000
_VERSION: Final = 1
_THREAD: Final = re.compile(r"[A-Za-z0-9_-]{1,128}")
_OF_THREAD: Final = "signal.thread."
_SAID: Final = ("type", "role", "text")
"""What is kept of a prompt that waits to be launched."""
_MOST_TITLE: Final = 200


@dataclass(frozen=True, slots=True)
class ThreadFile:
    thread: str | None
    """The thread that was exported."""
    title: str | None
    entries: tuple[Entry, ...]
    """What was said and done, and the starts and ends of runs, without seals."""
    rewound: int
    """Entries that are left out because the thread was rewound."""


def head_line(thread: str, title: str | None, now: int) -> bytes:
    """Returns the first line of a file. It has the form of an entry, too."""
    payload: dict[str, Any] = {"type": EXPORTED, "version": _VERSION, "thread": thread}
    return entry_line(Entry(f"export-{thread}", now, payload if title is None else {**payload, "title": title}))


def entry_line(entry: Entry) -> bytes:
    return json.dumps(entry.to_json(), separators=(",", ":")).encode() + b"\n"


def is_thread_file(data: bytes) -> bool:
    """Returns whether this looks like an exported thread."""
    try:
        value = json.loads(data.lstrip().partition(b"\n")[0])
    except (ValueError, RecursionError):
        return False
    return isinstance(value, dict) and isinstance(value.get("payload"), dict) and {"id", "ts"} <= value.keys()


def read_thread_file(data: bytes, now: int) -> ThreadFile:
    """Read a file. A time that is still to come becomes `now`. Raises `InvalidRun`."""
    thread, title = None, None
    read: list[Entry] = []
    seen: set[str] = set()
    for number, entry in _entries(data):
        payload = entry.payload
        if entry.type == EXPORTED:
            if payload.get("version") != _VERSION:
                raise _invalid(number, f"version {payload.get('version')!r} of this format is not known here")
            thread, title = payload.get("thread"), payload.get("title")
            continue
        if thread is None and isinstance(payload.get(SEAL), str):
            thread = payload[SEAL].rpartition(".")[0]
        if entry.type in ("signal.thread.created", "signal.thread.renamed"):
            title = payload.get("title")
        if entry.id not in seen and not is_passing(entry.type):
            seen.add(entry.id)
            read.append(replace(entry, ts=min(entry.ts, now)))
        if len(read) > MOST_ENTRIES:
            raise InvalidRun(f"the thread has more than {MOST_ENTRIES:,} entries: too many to import")
    kept = conversation(read)
    return ThreadFile(
        thread if isinstance(thread, str) and _THREAD.fullmatch(thread) else None,
        title[:_MOST_TITLE] if isinstance(title, str) and title.strip() else None,
        tuple(map(_bare, filter(_is_told, kept))),
        len(read) - len(kept) - sum(entry.type == REWOUND for entry in read),
    )


def conversation(entries: Iterable[Entry]) -> list[Entry]:
    """Returns the entries that count: without those that a rewind took back, and without the rewinds.

    A rewind names the turn that it goes back to. Turns are numbered by their starts, and no number is used twice.
    """
    last: _Link | None = None
    after: dict[int, _Link | None] = {}
    turn = 0
    for entry in entries:
        if entry.type == REWOUND:
            to = entry.payload.get("turn")
            if isinstance(to, int) and to in after:
                last = after[to]
            continue
        if entry.type == STARTED:
            after.setdefault(0, last)
            turn += 1
        last = _Link(entry, last)
        if entry.type == FINISHED:
            after[turn] = last
    kept: list[Entry] = []
    while last is not None:
        kept.append(last.entry)
        last = last.before
    return kept[::-1]


@dataclass(frozen=True, slots=True)
class _Link:
    """An entry, and the one before it that counts."""

    entry: Entry
    before: _Link | None


def _entries(data: bytes) -> Iterator[tuple[int, Entry]]:
    for number, line in enumerate(data.splitlines(), 1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
            if isinstance(value, dict):
                value.pop("offset", None)  # as `holdfast thread tail --json` prints it
            check_entry(value)
            entry = Entry(value["id"], value["ts"], value["payload"], value.get("authorId"))
            check_storable(entry)
            yield number, entry
        except InvalidEntry as error:
            raise _invalid(number, error.message) from None
        except KeyError as error:
            raise _invalid(number, f"the entry has no {error.args[0]}") from None
        except (ValueError, RecursionError):
            raise _invalid(number, "it is not JSON; is the file cut off?") from None


def _is_told(entry: Entry) -> bool:
    """Returns whether an entry is taken over. What a server acts on holds only where it was: what its signals say about
    a thread, its boxes and its tasks. The starts and ends of runs are taken, to be written anew.
    """
    if entry.type in ("chat", STARTED, FINISHED):
        return True
    return not entry.type.startswith(_OF_THREAD) and not is_control(entry.payload)


def _bare(entry: Entry) -> Entry:
    """Returns an entry without what a server acts on: its seal, and that it waits to be launched."""
    payload = {name: value for name, value in entry.payload.items() if name != SEAL}
    if entry.type == "chat" and is_control(payload):
        payload = {name: payload[name] for name in _SAID if name in payload}
    return replace(entry, payload=payload)


def _invalid(number: int, why: str) -> InvalidRun:
    return InvalidRun(f"this is not an exported thread: line {number}: {why}", hint="make one: holdfast export THREAD")
