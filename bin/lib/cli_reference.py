"""Writes docs/reference/cli.md: every command with its arguments and options, as `--help` shows them. Run by
`bin/generate`, checked by tests/docs/test_references.py.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any, Final, Literal, get_args, get_origin

sys.path.insert(0, str(Path(__file__).parents[2] / "src"))

import typer

from holdfast.cli.parsing.typer_app import build

PAGE: Final = Path(__file__).parents[2] / "docs" / "reference" / "cli.md"
ABOUT: Final = """# All commands

Every command with its arguments and options. This page is written by `bin/generate` from the commands themselves;
[the command line](../cli.md) has the overview, exit codes, and how commands find the server.

Every command has `--help`.
"""


def page() -> str:
    root = typer.main.get_command(build([]))
    return f"{ABOUT}\n" + "\n".join(_sections(root, "holdfast"))


def _sections(command: Any, name: str) -> Iterator[str]:
    children = getattr(command, "commands", None)
    if children is None:
        yield _section(command, name)
        return
    plain = {word: child for word, child in children.items() if not getattr(child, "commands", None)}
    if name == "holdfast":
        yield "## Commands without a group\n"
    else:
        yield f"## {name}\n\n{_text(command.help)}\n"
    for word, child in plain.items():
        yield _section(child, f"{name} {word}")
    for word, child in children.items():
        if word not in plain:
            yield from _sections(child, f"{name} {word}")


def _section(command: Any, name: str) -> str:
    arguments = [each for each in command.params if each.param_type_name == "argument"]
    options = [each for each in command.params if each.param_type_name == "option" and not each.hidden]
    words = [name, *("[OPTIONS]" for _ in options[:1]), *(_argument(each) for each in arguments)]
    lines = [f"### {name}", "", "```text", " ".join(words), "```", "", _text(command.help), ""]
    if arguments and any(getattr(each, "help", None) for each in arguments):
        lines += ["| argument | |", "|---|---|"]
        lines += [f"| `{_argument(each)}` | {_cell(each.help)} |" for each in arguments]
        lines.append("")
    if options:
        lines += ["| option | |", "|---|---|"]
        lines += [f"| {_option(each)} | {_cell(each.help)}{_default(each)} |" for each in options]
        lines.append("")
    return "\n".join(lines)


def _argument(parameter: Any) -> str:
    name = (parameter.metavar or parameter.name or "").upper().rstrip("….") + ("…" if parameter.nargs == -1 else "")
    return name if parameter.required or name.startswith("[") else f"[{name}]"


def _option(parameter: Any) -> str:
    words = ", ".join(f"`{word}`" for word in (*parameter.opts, *parameter.secondary_opts))
    if parameter.is_flag:
        return words
    return f"{words} `{_kind(parameter)}`{', repeatable' if parameter.multiple else ''}"


def _kind(parameter: Any) -> str:
    kind = parameter.type_descriptor.annotation
    choices = [each.value for each in kind] if isinstance(kind, type) and issubclass(kind, Enum) else _choices(kind)
    if choices and not parameter.metavar:
        return "\\|".join(map(str, choices))
    return str(parameter.metavar or getattr(kind, "__name__", "VALUE")).upper()


def _choices(kind: Any) -> tuple[Any, ...]:
    """Returns what a `Literal` allows, also within `list[…]` or beside None."""
    if get_origin(kind) is Literal:
        return get_args(kind)
    return next((found for each in get_args(kind) if (found := _choices(each))), ())


def _default(parameter: Any) -> str:
    value = parameter.default
    if parameter.required:
        return " Required."
    if parameter.is_flag or value is None or callable(value) or not isinstance(value, str | int | float) or value == "":
        return ""
    return f" By default `{getattr(value, 'value', value)}`."


def _text(help: str | None) -> str:
    """Paragraphs, and as a code block those that begin with a line of \\b, which are shown as they are."""
    paragraphs = inspect.cleandoc(help or "").replace("\f", "").split("\n\n")
    return "\n\n".join(
        f"```text\n{each.removeprefix(chr(8)).strip()}\n```" if each.startswith("\b") else _outside_code(each)
        for each in paragraphs
    )


def _cell(help: str | None) -> str:
    return _outside_code(" ".join((help or "").split())).replace("|", "\\|")


def _outside_code(text: str) -> str:
    """Escape what Markdown would take for markup: the help is plain text with names in backquotes."""
    parts = re.split(r"(`[^`\n]*`)", text)
    return "".join(part if number % 2 else re.sub(r"([<*_\[])", r"\\\1", part) for number, part in enumerate(parts))


if __name__ == "__main__":
    text = page()
    if not PAGE.exists() or PAGE.read_text() != text:
        PAGE.write_text(text)
        sys.stdout.write(f"  wrote        {PAGE.relative_to(PAGE.parents[2])}\n")
