"""Writes docs/reference/python.md: the public classes of holdfast, with signatures and docstrings. Run by
`bin/generate`, checked by tests/docs/test_references.py.

Classes are read from the source, so that signatures are shown as they were written.
"""

from __future__ import annotations

import ast
import inspect
import sys
import typing
from collections.abc import Iterator
from enum import Enum
from functools import cached_property
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Final

sys.path.insert(0, str(Path(__file__).parents[2] / "src"))

import holdfast
import holdfast.client
import holdfast.interpreter.execution

PAGE: Final = Path(__file__).parents[2] / "docs" / "reference" / "python.md"
ABOUT: Final = """# Python: classes and methods

Everything public of `holdfast` and `holdfast.client`, and what interpreters return. This page is written by
`bin/generate` from the source; [the Python client](../client.md) and [the interpreter](../interpreter.md) explain it
with examples.

Classes whose names begin with `Sync` have the same methods without `await`: `SyncClient` for `Client`,
`SyncInterpreter` for `Interpreter`, and so on for what these return. They are not listed again.
"""


def page() -> str:
    shown: set[type] = set()
    parts = [ABOUT]
    for title, classes in (
        ("holdfast", _exported(holdfast)),
        ("holdfast.client", [*_parts_of_client(), *_exported(holdfast.client)]),
        ("holdfast.interpreter", _defined(holdfast.interpreter.execution)),
    ):
        parts.append(f"## {title}\n")
        for cls in classes:
            if cls not in shown:
                parts.append(_section(cls))
                shown.add(cls)
    return "\n".join(parts)


def _exported(package: ModuleType) -> list[type]:
    names = [name for name in package.__all__ if not name.startswith(("Sync", "__"))]
    return [each for name in names if isinstance(each := getattr(package, name), type)]


def _defined(module: ModuleType) -> list[type]:
    return [
        each
        for name, each in vars(module).items()
        if isinstance(each, type) and each.__module__ == module.__name__ and not name.startswith("_")
    ]


def _parts_of_client() -> list[type]:
    """Return the classes of `client.threads`, `client.keys` and so on."""
    properties = {
        name for name, value in vars(holdfast.Client).items() if isinstance(value, property | cached_property)
    }
    names = {
        ast.unparse(each.returns) for each in _functions(holdfast.Client) if each.name in properties and each.returns
    }
    module = ast.parse(Path(inspect.getfile(holdfast.Client)).read_text())
    imports = [each for each in ast.walk(module) if isinstance(each, ast.ImportFrom) and each.module]
    homes = {alias.name: str(each.module) for each in imports for alias in each.names}
    return [getattr(import_module(homes[name]), name) for name in sorted(names & homes.keys())]


def _section(cls: type) -> str:
    lines = [f"### {cls.__name__}", ""]
    if issubclass(cls, Enum):
        lines += [_doc(cls), "", ", ".join(f"`{each.name}` = `{each.value!r}`" for each in cls) + ".", ""]
        return "\n".join(lines)
    lines += ["```text", _header(cls), "```", "", _doc(cls), ""]
    if fields := [*_fields(cls), *_properties(cls)]:
        lines += ["| attribute | |", "|---|---|", *fields, ""]
    for function in _functions(cls):
        if not _is_property(function):
            lines += [_function(cls, function), ""]
    return "\n".join(lines)


def _home(cls: type) -> str:
    """Return the module that users import a class from."""
    packages = [each for each in (holdfast, holdfast.client) if cls.__name__ in each.__all__]
    return packages[0].__name__ if packages else cls.__module__


def _header(cls: type) -> str:
    bases = [base.__name__ for base in cls.__bases__ if base is not object and base is not typing.Generic]
    lines = [f"from {_home(cls)} import {cls.__name__}", "", f"class {cls.__name__}({', '.join(bases)})"]
    created = next((each for each in _own(cls) if isinstance(each, ast.FunctionDef) and each.name == "__init__"), None)
    if created is not None:
        lines[-1] = _signature(created, cls.__name__)
    return "\n".join(lines).replace("()", "") if created is None else "\n".join(lines)


