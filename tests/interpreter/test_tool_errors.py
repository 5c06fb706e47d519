"""What a tool raises arrives in the box as what it is, so that code can catch it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from tests.interpreter.places import Place

from holdfast import Interpreter
from holdfast.interpreter.bridge.bridge import builtin_base
from holdfast.interpreter.client_host import ClientHost
from holdfast.testing.server import ServerProcess

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
async def py(server: ServerProcess, place: Place) -> AsyncIterator[Interpreter]:
    host = await ClientHost.of_home(server.home)
    async with Interpreter(host=host, spec=place.spec) as py:
        yield py
    await host.close()


def raising(error: Exception) -> Callable[[], None]:
    def fail() -> None:
        raise error

    return fail


class Missing(KeyError):
    pass


class Strange(Exception):
    pass


CATCH = """\
try:
    fail()
except {kind} as error:
    caught = (type(error).__name__, [str(each) for each in error.args], str(error))
caught
"""


@pytest.mark.parametrize(
    ("error", "kind", "args", "text"),
    [
        (KeyError("coffee"), "KeyError", ["coffee"], "'coffee'"),
        (IndexError("list index"), "IndexError", ["list index"], "list index"),
        (ZeroDivisionError("division"), "ZeroDivisionError", ["division"], "division"),
        (AttributeError("no such"), "AttributeError", ["no such"], "no such"),
        (AssertionError(), "AssertionError", [], ""),
        (ValueError("a", 2), "ValueError", ["a", "2"], "('a', 2)"),
        (ConnectionRefusedError(111, "refused"), "ConnectionRefusedError", ["111", "refused"], "[Errno 111] refused"),
    ],
    ids=lambda each: type(each).__name__ if isinstance(each, Exception) else "",
)
async def test_an_error_of_pythons_own_is_the_same_in_the_box(
    py: Interpreter, error: Exception, kind: str, args: list[str], text: str
) -> None:
    py.tools["fail"] = raising(error)
    done = await py.execute(CATCH.format(kind=kind))
    assert done.error is None, done.error
    assert done.value[0] == kind
    if args:
        assert (done.value[1], done.value[2]) == (args, text)


async def test_a_file_that_is_not_there_keeps_its_name_and_number(py: Interpreter) -> None:
    def fail() -> None:
        Path("/there/is/no/such").read_text()

    py.tools["fail"] = fail
    code = "try:\n    fail()\nexcept FileNotFoundError as error:\n    found = (error.errno, error.filename)\nfound"
    assert (await py.execute(code)).value == (2, "/there/is/no/such")


async def test_errors_of_ones_own_are_caught_as_what_they_come_from(py: Interpreter) -> None:
    py.tools["fail"] = raising(Missing("tea"))
    assert (await py.execute(CATCH.format(kind="KeyError"))).value[1] == ["Missing: 'tea'"]
    py.tools["fail"] = raising(Strange("odd"))
    assert (await py.execute(CATCH.format(kind="RuntimeError"))).value[2] == "Strange: odd"


@pytest.mark.parametrize(
    "error", [StopIteration(1), ExceptionGroup("several", [ValueError("one")]), asyncio.QueueEmpty()]
)
async def test_what_would_mean_something_else_there_is_told_as_an_error_of_the_host(
    py: Interpreter, error: Exception
) -> None:
    py.tools["fail"] = raising(error)
    done = await py.execute("list(fail() for _ in range(1))")
    assert done.error is not None
    assert done.error.kind in ("HostError", "RuntimeError")


async def test_an_error_with_much_in_it_is_cut(py: Interpreter) -> None:
    py.tools["fail"] = raising(KeyError("x" * 1_000_000))
    done = await py.execute("fail()")
    assert done.error is not None
    assert done.error.kind == "KeyError"
    assert len(done.error.message) < 40_000


@pytest.mark.parametrize(
    ("error", "base"),
    [(KeyError(), KeyError), (Missing(), KeyError), (Strange(), None), (Exception(), None), (StopIteration(), None),
     (UnicodeDecodeError("utf-8", b"", 0, 1, "x"), UnicodeDecodeError), (TimeoutError(), TimeoutError)],
)  # fmt: skip
def test_which_class_an_error_is_caught_as(error: Exception, base: Any) -> None:
    assert builtin_base(error) is base
