"""Nothing of a run is lost, whoever dies at whichever moment: every cell of the matrix, with the real agents."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from random import Random
from typing import Any

import pytest
from tests.agents import InstalledAgents
from tests.runs.faulting import (
    BY_PROCESS,
    CUTTING,
    DRIVEN,
    FIRST,
    LAST,
    LOCAL,
    MORE,
    PATIENT,
    PROMPT,
    Cell,
    Fault,
    Reader,
    Struck,
    World,
    cells,
    expected,
    open_world,
)
from tests.runs.matrix import ALL, BROKEN, PROPERTY
from tests.scratch import scratch_folder

from holdfast.threads.run_events import FINISHED, STARTED, end_id

pytestmark = pytest.mark.anyio

DRAWN = 1
"""Cells of each agent on this machine, and of each cloud, where not all of them are wanted: all take long."""

Note = Callable[[str, object], None]
Entry = dict[str, object]


def wanted() -> list[Cell]:
    """All, or those that a draw chose: another one for each seed, and the same one in every process of the tests."""
    every = cells()
    if ALL:
        return every
    seed = os.environ.get("HOLDFAST_TEST_SEED") or os.environ.get("PYTEST_XDIST_TESTRUNUID")
    draw = Random(seed)
    columns: dict[str, list[Cell]] = {}
    for cell in every:
        if cell.fault not in PATIENT:
            columns.setdefault(cell.column if cell.provider == LOCAL else cell.provider, []).append(cell)
    drawn = [draw.sample(each, DRAWN) for each in columns.values()]
    return [cell for each in drawn for cell in each]


def grouped(cell: Cell) -> Any:
    """All cells of one cloud are struck in one process of the tests, which opens it once."""
    marks = () if cell.provider == LOCAL else (pytest.mark.xdist_group(f"runs at {cell.provider}"),)
    return pytest.param(cell, marks=marks, id=str(cell))


Worlds = Callable[[str], Awaitable[World]]


@pytest.fixture(scope="module")
async def worlds(tmp_path_factory: pytest.TempPathFactory, installed_agents: InstalledAgents) -> AsyncIterator[Worlds]:
    """One for each provider, opened when it is first wanted."""
    opened: dict[str, World] = {}
    async with AsyncExitStack() as stack:

        async def find(provider: str) -> World:
            if provider not in opened:
                folder = stack.enter_context(scratch_folder(tmp_path_factory, provider))
                opened[provider] = await stack.enter_async_context(open_world(folder, installed_agents, provider))
            return opened[provider]

        yield find


@pytest.mark.parametrize("cell", [grouped(each) for each in wanted()])
async def test_a_run_survives(worlds: Worlds, cell: Cell, record_property: Note) -> None:
    """One that failed: bin/test --all tests/runs/test_faults.py -k CELL"""
    if os.geteuid() != 0 and cell.agent in DRIVEN and cell.fault in BY_PROCESS:
        pytest.skip("only root can tell a driver from its runner: neither lets others look at it")
    ended = BROKEN
    try:
        ended = await survives(await worlds(cell.provider), cell)
    finally:
        record_property(PROPERTY, [*cell.names, str(ended)])


async def survives(world: World, cell: Cell) -> str:
    """How the run ended, once all was seen to be well."""
    struck = Struck(world, cell)
    await struck.launch()
    reader = Reader(world.client, struck.thread, struck.run)
    async with reader.following():
        await struck.reach_moment()
        await struck.strike()
        await struck.go_on()
        await struck.settle()
    status = (await world.client.runs.get(struck.run)).status
    entries = await struck.entries()
    assert status in expected(cell.fault, cell.moment), entries[-1]["payload"]
    ends = {struck.run: status}
    if cell.fault is Fault.PROMPT:
        queued = await struck.end_of_queued()
        ends[queued.id] = queued.status
        assert (queued.status, queued.box) == ("completed", struck.box), queued.error

    resumed = await struck.resume()
    entries = await struck.entries()
    assert resumed.status == "completed", entries[-1]["payload"]
    check_thread(entries, reader.seen)
    check_ends(entries, {**ends, resumed.id: resumed.status})
    check_memory(struck, entries)
    if status == "completed" and cell.fault not in CUTTING:
        check_said_once(entries)
    await struck.nothing_left_behind(resumed)
    await world.client.boxes.delete(str(resumed.box))
    return status


def check_thread(entries: list[Entry], seen: list[str]) -> None:
    """Nothing lost, nothing doubled, and no message or call left in pieces."""
    ids = [str(entry["id"]) for entry in entries]
    assert [id for id, times in Counter(ids).items() if times > 1] == []
    assert ids[: len(seen)] == seen
    whole = {payload_of(entry).get("message") for entry in entries if kind_of(entry) == "assistant"}
    pieces = {payload_of(entry).get("message") for entry in entries if kind_of(entry) == "delta"}
    assert pieces <= whole
    called = Counter(payload_of(entry).get("call") for entry in entries if kind_of(entry) == "call")
    answered = Counter(payload_of(entry).get("call") for entry in entries if kind_of(entry) == "tool")
    assert called == answered


def check_ends(entries: list[Entry], ends: dict[str, str]) -> None:
    """Every run began once and ended once, as it should, and nobody wrote in its name afterwards."""
    ids = [str(entry["id"]) for entry in entries]
    of_kind = {
        kind: [payload_of(entry) for entry in entries if payload_of(entry)["type"] == kind]
        for kind in (STARTED, FINISHED)
    }
    assert [each["run"] for each in of_kind[STARTED]] == list(ends)
    assert [(each["run"], each["status"]) for each in of_kind[FINISHED]] == list(ends.items())
    for run in ends:
        after = ids[ids.index(end_id(run)) + 1 :]
        assert [id for id in after if id.startswith(f"{run}-")] == []


def check_said_once(entries: list[Entry]) -> None:
    """Whatever was sent again, the run reads as if nothing had been."""
    said = Counter(
        str(payload_of(entry)["text"])
        for entry in entries
        if kind_of(entry) == "assistant" and not payload_of(entry).get("partial")
    )
    assert (said[FIRST], said[LAST]) == (1, 1)


def check_memory(struck: Struck, entries: list[Entry]) -> None:
    """The agent went on from what was before: whatever is whole on the thread, the model was shown, and once."""
    asked = [each for each in struck.world.model.requests if each.is_main and each.saw(struck.marker)]
    request = asked[-1]
    prompts = [text for text in request.user_texts if struck.marker in text]
    asked_for = [PROMPT, *([MORE] if struck.queued else []), "Go on, please."]
    assert len(prompts) == len(asked_for), request.turns
    assert all(wanted in prompt for wanted, prompt in zip(asked_for, prompts, strict=True)), request.turns
    assert request.complaint is None
    ends = [number for number, entry in enumerate(entries) if payload_of(entry)["type"] == FINISHED]
    calls, said = 0, Counter[str]()
    for entry in entries[: ends[0]]:
        payload, kind = payload_of(entry), kind_of(entry)
        if kind == "assistant" and not payload.get("partial") and payload["text"]:
            said[str(payload["text"])] += 1
        calls += kind == "call"
        if kind == "tool" and payload["status"] == "ok":
            assert any(str(payload["result"]).strip() in each.text for each in request.results), request.turns
    assert len(request.calls) == calls, request.turns
    heard = "\n\n".join(request.assistant_texts)  # as the texts of one message are put together on the thread
    for text, times in said.items():
        if struck.cell.fault in CUTTING:
            # Of a message whose first part was cut off, some agents keep that part to themselves.
            assert text.rpartition("\n\n")[2] in heard, request.turns
        else:
            assert heard.count(text) == times, request.turns


def payload_of(entry: Entry) -> dict[str, object]:
    payload = entry["payload"]
    assert isinstance(payload, dict)
    return payload


def kind_of(entry: Entry) -> str:
    """Of an agent's entry. Signals are none: one of a call of the model is no call of a tool."""
    type = str(payload_of(entry)["type"])
    return type if type.startswith("signal.") else type.rpartition(".")[2]
