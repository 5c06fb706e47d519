"""Commands that end in a command of the box: what belongs to us and what belongs to it."""

from __future__ import annotations

from collections.abc import Collection, Sequence


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
