"""Sandboxes that have no box yet, because what they begin with is still pulled or built.

They are answered at once, as Daytona does, so that clients can follow the build. They live in memory: with the server
the build ends, and there is no sandbox.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Final

from holdfast.api.errors import HoldfastError
from holdfast.compat.daytona.http.errors import ApiError, api_error, conflict
from holdfast.compat.daytona.sandbox_record import Sandbox
from holdfast.compat.daytona.snapshot.build_log import BuildLog

_MOST_BUILDS: Final = 20
_MOST_FAILED: Final = 100
_MOST_LOGS: Final = 100
log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Build:
    sandbox: Sandbox
    build_log: BuildLog = field(default_factory=BuildLog)
    task: asyncio.Task[None] | None = None


class Pending:
    """Owns the tasks that build, until `close`."""

    def __init__(self, tell: Callable[[Sandbox], object]) -> None:
        self._tell = tell
        self._builds: dict[str, _Build] = {}
        self._logs: dict[str, BuildLog] = {}
        """Also of builds that have ended: clients may still follow them."""

    def find(self, id_or_name: str) -> Sandbox | None:
        if (build := self._builds.get(id_or_name)) is not None:
            return build.sandbox
        return next((each for each in self.all() if each.record.name == id_or_name), None)

    def all(self) -> list[Sandbox]:
        """Newest first."""
        return [build.sandbox for build in reversed(self._builds.values())]

    def log_of(self, id: str) -> BuildLog | None:
        return self._logs.get(id)

    def begin(self, sandbox: Sandbox, make: Callable[[Callable[[str], None]], Awaitable[object]]) -> Sandbox:
        """Begin to build. `make` gets what takes the lines of the log, and leaves a sandbox with a box."""
        if self.find(sandbox.record.name) is not None:
            raise conflict(f"Sandbox with name {sandbox.record.name} already exists")
        if sum(build.task is not None for build in self._builds.values()) >= _MOST_BUILDS:
            raise ApiError(429, f"this server builds at most {_MOST_BUILDS} sandboxes at once")
        build = self._builds[sandbox.id] = _Build(replace(sandbox, phase="pending_build"))
        self._logs[sandbox.id] = build.build_log
        while len(self._logs) > _MOST_LOGS:
            self._logs.pop(next(iter(self._logs)))
        build.task = asyncio.create_task(self._run(build, make), name=f"building sandbox {sandbox.id}")
        return build.sandbox

    async def _run(self, build: _Build, make: Callable[[Callable[[str], None]], Awaitable[object]]) -> None:
        build.sandbox = replace(build.sandbox, phase="building_snapshot")
        self._tell(build.sandbox)
        try:
            await make(build.build_log.add)
            self._builds.pop(build.sandbox.id, None)
        except Exception as error:
            if not isinstance(error, (ApiError, HoldfastError)):
                log.exception("sandbox %s could not be built", build.sandbox.id)
            message = api_error(error).message
            build.build_log.add(message)
            build.task = None
            # Told to no listener: the SDKs take the state alone from an event, and would raise an error without a
            # reason. They ask every second anyway, and then get both.
            build.sandbox = replace(build.sandbox, phase="build_failed", problem=message)
            failed = [id for id, each in self._builds.items() if each.task is None]
            for id in failed[:-_MOST_FAILED]:
                del self._builds[id]
        finally:
            build.build_log.end()

    async def remove(self, id: str) -> None:
        """End a build, or forget a failed one."""
        build = self._builds.pop(id, None)
        if build is not None and build.task is not None:
            build.task.cancel()
            await asyncio.gather(build.task, return_exceptions=True)

    async def close(self) -> None:
        for id in list(self._builds):
            await self.remove(id)
