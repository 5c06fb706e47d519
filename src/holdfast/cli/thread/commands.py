"""`holdfast thread`: creates, lists, reads, writes and follows threads."""

from __future__ import annotations

import time
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from holdfast.cli.errors import CommandError
from holdfast.cli.exits import Exit
from holdfast.cli.names import find_thread, find_thread_now
from holdfast.cli.options import JsonOption, LabelsOption, LimitOption, ThreadArgument, Where
from holdfast.cli.parsing.parameters import Argument, Option
from holdfast.cli.run.status import describe_status
from holdfast.cli.session import ask_blocking, connect
from holdfast.cli.terminal.confirmation import YesOption, confirm
from holdfast.cli.terminal.console import (
    Cell,
    hint,
    is_terminal,
    note,
    write_field,
    write_json,
    write_line,
    write_table,
)
from holdfast.cli.terminal.durations import describe_duration, parse_duration

if TYPE_CHECKING:
    from holdfast.cli.terminal.entry_lines import EntryLog
    from holdfast.client import Client, Entry, ThreadInfo, Unreachable

StatusName = Literal["idle", "running", "completed", "failed", "cancelled"]
ScopeName = Literal["read", "write"]

_STYLES: Final = {"running": "green", "completed": "", "failed": "red", "cancelled": "yellow", "idle": "dim"}
_PAGE: Final = 200

TypesOption = Annotated[
    list[str] | None,
    Option("--type", metavar="TYPE", help="Only this type (chat) or family (pi.*). Can be given several times."),
]


def new(
    title: Annotated[str | None, Argument(metavar="TITLE", help="What the thread is about.")] = None,
    parent: Annotated[str | None, Option(metavar="ID", help="Parent thread.")] = None,
    label: LabelsOption = None,
    id: Annotated[str | None, Option("--id", metavar="ID", help="Choose the id yourself.")] = None,
    *,
    where: Where,
    as_json: JsonOption = False,
) -> None:
    """Create a thread. In a pipe, print only its id."""
    labels = {name: value or "" for name, value in parse_labels(label or []).items()}
    with connect(where) as client:
        thread = client.threads.create(title=title, parent=parent, labels=labels, id=id)
        if as_json:
            write_json(thread.info().to_json())
    if as_json:
        return
    if is_terminal():
        write_field("thread", Cell(thread.id, "bold"))
        write_field("next", hint(f'holdfast thread append {thread.id} "hello"'))
    else:
        write_line(thread.id)


def list_(
    parent: Annotated[str | None, Option(metavar="ID", help="Only children of this thread.")] = None,
    status: Annotated[StatusName | None, Option(help="Only threads with this status.")] = None,
    label: Annotated[
        list[str] | None,
        Option("--label", metavar="NAME[:VALUE]", help="Only threads with this label (and value)."),
    ] = None,
    archived: Annotated[Literal["no", "only", "too"], Option(help="Whether to list archived threads.")] = "no",
    search: Annotated[
        str | None, Option(metavar="WORDS", help="Only threads with all these words in the title or the id.")
    ] = None,
    limit: LimitOption = 50,
    cursor: Annotated[str | None, Option(metavar="CURSOR", help="Continue where an earlier list ended.")] = None,
    *,
    where: Where,
    as_json: JsonOption = False,
) -> None:
    """List threads, most recently active first."""
    choices: dict[str, bool | Literal["any"]] = {"no": False, "only": True, "too": "any"}
    labels = parse_labels(label or [])
    threads: list[ThreadInfo] = []
    with connect(where) as client:
        while True:
            page = client.threads.page(
                parent=parent,
                status=status,
                labels=labels,
                archived=choices[archived],
                search=search,
                cursor=cursor,
                limit=min(limit - len(threads), _PAGE),
            )
            threads += page.threads
            cursor = page.next_cursor
            if cursor is None or len(threads) >= limit:
                break
    if as_json:
        write_json({"threads": [thread.to_json() for thread in threads], "nextCursor": cursor})
        return
    if not threads:
        write_field("no threads", hint('create one with holdfast thread new "a title"'))
        return
    now = time.time()
    write_table(("id", "status", "entries", "active", "title"), [_row(thread, now) for thread in threads])
    if cursor is not None:
        note("more", hint(f"holdfast thread list --cursor {cursor}"))


