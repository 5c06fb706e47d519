"""The output fields of SUBMIT, each with a name and a type, and the check of a submission."""

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
_MOST_SHOWN: Final = 10
_DEFAULT: Final = "output"
"""The name of a single value, if there are no fields."""


@dataclass(frozen=True, slots=True)
class OutputField:
    name: str
    type: Any = Any
    """A Python type, or its name: `list[str]`."""

    def __post_init__(self) -> None:
        name = self.name
        if not isinstance(name, str) or not name.isidentifier() or keyword.iskeyword(name):
            raise InvalidInterpreter(f"{str(name)[:80]!r} cannot name an output field", hint="use a name like total")
        if len(name) > _LONGEST_NAME:
            raise InvalidInterpreter(f"the name of an output field has at most {_LONGEST_NAME} characters")
        try:
            object.__setattr__(self, "type", type_of(self.type))
            adapter_of(self.type)
        except InvalidInterpreter as error:
            raise InvalidInterpreter(f"output field {name}: {error.message}", hint=error.hint) from None

    def __str__(self) -> str:
        return self.name if self.type is Any else f"{self.name}: {name_of(self.type)}"


OutputFieldLike = OutputField | Mapping[str, Any] | str
"""What callers may pass as a field: an `OutputField`, `{"name": "total", "type": "int"}`, `"total: int"`, `"total"`."""


def parse_fields(source: Iterable[OutputFieldLike] | Mapping[str, Any] | None) -> tuple[OutputField, ...]:
    """Read output fields from a list, or from a mapping like `{"total": int}`. Raises `InvalidInterpreter`."""
    if source is None:
        return ()
    if isinstance(source, Mapping):
        fields = tuple(OutputField(name, kind) for name, kind in source.items())
    else:
        fields = tuple(_parse_field(each) for each in source)
    names = [field.name for field in fields]
    if len(fields) > _MOST or len(set(names)) < len(names):
        twice = sorted({name for name in names if names.count(name) > 1})
        what = f"{', '.join(twice)} twice" if twice else f"{len(fields)} fields"
        raise InvalidInterpreter(f"the output fields have {what}", hint=f"give each once, and at most {_MOST}")
    return fields


def _parse_field(source: OutputFieldLike) -> OutputField:
    if isinstance(source, OutputField):
        return source
    if isinstance(source, str):
        name, _, written = source.partition(":")
        return OutputField(name.strip(), written.strip() or Any)
    if not isinstance(source, Mapping) or "name" not in source:
        raise InvalidInterpreter(
            f"{str(source)[:80]!r} is not an output field",
            hint="give {'name': 'total', 'type': 'int'}, or 'total: int'",
        )
    kind = source.get("type")
    return OutputField(source["name"], Any if kind is None else kind)


def usage(fields: Sequence[OutputField]) -> str:
    """How to call SUBMIT: `SUBMIT(total: int, name: str)`."""
    return f"SUBMIT({', '.join(str(field) for field in fields)})" if fields else "SUBMIT(output)"


def check_submission(
    fields: Sequence[OutputField], values: Mapping[str, Any], positional: Sequence[Any] = ()
) -> Mapping[str, Any]:
    """Return the values by field, converted to their types. Raises `InvalidSubmission`, which lists what is wrong."""
    submitted = {**_name_positional(fields, values, positional), **values}
    if not fields:
        if not submitted:
            raise InvalidSubmission("SUBMIT needs a value", hint="call SUBMIT(output), or SUBMIT(name=value, ...)")
        return submitted
    wrong: list[str] = []
    made: dict[str, Any] = {}
    for field in fields:
        if field.name not in submitted:
            wrong.append(f"{field} is missing")
            continue
        try:
            made[field.name] = convert(field.type, submitted[field.name], field.name)
        except Mismatch as error:
            wrong.append(str(error))
    names = [field.name for field in fields]
    for name in submitted:
        if name not in names:
            near = difflib.get_close_matches(name[:_LONGEST_NAME], names, 1)
            wrong.append(f"{name[:_LONGEST_NAME]!r} is not a field{f': did you mean {near[0]}?' if near else ''}")
    if wrong:
        more = f"; and {len(wrong) - _MOST_SHOWN} more" if len(wrong) > _MOST_SHOWN else ""
        raise InvalidSubmission(f"{'; '.join(wrong[:_MOST_SHOWN])}{more}", hint=f"call {usage(fields)}")
    return made


def _name_positional(
    fields: Sequence[OutputField], values: Mapping[str, Any], positional: Sequence[Any]
) -> dict[str, Any]:
    """Assign positional values to the fields, in order."""
    if not fields:
        if len(positional) > 1 or (positional and values):
            raise InvalidSubmission("SUBMIT takes one value, or named values", hint="call SUBMIT(name=value, ...)")
        return {_DEFAULT: positional[0]} if positional else {}
    if len(positional) > len(fields):
        raise InvalidSubmission(
            f"SUBMIT got {len(positional)} values for {len(fields)} fields", hint=f"call {usage(fields)}"
        )
    named = {field.name: value for field, value in zip(fields, positional, strict=False)}
    if twice := sorted(named.keys() & values.keys()):
        raise InvalidSubmission(f"{', '.join(twice)} was passed twice", hint=f"call {usage(fields)}")
    return named
