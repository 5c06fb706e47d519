"""How a box gets its kernel, and how the one that it has is found again: by this process, or by another one.

Boxes of the pool have one ahead: starting a Python takes longer than all else that there is to do.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from holdfast.boxes.box import Box
from holdfast.boxes.errors import BoxError
from holdfast.interpreter.errors import KernelLost, KernelUnreachable, NoPython
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


async def furnish(box: Box) -> None:
    """Have a kernel in a box that nobody has yet. Whoever gets the box has it to himself."""
    kernels = await start_kernel(box)
    await kernels.context(MAIN)
    await kernels.close()
    await note_kernel(kernels)
