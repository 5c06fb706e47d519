"""Types, given as names or as Python types, and the checking and conversion of values by them.

A value is converted if nothing is lost ("5" for an int). Text is never parsed as JSON: `'["a"]'` is not a list.
"""

from __future__ import annotations

import ast
import dataclasses
import datetime
import inspect
import types
import typing
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, PydanticUserError, TypeAdapter, ValidationError
from pydantic.errors import PydanticSchemaGenerationError

from holdfast.api.errors.interpreters import InvalidInterpreter
from holdfast.api.problems import describe_problem

_NAMES: Final[Mapping[str, Any]] = {
    "any": Any,
    "Any": Any,
    "object": Any,
    "str": str,
    "string": str,
    "int": int,
    "integer": int,
    "float": float,
    "number": float,
    "bool": bool,
    "boolean": bool,
    "bytes": bytes,
    "None": None,
    "list": list,
    "List": list,
    "array": list,
    "dict": dict,
    "Dict": dict,
    "tuple": tuple,
    "Tuple": tuple,
    "set": set,
    "Set": set,
    "date": datetime.date,
    "datetime": datetime.datetime,
}
_GENERIC: Final[Mapping[str, Any]] = {
    name: _NAMES[name] for name in ("list", "List", "dict", "Dict", "tuple", "Tuple", "set", "Set")
}
_LONGEST: Final = 1000
_DEEPEST: Final = 3
"""The depth to which the name of a type lists the fields of records."""
_MOST_SHOWN: Final = 5
_MOST_ERRORS: Final = 100
_SHOWN: Final = 80


class Mismatch(Exception):
    """A value does not have its type. The message is for a model."""


# --- types by name ---


def type_of(annotation: Any) -> Any:
    """Return the Python type for a type or its name: `str`, `list[str]`, `Literal['a', 'b']`, `int | None`.

    Does not evaluate anything. Raises `InvalidInterpreter`.
    """
    if not isinstance(annotation, str):
        return Any if annotation is inspect.Parameter.empty else annotation
    try:
        if len(annotation) > _LONGEST:
            raise ValueError
        return _parse_type(ast.parse(annotation.strip(), mode="eval").body)
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        known = "str, int, float, bool, list[str], dict[str, int], str | None, Literal['a', 'b'], date"
        raise InvalidInterpreter(
            f"{annotation[:_SHOWN]!r} is not a known type", hint=f"use one of {known}, or a Python type"
        ) from None


def _parse_type(node: ast.expr) -> Any:
    match node:
        case ast.Constant(value=None):
            return None
        case ast.Name(id=name) if name in _NAMES:
            return _NAMES[name]
        case ast.Attribute(value=ast.Name(id="typing" | "t" | "datetime"), attr=name):
            return _parse_type(ast.Name(id=name))
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            return typing.Union[_parse_type(left), _parse_type(right)]  # noqa: UP007
        case ast.Subscript(value=ast.Name(id="Literal"), slice=inner):
            return typing.Literal[tuple(ast.literal_eval(each) for each in _several(inner))]
        case ast.Subscript(value=ast.Name(id="Optional"), slice=inner):
            return typing.Optional[_parse_type(inner)]  # noqa: UP045
        case ast.Subscript(value=ast.Name(id="Union"), slice=inner):
            return typing.Union[tuple(_parse_type(each) for each in _several(inner))]  # noqa: UP007
        case ast.Subscript(value=ast.Name(id=name), slice=inner) if name in _GENERIC:
            return _GENERIC[name][tuple(Ellipsis if _is_dots(each) else _parse_type(each) for each in _several(inner))]
        case ast.Subscript(value=ast.Attribute(value=ast.Name(id="typing" | "t"), attr=name), slice=inner):
            return _parse_type(ast.Subscript(value=ast.Name(id=name), slice=inner))
    raise ValueError(ast.dump(node)[:_SHOWN])


def _several(node: ast.expr) -> list[ast.expr]:
    return node.elts if isinstance(node, ast.Tuple) else [node]


