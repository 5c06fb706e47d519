"""Services of a sprite: processes that its runtime starts with it, and again when they crash."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from holdfast.api.box.box import Box
from holdfast.api.box.process import Process
from holdfast.api.errors.boxes import BoxError

_RESTART_SECONDS: Final = 0.2
_GRACE_SECONDS: Final = 3.0


@dataclass(slots=True)
class Service:
    name: str
    definition: dict[str, Any]
    wanted: bool = True
    """It runs, or is started again. False after an explicit stop."""
    status: str = "stopped"
    restarts: int = 0
    started_at: datetime | None = None
    error: str | None = None
    process: Process | None = None
    task: asyncio.Task[None] | None = field(default=None)

    def describe(self) -> dict[str, Any]:
        state = {"name": self.name, "status": self.status, "restart_count": self.restarts, "error": self.error}
        if self.started_at is not None:
            state["started_at"] = self.started_at.isoformat()
        return {"name": self.name, "args": [], "needs": [], "env": {}, **self.definition, "state": state}


class Services:
    """All services of one sprite. `box` is replaced when the sprite is restored."""

    def __init__(self, box: Box) -> None:
        self.box = box
        self._services: dict[str, Service] = {}

    def __iter__(self) -> Iterator[Service]:
        return iter(self._services.values())

    def get(self, name: str) -> Service | None:
        return self._services.get(name)

    async def put(self, name: str, definition: dict[str, Any]) -> Service:
        await self.remove(name)
        service = self._services[name] = Service(name, definition)
        await self.start(service)
        return service

    async def remove(self, name: str) -> bool:
        service = self._services.pop(name, None)
        if service is None:
            return False
        await self.stop(service)
        return True

    async def start(self, service: Service) -> None:
        if service.task is not None and not service.task.done():
            return
        service.wanted = True
        started = asyncio.Event()
        service.task = asyncio.create_task(self._supervise(service, started))
        await started.wait()

    async def stop(self, service: Service) -> None:
        service.wanted = False
        await self._end(service)

    async def boot(self) -> None:
        """Start what runs when a sprite starts, in the order of the services' needs."""
        for service in sorted(self, key=lambda each: len(each.definition.get("needs") or ())):
            if service.wanted:
                await self.start(service)

    async def shut_down(self) -> None:
        """End all services, and keep in mind which of them to start again."""
        for service in self:
            await self._end(service)

    async def _end(self, service: Service) -> None:
        if service.process is not None:
            with contextlib.suppress(BoxError, TimeoutError):
                await service.process.signal(signal.SIGTERM)
                await service.process.wait(_GRACE_SECONDS)
            with contextlib.suppress(BoxError):
                await service.process.kill()
        if service.task is not None:
            service.task.cancel()
            await asyncio.gather(service.task, return_exceptions=True)
        service.process = service.task = None
        service.status = "stopped"

    async def _supervise(self, service: Service, started: asyncio.Event) -> None:
        told = service.definition
        command = [told["cmd"], *(told.get("args") or ())]
        try:
            while service.wanted:
                try:
                    service.process = await self.box.spawn(command, env=told.get("env") or {}, cwd=told.get("dir"))
                except BoxError as error:
                    service.status, service.error = "failed", error.message
                else:
                    service.status, service.started_at = "running", datetime.now(UTC)
                    started.set()
                    with contextlib.suppress(BoxError):
                        await service.process.wait()
                    service.status = "stopped"
                started.set()
                service.restarts += 1
                await asyncio.sleep(_RESTART_SECONDS)
        finally:
            started.set()
