"""Operations: their names, fields and limits, defined once.

From one definition come the route of the internal API, the MCP tool of every agent, the REST route and the reference in
the docs. The fields are JSON schemas, and `Operation.check` enforces what they say.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from holdfast.api.document import camel_case
from holdfast.api.errors import InvalidRequest
from holdfast.api.run.tasks import ToolDefinition

MAX_TEXT: Final = 64 * 1024
"""Characters of a text, unless its field says otherwise."""
MAX_OBJECT: Final = 256 * 1024
"""Bytes of an object as JSON."""
_DEEPEST: Final = 32
_SHOWN: Final = 100

Schema = Mapping[str, Any]


class ToolGroup(StrEnum):
    """What a session can be allowed to ask for. Each group has operations of one subject."""

    CHILDREN = "children"
    """Sessions of its own: start, prompt, read and terminate them."""
    MEMORY = "memory"
    """Notes that outlive the session."""
    TASKS = "tasks"
    """A list of tasks, which the sessions of one tree share."""
    MAILBOX = "mailbox"
    """Messages to other sessions of the tree, and to people."""
    WORKFLOWS = "workflows"
    """Steps that are carried out one after the other, by request, by schedule or by webhook."""
    GITHUB = "github"
    """Pull requests and files of repositories that the session has a secret for."""
    CHANNELS = "channels"
    """Answers to chats outside of Holdfast."""
    SECRETS = "secrets"
    """Commands and files with the secrets of the session's box."""


@dataclass(frozen=True, slots=True)
class Field:
    """One field of the input."""

    name: str
    """In camelCase. It is also accepted in snake_case."""
    description: str
    schema: Schema
    required: bool = False
    aliases: tuple[str, ...] = ()
    """Other names that are accepted."""

    @property
    def json_schema(self) -> dict[str, Any]:
        return {**self.schema, "description": self.description}


@dataclass(frozen=True, slots=True)
class Operation:
    name: str
    """The name of the tool."""
    group: ToolGroup
    route: str
    """Method and path of the internal API, such as `DELETE /api/memories/{id}`. GET takes its fields from the query."""
    description: str
    """For the agent."""
    fields: tuple[Field, ...] = ()
    result: str = ""
    """The fields of the answer, for the docs."""
    changes: bool = True
    """Whether it may change something. Such calls are limited in number."""
    for_agents: bool = True
    """Whether agents are offered it as a tool."""
    people_only: bool = False
    """Whether only people may call it. Such an operation has no route in the box."""

    @property
    def method(self) -> str:
        return self.route.partition(" ")[0]

    @property
    def path(self) -> str:
        return self.route.partition(" ")[2]

    @property
    def input_schema(self) -> dict[str, Any]:
        return {
            "type": "object",
            "properties": {each.name: each.json_schema for each in self.fields},
            "required": [each.name for each in self.fields if each.required],
            "additionalProperties": False,
        }

    @property
    def definition(self) -> ToolDefinition:
        return ToolDefinition(name=self.name, description=self.description, input_schema=self.input_schema)

    def check(self, given: Mapping[str, Any], *, from_text: bool = False) -> dict[str, Any]:
        """Returns the input by the names of the fields. Leaves out what is None. Raises `InvalidRequest`.

        With `from_text`, all values are texts, as in a query.
        """
        known = {alias: each for each in self.fields for alias in (each.name, *each.aliases)}
        checked: dict[str, Any] = {}
        for key, value in given.items():
            field = known.get(camel_case(str(key)))
            if field is None:
                names = ", ".join(each.name for each in self.fields) or "no fields"
                raise InvalidRequest(f"{self.name} takes no {str(key)[:_SHOWN]!r}: it takes {names}")
            if value is None:
                continue
            if from_text:
                value = _of_text(field.schema, value)
            check_value(field.schema, value, field.name)
            checked[field.name] = value
        for field in self.fields:
            if field.required and field.name not in checked:
                raise InvalidRequest(f"{self.name} needs {field.name}: {field.description}")
        return checked


# --- schemas ---


def text(longest: int = MAX_TEXT, *, pattern: str | None = None, empty: bool = False) -> Schema:
    known: dict[str, Any] = {"type": "string", "maxLength": longest}
    if not empty:
        known["minLength"] = 1
    return known if pattern is None else {**known, "pattern": pattern}


def choice(*words: str) -> Schema:
    return {"type": "string", "enum": list(words)}


def integer(lowest: int, highest: int) -> Schema:
    return {"type": "integer", "minimum": lowest, "maximum": highest}


def list_of(item: Schema, most: int) -> Schema:
    return {"type": "array", "items": dict(item), "maxItems": most}