def _own(cls: type) -> list[ast.stmt]:
    try:
        tree = ast.parse(inspect.cleandoc("\n" + inspect.getsource(cls)))
    except (OSError, TypeError, SyntaxError):
        return []
    return tree.body[0].body if isinstance(tree.body[0], ast.ClassDef) else []


def _lineage(cls: type) -> Iterator[type]:
    for each in cls.__mro__:
        if each.__module__.startswith("holdfast."):
            yield each


def _functions(cls: type) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    found: dict[str, ast.FunctionDef | ast.AsyncFunctionDef] = {}
    for each in _lineage(cls):
        for node in _own(each):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.startswith("_"):
                found.setdefault(node.name, node)
    return list(found.values())


def _fields(cls: type) -> Iterator[str]:
    for each in reversed(list(_lineage(cls))):
        body = _own(each)
        for node, after in zip(body, [*body[1:], None], strict=True):
            if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
                continue
            if node.target.id.startswith("_") or ast.unparse(node.annotation).startswith(("Final", "ClassVar")):
                continue
            documented = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
            text = str(after.value.value) if documented else ""  # type: ignore[union-attr]
            value = ast.unparse(node.value) if node.value is not None else ""
            default = f" = {value}" if value and len(value) < 40 else ""
            yield _row(f"{node.target.id}: {ast.unparse(node.annotation)}{default}", text)


def _properties(cls: type) -> Iterator[str]:
    for node in filter(_is_property, _functions(cls)):
        kind = f": {ast.unparse(node.returns)}" if node.returns else ""
        yield _row(f"{node.name}{kind}", ast.get_docstring(node) or "")


def _is_property(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return any(ast.unparse(each) in ("property", "cached_property") for each in node.decorator_list)


def _row(code: str, text: str) -> str:
    return "| `" + code.replace("|", "\\|") + "` | " + " ".join(text.split()).replace("|", "\\|") + " |"


def _function(cls: type, node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    word = "async def " if isinstance(node, ast.AsyncFunctionDef) else "def "
    marks = [ast.unparse(each) for each in node.decorator_list]
    shown = "".join(f"@{each}\n" for each in marks if each in ("classmethod", "staticmethod"))
    lines = [f"#### {cls.__name__}.{node.name}", "", "```text", f"{shown}{word}{_signature(node, node.name)}", "```"]
    if text := ast.get_docstring(node):
        lines += ["", text]
    return "\n".join(lines)


def _signature(node: ast.FunctionDef | ast.AsyncFunctionDef, name: str) -> str:
    node = ast.parse(ast.unparse(node)).body[0]  # type: ignore[assignment]
    if node.args.args and node.args.args[0].arg in ("self", "cls"):
        del node.args.args[0]
    returns = f" -> {ast.unparse(node.returns)}" if node.returns and node.name != "__init__" else ""
    short = f"{name}({ast.unparse(node.args)}){returns}"
    if len(short) <= 110:
        return short
    one_by_one = _arguments(node.args)
    return f"{name}(\n" + "".join(f"    {each},\n" for each in one_by_one) + f"){returns}"


def _arguments(arguments: ast.arguments) -> Iterator[str]:
    positional = [*arguments.posonlyargs, *arguments.args]
    defaults: list[ast.expr | None] = [None] * (len(positional) - len(arguments.defaults))
    for each, value in zip(positional, [*defaults, *arguments.defaults], strict=True):
        yield ast.unparse(each) + (f" = {ast.unparse(value)}" if value is not None else "")
    if arguments.vararg is not None:
        yield f"*{ast.unparse(arguments.vararg)}"
    elif arguments.kwonlyargs:
        yield "*"
    for each, value in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        yield ast.unparse(each) + (f" = {ast.unparse(value)}" if value is not None else "")
    if arguments.kwarg is not None:
        yield f"**{ast.unparse(arguments.kwarg)}"


def _doc(cls: type) -> str:
    text = cls.__dict__.get("__doc__") or ""
    return "" if text.startswith(f"{cls.__name__}(") else inspect.cleandoc(text)


if __name__ == "__main__":
    text = page()
    if not PAGE.exists() or PAGE.read_text() != text:
        PAGE.write_text(text)
        sys.stdout.write(f"  wrote        {PAGE.relative_to(PAGE.parents[2])}\n")
