"""A handle on one thread: write to it, read it, follow it. It has no thread state, only the id and a producer.

The command line loads this module for each append, so it imports the types of other answers where they are used.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from holdfast.api.errors import NotFound, Refused, ServerFailed, TooManyRequests, Unreachable
from holdfast.api.ids import new_entry_id, now_ms
from holdfast.api.limits import MOST_BYTES, MOST_MESSAGES
from holdfast.api.thread.entries import Acknowledgement, Entry
from holdfast.client.connection import ServerConnection, encode_json, not_understood
from holdfast.client.thread.producer import Producer

if TYPE_CHECKING:
    from holdfast.api.access.keys import Token
    from holdfast.api.thread.threads import EntryPage, ThreadChange, ThreadInfo
    from holdfast.client.thread.tail import Tail

Appendable = Mapping[str, Any] | Entry
"""A payload (with its `type`), or a complete entry."""

_PAGE: Final = 1000
BEGINNING: Final = "-1"
NOW: Final = "now"


@dataclass(frozen=True, slots=True)
class Position:
    """The position of a reader: an offset of the server, and how many entries after it have been read.

    The server returns offsets between batches, not between entries. The position of a reader that stops inside a batch
    is `OFFSET+COUNT`; forks in the protocol count the same way (`Stream-Fork-Sub-Offset`).
    """

    offset: str = BEGINNING
    past: int = 0
    """How many entries after the offset have been read."""

    def __str__(self) -> str:
        return f"{self.offset}+{self.past}" if self.past else self.offset


def parse_position(text: str | None) -> Position:
    """Parse a position. None is the beginning of the thread."""
    if text is None:
        return Position()
    offset, plus, past = text.rpartition("+")
    if not plus:
        return Position(text)
    if not offset or offset == NOW or not (past.isascii() and past.isdigit()):
        raise ValueError(f"{text!r} is not a position on a thread: use an offset, OFFSET+COUNT, {BEGINNING} or {NOW}")
    return Position(offset, int(past))


@dataclass(slots=True)
class _Progress:
    """The progress of an append that needs several requests."""

    written: int = 0
    """How many entries are acknowledged."""
    next_offset: str | None = None


class Thread:
    """One thread of the server. `client.thread(id)` creates a handle; no request is sent until a method is called.

    Appends of one handle keep their order, and each is written once, however often the network fails. Handles are
    independent writers: use one per task if order between tasks does not matter.
    """

    def __init__(self, connection: ServerConnection, id: str) -> None:
        if not id:
            raise ValueError("the thread id is empty: it should look like t-01jd2x8w4hq7r")
        self.id = id
        self._connection = connection
        self._path = f"/v1/threads/{quote(id, safe='')}"
        self._stream = f"/v1/stream/threads/{quote(id, safe='')}"

    @functools.cached_property
    def _producer(self) -> Producer:
        return Producer()

    def __repr__(self) -> str:
        return f"<Thread {self.id} on {self._connection.url}>"

    async def append(self, what: Appendable | Sequence[Appendable], *, author_id: str | None = None) -> Acknowledgement:
        """Append entries, and return when they are on the server's disk.

        Up to 20,000 entries and 16 MiB fit in one request, and all or none of them are written. More are sent in
        several requests, in order, with no other append of this handle in between.

        A payload gets an id and a time here. An `Entry` keeps its own, and is skipped if the thread already has its id.
        Lost connections and overload are retried. `Unreachable` lists the entries that were not acknowledged.
        """
        several = (what,) if isinstance(what, Mapping | Entry) else what
        entries = tuple(_as_entry(each, author_id) for each in several)
        progress = _Progress()
        try:
            await self._send([encode_json(entry.to_json()) for entry in entries], progress)
        except (Unreachable, ServerFailed, TooManyRequests) as error:
            raise _unacknowledged(self.id, entries[progress.written :], error) from error
        return Acknowledgement(entries, progress.next_offset)

    async def append_encoded(self, entries: Sequence[bytes]) -> None:
        """Like `append`, for complete entries that are already JSON, each with its own id."""
        await self._send(entries, _Progress())

    async def _send(self, entries: Sequence[bytes], progress: _Progress) -> None:
        """Send each batch as a numbered request of the producer, so that a retry repeats only that batch."""
        async with self._producer.turn():
            for batch in split_batches(entries):
                body = b"[%b]" % b",".join(batch)
                try:
                    async with self._producer.numbered() as headers:
                        answer = await self._connection.ask("POST", self._stream, body=body, headers=headers)
                except Refused as error:
                    if progress.written:
                        error.add_note(f"The first {progress.written} of {len(entries)} entries are on the thread.")
                    raise
                progress.written += len(batch)
                progress.next_offset = answer.headers.get("stream-next-offset")

    async def chat(self, text: str, *, author_id: str | None = None) -> Entry:
        """Append a chat message as the user."""
        payload = {"type": "chat", "role": "user", "text": text}
        return (await self.append(payload, author_id=author_id)).entry

    async def entries(
        self,
        *,
        types: str | Sequence[str] = (),
        since: str | None = None,
        limit: int | None = None,
        live: bool = False,
    ) -> AsyncIterator[Entry]:
        """Yields the existing entries, oldest first: from an offset, of some types (`chat`, `pi.*`), at most `limit`.

        With `live`, includes the streamed pieces of agent messages, before each complete message.
        """
        left = limit
        while left is None or left > 0:
            size = _PAGE if left is None else min(left, _PAGE)
            page = await self.page(types=types, since=since, limit=size, live=live)
            for entry in page.entries:
                yield entry
            if page.up_to_date:
                return
            if page.next_offset == since:
                raise not_understood(f"reading thread {self.id} makes no progress after {since}")
            since = page.next_offset
            left = None if left is None else left - len(page.entries)

    async def page(
        self,
        *,
        types: str | Sequence[str] = (),
        since: str | None = None,
        limit: int = 100,
        live: bool = False,
        unfinished: bool = False,
    ) -> EntryPage:
        """Returns up to `limit` entries (1000 at most) and the offset of the next page.

        With `unfinished`, the last page also has the pieces of a message that is not complete yet. A tail from there
        continues with the next piece.
        """
        from holdfast.api.thread.threads import EntryPage

        offset = await self._resolve(parse_position(since))
        parameters = [("type", each) for each in ((types,) if isinstance(types, str) else types)]
        parameters += [("since", offset), ("limit", str(limit)), *([("live", "true")] if live else [])]
        parameters += [("unfinished", "true")] if unfinished else []
        answer = await self._connection.ask("GET", f"{self._path}/entries", parameters=parameters)
        return answer.read(EntryPage.from_json)

    def tail(self, *, since: str | None = None, patience: float | None = None) -> Tail:
        """Follow the thread from an offset (by default, the beginning) as entries are written.

        Lost connections are resumed without gaps or repetition, without a time limit or for at most `patience` seconds
        each time.
        """
        from holdfast.client.thread.tail import Tail

        return Tail(self._connection, self._stream, since=since, patience=patience)

    async def info(self) -> ThreadInfo:
        from holdfast.api.thread.threads import ThreadInfo

        answer = await self._connection.ask("GET", self._path)
        return answer.read(ThreadInfo.from_json)

    async def rename(self, title: str) -> ThreadInfo:
        from holdfast.api.thread.threads import ThreadChange

        return await self._change(ThreadChange(title=title))

    async def update(self, *, labels: Mapping[str, str] | None = None, archived: bool | None = None) -> ThreadInfo:
        """Replace the labels, and archive or unarchive the thread. What is None stays as it is."""
        from holdfast.api.thread.threads import ThreadChange

        return await self._change(ThreadChange(labels=None if labels is None else dict(labels), archived=archived))

    async def delete(self) -> None:
        """Delete the thread and all its entries permanently."""
        try:
            await self._connection.ask("DELETE", self._path)
        except NotFound as error:
            # An earlier attempt deleted it and its response was lost, so this is a success.
            if not error.repeated:
                raise

    async def token(self, scope: str = "read", *, ttl_seconds: int = 7200) -> Token:
        """Issue a credential for this thread alone, to `read` it or also to `write` to it. Needs an API key."""
        from holdfast.api.access.keys import NewToken, Scope, Token

        body = encode_json(NewToken(scope=Scope(scope), ttl_seconds=ttl_seconds).to_request())
        return (await self._connection.ask("POST", f"{self._path}/tokens", body=body)).read(Token.from_json)

    async def link(self, *, ttl_seconds: int = 24 * 3600) -> str:
        """Returns the URL of this thread's page, with a read key in the fragment, which browsers never send."""
        from holdfast.api.access.keys import Link, NewLink

        body = encode_json(NewLink(ttl_seconds=ttl_seconds).to_request())
        answer = await self._connection.ask("POST", f"{self._path}/links", body=body)
        return f"{self._connection.url}{answer.read(Link.from_json).path}"

    async def _change(self, change: ThreadChange) -> ThreadInfo:
        from holdfast.api.thread.threads import ThreadInfo

        answer = await self._connection.ask("PATCH", self._path, body=encode_json(change.to_request()))
        return answer.read(ThreadInfo.from_json)

    async def _resolve(self, position: Position) -> str:
        """Returns the plain offset of a position inside a batch. The server finds it by counting entries."""
        if position.offset == NOW:
            from holdfast.client.thread.tail import end_of

            return await end_of(self._connection, self._stream)
        offset, past = position.offset, position.past
        while past:
            page = await self.page(since=offset, limit=min(past, _PAGE))
            offset, past = page.next_offset, past - len(page.entries)
            if page.up_to_date:
                break
        return offset


