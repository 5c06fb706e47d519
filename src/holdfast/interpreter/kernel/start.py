"""How a box gets its kernel, and how the one that it has is found again: by this process, or by another one.

Boxes of the pool have one ahead: starting a Python takes longer than all else that there is to do.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from holdfast.api.box.box import Box
from holdfast.api.errors.boxes import BoxError
from holdfast.api.errors.interpreters import KernelLost, KernelUnreachable, NoPython
from holdfast.interpreter.bridge.calls import Handler
from holdfast.interpreter.kernel.context import Context
from holdfast.interpreter.kernel.kernel import Kernels

LABEL: Final = "interpreter"
"""Of the boxes of interpreters: its id."""
MAIN: Final = "main"
"""The context that an interpreter uses."""
_NOTE: Final = "/tmp/.holdfast-kernel.json"
"""Where a box keeps how its kernel is reached."""


async def start_kernel(
    box: Box, *, python: Sequence[str] | None = None, memory: int | None = None, alone: float | None = None
) -> Kernels:
    """`python`: the image's own where nothing is said, which has its packages; else the one that comes with the box."""
    if python is None and box.spec.image is not None:
        with suppress(NoPython):
            return await Kernels.start(box, python=["python3"], cwd=box.spec.workdir, memory=memory, alone=alone)
    return await Kernels.start(box, python=python, cwd=box.spec.workdir, memory=memory, alone=alone)


async def note_kernel(kernels: Kernels) -> None:
    told = {"process": kernels.process, "port": kernels.port, "token": kernels.token}
    await kernels.box.files.write(_NOTE, json.dumps(told).encode(), mode=0o600)


async def find_kernel(box: Box, *, is_new: bool = False, alone: float | None = None) -> Kernels | None:
    """The one that was started in this box earlier, with all that it has in memory. `alone` holds from now on.

    In a new box it is not looked at first: nothing else can listen at its port.
    """
    try:
        told = json.loads(await box.files.read(_NOTE))
        port = int(told["port"]) if is_new else None
        return await Kernels.attach(box, str(told["process"]), str(told["token"]), port=port, alone=alone)
    except (BoxError, KernelLost, KernelUnreachable, NoPython, ValueError, KeyError, TypeError):
        return None


@dataclass(frozen=True, slots=True)
class OpenKernel:
    """The kernel of a box, and the context that an interpreter uses."""

    kernels: Kernels
    context: Context
    is_found: bool
    """An earlier process started it: what that had in memory is there."""


async def open_kernel(
    box: Box,
    handler: Handler,
    *,
    is_new: bool,
    keep: bool,
    python: Sequence[str] | None,
    memory: int | None,
    alone: float | None,
    begun: Sequence[str],
) -> OpenKernel:
    """Find the kernel of a box, or start one. `is_new`: nobody has used the box, so a kernel in it is a plain one.
    `keep`: another process is to find it. `begun` are executions of an earlier process, to be resumed.

    Raises `KernelUnreachable` if a kernel that may have an earlier process's memory does not answer.
    """
    if not is_new or (python is None and memory is None):
        kernels = await find_kernel(box, is_new=is_new, alone=alone)
        if kernels is not None:
            try:
                return OpenKernel(kernels, await kernels.context(MAIN, handler=handler, begun=begun), not is_new)
            except KernelLost:
                pass
            except KernelUnreachable:
                # We cannot tell whether the state of an earlier process is lost. In a new box there is none.
                if not is_new:
                    raise
    kernels = await start_kernel(box, python=python, memory=memory, alone=alone)
    context = await kernels.context(MAIN, handler=handler)
    if keep:
        await note_kernel(kernels)
    return OpenKernel(kernels, context, False)


async def furnish(box: Box) -> None:
    """Have a kernel in a box that nobody has yet. Whoever gets the box has it to himself."""
    kernels = await start_kernel(box)
    await kernels.context(MAIN)
    await kernels.close()
    await note_kernel(kernels)
