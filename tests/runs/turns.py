"""Whole turns in a `World` whose boxes are saved at the end of each: prompt, files, answer, end."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.runs.world import PATIENCE, SPEC, Runner, World

from holdfast.api.box.snapshots import Snapshot
from holdfast.api.run.runs import Launched
from holdfast.runs.launch.plan import Options, Prompt, key_of
from holdfast.runs.reconcile.probe import KILL
from holdfast.threads.run_events import Run


async def begin(world: World, prompt: str, thread: str | None = None, **options: Any) -> Runner:
    """A run with a live runner. It says it has a session."""
    if thread is None:
        launched = await world.launch(prompt, **options)
    else:
        launched = await world.runs.resume(thread, Prompt(prompt))
    runner = await world.runner(launched)
    await runner.session(f"session-{runner.run.run}")
    return runner


async def write(world: World, thread: str, **files: str) -> None:
    """Change files of the thread's box, as an agent does by shell."""
    async with await world.boxes.open(await box_of(world, thread)) as box:
        for name, text in files.items():
            await box.files.write(f"{box.spec.workdir}/{name}", text.encode())


async def read(world: World, thread: str) -> dict[str, str]:
    """The files of the workspace."""
    async with await world.boxes.open(await box_of(world, thread)) as box:
        entries = await box.files.list(box.spec.workdir)
        return {
            each.name: (await box.files.read(f"{box.spec.workdir}/{each.name}")).decode()
            for each in entries
            if not each.name.startswith(".")
        }


async def box_of(world: World, thread: str) -> str:
    row = await world.boxes.of_key(key_of(thread))
    assert row is not None
    return row.id


async def finish(world: World, runner: Runner, text: str) -> None:
    """The agent answers, and its runner exits."""
    await runner.say(text)
    await world.runs.probe.signal(runner.run, KILL)
    await runner.end()


async def turn(world: World, prompt: str, thread: str | None = None, **files: str) -> str:
    """A whole turn that writes files. Returns the thread once its checkpoint is there."""
    runner = await begin(world, prompt, thread)
    await write(world, runner.thread, **files)
    await finish(world, runner, f"answer to {prompt}")
    await saved(world, runner.thread)
    return runner.thread


async def saved(world: World, thread: str) -> Run:
    """The latest run, when its end is settled."""
    async with asyncio.timeout(PATIENCE):
        await world.runs.checkpoints.settle(thread)
    return await world.latest(thread)


async def snapshots(world: World) -> list[Snapshot]:
    return await world.boxes.checkpoints()


async def told(world: World, launched: Launched) -> list[str]:
    """What the session of the agent was rebuilt from, for a launch that is over."""
    run = await world.settled(launched)
    assert run.live, run.error
    return world.agents.scripted.rebuilt_from[-1]


def options(**changed: Any) -> Options:
    return Options("scripted", None, SPEC, **changed)
