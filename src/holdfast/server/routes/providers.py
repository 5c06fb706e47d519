"""REST: providers of boxes, and accounts of them. Credentials are never returned."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Response
from fastapi.responses import StreamingResponse

from holdfast.api.limits import AccountName, ProviderName
from holdfast.api.providers import AccountChange, MachineSetup, ProviderRecord, ProviderRecordList
from holdfast.boxes.service.boxes import Boxes
from holdfast.harnesses.installation import Tools
from holdfast.server.components import FindAgent
from holdfast.server.provider.providers import ServerProviders
from holdfast.server.provider.setup import set_up
from holdfast.server.provider.smoke_test import try_provider
from holdfast.server.routes.progress_lines import NDJSON, ProgressLines
from holdfast.server.routes.requests import BOX_ERRORS, began
from holdfast.server.routes.services import Administrator, Use, UseBoxes

router = APIRouter(prefix="/v1/providers", responses=BOX_ERRORS, tags=["providers"])


async def _providers(services: Use, _: Administrator) -> ServerProviders:
    return await services.providers.get()


UseProviders = Annotated[ServerProviders, Depends(_providers)]


@router.get("")
async def list_providers(providers: UseProviders, boxes: UseBoxes) -> ProviderRecordList:
    """List providers, those that are ready first."""
    return ProviderRecordList(providers=tuple(await providers.records(boxes)))


@router.get("/{name}")
async def get_provider(name: ProviderName, providers: UseProviders, boxes: UseBoxes) -> ProviderRecord:
    """Get a provider."""
    return await providers.record(name, boxes)


@router.put("/{name}")
async def put_account(
    name: AccountName, change: AccountChange, providers: UseProviders, boxes: UseBoxes
) -> ProviderRecord:
    """Add an account, or change one. Boxes can be created in it at once."""
    return await providers.put(name, change, boxes)


@router.delete("/{name}", status_code=204)
async def remove_account(name: AccountName, providers: UseProviders, boxes: UseBoxes) -> None:
    """Remove an account and its credential. It must have no boxes."""
    await providers.remove(name, boxes)


@router.post(
    "/{name}/test",
    response_class=Response,
    responses={200: {"description": "Lines of JSON: steps, then the result.", "content": {NDJSON: {}}}},
)
async def test_provider(name: ProviderName, services: Use, providers: UseProviders, boxes: UseBoxes) -> Response:
    """Create a box, run a command in it and delete it. The answer is lines: `{"type": "step", "step"}` for each step,
    and last `{"type": "trial", "trial"}`, or `{"type": "error", "error"}`. Empty lines mean that it is still in
    progress. If the client leaves, what was created is deleted.
    """
    await providers.record(name, boxes)
    progress = ProgressLines()
    trial = _trial_line(boxes, name, progress, providers)
    lines = services.shutdown.until_stopping(progress.lines(trial))
    return StreamingResponse(await began(lines), media_type=NDJSON)


@router.post(
    "/{name}/setup",
    response_class=Response,
    responses={200: {"description": "Lines of JSON: steps, then the result.", "content": {NDJSON: {}}}},
)
async def set_up_machine(
    name: ProviderName, setup: MachineSetup, services: Use, providers: UseProviders, boxes: UseBoxes
) -> Response:
    """Put agents and variables into a machine of the user, at a provider that has such machines. The answer is lines as
    of a test. What the user has there is not replaced, and doing it twice changes nothing.
    """
    await providers.record(name, boxes)
    progress = ProgressLines()
    trial = _setup_line(boxes, name, setup, services.find_agent, progress, providers)
    lines = services.shutdown.until_stopping(progress.lines(trial))
    return StreamingResponse(await began(lines), media_type=NDJSON)


async def _setup_line(
    boxes: Boxes,
    name: str,
    setup: MachineSetup,
    find_agent: FindAgent,
    progress: ProgressLines,
    providers: ServerProviders,
) -> Mapping[str, Any]:
    tools = Tools(providers.home)
    trial = await set_up(boxes, name, setup, tools, find_agent, progress.step, providers.redacted)
    return {"type": "trial", "trial": trial.to_json()}


async def _trial_line(
    boxes: Boxes, name: str, progress: ProgressLines, providers: ServerProviders
) -> Mapping[str, Any]:
    trial = await try_provider(boxes, name, progress.step, providers.redacted)
    return {"type": "trial", "trial": trial.to_json()}