def show(
    id: ThreadArgument,
    *,
    where: Where,
    as_json: JsonOption = False,
) -> None:
    """Show a thread."""
    with connect(where) as client:
        thread = client.threads.get(find_thread_now(client, id))
        url = client.url
    if as_json:
        write_json(thread.to_json())
        return
    _show(thread, url)


def tail(
    id: ThreadArgument,
    since: Annotated[
        str | None,
        Option(metavar="OFFSET", help="Start at this offset, or now for new entries only. Default: the beginning."),
    ] = None,
    type: TypesOption = None,
    limit: Annotated[int | None, Option("--limit", "-n", min=1, help="Exit after this many entries.")] = None,
    *,
    where: Where,
    as_json: JsonOption = False,
) -> Exit:
    """Follow a thread: print its entries as they come. Survives restarts of the server; Ctrl-C stops it.

    With --json, every line is an entry with the offset after it, from which --since continues.
    """
    check_since(since)
    log = None if as_json else _entry_log()
    with connect(where) as client:
        from holdfast.threads.entries import type_matches

        id = find_thread_now(client, id)
        following = client.thread(id).tail(since=since)
        printed = 0
        try:
            with following:
                for entry in following:
                    if not type_matches(entry.type, tuple(type or ())):
                        continue
                    _write_entry(entry, log, {"offset": following.offset})
                    printed += 1
                    if printed == limit:
                        return Exit.OK
        except KeyboardInterrupt:
            if not as_json:
                note("stopped", f"no longer following thread {id}")
                note("next", hint(f"holdfast thread tail {id} --since {following.offset}"))
            return Exit.INTERRUPTED
    if not as_json:
        note("ended", f"thread {id} is closed: no more entries can come")
    return Exit.OK


def entries(
    id: ThreadArgument,
    type: TypesOption = None,
    since: Annotated[str | None, Option(metavar="OFFSET", help="Start at this offset. Default: the beginning.")] = None,
    limit: Annotated[int | None, Option("--limit", "-n", min=1, help="Print at most this many.")] = None,
    *,
    where: Where,
    as_json: JsonOption = False,
) -> None:
    """Print the entries of a thread, oldest first."""
    check_since(since)
    log = None if as_json else _entry_log()
    with connect(where) as client:
        for entry in client.thread(find_thread_now(client, id)).entries(types=type or (), since=since, limit=limit):
            _write_entry(entry, log, {})


def append(
    id: ThreadArgument,
    text: Annotated[
        str | None,
        Argument(metavar="TEXT", help="Text of the entry. - reads lines of JSON from standard input."),
    ] = None,
    type: Annotated[str | None, Option("--type", metavar="TYPE", help="Type of the payload. Default: chat.")] = None,
    payload: Annotated[
        str | None, Option("--payload", metavar="JSON", help="Payload, a JSON object, instead of a text.")
    ] = None,
    author: Annotated[str | None, Option("--author", metavar="ID", help="Author of the entry.")] = None,
    entry_id: Annotated[
        str | None,
        Option("--id", metavar="ID", help="Id of the entry. An existing id is not written again."),
    ] = None,
    retry_for: Annotated[
        str, Option("--retry-for", metavar="DURATION", help="How long to retry while the server does not answer.")
    ] = "30s",
    *,
    where: Where,
    as_json: JsonOption = False,
) -> None:
    """Append an entry, or many from standard input. Each is written exactly once, even if the network fails.

    A line on standard input is a payload ({"type": "chat", "text": "hello"}) or a whole entry, as thread entries --json
    prints it. Whole entries keep their ids, so sending a file twice writes it once.
    """
    from holdfast.cli.thread.entry_input import read_batches

    batches = read_batches(text, type, payload, author, entry_id)

    async def work(client: Client) -> tuple[list[str], str | None]:
        from holdfast.api.errors import NotFound, Unreachable

        ids: list[str] = []
        next_offset = None
        thread = client.thread(id)
        for batch in batches:
            try:
                try:
                    acknowledgement = await thread.append(batch)
                except NotFound:
                    thread = client.thread(await find_thread(client, id))
                    acknowledgement = await thread.append(batch)
            except Unreachable as error:
                raise _not_acknowledged(error, len(ids), from_stdin=text == "-") from error
            ids += [entry.id for entry in acknowledgement.entries]
            next_offset = acknowledgement.next_offset
        return ids, next_offset

    ids, next_offset = ask_blocking(where, work, retry_seconds=_duration(retry_for))
    if as_json:
        write_json({"appended": len(ids), "ids": ids, "nextOffset": next_offset})
    elif len(ids) == 1:
        write_field("appended", ids[0])
    else:
        write_field("appended", f"{len(ids)} entries")


