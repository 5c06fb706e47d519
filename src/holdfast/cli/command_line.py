"""Commands that end in a command of the box: what belongs to us and what belongs to it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from typer.core import TyperCommand


def arrange(arguments: Sequence[str], with_value: Collection[str]) -> list[str]:
    """Our options first, then `--`, then BOX and its command.

    Options of ours stand before BOX, or between it and the command; from the command's first word on, or from `--` on,
    everything is the command's. `with_value` are the options that take the word after them.
    """
    options: list[str] = []
    words: list[str] = []
    rest = list(arguments)
    while rest and len(words) < 2:
        word = rest.pop(0)
        if word == "--":
            break
        if not word.startswith("-") or word == "-":
            words.append(word)
            continue
        options.append(word)
        if word in with_value and rest:
            options.append(rest.pop(0))
    return [*options, "--", *words, *rest]


class BoxCommand(TyperCommand):
    """A command with the form `[OPTIONS] BOX [--] COMMAND...`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        with_value = {
            name
            for parameter in self.params
            if parameter.param_type_name == "option" and not getattr(parameter, "is_flag", False)
            for name in parameter.opts
        }
        return super().parse_args(ctx, arrange(args, with_value))
