"""REST: boxes and their lifecycle. Files, processes and snapshots have modules of their own."""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import replace
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response, StreamingResponse

from holdfast.api.box.network import Network
from holdfast.api.box.process import Execute, Executed
from holdfast.api.box.records import (
    BoxPython,
    BoxRecord,
    BoxRecordPage,
    BoxState,
    Fork,
    Freed,
    MadeBox,
    MoveBox,
    NewBox,
    Preview,
    Pruned,
    Steps,
)
from holdfast.api.box.usage import BoxMetrics, BoxUsages
from holdfast.api.errors.boxes import BoxConflict, Unsupported
from holdfast.api.limits import BoxId, BoxKey, PortNumber, ProviderName
from holdfast.boxes.images import would_pull
from holdfast.boxes.rows import BoxFilter, BoxRow
from holdfast.boxes.service.boxes import Boxes
from holdfast.boxes.service.move import Moved
from holdfast.server.lazy import load_in_thread
from holdfast.server.routes.box.views import (
    box_record,
    chosen_owner,
    decode,
    encode,
    label_filter,
    metrics,
    moved,
    pruned,
    steps,
    usage,
)
from holdfast.server.routes.progress_lines import NDJSON, ProgressLines
from holdfast.server.routes.requests import (
    BOX_ERRORS,
    address_of,
    began,
    opened,
    opened_for_work,
    preview_of,
    while_connected,
)
from holdfast.server.routes.services import Services, Use, UseBoxes

MAX_ANSWER = 8 * 1024 * 1024
"""Most bytes of stdout and of stderr in the answer of an exec."""

router = APIRouter(prefix="/v1/boxes", tags=["boxes"], responses=BOX_ERRORS)


@router.post("", status_code=201)
async def create_box(new: NewBox, services: Use, boxes: UseBoxes) -> MadeBox:
    """Create a box. With a key, acquire the box of that key."""
    spec, owner = new.spec, chosen_owner(new.owner)
    if spec.network.mode is not Network.NONE:
        await (await services.egress.get()).ready()  # so that its first command can reach the registries
    if new.key is None:
        return MadeBox(box=box_record(await boxes.create(spec, owner=owner)), how="created")
    acquired = await boxes.acquire(new.key, spec, owner=owner, fresh=new.fresh, replaces=new.replaces)
    return MadeBox(box=box_record(acquired.row), how=acquired.how.value, replaced=acquired.replaced, why=acquired.why)


@router.get("")
async def list_boxes(
    boxes: UseBoxes,
    state: Annotated[list[BoxState] | None, Query(description="Any of these.")] = None,
    label: Annotated[list[str] | None, Query(description="`name:value`; all must match.")] = None,
    key: BoxKey | None = None,
    all: Annotated[bool, Query(description="Include boxes that were deleted or are gone.")] = False,
    cursor: str | None = None,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
) -> BoxRecordPage:
    """List boxes, newest first."""
    page = await boxes.list(
        BoxFilter(
            states=tuple(state or ()),
            labels=label_filter(label or []),
            key=key,
            live_only=not all,
            limit=limit,
            after=cursor,
        )
    )
    return BoxRecordPage(boxes=tuple(map(box_record, page.rows)), next_cursor=page.next_cursor)


@router.get("/diagnose")
async def diagnose_provider(boxes: UseBoxes, provider: ProviderName = "local") -> Steps:
    """Check what of a provider works on this machine."""
    return steps(await boxes.provider(provider).diagnose())


@router.post("/prune")
async def prune(boxes: UseBoxes) -> Pruned:
    """Delete idle and stopped ephemeral boxes, and leftovers."""
    return pruned(await boxes.prune())


@router.get("/metrics")
async def all_metrics(boxes: UseBoxes, services: Use) -> BoxUsages:
    """What all boxes use, at most a second old. Stopped and hibernated boxes have only a state."""
    found = await services.samples.fresh(boxes)
    return BoxUsages(boxes=tuple(map(usage, found.usages)), left_out=found.left_out)


@router.get("/{id}")
async def get_box(id: BoxId, boxes: UseBoxes) -> BoxRecord:
    """Get a box, even one that was deleted."""
    return box_record(await boxes.get(id))


@router.delete("/{id}")
async def delete_box(id: BoxId, boxes: UseBoxes) -> Freed:
    """Delete a box with its files and processes."""
    return Freed(freed=(await boxes.delete(id)).freed)


@router.post("/{id}/stop")
async def stop_box(id: BoxId, boxes: UseBoxes) -> BoxRecord:
    """Stop a box: end all its processes and keep its files."""
    return box_record(await boxes.stop(id))


@router.post("/{id}/start")
async def start_box(id: BoxId, boxes: UseBoxes) -> BoxRecord:
    """Start a stopped box with its files, or wake a sleeping one."""
    return box_record(await boxes.start_box(id))


@router.post("/{id}/fork", status_code=201)
async def fork_box(id: BoxId, boxes: UseBoxes, fork: Fork | None = None) -> BoxRecord:
    """Create another box with the same spec and files."""
    wanted = fork or Fork()
    owner = None if wanted.owner is None else chosen_owner(wanted.owner)
    return box_record(await boxes.fork(id, owner=owner, key=wanted.key, idle_seconds=wanted.idle_seconds))


