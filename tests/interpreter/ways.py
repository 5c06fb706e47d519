"""The two ways to a kernel: a connection to its box, and a box that can only be asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.boxes.box import Box, Deleted, Metrics, Power, Preview, Step
from holdfast.boxes.errors import Unsupported
from holdfast.boxes.process import Channel, Completed, Connection, Process, ProcessInfo
from holdfast.boxes.snapshots import Snapshot


class AskedBox(Box):
    """A real box of a provider that has requests and answers only: no port and no channel of it can be reached."""

    def __init__(self, box: Box) -> None:
        self._box = box
        self.id = box.id
        self.info = box.info
        self.files = box.files
        self.requests = 0
        self.fail_next: list[BaseException] = []
        """What the next requests end with, after they were carried out: their answers are lost."""

    async def exec(self, argv: Sequence[str], **more: Any) -> Completed:
        self.requests += 1
        done = await self._box.exec(argv, **more)
        if self.fail_next:
            raise self.fail_next.pop(0)
        return done

    async def spawn(self, argv: Sequence[str], **more: Any) -> Process:
        return await self._box.spawn(argv, **more)

    async def python(self) -> tuple[str, ...]:
        return await self._box.python()

    async def process(self, id: str) -> Process:
        return await self._box.process(id)

    async def processes(self) -> list[ProcessInfo]:
        return await self._box.processes()

    async def channel(
        self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, cwd: str | None = None
    ) -> Channel:
        raise Unsupported("this provider has no channels")

    async def connect(self, port: int) -> Connection:
        raise Unsupported("this provider has no connect")

    async def preview(self, port: int) -> Preview:
        raise Unsupported("this provider has no preview")

    async def power(self) -> Power:
        return await self._box.power()

    async def stop(self) -> None:
        await self._box.stop()

    async def start(self) -> None:
        await self._box.start()

    async def delete(self) -> Deleted:
        return await self._box.delete()

    async def snapshot(self, *, labels: Mapping[str, str] | None = None) -> Snapshot:
        return await self._box.snapshot(labels=labels)

    async def fork(self, *, id: str | None = None, labels: Mapping[str, str] | None = None) -> Box:
        return AskedBox(await self._box.fork(id=id, labels=labels))

    async def metrics(self) -> Metrics:
        return await self._box.metrics()

    async def ping(self) -> list[Step]:
        return await self._box.ping()

    async def close(self) -> None:
        await self._box.close()
