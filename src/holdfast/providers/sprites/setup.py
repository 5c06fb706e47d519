"""`holdfast provider setup`: makes a sprite ready, the user's own or that of a box. Each step is timed and told."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import Final

from holdfast.api.box.records import Step
from holdfast.api.errors.boxes import BoxError, CannotExecute, InvalidSpec
from holdfast.boxes.machine_plan import MachinePlan, Program
from holdfast.providers.sprites import setup_files
from holdfast.providers.sprites.api import SpritesApi
from holdfast.providers.sprites.errors import ApiProblem, translated
from holdfast.providers.sprites.health import Health, health_step

Tell = Callable[[Step], None]

_PART_SECONDS: Final = 120.0
_UNPACK_SECONDS: Final = 300.0
_VERSION_SECONDS: Final = 60.0
_AGAIN: Final = "correct this, and run the setup again: it goes on where it was"


class SpriteSetup:
    """Sets up one sprite, step by step, up to the first failure."""

    def __init__(self, api: SpritesApi, sprite: str, plan: MachinePlan, tell: Tell) -> None:
        self._api = api
        self._sprite = sprite
        self._plan = plan
        self._tell = tell
        self._node = "node"
        """The command of node in the sprite."""
        self._found_node = "none"

    async def run(self) -> bool:
        """Returns whether all steps worked."""
        steps: list[tuple[str, Callable[[], Awaitable[str]]]] = [("sprite", self._find), ("probe", self._probe)]
        if self._plan.programs:
            steps.append(("node", self._bring_node))
        for program in self._plan.programs:
            steps.append((program.name, partial(self._bring, program)))
        steps += [("environment", self._merge), ("health", self._check)]
        for number, (name, work) in enumerate(steps):
            # From the third step on the sprite itself has answered: what fails then is missing in it.
            step = await health_step(name, work, guest=number > 1)
            if not step.ok and step.detail.startswith(Health.AGENT_MISSING):
                step = replace(step, next_step=_AGAIN)
            self._tell(step)
            if not step.ok:
                return False
        return True

    # --- steps ---

    async def _find(self) -> str:
        with translated(f"sprite {self._sprite} cannot be used"):
            try:
                found = await self._api.get(self._sprite)
            except ApiProblem as problem:
                if not problem.missing:
                    raise
                try:
                    await self._api.create(self._sprite, None)
                except ApiProblem as refused:
                    if not refused.conflict:  # somebody has just created it, or our own answer was lost
                        raise
                return f"{self._sprite} created"
        return f"{self._sprite} was there, {'asleep' if found.asleep else 'awake'}"

    async def _probe(self) -> str:
        lines = (await self._shell(setup_files.PROBE)).splitlines()
        if len(lines) < 3 or not lines[0].startswith("/"):
            raise CannotExecute("the sprite has no home", hint="log in there and set HOME")
        home, machine, node = lines[:3]
        free = f", {int(lines[3]) // 1024} MB free" if len(lines) > 3 and lines[3].isdigit() else ""
        self._found_node = node
        return f"home {home}, {machine}{free}"

    async def _bring_node(self) -> str:
        if self._plan.node_fits(self._found_node):
            return f"{self._found_node} of the sprite"
        if not any(each.is_script for each in self._plan.programs):
            return "not needed"
        folder = self._plan.programs[0].node.parent.parent
        new = await self._copy(folder.name, self._plan.programs[0])
        self._node = f'"$HOME/{setup_files.TOOLS}/{folder.name}/bin/node"'
        said = (await self._shell(f"{self._node} --version")).strip()
        if not self._plan.node_fits(said):
            raise CannotExecute(f"our node does not run in the sprite: {said[:100] or 'no answer'}")
        mine = await self._put_program("node", f'#!/bin/sh\n{setup_files.MARK}\nexec {self._node} "$@"\n'.encode())
        had = "the sprite had none" if self._found_node == "none" else f"{self._found_node} is too old"
        return f"{said} {'copied' if new else 'was there'}, {mine}; {had}"

    async def _bring(self, program: Program) -> str:
        new = await self._copy(program.folder.name, program)
        path = f"{setup_files.TOOLS}/{program.folder.name}/{program.command}"
        mine = await self._put_program(
            program.name, setup_files.launcher(self._node, path, is_script=program.is_script)
        )
        return f"{program.version} {'copied' if new else 'was there'}, {mine}"

    async def _merge(self) -> str:
        for name, value in self._plan.environment.items():
            if problem := setup_files.check_variable(name, value):
                raise InvalidSpec(problem)
        before = await self._shell(setup_files.READ_ENVIRONMENT)
        merged = setup_files.merge_environment(before, self._plan.environment)
        if merged.text != before:
            # By stdin: commands are part of URLs, which are logged.
            await self._shell(setup_files.WRITE_ENVIRONMENT, stdin=merged.text.encode())
        told = [f"added {setup_files.masked(merged.added)}"] if merged.added else []
        told += [f"kept {setup_files.masked(merged.kept)}"] if merged.kept else []
        return "; ".join(told) or ("unchanged" if merged.text == before else "~/.local/bin is on the path")

    async def _check(self) -> str:
        found = []
        for program in self._plan.programs:
            script = f'. "$HOME/.profile"; {program.name} --version'
            said = (await self._shell(script, seconds=_VERSION_SECONDS)).strip()
            found.append(f"{program.name} {said.splitlines()[-1][:60] if said else 'says nothing'}")
        return f"{Health.OK}: {', '.join(found)}" if found else str(Health.OK)

    # --- commands in the sprite ---

    async def _copy(self, name: str, program: Program) -> bool:
        """Copy a folder of tools. Returns False if the sprite has it."""
        target = f"{setup_files.TOOLS}/{name}"
        if (await self._shell(setup_files.HAS, target)).strip() == "yes":
            return False
        source = program.folder if program.folder.name == name else program.node.parent.parent
        incoming = f".holdfast/incoming/{name}"
        parts = setup_files.packed_parts(source)
        number = 0
        while (part := await asyncio.to_thread(next, parts, None)) is not None:
            await self._long(setup_files.PUT_PART, incoming, f"{number:06d}", stdin=part, seconds=_PART_SECONDS)
            number += 1
        await self._long(setup_files.UNPACK, incoming, target, seconds=_UNPACK_SECONDS)
        return True

    async def _put_program(self, name: str, data: bytes) -> str:
        said = (await self._shell(setup_files.LINK, name, stdin=data)).strip()
        return f"~/.local/bin/{name}" if said == "made" else f"your own {said} is kept"

    async def _shell(self, script: str, *arguments: str, stdin: bytes = b"", seconds: float = 30.0) -> str:
        with translated(f"a command in sprite {self._sprite} failed"):
            done = await self._api.run_short(
                self._sprite, ["sh", "-c", script, "sh", *arguments], stdin=stdin, seconds=seconds
            )
        return _output(done.exit_code, done.stdout, done.stderr)

    async def _long(self, script: str, *arguments: str, stdin: bytes = b"", seconds: float) -> str:
        with translated(f"files cannot be copied to sprite {self._sprite}"):
            done = await self._api.run(
                self._sprite, ["sh", "-c", f"set -e; {script}", "sh", *arguments], stdin=stdin, seconds=seconds
            )
        return _output(done.exit_code, done.stdout, done.stderr)


def _output(exit_code: int, stdout: str, stderr: str) -> str:
    if exit_code == 0:
        return stdout
    raise problem_of(exit_code, stderr)


def problem_of(exit_code: int, stderr: str) -> BoxError:
    """Returns the error of a command in a sprite."""
    why = " ".join(stderr.split())[-300:] or f"exit code {exit_code}"
    if "No space left" in why or "Disk quota exceeded" in why:
        return CannotExecute(f"the disk of the sprite is full: {why}")
    return CannotExecute(why)
