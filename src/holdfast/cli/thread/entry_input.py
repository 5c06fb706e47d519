"""What a command line asks to append: a text, a payload, or lines of JSON on standard input, as entries."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator
from typing import Any, Final

from holdfast.api.entries import Entry
from holdfast.api.ids import new_entry_id, now_ms
from holdfast.cli.errors import CommandError
from holdfast.cli.exits import Exit

_CHUNK: Final = 256 * 1024


def read_batches(
    text: str | None, type: str | None, payload: str | None, author: str | None, id: str | None = None
) -> Iterable[list[Entry]]:
    if text is not None and payload is not None:
        raise CommandError("a text and --payload exclude each other", next_step="give one of them", exit=Exit.USAGE)
    if text == "-":
        if type is not None or id is not None:
            raise CommandError(
                "--type and --id are for one entry, not for standard input",
                next_step="put them into the lines",
                exit=Exit.USAGE,
            )
        return _batches_of_standard_input(author)
    if payload is not None:
        try:
            value = json.loads(payload)
        except ValueError as error:
            raise CommandError(f"--payload {payload!r} is not JSON: {error}", exit=Exit.USAGE) from None
        if not isinstance(value, dict):
            raise CommandError(
                f"--payload {payload!r} is not an object", next_step='write it like {"type": "chat"}', exit=Exit.USAGE
            )
        return [[_entry({**value, **({} if type is None else {"type": type})}, author, id)]]
    if text is None:
        raise CommandError(
            "there is nothing to append",
            next_step="give a text, --payload JSON, or - to read standard input",
            exit=Exit.USAGE,
        )
    role = {"role": "user"} if type in (None, "chat") else {}
    return [[_entry({"type": type or "chat", **role, "text": text}, author, id)]]


def _batches_of_standard_input(author: str | None) -> Iterator[list[Entry]]:
    """What has come in so far, whenever something has: a file goes in large batches, a live pipe line by line."""
    number, rest = 0, b""
    while True:
        chunk = os.read(sys.stdin.fileno(), _CHUNK)
        *lines, rest = (rest + chunk).split(b"\n")
        if not chunk and rest.strip():
            lines.append(rest)
        batch: list[Entry] = []
        for line in lines:
            number += 1
            if not line.strip():
                continue
            try:
                batch.append(parse_line(line, number, author))
            except CommandError:
                if batch:
                    yield batch
                raise
        if batch:
            yield batch
        if not chunk:
            return


def parse_line(line: bytes, number: int, author: str | None) -> Entry:
    """The entry that one line of standard input stands for."""
    try:
        value = json.loads(line)
    except ValueError as error:
        raise _bad_line(number, f"is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise _bad_line(number, "is not an object")
    from holdfast.api.errors.threads import InvalidEntry
    from holdfast.threads.entries import check_entry

    entry = _entry(value, author)
    try:
        # Here, because the server would refuse the whole batch, and could not say which line it was.
        check_entry(entry.to_json())
    except InvalidEntry as error:
        raise _bad_line(number, f"is not an entry: {error.message}") from None
    return entry


def _bad_line(number: int, what: str) -> CommandError:
    before = "nothing was appended" if number == 1 else "what came before it is on the thread"
    return CommandError(
        f"line {number} of standard input {what}; {before}",
        next_step='each line is a payload or an entry, say {"type": "chat", "text": "hello"}',
        exit=Exit.USAGE,
    )


def _entry(value: dict[str, Any], author: str | None, id: str | None = None) -> Entry:
    """A whole entry as it is; a payload gets what it lacks."""
    whole = isinstance(value.get("payload"), dict) and "type" not in value
    fields: dict[str, Any] = value if whole else {"payload": value}
    return Entry(
        id or fields.get("id", new_entry_id()),
        fields.get("ts", now_ms()),
        fields["payload"],
        fields.get("authorId") or author,
    )
