"""Documents: what types of requests and responses have in common. JSON with names in camelCase, fields in snake_case.

A document is a plain dataclass. FastAPI checks it and shows it in the OpenAPI document, as pydantic understands
dataclasses; a client reads and writes it without pydantic. `Limits` says what a value may be, for whoever checks it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from enum import Enum
from types import NoneType, UnionType
from typing import Annotated, Any, ClassVar, Final, Self, Union, get_args, get_origin, get_type_hints

Read = Callable[[Any], Any]
Plan = tuple[tuple[str, str, Read | None, bool], ...]
_PLANS: Final[dict[type, Plan]] = {}
_SCALARS: Final = frozenset((str, int, float, bool, NoneType))


def camel_case(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


class Document:
    """The base of types on the wire. A subclass is a frozen dataclass with slots."""

    __slots__ = ()
    exact_types: ClassVar[bool] = False
    """Whether `from_json` refuses texts, numbers and booleans of another type. For documents that others can change."""
    __pydantic_config__: ClassVar[dict[str, Any]] = {
        "alias_generator": camel_case,
        "populate_by_name": True,
        "extra": "forbid",
    }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """Parse a response. A missing field gets its default, and an unknown field is ignored.

        Raises `LookupError`, `TypeError` or `ValueError` if `value` is not such a document. Limits are not checked.
        """
        given = {}
        for name, key, read, is_required in _plan(cls):
            if key in value:
                given[name] = value[key] if read is None else read(value[key])
            elif is_required:
                raise KeyError(key)
        return cls(**given)

    def to_json(self) -> dict[str, Any]:
        """Returns all fields, including those that are None."""
        return {key: _plain(getattr(self, name)) for name, key, _, _ in _plan(type(self))}

    def to_request(self) -> dict[str, Any]:
        """Returns only the fields that differ from their defaults. This is enough for a request."""
        said = {}
        for each in fields(self):  # type: ignore[arg-type]  # subclasses are dataclasses
            if not each.init:
                continue
            value = getattr(self, each.name)
            usual = each.default_factory() if each.default_factory is not MISSING else each.default
            if usual is MISSING or value != usual:
                said[camel_case(each.name)] = value.to_request() if isinstance(value, Document) else _plain(value)
        return said


class Limits:
    """The limits of a value, for use in `Annotated`, where pydantic finds them.

    `limits` are those of pydantic's core schemas: `min_length`, `max_length`, `pattern`, `ge`, `le`, `gt`, `lt`,
    `strict`, `allow_inf_nan`. `check` raises ValueError for what they cannot say. `schema` is added to the JSON schema.
    """

    def __init__(
        self, *, check: Callable[[Any], Any] | None = None, schema: Mapping[str, Any] | None = None, **limits: Any
    ) -> None:
        self._check = check
        self._schema = schema or {}
        self._limits = limits

    def __get_pydantic_core_schema__(self, source: Any, handler: Read) -> dict[str, Any]:
        core = {**handler(source), **self._limits}
        if self._check is None:
            return core
        return {"type": "function-after", "function": {"type": "no-info", "function": self._check}, "schema": core}

    def __get_pydantic_json_schema__(self, core: Any, handler: Read) -> dict[str, Any]:
        return {**handler(core), **self._schema}


def _plan(kind: type[Document]) -> Plan:
    """Returns for each field: its name, its key, its parser (None if it needs none), whether it is required."""
    if kind in _PLANS:
        return _PLANS[kind]
    hints = get_type_hints(kind)
    plan = _PLANS[kind] = tuple(
        (
            each.name,
            camel_case(each.name),
            _reader(hints[each.name], kind.exact_types),
            each.default is MISSING and each.default_factory is MISSING,
        )
        for each in fields(kind)  # type: ignore[arg-type]  # subclasses are dataclasses
        if each.init
    )
    return plan


def _reader(hint: Any, exact: bool) -> Read | None:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _reader(arguments[0], exact)
    if origin in (Union, UnionType):
        read = _reader(next(each for each in arguments if each is not NoneType), exact)
        return None if read is None else lambda value: None if value is None else read(value)
    if origin in (list, tuple):
        return _reader_of_list(origin, _reader(arguments[0], exact))
    if origin in (dict, Mapping):
        return _reader_of_mapping(*(_reader(each, exact) for each in arguments))
    if hasattr(hint, "from_json"):
        return hint.from_json  # type: ignore[no-any-return]
    if hint in _SCALARS:
        return _reader_of_exactly(hint) if exact else None
    return hint if isinstance(hint, type) and issubclass(hint, Enum) else None


def _reader_of_exactly(kind: type) -> Read:
    def read(value: Any) -> Any:
        if type(value) is not kind:
            raise TypeError(f"{value!r} is not of type {kind.__name__}")
        return value

    return read


def _reader_of_list(kind: type, read: Read | None) -> Read:
    return kind if read is None else lambda values: kind(map(read, values))


def _reader_of_mapping(read_key: Read | None, read: Read | None) -> Read | None:
    if read_key is None and read is None:
        return None
    key = read_key or (lambda value: value)
    return lambda values: {key(name): read(value) if read else value for name, value in values.items()}


def _plain(value: Any) -> Any:
    if type(value) in _SCALARS:
        return value
    if hasattr(value, "to_json"):
        return value.to_json()
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, tuple | list):
        return [_plain(each) for each in value]
    if isinstance(value, Mapping):
        return {_plain(name): _plain(each) for name, each in value.items()}
    return value
