"""REST: spawned processes of a box. Their terminals are WebSockets, in `websockets`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response, StreamingResponse

from holdfast.api.box.process import Process, ProcessInfo, ProcessList, Resize, Signal, Spawn, Stream, Waited
from holdfast.api.limits import BoxId, ProcessId
from holdfast.server.routes.box.views import process_info
from holdfast.server.routes.requests import (
    BOX_ERRORS,
    OCTETS,
    binary_answer,
    binary_body,
    held_box,
    opened,
    opened_for_work,
    while_connected,
)
from holdfast.server.routes.services import Use, UseBoxes
from holdfast.server.shutdown import close_pieces

MAX_WAIT = 60.0
"""Most seconds that one request waits for the end of a process."""
_MOST = 1 << 62

router = APIRouter(prefix="/v1/boxes/{id}/processes", tags=["processes"], responses=BOX_ERRORS)


@router.post("", status_code=201)
async def spawn(id: BoxId, command: Spawn, boxes: UseBoxes) -> ProcessInfo:
    """Start a command in the background. Its output is kept."""
    async with opened_for_work(boxes, id) as box:
        process = await box.spawn(
            command.argv,
            env=command.env,
            cwd=command.cwd,
            stdin=command.stdin,
            pty=command.pty,
            rows=command.rows,
            columns=command.columns,
            tree=command.tree,
        )
        return process_info(await process.info())


@router.get("")
async def list_processes(id: BoxId, boxes: UseBoxes) -> ProcessList:
    """List the spawned processes of a box, oldest first."""
    async with await boxes.peek(id) as box:
        return ProcessList(processes=tuple(map(process_info, await box.processes())))


@router.get("/{process}")
async def get_process(id: BoxId, process: ProcessId, boxes: UseBoxes) -> ProcessInfo:
    """Get a process."""
    async with await boxes.peek(id) as box:
        return process_info(await (await box.process(process)).info())


@router.get("/{process}/output", response_class=Response, responses=binary_answer("The output."))
async def read_output(
    id: BoxId,
    process: ProcessId,
    services: Use,
    boxes: UseBoxes,
    stream: Annotated[Stream, Query()] = "stdout",
    offset: Annotated[int, Query(ge=0, le=_MOST)] = 0,
    limit: Annotated[int, Query(ge=1, le=16 << 20)] = 1 << 20,
    follow: Annotated[bool, Query(description="Follow the output until the process ends.")] = False,
) -> Response:
    """Read the output of a process, from an offset on."""
    if not follow:  # the output is there even while the box sleeps
        async with await boxes.peek(id) as box:
            return Response(await (await box.process(process)).read(stream, offset, limit), media_type=OCTETS)
    box, held = await held_box(boxes, id)
    try:
        found = await box.process(process)
        # The answer starts before there is any output: a process may be silent for long.
        pieces = services.shutdown.until_stopping(_followed(found, stream, offset))
        held.push_async_callback(close_pieces, pieces)
        taken = held.pop_all()

        async def output() -> AsyncIterator[bytes]:
            async with taken:
                async for piece in pieces:
                    yield piece

        return StreamingResponse(output(), media_type=OCTETS)
    finally:
        await held.aclose()


async def _followed(process: Process, stream: Literal["stdout", "stderr"], offset: int) -> AsyncIterator[bytes]:
    async for chunk in process.output(stream, offset):
        yield chunk.data


@router.post("/{process}/signal", status_code=204)
async def send_signal(id: BoxId, process: ProcessId, signal: Signal, boxes: UseBoxes) -> None:
    """Send a signal to a process and its group."""
    async with opened(boxes, id) as box:
        await (await box.process(process)).signal(signal.number)


@router.post("/{process}/resize", status_code=204)
async def resize(id: BoxId, process: ProcessId, size: Resize, boxes: UseBoxes) -> None:
    """Set the size of a process's terminal."""
    async with opened(boxes, id) as box:
        await (await box.process(process)).resize(size.rows, size.columns)


@router.post("/{process}/stdin", status_code=204, openapi_extra=binary_body())
async def write_stdin(
    id: BoxId,
    process: ProcessId,
    request: Request,
    boxes: UseBoxes,
    eof: Annotated[bool, Query(description="Close stdin after this.")] = False,
) -> None:
    """Write to the stdin of a process."""
    async with opened(boxes, id) as box:
        found = await box.process(process)
        async for piece in request.stream():
            if piece:
                await found.write(piece)
        if eof:
            await found.close_stdin()


@router.get("/{process}/wait")
async def wait_for_process(
    id: BoxId,
    process: ProcessId,
    request: Request,
    boxes: UseBoxes,
    timeout: Annotated[float, Query(ge=0, le=MAX_WAIT, allow_inf_nan=False)] = 30.0,
) -> Waited:
    """Wait for the exit code of a process. Returns null if it is still running."""
    async with await boxes.peek(id) as box:
        found = await box.process(process)
        try:
            return Waited(exit_code=await while_connected(request, found.wait(timeout)))
        except TimeoutError:
            return Waited(exit_code=None)
