"""Makes an agent available in a box: the box sees it on its machine, or gets a copy.

A copy is made under another name and then renamed, so an interrupted or concurrent copy does no harm.
"""

from __future__ import annotations

import asyncio
import contextlib
import platform
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from holdfast.api.box.box import Box
from holdfast.api.errors.agents import CannotInstall
from holdfast.api.errors.boxes import BoxError, CannotExecute, ExecTimeout, FileExists, FileProblem, WrongFileKind
from holdfast.api.ids import new_id
from holdfast.harnesses.harness import Harness
from holdfast.harnesses.installation import Installed, OnProgress, Progress, Tools, processor
from holdfast.harnesses.node import fits
from holdfast.time_limit import time_limit

_PROBE_SECONDS: Final = 30.0
_FORGET_SECONDS: Final = 30.0
_MOST: Final = 16_384
_PROBE: Final = 'printf "%s\\n" "$HOME"; uname -m; node --version 2>/dev/null || echo none'


@dataclass(frozen=True, slots=True)
class Placed:
    """Where an agent is in a box."""

    program: str
    """The folder. Empty for an agent that Holdfast does not install."""
    node: str
    version: str | None


ReportStep = Callable[[str, int | None], Awaitable[object]]
"""Called twice with the name of what is installed: at the start with None, and at the end with the milliseconds."""


class Agents(Protocol):
    def find(self, name: str) -> Harness:
        """Returns an agent by its name. Raises `UnknownAgent`."""
        ...

    async def ensure(self, box: Box, harness: Harness, report: ReportStep) -> Placed:
        """Make the agent available in the box. Reports what has to be installed first."""
        ...


class InstalledAgents:
    """The agents of a registry, installed on this machine when a box first needs them."""

    def __init__(self, tools: Tools, find: Callable[[str], Harness]) -> None:
        self._tools = tools
        self.find = find

    async def ensure(self, box: Box, harness: Harness, report: ReportStep) -> Placed:
        steps = _Steps()
        reporting = asyncio.create_task(steps.report(report))
        try:
            return await ensure(box, harness, self._tools, on_progress=steps.take)
        finally:
            # Installations are on the thread before anything that follows from them.
            steps.end()
            await reporting


class _Steps:
    """The start and the end of each step of an installation."""

    def __init__(self) -> None:
        self._started: set[str] = set()
        self._queue: asyncio.Queue[Progress | None] = asyncio.Queue()
        """At most two items for each step, of which there are few."""

    def take(self, progress: Progress) -> None:
        if progress.done or progress.what not in self._started:
            self._started.add(progress.what)
            self._queue.put_nowait(progress)

    def end(self) -> None:
        self._queue.put_nowait(None)

    async def report(self, report: ReportStep) -> None:
        while (progress := await self._queue.get()) is not None:
            await report(progress.what, round(progress.seconds * 1000) if progress.done else None)


async def ensure(box: Box, harness: Harness, tools: Tools, *, on_progress: OnProgress | None = None) -> Placed:
    """Install the agent on this machine if needed, and make it available in the box. Raises `CannotInstall`."""
    if harness.package is None:
        return Placed("", "node", None)
    if box.tools is not None:
        installed = await tools.install(harness, on_progress=on_progress)
        # A box does not see it if it was started before the folder existed, or has another folder in its place.
        if await box.files.exists(f"{box.tools}/{installed.folder.name}/installed.json"):
            node = await _seen_node(box, f"{box.tools}/{_node_in(installed)}", installed, harness)
            return Placed(f"{box.tools}/{installed.folder.name}", node, installed.version)
    return await _copied(box, harness, tools, on_progress)


# --- seen -------------------------------------------------------------------------------------------------------------


async def _seen_node(box: Box, ours: str, installed: Installed, harness: Harness) -> str:
    """Returns our node, or that of the image if the image lacks the libraries that ours needs."""
    if box.spec.image is None or not await asyncio.to_thread(is_script, installed, harness) or await _runs(box, ours):
        return ours
    if await _runs(box, "node"):
        return "node"
    raise _no_node(harness)


def _node_in(installed: Installed) -> str:
    return f"{installed.node.parent.parent.name}/bin/node"


def _no_node(harness: Harness) -> CannotInstall:
    return CannotInstall(
        f"{harness.title} needs node, but Holdfast's node does not run in this box",
        hint="use an image with glibc and libstdc++, or one that has node 22.19 or newer",
    )


async def _runs(box: Box, node: str) -> bool:
    try:
        done = await box.exec([node, "--version"], timeout=_PROBE_SECONDS, max_output=_MOST)
    except (CannotExecute, ExecTimeout):
        return False
    return done.exit_code == 0 and fits(done.stdout.decode(errors="replace"))


# --- copied -----------------------------------------------------------------------------------------------------------


async def _copied(box: Box, harness: Harness, tools: Tools, on_progress: OnProgress | None) -> Placed:
    try:
        done = await box.exec(["/bin/sh", "-c", _PROBE], timeout=_PROBE_SECONDS, max_output=_MOST)
    except (CannotExecute, ExecTimeout) as error:
        raise CannotInstall(f"cannot copy files into the box: {error.message}", hint=error.hint) from None
    lines = done.stdout.decode(errors="replace").splitlines()
    if len(lines) < 3 or not lines[0].startswith("/"):
        raise CannotInstall("the box has no home folder", hint="use an image with a shell and a home")
    home, machine, own_node = lines[:3]
    installed = await tools.install(harness, cpu=processor(machine), on_progress=on_progress)
    folder = f"{home.rstrip('/')}/.holdfast/tools"
    node = "node"
    if not fits(own_node) and await asyncio.to_thread(is_script, installed, harness):
        if processor(machine) != processor(platform.machine()) or platform.system() != "Linux":
            raise CannotInstall(
                f"{harness.title} needs node, but there is none for {machine} on this machine",
                hint="use an image that has node 22.19 or newer",
            )
        await _copy(box, installed.node.parent.parent, f"{folder}/{installed.node.parent.parent.name}")
        node = f"{folder}/{_node_in(installed)}"
        if not await _runs(box, node):
            raise _no_node(harness)
    await _copy(box, installed.folder, f"{folder}/{installed.folder.name}")
    return Placed(f"{folder}/{installed.folder.name}", node, installed.version)


def is_script(installed: Installed, harness: Harness) -> bool:
    """Returns whether the agent's program is a script for node, rather than a binary."""
    assert harness.package is not None
    with (installed.folder / "node_modules" / ".bin" / harness.package.command).open("rb") as program:
        first = program.readline(256)
    return first.startswith(b"#!") and b"node" in first


async def _copy(box: Box, source: Path, target: str) -> None:
    if await box.files.exists(target):
        return
    made = f"{target}.{new_id('x')}"
    try:
        await box.files.upload(source, made)
        await box.files.move(made, target)
    except FileProblem as error:
        await _forget(box, made)
        if isinstance(error, FileExists | WrongFileKind) and await box.files.exists(target):
            return  # another caller has copied it
        raise CannotInstall(f"cannot copy the agent into the box: {error.message}", hint=error.hint) from None
    except asyncio.CancelledError:
        await asyncio.shield(_forget(box, made))
        raise


async def _forget(box: Box, path: str) -> None:
    with contextlib.suppress(BoxError, TimeoutError):  # a leftover does no harm
        async with time_limit(_FORGET_SECONDS):
            await box.files.delete(path, recursive=True)
