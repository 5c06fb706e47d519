"""Tools: functions of the host that code in a box can call. Their signatures for a model, and checks of arguments.

A tool is a Python function, sync or async. Its annotations are its types, its docstring is its documentation.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import inspect
import keyword
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from holdfast.api.errors.interpreters import InvalidInterpreter
from holdfast.interpreter.bridge.annotations import Mismatch, adapter_of, convert, name_of, type_of

_LONGEST_NAME: Final = 128
_LONGEST_DOC: Final = 8_000
_LONGEST_DEFAULT: Final = 80
_KINDS: Final = inspect.Parameter

Tool = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Parameter:
    name: str
    type: str
    """As shown to a model."""
    default: str | None = None
    """The `repr` of the default. None if the parameter is required."""
    prefix: str = ""
    """`*` or `**` for variable arguments."""

    def __str__(self) -> str:
        typed = self.prefix + self.name + ("" if self.type == "Any" else f": {self.type}")
        if self.default is None:
            return typed
        return f"{typed} = {self.default}" if self.type != "Any" else f"{typed}={self.default}"


@dataclass(frozen=True, slots=True)
class ToolSignature:
    """A tool, as described to the box and to the model."""

    name: str
    parameters: tuple[Parameter, ...] = ()
    doc: str = ""
    returns: str = "Any"
    keyword_only: str | None = None
    """The first keyword-only parameter."""

    @classmethod
    def of(cls, function: Tool, name: str | None = None) -> ToolSignature:
        """Raises `InvalidInterpreter` if the function cannot be a tool."""
        tool_name = check_tool_name(name or getattr(function, "__name__", ""))
        signature = _signature(function, tool_name)
        parameters = tuple(_parameter(each, tool_name) for each in signature.parameters.values())
        only = [each.name for each in signature.parameters.values() if each.kind is _KINDS.KEYWORD_ONLY]
        has_rest = any(each.kind is _KINDS.VAR_POSITIONAL for each in signature.parameters.values())
        doc = (inspect.getdoc(function) or "").strip()[:_LONGEST_DOC]
        first = only[0] if only and not has_rest else None
        return cls(tool_name, parameters, doc, name_of(signature.return_annotation), first)

    @property
    def line(self) -> str:
        """`search(query: str, limit: int = 10) -> list[str]`."""
        written: list[str] = []
        for parameter in self.parameters:
            if parameter.name == self.keyword_only:
                written.append("*")
            written.append(str(parameter))
        returns = "" if self.returns == "Any" else f" -> {self.returns}"
        return f"{self.name}({', '.join(written)}){returns}"

    @property
    def text(self) -> str:
        """The line with the documentation below it, for a model."""
        return f"{self.line}\n\n{self.doc}" if self.doc else self.line


def check_tool_name(name: Any) -> str:
    if not isinstance(name, str) or not name.isidentifier() or keyword.iskeyword(name) or len(name) > _LONGEST_NAME:
        raise InvalidInterpreter(
            f"{str(name)[:80]!r} is not a valid name of a tool",
            hint="give it a Python name: tools={'search': function}",
        )
    return name


def _signature(function: Tool, name: str) -> inspect.Signature:
    if not callable(function):
        raise InvalidInterpreter(
            f"tool {name} is a {type(function).__name__}, which is not callable", hint="give a function"
        )
    try:
        try:
            return inspect.signature(function, eval_str=True)
        except NameError:  # an annotation uses names that exist only for type checkers
            return inspect.signature(function)
    except (ValueError, TypeError):
        anything = [_KINDS("args", _KINDS.VAR_POSITIONAL), _KINDS("kwargs", _KINDS.VAR_KEYWORD)]
        return inspect.Signature(anything)  # a C function, which checks its arguments itself


def _type_of(parameter: inspect.Parameter, tool: str) -> Any:
    """An unknown type name stands for any value."""
    annotation = parameter.annotation
    try:
        kind = type_of(annotation)
        adapter_of(kind)
    except InvalidInterpreter:
        if isinstance(annotation, str):
            return Any
        raise InvalidInterpreter(
            f"tool {tool}: values for {parameter.name} cannot be checked by {name_of(annotation)[:80]}",
            hint="use str, int, list[str], a dataclass, or no annotation at all",
        ) from None
    return kind


def _parameter(parameter: inspect.Parameter, tool: str) -> Parameter:
    prefix = "*" if parameter.kind is _KINDS.VAR_POSITIONAL else "**" if parameter.kind is _KINDS.VAR_KEYWORD else ""
    default = None
    if parameter.default is not _KINDS.empty:
        default = repr(parameter.default)
        default = default if len(default) <= _LONGEST_DEFAULT else "..."
    return Parameter(parameter.name, name_of(_type_of(parameter, tool)), default, prefix)


class BoundTool:
    """A tool that can be called with arguments from a box."""

    def __init__(self, function: Tool, name: str | None = None) -> None:
        self.signature = ToolSignature.of(function, name)
        self.function = function
        self._signature = _signature(function, self.signature.name)
        self._types = {each.name: _type_of(each, self.signature.name) for each in self._signature.parameters.values()}

    def bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> inspect.BoundArguments:
        """Check and convert arguments. Raises `TypeError` with the right signature."""
        name = self.signature.name
        try:
            bound = self._signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{name}: {error}. It is {self.signature.line}") from None
        try:
            for parameter, value in list(bound.arguments.items()):
                kind = self._types[parameter]
                match self._signature.parameters[parameter].kind:
                    case _KINDS.VAR_POSITIONAL:
                        bound.arguments[parameter] = tuple(convert(kind, each, parameter) for each in value)
                    case _KINDS.VAR_KEYWORD:
                        bound.arguments[parameter] = {key: convert(kind, each, key) for key, each in value.items()}
                    case _:
                        bound.arguments[parameter] = convert(kind, value, parameter)
        except Mismatch as error:
            raise TypeError(f"{name}: {error}") from None
        return bound

    async def call(self, bound: inspect.BoundArguments, threads: Threads) -> Any:
        """Call the function. A sync function runs in a thread, with the context variables of the caller."""
        if _is_async(self.function):
            return await self.function(*bound.args, **bound.kwargs)
        result = await threads.run(functools.partial(self.function, *bound.args, **bound.kwargs))
        return await result if inspect.isawaitable(result) else result


def _is_async(function: Tool) -> bool:
    while isinstance(function, functools.partial):
        function = function.func
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004


class Threads:
    """A bounded number of daemon threads for sync functions. A hanging function occupies one, but never blocks exit."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._running = 0

    async def run(self, function: Callable[[], Any]) -> Any:
        """Raises `RuntimeError` if all threads are in use."""
        if self._running >= self._most:
            raise RuntimeError(f"{self._most} tool calls are already running: wait until one of them has ended")
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Any] = loop.create_future()
        context = contextvars.copy_context()

        def work() -> None:
            result: Any = None
            error: BaseException | None = None
            try:
                result = context.run(function)
            except BaseException as raised:
                error = raised
            with contextlib.suppress(RuntimeError):  # the loop is closed, so nothing waits for the result
                loop.call_soon_threadsafe(self._end, done, result, error)

        self._running += 1
        threading.Thread(target=work, name="holdfast-tool", daemon=True).start()
        return await done

    def _end(self, done: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
        self._running -= 1
        if done.cancelled():
            return
        if error is None:
            done.set_result(result)
        elif isinstance(error, Exception) and not isinstance(error, StopIteration):
            done.set_exception(error)
        else:  # SystemExit must not end the loop, and a future does not accept StopIteration
            done.set_exception(RuntimeError(f"{type(error).__name__}: {error}"))
