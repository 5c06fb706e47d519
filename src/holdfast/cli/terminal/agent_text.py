"""Makes the output of agents and their tools safe for a terminal, which it must not control. Pure.

All of it is untrusted. `console.printable` is the last line of defence when printing; here whole escape sequences are
removed, so that the rest stays readable.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from holdfast.cli.terminal.console import printable

_SEQUENCE: Final = re.compile(
    # CSI (colours, cursor, modes); OSC, DCS and the like (titles, links, the clipboard); and the short ones.
    "(?:\x1b\\[|\x9b)[0-?]{0,64}[ -/]{0,8}[@-~]"
    "|(?:\x1b[\\]PX^_]|[\x9d\x90\x98\x9e\x9f])[^\x07\x1b\x90\x98\x9c-\x9f]{0,4096}(?:\x07|\x1b\\\\|\x9c)"
    "|\x1b(?![\\[\\]PX^_])[ -/]{0,4}[0-~]"
)
_TAB: Final = 4


def plain(text: str) -> str:
    """Remove escape sequences, and make every other character visible that is not seen. Line breaks stay."""
    if text.isascii() and text.replace("\n", "").isprintable():
        return text
    text = _SEQUENCE.sub("", text).replace("\r\n", "\n")
    if "\r" in text:
        # A progress bar that redraws itself: a terminal would show its last state.
        text = "\n".join(line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n"))
    return printable(text.replace("\t", " " * _TAB))


def one_line(text: str) -> str:
    """The first line that is not blank, with `…` if there are more."""
    lines = lines_of(text)
    return "" if not lines else lines[0] if len(lines) == 1 else f"{lines[0]} …"


def lines_of(text: str) -> list[str]:
    """All lines that are not blank."""
    return [line.strip() for line in plain(text).split("\n") if line.strip()]


def width_of(text: str) -> int:
    """The columns that a text takes; wide characters take two."""
    from rich.cells import cell_len  # here, because most commands do not need it

    return cell_len(text)


def cut(text: str, width: int) -> str:
    """Cut a text to `width` columns, with `…` at the end of a cut text."""
    text = text[: 4 * max(width, 1)]  # combining characters take no column
    if width_of(text) <= width:
        return text
    from rich.cells import get_character_cell_size

    room, kept = width - 1, []
    for character in text:
        room -= get_character_cell_size(character)
        if room < 0:
            break
        kept.append(character)
    return "".join(kept).rstrip() + "…" if width > 0 else ""


def pad(text: str, width: int) -> str:
    return text + " " * max(0, width - width_of(text))


def wrap(text: str, width: int) -> Iterator[str]:
    """Break long lines at spaces, or anywhere if there is no space."""
    for line in text.split("\n"):
        yield from _wrap_line(line.rstrip(), max(width, 8))


def _wrap_line(line: str, width: int) -> Iterator[str]:
    """In one pass, because an agent may write a line of a megabyte."""
    from rich.cells import get_character_cell_size

    indent = line[: len(line) - len(line.lstrip())]
    hanging = indent if len(indent) < width // 2 else ""
    prefix, used, start, space, index = "", 0, 0, -1, 0
    while index < len(line):
        character = line[index]
        wide = 1 if " " <= character <= "~" else get_character_cell_size(character)
        if used + wide > width and index > start:
            end = space if space > start + len(indent if not prefix else "") else index
            yield prefix + line[start:end].rstrip()
            while end < len(line) and line[end] == " ":
                end += 1
            prefix, used, start, space, index = hanging, len(hanging), end, -1, end
            continue
        if character == " ":
            space = index
        used += wide
        index += 1
    yield prefix + line[start:]


def describe_time(milliseconds: float) -> str:
    """Describe a duration with a sensible precision."""
    if milliseconds < 950:
        return f"{max(0, round(milliseconds))} ms"
    seconds = milliseconds / 1000
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"
