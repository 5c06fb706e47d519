"""A box on a server, with the same contract as any other box."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
from collections.abc import AsyncIterable, Mapping, Sequence
from dataclasses import fields
from inspect import isawaitable
from typing import Any, Final

from holdfast.api.box.box import Box, Deleted, Metrics, Power
from holdfast.api.box.network import NetworkPolicy
from holdfast.api.box.process import (
    MAX_OUTPUT,
    Channel,
    Command,
    Completed,
    Connection,
    ExecuteFrames,
    ProcessInfo,
    ProcessList,
    Sink,
    Spawn,
)
from holdfast.api.box.records import BoxPython, BoxRecord, Freed, Preview, Step, Steps
from holdfast.api.box.snapshots import NewSnapshot, Snapshot
from holdfast.api.box.usage import BoxMetrics
from holdfast.api.errors import Unreachable
from holdfast.api.errors.boxes import ExecTimeout, OutputTooLarge, Unsupported
from holdfast.client.box.files import RemoteFiles
from holdfast.client.box.process import RemoteChannel, RemoteConnection, RemoteProcess
from holdfast.client.box.types import info_of, power_of
from holdfast.client.resource import END, LONG_SECONDS, STDERR, STDIN, STDOUT, Resource, Socket, exit_of

_AT_ONCE: Final = 256 * 1024
"""Up to this many bytes of stdin are sent together with the command."""


class RemoteBox(Box):
    """Owns only the sockets of its current calls, so closing it does nothing. The client must outlive it."""

    def __init__(self, boxes: Resource, record: BoxRecord, env: Mapping[str, str] | None = None) -> None:
        self.id = record.id
        self.info = info_of(record, env)
        self._boxes = boxes
        self._box = boxes.below(record.id)
        self.files = RemoteFiles(self._box)

    # --- processes ---

    async def exec(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        timeout: float | None = None,
        stdin: bytes | AsyncIterable[bytes] = b"",
        on_stdout: Sink | None = None,
        on_stderr: Sink | None = None,
        max_output: int = MAX_OUTPUT,
    ) -> Completed:
        """Run a command until it exits. `stdin` may also be a stream."""
        at_once = base64.b64encode(stdin).decode() if isinstance(stdin, bytes) and len(stdin) <= _AT_ONCE else None
        request = ExecuteFrames(argv=list(argv), env=dict(env or {}), cwd=cwd, timeout=timeout, stdin=at_once)
        output = _Output(on_stdout, on_stderr, max_output)
        socket = await self._box.open_socket("/exec")
        feeding: asyncio.Future[None] | None = None
        try:
            await socket.send(json.dumps(request.to_request()))
            if at_once is None:
                feeding = asyncio.ensure_future(_feed(socket, stdin))
            return await _attend(socket, output, feeding)
        except ExecTimeout as error:
            stdout, stderr = output.kept
            raise ExecTimeout(error.message, stdout=stdout, stderr=stderr, hint=error.hint) from None
        finally:
            try:
                if feeding is not None:
                    feeding.cancel()
                    await asyncio.gather(feeding, return_exceptions=True)
            finally:
                await socket.close()

    async def spawn(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        stdin: bool = False,
        pty: bool = False,
        rows: int = 24,
        columns: int = 80,
        tree: bool = False,
    ) -> RemoteProcess:
        wanted = Spawn(
            argv=list(argv),
            env=dict(env or {}),
            cwd=cwd,
            stdin=stdin,
            pty=pty,
            rows=rows,
            columns=columns,
            tree=tree,
        )
        answer = await self._box.ask("POST", "/processes", wanted.to_request(), repeatable=False)
        return RemoteProcess(self._box, answer.read(ProcessInfo.from_json))

    async def python(self) -> tuple[str, ...]:
        return (await self._box.ask("GET", "/python")).read(BoxPython.from_json).command

    async def process(self, id: str) -> RemoteProcess:
        return RemoteProcess(self._box, (await self._box.below("processes", id).ask("GET")).read(ProcessInfo.from_json))

    async def processes(self) -> list[ProcessInfo]:
        answer = await self._box.ask("GET", "/processes")
        return list(answer.read(ProcessList.from_json).processes)

    async def channel(
        self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, cwd: str | None = None
    ) -> Channel:
        socket = await self._box.open_socket("/channel")
        try:
            await socket.send(json.dumps(Command(argv=list(argv), env=dict(env or {}), cwd=cwd).to_request()))
            return await RemoteChannel.started(socket)
        except BaseException:
            await socket.close()
            raise

    # --- ports ---

    async def connect(self, port: int) -> Connection:
        return RemoteConnection(await self._box.open_socket(f"/connect/{port}"))

    async def preview(self, port: int) -> Preview:
        answer = await self._box.ask("GET", "/preview", parameters=[("port", str(port))])
        return answer.read(Preview.from_json)

    async def set_network(self, policy: NetworkPolicy) -> None:
        await self._box.ask("PUT", "/network", policy.to_json(), timeout=LONG_SECONDS)

    # --- lifecycle ---

    async def power(self) -> Power:
        return power_of((await self._box.ask("GET")).read(BoxRecord.from_json))

    async def stop(self) -> None:
        await self._box.ask("POST", "/stop", timeout=LONG_SECONDS)

    async def start(self) -> None:
        await self._box.ask("POST", "/start", timeout=LONG_SECONDS)

    async def delete(self) -> Deleted:
        answer = await self._box.ask("DELETE", timeout=LONG_SECONDS)
        return Deleted(answer.read(Freed.from_json).freed)

    async def snapshot(self, *, labels: Mapping[str, str] | None = None) -> Snapshot:
        answer = await self._box.ask(
            "POST",
            "/snapshots",
            NewSnapshot(labels=dict(labels or {})).to_request(),
            repeatable=False,
            timeout=LONG_SECONDS,
        )
        return answer.read(Snapshot.from_json)

    async def fork(self, *, id: str | None = None, labels: Mapping[str, str] | None = None) -> Box:
        if id is not None or labels:
            raise Unsupported("the server chooses the id and labels of a fork", hint="leave them out")
        answer = await self._box.ask("POST", "/fork", {}, repeatable=False, timeout=LONG_SECONDS)
        return RemoteBox(self._boxes, answer.read(BoxRecord.from_json))

    # --- inspection ---

    async def metrics(self) -> Metrics:
        told = (await self._box.ask("GET", "/metrics")).read(BoxMetrics.from_json)
        return Metrics(**{each.name: getattr(told, each.name) for each in fields(told)})

    async def ping(self) -> list[Step]:
        return list((await self._box.ask("GET", "/ping", timeout=LONG_SECONDS)).read(Steps.from_json).steps)

    async def close(self) -> None:
        return None


class _Output:
    """Where the output of an exec goes: to sinks, or to buffers of a limited size."""

    def __init__(self, on_stdout: Sink | None, on_stderr: Sink | None, most: int) -> None:
        self._sinks = {STDOUT: on_stdout, STDERR: on_stderr}
        self._kept = {STDOUT: bytearray(), STDERR: bytearray()}
        self._most = most

    @property
    def kept(self) -> tuple[bytes, bytes]:
        return bytes(self._kept[STDOUT]), bytes(self._kept[STDERR])

    async def take(self, frame: bytes) -> None:
        tag, data = frame[0], frame[1:]
        if tag not in self._sinks:
            return
        sink, kept = self._sinks[tag], self._kept[tag]
        if sink is not None:
            taken = sink(data)
            if isawaitable(taken):
                await taken
        elif len(kept) + len(data) > self._most:
            raise OutputTooLarge(
                f"more than {self._most} bytes of output", hint="pass on_stdout and on_stderr to stream it"
            )
        else:
            kept += data


async def _attend(socket: Socket, output: _Output, feeding: asyncio.Future[None] | None) -> Completed:
    """Collect output until the command exits. If reading stdin fails, the command is ended."""
    receiving: asyncio.Future[bytes | dict[str, Any]] | None = None
    try:
        while True:
            receiving = asyncio.ensure_future(socket.receive())
            while not receiving.done():
                watched: set[asyncio.Future[Any]] = {receiving} if feeding is None else {receiving, feeding}
                await asyncio.wait(watched, return_when=asyncio.FIRST_COMPLETED)
                if feeding is not None and feeding.done():
                    feeding.result()
                    feeding = None
            frame = receiving.result()
            if isinstance(frame, dict):
                return Completed(exit_of(frame), *output.kept)
            if frame:
                await output.take(frame)
    finally:
        if receiving is not None and not receiving.done():
            receiving.cancel()
            await asyncio.gather(receiving, return_exceptions=True)


async def _feed(socket: Socket, stdin: bytes | AsyncIterable[bytes]) -> None:
    # If the command exits before its stdin ends, the server closes the connection after it has sent the exit code.
    if isinstance(stdin, bytes):
        with contextlib.suppress(Unreachable):
            await socket.send_tagged(STDIN, stdin)
    else:
        async for piece in stdin:
            with contextlib.suppress(Unreachable):
                await socket.send_tagged(STDIN, piece)
    with contextlib.suppress(Unreachable):
        await socket.send(bytes((END,)))
