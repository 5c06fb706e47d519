"""REST: threads and their entries."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Query
from fastapi.responses import Response

from holdfast.api.access.keys import Link, NewLink, NewToken, Token
from holdfast.api.limits import ThreadId
from holdfast.api.model.budgets import Cost
from holdfast.api.thread.entries import Entry
from holdfast.api.thread.threads import (
    Chatted,
    EntryPage,
    ForkSource,
    LastEntry,
    NewChat,
    NewThread,
    ThreadChange,
    ThreadInfo,
    ThreadPage,
    ThreadStatus,
)
from holdfast.server.routes.access.keys import token_of
from holdfast.server.routes.model.costs import costs_by
from holdfast.server.routes.run.runs import run_info
from holdfast.server.routes.services import THREAD_ERRORS, Administrator, Caller, Use, answer
from holdfast.threads.access.credentials import Scope
from holdfast.threads.protocol.offsets import format_offset_text
from holdfast.threads.protocol.surface import PREFIX, THREADS, start_of
from holdfast.threads.rows import RowFilter, ThreadRow, parse_cursor

_MOST_WORDS = 10
_MOST_LISTED = 1024
router = APIRouter(prefix="/v1", responses=THREAD_ERRORS)


@router.post("/threads", status_code=201, tags=["threads"])
async def create_thread(new: NewThread, services: Use, _: Administrator) -> ThreadInfo:
    """Create a thread."""
    row = await services.threads.create(id=new.id, title=new.title, parent=new.parent, labels=new.labels)
    return thread_info(row)


@router.get("/threads", tags=["threads"])
async def list_threads(
    services: Use,
    _: Administrator,
    parent: ThreadId | None = None,
    status: ThreadStatus | None = None,
    label: Annotated[list[str] | None, Query(description="`name:value`, or just `name`; all must match.")] = None,
    archived: Literal["false", "true", "any"] = "false",
    search: Annotated[
        str | None, Query(max_length=200, description="Words that are all in the title or the id.")
    ] = None,
    cursor: str | None = None,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
) -> ThreadPage:
    """List threads, most recently active first."""
    page = await services.threads.list(
        RowFilter(
            parent=parent,
            status=status,
            labels=tuple(_label(each) for each in label or ()),
            archived=None if archived == "any" else archived == "true",
            words=tuple((search or "").replace("\0", " ").split()[:_MOST_WORDS]),
            limit=limit,
            after=parse_cursor(cursor) if cursor is not None else None,
        )
    )
    costs = await costs_by(services, (row.id for row in page.rows), "thread")
    infos = [
        thread_info(row, costs[row.id]) if row.id in costs else _listed(services.listed_threads, row)
        for row in page.rows
    ]
    return ThreadPage(threads=tuple(infos), next_cursor=page.next_cursor)


def _listed(known: dict[int, tuple[ThreadRow, ThreadInfo]], row: ThreadRow) -> ThreadInfo:
    """Returns what was made of a row when it was last listed. A row never changes, and one that did not change is the
    same object again (`holdfast.storage.sqlite.thread_rows`). `known` holds the rows, so that their ids stay theirs.
    """
    found = known.get(id(row))
    if found is not None:
        return found[1]
    if len(known) >= _MOST_LISTED:
        known.clear()
    info = thread_info(row)
    known[id(row)] = row, info
    return info


def _label(text: str) -> tuple[str, str | None]:
    name, colon, value = text.partition(":")
    return name, value if colon else None


@router.get("/threads/{id}", tags=["threads"])
async def get_thread(id: ThreadId, services: Use, grant: Caller) -> ThreadInfo:
    """Get a thread."""
    grant.check_thread(id, Scope.READ)
    runs = services.runs.opened
    row = await (services.threads.get(id) if runs is None else runs.reconcile(id))
    return thread_info(row, (await costs_by(services, (id,), "thread")).get(id))


@router.patch("/threads/{id}", tags=["threads"])
async def change_thread(id: ThreadId, change: ThreadChange, services: Use, _: Administrator) -> ThreadInfo:
    """Rename, label or archive a thread. Omitted fields stay unchanged."""
    if change.title is not None:
        await services.threads.rename(id, change.title)
    if change.labels is not None:
        await services.threads.label(id, change.labels)
    if change.archived is not None:
        await services.threads.archive(id, change.archived)
    return thread_info(await services.threads.get(id))


@router.delete("/threads/{id}", status_code=204, tags=["threads"])
async def delete_thread(id: ThreadId, services: Use, _: Administrator) -> None:
    """Delete a thread and everything on it, and the box that was made for its runs."""
    if (await services.threads.get(id)).runs.session is not None:
        await (await services.sessions.get()).terminate(id)
    if (runs := services.runs.opened) is not None:
        await runs.forget(id)
    await services.threads.delete(id)


@router.post("/threads/{id}/chat", status_code=201, response_model=Chatted, tags=["entries"])
async def post_chat(id: ThreadId, chat: NewChat, services: Use, grant: Caller) -> Response:
    """Append a chat entry to a thread."""
    grant.check_thread(id, Scope.WRITE)
    entry, position = await services.threads.chat(id, chat.text, author_id=chat.author_id, entry_id=chat.id)
    return answer(Chatted(entry=entry, next_offset=format_offset_text(position)), status=201)


@router.get("/threads/{id}/entries", response_model=EntryPage, tags=["entries"])
async def read_entries(
    id: ThreadId,
    services: Use,
    grant: Caller,
    type: Annotated[list[str] | None, Query(description="Payload types: exact, or a prefix such as `pi.*`.")] = None,
    since: Annotated[str, Query(description="An offset from an earlier answer, or `-1` for the beginning.")] = "-1",
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    live: Annotated[bool, Query(description="Include live text, in pieces, before the complete message.")] = False,
    unfinished: Annotated[
        bool, Query(description="Include the pieces of an incomplete message, to follow the thread from there.")
    ] = False,
) -> Response:
    """Read entries, oldest first. To follow a thread live, read its stream."""
    grant.check_thread(id, Scope.READ)
    page = await services.threads.entries(
        id, types=tuple(type or ()), since=start_of(since), limit=limit, live=live, unfinished=unfinished
    )
    return answer(
        EntryPage(
            entries=tuple(map(Entry.from_json, page.entries)),
            next_offset=format_offset_text(page.position),
            up_to_date=page.up_to_date,
        )
    )


@router.post("/threads/{id}/tokens", status_code=201, tags=["tokens"])
async def issue_token(id: ThreadId, new: NewToken, services: Use, grant: Administrator) -> Token:
    """Create a token for only this thread. It ends with your key, or when you are no longer a member."""
    await services.threads.get(id)
    return token_of(services.access.issue(id, new.scope, new.ttl_seconds, issuer=grant.as_issuer))


@router.post("/threads/{id}/links", status_code=201, tags=["tokens"])
async def issue_link(id: ThreadId, new: NewLink, services: Use, _: Administrator) -> Link:
    """Create a read-only link to the page of this thread."""
    await services.threads.get(id)
    issued = services.access.issue_link(id, new.ttl_seconds)
    return Link(path=f"/t/{id}#key={issued.key}", expires_at=issued.expires_at)


def thread_info(row: ThreadRow, cost: Cost | None = None) -> ThreadInfo:
    return ThreadInfo(
        id=row.id,
        title=row.title,
        status=row.status,
        parent=row.parent,
        labels=row.labels,
        archived=row.archived,
        entry_count=row.entry_count,
        created_at=row.created_at,
        last_activity_at=row.last_activity_at,
        next_offset=format_offset_text(row.folded),
        last_entry=LastEntry(**row.last_entry) if row.last_entry else None,
        stream=f"{PREFIX}{THREADS}{row.id}",
        run=None if row.runs.latest is None else run_info(row.id, row.runs.latest, len(row.runs.waiting)),
        cost=cost,
        fork_of=None
        if row.lineage.fork_of is None
        else ForkSource(thread=row.lineage.fork_of.thread, turn=row.lineage.fork_of.turn),
    )
