"""REST: runs, launched, looked at, steered, cancelled and gone on with; and the workspaces that they begin with."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response, StreamingResponse
from pydantic import AfterValidator, Field, StrictBool, StringConstraints

from holdfast.api.limits import MAX_PROMPT, MAX_TIMEOUT, EntryId, Labels, Printable, ThreadId, Title
from holdfast.api.run_info import RunInfo
from holdfast.boxes.spec import BoxSpec
from holdfast.runs.request import Options, Prompt, with_life
from holdfast.server.routes.box_requests import BOX_ERRORS, began, binary_body
from holdfast.server.routes.box_schemas import NetworkModel, PathText, ProviderName, without_nul
from holdfast.server.routes.run_info import run_info
from holdfast.server.routes.schemas import Model
from holdfast.server.routes.services import Caller, Use, UseRuns
from holdfast.threads.access.credentials import Scope
from holdfast.threads.errors import Forbidden
from holdfast.threads.rows import RunFilter
from holdfast.threads.run_events import RunStatus

router = APIRouter(prefix="/v1", tags=["runs"], responses=BOX_ERRORS)

PromptText = Annotated[str, StringConstraints(min_length=1, max_length=MAX_PROMPT), AfterValidator(without_nul)]
AgentName = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9-]{0,31}(:[^\x00-\x1f\x7f]{1,1000})?$")]
"""Of one that is made by a command: `acp:opencode acp`."""
ModelName = Annotated[str, StringConstraints(min_length=1, max_length=256), AfterValidator(without_nul)]
Digest = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
RunId = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_-]{1,128}$")]
"""Of a run (`r-…`), or of a thread: its latest run."""


Bytes = Annotated[int, Field(ge=16 * 1024 * 1024, lt=1 << 60, strict=True)]
DiskBytes = Annotated[int, Field(ge=1024 * 1024, lt=1 << 60, strict=True)]


class RunBox(Model):
    """The box of a run, as asked for. What is left out is left to the provider."""

    provider: ProviderName = "local"
    image: Annotated[str, StringConstraints(min_length=1, max_length=511), AfterValidator(without_nul)] | None = None
    cpu: Annotated[float, Field(ge=0.01, le=1024, allow_inf_nan=False, strict=True)] | None = None
    memory: Bytes | None = None
    disk: DiskBytes | None = None
    pids: Annotated[int, Field(ge=4, lt=1 << 60, strict=True)] | None = None
    workdir: PathText = "/workspace"
    network: NetworkModel = Field(default_factory=NetworkModel)
    idle_seconds: Annotated[int, Field(ge=1, lt=1 << 40, strict=True)] | None = None
    """After which it sleeps, until it is needed again."""

    def to_spec(self) -> BoxSpec:
        return with_life(BoxSpec.from_json(self.model_dump(mode="json", by_alias=True, exclude_none=True)))


class NewRun(Model):
    prompt: PromptText
    prompt_id: EntryId | None = None
    """Of the prompt's entry. To ask twice with the same one is to launch once."""
    author_id: Printable | None = None
    agent: AgentName
    model: ModelName | None = None
    """`NAME` or `NAME/MODEL`; the only one, where it is left out."""
    thread: ThreadId | None = None
    """One that is there and idle. Else a new one is made."""
    new_thread: ThreadId | None = None
    """The id of the new one."""
    title: Title | None = None
    labels: Labels = Field(default_factory=dict)
    workspace: Digest | None = None
    """What the workspace begins with, uploaded before."""
    box: RunBox | None = None
    """Left out: as the thread's box is, or as boxes are."""
    timeout: Annotated[int, Field(ge=1, le=MAX_TIMEOUT, strict=True)] | None = None
    """Seconds that the run may take in all, after which it is ended as `timed_out`."""


class LaunchedModel(Model):
    thread: str
    run: str
    prompt: str
    """Id of its entry."""


class WantedRun(Model):
    """A run before it is asked for: everything but its prompt and its files."""

    agent: AgentName
    model: ModelName | None = None
    thread: ThreadId | None = None
    box: RunBox | None = None


class CheckedRun(Model):
    agent: str
    model: str
    """`NAME/MODEL`."""


class RunList(Model):
    runs: list[RunInfo]
    next_cursor: str | None


class Cancel(Model):
    by: Printable | None = None


