"""A fast parser for the usual command lines, by the signature of the command.

Everything else (a request for help, a mistake, an unusual spelling) is left to Typer, which parses the line again and
explains it; `parse` then returns None. So every message comes from Typer, and a line that is accepted here means the
same to Typer. `tests/cli/test_parser.py` compares the two.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from enum import EnumType
from pathlib import Path
from types import NoneType
from typing import Any, Final, Literal, get_args, get_origin

from holdfast.cli.parsing.parameters import (
    REQUIRED,
    Argument,
    Declaration,
    Option,
    OptionsUsed,
    OtherCommand,
    Parameter,
    Signature,
)

_INTEGER: Final = re.compile(r"[0-9]{1,15}")
_DECIMAL: Final = re.compile(r"[0-9]{1,15}(\.[0-9]{1,15})?")


class _Unclear(Exception):
    """This parser does not understand the line."""


def parse(signature: Signature, words: Sequence[str], environment: Mapping[str, str]) -> dict[str, Any] | None:
    """Return the values on the command line by parameter, or None if Typer has to parse it."""
    options = [each for each in signature.parameters if isinstance(each.declaration, Option)]
    arguments = [each for each in signature.parameters if isinstance(each.declaration, Argument)]
    try:
        texts, places = _read_options(options, _arrange(options, arguments, words))
        texts |= _read_places(arguments, places)
        _check_complete(signature, texts, environment)
        values = {
            each.name: _value(each.type, texts[each.name], each.declaration)
            for each in signature.parameters
            if each.declaration is not None and each.name in texts
        }
    except _Unclear:
        return None
    used = OptionsUsed(_names(each)[0][0] for each in options if each.name in texts)
    return values | {each.name: used for each in signature.parameters if each.type is OptionsUsed}


def _names(option: Parameter) -> tuple[list[str], list[str]]:
    """Return the names of an option, and the names that turn it off, as in `--stdin/--no-stdin`."""
    assert option.declaration is not None
    names = option.declaration.names or (f"--{option.name.replace('_', '-')}",)
    pairs = [name.partition("/") for name in names]
    return [on for on, _, _ in pairs], [off for _, _, off in pairs if off]


def _is_flag(option: Parameter) -> bool:
    return _plain(option.type) is bool


def _arrange(options: Sequence[Parameter], arguments: Sequence[Parameter], words: Sequence[str]) -> Sequence[str]:
    if not any(isinstance(each.declaration, OtherCommand) for each in arguments):
        return words
    return arrange(words, {name for each in options if not _is_flag(each) for name in _names(each)[0]})


def _read_options(options: Sequence[Parameter], words: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """Separate options from positional words. The text of a flag is a boolean, that of a list option a list."""
    known: dict[str, tuple[Parameter, bool]] = {}
    for each in options:
        on, off = _names(each)
        known |= dict.fromkeys(on, (each, True)) | dict.fromkeys(off, (each, False))
    texts: dict[str, Any] = {}
    places: list[str] = []
    left = iter(words)
    for word in left:
        if word == "--":
            places += left
        elif not word.startswith("-") or word == "-":
            places.append(word)
        else:
            name, equals, text = word.partition("=")
            if name not in known or (equals and not name.startswith("--")):
                raise _Unclear
            option, turned_on = known[name]
            if _is_flag(option):
                if equals:
                    raise _Unclear
                texts[option.name] = turned_on
                continue
            if not equals:
                text = next(left, "-")
                if text.startswith("-"):
                    raise _Unclear
            if get_origin(_plain(option.type)) is list:
                texts.setdefault(option.name, []).append(text)
            else:
                texts[option.name] = text
    return texts, places


def _read_places(arguments: Sequence[Parameter], places: list[str]) -> dict[str, Any]:
    """Give each argument its word. A list argument takes the rest, and must be the last."""
    texts: dict[str, Any] = {}
    left = list(places)
    for argument in arguments:
        if not left:
            break
        if get_origin(_plain(argument.type)) is list:
            if argument is not arguments[-1]:
                raise _Unclear
            texts[argument.name], left = left, []
        else:
            texts[argument.name] = left.pop(0)
    if left:
        raise _Unclear
    return texts


def _check_complete(signature: Signature, texts: Mapping[str, Any], environment: Mapping[str, str]) -> None:
    for each in signature.parameters:
        if each.name not in texts and each.declaration is not None:
            variable = each.declaration.settings.get("envvar")
            if each.default is REQUIRED or (variable is not None and variable in environment):
                raise _Unclear


def _plain(type: Any) -> Any:
    """The type without None."""
    several = [each for each in get_args(type) if each is not NoneType]
    return several[0] if NoneType in get_args(type) and len(several) == 1 else type


def _value(type: Any, text: Any, declaration: Declaration) -> Any:
    type = _plain(type)
    if type in (str, bool):
        return text
    if get_origin(type) is list:
        return [_value(get_args(type)[0], each, declaration) for each in text]
    if type is Path:
        return Path(text)
    if get_origin(type) is Literal:
        if text in get_args(type):
            return text
    elif type is int and _INTEGER.fullmatch(text):
        return _within(int(text), declaration)
    elif type is float and _DECIMAL.fullmatch(text):
        return _within(float(text), declaration)
    elif isinstance(type, EnumType) and text in type._value2member_map_:
        return type(text)
    raise _Unclear


def _within(number: float, declaration: Declaration) -> float:
    least, most = declaration.settings.get("min"), declaration.settings.get("max")
    if (least is not None and number < least) or (most is not None and number > most):
        raise _Unclear
    return number


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