@router.post(
    "/{id}/move",
    response_class=Response,
    responses={200: {"description": "Lines of JSON: progress, then the new box.", "content": {NDJSON: {}}}},
)
async def move_box(id: BoxId, move: MoveBox, services: Use, boxes: UseBoxes) -> Response:
    """Move a box to another provider. A new box gets its workspace, key and owner, and the old one is deleted or kept.
    The answer is lines: `{"type": "begin", "step", "detail", "total"}`, `{"type": "advance", "amount"}`,
    `{"type": "end", "summary"}`; the last line is `{"type": "moved", "moved"}` or `{"type": "error", "error"}`. Empty
    lines mean that it is still in progress. A move whose request ends before its last step is undone."""
    row = await boxes.get(id)
    _check_no_interpreter(row)
    await _check_no_sandbox(row, services)
    if move.image is None:
        await _check_no_pull(row, move.to, boxes)
    if row.spec.network.mode is not Network.NONE:
        await (await services.egress.get()).ready()
    await (await services.runs.get()).settle_box(row)
    progress = ProgressLines()
    moving = boxes.move(
        id,
        lambda spec: replace(spec, provider=move.to, image=move.image or spec.image),
        stop=move.stop,
        keep=move.keep,
        progress=progress,
    )
    lines = services.shutdown.until_stopping(progress.lines(_moved_line(moving)))
    return StreamingResponse(await began(lines), media_type=NDJSON)


def _check_no_interpreter(row: BoxRow) -> None:
    """Raises if the box is that of an interpreter: its context lives in the memory of its box, which cannot travel."""
    from holdfast.server.interpreter.interpreters import KEY_PREFIX  # here: it loads the interpreters

    if row.key is not None and row.key.startswith(KEY_PREFIX):
        raise Unsupported(
            f"box {row.id} is that of interpreter {row.key.removeprefix(KEY_PREFIX)}, whose context does not travel",
            hint="export its state, and import it into an interpreter at the other provider",
        )


async def _check_no_pull(row: BoxRow, to: str, boxes: Boxes) -> None:
    """Raises if the other provider would pull the image of the box. A file of a repository may have named it, because
    this provider had one of that name.
    """
    image = row.spec.image
    if image is not None and to != row.provider and await would_pull(boxes.provider(to).images, image):
        raise BoxConflict(
            f"{to} would pull image {image}, which nobody has named for {to}",
            hint=f"name it: holdfast box move {row.id} --to {to} --image {image}",
        )


async def _check_no_sandbox(row: BoxRow, services: Services) -> None:
    """Raises if the box is that of a sandbox of the Daytona API: its record would lead to the box that was moved."""
    from holdfast.compat.daytona.sandbox_record import sandbox_with  # here: it loads the Daytona API

    name = await sandbox_with(row.id, await load_in_thread(services.daytona_records), row.tenant)
    if name is not None:
        raise BoxConflict(
            f"box {row.id} is that of sandbox {name} of the Daytona API, which a move would take it from",
            hint="create a sandbox at the other provider, with its name as the target, and copy the files there",
        )


async def _moved_line(moving: Awaitable[Moved]) -> dict[str, Any]:
    return {"type": "moved", "moved": moved(await moving).to_json()}


@router.get("/{id}/metrics")
async def box_metrics(id: BoxId, boxes: UseBoxes) -> BoxMetrics:
    """What a box uses now."""
    # This neither counts as activity nor wakes the box.
    async with await boxes.peek(id) as box:
        return metrics(await box.metrics())


@router.get("/{id}/ping")
async def ping_box(id: BoxId, boxes: UseBoxes) -> Steps:
    """Measure each step to a box and back."""
    async with await boxes.peek(id) as box:
        return steps(await box.ping())


@router.get("/{id}/diagnose")
async def diagnose_box(id: BoxId, boxes: UseBoxes) -> Steps:
    """Check what of a box works, with a next step for each failure."""
    row = await boxes.get(id)
    return steps(await boxes.provider(row.provider).diagnose(id))


@router.get("/{id}/python")
async def box_python(id: BoxId, boxes: UseBoxes) -> BoxPython:
    """The Python in a box that runs Holdfast's own code, whether or not the image has one."""
    async with opened(boxes, id) as box:
        return BoxPython(command=tuple(await box.python()))


@router.get("/{id}/preview")
async def preview_port(
    id: BoxId, request: Request, services: Use, boxes: UseBoxes, port: Annotated[PortNumber, Query()]
) -> Preview:
    """The URL of a port of a box, for a browser. It contains a credential for that port, valid for a few minutes."""
    async with await boxes.peek(id) as box:
        return preview_of(services, request, box.id, port)


@router.get("/{id}/preview-address")
async def preview_address(
    id: BoxId, request: Request, services: Use, boxes: UseBoxes, port: Annotated[PortNumber, Query()]
) -> Preview:
    """The URL of a port of a box, for a program. Its host and port are all that a visitor needs.

    It is valid for twelve hours. To callers on this machine it is an address of its own, which other users of the
    machine can find out.
    """
    async with await boxes.peek(id) as box:
        return await address_of(services, request, box.id, port)


@router.post("/{id}/exec")
async def execute(id: BoxId, command: Execute, request: Request, boxes: UseBoxes) -> Executed:
    """Run a command to its end. It is killed if the client leaves. The box may be given by its key.

    For large outputs, use the WebSocket at this path.
    """
    async with opened_for_work(boxes, await boxes.resolve(id)) as box:
        done = await while_connected(
            request,
            box.exec(
                command.argv,
                env=command.env,
                cwd=command.cwd,
                timeout=command.timeout,
                stdin=decode(command.stdin),
                max_output=MAX_ANSWER,
            ),
        )
    return Executed(exit_code=done.exit_code, stdout=encode(done.stdout), stderr=encode(done.stderr))
