"""The kernel of a box, from the host: a fork server of contexts, started once and found again by later processes."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from holdfast.api.box.box import Box
from holdfast.api.box.process import Process, ProcessState
from holdfast.api.errors.boxes import BoxConflict, BoxError, BoxUnreachable, CannotExecute
from holdfast.api.errors.interpreters import KernelLost, KernelUnreachable, NoPython
from holdfast.box_json import parse
from holdfast.boxes import guest_archive
from holdfast.interpreter.kernel.context import Context
from holdfast.interpreter.kernel.endpoint import KernelEndpoint
from holdfast.time_limit import time_limit

_ENTRY: Final = "holdfast.guest.kernel.boot"
_EARLY: Final = (
    "_collections", "_ctypes", "_socket", "_thread", "binascii", "builtins", "fcntl", "gc", "io", "resource", "site",
    "struct", "time",
)  # fmt: skip
_HUGE_PAGES: Final = {
    "GLIBC_TUNABLES": f"glibc.malloc.hugetlb=1:glibc.malloc.mmap_threshold={4 << 20}"
    f":glibc.malloc.trim_threshold={16 << 20}"
}
"""Use few, large pages where the machine has them, because a fork copies the page table. Allocations below 4 MB come
from the heap, which has large pages too; alone, each would be too small for one."""
START_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True)
class ContextInfo:
    id: str
    pid: int | None
    """None if the context has ended."""
    code: int | None = None


class Kernel:
    """The fork server of a box, and the contexts that this process uses. After `close`, the kernel goes on running, and
    `attach` finds it again."""

    def __init__(self, endpoint: KernelEndpoint, process: str) -> None:
        self.endpoint = endpoint
        self.process = process
        self._contexts: dict[str, Context] = {}

    @property
    def box(self) -> Box:
        return self.endpoint.box

    @classmethod
    async def start(
        cls,
        box: Box,
        *,
        python: Sequence[str] | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        memory: int | None = None,
        orphan_seconds: float | None = None,
    ) -> Kernel:
        """`python` runs the user's code; the default is the Python that comes with the box. `memory` limits each
        context, in bytes. With `orphan_seconds`, the kernel ends after this many seconds without a host."""
        token = secrets.token_hex(16)
        argv = guest_archive.boot_argv(python or await box.python(), _ENTRY, _EARLY)
        try:
            process = await box.spawn(argv, env={**(env or {}), **_HUGE_PAGES}, cwd=cwd, stdin=True, tree=True)
        except CannotExecute as error:
            raise NoPython(
                f"box {box.id} has no Python to run: {error.message}",
                hint="use a template or an image with Python 3.9 or later",
            ) from None
        try:
            config = {
                "token": token, "cwd": cwd, "memory": memory, "alone": orphan_seconds, "forget": list(_HUGE_PAGES),
            }  # fmt: skip
            archive = await cls.prepare()
            with contextlib.suppress(BoxConflict):  # it has ended: its output tells why
                await process.write(guest_archive.stdin_of(archive, config))
                await process.close_stdin()
            port = await _read_port(process)
        except BaseException:
            with contextlib.suppress(BoxError):
                await process.kill()
            raise
        return cls(KernelEndpoint(box, port, token, orphan_seconds), process.id)

    @staticmethod
    async def prepare() -> bytes:
        """The archive that a fork server is started with. Slow the first time, so it can be packed while a box is
        created."""
        return await asyncio.to_thread(guest_archive.pack, [_ENTRY])

    @classmethod
    async def attach(
        cls, box: Box, process: str, token: str, *, port: int | None = None, orphan_seconds: float | None = None
    ) -> Kernel:
        """Find a kernel that any process started earlier. Raises `KernelLost` if it has ended. With `port`, nothing is
        checked before the first connection. Raises `BoxUnreachable` if it is not known whether it has ended."""
        if port is None:
            try:
                found = await box.process(process)
                state = (await found.info()).state
            except BoxUnreachable:
                raise
            except BoxError as error:
                raise KernelLost(f"the kernel of box {box.id} is gone: {error.message}") from None
            if state is not ProcessState.RUNNING:
                raise KernelLost(f"the kernel of box {box.id} has ended")
            port = await _read_port(found)
        return cls(KernelEndpoint(box, port, token, orphan_seconds), process)

    async def context(self, id: str = "main", *, make: bool = True, begun: Sequence[str] = ()) -> Context:
        """Return the context with this id, connected. Creates it if it does not exist and `make` is true. `begun` are
        executions that an earlier process began: their results are kept for `resume`."""
        context = self._contexts.get(id)
        if context is None or context.is_closed:
            context = Context(self.endpoint, id)
            context.expect(begun)
            await context.connect(make=make)
            self._contexts[id] = context
        return context

    async def contexts(self) -> list[ContextInfo]:
        answer = await self.endpoint.ask({"t": "contexts"})
        living = [ContextInfo(str(each["id"]), int(each["pid"])) for each in answer["living"]]
        return living + [ContextInfo(str(id), None, int(code)) for id, code in answer["ended"].items()]

    async def end(self) -> None:
        """End the fork server and all of its contexts."""
        await self.close()
        with contextlib.suppress(BoxError):
            await (await self.box.process(self.process)).kill()

    async def close(self) -> None:
        for context in list(self._contexts.values()):
            await context.close()
        self._contexts.clear()


async def _read_port(process: Process) -> int:
    """Read the port from the first line that the kernel prints."""
    try:
        async with time_limit(START_SECONDS):
            received = b""
            async for chunk in process.output():
                received += chunk.data
                if b"\n" in received or len(received) > 4096:
                    return int(parse(received.partition(b"\n")[0])["port"])
        errors = (await process.read("stderr")).decode("utf-8", "replace").strip()[-500:]
    except TimeoutError:
        raise KernelUnreachable("the kernel did not start in time") from None
    except (ValueError, KeyError, TypeError):
        raise KernelUnreachable("the kernel printed no port") from None
    raise NoPython(
        f"the kernel did not start: {errors or 'it printed no error'}",
        hint="it needs Python 3.9 or later in the box: use a template or an image that has one",
    )
