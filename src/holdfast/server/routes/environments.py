"""REST: environments, their versions, what they lack, and their setup."""

from __future__ import annotations

import time
from collections.abc import Awaitable
from typing import Annotated, Any

from fastapi import APIRouter, Query
from fastapi.responses import Response, StreamingResponse

from holdfast.api.environments import (
    AllowEnvironment,
    BuildEnvironment,
    CheckEnvironment,
    DisallowEnvironment,
    EnvironmentBuild,
    EnvironmentCheck,
    EnvironmentConsent,
    EnvironmentDisallowed,
    EnvironmentList,
    EnvironmentName,
    EnvironmentRecord,
    SaveEnvironment,
)
from holdfast.environments.store import EnvironmentRow
from holdfast.server.routes.progress_lines import NDJSON, OutputLines
from holdfast.server.routes.requests import BOX_ERRORS, began
from holdfast.server.routes.services import Administrator, Use, UseEnvironments

router = APIRouter(prefix="/v1", responses=BOX_ERRORS, tags=["environments"])


@router.get("/environments")
async def list_environments(environments: UseEnvironments) -> EnvironmentList:
    """List environments, each in its latest version."""
    return EnvironmentList(environments=tuple(map(_record, await environments.library.all())))


@router.post("/environments/check")
async def check_environment(wanted: CheckEnvironment, environments: UseEnvironments) -> EnvironmentCheck:
    """List everything that the server lacks for an environment. Starts nothing."""
    return await environments.check(wanted)


@router.post(
    "/environments/build",
    response_class=Response,
    responses={200: {"description": "Lines of JSON: progress, then the build.", "content": {NDJSON: {}}}},
)
async def build_environment(wanted: BuildEnvironment, services: Use, environments: UseEnvironments) -> Response:
    """Run the setup of an environment ahead of runs. The answer is lines, as of an image pull, with the output of the
    commands (`{"type": "output", "text"}`); the last line is `{"type": "build", "build"}` or
    `{"type": "error", "error"}`."""
    progress = OutputLines()
    work = _build_line(environments.build(wanted, progress, lambda: time.monotonic_ns() // 1_000_000))
    lines = services.shutdown.until_stopping(progress.lines(work))
    return StreamingResponse(await began(lines), media_type=NDJSON)


@router.post("/environments/consent")
async def show_consent(file: AllowEnvironment, environments: UseEnvironments) -> EnvironmentConsent:
    """Get what a file from a repository asks for, and whether it was allowed at this place."""
    return await environments.consent(file.text, file.place)


@router.post("/environments/allow")
async def allow_environment(
    file: AllowEnvironment, environments: UseEnvironments, grant: Administrator
) -> EnvironmentConsent:
    """Allow a file from a repository what it asks for. This is for exactly this text at this place, and replaces
    what was allowed there before."""
    await environments.library.allow(file.text, file.place, by=grant.user)
    return await environments.consent(file.text, file.place)


@router.post("/environments/disallow")
async def disallow_environment(wanted: DisallowEnvironment, environments: UseEnvironments) -> EnvironmentDisallowed:
    """Take back what the file at a place was allowed, for the next runs."""
    return EnvironmentDisallowed(place=wanted.place, removed=await environments.library.disallow(wanted.place))


@router.get("/environments/{name}")
async def get_environment(
    name: EnvironmentName,
    environments: UseEnvironments,
    version: Annotated[int | None, Query(ge=1, description="Default: the latest.")] = None,
) -> EnvironmentRecord:
    """Get a version of an environment."""
    return _record(await environments.library.get(name if version is None else f"{name}@{version}"))


@router.get("/environments/{name}/versions")
async def list_versions(name: EnvironmentName, environments: UseEnvironments) -> EnvironmentList:
    """List the versions of an environment, newest first."""
    return EnvironmentList(environments=tuple(map(_record, await environments.library.versions(name))))


@router.put("/environments/{name}")
async def save_environment(
    name: EnvironmentName, wanted: SaveEnvironment, environments: UseEnvironments, grant: Administrator
) -> EnvironmentRecord:
    """Store a new version, unless the latest one has the same text."""
    return _record(await environments.library.save(name, wanted.text, by=grant.user, after=wanted.after))


@router.delete("/environments/{name}", status_code=204)
async def remove_environment(name: EnvironmentName, environments: UseEnvironments) -> None:
    """Remove all versions of an environment, and its setups. Threads that used it can still be resumed."""
    await environments.remove(name)


async def _build_line(work: Awaitable[EnvironmentBuild]) -> dict[str, Any]:
    return {"type": "build", "build": (await work).to_json()}


def _record(row: EnvironmentRow) -> EnvironmentRecord:
    return EnvironmentRecord(
        name=row.name,
        version=row.version,
        digest=row.digest,
        text=row.text,
        created_at=row.created_at,
        created_by=row.created_by,
    )