BOOLEAN: Final[Schema] = {"type": "boolean"}
OBJECT: Final[Schema] = {"type": "object"}
ID: Final[Schema] = text(128, pattern=r"^[A-Za-z0-9_-]+$")
LIMIT: Final = Field("limit", "How many at most.", integer(1, 200))
AFTER: Final = Field("after", "Only what came after this id.", ID)
KEY: Final = Field(
    "key",
    "Any name. A second call with the same key has no further effect, and returns the same.",
    text(128, pattern=r"^[!-~]+$"),
)


def check_value(schema: Schema, value: Any, name: str) -> None:
    """Raises `InvalidRequest` if a value is not what the schema says. Knows the parts of JSON Schema that are used
    here.
    """
    _CHECKS[schema["type"]](schema, value, name)


def _check_text(schema: Schema, value: Any, name: str) -> None:
    if not isinstance(value, str) or "\0" in value:
        raise InvalidRequest(f"{name} must be a text without NUL")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InvalidRequest(f"{name} must be valid UTF-8") from None
    if (words := schema.get("enum")) is not None and value not in words:
        raise InvalidRequest(f"{name} must be one of {', '.join(words)}, not {value[:_SHOWN]!r}")
    if schema.get("minLength", 0) and not value.strip():
        raise InvalidRequest(f"{name} must not be empty")
    if len(value) > schema.get("maxLength", MAX_TEXT):
        raise InvalidRequest(f"{name} has {len(value)} characters, more than {schema.get('maxLength', MAX_TEXT)}")
    if (pattern := schema.get("pattern")) is not None and re.fullmatch(pattern, value) is None:
        raise InvalidRequest(f"{name} is not valid: {value[:_SHOWN]!r}")


def _check_integer(schema: Schema, value: Any, name: str) -> None:
    lowest, highest = schema["minimum"], schema["maximum"]
    if type(value) is not int or not lowest <= value <= highest:
        raise InvalidRequest(f"{name} must be a whole number from {lowest} to {highest}, not {str(value)[:_SHOWN]}")


def _check_boolean(schema: Schema, value: Any, name: str) -> None:
    if not isinstance(value, bool):
        raise InvalidRequest(f"{name} must be true or false, not {str(value)[:_SHOWN]}")


def _check_object(schema: Schema, value: Any, name: str) -> None:
    if not isinstance(value, dict):
        raise InvalidRequest(f"{name} must be a JSON object")
    check_json(value, name)
    for each, inner in schema.get("properties", {}).items():
        if each in value:
            check_value(inner, value[each], f"{name}.{each}")
    if (inner := schema.get("additionalProperties")) is not None and inner is not False:
        for each, item in value.items():
            check_value(inner, item, f"{name}.{each[:_SHOWN]}")


def _check_list(schema: Schema, value: Any, name: str) -> None:
    if not isinstance(value, list):
        raise InvalidRequest(f"{name} must be a list")
    if len(value) > schema["maxItems"]:
        raise InvalidRequest(f"{name} has {len(value)} items, more than {schema['maxItems']}")
    for number, each in enumerate(value):
        check_value(schema["items"], each, f"{name}[{number}]")


_CHECKS: Final[Mapping[str, Callable[[Schema, Any, str], None]]] = {
    "string": _check_text,
    "integer": _check_integer,
    "boolean": _check_boolean,
    "object": _check_object,
    "array": _check_list,
}


def check_json(value: Any, name: str) -> None:
    """Raises `InvalidRequest` if a JSON value is too large or nested too deeply, or has texts that are not UTF-8."""
    pending = [(value, 1)]
    while pending:
        each, depth = pending.pop()
        if depth > _DEEPEST:
            raise InvalidRequest(f"{name} is nested more than {_DEEPEST} levels deep")
        if isinstance(each, dict):
            pending += [(item, depth + 1) for item in each.values()]
        elif isinstance(each, list):
            pending += [(item, depth + 1) for item in each]
    try:
        size = len(json.dumps(value, ensure_ascii=False, allow_nan=False).encode())
    except (ValueError, RecursionError):
        raise InvalidRequest(f"{name} must be valid JSON in UTF-8") from None
    if size > MAX_OBJECT:
        raise InvalidRequest(f"{name} has {size} bytes, more than {MAX_OBJECT}")


def _of_text(schema: Schema, value: Any) -> Any:
    """Returns the value that a text of a query stands for, or the text."""
    if schema["type"] == "integer" and isinstance(value, str) and re.fullmatch(r"-?[0-9]{1,15}", value):
        return int(value)
    if schema["type"] == "boolean" and value in ("true", "false"):
        return value == "true"
    return value