def _is_dots(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is Ellipsis


# --- descriptions for a model ---


def name_of(kind: Any, depth: int = 0) -> str:
    """Describe a type for a model. Records are described by their fields, because they are dictionaries in the box."""
    if kind is Any or kind is inspect.Parameter.empty:
        return "Any"
    if kind is None or kind is types.NoneType:
        return "None"
    if isinstance(kind, str):
        return kind
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Annotated:
        return name_of(inner[0], depth)
    if origin is typing.Union or origin is types.UnionType:
        return " | ".join(dict.fromkeys(name_of(each, depth) for each in inner))
    if origin is typing.Literal:
        return f"Literal[{', '.join(repr(each) for each in inner)}]"
    if origin is not None and inner:
        named = ", ".join("..." if each is Ellipsis else name_of(each, depth) for each in inner)
        return f"{getattr(origin, '__name__', str(origin))}[{named}]"
    fields = _fields_of(kind)
    if fields is not None:
        if depth >= _DEEPEST:
            return "dict"
        return "{" + ", ".join(f"{name}: {name_of(each, depth + 1)}" for name, each in fields) + "}"
    return str(getattr(kind, "__name__", kind))


def _fields_of(kind: Any) -> list[tuple[str, Any]] | None:
    if not isinstance(kind, type):
        return None
    if issubclass(kind, BaseModel):
        return [(name, field.annotation) for name, field in kind.model_fields.items()]
    if dataclasses.is_dataclass(kind) or typing.is_typeddict(kind):
        try:
            hints = typing.get_type_hints(kind)
        except (NameError, TypeError):
            return None
        names: Iterable[str] = (
            [field.name for field in dataclasses.fields(kind)] if dataclasses.is_dataclass(kind) else hints
        )
        return [(name, hints.get(name, Any)) for name in names]
    return None


# --- checking ---


def convert(kind: Any, value: Any, where: str) -> Any:
    """Convert a value to a type. `where` names the value in errors. Raises `Mismatch`."""
    adapter = adapter_of(kind)
    if adapter is None:
        return value
    try:
        return adapter.validate_python(value)
    except ValidationError as error:
        raise Mismatch(_describe_mismatch(error, kind, value, where)) from None
    except (RecursionError, ValueError, TypeError) as error:  # raised by a validator of the user
        raise Mismatch(f"{where} must be {name_of(kind)}: {str(error)[:_SHOWN]}") from None


def adapter_of(kind: Any) -> TypeAdapter[Any] | None:
    """Return None if any value is allowed. Raises `InvalidInterpreter` if `kind` is not a type."""
    if kind is Any or kind is object or kind is inspect.Parameter.empty:
        return None
    try:
        return _cached_adapter(kind)
    except TypeError:  # it is not hashable
        return _adapter(kind)


def _adapter(kind: Any) -> TypeAdapter[Any]:
    try:
        try:
            return TypeAdapter(kind, config=ConfigDict(arbitrary_types_allowed=True))
        except PydanticUserError as error:
            if error.code != "type-adapter-config-unused":
                raise
            return TypeAdapter(kind)  # a model has a configuration of its own
    except (PydanticUserError, PydanticSchemaGenerationError, NameError) as error:
        raise InvalidInterpreter(
            f"{name_of(kind)[:_SHOWN]} cannot be used to check values: {str(error).splitlines()[0][:200]}",
            hint="use str, int, list[str], a dataclass, or no annotation at all",
        ) from None


_cached_adapter = lru_cache(maxsize=512)(_adapter)


def _describe_mismatch(error: ValidationError, kind: Any, value: Any, where: str) -> str:
    count = error.error_count()
    wanted = f"{where} must be {name_of(kind)}"
    if count > _MOST_ERRORS:  # listing all of them takes long, which a hostile box may want
        return f"{wanted}: {count} of its values are wrong"
    found = error.errors(include_url=False, include_context=False)
    if count == 1 and not found[0]["loc"]:
        return f"{wanted}, not {_show(value)}"
    lines = []
    for each in found[:_MOST_SHOWN]:
        place = "".join(f"[{part!r}]" for part in each["loc"])
        lines.append(f"{where}{place}: {describe_problem(each)}, not {_show(each['input'])}")
    more = f"; and {count - _MOST_SHOWN} more" if count > _MOST_SHOWN else ""
    return f"{wanted}: {'; '.join(lines)}{more}"


def _show(value: Any) -> str:
    if isinstance(value, str | bytes):
        value = value[:_SHOWN]
    elif not isinstance(value, int | float | bool | None):
        return f"a {type(value).__name__}"
    text = repr(value) if not isinstance(value, int) or abs(value) < 10**20 else "a large number"
    return f"{text[:_SHOWN]} ({type(value).__name__})" if value is not None else "None"
