"""Nothing of a run is lost, whoever dies at whichever moment: every cell of the matrix, with the real agents."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable
from random import Random, SystemRandom

import pytest
from tests.agents import InstalledAgents
from tests.runs.faulting import (
    MODEL,
    PROMPT,
    Cell,
    Ground,
    Reader,
    Struck,
    cells,
    expected,
    grounded,
)

pytestmark = pytest.mark.anyio

ALL = bool(os.environ.get("HOLDFAST_TEST_ALL"))
SAMPLED = 3
"""Cells of each agent, where not all of them are wanted: all take long."""
CELLS = cells(tuple(MODEL))

Note = Callable[[str, object], None]


@pytest.fixture(scope="module")
async def ground(tmp_path_factory: pytest.TempPathFactory, installed_agents: InstalledAgents) -> AsyncIterator[Ground]:
    async with grounded(tmp_path_factory.mktemp("runs"), installed_agents) as ground:
        yield ground


@pytest.mark.skipif(not ALL, reason="all of them take long: bin/test --all")
@pytest.mark.parametrize("cell", CELLS, ids=str)
async def test_a_run_survives(ground: Ground, cell: Cell, record_property: Note) -> None:
    record_property("run fault", [cell.agent, cell.fault, cell.moment, await survives(ground, cell)])


@pytest.mark.parametrize("agent", MODEL)
async def test_a_run_survives_what_a_draw_chose(ground: Ground, agent: str, record_property: Note) -> None:
    given = os.environ.get("HOLDFAST_TEST_SEED")
    seed = int(given) if given else SystemRandom().randrange(2**32)
    sys.stdout.write(f"repeat with HOLDFAST_TEST_SEED={seed}\n")
    for cell in Random(seed).sample([cell for cell in CELLS if cell.agent == agent], SAMPLED):
        sys.stdout.write(f"{cell}\n")
        record_property("run fault", [cell.agent, cell.fault, cell.moment, await survives(ground, cell)])


async def survives(ground: Ground, cell: Cell) -> str:
    """How the run ended, once all was seen to be well."""
    struck = Struck(ground, cell)
    await struck.launch()
    reader = Reader(ground.client, struck.thread)
    async with reader.following():
        await struck.reach_moment()
        await struck.strike()
        await struck.go_on()
        await struck.settle()
    status = (await ground.client.runs.get(struck.run)).status
    assert status in expected(cell.fault, cell.moment)

    resumed = await struck.resume()
    entries = await struck.entries()
    assert resumed == "completed", entries[-1]["payload"]
    check_thread(struck, entries, reader.seen)
    check_memory(struck, entries)
    assert struck.processes() == []
    return status


def check_thread(struck: Struck, entries: list[dict[str, object]], seen: list[str]) -> None:
    """Nothing lost, nothing doubled, every end told once, and no message left in pieces."""
    ids = [str(entry["id"]) for entry in entries]
    assert [id for id, times in Counter(ids).items() if times > 1] == []
    assert [id for id in ids if id in set(seen)] == seen
    kinds = Counter(str(payload_of(entry)["type"]) for entry in entries)
    assert kinds["signal.run.started"] == kinds["signal.run.finished"] == 2
    whole = {payload_of(entry).get("message") for entry in entries if kind_of(entry) == "assistant"}
    pieces = {payload_of(entry).get("message") for entry in entries if kind_of(entry) == "delta"}
    assert pieces <= whole
    called = {payload_of(entry).get("call") for entry in entries if kind_of(entry) == "call"}
    answered = {payload_of(entry).get("call") for entry in entries if kind_of(entry) == "tool"}
    assert called <= answered


def check_memory(struck: Struck, entries: list[dict[str, object]]) -> None:
    """The agent went on from what was before: whatever is whole on the thread, the model was shown."""
    asked = [each for each in struck.ground.model.requests if each.is_main and each.saw(struck.marker)]
    request = asked[-1]
    assert any(PROMPT in text for text in request.user_texts)
    assert any("Go on, please." in text for text in request.user_texts)
    assert request.open_calls == []
    ends = [number for number, entry in enumerate(entries) if payload_of(entry)["type"] == "signal.run.finished"]
    for payload in map(payload_of, entries[: ends[0]]):
        kind = str(payload["type"]).rpartition(".")[2]
        if kind == "assistant" and not payload.get("partial") and payload["text"]:
            assert any(str(payload["text"]) in text for text in request.assistant_texts), request.turns
        if kind == "tool" and payload["status"] == "ok":
            assert any(str(payload["result"]).strip() in each.text for each in request.results), request.turns


def payload_of(entry: dict[str, object]) -> dict[str, object]:
    payload = entry["payload"]
    assert isinstance(payload, dict)
    return payload


def kind_of(entry: dict[str, object]) -> str:
    return str(payload_of(entry)["type"]).rpartition(".")[2]
