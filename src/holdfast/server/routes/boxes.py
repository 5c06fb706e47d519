"""REST: boxes and their lifecycle. Files, processes and snapshots have modules of their own."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request

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
    NewBox,
    Preview,
    Pruned,
    Steps,
)
from holdfast.api.box.usage import BoxMetrics, BoxUsages
from holdfast.api.limits import BoxId, BoxKey, PortNumber, ProviderName
from holdfast.boxes.rows import BoxFilter
from holdfast.server.routes.box_requests import BOX_ERRORS, opened, opened_for_work, while_connected
from holdfast.server.routes.box_views import (
    box_record,
    chosen_owner,
    decode,
    encode,
    label_filter,
    metrics,
    pruned,
    steps,
    usage,
)
from holdfast.server.routes.services import Use, UseBoxes

MAX_ANSWER = 8 * 1024 * 1024
"""Bytes of each stream that an exec answers at once."""

router = APIRouter(prefix="/v1/boxes", tags=["boxes"], responses=BOX_ERRORS)


@router.post("", status_code=201)
async def create_box(new: NewBox, services: Use, boxes: UseBoxes) -> MadeBox:
    """Make a box; with a key, acquire the one of that key."""
    spec, owner = new.spec, chosen_owner(new.owner)
    if spec.network.mode is not Network.NONE:
        await (await services.egress.get()).ready()  # its first command should find the registries
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
    all: Annotated[bool, Query(description="Those that are no more, too.")] = False,
    cursor: str | None = None,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
) -> BoxRecordPage:
    """List boxes, the newest first."""
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
    """What of a provider works on this machine and what does not."""
    return steps(await boxes.provider(provider).diagnose())


@router.post("/prune")
async def prune(boxes: UseBoxes) -> Pruned:
    """Delete idle and stopped ephemeral boxes and leftovers now."""
    return pruned(await boxes.prune())


@router.get("/metrics")
async def all_metrics(boxes: UseBoxes, services: Use) -> BoxUsages:
    """What all boxes use, as of a second ago at most. Of those that are stopped or hibernated only their state."""
    found = await services.samples.fresh(boxes)
    return BoxUsages(boxes=tuple(map(usage, found.usages)), left_out=found.left_out)


@router.get("/{id}")
async def get_box(id: BoxId, boxes: UseBoxes) -> BoxRecord:
    """Look at one box. One that is no more is shown as it was."""
    return box_record(await boxes.get(id))


@router.delete("/{id}")
async def delete_box(id: BoxId, boxes: UseBoxes) -> Freed:
    """Delete a box and everything of its own."""
    return Freed(freed=(await boxes.delete(id)).freed)


@router.post("/{id}/stop")
async def stop_box(id: BoxId, boxes: UseBoxes) -> BoxRecord:
    """End every process in a box. Its files stay."""
    return box_record(await boxes.stop(id))


@router.post("/{id}/start")
async def start_box(id: BoxId, boxes: UseBoxes) -> BoxRecord:
    """Start a stopped box on its files, or wake one that sleeps."""
    return box_record(await boxes.start_box(id))


@router.post("/{id}/fork", status_code=201)
async def fork_box(id: BoxId, boxes: UseBoxes, fork: Fork | None = None) -> BoxRecord:
    """Make another box with the same spec and files."""
    wanted = fork or Fork()
    owner = None if wanted.owner is None else chosen_owner(wanted.owner)
    return box_record(await boxes.fork(id, owner=owner, key=wanted.key, idle_seconds=wanted.idle_seconds))


@router.get("/{id}/metrics")
async def box_metrics(id: BoxId, boxes: UseBoxes) -> BoxMetrics:
    """What a box uses now."""
    # Looking at a box does not make it busy, and wakes nobody.
    async with await boxes.peek(id) as box:
        return metrics(await box.metrics())


@router.get("/{id}/ping")
async def ping_box(id: BoxId, boxes: UseBoxes) -> Steps:
    """The path to a box and through it, each step timed."""
    async with await boxes.peek(id) as box:
        return steps(await box.ping())


@router.get("/{id}/diagnose")
async def diagnose_box(id: BoxId, boxes: UseBoxes) -> Steps:
    """What of a box works and what does not, with the next step per failure."""
    row = await boxes.get(id)
    return steps(await boxes.provider(row.provider).diagnose(id))


@router.get("/{id}/python")
async def box_python(id: BoxId, boxes: UseBoxes) -> BoxPython:
    """What runs code of Holdfast's own in a box, whose programs need have no Python."""
    async with opened(boxes, id) as box:
        return BoxPython(command=tuple(await box.python()))


@router.get("/{id}/preview")
async def preview_port(
    id: BoxId, request: Request, services: Use, boxes: UseBoxes, port: Annotated[PortNumber, Query()]
) -> Preview:
    """Where a browser finds a port of a box. The URL holds a credential for that port, for a few minutes."""
    async with await boxes.peek(id) as box:
        host = request.headers.get("host") or "localhost"
        return Preview(services.previews.url(request.url.scheme, host, box.id, port))


@router.post("/{id}/exec")
async def execute(id: BoxId, command: Execute, request: Request, boxes: UseBoxes) -> Executed:
    """Run a command to its end. It is killed if the client leaves. The box may be named by its key.

    For much output, use the WebSocket of this path.
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
