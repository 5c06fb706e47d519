"""A server that dies before any of its writes: the next one brings the session to where it was to be.

Each prompt ends once, the state is what the thread tells, and nothing is left behind.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
from tests.sessions.world import SessionWorld

from holdfast.api.box.records import TOMBSTONES, BoxState
from holdfast.api.errors import HoldfastError
from holdfast.api.session.sessions import SessionState

pytestmark = pytest.mark.anyio
S = SessionState
MOST_WRITES = 14


async def _create(world: SessionWorld) -> None:
    await world.create(id="t-1")


async def _prompt(world: SessionWorld) -> None:
    await world.prompt("t-1", prompt_id="p-1")
    await world.answer("t-1")


async def _hibernate(world: SessionWorld) -> None:
    await world.sessions.hibernate("t-1")


async def _restore(world: SessionWorld) -> None:
    await world.sessions.restore("t-1")


async def _terminate(world: SessionWorld) -> None:
    await world.sessions.terminate("t-1")


BEFORE: dict[str, tuple[Callable[[SessionWorld], Awaitable[None]], ...]] = {
    "create": (),
    "prompt": (_create,),
    "hibernate": (_create,),
    "restore": (_create, _hibernate),
    "terminate": (_create,),
    "prompt asleep": (_create, _hibernate),
}
STEPS = {
    "create": _create, "prompt": _prompt, "hibernate": _hibernate, "restore": _restore, "terminate": _terminate,
    "prompt asleep": _prompt,
}  # fmt: skip
ENDS = {
    "create": S.RUNNING, "prompt": S.RUNNING, "hibernate": S.HIBERNATED, "restore": S.RUNNING,
    "terminate": S.TERMINATED, "prompt asleep": S.RUNNING,
}  # fmt: skip


async def settle(world: SessionWorld) -> None:
    """As the sweeps of a server do, for a while."""
    for _ in range(6):
        await world.base.runs.sweep()
        await world.base.runs.launches.wait("t-1")
        await world.sessions.sweep()
        await world.settled("t-1")
        world.base.clock.advance(40_000)


@pytest.mark.parametrize("write", range(1, MOST_WRITES))
@pytest.mark.parametrize("step", list(STEPS))
@pytest.mark.sampled(share=0.25)
async def test_a_server_that_dies_at_any_write_loses_nothing_and_does_nothing_twice(
    world: SessionWorld, step: str, write: int
) -> None:
    for before in BEFORE[step]:
        await before(world)
        await world.settled("t-1")
    world.base.log.die_at = world.base.log.appends + write
    try:
        await STEPS[step](world)
        await world.settled("t-1")
    except (HoldfastError, AssertionError):
        pass  # whoever asked has no answer, and asks again
    died = world.base.log.dead
    await world.restart()
    if step.startswith("prompt"):
        await world.prompt("t-1", prompt_id="p-1")
    else:
        await STEPS[step](world)
    await settle(world)
    if step.startswith("prompt"):
        await _prompt_ended(world)
    session = await world.session("t-1")
    assert session.state is ENDS[step], (died, session)
    states = await world.states("t-1")
    assert states == sorted(set(states), key=states.index) or step in ("restore", "prompt asleep"), states
    boxes = [row for row in await world.base.rows.live("default", "here") if row.state not in TOMBSTONES]
    assert len(boxes) == 1
    expected = {S.HIBERNATED: BoxState.HIBERNATED, S.TERMINATED: BoxState.STOPPED}.get(session.state, BoxState.RUNNING)
    assert boxes[0].state is expected
    assert session.released is (session.state is S.TERMINATED)


async def _prompt_ended(world: SessionWorld) -> None:
    """The first attempt may have been lost, and the prompt be with the runner of another one."""
    if (await world.row("t-1")).runs.live is not None:
        await world.answer("t-1")
        await settle(world)
    session = await world.session("t-1")
    assert [(each.id, each.status.value) for each in session.ended] == [("p-1", "completed")], session
    assert session.queue == ()
    types = await world.types("t-1")
    assert types.count("chat") == 1
    assert types.count("signal.run.started") == types.count("signal.run.finished") <= 2
