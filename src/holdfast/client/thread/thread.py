"""A handle on one thread: write to it, read it, follow it. Holds no state of the thread, only its id and a producer.

The command line loads this module for each append, so it imports the types of other answers where they are used.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from holdfast.api.entries import Acknowledgement, Entry
from holdfast.api.errors import NotFound, Refused, ServerFailed, TooManyRequests, Unreachable
from holdfast.api.ids import new_entry_id, now_ms
from holdfast.client.connection import ServerConnection, encode_json, not_understood
from holdfast.client.thread.batches import split_batches
from holdfast.client.thread.positions import NOW, Position, parse_position
from holdfast.client.thread.producer import Producer

if TYPE_CHECKING:
    from holdfast.api.keys import Token
    from holdfast.api.threads import EntryPage, ThreadChange, ThreadInfo
    from holdfast.client.thread.tail import Tail

Appendable = Mapping[str, Any] | Entry
"""A payload (with its `type`), or a whole entry."""

_PAGE: Final = 1000


@dataclass(slots=True)
class _Progress:
    """How far an append of several requests has come."""

    written: int = 0
    """Entries that are acknowledged."""
    next_offset: str | None = None


class Thread:
    """One thread of the server. Made by `client.thread(id)`; asks nothing until a method is called.

    Appends of one handle keep their order and are written once each, however often the network fails. Handles are
    independent writers: make one per task where order between tasks does not matter.
    """

    def __init__(self, connection: ServerConnection, id: str) -> None:
        if not id:
            raise ValueError("a thread needs an id, such as t-01jd2x8w4hq7r; the one given is empty")
        self.id = id
        self._connection = connection
        self._path = f"/v1/threads/{quote(id, safe='')}"
        self._stream = f"/v1/stream/threads/{quote(id, safe='')}"
        self._producer = Producer()

    def __repr__(self) -> str:
        return f"<Thread {self.id} on {self._connection.url}>"

    async def append(self, what: Appendable | Sequence[Appendable], *, author_id: str | None = None) -> Acknowledgement:
        """Append entries, and return when they are on the server's disk.

        All or none of them are written where they fit in one request: 20,000 entries and 16 MiB. More are sent in
        several requests, in order, and nothing of this handle comes between them.

        A payload gets an id and a time here; an `Entry` keeps its own, and is dropped where the thread has it already.
        Lost connections and overload are retried; `Unreachable` tells which entries nobody acknowledged.
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
        """The same for whole entries that are JSON already, each with an id of its own."""
        await self._send(entries, _Progress())

    async def _send(self, entries: Sequence[bytes], progress: _Progress) -> None:
        """Each batch is a request of its own to the producer: a retry repeats that batch and no other."""
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
        """Say something as the user."""
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
        """The entries there are, oldest first: from an offset on, of some types (`chat`, `pi.*`), at most so many.

        `live`: with the text that agents say as it came, piece by piece, before each whole message.
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
                raise not_understood(f"reading thread {self.id} does not get past {since}")
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
        """Up to `limit` entries at once (1000 at most), and where the next ones are.

        `unfinished`: the last page also has the pieces of a message that is not whole yet. A tail from there goes on
        with the next piece.
        """
        from holdfast.api.threads import EntryPage

        offset = await self._resolve(parse_position(since))
        parameters = [("type", each) for each in ((types,) if isinstance(types, str) else types)]
        parameters += [("since", offset), ("limit", str(limit)), *([("live", "true")] if live else [])]
        parameters += [("unfinished", "true")] if unfinished else []
        answer = await self._connection.ask("GET", f"{self._path}/entries", parameters=parameters)
        return answer.read(EntryPage.from_json)

    def tail(self, *, since: str | None = None, patience: float | None = None) -> Tail:
        """Follow the thread from an offset on (the beginning, unless told), as entries come.

        Lost connections are taken up again without gap or repetition, for as long as it takes, or for `patience`
        seconds at a time.
        """
        from holdfast.client.thread.tail import Tail

        return Tail(self._connection, self._stream, since=since, patience=patience)

    async def info(self) -> ThreadInfo:
        from holdfast.api.threads import ThreadInfo

        answer = await self._connection.ask("GET", self._path)
        return answer.read(ThreadInfo.from_json)

    async def rename(self, title: str) -> ThreadInfo:
        from holdfast.api.threads import ThreadChange

        return await self._change(ThreadChange(title=title))

    async def update(self, *, labels: Mapping[str, str] | None = None, archived: bool | None = None) -> ThreadInfo:
        """Replace the labels, archive the thread or bring it back; what is None stays."""
        from holdfast.api.threads import ThreadChange

        return await self._change(ThreadChange(labels=None if labels is None else dict(labels), archived=archived))

    async def delete(self) -> None:
        """Delete the thread and all its entries, for good."""
        try:
            await self._connection.ask("DELETE", self._path)
        except NotFound as error:
            # Deleted by an earlier attempt of ours, whose answer was lost: then this is a success.
            if not error.repeated:
                raise

    async def token(self, scope: str = "read", *, ttl_seconds: int = 7200) -> Token:
        """A credential for this thread alone, to `read` it or to `write` to it too. Needs an API key."""
        from holdfast.api.keys import NewToken, Scope, Token

        body = encode_json(NewToken(scope=Scope(scope), ttl_seconds=ttl_seconds).given())
        return (await self._connection.ask("POST", f"{self._path}/tokens", body=body)).read(Token.from_json)

    async def link(self, *, ttl_seconds: int = 24 * 3600) -> str:
        """The address of this thread's page, with a key to read it in the part that browsers never send."""
        from holdfast.api.keys import Link, NewLink

        body = encode_json(NewLink(ttl_seconds=ttl_seconds).given())
        answer = await self._connection.ask("POST", f"{self._path}/links", body=body)
        return f"{self._connection.url}{answer.read(Link.from_json).path}"

    async def _change(self, change: ThreadChange) -> ThreadInfo:
        from holdfast.api.threads import ThreadInfo

        answer = await self._connection.ask("PATCH", self._path, body=encode_json(change.given()))
        return answer.read(ThreadInfo.from_json)

    async def _resolve(self, position: Position) -> str:
        """A plain offset for a position inside a batch, which the server finds by counting entries."""
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
