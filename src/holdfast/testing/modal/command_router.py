"""The task command router of the counterpart of Modal: the commands, output and snapshots of one sandbox."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

from grpclib import GRPCError, Status
from modal_proto import task_command_router_pb2 as router_pb2

from holdfast.api.box.process import Stream
from holdfast.api.errors.boxes import BoxError
from holdfast.testing.modal.execs import Exec
from holdfast.testing.modal.sandboxes import Sandbox, random_id
from holdfast.testing.modal.state import CloudState, Image

_SIGNAL: Final = 128


class CommandRouter:
    def __init__(self, state: CloudState) -> None:
        self._state = state

    def handlers(self) -> dict[str, Callable[[Any], Any]]:
        return {
            "TaskExecStart": self.start,
            "TaskExecStdioRead": self.read,
            "TaskExecStdinWrite": self.write,
            "TaskExecStdinWriteStream": self.write_stream,
            "TaskExecStdinStatus": self.stdin_status,
            "TaskExecPoll": self.poll,
            "TaskExecWait": self.wait,
            "TaskSnapshotFilesystem": self.snapshot,
            "TaskSetNetworkAccess": self.set_network,
            "TaskReloadVolumes": self.reload_volumes,
            "SandboxStdioReadV2": self.read_entry,
            "SandboxStdinWriteV2": self.write_entry,
        }

    def _sandbox(self, task_id: str) -> Sandbox:
        sandbox = self._state.by_task(task_id)
        if sandbox.result is not None:
            raise GRPCError(Status.NOT_FOUND, "Sandbox already finished")
        return sandbox

    def _exec(self, task_id: str, exec_id: str) -> Exec:
        found = self._state.by_task(task_id).execs.get(exec_id)
        if found is None:
            raise GRPCError(Status.NOT_FOUND, f"exec {exec_id} not found")
        return found

    # --- commands ---

    async def start(self, request: router_pb2.TaskExecStartRequest) -> router_pb2.TaskExecStartResponse:
        sandbox = self._sandbox(request.task_id)
        env = dict(request.env)
        for source in request.secret_sources:
            env.update(source.env.contents)
            env.update(self._state.secrets.get(source.secret_id, {}))
        terminal = None
        if request.HasField("pty_info") and request.pty_info.enabled:
            terminal = request.pty_info.winsz_rows, request.pty_info.winsz_cols
        timeout = request.timeout_secs if request.HasField("timeout_secs") and request.timeout_secs else None
        try:
            await sandbox.execute(
                request.exec_id, request.command_args, env, request.workdir or None, timeout, terminal
            )
        except BoxError as error:
            raise GRPCError(Status.FAILED_PRECONDITION, error.message) from None
        return router_pb2.TaskExecStartResponse()

    async def read(
        self, request: router_pb2.TaskExecStdioReadRequest
    ) -> AsyncIterator[router_pb2.TaskExecStdioReadResponse]:
        stderr = request.file_descriptor == router_pb2.TASK_EXEC_STDIO_FILE_DESCRIPTOR_STDERR
        async for data in self._exec(request.task_id, request.exec_id).output(stderr, request.offset):
            yield router_pb2.TaskExecStdioReadResponse(data=data)

    async def write(self, request: router_pb2.TaskExecStdinWriteRequest) -> router_pb2.TaskExecStdinWriteResponse:
        await self._exec(request.task_id, request.exec_id).write(request.offset, request.data, request.eof)
        return router_pb2.TaskExecStdinWriteResponse()

    async def write_stream(
        self, requests: AsyncIterator[router_pb2.TaskExecStdinWriteStreamRequest]
    ) -> router_pb2.TaskExecStdinWriteStreamResponse:
        found: Exec | None = None
        offset = 0
        async for each in requests:
            if each.HasField("start"):
                found = self._exec(each.start.task_id, each.start.exec_id)
                offset = each.start.offset
            elif found is not None:
                await found.write(offset, each.data, each.HasField("end"))
                offset += len(each.data)
        return router_pb2.TaskExecStdinWriteStreamResponse()

    async def stdin_status(
        self, request: router_pb2.TaskExecStdinStatusRequest
    ) -> router_pb2.TaskExecStdinStatusResponse:
        found = self._exec(request.task_id, request.exec_id)
        return router_pb2.TaskExecStdinStatusResponse(num_bytes_written=found.written, closed=found.closed)

    async def poll(self, request: router_pb2.TaskExecPollRequest) -> router_pb2.TaskExecPollResponse:
        return router_pb2.TaskExecPollResponse(**_status(self._exec(request.task_id, request.exec_id).exit_code))

    async def wait(self, request: router_pb2.TaskExecWaitRequest) -> router_pb2.TaskExecWaitResponse:
        found = self._exec(request.task_id, request.exec_id)
        await found.ended.wait()
        return router_pb2.TaskExecWaitResponse(**_status(found.exit_code))

    # --- the first command ---

    async def read_entry(
        self, request: router_pb2.SandboxStdioReadV2Request
    ) -> AsyncIterator[router_pb2.SandboxStdioReadV2Response]:
        sandbox = self._state.by_task(request.task_id)
        is_stderr = request.file_descriptor == router_pb2.SANDBOX_STDIO_FILE_DESCRIPTOR_STDERR
        stream: Stream = "stderr" if is_stderr else "stdout"
        assert sandbox.entry is not None
        offset = request.offset
        if sandbox.result is None:
            try:
                async for chunk in sandbox.entry.output(stream, offset):
                    yield router_pb2.SandboxStdioReadV2Response(data=chunk.data, starting_offset=chunk.offset)
                    offset = chunk.next_offset
            except BoxError:
                await sandbox.finished.wait()  # its box was removed with it
        if rest := sandbox.entry_output.get(stream, b"")[offset:]:
            yield router_pb2.SandboxStdioReadV2Response(data=rest, starting_offset=offset)

    async def write_entry(
        self, request: router_pb2.SandboxStdinWriteV2Request
    ) -> router_pb2.SandboxStdinWriteV2Response:
        sandbox = self._sandbox(request.task_id)
        assert sandbox.entry is not None
        fresh = request.data[max(0, sandbox.entry_written - request.offset) :]
        sandbox.entry_written += len(fresh)
        try:
            await sandbox.entry.write(fresh)
            if request.eof:
                await sandbox.entry.close_stdin()
        except BoxError as error:
            raise GRPCError(Status.FAILED_PRECONDITION, error.message) from None
        return router_pb2.SandboxStdinWriteV2Response()

    # --- the sandbox ---

    async def snapshot(
        self, request: router_pb2.TaskSnapshotFilesystemRequest
    ) -> router_pb2.TaskSnapshotFilesystemResponse:
        sandbox = self._sandbox(request.task_id)
        try:
            made = await sandbox.box.snapshot()
        except BoxError as error:
            raise GRPCError(Status.FAILED_PRECONDITION, error.message) from None
        image = self._state.keep(Image(random_id("im"), "", made.id))
        return router_pb2.TaskSnapshotFilesystemResponse(image_id=image.id)

    async def set_network(
        self, request: router_pb2.TaskSetNetworkAccessRequest
    ) -> router_pb2.TaskSetNetworkAccessResponse:
        self._sandbox(request.task_id).network = request.network_access
        return router_pb2.TaskSetNetworkAccessResponse()

    async def reload_volumes(
        self, request: router_pb2.TaskReloadVolumesRequest
    ) -> router_pb2.TaskReloadVolumesResponse:
        self._sandbox(request.task_id)
        await asyncio.sleep(0)
        return router_pb2.TaskReloadVolumesResponse()


def _status(code: int | None) -> dict[str, int]:
    if code is None:
        return {}
    return {"signal": code - _SIGNAL} if code > _SIGNAL else {"code": code}
