"""Tools: Python functions, what a model is told of them, and what they are given."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import threading
from dataclasses import dataclass
from typing import Any, Literal

import pytest

from holdfast.api.errors.interpreters import InvalidInterpreter
from holdfast.interpreter.bridge.tools import BoundTool, Threads, ToolSignature

pytestmark = pytest.mark.anyio


@dataclass
class Filter:
    field: str
    least: float = 0.0


def search(query: str, limit: int = 10, *, kind: Literal["web", "news"] = "web", by: Filter | None = None) -> list[str]:
    """Search the index.

    Returns titles.
    """
    return [f"{query}/{limit}/{kind}/{by}"]


async def fetch(url: str, **headers: str) -> dict[str, Any]:
    return {"url": url, **headers}


def test_a_model_is_told_the_signature_and_the_documentation() -> None:
    signature = ToolSignature.of(search)
    by = "by: {field: str, least: float} | None = None"
    line = f"search(query: str, limit: int = 10, *, kind: Literal['web', 'news'] = 'web', {by}) -> list[str]"
    assert signature.line == line
    assert signature.text == f"{line}\n\nSearch the index.\n\nReturns titles."
    assert ToolSignature.of(fetch).line == "fetch(url: str, **headers: str) -> dict[str, Any]"
    assert ToolSignature.of(lambda a, b=2, *rest: a, "plain").line == "plain(a, b=2, *rest)"


class Service:
    def look(self, at: int) -> int:
        """Look."""
        return at + 1

    def __call__(self, what: str) -> str:
        """Call it."""
        return what


def test_methods_partials_and_objects_are_tools_too() -> None:
    assert ToolSignature.of(Service().look).line == "look(at: int) -> int"
    assert ToolSignature.of(Service(), "service").line == "service(what: str) -> str"
    assert ToolSignature.of(functools.partial(search, limit=3), "few").line.startswith("few(query: str, *, limit: int")
    assert ToolSignature.of(max, "largest").name == "largest"
    assert ToolSignature.of(lambda: 0, "__dspy_call__").name == "__dspy_call__"


@pytest.mark.parametrize("name", ["", "a b", "class", "x" * 200, "1st", "a.b"])
def test_a_name_that_python_does_not_take_is_refused(name: str) -> None:
    with pytest.raises(InvalidInterpreter, match="is not a valid name of a tool"):
        ToolSignature.of(lambda: 0, name or " ")


def test_what_cannot_be_called_is_no_tool() -> None:
    with pytest.raises(InvalidInterpreter, match="tool x is a int, which is not callable"):
        ToolSignature.of(5, "x")  # type: ignore[arg-type]


async def called(function: Any, *args: Any, **kwargs: Any) -> Any:
    tool = BoundTool(function)
    return await tool.call(tool.bind(args, kwargs), Threads(4))


async def test_arguments_are_converted_by_their_annotations() -> None:
    assert await called(search, "x", "7", by={"field": "f", "least": "1.5"}) == ["x/7/web/Filter(field='f', least=1.5)"]
    assert await called(fetch, "u", accept="json") == {"url": "u", "accept": "json"}


@pytest.mark.parametrize("text", ['{"a": 1}', "[1]", "5", "null", '"x"'])
async def test_a_string_that_looks_like_json_stays_a_string(text: str) -> None:
    def tool(typed: str, free: Any, none) -> Any:  # type: ignore[no-untyped-def]
        return [typed, free, none]

    assert await called(tool, text, text, none=text) == [text, text, text]


@pytest.mark.parametrize(
    ("args", "kwargs", "why"),
    [
        ((), {}, "search: missing a required argument: 'query'. It is search\\(query: str"),
        (("x", 1, 2), {}, "search: too many positional arguments. It is search"),
        (("x",), {"lmit": 1}, "search: got an unexpected keyword argument 'lmit'. It is search"),
        (("x", "many"), {}, r"search: limit must be int, not 'many' \(str\)"),
        ((5,), {}, r"search: query must be str, not 5 \(int\)"),
        (("x",), {"kind": "sport"}, r"search: kind must be Literal\['web', 'news'\], not 'sport' \(str\)"),
        (("x",), {"by": {"field": 5}}, r"search: by must be .*\['field'\]: must be a string"),
        (("x",), {"by": '{"field": "f"}'}, "search: by must be"),
    ],
)
def test_what_is_wrong_with_a_call_is_said(args: Any, kwargs: Any, why: str) -> None:
    with pytest.raises(TypeError, match=why):
        BoundTool(search).bind(args, kwargs)


async def test_a_plain_function_keeps_nobody_waiting_and_has_the_context_of_its_caller() -> None:
    variable = contextvars.ContextVar("variable", default="none")
    variable.set("the caller's")
    loop, began, go_on = asyncio.get_running_loop(), asyncio.Event(), threading.Event()

    def slow() -> Any:
        loop.call_soon_threadsafe(began.set)
        go_on.wait(20)
        return variable.get(), threading.current_thread() is threading.main_thread()

    tool = BoundTool(slow)
    running = asyncio.create_task(tool.call(tool.bind((), {}), Threads(1)))
    await began.wait()  # the loop goes on
    go_on.set()
    assert await running == ("the caller's", False)


async def test_errors_of_plain_functions_come_out_as_they_are() -> None:
    def wrong() -> None:
        raise KeyError("k")

    def over() -> None:
        raise StopIteration("s")

    def leave() -> None:
        raise SystemExit(3)

    with pytest.raises(KeyError):
        await called(wrong)
    with pytest.raises(RuntimeError, match="StopIteration: s"):
        await called(over)
    with pytest.raises(RuntimeError, match="SystemExit: 3"):
        await called(leave)


async def test_a_plain_function_that_gives_an_awaitable_is_awaited() -> None:
    def outer(url: str) -> Any:
        return fetch(url)

    assert await called(outer, "u") == {"url": "u"}


async def test_tools_that_hang_are_bounded() -> None:
    go_on = threading.Event()

    def hang() -> None:
        go_on.wait(20)

    threads = Threads(2)
    tool = BoundTool(hang)
    hanging = [asyncio.create_task(tool.call(tool.bind((), {}), threads)) for _ in range(2)]
    await asyncio.sleep(0)
    with pytest.raises(RuntimeError, match="2 tool calls are already running"):
        await tool.call(tool.bind((), {}), threads)
    go_on.set()
    await asyncio.gather(*hanging)
    assert await tool.call(tool.bind((), {}), threads) is None


def test_annotations_that_nobody_can_resolve_stand_for_anything() -> None:
    def tool(a: Nowhere, b: int) -> Elsewhere: ...  # type: ignore[name-defined]  # noqa: F821

    bound = BoundTool(tool)
    assert bound.bind(({"x": 1}, "2"), {}).args == ({"x": 1}, 2)
    with pytest.raises(TypeError, match="b must be int"):
        bound.bind((1, "x"), {})
