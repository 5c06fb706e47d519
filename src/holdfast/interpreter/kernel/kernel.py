"""The kernel of a box, from the host: a fork server of contexts, which is started once and found again by anybody."""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from holdfast.api.box.box import Box
from holdfast.api.box.process import Connection, Process, ProcessState
from holdfast.api.errors.boxes import (
    BoxConflict,
    BoxError,
    BoxGone,
    BoxNotFound,
    BoxStopped,
    CannotExecute,
    ConnectRefused,
    Unsupported,
)
from holdfast.api.errors.interpreters import KernelLost, KernelUnreachable, NoPython
from holdfast.boxes import guest_archive
from holdfast.guest.kernel.protocol import Garbage, Unpacker, pack
from holdfast.interpreter.bridge.calls import Handler
from holdfast.interpreter.kernel.context import CONNECT_SECONDS, Context
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
"""Values in few, large pages, where the machine has such: a fork copies the list of pages. What is below 4 MB comes
from the heap, which has such pages, too: by itself it would be too small for one."""
START_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True)
class ContextInfo:
    id: str
    pid: int | None
    """None where it has ended."""
    code: int | None = None


class Kernels:
    """The fork server of a box. Closing lets go of it: it lives on, and `attach` finds it again."""

    def __init__(self, box: Box, process: str, port: int, token: str, alone: float | None = None) -> None:
        self.box = box
        self.process = process
        self.port = port
        self.token = token
        self.alone = alone
        """Told with every attach: who started it may not have known."""
        self._contexts: dict[str, Context] = {}

    @classmethod
    async def start(
        cls,
        box: Box,
        *,
        python: Sequence[str] | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        memory: int | None = None,
        alone: float | None = None,
    ) -> Kernels:
        """`python` is what the user's code runs on: the box's own, where nothing is said. `memory` bounds each
        context, in bytes. `alone`: it ends by itself after so many seconds without a host."""
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
            config = {"token": token, "cwd": cwd, "memory": memory, "alone": alone, "forget": list(_HUGE_PAGES)}
            archive = await cls.prepare()
            with contextlib.suppress(BoxConflict):  # it has ended: what it says tells why
                await process.write(guest_archive.stdin_of(archive, config))
                await process.close_stdin()
            port = await _port_of(process)
        except BaseException:
            with contextlib.suppress(BoxError):
                await process.kill()
            raise
        return cls(box, process.id, port, token, alone)

    @staticmethod
    async def prepare() -> bytes:
        """What a fork server is started with. Takes a while the first time: it can be had while a box is made."""
        return await asyncio.to_thread(guest_archive.pack, [_ENTRY])

    @classmethod
    async def attach(
        cls, box: Box, process: str, token: str, *, port: int | None = None, alone: float | None = None
    ) -> Kernels:
        """The fork server that was started earlier, by any process. Raises `KernelLost` if it has ended. With `port`
        nothing is checked: then the first connection finds out."""
        if port is not None:
            return cls(box, process, port, token, alone)
        try:
            found = await box.process(process)
            state = (await found.info()).state
        except BoxError as error:
            raise KernelLost(f"the kernel of box {box.id} is no more: {error.message}") from None
        if state is not ProcessState.RUNNING:
            raise KernelLost(f"the kernel of box {box.id} has ended")
        return cls(box, process, await _port_of(found), token, alone)

    async def context(
        self, id: str = "main", *, handler: Handler | None = None, make: bool = True, begun: Sequence[str] = ()
    ) -> Context:
        """The context of that name: made where it is not there. `begun` are executions of an earlier process: what
        comes of them is kept for `resume`."""
        context = self._contexts.get(id)
        if context is None:
            context = Context(self, id, handler)
            context.expect(begun)
            await context.connect(make=make)
            self._contexts[id] = context
        elif handler is not None:
            context.handler = handler
        return context

    async def contexts(self) -> list[ContextInfo]:
        answer = await self._ask({"t": "contexts"})
        living = [ContextInfo(str(each["id"]), int(each["pid"])) for each in answer["living"]]
        return living + [ContextInfo(str(id), None, int(code)) for id, code in answer["ended"].items()]

    async def signal(self, context: str, number: int) -> bool:
        """Whether there was somebody to get it."""
        return bool((await self._ask({"t": "signal", "context": context, "number": number}))["living"])

    async def end(self) -> None:
        """End the fork server and all of its contexts."""
        await self.close()
        with contextlib.suppress(BoxError):
            await (await self.box.process(self.process)).kill()

    async def close(self) -> None:
        for context in list(self._contexts.values()):
            await context.close()
        self._contexts.clear()

    def forget(self, context: Context) -> None:
        if self._contexts.get(context.id) is context:
            del self._contexts[context.id]

    def adopt(self, context: Context) -> None:
        self._contexts[context.id] = context

    async def connect(self) -> Connection:
        try:
            async with time_limit(CONNECT_SECONDS):
                return await self.box.connect(self.port)
        except Unsupported:
            raise  # by its name: the box's provider cannot have interpreters
        except (ConnectRefused, BoxGone, BoxNotFound, BoxStopped) as error:
            raise KernelLost(f"the kernel of box {self.box.id} has ended: {error.message}") from None
        except (BoxError, TimeoutError) as error:
            raise KernelUnreachable(
                f"the kernel of box {self.box.id} cannot be reached: {error}",
                hint=f"holdfast box diagnose {self.box.id}",
            ) from None

    async def _ask(self, document: dict[str, Any]) -> dict[str, Any]:
        async with await self.connect() as connection:
            await connection.write(pack({**document, "token": self.token}))
            unpacker = Unpacker(0)
            try:
                async with time_limit(CONNECT_SECONDS):
                    while data := await connection.read():
                        for answer, _ in unpacker.take(data):
                            if answer["t"] == "refused":
                                raise KernelUnreachable(f"the kernel refused: {answer.get('why')}")
                            return answer
            except (Garbage, TimeoutError, OSError, BoxError) as error:
                raise KernelUnreachable(f"the kernel of box {self.box.id} does not answer: {error}") from None
        raise KernelUnreachable(f"the kernel of box {self.box.id} hung up")


async def _port_of(process: Process) -> int:
    """As it prints it, in its first line."""
    try:
        async with time_limit(START_SECONDS):
            received = b""
            async for chunk in process.output():
                received += chunk.data
                if b"\n" in received or len(received) > 4096:
                    return int(json.loads(received.partition(b"\n")[0])["port"])
        said = (await process.read("stderr")).decode("utf-8", "replace").strip()[-500:]
    except TimeoutError:
        raise KernelUnreachable("the kernel did not start in time") from None
    except (ValueError, KeyError, TypeError):
        raise KernelUnreachable("the kernel says what makes no sense") from None
    raise NoPython(
        f"the kernel did not start: {said or 'it said nothing'}",
        hint="it needs Python 3.9 or later in the box: use a template or an image that has one",
    )