def rename(
    id: ThreadArgument,
    title: Annotated[str, Argument(metavar="TITLE", help="The new title.", show_default=False)],
    *,
    where: Where,
    as_json: JsonOption = False,
) -> None:
    """Change the title of a thread."""
    with connect(where) as client:
        thread = client.threads.rename(find_thread_now(client, id), title)
    if as_json:
        write_json(thread.to_json())
    else:
        write_field("renamed", f"{thread.id}  {thread.title}")


def archive(
    id: ThreadArgument,
    undo: Annotated[bool, Option("--undo", help="Put it back into the list.")] = False,
    *,
    where: Where,
    as_json: JsonOption = False,
) -> None:
    """Archive a thread: remove it from the list. It keeps its entries, and --undo puts it back."""
    with connect(where) as client:
        thread = client.threads.update(find_thread_now(client, id), archived=not undo)
    if as_json:
        write_json(thread.to_json())
    elif undo:
        write_field("back", thread.id)
    else:
        write_field("archived", thread.id)
        write_field("undo", hint(f"holdfast thread archive {thread.id} --undo"))


def pin(
    id: ThreadArgument,
    undo: Annotated[bool, Option("--undo", help="Unpin it.")] = False,
    *,
    where: Where,
    as_json: JsonOption = False,
) -> None:
    """Pin a thread: the page lists it first. This is the label pinned, with the value true."""
    with connect(where) as client:
        found = client.threads.get(find_thread_now(client, id))
        labels = {name: value for name, value in found.labels.items() if name != "pinned"}
        thread = client.threads.update(found.id, labels=labels if undo else {**labels, "pinned": "true"})
    if as_json:
        write_json(thread.to_json())
    else:
        write_field("unpinned" if undo else "pinned", thread.id)


def delete(
    id: ThreadArgument,
    yes: YesOption = False,
    *,
    where: Where,
    as_json: JsonOption = False,
) -> None:
    """Delete a thread and all its entries, permanently."""
    with connect(where) as client:
        id = find_thread_now(client, id)
        thread = client.thread(id)
        if not yes:
            _confirm_delete(thread.info())
        thread.delete()
    if as_json:
        write_json({"id": id, "deleted": True})
    else:
        write_field("deleted", id)


def token(
    id: ThreadArgument,
    scope: Annotated[ScopeName, Option(help="What it allows. write includes read.")] = "read",
    ttl: Annotated[str, Option(metavar="DURATION", help="How long it is valid: 90s, 30m, 2h, 1d.")] = "2h",
    *,
    where: Where,
    as_json: JsonOption = False,
) -> None:
    """Create a token for only this thread. In a pipe, print only the token."""
    seconds = _duration(ttl)
    with connect(where) as client:
        made = client.threads.token(find_thread_now(client, id), scope, ttl_seconds=seconds)
    if as_json:
        write_json(made.to_json())
    elif is_terminal():
        write_field("token", Cell(made.token, "bold"))
        write_field("allows", f"{made.scope} on thread {made.thread}, for {describe_duration(seconds)}")
    else:
        write_line(made.token)


def parse_labels(texts: Iterable[str]) -> dict[str, str | None]:
    """`team:core` is a label with its value; `team` alone has None."""
    labels: dict[str, str | None] = {}
    for text in texts:
        name, colon, value = text.partition(":")
        if not name:
            raise CommandError(f"{text!r} is not a label", next_step="write it as --label team:core", exit=Exit.USAGE)
        labels[name] = value if colon else None
    return labels


