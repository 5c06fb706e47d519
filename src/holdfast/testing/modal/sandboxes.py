"""Sandboxes of the counterpart of Modal: each is a real local box, from its creation to its result."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import ssl
import string
import time
from collections.abc import Mapping, Sequence
from typing import Final

from modal_proto import api_pb2

from holdfast.api.box.box import Box
from holdfast.api.box.process import Process, Stream
from holdfast.api.errors.boxes import BoxError
from holdfast.testing.modal import fs_tools
from holdfast.testing.modal.execs import Exec, PipedExec, TerminalExec
from holdfast.testing.modal.tunnels import HOST, Tunnel

log = logging.getLogger(__name__)

_LETTERS: Final = string.ascii_letters + string.digits
_V1_LENGTH: Final = 22
"""The SDK derives from the length of the id which methods a sandbox has."""
_V2_LENGTH: Final = 26
_FOREVER: Final = ("sleep", "172800")
_KEPT: Final = 1 << 20
"""Bytes of each stream of the first command that are readable after its end."""
_IDLE_POLL: Final = 0.2
Result = api_pb2.GenericResult


def random_id(prefix: str, length: int = _V1_LENGTH) -> str:
    return f"{prefix}-{''.join(secrets.choice(_LETTERS) for _ in range(length))}"


class Sandbox:
    """One sandbox. Its local box is removed when it finishes or is ended."""

    def __init__(self, definition: api_pb2.Sandbox, app_id: str, tags: Mapping[str, str], *, v1: bool) -> None:
        self.id = random_id("sb", _V1_LENGTH if v1 else _V2_LENGTH)
        self.task_id = random_id("ta") if v1 else random_id("ta", _V1_LENGTH - 1) + "V"
        self.definition = definition
        self.network = definition.network_access
        self.app_id = app_id
        self.tags = dict(tags)
        self.created_at = time.time()
        self.result: Result | None = None
        self.finished = asyncio.Event()
        self.execs: dict[str, Exec] = {}
        self.entry: Process | None = None
        self.entry_written = 0
        self.entry_output: dict[Stream, bytes] = {}
        """The output of the first command, once the sandbox has finished."""
        self.tunnels: list[Tunnel] = []
        self._box: Box | None = None
        self._env: dict[str, str] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._finishing = asyncio.Lock()

    @property
    def name(self) -> str:
        return self.definition.name

    @property
    def box(self) -> Box:
        assert self._box is not None
        return self._box

    @property
    def metadata(self) -> api_pb2.SandboxHandleMetadata:
        return api_pb2.SandboxHandleMetadata(app_id=self.app_id, result=self.result)

    async def start(self, box: Box, env: Mapping[str, str], context: ssl.SSLContext) -> None:
        self._box = box
        self._env = dict(env)
        for spec in self.definition.open_ports.ports:
            tunnel = Tunnel(box, spec.port, not spec.unencrypted)
            await tunnel.open(context)
            self.tunnels.append(tunnel)
        argv = list(self.definition.entrypoint_args) or list(_FOREVER)
        self.entry = await box.spawn(argv, env=env, cwd=self.definition.workdir or None, stdin=True)
        self._tasks = [
            asyncio.create_task(self._watch(self.entry)),
            asyncio.create_task(self._expire()),
            asyncio.create_task(self._tire()),
        ]

    async def _watch(self, entry: Process) -> None:
        code = 137
        with contextlib.suppress(BoxError):
            code = await entry.wait()
        status = Result.GENERIC_STATUS_SUCCESS if code == 0 else Result.GENERIC_STATUS_FAILURE
        await self.finish(Result(status=status, exitcode=code))

    async def _expire(self) -> None:
        await asyncio.sleep(self.definition.timeout_secs or 300)
        await self.finish(Result(status=Result.GENERIC_STATUS_TIMEOUT, exitcode=124))

    async def _tire(self) -> None:
        """End after the idle timeout, if there is one: the time without any command but the first."""
        seconds = self.definition.idle_timeout_secs
        idle_since = time.monotonic()
        while seconds:
            await asyncio.sleep(_IDLE_POLL)
            if any(not each.ended.is_set() for each in self.execs.values()):
                idle_since = time.monotonic()
            elif time.monotonic() - idle_since > seconds:
                await self.finish(Result(status=Result.GENERIC_STATUS_TERMINATED, exitcode=137))
                return

    async def finish(self, result: Result) -> None:
        """End everything in it. Only the first call has an effect."""
        async with self._finishing:
            if self.result is not None:
                return
            for each in self.execs.values():
                await each.kill()
            for tunnel in self.tunnels:
                await tunnel.close()
            if self.entry is not None:
                streams: tuple[Stream, ...] = ("stdout", "stderr")
                with contextlib.suppress(BoxError):
                    self.entry_output = {each: await self.entry.read(each, limit=_KEPT) for each in streams}
            if self._box is not None:
                try:
                    await self._box.delete()
                except BoxError as error:
                    log.warning("sandbox %s is not cleared away: %s", self.id, error)
            self.result = result
            self.finished.set()
        for task in self._tasks:
            if task is not asyncio.current_task():
                task.cancel()

    async def close(self) -> None:
        """End it, and wait for its tasks."""
        await self.finish(Result(status=Result.GENERIC_STATUS_TERMINATED, exitcode=137))
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def execute(
        self,
        id: str,
        argv: Sequence[str],
        env: Mapping[str, str],
        cwd: str | None,
        timeout: float | None,
        terminal: tuple[int, int] | None,
    ) -> None:
        """Start a command, unless an earlier attempt with the same id has started it and its answer was lost."""
        if id in self.execs:
            return
        argv = fs_tools.command(argv)
        whole = {**self._env, **env}
        cwd = cwd or self.definition.workdir or None
        if terminal is None:
            self.execs[id] = PipedExec(self.box, argv, whole, cwd, timeout)
            return
        rows, columns = terminal
        process = await self.box.spawn(argv, env=whole, cwd=cwd, pty=True, rows=rows or 24, columns=columns or 80)
        self.execs[id] = TerminalExec(process)

    def tunnel_data(self) -> list[api_pb2.TunnelData]:
        made = []
        for each in self.tunnels:
            data = api_pb2.TunnelData(host=HOST, port=each.port, container_port=each.container_port)
            if not each.encrypted:
                data.unencrypted_host, data.unencrypted_port = HOST, each.port
            made.append(data)
        return made