class Steer(Model):
    prompt: PromptText
    prompt_id: EntryId | None = None
    author_id: Printable | None = None
    interrupt: StrictBool = False
    """End what the agent is doing, and go on with this."""


class SteeredModel(Model):
    thread: str
    run: str
    """The run that goes on, or the one that was launched."""
    prompt: str
    how: Literal["queued", "interrupting", "launched"]


class Resume(Model):
    prompt: PromptText | None = None
    """What to do next; where it is left out, to go on."""
    prompt_id: EntryId | None = None
    author_id: Printable | None = None
    agent: AgentName | None = None
    model: ModelName | None = None
    fresh: StrictBool = False
    """In a new box, with the files of the old one where they can be had."""
    box: RunBox | None = None
    network: NetworkModel | None = None
    """What its box may reach from now on; all else stays as it is."""
    memory: Bytes | None = None
    """What its box may take from now on. A new box takes its place, with its files."""
    disk: DiskBytes | None = None
    timeout: Annotated[int, Field(ge=0, le=MAX_TIMEOUT, strict=True)] | None = None
    """As of a launch; 0 is none. Left out: as before."""


class FindingModel(Model):
    stage: str
    ok: bool | None
    """None: it has not come that far, or nobody can say."""
    detail: str
    next_step: str | None


class DiagnosisModel(Model):
    run: str | None
    status: str
    findings: list[FindingModel]
    wrong: str | None
    next_step: str | None


class FileChangeModel(Model):
    path: str
    how: Literal["added", "changed", "deleted"]
    binary: bool
    added: int
    removed: int


class ChangesModel(Model):
    files: list[FileChangeModel]
    patch: str
    """The beginning of the patch, for people; `/patch` has all of it, byte for byte."""
    truncated: bool
    """There are more files, or there is more of the patch, than is here."""
    exact: bool
    """`patch` is the whole one, byte for byte."""
    ignored: int
    """New files that are left out, as the workspace's `.gitignore` files say."""
    refused: list[str]
    """Paths that are left out, as git takes such names from no patch."""


class WorkspaceModel(Model):
    digest: str


@router.post("/workspaces", status_code=201, openapi_extra=binary_body())
async def keep_workspace(request: Request, runs: UseRuns) -> WorkspaceModel:
    """Keep a tar archive for a workspace to begin with. The same one twice is kept once."""
    return WorkspaceModel(digest=await runs.workspaces.keep(_body(request)))


async def _body(request: Request) -> AsyncIterator[bytes]:
    async for piece in request.stream():
        if piece:
            yield piece


@router.post("/runs", status_code=201)
async def launch_run(new: NewRun, runs: UseRuns) -> LaunchedModel:
    """Begin a run. Answers once its prompt is on disk; the thread tells the rest."""
    spec = None if new.box is None else new.box.to_spec()
    launched = await runs.launch(
        Prompt(new.prompt, new.prompt_id, new.author_id),
        Options(new.agent, new.model, spec, new.workspace, timeout=new.timeout),
        thread=new.thread,
        new_thread=new.new_thread,
        title=new.title,
        labels=new.labels,
    )
    return LaunchedModel(thread=launched.thread, run=launched.run, prompt=launched.prompt)


@router.post("/runs/check")
async def check_run(wanted: WantedRun, runs: UseRuns) -> CheckedRun:
    """Say which agent and model a run would use, or why it would be refused. Begins nothing.

    For whoever would have to send files first.
    """
    spec = None if wanted.box is None else wanted.box.to_spec()
    checked = await runs.check(Options(wanted.agent, wanted.model, spec), thread=wanted.thread)
    return CheckedRun(agent=checked.agent, model=checked.model or "")


@router.get("/runs")
async def list_runs(
    runs: UseRuns,
    thread: ThreadId | None = None,
    status: RunStatus | None = None,
    agent: AgentName | None = None,
    cursor: RunId | None = None,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
) -> RunList:
    """List runs, the newest first."""
    found = await runs.list(RunFilter(thread, status, agent, limit + 1, cursor))
    page = found[:limit]
    return RunList(
        runs=[run_info(each.thread, each.run) for each in page],
        next_cursor=page[-1].run.run if len(found) > len(page) else None,
    )


