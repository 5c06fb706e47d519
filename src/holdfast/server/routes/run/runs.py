"""REST: launches, shows, steers, cancels and resumes runs, and takes the workspaces that they start with."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response, StreamingResponse

from holdfast.api.errors import Forbidden
from holdfast.api.limits import AgentName, RunId, ThreadId
from holdfast.api.model.budgets import Budget, Cost
from holdfast.api.outcomes import NEEDS_DECISION
from holdfast.api.run.imports import Imported, NewImport
from holdfast.api.run.info import RunError, RunInfo, RunStatus, TokenUsage
from holdfast.api.run.runs import (
    Cancel,
    Changes,
    CheckedRun,
    Diagnosis,
    Launched,
    NewRun,
    Resume,
    RunPage,
    Steer,
    Steered,
    WantedRun,
    Workspace,
)
from holdfast.runs.launch.plan import Options, Prompt
from holdfast.server.environments import require_agent, spec_of
from holdfast.server.routes.model.costs import costs_by
from holdfast.server.routes.requests import BOX_ERRORS, began, binary_body
from holdfast.server.routes.services import Caller, Use, UseEnvironments, UseRuns
from holdfast.threads.access.credentials import Scope
from holdfast.threads.rows import RunFilter
from holdfast.threads.run_events import Run

router = APIRouter(prefix="/v1", tags=["runs"], responses=BOX_ERRORS)


@router.post("/workspaces", status_code=201, openapi_extra=binary_body())
async def keep_workspace(request: Request, runs: UseRuns) -> Workspace:
    """Upload a tar archive for a workspace. Equal archives are stored once."""
    return Workspace(digest=await runs.workspaces.keep(_body(request)))


async def _body(request: Request) -> AsyncIterator[bytes]:
    async for piece in request.stream():
        if piece:
            yield piece


@router.post("/runs", status_code=201)
async def launch_run(new: NewRun, runs: UseRuns, environments: UseEnvironments) -> Launched:
    """Start a run. Answers once the prompt is on disk; everything else appears on the thread.

    With an environment, everything that it requires has to be there: a missing secret, or a file that asks for what
    nobody has allowed, is answered with 409, and nothing is created.
    """
    new, environment = await environments.apply(new)
    spec = None if new.box is None else spec_of(new.box)
    return await runs.launch(
        Prompt(new.prompt, new.prompt_id, new.author_id),
        Options(
            require_agent(new.agent),
            new.model,
            spec,
            new.workspace,
            source=new.source,
            timeout=new.timeout,
            fallbacks=new.fallbacks,
            budget=_some(new.budget),
            delegates=new.delegate,
            checkpoints=new.checkpoints,
            environment=environment,
        ),
        thread=new.thread,
        new_thread=new.new_thread,
        title=new.title,
        labels=new.labels,
    )


@router.post("/imports", status_code=201)
async def import_session(wanted: NewImport, runs: UseRuns) -> Imported:
    """Create a thread with a session that an agent wrote on another machine. `resume` continues it in a box."""
    return await runs.import_session(wanted)


@router.post("/runs/check")
async def check_run(wanted: WantedRun, runs: UseRuns, environments: UseEnvironments) -> CheckedRun:
    """Check which agent and model a run would use, or why it would be refused. Starts nothing.

    For clients that would have to upload files first.
    """
    wanted = await environments.apply_to_check(wanted)
    spec = None if wanted.box is None else spec_of(wanted.box)
    agent = require_agent(wanted.agent)
    options = Options(agent, wanted.model, spec, fallbacks=wanted.fallbacks, budget=_some(wanted.budget))
    checked = await runs.check(options, thread=wanted.thread)
    return CheckedRun(agent=checked.agent, model=checked.model or "")


@router.get("/runs")
async def list_runs(
    services: Use,
    runs: UseRuns,
    thread: ThreadId | None = None,
    status: RunStatus | None = None,
    agent: AgentName | None = None,
    cursor: RunId | None = None,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
) -> RunPage:
    """List runs, newest first."""
    found = await runs.list(RunFilter(thread, status, agent, limit + 1, cursor))
    page = found[:limit]
    costs = await costs_by(services, (each.run.run for each in page), "run")
    return RunPage(
        runs=tuple(run_info(each.thread, each.run, cost=costs.get(each.run.run)) for each in page),
        next_cursor=page[-1].run.run if len(found) > len(page) else None,
    )


@router.get("/runs/{id}")
async def get_run(id: RunId, services: Use, grant: Caller) -> RunInfo:
    """Get a run, or the latest run of a thread."""
    runs = await services.runs.get()
    if grant.thread is not None:
        # Checked before any lookup, so that the answer does not reveal what exists.
        thread = await runs.thread_of(id) if id.startswith("r-") else id
        if thread != grant.thread:
            raise Forbidden(f"this token is for thread {grant.thread}, not for {id}")
    found = await runs.get(id)
    grant.check_thread(found.thread, Scope.READ)
    costs = await costs_by(services, (found.run.run,), "run")
    return run_info(found.thread, found.run, cost=costs.get(found.run.run))


@router.post("/runs/{id}/cancel")
async def cancel_run(id: RunId, runs: UseRuns, cancel: Cancel | None = None) -> RunInfo:
    """Cancel a run. A run that has ended is left unchanged."""
    found = await runs.cancel(id, by=None if cancel is None else cancel.by)
    return run_info(found.thread, found.run)


@router.post("/runs/{id}/steer")
async def steer_run(id: RunId, steer: Steer, runs: UseRuns) -> Steered:
    """Send a prompt to a thread. If a run is in progress, it is queued, or interrupts the run."""
    thread = await _thread_of(runs, id)
    prompt = Prompt(steer.prompt, steer.prompt_id, steer.author_id)
    return await runs.steer(thread, prompt, interrupt=steer.interrupt)


@router.post("/runs/{id}/resume", status_code=201)
async def resume_run(id: RunId, runs: UseRuns, resume: Resume | None = None) -> Launched:
    """Resume a thread, in its box or a new one, with its agent or another."""
    wanted = resume or Resume()
    prompt = None if wanted.prompt is None else Prompt(wanted.prompt, wanted.prompt_id, wanted.author_id)

    def change(options: Options) -> Options:
        spec = options.spec if wanted.box is None else spec_of(wanted.box)
        if wanted.network is not None:
            spec = replace(options.box if spec is None else spec, network=wanted.network)
        if wanted.provider is not None:
            spec = replace(options.box if spec is None else spec, provider=wanted.provider)
        if wanted.memory is not None:
            spec = replace(options.box if spec is None else spec, memory=wanted.memory)
        if wanted.disk is not None:
            spec = replace(options.box if spec is None else spec, disk=wanted.disk)
        timeout = options.timeout if wanted.timeout is None else wanted.timeout or None
        checkpoints = wanted.checkpoints or options.checkpoints
        fallbacks = wanted.fallbacks or options.fallbacks
        budget = options.budget if wanted.budget is None else _some(wanted.budget)
        return replace(
            options,
            spec=spec,
            fresh=wanted.fresh,
            timeout=timeout,
            fallbacks=fallbacks,
            budget=budget,
            checkpoints=checkpoints,
        )

    return await runs.resume(
        await _thread_of(runs, id),
        prompt,
        agent=wanted.agent,
        model=wanted.model,
        change=change,
        names_image=wanted.box is not None and wanted.box.image is not None,
    )


@router.get("/runs/{id}/diagnose")
async def diagnose_run(id: RunId, runs: UseRuns) -> Diagnosis:
    """Diagnose a run: how far it got, what is wrong, and what to do."""
    return await runs.diagnose(id)


@router.get("/runs/{id}/diff")
async def diff_run(id: RunId, runs: UseRuns) -> Changes:
    """The changes in the workspace of a thread since its start."""
    return await runs.changes(id)


@router.get("/runs/{id}/patch", response_class=Response)
async def patch_run(id: RunId, runs: UseRuns) -> Response:
    """The changes in the workspace since its start, as a patch for `git apply`."""
    held = AsyncExitStack()
    compared = await held.enter_async_context(runs.compared(id))
    return StreamingResponse(await began(compared.patch(), held), media_type="text/x-diff")


@router.get("/runs/{id}/changed-files", response_class=Response)
async def changed_files_of_run(id: RunId, runs: UseRuns) -> Response:
    """Both versions of every changed file, and where they began, as a tar archive: for a three-way merge."""
    about = await runs.about_changes(id)
    held = AsyncExitStack()
    compared = await held.enter_async_context(runs.compared(id))
    return StreamingResponse(await began(compared.changed_files(about), held), media_type="application/x-tar")


async def _thread_of(runs: Any, id: str) -> str:
    return (await runs.get(id)).thread if id.startswith("r-") else id


def _some(budget: Budget | None) -> Budget | None:
    return None if budget is None or budget.is_empty else budget


def run_info(thread: str, run: Run, waiting: int = 0, cost: Cost | None = None) -> RunInfo:
    """Returns a run for the REST API. `waiting` is the number of prompts that wait for its end."""
    error = run.error
    return RunInfo(
        id=run.run,
        thread=thread,
        agent=run.agent,
        version=run.version,
        model=run.model,
        status=run.status,
        stage=run.stage,
        started_at=run.started_at,
        ended_at=run.ended_at,
        last_sign_at=run.last_sign,
        prompts=run.prompts,
        waiting=waiting,
        resumes=run.resumes,
        provider=run.provider,
        box=run.box,
        box_how=run.box_how,
        files=run.files,
        session=run.session,
        cancel=run.cancel,
        exit_code=run.exit_code,
        error=None
        if error is None
        else RunError(code=error.get("code", "failed"), message=error.get("message", ""), hint=error.get("hint")),
        usage=None if run.usage is None else TokenUsage.from_json(run.usage),
        ended_by=run.ended_by,
        cost=cost,
        turn=run.turn,
        checkpoint=None if run.checkpoint is None or run.checkpoint.files is None else run.checkpoint.files.snapshot,
        needs_you=error is not None and error.get("code") in NEEDS_DECISION,
    )
