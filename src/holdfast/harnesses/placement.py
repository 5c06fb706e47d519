"""Has an agent where a box can run it: seen from its machine, or copied into it once.

A copy is made aside and renamed: one that was cut short is made again, and two at once do no harm.
"""

from __future__ import annotations

import asyncio
import contextlib
import platform
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from holdfast.boxes.box import Box
from holdfast.boxes.errors import BoxError, CannotExecute, ExecTimeout, FileExists, FileProblem, WrongFileKind
from holdfast.harnesses.errors import CannotInstall
from holdfast.harnesses.harness import Harness
from holdfast.harnesses.installation import Installed, OnProgress, Tools, processor
from holdfast.harnesses.node import fits
from holdfast.threads.ids import new_id
from holdfast.time_limit import time_limit

_PROBE_SECONDS: Final = 30.0
_FORGET_SECONDS: Final = 30.0
_MOST: Final = 16_384
_PROBE: Final = 'printf "%s\\n" "$HOME"; uname -m; node --version 2>/dev/null || echo none'


@dataclass(frozen=True, slots=True)
class Placed:
    """Where a box has an agent: what a `Place` needs of it."""

    program: str
    """The folder. Empty for an agent that is not ours to install."""
    node: str
    version: str | None


async def ensure(box: Box, harness: Harness, tools: Tools, *, on_progress: OnProgress | None = None) -> Placed:
    """Install the agent on this machine where it is not, and have it in the box. Raises `CannotInstall`."""
    if harness.package is None:
        return Placed("", "node", None)
    if box.tools is not None:
        installed = await tools.install(harness, on_progress=on_progress)
        # Not seen by a box that was started before there were tools, or that has something else in their place.
        if await box.files.exists(f"{box.tools}/{installed.folder.name}/installed.json"):
            node = await _seen_node(box, f"{box.tools}/{_node_in(installed)}", installed, harness)
            return Placed(f"{box.tools}/{installed.folder.name}", node, installed.version)
    return await _copied(box, harness, tools, on_progress)


# --- seen -------------------------------------------------------------------------------------------------------------


async def _seen_node(box: Box, ours: str, installed: Installed, harness: Harness) -> str:
    """Ours runs with the machine's own libraries; an image may lack those, and have a node of its own."""
    if box.spec.image is None or not await asyncio.to_thread(_is_script, installed, harness) or await _runs(box, ours):
        return ours
    if await _runs(box, "node"):
        return "node"
    raise _no_node(harness)


def _node_in(installed: Installed) -> str:
    return f"{installed.node.parent.parent.name}/bin/node"


def _no_node(harness: Harness) -> CannotInstall:
    return CannotInstall(
        f"{harness.title} needs node, and ours does not run in this box",
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
        raise CannotInstall(f"nothing can be copied into the box: {error.message}", hint=error.hint) from None
    told = done.stdout.decode(errors="replace").splitlines()
    if len(told) < 3 or not told[0].startswith("/"):
        raise CannotInstall("the box does not say where its home is", hint="use an image with a shell and a home")
    home, machine, own_node = told[:3]
    installed = await tools.install(harness, cpu=processor(machine), on_progress=on_progress)
    folder = f"{home.rstrip('/')}/.holdfast/tools"
    node = "node"
    if not fits(own_node) and await asyncio.to_thread(_is_script, installed, harness):
        if processor(machine) != processor(platform.machine()) or platform.system() != "Linux":
            raise CannotInstall(
                f"{harness.title} needs node, of which there is none for {machine} here",
                hint="use an image that has node 22.19 or newer",
            )
        await _copy(box, installed.node.parent.parent, f"{folder}/{installed.node.parent.parent.name}")
        node = f"{folder}/{_node_in(installed)}"
        if not await _runs(box, node):
            raise _no_node(harness)
    await _copy(box, installed.folder, f"{folder}/{installed.folder.name}")
    return Placed(f"{folder}/{installed.folder.name}", node, installed.version)


def _is_script(installed: Installed, harness: Harness) -> bool:
    """Whether node runs the agent's program; else it is one of its own."""
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
            return  # another was quicker
        raise CannotInstall(f"the agent cannot be copied into the box: {error.message}", hint=error.hint) from None
    except asyncio.CancelledError:
        await asyncio.shield(_forget(box, made))
        raise


async def _forget(box: Box, path: str) -> None:
    with contextlib.suppress(BoxError, TimeoutError):  # it is in nobody's way
        async with time_limit(_FORGET_SECONDS):
            await box.files.delete(path, recursive=True)
