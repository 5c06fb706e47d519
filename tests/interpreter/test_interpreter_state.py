"""What an interpreter has in memory goes to another, and by the volume to another box. It replaces, never merges."""

from __future__ import annotations

import pytest

from holdfast.api.box.spec import BoxSpec
from holdfast.api.errors.interpreters import InvalidInterpreter
from holdfast.interpreter.client_host import ClientHost
from holdfast.interpreter.interpreter import Interpreter
from holdfast.interpreter.replay import replay

pytestmark = pytest.mark.anyio


async def test_a_state_goes_from_one_interpreter_to_another_and_replaces_what_is_there(
    host: ClientHost, spec: BoxSpec
) -> None:
    async with Interpreter(host=host, spec=spec) as one, Interpreter(host=host, spec=spec) as other:
        await one.execute("import math, threading\nlock = threading.Lock()\ndef area(r): return math.pi * r * r\nn = 2")
        exported = await one.export_state()
        assert "lock" in exported.checkpoint.unsaved
        await other.execute("n = 1; mine = 1")
        loaded = await other.import_state(exported)
        assert {"n", "area"} <= set(loaded.names)
        done = await other.execute("[round(area(n), 2), 'mine' in globals()]")
        assert done.value == [12.57, False]
        with pytest.raises(InvalidInterpreter, match="not an exported state"):
            await other.import_state(b"something else")
        told = replay([entry async for entry in other.history()])
        assert [(each["what"], each["count"]) for each in told.states] == [("imported", len(loaded.names))]


async def test_a_state_on_the_volume_outlives_its_box(host: ClientHost, spec: BoxSpec) -> None:
    path = "/home/box/memory/buffers/state"
    async with Interpreter(host=host, spec=spec, volume="kept-state") as py:
        await py.execute("kept = list(range(5))")
        saved = await py.save_state(path)
        assert (saved.path, "kept" in saved.names) == (path, True)
    async with Interpreter(host=host, spec=spec, volume="kept-state") as py:
        assert "kept" in (await py.load_state(path)).names
        assert (await py.execute("sum(kept)")).value == 10
