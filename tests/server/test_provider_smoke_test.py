"""The test of a provider: every step is told, the first failure ends it, and no box is left."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from holdfast.api.box.records import BoxState, Step
from holdfast.api.errors.boxes import BoxError, BoxUnreachable, CreateFailed, ProviderRefused, Unsupported
from holdfast.boxes.rows import BoxFilter
from holdfast.boxes.service.boxes import Boxes
from holdfast.boxes.service.pool_rules import PoolSettings
from holdfast.server.provider.smoke_test import try_provider
from holdfast.storage.sqlite.boxes import SqliteBoxes
from holdfast.testing.dummy import DummyProvider

pytestmark = pytest.mark.anyio

STEPS = ["reach", "authorize", "create", "exec", "delete"]
SECRET = "as-0123456789abcdefghij"


@pytest.fixture
async def provider(tmp_path: Path) -> AsyncIterator[DummyProvider]:
    async with DummyProvider(tmp_path / "dummy", name="work") as provider:
        yield provider


@pytest.fixture
async def boxes(tmp_path: Path, provider: DummyProvider) -> AsyncIterator[Boxes]:
    async with SqliteBoxes(tmp_path / "data.db") as rows:
        boxes = Boxes(rows, {"work": provider}, node="here", pool=PoolSettings(boxes=4))
        yield boxes
        await boxes.close()


def unchanged(text: str) -> str:
    return text


async def left(boxes: Boxes, provider: DummyProvider) -> int:
    """How many boxes there still are, by the rows and at the provider."""
    return len((await boxes.list(BoxFilter())).rows) + len(await provider.find())


async def test_each_step_is_told_when_it_is_done(boxes: Boxes, provider: DummyProvider) -> None:
    told: list[Step] = []
    trial = await try_provider(boxes, "work", told.append, unchanged)
    assert trial.ok
    assert [step.name for step in trial.steps] == STEPS
    assert tuple(told) == trial.steps
    assert await left(boxes, provider) == 0
    [row] = (await boxes.list(BoxFilter(live_only=False))).rows
    assert (row.state, row.spec.lifetime.value) == (BoxState.DELETED, "ephemeral")
    assert boxes.pool.statistics().wanted == 0


@pytest.mark.parametrize(
    ("point", "error", "steps"),
    [
        ("diagnose", BoxUnreachable("no answer", hint="wait"), STEPS[:1]),
        ("create", ProviderRefused("no money left", hint="pay"), STEPS[:3]),
        ("create.half", CreateFailed("no disk left", hint="wait"), STEPS[:3]),
        ("exec", BoxUnreachable("no answer", hint="wait"), STEPS),
        ("remove", BoxUnreachable("no answer", hint="wait"), STEPS),
    ],
)
async def test_the_first_failure_says_why_and_what_to_do(
    boxes: Boxes, provider: DummyProvider, point: str, error: BoxError, steps: list[str]
) -> None:
    provider.fail_next(point, error)
    trial = await try_provider(boxes, "work", lambda step: None, unchanged)
    [failed] = [step for step in trial.steps if not step.ok]
    assert not trial.ok
    assert [step.name for step in trial.steps] == steps
    assert failed.detail == error.message
    assert failed.next_step == error.hint
    provider.heal()
    await boxes.sweep()
    assert await left(boxes, provider) == 0


@pytest.mark.parametrize("point", ["create.half", "create.made", "attach", "exec", "remove.half"])
async def test_one_that_is_interrupted_leaves_no_box(boxes: Boxes, provider: DummyProvider, point: str) -> None:
    reached, stuck = asyncio.Event(), asyncio.Event()

    async def hold() -> None:
        reached.set()
        del provider.at[point]
        if point != "remove.half":
            await stuck.wait()

    provider.at[point] = hold
    trial = asyncio.create_task(try_provider(boxes, "work", lambda step: None, unchanged))
    await reached.wait()
    trial.cancel()
    with pytest.raises(asyncio.CancelledError):
        await trial
    assert await left(boxes, provider) == 0


async def test_what_a_provider_quotes_is_redacted(boxes: Boxes, provider: DummyProvider) -> None:
    provider.fail_next("create", ProviderRefused(f"not {SECRET}", hint=f"another than {SECRET}"))
    told: list[Step] = []
    trial = await try_provider(boxes, "work", told.append, lambda text: text.replace(SECRET, "***"))
    assert (trial.steps[-1].detail, trial.steps[-1].next_step) == ("not ***", "another than ***")
    assert SECRET not in f"{trial}{told}"


async def test_a_provider_that_is_not_there_is_refused(boxes: Boxes) -> None:
    with pytest.raises(Unsupported, match="there is no provider nothing"):
        await try_provider(boxes, "nothing", lambda step: None, unchanged)
