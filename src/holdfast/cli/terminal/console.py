"""Prints the output of commands: coloured on a terminal, plain in a pipe, or JSON. Notes go to standard error."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from holdfast.cli.command_name import as_called

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

LABEL_WIDTH: Final = 13
ACCENT: Final = "dark_cyan"
_LEAST_WIDTH: Final = 10
_NARROWEST: Final = 4
_NUMBER: Final = re.compile(r"\$?\d[\d,]*(?:\.\d+)?|[–—]|")
_CONTROLS: Final = {code: 0x2400 + code for code in range(0x20) if chr(code) not in "\n\t"} | {0x7F: 0x2421}
"""Each has a symbol of its own."""


@dataclass(frozen=True, slots=True)
class Cell:
    """A text with a style of rich. In a pipe the style is ignored, so it must not carry meaning alone."""

    text: str
    style: str = ""


def hint(text: str) -> Cell:
    """A suggestion. Its commands are named as the user calls them, so that they can be pasted."""
    return Cell(as_called(text), "dim")


def is_terminal() -> bool:
    return sys.stdout.isatty()


@cache
def _console(stderr: bool) -> Console:
    from rich.console import Console

    return Console(stderr=stderr, highlight=False, markup=False, emoji=False, soft_wrap=True)


def printable(text: str) -> str:
    """Make control characters visible, and those that hide or reorder text: the output of an agent must neither
    control the reader's terminal nor deceive the reader."""
    if text.isascii() and text.isprintable():
        return text
    from holdfast.visible_text import is_visible, visible  # here, because most texts do not need it

    return text if is_visible(text) else visible(text.translate(_CONTROLS))


def write_json(value: Any) -> None:
    """Write one JSON document on one line, without characters that could control a terminal."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    if not (text.isascii() and text.isprintable()):
        from holdfast.visible_text import is_visible

        # JSON escapes ASCII control characters, but not those beyond ASCII, which terminals obey too.
        text = "".join(each if is_visible(each) else json.dumps(each)[1:-1] for each in text)
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def write_bytes(data: bytes) -> None:
    """Write bytes unchanged, for a program."""
    sys.stdout.flush()
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def write_line(*cells: Cell | str) -> None:
    """Write one line of text, of any length."""
    _write(cells, stderr=False)


def write_field(label: str, *cells: Cell | str) -> None:
    """Write one line with its label in the left column."""
    _write((_label(label), *cells), stderr=False)


def note(label: str, *cells: Cell | str) -> None:
    """Write one labelled line to standard error, so that it never mixes with the output."""
    sys.stdout.flush()
    style = "red" if label == "error" else "dim"
    _write((Cell(_label(label), style), *cells), stderr=True)


def write_table(columns: Sequence[str], rows: Sequence[Sequence[Cell | str]]) -> None:
    """Write a table. On a terminal, columns are cut to fit; in a pipe, nothing is cut. Numbers end at the right."""
    table = [[Cell(printable(_text(cell)).replace("\n", " "), _style(cell)) for cell in row] for row in rows]
    numbers = [
        index > 0 and _are_numbers([row[index].text for row in table]) for index in range(len(columns))
    ]  # ids are never moved
    table.insert(0, [Cell(column, "dim") for column in columns])
    widths = [max(_columns(cell.text) for cell in column) for column in zip(*table, strict=True)]
    if is_terminal():
        widths = fitting(widths, _console(False).width, numbers)
    for row in table:
        cells = zip(row, widths, numbers, strict=True)
        write_line(*(part for cell, width, is_number in cells for part in _padded(cell, width, is_number)))


def fitting(widths: Sequence[int], room: int, numbers: Sequence[bool] = ()) -> list[int]:
    """Reduce the widths of columns to fit a terminal: the last column first, then the widest of the others.

    The first column is never cut, because users copy ids from it. Numbers are cut only when no text is left to cut: a
    part of a number looks like another number.
    """
    kept = list(widths)
    are_numbers = [*numbers, *[False] * (len(kept) - len(numbers))]
    excess = sum(kept) + 2 * (len(kept) - 1) - room
    if excess > 0 and len(kept) > 1 and not are_numbers[-1]:
        cut = min(excess, max(0, kept[-1] - _LEAST_WIDTH))
        kept[-1] -= cut
        excess -= cut
    for kind in (False, True):
        columns = [index for index in range(1, len(kept)) if are_numbers[index] is kind]
        while excess > 0 and columns:
            widest = max(columns, key=lambda index: kept[index])
            if kept[widest] <= _NARROWEST:
                break
            kept[widest] -= 1
            excess -= 1
    return kept


def _are_numbers(texts: Sequence[str]) -> bool:
    """Returns whether a column has numbers or amounts of money only. A dash stands for one that is not known."""
    return any(each[-1:].isdigit() for each in texts) and all(map(_NUMBER.fullmatch, texts))


def _columns(text: str) -> int:
    """The columns that a text takes on a terminal: wide characters take two."""
    if text.isascii():
        return len(text)
    from unicodedata import combining, east_asian_width

    return sum(0 if combining(each) else 2 if east_asian_width(each) in "WF" else 1 for each in text)


def _padded(cell: Cell, width: int, is_number: bool) -> tuple[Cell, ...]:
    text = cell.text
    if _columns(text) > width:
        text = text[: 4 * width]
        while _columns(text) > width - 1:
            text = text[:-1]
        text += "…"
    space = Cell(" " * (width - _columns(text)))
    shown = Cell(text, cell.style)
    return (space, shown, Cell("  ")) if is_number else (shown, space, Cell("  "))


def _write(cells: Sequence[Cell | str], *, stderr: bool) -> None:
    stream = sys.stderr if stderr else sys.stdout
    if not stream.isatty():
        stream.write("".join(printable(_text(cell)) for cell in cells).rstrip(" ") + "\n")
        stream.flush()
        return
    _console(stderr).print(assemble(cells))


def assemble(cells: Sequence[Cell | str]) -> Text:
    """Make a line for rich, without characters that could control a terminal."""
    from rich.text import Text

    line = Text.assemble(*((printable(_text(cell)), _style(cell)) for cell in cells))
    line.rstrip()
    return line


def _label(label: str) -> str:
    return f"  {label.ljust(LABEL_WIDTH - 2)}  "


def _text(cell: Cell | str) -> str:
    return cell if isinstance(cell, str) else cell.text


def _style(cell: Cell | str) -> str:
    return "" if isinstance(cell, str) else cell.style
