"""Writes the sync twins of async classes: `*/sync.py`. Run by `bin/generate`, checked by tests/test_sync_twins.py.

A twin has every public method, property and attribute of its original, with the same parameters and docstring:

- what is awaited there is waited for here;
- an async iterator there is a `SyncIterator` here, and an iterable where a method takes one;
- what has a twin is handed out as its twin.

What the script cannot translate, it refuses, so that nothing is left out in silence.
"""

from __future__ import annotations

import ast
import builtins
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

SOURCE: Final = Path(__file__).parents[2] / "src"


@dataclass(frozen=True)
class Twin:
    """A class that gets a twin."""

    original: str
    """`module:Class`."""
    owns: Literal["", "takes", "makes"] = ""
    """An owner has a loop of its own: it takes the async object, or makes it."""
    closes: str = ""
    """The method that ends it, where it can be used in `with`."""
    ends_when_dropped: bool = False
    leave_out: frozenset[str] = frozenset()
    """Members that are of no use without `await`."""

    @property
    def module(self) -> str:
        return self.original.partition(":")[0]

    @property
    def cls(self) -> str:
        return self.original.partition(":")[2]

    @property
    def name(self) -> str:
        return f"Sync{self.cls}"


@dataclass(frozen=True)
class Target:
    """A module to write."""

    module: str
    docstring: str
    twins: tuple[Twin, ...]


TARGETS: Final = (
    Target(
        "holdfast.api.box.sync",
        "Boxes for code without `await`.",
        (
            Twin("holdfast.api.box.box:Box", closes="close", leave_out=frozenset({"wake"})),
            Twin("holdfast.api.box.process:Process"),
            Twin("holdfast.api.box.process:Connection", closes="close"),
            Twin("holdfast.api.box.process:Channel", closes="close"),
            Twin("holdfast.api.box.files:Files"),
        ),
    ),
    Target(
        "holdfast.boxes.sync",
        "Providers for code without `await`.",
        (
            Twin("holdfast.boxes.provider:Provider", owns="takes", closes="close"),
            Twin("holdfast.boxes.images:ImageStore"),
        ),
    ),
    Target(
        "holdfast.client.box.sync",
        "The client's boxes and volumes for code without `await`.",
        (
            Twin("holdfast.client.box.boxes:Boxes"),
            Twin("holdfast.client.box.volumes:Volumes"),
        ),
    ),
    Target(
        "holdfast.client.thread.sync",
        "The client's threads for code without `await`.",
        (
            Twin("holdfast.client.thread.threads:Threads"),
            Twin("holdfast.client.thread.thread:Thread"),
            Twin("holdfast.client.thread.tail:Tail", closes="aclose"),
        ),
    ),
    Target(
        "holdfast.client.run.sync",
        "The client's runs for code without `await`.",
        (
            Twin("holdfast.client.run.runs:Runs"),
            Twin("holdfast.client.run.forks:Forks"),
            Twin("holdfast.client.run.tasks:Tasks"),
            Twin("holdfast.client.run.agents:AgentStore"),
        ),
    ),
    Target(
        "holdfast.client.session.sync",
        "The client's sessions for code without `await`.",
        (
            Twin("holdfast.client.session.sessions:Sessions"),
            Twin("holdfast.client.session.gateway:SessionGateways"),
            Twin("holdfast.client.session.inbox:Inbox"),
            Twin("holdfast.client.session.workflows:Workflows"),
        ),
    ),
    Target(
        "holdfast.client.sync",
        "The client for code without `await`.",
        (
            Twin("holdfast.client.client:Client", owns="makes", closes="aclose"),
            Twin("holdfast.client.access.keys:Keys"),
            Twin("holdfast.client.access.logins:Logins"),
            Twin("holdfast.client.thread.shares:Shares"),
            Twin("holdfast.client.access.tenants:Tenants"),
            Twin("holdfast.client.access.tenants:Members"),
            Twin("holdfast.client.images:Images"),
            Twin("holdfast.client.egress:Egress"),
            Twin("holdfast.client.environments:EnvironmentStore"),
            Twin("holdfast.client.model.models:ModelStore", leave_out=frozenset({"aclose"})),
            Twin("holdfast.client.model.costs:Costs"),
            Twin("holdfast.client.providers:ProviderStore"),
            Twin("holdfast.client.secrets:SecretStore"),
            Twin("holdfast.client.webhooks:Webhooks"),
            Twin("holdfast.client.interpreters:Interpreters"),
        ),
    ),
    Target(
        "holdfast.interpreter.sync",
        "The interpreter for code without `await`: scripts and notebooks.",
        (
            Twin(
                "holdfast.interpreter.interpreter:Interpreter", owns="makes", closes="shutdown", ends_when_dropped=True
            ),
            Twin("holdfast.interpreter.events:Events", leave_out=frozenset({"publish", "output_callback", "close"})),
        ),
    ),
)

