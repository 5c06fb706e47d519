"""Separates our options from the command to run in the box, for commands such as `box exec`."""

from __future__ import annotations

from collections.abc import Collection, Sequence


def arrange(arguments: Sequence[str], with_value: Collection[str]) -> list[str]:
    """Return our options first, then `--`, then BOX and the command.

    Our options stand before BOX, or between BOX and the command. From the command's first word on, or from `--` on,
    everything belongs to the command. `with_value` are the options that take the following word as their value.
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
