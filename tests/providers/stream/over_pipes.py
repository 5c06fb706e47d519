"""A provider for tests: boxes as plain processes, each reached over the pipes of a bridge beside its guest."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from holdfast.api.box.box import Box, BoxInfo, Power, Wake
from holdfast.api.box.spec import BoxSpec
from holdfast.api.errors.boxes import BoxError, BoxGone, BoxStopped, BoxUnreachable
from holdfast.guest.init import codec
from holdfast.providers.host.guest_client import GuestClient
from holdfast.providers.process import ProcessProvider
from holdfast.providers.stream import PipeTransport, StreamBox, StreamGuestClient, Transport, bridge_command

GUEST = str(Path(codec.__file__).parent)


class ProcessTransport(PipeTransport):
    """The stdin and stdout of a bridge, which ends with it."""

    def __init__(self, argv: list[str], env: Mapping[str, str] | None = None, patience: float = 3.0) -> None:
        process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=dict(env or {}))
        assert process.stdin is not None
        assert process.stdout is not None
        super().__init__(os.dup(process.stdout.fileno()), os.dup(process.stdin.fileno()))
        process.stdin.close()
        process.stdout.close()
        self.process = process
        self._patience = patience

    async def close(self) -> None:
        await super().close()
        try:
            await asyncio.to_thread(self.process.wait, self._patience)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class PipesBox(StreamBox):
    def __init__(self, provider: PipesProvider, info: BoxInfo, wake: Wake | None = None) -> None:
        super().__init__(
            info,
            provider.lifecycle,
            provider.guest(info.id),
            wake,
            environment=provider.sandbox.environment(info),
            workdir=provider.sandbox.workdir(info),
        )
        self._provider = provider

    async def power(self) -> Power:
        return self._provider.power.get(self.id)

    async def stop(self) -> None:
        await super().stop()
        await self.guest.close()


class PipesProvider(ProcessProvider):
    name = "pipes"

    def __init__(self, folder: Path, python: str = sys.executable) -> None:
        super().__init__(folder)
        self.python = python
        self.transports: dict[str, ProcessTransport] = {}
        """The latest of each box."""
        self._guests: dict[str, StreamGuestClient] = {}

    def guest(self, id: str) -> StreamGuestClient:
        folder = self.data_dir.box(id)

        async def verdict() -> BoxError | None:
            if not folder.exists():
                return BoxGone(f"box {id} is gone")
            if not GuestClient(id, folder).alive():
                return BoxStopped(f"box {id} is stopped", hint="start it")
            return None

        async def dial() -> Transport:
            if (error := await verdict()) is not None:
                raise error
            try:
                self.transports[id] = ProcessTransport(bridge_command([self.python], GUEST, run=str(folder)))
            except FileNotFoundError:
                raise BoxUnreachable(f"box {id} cannot be dialled") from None
            return self.transports[id]

        if id not in self._guests:
            self._guests[id] = StreamGuestClient(id, dial, verdict)
        return self._guests[id]

    async def close(self) -> None:
        await asyncio.gather(*(guest.close() for guest in self._guests.values()))
        await super().close()

    async def create(self, spec: BoxSpec, *, id: str, labels: Mapping[str, str] | None = None) -> Box:
        made = await super().create(spec, id=id, labels=labels)
        return PipesBox(self, made.info)

    async def attach(self, id: str, *, wake: Wake | None = None) -> Box:
        return PipesBox(self, (await super().attach(id)).info, wake)

    async def remove(self, id: str) -> int:
        freed = await super().remove(id)
        if id in self._guests:
            await self._guests.pop(id).close()
        return freed
