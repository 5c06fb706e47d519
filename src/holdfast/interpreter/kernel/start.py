"""Starting the kernel of a box, and finding the one that a box already has.

Boxes of the pool get a kernel ahead of time, because starting Python is the slowest step.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from holdfast.api.box.box import Box
from holdfast.api.box.spec import BoxSpec
from holdfast.api.errors.boxes import BoxError, BoxUnreachable
from holdfast.api.errors.interpreters import KernelLost, KernelUnreachable, NoPython
from holdfast.box_json import parse
from holdfast.interpreter.kernel.context import Context
from holdfast.interpreter.kernel.kernel import Kernel

LABEL: Final = "interpreter"
"""The label of a box that names its interpreter."""
MAIN: Final = "main"
"""The context that an interpreter uses."""
_ADDRESS_FILE: Final = "/tmp/.holdfast-kernel.json"
"""A file in the box that says how to reach its kernel."""
_MOST_ADDRESS: Final = 4096


async def start_kernel(
    box: Box, *, python: Sequence[str] | None = None, memory: int | None = None, orphan_seconds: float | None = None
) -> Kernel:
    """Start a kernel. The default `python` is the one of the image, which has its packages, or else the one that comes
    with the box. Boxes on other machines and in containers always have an image, if only the default one: what comes
    with them is our guest's Python, which may lack most of the standard library."""
    options: dict[str, Any] = {"cwd": box.spec.workdir, "memory": memory, "orphan_seconds": orphan_seconds}
    has_image = box.spec.image is not None or box.spec.provider != BoxSpec().provider
    if python is None and has_image:
        with suppress(NoPython):
            return await Kernel.start(box, python=["python3"], **options)
    return await Kernel.start(box, python=python, **options)


async def write_address(kernel: Kernel) -> None:
    address = {"process": kernel.process, "port": kernel.endpoint.port, "token": kernel.endpoint.token}
    await kernel.box.files.write(_ADDRESS_FILE, json.dumps(address).encode(), mode=0o600)


async def find_kernel(box: Box, *, is_new: bool = False, orphan_seconds: float | None = None) -> Kernel | None:
    """Find the kernel that was started in this box earlier. `orphan_seconds` applies from now on.

    In a new box, its process is not checked: nothing else can listen on its port. Raises `KernelUnreachable` if it is
    not known whether there is one: its memory must not be replaced.
    """
    try:
        address = parse(await box.files.read(_ADDRESS_FILE, length=_MOST_ADDRESS))
        port = int(address["port"]) if is_new else None
        return await Kernel.attach(
            box, str(address["process"]), str(address["token"]), port=port, orphan_seconds=orphan_seconds
        )
    except BoxUnreachable as error:
        if is_new:
            return None
        raise KernelUnreachable(
            f"the kernel of box {box.id} cannot be reached: {error.message}", hint=f"holdfast box diagnose {box.id}"
        ) from None
    except (BoxError, KernelLost, KernelUnreachable, NoPython, ValueError, KeyError, TypeError):
        return None


@dataclass(frozen=True, slots=True)
class OpenKernel:
    """The kernel of a box, and the context that an interpreter uses."""

    kernel: Kernel
    context: Context
    is_found: bool
    """An earlier process started it, and its memory is intact."""


async def open_kernel(
    box: Box,
    *,
    is_new: bool,
    keep: bool,
    python: Sequence[str] | None,
    memory: int | None,
    orphan_seconds: float | None,
    begun: Sequence[str],
) -> OpenKernel:
    """Find the kernel of a box, or start one. `is_new`: the box was never used, so its kernel has default options and
    no state. `keep` lets another process find the kernel. `begun` are executions of an earlier process, to be resumed.

    Raises `KernelUnreachable` if a kernel that may hold the memory of an earlier process does not answer.
    """
    if not is_new or (python is None and memory is None):
        kernel = await find_kernel(box, is_new=is_new, orphan_seconds=orphan_seconds)
        if kernel is not None:
            try:
                return OpenKernel(kernel, await kernel.context(MAIN, begun=begun), not is_new)
            except KernelLost:
                pass
            except KernelUnreachable:
                # We cannot tell whether the state of an earlier process is lost. In a new box there is none.
                if not is_new:
                    raise
    kernel = await start_kernel(box, python=python, memory=memory, orphan_seconds=orphan_seconds)
    context = await kernel.context(MAIN)
    if keep:
        await write_address(kernel)
    return OpenKernel(kernel, context, False)


async def start_ahead(box: Box) -> None:
    """Start a kernel in a box of the pool, for the interpreter that gets the box."""
    kernel = await start_kernel(box)
    await kernel.context(MAIN)
    await kernel.close()
    await write_address(kernel)
