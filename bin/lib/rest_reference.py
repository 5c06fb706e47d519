"""Writes docs/reference/rest.md: every REST route with its role, fields, answer and errors, and every type of bodies.
Run by `bin/generate`, checked by tests/docs/test_references.py.
"""

from __future__ import annotations

import importlib
import inspect
import json
import pkgutil
import re
import sys
from collections.abc import Iterator, Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final, cast

sys.path.insert(0, str(Path(__file__).parents[2] / "src"))

from starlette.routing import WebSocketRoute

import holdfast.api.errors
from holdfast.api.errors import HoldfastError
from holdfast.server.routes.app import create_app
from holdfast.server.routes.roles import BY_TOKEN, OPERATOR, PUBLIC, SOCKET, least_role
from holdfast.server.routes.services import Services

PAGE: Final = Path(__file__).parents[2] / "docs" / "reference" / "rest.md"
METHODS: Final = ("get", "post", "put", "patch", "delete")
ABOUT: Final = """# REST API

Every route of the server, by its noun, and then every type of request and response bodies. This page is written by
`bin/generate` from the OpenAPI document, which a server has at `/v1/openapi.json`.

- Bodies are JSON unless something else is named. Send the API key as `Authorization: Bearer hf_…`.
- Each route names the [role](../tenants.md) that it needs at least.
- The protocol of threads (`/v1/stream/…`) is [Durable Streams](../threads.md).
"""
ERRORS: Final = """## Errors

An error has the body `{"error": {"code": …, "message": …, "hint": …}}`. The code is one of
the following, and the Python client raises the class of the same row.

| status | code | class | |
|---|---|---|---|
"""


def page() -> str:
    app = create_app(cast("Services", None))
    document = app.openapi()
    sockets = [each for each in app.routes if isinstance(each, WebSocketRoute)]
    usual = _usual_errors(document)
    parts = [ABOUT, "## Answers that most routes share\n", _error_table(usual)]
    for tag, routes in _by_tag(document).items():
        parts.append(f"## {tag}\n")
        parts += [_route(method, path, operation, document, usual) for method, path, operation in routes]
    parts.append("## WebSockets\n")
    parts += [_socket(each) for each in sorted(sockets, key=lambda each: each.path)]
    parts += [ERRORS + "\n".join(_errors()) + "\n", "## Types\n"]
    parts += [_type(name, schema) for name, schema in sorted(document["components"]["schemas"].items())]
    return "\n".join(parts)


def _by_tag(document: Mapping[str, Any]) -> dict[str, list[tuple[str, str, Any]]]:
    found: dict[str, list[tuple[str, str, Any]]] = {}
    for path, operations in document["paths"].items():
        for method in METHODS:
            if method in operations:
                tag = (operations[method].get("tags") or [_noun(path)])[0]
                found.setdefault(tag, []).append((method.upper(), path, operations[method]))
    return dict(sorted(found.items()))


def _noun(path: str) -> str:
    words = [word for word in path.split("/") if word and word != "v1"]
    return words[0] if words and "{" not in words[0] else "page"


def _usual_errors(document: Mapping[str, Any]) -> dict[str, str]:
    """Return the errors that more than half of the routes declare, with the same description."""
    operations = [each for paths in document["paths"].values() for each in paths.values()]
    counted: dict[tuple[str, str], int] = {}
    for each in operations:
        for status, answer in each["responses"].items():
            if _is_error(status):
                key = (status, answer["description"])
                counted[key] = counted.get(key, 0) + 1
    return {status: text for (status, text), number in sorted(counted.items()) if number * 2 > len(operations)}


def _is_error(status: str) -> bool:
    return status == "default" or status >= "400"


def _error_table(errors: Mapping[str, str]) -> str:
    rows = [f"| {status} | {text} |" for status, text in errors.items()]
    return "\n".join(["| status | |", "|---|---|", *rows, ""])


def _route(method: str, path: str, operation: Any, document: Mapping[str, Any], usual: Mapping[str, str]) -> str:
    lines = [f"### {method} {_shown(path)}", "", _who(method, path), ""]
    if text := operation.get("description"):
        lines += [_escaped(inspect.cleandoc(text)), ""]
    parameters = [each for each in operation.get("parameters", []) if each["in"] != "path"]
    in_path = [each for each in operation.get("parameters", []) if each["in"] == "path"]
    if parameters or in_path:
        lines += ["| parameter | in | type | |", "|---|---|---|---|"]
        for each in (*in_path, *parameters):
            need = "Required." if each.get("required") else _default(each["schema"])
            text = " ".join(filter(None, [_cell(each.get("description", "")), need]))
            lines.append(f"| `{each['name']}` | {each['in']} | {_kind(each['schema'])} | {text} |")
        lines.append("")
    for media, body in operation.get("requestBody", {}).get("content", {}).items():
        kind = _kind(body.get("schema", {}))
        lines += [f"Body: {kind}{'' if media == 'application/json' else f' as `{media}`'}.", ""]
    for status, answer in operation["responses"].items():
        if not _is_error(status):
            lines += [_answer(status, answer), ""]
    other = {
        status: answer["description"]
        for status, answer in operation["responses"].items()
        if _is_error(status) and usual.get(status) != answer["description"]
    }
    if other:
        lines += ["Errors of its own:", "", _error_table(other)]
    if not any(map(_is_error, operation["responses"])):
        lines += ["Has none of the shared errors.", ""]
    return "\n".join(lines)