@router.get("/runs/{id}")
async def get_run(id: RunId, services: Use, grant: Caller) -> RunInfo:
    """Look at a run, or at the latest of a thread."""
    runs = await services.runs.get()
    if grant.thread is not None:
        # Before anything is looked up for it: to others, what is there and what is not must look alike.
        thread = await runs.thread_of(id) if id.startswith("r-") else id
        if thread != grant.thread:
            raise Forbidden(f"this token is for thread {grant.thread}, not for {id}")
    found = await runs.get(id)
    grant.check_thread(found.thread, Scope.READ)
    return run_info(found.thread, found.run)


@router.post("/runs/{id}/cancel")
async def cancel_run(id: RunId, runs: UseRuns, cancel: Cancel | None = None) -> RunInfo:
    """End a run. One that has ended stays as it is."""
    found = await runs.cancel(id, by=None if cancel is None else cancel.by)
    return run_info(found.thread, found.run)


@router.post("/runs/{id}/steer")
async def steer_run(id: RunId, steer: Steer, runs: UseRuns) -> SteeredModel:
    """Say something to a thread whose run may be going on: it waits for its end, or brings that about."""
    thread = await _thread_of(runs, id)
    prompt = Prompt(steer.prompt, steer.prompt_id, steer.author_id)
    steered = await runs.steer(thread, prompt, interrupt=steer.interrupt)
    return SteeredModel.model_validate(
        {"thread": steered.thread, "run": steered.run, "prompt": steered.prompt, "how": steered.how}
    )


@router.post("/runs/{id}/resume", status_code=201)
async def resume_run(id: RunId, runs: UseRuns, resume: Resume | None = None) -> LaunchedModel:
    """Go on with a thread: in its box, or in a new one, with its agent, or with another."""
    wanted = resume or Resume()
    prompt = None if wanted.prompt is None else Prompt(wanted.prompt, wanted.prompt_id, wanted.author_id)

    def change(options: Options) -> Options:
        spec = options.spec if wanted.box is None else wanted.box.to_spec()
        if wanted.network is not None:
            spec = replace(options.box if spec is None else spec, network=wanted.network.to_policy())
        if wanted.memory is not None:
            spec = replace(options.box if spec is None else spec, memory=wanted.memory)
        if wanted.disk is not None:
            spec = replace(options.box if spec is None else spec, disk=wanted.disk)
        timeout = options.timeout if wanted.timeout is None else wanted.timeout or None
        return replace(options, spec=spec, fresh=wanted.fresh, timeout=timeout)

    launched = await runs.resume(
        await _thread_of(runs, id), prompt, agent=wanted.agent, model=wanted.model, change=change
    )
    return LaunchedModel(thread=launched.thread, run=launched.run, prompt=launched.prompt)


@router.get("/runs/{id}/diagnose")
async def diagnose_run(id: RunId, runs: UseRuns) -> DiagnosisModel:
    """How far a run came, what is wrong with it, and what to do."""
    found = await runs.diagnose(id)
    return DiagnosisModel(
        run=found.run,
        status=found.status,
        findings=[
            FindingModel(stage=each.stage, ok=each.ok, detail=each.detail, next_step=each.next_step)
            for each in found.findings
        ],
        wrong=found.wrong,
        next_step=found.next_step,
    )


@router.get("/runs/{id}/diff")
async def diff_run(id: RunId, runs: UseRuns) -> ChangesModel:
    """The workspace of a thread as it is now, against what it began with."""
    found = await runs.changes(id)
    files: list[dict[str, Any]] = [
        {
            "path": each.path,
            "how": each.how,
            "binary": each.binary,
            "added": each.added,
            "removed": each.removed,
        }
        for each in found.files
    ]
    return ChangesModel.model_validate(
        {
            "files": files,
            "patch": found.patch,
            "truncated": found.truncated,
            "exact": found.exact,
            "ignored": found.ignored,
            "refused": list(found.refused),
        }
    )


@router.get("/runs/{id}/patch", response_class=Response)
async def patch_run(id: RunId, runs: UseRuns) -> Response:
    """What `git apply` makes the workspace as it is now of what it began with."""
    held = AsyncExitStack()
    compared = await held.enter_async_context(runs.compared(id))
    return StreamingResponse(await began(compared.patch(), held), media_type="text/x-diff")


async def _thread_of(runs: Any, id: str) -> str:
    return (await runs.get(id)).thread if id.startswith("r-") else id