def _as_entry(what: Appendable, author_id: str | None) -> Entry:
    if isinstance(what, Entry):
        return what
    if not isinstance(what, Mapping):
        raise TypeError(f"append takes a payload or an Entry, or a list of them, not {type(what).__name__}")
    return Entry(new_entry_id(), now_ms(), dict(what), author_id)


def _unacknowledged(thread: str, entries: tuple[Entry, ...], error: Exception) -> Unreachable:
    which = entries[0].id if len(entries) == 1 else f"{entries[0].id} to {entries[-1].id}"
    count = "1 entry" if len(entries) == 1 else f"{len(entries)} entries"
    return Unreachable(
        f"{count} ({which}) of thread {thread} not acknowledged: {error}",
        status=getattr(error, "status", None),
        hint="append the same entries again when the server is back: their ids keep them from being written twice",
        request_id=getattr(error, "request_id", None),
        unacknowledged=entries,
    )


def split_batches(entries: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
    """Yields encoded entries, in order, in batches that fit in one request.

    An entry that is too large for a request is a batch of its own, so that the server reports it.
    """
    begin, size = 0, 1
    for index, entry in enumerate(entries):
        size += len(entry) + 1  # including a comma or bracket
        if index > begin and (size > MOST_BYTES or index - begin == MOST_MESSAGES):
            yield entries[begin:index]
            begin, size = index, 1 + len(entry) + 1
    if begin < len(entries):
        yield entries[begin:]
