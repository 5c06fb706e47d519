"""What a command prints: coloured for people, plain in a pipe, JSON for programs. Notes go to standard error."""

from __future__ import annotations

import json
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


@dataclass(frozen=True, slots=True)
class Cell:
    """A text with a style of rich; the style adds to the words, and is lost in a pipe."""

    text: str
    style: str = ""


def hint(text: str) -> Cell:
    """What to do next: its commands are named as the user calls them, and can be pasted."""
    return Cell(as_called(text), "dim")


def is_terminal() -> bool:
    return sys.stdout.isatty()


@cache
def _console(stderr: bool) -> Console:
    from rich.console import Console

    return Console(stderr=stderr, highlight=False, markup=False, emoji=False, soft_wrap=True)


def printable(text: str) -> str:
    """Without control characters: what an agent wrote must not drive the terminal of who reads it."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() or each in "\n\t" else _visible(each) for each in text)


def _visible(character: str) -> str:
    code = ord(character)
    return chr(0x2400 + code) if code < 0x20 else "�"


def write_json(value: Any) -> None:
    """One JSON document on one line, with nothing in it that could drive a terminal."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    if not text.isprintable():
        # JSON escapes the controls of ASCII by itself, and not those beyond, which terminals obey as well.
        text = "".join(each if each.isprintable() else json.dumps(each)[1:-1] for each in text)
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def write_bytes(data: bytes) -> None:
    """For a program, byte for byte."""
    sys.stdout.flush()
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def write_line(*cells: Cell | str) -> None:
    """One line of text; it may be longer than the terminal is wide."""
    _write(cells, stderr=False)


def write_field(label: str, *cells: Cell | str) -> None:
    """One line with its label in the left column."""
    _write((_label(label), *cells), stderr=False)


def note(label: str, *cells: Cell | str) -> None:
    """One labelled line on standard error: beside the output, never in it."""
    sys.stdout.flush()
    style = "red" if label == "error" else "dim"
    _write((Cell(_label(label), style), *cells), stderr=True)


def write_table(columns: Sequence[str], rows: Sequence[Sequence[Cell | str]]) -> None:
    """Columns without lines between them. On a terminal the last one gives way; in a pipe nothing is cut."""
    table = [[Cell(printable(_text(cell)).replace("\n", " "), _style(cell)) for cell in row] for row in rows]
    table.insert(0, [Cell(column, "dim") for column in columns])
    widths = [max(len(cell.text) for cell in column) for column in zip(*table, strict=True)]
    if is_terminal():
        widths = fitting(widths, _console(False).width)
    for row in table:
        write_line(*(part for cell, width in zip(row, widths, strict=True) for part in _padded(cell, width)))


def fitting(widths: Sequence[int], room: int) -> list[int]:
    """The widths of columns that fit a terminal: the last gives way first, then the widest of the others.

    The first stays whole: it is what people copy.
    """
    kept = list(widths)
    excess = sum(kept) + 2 * (len(kept) - 1) - room
    if excess > 0 and len(kept) > 1:
        given = min(excess, max(0, kept[-1] - _LEAST_WIDTH))
        kept[-1] -= given
        excess -= given
    while excess > 0:
        widest = max(range(1, len(kept)), key=lambda index: kept[index], default=0)
        if widest == 0 or kept[widest] <= _NARROWEST:
            break
        kept[widest] -= 1
        excess -= 1
    return kept


def _padded(cell: Cell, width: int) -> tuple[Cell, Cell]:
    text = cell.text if len(cell.text) <= width else cell.text[: width - 1] + "…"
    return Cell(text, cell.style), Cell(" " * (width - len(text) + 2))


def _write(cells: Sequence[Cell | str], *, stderr: bool) -> None:
    stream = sys.stderr if stderr else sys.stdout
    if not stream.isatty():
        stream.write("".join(printable(_text(cell)) for cell in cells).rstrip(" ") + "\n")
        stream.flush()
        return
    _console(stderr).print(assemble(cells))


def assemble(cells: Sequence[Cell | str]) -> Text:
    """A line for rich, with nothing in it that could drive a terminal."""
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
