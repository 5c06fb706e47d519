"""What SUBMIT is given: output fields, each with a name and a type, and a check that says which of them is wrong."""

from __future__ import annotations

import difflib
import keyword
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from holdfast.api.errors.interpreters import InvalidInterpreter, InvalidSubmission
from holdfast.interpreter.bridge.annotations import Mismatch, adapter_of, convert, name_of, type_of

_MOST: Final = 256
_LONGEST_NAME: Final = 128
_MOST_TOLD: Final = 10
_DEFAULT: Final = "output"
"""The name of a lone value, where no fields are given."""


@dataclass(frozen=True, slots=True)
class OutputField:
    name: str
    type: Any = Any
    """A type of Python, or the name of one: `list[str]`."""

    def __post_init__(self) -> None:
        name = self.name
        if not isinstance(name, str) or not name.isidentifier() or keyword.iskeyword(name):
            raise InvalidInterpreter(f"{str(name)[:80]!r} is no name for an output field", hint="use one like total")
        if len(name) > _LONGEST_NAME:
            raise InvalidInterpreter(f"the name of an output field has at most {_LONGEST_NAME} characters")
        try:
            object.__setattr__(self, "type", type_of(self.type))
            adapter_of(self.type)
        except InvalidInterpreter as error:
            raise InvalidInterpreter(f"output field {name}: {error.message}", hint=error.hint) from None

    def __str__(self) -> str:
        return self.name if self.type is Any else f"{self.name}: {name_of(self.type)}"


Given = OutputField | Mapping[str, Any] | str
"""A field as callers may give it: itself, `{"name": "total", "type": "int"}` as dspy does, or a mere name."""


def fields_of(given: Iterable[Given] | Mapping[str, Any] | None) -> tuple[OutputField, ...]:
    """`{"total": int}`, too. Raises `InvalidInterpreter`."""
    if given is None:
        return ()
    if isinstance(given, Mapping):
        fields = tuple(OutputField(name, kind) for name, kind in given.items())
    else:
        fields = tuple(_field_of(each) for each in given)
    names = [field.name for field in fields]
    if len(fields) > _MOST or len(set(names)) < len(names):
        twice = sorted({name for name in names if names.count(name) > 1})
        what = f"{', '.join(twice)} twice" if twice else f"{len(fields)} fields"
        raise InvalidInterpreter(f"the output fields have {what}", hint=f"give each once, and at most {_MOST}")
    return fields


def _field_of(given: Given) -> OutputField:
    if isinstance(given, OutputField):
        return given
    if isinstance(given, str):
        name, _, written = given.partition(":")
        return OutputField(name.strip(), written.strip() or Any)
    if not isinstance(given, Mapping) or "name" not in given:
        raise InvalidInterpreter(
            f"{str(given)[:80]!r} is no output field", hint="give {'name': 'total', 'type': 'int'}, or 'total: int'"
        )
    kind = given.get("type")
    return OutputField(given["name"], Any if kind is None else kind)


def usage(fields: Sequence[OutputField]) -> str:
    """How SUBMIT is called: `SUBMIT(total: int, name: str)`."""
    return f"SUBMIT({', '.join(str(field) for field in fields)})" if fields else "SUBMIT(output)"


def check(
    fields: Sequence[OutputField], values: Mapping[str, Any], positional: Sequence[Any] = ()
) -> Mapping[str, Any]:
    """The values by field, converted to its type. Raises `InvalidSubmission`, which says what is wrong with which."""
    given = {**_named(fields, values, positional), **values}
    if not fields:
        if not given:
            raise InvalidSubmission("SUBMIT was given nothing", hint="call SUBMIT(output), or SUBMIT(name=value, ...)")
        return given
    wrong: list[str] = []
    made: dict[str, Any] = {}
    for field in fields:
        if field.name not in given:
            wrong.append(f"{field} is missing")
            continue
        try:
            made[field.name] = convert(field.type, given[field.name], field.name)
        except Mismatch as error:
            wrong.append(str(error))
    names = [field.name for field in fields]
    for name in given:
        if name not in names:
            near = difflib.get_close_matches(name[:_LONGEST_NAME], names, 1)
            wrong.append(f"{name[:_LONGEST_NAME]!r} is no field{f': {near[0]} is' if near else ''}")
    if wrong:
        more = f"; and {len(wrong) - _MOST_TOLD} more" if len(wrong) > _MOST_TOLD else ""
        raise InvalidSubmission(f"{'; '.join(wrong[:_MOST_TOLD])}{more}", hint=f"call {usage(fields)}")
    return made


def _named(fields: Sequence[OutputField], values: Mapping[str, Any], positional: Sequence[Any]) -> dict[str, Any]:
    """Values that came without a name: in the order of the fields."""
    if not fields:
        if len(positional) > 1 or (positional and values):
            raise InvalidSubmission("SUBMIT takes one value, or several by name", hint="call SUBMIT(name=value, ...)")
        return {_DEFAULT: positional[0]} if positional else {}
    if len(positional) > len(fields):
        raise InvalidSubmission(
            f"SUBMIT was given {len(positional)} values for {len(fields)} fields", hint=f"call {usage(fields)}"
        )
    named = {field.name: value for field, value in zip(fields, positional, strict=False)}
    if twice := sorted(named.keys() & values.keys()):
        raise InvalidSubmission(f"{', '.join(twice)} was given twice", hint=f"call {usage(fields)}")
    return named
