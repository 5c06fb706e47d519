"""Makes entries from a text, a payload, or lines of JSON on standard input."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator
from typing import Any, Final

from holdfast.api.ids import new_entry_id, now_ms
from holdfast.api.thread.entries import Entry
from holdfast.cli.errors import CommandError
from holdfast.cli.exits import Exit

_CHUNK: Final = 256 * 1024


def read_batches(
    text: str | None, type: str | None, payload: str | None, author: str | None, id: str | None = None
) -> Iterable[list[Entry]]:
    if text is not None and payload is not None:
        raise CommandError("TEXT and --payload exclude each other", next_step="give only one of them", exit=Exit.USAGE)
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
                f"--payload {payload!r} is not an object", next_step='write it as {"type": "chat"}', exit=Exit.USAGE
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
    """Yield entries as they arrive: large batches from a file, line by line from a live pipe."""
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
    """Parse one line of standard input."""
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
        # Checked here, because the server would refuse the whole batch without naming the line.
        check_entry(entry.to_json())
    except InvalidEntry as error:
        raise _bad_line(number, f"is not an entry: {error.message}") from None
    return entry


def _bad_line(number: int, what: str) -> CommandError:
    before = "nothing was appended" if number == 1 else "the lines before it are on the thread"
    return CommandError(
        f"line {number} of standard input {what}; {before}",
        next_step='each line is a payload or an entry, such as {"type": "chat", "text": "hello"}',
        exit=Exit.USAGE,
    )


def _entry(value: dict[str, Any], author: str | None, id: str | None = None) -> Entry:
    """Make an entry from a whole entry or from a payload, which gets an id and a time."""
    whole = isinstance(value.get("payload"), dict) and "type" not in value
    fields: dict[str, Any] = value if whole else {"payload": value}
    return Entry(
        id or fields.get("id", new_entry_id()),
        fields.get("ts", now_ms()),
        fields["payload"],
        fields.get("authorId") or author,
    )
