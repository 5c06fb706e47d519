"""Values that do not come along with a result: that is said, and those that are only large can be had."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from tests.interpreter.places import Place

from holdfast import Interpreter
from holdfast.api.errors.interpreters import InvalidInterpreter
from holdfast.interpreter.client_host import ClientHost
from holdfast.testing.server import ServerProcess

pytestmark = pytest.mark.anyio


@pytest.fixture
async def py(server: ServerProcess, place: Place) -> AsyncIterator[Interpreter]:
    host = await ClientHost.of_home(server.home)
    async with Interpreter(host=host, spec=place.spec) as py:
        yield py
    await host.close()


async def test_a_value_that_did_not_travel_says_why(py: Interpreter) -> None:
    done = await py.execute("import threading; threading.Lock()")
    assert done.value is None
    assert done.value_missing is not None
    assert "lock" in done.value_missing
    with pytest.raises(InvalidInterpreter, match="lock"):
        await py.read_value(done)
    nothing = await py.execute("None")
    assert (nothing.value, nothing.value_text, nothing.value_missing) == (None, None, None)
    assert (await py.execute("1")).value_missing is None
    assert await py.read_value(nothing) is None
    noted = [each["payload"] async for each in py.history()]
    assert any("lock" in str(each.get("value_missing")) for each in noted)


@pytest.mark.sampled
@pytest.mark.parametrize("code", ["'é' * 50_000_000", "b'\\x00\\xff' * 50_000_000", "list(range(3_000_000))"])
async def test_a_value_of_100_mb_is_read_back(py: Interpreter, code: str) -> None:
    done = await py.execute(code)
    assert done.value is None
    assert done.value_missing is not None
    assert "read_value" in done.value_missing
    assert await py.read_value(done) == eval(code)  # noqa: S307 - of the lines above


async def test_the_value_of_an_execution_that_came_along_is_given_as_it_is(py: Interpreter) -> None:
    done = await py.execute("{'a': (1, 2)}")
    assert await py.read_value(done) == {"a": (1, 2)}
