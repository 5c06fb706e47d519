"""Sets up a machine of the user at a provider: installs agents here if needed, and lets the provider copy them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Final

from holdfast.api.box.records import Step
from holdfast.api.errors.agents import CannotInstall
from holdfast.api.errors.boxes import BoxUnreachable, CannotExecute, InvalidSpec
from holdfast.api.providers import MachineSetup, ProviderTrial
from holdfast.boxes.machine_plan import MachinePlan, Program
from holdfast.boxes.service.boxes import Boxes
from holdfast.harnesses.harness import Harness
from holdfast.harnesses.installation import Tools
from holdfast.harnesses.node import fits
from holdfast.harnesses.placement import is_script
from holdfast.providers.diagnosis import take_step
from holdfast.time_limit import time_limit

_SECONDS: Final = 1800.0
_ACCESS_SECONDS: Final = 120.0
_SHORTEST: Final = 4
"""Shorter values are no secrets, and may be words of a message."""


async def set_up(
    boxes: Boxes,
    name: str,
    setup: MachineSetup,
    tools: Tools,
    find_agent: Callable[[str], Harness],
    tell: Callable[[Step], None],
    redacted: Callable[[str], str],
) -> ProviderTrial:
    """Set up a machine, step by step. Raises `BoxError` if the provider has none. `redacted` takes secrets out."""
    provider = boxes.provider(name)
    provider.check_usable()
    steps: list[Step] = []

    def note(step: Step) -> None:
        texts = [step.detail, step.next_step or ""]
        for value in setup.environment.values():
            texts = [text.replace(value, "•••") if len(value) >= _SHORTEST else text for text in texts]
        detail, hint = (redacted(text) for text in texts)
        steps.append(replace(step, detail=detail, next_step=hint or None))
        tell(steps[-1])

    programs: list[Program] = []

    async def install(harness: Harness) -> str:
        try:
            programs.append(await _program(tools, harness))
        except CannotInstall as error:
            raise CannotExecute(error.message, hint=error.hint) from None
        return f"{harness.name} {programs[-1].version} on the server"

    try:
        async with time_limit(_SECONDS):
            async with time_limit(_ACCESS_SECONDS):
                access = await provider.check_access()
            for step in access:
                note(step)
            worked = all(step.ok for step in access)
            for agent in setup.agents:
                harness = find_agent(agent)
                if harness.package is None:
                    raise InvalidSpec(f"Holdfast does not install agent {agent}", hint="see holdfast agent list")
                if worked:
                    step = await take_step("install", partial(install, harness), "try again")
                    note(step)
                    worked = step.ok
            if worked:
                plan = MachinePlan(setup.machine, tuple(programs), fits, dict(setup.environment))
                worked = await provider.set_up_machine(plan, note)
    except TimeoutError:
        raise BoxUnreachable("the setup takes too long", hint="run it again: it goes on where it was") from None
    return ProviderTrial(name=name, ok=worked, steps=tuple(steps))


async def _program(tools: Tools, harness: Harness) -> Program:
    """Install an agent on this machine, if it is not there. Raises `CannotInstall`."""
    installed = await tools.install(harness)
    assert harness.package is not None
    command = f"node_modules/.bin/{harness.package.command}"
    script = await asyncio.to_thread(is_script, installed, harness)
    return Program(harness.name, installed.version, installed.folder, command, installed.node, script)
