"""Turns entries into lines of a log: time, type and text. Pure."""

from __future__ import annotations

import json
from datetime import date, tzinfo
from typing import Any, Final

from holdfast.api.thread.entries import Entry
from holdfast.calendar_time import calendar_time
from holdfast.cli.terminal.console import ACCENT, Cell

_TYPE_WIDTH: Final = 16
_MAX_VALUE: Final = 200


class EntryLog:
    """Turns entries into lines. On a terminal the date is printed once per day, in a pipe on every line."""

    def __init__(self, *, zone: tzinfo | None, today: date, whole_times: bool) -> None:
        self._zone = zone
        self._day = today
        self._whole_times = whole_times

    def lines(self, entry: Entry) -> list[list[Cell]]:
        when = calendar_time(entry.ts, self._zone)
        lines = []
        if self._whole_times:
            stamp = when.isoformat(timespec="milliseconds")
        else:
            stamp = f"{when:%H:%M:%S}"
            if when.date() != self._day:
                self._day = when.date()
                lines.append([Cell(f"{when:%Y-%m-%d}", "dim")])
        first, *more = describe(entry).split("\n")
        kind = entry.type.ljust(_TYPE_WIDTH)
        indent = " " * (len(stamp) + len(kind) + 4)
        style = "dim" if entry.type.startswith("signal.") else ""
        lines.append([Cell(stamp, "dim"), Cell("  "), Cell(kind, style or ACCENT), Cell("  "), Cell(first, style)])
        lines += [[Cell(indent + each, style)] for each in more]
        return lines


def describe(entry: Entry) -> str:
    """The text of an entry if it has one, otherwise its fields."""
    payload = {name: value for name, value in entry.payload.items() if name != "type"}
    text = payload.get("text")
    if not isinstance(text, str):
        return "  ".join(f"{name}={_value(value)}" for name, value in payload.items())
    speaker = entry.author_id or payload.get("role")
    return f"{speaker}: {text.rstrip()}" if isinstance(speaker, str) else text.rstrip()


def _value(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _MAX_VALUE else text[: _MAX_VALUE - 1] + "…"