ALIASES: Final = {"RemoteBox": "Box"}
"""Subclasses that methods hand out, and the class whose twin stands for them."""

_ITERATORS: Final = frozenset({"AsyncIterator", "AsyncIterable", "AsyncGenerator"})
_RENAMED: Final = {"aclose": "close"}


class CannotTranslate(Exception):
    """Something in an async class has no sync form that the script knows."""


class Module:
    """A source file: its classes, and where its names come from."""

    def __init__(self, name: str) -> None:
        self.name = name
        path = SOURCE / name.replace(".", "/")
        file = path.with_suffix(".py")
        self.tree = ast.parse((file if file.exists() else path / "__init__.py").read_text())
        self.origins: dict[str, tuple[str, str]] = {}
        for node in _module_level(self.tree.body):
            self._note(node)

    def _note(self, node: ast.stmt) -> None:
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                self.origins[alias.asname or alias.name] = (node.module or "", alias.name)
        elif isinstance(node, ast.Import):
            for alias in node.names:
                self.origins[alias.asname or alias.name] = ("", alias.name)
        elif isinstance(node, ast.ClassDef | ast.FunctionDef):
            self.origins[node.name] = (self.name, node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                if isinstance(target, ast.Name):
                    self.origins[target.id] = (self.name, target.id)

    def find_class(self, name: str) -> ast.ClassDef:
        for node in self.tree.body:
            if isinstance(node, ast.ClassDef) and node.name == name:
                return node
        raise CannotTranslate(f"{self.name} has no class {name}")


def _module_level(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    for node in body:
        yield node
        if isinstance(node, ast.If):  # TYPE_CHECKING
            yield from _module_level(node.body)


class Writer:
    """Writes one target."""

    def __init__(self, target: Target, homes: dict[str, str]) -> None:
        self._target = target
        self._homes = homes
        """Which module has the twin of a class."""
        self._real: set[str] = {"from holdfast.sync_twin import SyncHandle"}
        self._typing: set[str] = set()
        self._lines: list[str] = []
        self._module: Module

    def write(self) -> str:
        for twin in self._target.twins:
            self._write_class(twin)
        head = [
            f'"""{self._target.docstring}',
            "",
            "Written by `bin/generate`: change the async classes instead.",
            '"""',
            "",
        ]
        head += ["from __future__ import annotations", "", *sorted(self._real)]
        typing = sorted(self._typing - self._real)
        if typing:
            head += ["from typing import TYPE_CHECKING", "", "if TYPE_CHECKING:", *(f"    {line}" for line in typing)]
        return _tidy("\n".join([*head, "", *self._lines, ""]))

    # --- a class ---

    def _write_class(self, twin: Twin) -> None:
        self._module = Module(twin.module)
        self._twin = twin
        node = self._module.find_class(twin.cls)
        self._type_import(twin.module, twin.cls, twin.cls)
        self._lines += ["", "", f"class {twin.name}({self._base(node)}):"]
        self._lines += [f'    """`{twin.cls}` for code without `await`."""', "", f"    _async: {twin.cls}"]
        members = {method.name for method in node.body if isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef)}
        if twin.owns:
            self._write_constructor(node)
        for name, annotation, docstring in self._attributes(node):
            self._write_property(name, annotation, docstring)
        for method in node.body:
            if not isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            if method.name.startswith("_") or method.name in twin.leave_out:
                continue
            if _is_decorated(method, "property") or _is_decorated(method, "cached_property"):
                self._write_property(method.name, _annotation(method), ast.get_docstring(method))
            elif _is_decorated(method, "setter"):
                self._write_setter(method)
            else:
                self._write_method(method)
        if twin.closes:
            enters = next((each for each in node.body if getattr(each, "name", "") == "__aenter__"), None)
            self._write_with(enters, closes=twin.closes in members)

    def _base(self, node: ast.ClassDef) -> str:
        for base in node.bases:
            if isinstance(base, ast.Name) and base.id in self._homes:
                return self._twin_name(base.id)
        for method in node.body:
            if isinstance(method, ast.AsyncFunctionDef) and method.name == "__anext__":
                self._real_import("holdfast.sync_twin", "SyncIterator")
                # A base class is evaluated, so what it is made of is imported for real.
                item = _annotation(method)
                self._import_names(item, real=True)
                return f"SyncIterator[{ast.unparse(item)}]"
        if self._twin.owns:
            self._real_import("holdfast.sync_twin", "SyncOwner")
            return "SyncOwner"
        return "SyncHandle"

    def _write_constructor(self, node: ast.ClassDef) -> None:
        twin = self._twin
        if twin.owns == "takes":
            name = twin.cls.lower()
            self._lines += ["", f"    def __init__(self, {name}: {twin.cls}) -> None:"]
            self._lines += [f"        self._own(lambda: {name})"]
        else:
            self._real_import(twin.module, twin.cls)
            init = next(each for each in node.body if isinstance(each, ast.FunctionDef) and each.name == "__init__")
            parameters, arguments = self._parameters(init)
            self._lines += ["", f"    def __init__({parameters}) -> None:"]
            self._write_docstring(ast.get_docstring(init))
            self._lines += [f"        self._own(lambda: {twin.cls}({arguments}))"]
        if twin.ends_when_dropped:
            self._lines += [f"        self._end_when_dropped(self._async.{twin.closes})"]

    def _write_with(self, enters: ast.stmt | None, *, closes: bool) -> None:
        """`with`, and what its end does. A class that neither opens nor closes itself has both from its base."""
        if isinstance(enters, ast.AsyncFunctionDef):
            self._real_import("typing", "Self")
            self._lines += ["", "    def __enter__(self) -> Self:"]
            self._write_docstring(ast.get_docstring(enters))
            does_nothing = [type(each) for each in enters.body if not _is_docstring(each)] == [ast.Return]
            if not does_nothing:
                run = "self._enter" if self._twin.owns else "self._loop.run"
                self._lines += [f"        {run}(self._async.__aenter__())"]
            self._lines += ["        return self"]
        if closes:
            method = _RENAMED.get(self._twin.closes, self._twin.closes)
            self._lines += ["", "    def _leave(self) -> None:", f"        self.{method}()"]

    # --- members ---

    def _attributes(self, node: ast.ClassDef) -> Iterator[tuple[str, ast.expr, str | None]]:
        """The public attributes: declared in the class, or set when it is made."""
        seen = set(self._twin.leave_out)
        for index, each in enumerate(node.body):
            if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name):
                if not each.target.id.startswith("_") and each.target.id not in seen:
                    after = node.body[index + 1] if index + 1 < len(node.body) else None
                    yield each.target.id, each.annotation, _docstring_of(after)
                seen.add(each.target.id)
        init = next((each for each in node.body if getattr(each, "name", "") == "__init__"), None)
        if not isinstance(init, ast.FunctionDef):
            return
        types = {each.arg: each.annotation for each in [*init.args.args, *init.args.kwonlyargs]}
        for index, statement in enumerate(init.body):
            target = statement.targets[0] if isinstance(statement, ast.Assign) else None
            if isinstance(statement, ast.AnnAssign):
                target = statement.target
            if not (isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name)):
                continue
            name = target.attr
            if target.value.id != "self" or name.startswith("_") or name in seen:
                continue
            after = init.body[index + 1] if index + 1 < len(init.body) else None
            yield name, self._type_of(statement, types, name), _docstring_of(after)

    def _type_of(self, statement: ast.stmt, types: dict[str, ast.expr | None], name: str) -> ast.expr:
        if isinstance(statement, ast.AnnAssign):
            return statement.annotation
        value = statement.value if isinstance(statement, ast.Assign) else None
        if isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id[0].isupper():
            return value.func
        found = types.get(value.id) if isinstance(value, ast.Name) else None
        if found is None:
            raise CannotTranslate(f"{self._twin.original}.{name}: declare its type in the class")
        return found

    def _write_property(self, name: str, annotation: ast.expr, docstring: str | None) -> None:
        if name in self._twin.leave_out:
            return
        self._lines += ["", "    @property", f"    def {name}(self) -> {self._result_type(annotation)}:"]
        self._write_docstring(docstring)
        self._lines += [f"        return {self._result(annotation, f'self._async.{name}')}"]

    def _write_setter(self, method: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        parameters, _ = self._parameters(method)
        value = method.args.args[1].arg
        self._lines += ["", f"    @{method.name}.setter", f"    def {method.name}({parameters}) -> None:"]
        self._lines += [f"        self._async.{method.name} = {value}"]

    def _write_method(self, method: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        parameters, arguments = self._parameters(method)
        annotation = _annotation(method)
        name = _RENAMED.get(method.name, method.name)
        self._lines += ["", f"    def {name}({parameters}) -> {self._result_type(annotation)}:"]
        self._write_docstring(ast.get_docstring(method))
        call = f"self._async.{method.name}({arguments})"
        if self._twin.owns and method.name == self._twin.closes:
            work = f"self._async.{method.name}" if not arguments else f"lambda: {call}"
            self._lines += [f"        self._end({work})"]
            return
        if isinstance(method, ast.AsyncFunctionDef) and not _yields(method):
            call = f"self._loop.run({call})"
        if _is_none(annotation):
            self._lines += [f"        {call}"]
        elif isinstance(annotation, ast.Name) and annotation.id == "Self":
            self._lines += [f"        {call}", "        return self"]
        else:
            self._lines += [f"        return {self._result(annotation, call)}"]

    def _write_docstring(self, docstring: str | None) -> None:
        if docstring is not None:
            first, *more = docstring.splitlines()
            lines = [f'        """{first}', *(f"        {line}".rstrip() for line in more)]
            lines[-1] += '"""' if not more else ""
            self._lines += lines if not more else [*lines, '        """']

    # --- parameters and results ---

    def _parameters(self, method: ast.FunctionDef | ast.AsyncFunctionDef) -> tuple[str, str]:
        """Returns the parameters as the twin has them, and the arguments that it passes on."""
        given = method.args
        if given.posonlyargs or given.vararg or given.kwarg:
            raise CannotTranslate(f"{self._twin.original}.{method.name}: name its parameters")
        copied = ast.parse(ast.unparse(given).join(("def f(", "): ..."))).body[0]
        assert isinstance(copied, ast.FunctionDef)
        arguments = []
        keyword = {each.arg for each in copied.args.kwonlyargs}
        for each in [*copied.args.args, *copied.args.kwonlyargs]:
            if each.arg == "self":
                continue
            value = each.arg
            if each.annotation is not None:
                if _names(each.annotation) & _ITERATORS:
                    value = f"feed({value})"
                    self._real_import("holdfast.sync_twin", "feed")
                    self._typing.add("from collections.abc import Iterable")
                each.annotation = _Iterables().visit(each.annotation)
                self._import_names(each.annotation)
            arguments.append(f"{each.arg}={value}" if each.arg in keyword else value)
        for default in [*given.defaults, *(each for each in given.kw_defaults if each is not None)]:
            self._import_names(default, real=True)
        return ast.unparse(copied.args), ", ".join(arguments)

    def _result_type(self, annotation: ast.expr) -> str:
        item = _item_of(annotation, _ITERATORS)
        if item is not None:
            self._real_import("holdfast.sync_twin", "SyncIterator")
            return f"SyncIterator[{self._result_type(item)}]"
        translated = _Twins(self._homes).visit(ast.parse(ast.unparse(annotation), mode="eval").body)
        for name in _names(annotation):
            if ALIASES.get(name, name) in self._homes:
                self._twin_name(name)
        self._import_names(translated)
        return ast.unparse(translated)

    def _result(self, annotation: ast.expr, value: str) -> str:
        if _item_of(annotation, _ITERATORS) is not None:
            return f"SyncIterator._wrap({value}, self)"
        if isinstance(annotation, ast.Name) and ALIASES.get(annotation.id, annotation.id) in self._homes:
            return f"{self._twin_name(annotation.id)}._wrap({value}, self)"
        item = _item_of(annotation, frozenset({"list", "Sequence"}))
        if isinstance(item, ast.Name) and ALIASES.get(item.id, item.id) in self._homes:
            return f"[{self._twin_name(item.id)}._wrap(each, self) for each in {value}]"
        if isinstance(annotation, ast.BinOp) and isinstance(annotation.left, ast.Name) and _is_none(annotation.right):
            if annotation.left.id in self._homes:
                return f"None if {value} is None else {self._twin_name(annotation.left.id)}._wrap({value}, self)"
        elif any(ALIASES.get(name, name) in self._homes for name in _names(annotation)):
            raise CannotTranslate(f"{self._twin.original}: no twin of {ast.unparse(annotation)}")
        return value

    # --- imports ---

    def _twin_name(self, name: str) -> str:
        name = ALIASES.get(name, name)
        home = self._homes[name]
        if home != self._target.module:
            self._real_import(home, f"Sync{name}")
        return f"Sync{name}"

    def _import_names(self, node: ast.expr, *, real: bool = False) -> None:
        for name in _names(node):
            if hasattr(builtins, name) or name.startswith("Sync") or name == "Iterable":
                continue
            if name not in self._module.origins:
                raise CannotTranslate(f"{self._twin.original}: where is {name} from?")
            module, original = self._module.origins[name]
            if real:
                self._real_import(module, original, name)
            else:
                self._type_import(module, original, name)

    def _real_import(self, module: str, name: str, alias: str = "") -> None:
        self._real.add(_import_line(module, name, alias))

    def _type_import(self, module: str, name: str, alias: str = "") -> None:
        self._typing.add(_import_line(module, name, alias))


class _Iterables(ast.NodeTransformer):
    def visit_Name(self, node: ast.Name) -> ast.Name:
        return ast.Name("Iterable") if node.id in _ITERATORS else node


class _Twins(ast.NodeTransformer):
    def __init__(self, homes: dict[str, str]) -> None:
        self._homes = homes

    def visit_Name(self, node: ast.Name) -> ast.Name:
        name = ALIASES.get(node.id, node.id)
        return ast.Name(f"Sync{name}") if name in self._homes else node


def _names(node: ast.expr) -> set[str]:
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}


def _item_of(annotation: ast.expr, generic: frozenset[str]) -> ast.expr | None:
    """Returns the X of `Generic[X]`."""
    if isinstance(annotation, ast.Subscript) and isinstance(annotation.value, ast.Name):
        return annotation.slice if annotation.value.id in generic else None
    return None


def _annotation(method: ast.FunctionDef | ast.AsyncFunctionDef) -> ast.expr:
    if method.returns is None:
        raise CannotTranslate(f"{method.name}: say what it returns")
    return method.returns


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _docstring_of(node: ast.stmt | None) -> str | None:
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
        return node.value.value
    return None


def _is_decorated(method: ast.FunctionDef | ast.AsyncFunctionDef, name: str) -> bool:
    return any(
        (isinstance(each, ast.Name) and each.id == name) or (isinstance(each, ast.Attribute) and each.attr == name)
        for each in method.decorator_list
    )


def _yields(method: ast.AsyncFunctionDef) -> bool:
    inner = [each for each in ast.walk(method) if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]
    hidden = {id(node) for each in inner if each is not method for node in ast.walk(each)}
    return any(isinstance(node, ast.Yield) and id(node) not in hidden for node in ast.walk(method))


def _import_line(module: str, name: str, alias: str) -> str:
    if not module:
        return f"import {name}"
    return f"from {module} import {name}" + (f" as {alias}" if alias and alias != name else "")


def _tidy(code: str) -> str:
    for command in (["check", "--quiet", "--fix", "--select", "I,F401"], ["format", "--quiet"]):
        ruff = ["ruff", *command, "--stdin-filename", "src/holdfast/sync.py", "-"]
        code = subprocess.run(ruff, input=code, capture_output=True, text=True, check=True, cwd=SOURCE.parent).stdout
    return code


def generate() -> dict[Path, str]:
    """Returns every file that is generated, with what belongs in it."""
    homes = {twin.cls: target.module for target in TARGETS for twin in target.twins}
    return {SOURCE / f"{target.module.replace('.', '/')}.py": Writer(target, homes).write() for target in TARGETS}


def main() -> int:
    for path, code in generate().items():
        if not path.exists() or path.read_text() != code:
            path.write_text(code)
            sys.stdout.write(f"  wrote        {path.relative_to(SOURCE.parent)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