def _shown(path: str) -> str:
    return re.sub(r":path\}", "}", path)


def _who(method: str, path: str) -> str:
    pair = _pattern_pair(method, path)
    if pair in PUBLIC:
        return "Needs no credential."
    if pair in BY_TOKEN:
        return "Checks the token, the cookie or the signature of the request itself."
    if pair in OPERATOR or path.startswith("/v1/tenants"):
        return "Role: owner of the default tenant."
    return f"Role: {least_role(*pair).value}."


def _pattern_pair(method: str, path: str) -> tuple[str, str]:
    """`roles` names routes by their pattern, which has the converter that the OpenAPI document leaves out."""
    return method, _PATTERNS.get((method, path), path)


def _patterns() -> dict[tuple[str, str], str]:
    found = {}
    for each in create_app(cast("Services", None)).routes:
        for method in getattr(each, "methods", None) or ():
            pattern = getattr(each, "path", "")
            found[method, re.sub(r"\{(\w+):\w+\}", r"{\1}", pattern)] = pattern
    return found


_PATTERNS: Final = _patterns()


def _answer(status: str, answer: Mapping[str, Any]) -> str:
    phrase = HTTPStatus(int(status)).phrase
    content = answer.get("content", {})
    kinds = [
        _kind(body.get("schema", {})) + ("" if media == "application/json" else f" as `{media}`")
        for media, body in content.items()
    ]
    return f"Answers {status} {phrase}" + (f": {' or '.join(kinds)}." if kinds else ".")


def _socket(route: WebSocketRoute) -> str:
    text = inspect.getdoc(route.endpoint) or ""
    role = least_role(SOCKET, route.path).value
    return f"### WEBSOCKET {_shown(route.path)}\n\nRole: {role}.\n\n{_escaped(text)}\n"


def _errors() -> Iterator[str]:
    for module in pkgutil.iter_modules(holdfast.api.errors.__path__):
        importlib.import_module(f"holdfast.api.errors.{module.name}")
    for cls in sorted(_subclasses(HoldfastError), key=lambda each: (each.status or 0, each.code, each.__name__)):
        if cls.status is not None and cls.__module__.startswith("holdfast.api.errors") and "code" in cls.__dict__:
            first = (cls.__doc__ or "").strip().partition("\n")[0]
            yield f"| {cls.status} | `{cls.code}` | `{cls.__name__}` | {_cell(first)} |"


def _subclasses(cls: type[HoldfastError]) -> set[type[HoldfastError]]:
    return {found for each in cls.__subclasses__() for found in (each, *_subclasses(each))}


def _type(name: str, schema: Mapping[str, Any]) -> str:
    lines = [f"### {name}", ""]
    if text := schema.get("description"):
        lines += [_escaped(inspect.cleandoc(text)), ""]
    if "enum" in schema:
        lines += [f"One of: {', '.join(f'`{value}`' for value in schema['enum'])}.", ""]
    elif fields := schema.get("properties"):
        required = schema.get("required", [])
        lines += ["| field | type | |", "|---|---|---|"]
        for field, each in fields.items():
            need = "Required." if field in required else _default(each)
            text = " ".join(filter(None, [_cell(each.get("description", "")), need]))
            lines.append(f"| `{field}` | {_kind(each)} | {text} |")
        lines.append("")
    else:
        lines += [f"{_kind(schema)}.", ""]
    return "\n".join(lines)


def _default(schema: Mapping[str, Any]) -> str:
    if schema.get("default") in (None, "", [], {}):
        return ""
    return f"By default `{json.dumps(schema['default'])}`."


def _kind(schema: Mapping[str, Any]) -> str:
    if reference := schema.get("$ref"):
        name = reference.rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    for several in ("anyOf", "oneOf", "allOf"):
        if several in schema:
            return " or ".join(dict.fromkeys(map(_kind, schema[several])))
    if "const" in schema:
        return f"`{schema['const']}`"
    if "enum" in schema:
        return " or ".join(f"`{value}`" for value in schema["enum"])
    kind = schema.get("type", "anything")
    if kind == "array":
        return f"list of {_kind(schema.get('items', {}))}{_bounds(schema, 'minItems', 'maxItems')}"
    if kind == "object":
        values = schema.get("additionalProperties")
        return f"object of {_kind(values)}" if isinstance(values, dict) and values else "object"
    if kind == "string":
        return ("bytes" if schema.get("format") == "binary" else "text") + _bounds(schema, "minLength", "maxLength")
    if kind in ("integer", "number"):
        return str(kind) + _bounds(schema, "minimum", "maximum")
    return str(kind)


def _bounds(schema: Mapping[str, Any], low: str, high: str) -> str:
    least, most = schema.get(low), schema.get(high)
    if most is not None:
        return f", {_number(least or 0)} to {_number(most)}"
    return f", at least {_number(least)}" if least else ""


def _number(value: float) -> str:
    return f"{int(value):,}" if value == int(value) else str(value)


def _escaped(text: str) -> str:
    parts = re.split(r"(`[^`\n]*`)", text)
    return "".join(part if number % 2 else re.sub(r"([<\[])", r"\\\1", part) for number, part in enumerate(parts))


def _cell(text: str) -> str:
    return _escaped(" ".join(text.split())).replace("|", "\\|")


if __name__ == "__main__":
    text = page()
    if not PAGE.exists() or PAGE.read_text() != text:
        PAGE.write_text(text)
        sys.stdout.write(f"  wrote        {PAGE.relative_to(PAGE.parents[2])}\n")