def check_since(since: str | None) -> None:
    from holdfast.client.thread.thread import parse_position

    try:
        parse_position(since)
    except ValueError as error:
        raise CommandError(str(error), exit=Exit.USAGE) from None


def _not_acknowledged(error: Unreachable, before: int, *, from_stdin: bool) -> CommandError:
    """The answer was lost, so the entries may or may not be written. Their ids make another attempt safe."""
    message = error.message
    next_step = f"run the same command with --id {error.unacknowledged[0].id}: an id is written only once"
    if from_stdin:
        message += f"; the {before} before it are on the thread"
        next_step = "send the rest again; whole entries with an id can all be sent again"
    return CommandError(message, next_step=next_step, exit=Exit.UNREACHABLE, code=error.code)


def _entry_log() -> EntryLog:
    from holdfast.cli.terminal.entry_lines import EntryLog

    return EntryLog(zone=None, today=datetime.now(UTC).astimezone().date(), whole_times=not is_terminal())


def _write_entry(entry: Entry, log: EntryLog | None, extra: dict[str, Any]) -> None:
    if log is None:
        write_json({**entry.to_json(), **extra})
        return
    for line in log.lines(entry):
        write_line(*line)


def _row(thread: ThreadInfo, now: float) -> list[Cell | str]:
    title = thread.title or (thread.last_entry.text if thread.last_entry else None) or ""
    return [
        Cell(thread.id, "bold"),
        Cell(describe_status(thread.status, thread.run, now), _STYLES.get(thread.status, "")),
        f"{thread.entry_count:,}",
        f"{describe_duration(now - thread.last_activity_at / 1000)} ago",
        f"{title} (archived)" if thread.archived else title,
    ]


def _show(thread: ThreadInfo, url: str) -> None:
    from holdfast.api.model.money import describe_in_full
    from holdfast.calendar_time import calendar_time

    ago = describe_duration(time.time() - thread.last_activity_at / 1000)
    created = calendar_time(thread.created_at)
    write_field("thread", Cell(thread.id, "bold"), f"  {thread.title or ''}")
    status = describe_status(thread.status, thread.run, time.time())
    write_field("status", Cell(status, _STYLES.get(thread.status, "")), ", archived" if thread.archived else "")
    if status != thread.status:
        write_field(
            "",
            hint(f"find out why with holdfast thread diagnose {thread.id}, or end it with holdfast cancel {thread.id}"),
        )
    write_field("entries", f"{thread.entry_count:,}, the last one {ago} ago")
    if thread.last_entry is not None:
        write_field("last", f"{thread.last_entry.type}  {thread.last_entry.text or ''}".replace("\n", " "))
    if thread.cost is not None:
        from holdfast.api.model.money import describe_in_full  # here, because most commands do not need it

        spent = describe_in_full(thread.cost.cost, thread.cost.unpriced)
        write_field("cost", spent, Cell(f"  {thread.cost.tokens:,} tokens", "dim"))
    if thread.parent is not None:
        write_field("parent", thread.parent)
    if thread.labels:
        write_field("labels", "  ".join(f"{name}:{value}" for name, value in thread.labels.items()))
    write_field("created", f"{created:%Y-%m-%d %H:%M:%S}")
    write_field("stream", url + thread.stream)
    write_field("offset", thread.next_offset)
    if is_terminal():
        write_field("next", hint(f"holdfast thread tail {thread.id}"))


def _confirm_delete(thread: ThreadInfo) -> None:
    title = f" ({thread.title})" if thread.title else ""
    confirm(
        f"Delete thread {thread.id}{title} with {thread.entry_count:,} entries, permanently?",
        refusal=f"deleting thread {thread.id} is permanent, and there is no terminal to ask for confirmation",
        command=f"holdfast thread delete {thread.id} --yes",
        unchanged=f"thread {thread.id} was not deleted",
    )


def _duration(text: str) -> int:
    try:
        return parse_duration(text)
    except ValueError as error:
        raise CommandError(str(error), exit=Exit.USAGE) from None
