"""REST: interpreters that live in the server. What is printed comes as it is printed, a line of JSON each."""

from __future__ import annotations

import asyncio
import base64
import codecs
import contextlib
import json
import secrets
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import Response, StreamingResponse
from pydantic import Field, JsonValue, StringConstraints, ValidationError
from pydantic.functional_validators import AfterValidator

from holdfast.api.errors import HoldfastError
from holdfast.api.limits import Labels, ModelName, Title, VolumeName, without_nul
from holdfast.api.runs import RunBox
from holdfast.boxes.box import Box
from holdfast.boxes.errors import BoxError
from holdfast.boxes.spec import OnIdle
from holdfast.guest.kernel import value_codec
from holdfast.interpreter.errors import InvalidInterpreter
from holdfast.interpreter.record import THREAD_LABEL
from holdfast.interpreter.results import OUTPUT_LIMIT, Execution
from holdfast.server.routes.box_requests import BOX_ERRORS, OCTETS, began, binary_answer, binary_body
from holdfast.server.routes.runs import spec_of
from holdfast.server.routes.schemas import Model
from holdfast.server.routes.services import Administrator, Use
from holdfast.threads.rows import RowFilter, ThreadRow, parse_cursor

if TYPE_CHECKING:
    from holdfast.server.interpreters import Description, Made, ServerInterpreters, Underway

NDJSON: Final = "application/x-ndjson"
_STATE_LIMIT: Final = 4 << 30
_SILENCE: Final = 15.0
"""Seconds without a line before an empty one says that somebody is still there."""

router = APIRouter(prefix="/v1/interpreters", responses=BOX_ERRORS, tags=["interpreters"])

InterpreterId = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_-]{1,120}$")]
ExecutionId = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")]
Code = Annotated[str, StringConstraints(max_length=8_000_000)]
Seconds = Annotated[float, Field(gt=0, le=86_400, allow_inf_nan=False)]
Text = Annotated[str, StringConstraints(min_length=1, max_length=2048), AfterValidator(without_nul)]
Count = Annotated[int, Field(ge=0, lt=1 << 53, strict=True)]


async def _interpreters(services: Use, _: Administrator) -> ServerInterpreters:
    return await services.interpreters.get()


if TYPE_CHECKING:
    UseInterpreters = Annotated[ServerInterpreters, Depends(_interpreters)]
else:
    # What it is loads much: it is loaded when the first interpreter is asked for.
    UseInterpreters = Annotated[Any, Depends(_interpreters)]


# --- what goes in ---


class LimitsModel(Model):
    """Of the calls that code makes of the host. Left out: as interpreters have them."""

    calls: Count | None = 50
    tokens: Count | None = None
    cost: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    seconds: Seconds | None = None
    call_seconds: Seconds = 60.0


class FieldModel(Model):
    name: Annotated[str, StringConstraints(min_length=1, max_length=128)]
    type: Annotated[str, StringConstraints(min_length=1, max_length=1000)] = "Any"
    """The name of a type of Python: `list[str]`."""


class SettingsModel(Model):
    """What an interpreter is made with. All of it is on its thread."""

    template: Text | None = None
    model: ModelName | None = None
    """What `llm_query` asks; the only one, where it is left out."""
    box: RunBox = Field(default_factory=RunBox)
    repo_url: Text | None = None
    """To clone, at a URL that the box may reach."""
    ref: Annotated[str, StringConstraints(min_length=1, max_length=255)] | None = None
    volume: VolumeName | None = None
    """Mounted at `/home/box/memory`."""
    output_fields: Annotated[list[FieldModel], Field(max_length=256)] | None = None
    """What SUBMIT takes."""
    timeout_seconds: Seconds = 900.0
    output_limit: Annotated[int, Field(ge=100, le=1_000_000, strict=True)] = OUTPUT_LIMIT
    """Characters of each stream that a result has. The whole is in a file."""
    memory: Annotated[int, Field(ge=16 * 1024 * 1024, lt=1 << 60, strict=True)] | None = None
    """Bytes that its Python may take."""
    restore: Literal["fork"] | None = None
    """`fork`: a live fork is made before each execution, for the case that code has to be killed."""
    limits: LimitsModel = Field(default_factory=LimitsModel)

    def to_made(self) -> Made:
        from holdfast.interpreter.bridge.budget import Limits
        from holdfast.interpreter.bridge.submit_fields import fields_of
        from holdfast.server.interpreters import Made

        fields = None
        if self.output_fields is not None:
            fields = [{"name": each.name, "type": each.type} for each in self.output_fields]
            fields_of(fields)  # refused now, and not when it is found again
        return Made(
            document=self.model_dump(mode="json", by_alias=True, exclude_none=True),
            # Asleep, it would lose what it has in memory.
            spec=replace(spec_of(self.box), on_idle=OnIdle.KEEP, idle_seconds=None),
            template=self.template,
            model=self.model,
            repo_url=self.repo_url,
            ref=self.ref,
            volume=self.volume,
            output_fields=fields,
            timeout=self.timeout_seconds,
            output_limit=self.output_limit,
            memory=self.memory,
            restore=self.restore,
            limits=Limits(
                calls=self.limits.calls,
                tokens=self.limits.tokens,
                cost=self.limits.cost,
                seconds=self.limits.seconds,
                call_seconds=self.limits.call_seconds,
            ),
        )


def read_made(document: Mapping[str, Any]) -> Made:
    """Of a thread: checked as if it came in now."""
    try:
        return SettingsModel.model_validate(document).to_made()
    except ValidationError as error:
        raise ValueError(f"{error.error_count()} of its settings make no sense") from None


class NewInterpreter(SettingsModel):
    title: Title | None = None
    labels: Labels = Field(default_factory=dict)


class NewExecution(Model):
    code: Code
    variables: Annotated[dict[str, JsonValue], Field(max_length=10_000)] = Field(default_factory=dict)
    """Become globals before. What JSON lacks has a form with `$`: see the documentation."""
    timeout_seconds: Seconds | None = None
    id: ExecutionId | None = None
    """Asked twice with the same one, it runs once."""


class WorkspaceChange(Model):
    """What is left out stays."""

    repo_url: Text | None = None
    ref: Annotated[str, StringConstraints(min_length=1, max_length=255)] | None = None
    volume: VolumeName | None = None
    force_new: bool = False
    """Begin with another box. What only the old one had is lost."""


# --- what comes out ---


class InterpreterModel(Model):
    id: str
    thread: str
    title: str | None
    labels: dict[str, str]
    created_at: int
    last_activity_at: int
    is_live: bool
    """It is in the server's memory now. Else it is found again when it is used."""
    box: str | None
    """None: it has none any more."""

    @classmethod
    def of(cls, row: ThreadRow, box: str | None, is_live: bool) -> InterpreterModel:
        return cls(**_facts(row, box, is_live))


class InterpreterList(Model):
    interpreters: list[InterpreterModel]
    next_cursor: str | None


class TransitionModel(Model):
    kind: Literal["created", "reused", "resumed", "recreated"]
    reason: str
    changed: list[str] = Field(default_factory=list)


class InterpreterDetail(InterpreterModel):
    python: str | None
    transition: TransitionModel | None
    """How it came to the box that it has."""
    executions: int
    calls: int
    """That its code made of the host."""
    input_tokens: int
    output_tokens: int
    cost: float
    settings: dict[str, JsonValue] | None
    """None: it lives in the process that made it."""

    @classmethod
    def told(cls, found: Description) -> InterpreterDetail:
        told = found.told
        started, workspace = told.started or {}, told.workspace
        return cls(
            **_facts(found.row, found.box, found.is_live),
            python=_text(started.get("python")),
            transition=None if workspace is None else _transition(workspace),
            executions=len(told.executions),
            calls=told.calls,
            input_tokens=told.input_tokens,
            output_tokens=told.output_tokens,
            cost=told.cost,
            settings=None if told.settings is None else dict(told.settings),
        )


def _facts(row: ThreadRow, box: str | None, is_live: bool) -> dict[str, Any]:
    return {
        "id": row.labels.get(THREAD_LABEL, ""),
        "thread": row.id,
        "title": row.title,
        "labels": row.labels,
        "created_at": row.created_at,
        "last_activity_at": row.last_activity_at,
        "is_live": is_live,
        "box": box,
    }


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _transition(payload: Mapping[str, Any]) -> TransitionModel | None:
    """As the thread tells it, which anybody may have written."""
    try:
        told = {"kind": payload.get("transition"), "reason": payload.get("reason"), "changed": payload.get("changed")}
        return TransitionModel.model_validate(told)
    except ValidationError:
        return None


class CodeErrorModel(Model):
    kind: str
    message: str
    traceback: str
    syntax: bool


class ArtifactModel(Model):
    name: str
    media_type: str
    path: str
    """In the box: `/v1/boxes/{id}/files` has it."""
    size: int
    data: str | None
    """Base64, where it is small enough to come along."""


class ExecutionModel(Model):
    id: str
    ok: bool
    stdout: str
    stderr: str
    value: JsonValue
    """Of the last expression, where it has a form that travels."""
    value_text: str | None
    value_missing: str | None
    """Why `value` is null although there was a value."""
    error: CodeErrorModel | None
    submitted: dict[str, JsonValue] | None
    artifacts: list[ArtifactModel]
    seconds: float
    compute_seconds: float
    state_lost: bool
    restored: bool
    """Its Python was killed: what it had in memory is as it was before this execution."""
    text: str
    """What a model reads of it."""

    @classmethod
    def of(cls, done: Execution) -> ExecutionModel:
        error = done.error
        return cls.model_construct(
            id=done.id,
            ok=done.ok,
            stdout=_sound(done.stdout),
            stderr=_sound(done.stderr),
            value=_form(done.value),
            value_text=None if done.value_text is None else _sound(done.value_text),
            error=None
            if error is None
            else CodeErrorModel.model_construct(
                kind=_sound(error.kind),
                message=_sound(error.message),
                traceback=_sound(error.traceback),
                syntax=error.syntax,
            ),
            submitted=None if done.submitted is None else {name: _form(each) for name, each in done.submitted.items()},
            artifacts=[
                ArtifactModel.model_construct(
                    name=_sound(each.name),
                    media_type=_sound(each.media_type),
                    path=_sound(each.path),
                    size=each.size,
                    data=None if each.data is None else base64.b64encode(each.data).decode(),
                )
                for each in done.artifacts
            ],
            seconds=done.seconds,
            compute_seconds=done.compute_seconds,
            value_missing=None if done.value_missing is None else _sound(done.value_missing),
            state_lost=done.state_lost,
            restored=done.restored,
            text=_sound(done.text),
        )


def _sound(text: str) -> str:
    return text.encode("utf-8", "replace").decode()


def _form(value: Any) -> Any:
    """As JSON: what that lacks has a form with `$`."""
    try:
        return json.loads(value_codec.dump(value).decode("utf-8", "replace"))
    except (value_codec.Unshippable, ValueError):
        return None


class SavedModel(Model):
    names: list[str]
    unsaved: dict[str, str]
    """Names that could not be loaded, with why."""


# --- routes ---


@router.post("", status_code=201)
async def create_interpreter(interpreters: UseInterpreters, new: NewInterpreter | None = None) -> InterpreterDetail:
    """Make an interpreter: a box, and a Python in it that keeps its state."""
    wanted = new or NewInterpreter()
    settings = SettingsModel.model_validate(wanted.model_dump(exclude={"title", "labels"}, exclude_unset=True))
    id = await interpreters.create(settings.to_made(), title=wanted.title, labels=wanted.labels)
    return InterpreterDetail.told(await interpreters.describe(id))


@router.get("")
async def list_interpreters(
    interpreters: UseInterpreters,
    deleted: Annotated[bool, Query(description="Those that were deleted instead.")] = False,
    cursor: str | None = None,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
) -> InterpreterList:
    """List interpreters, those of scripts and notebooks too, the latest active first."""
    after = parse_cursor(cursor) if cursor is not None else None
    page = await interpreters.page(
        RowFilter(labels=((THREAD_LABEL, None),), archived=deleted, limit=limit, after=after)
    )
    boxes = await interpreters.boxes()
    found = [(row, row.labels.get(THREAD_LABEL, "")) for row in page.rows]
    return InterpreterList(
        interpreters=[InterpreterModel.of(row, boxes.get(id), interpreters.is_live(id)) for row, id in found],
        next_cursor=page.next_cursor,
    )


@router.get("/{id}")
async def get_interpreter(id: InterpreterId, interpreters: UseInterpreters) -> InterpreterDetail:
    """Look at an interpreter: where it runs, and what its thread tells."""
    return InterpreterDetail.told(await interpreters.describe(id))


@router.delete("/{id}", status_code=204)
async def delete_interpreter(id: InterpreterId, interpreters: UseInterpreters) -> None:
    """Delete its box and all that it has in memory. Its thread stays, archived, and so does its volume."""
    await interpreters.delete(id)


@router.post("/{id}/execute")
async def execute_code(
    id: InterpreterId, new: NewExecution, services: Use, interpreters: UseInterpreters
) -> ExecutionModel:
    """Run code to its end. What the code does wrong is in the answer. It goes on if the client leaves."""
    underway = await _begin(id, new, interpreters)
    async for event in services.shutdown.until_stopping(underway.follow()):
        if isinstance(event, Execution):
            return ExecutionModel.of(event)
    raise AssertionError("an execution ends with its result")


@router.post(
    "/{id}/execute/stream",
    response_class=Response,
    responses={200: {"description": "A line of JSON each: output, then the result.", "content": {NDJSON: {}}}},
)
async def stream_code(id: InterpreterId, new: NewExecution, services: Use, interpreters: UseInterpreters) -> Response:
    """Run code, and say what it prints as it prints it: `{"type": "output", "stream", "text"}`; the last line is
    `{"type": "result", …}` or `{"type": "error", …}`. Empty lines say that it goes on."""
    underway = await _begin(id, new, interpreters)
    lines = _lines(services.shutdown.until_stopping(underway.follow()), underway.id)
    return StreamingResponse(await began(lines), media_type=NDJSON)


@router.post("/{id}/interrupt", status_code=204)
async def interrupt_code(id: InterpreterId, interpreters: UseInterpreters) -> None:
    """KeyboardInterrupt in the code that runs, if any does."""
    await interpreters.interrupt(id, read_made)


@router.post("/{id}/reset", status_code=204)
async def reset_interpreter(id: InterpreterId, interpreters: UseInterpreters) -> None:
    """Empty its memory: a new Python in the same box. Files and thread stay; code that runs is ended."""
    await interpreters.reset(id, read_made)


@router.post("/{id}/workspace")
async def configure_workspace(
    id: InterpreterId, change: WorkspaceChange, interpreters: UseInterpreters
) -> TransitionModel:
    """Change what it works on, in place: what is in memory stays, unless the box has to be another one."""
    before = await interpreters.made(id, read_made)
    wanted = {"repo_url": change.repo_url, "ref": change.ref, "volume": change.volume}
    changed = {name: value for name, value in wanted.items() if value is not None}
    moved = change.repo_url is not None and change.repo_url != before.repo_url
    made = replace(
        before,
        repo_url=change.repo_url or before.repo_url,
        ref=change.ref if moved or change.ref is not None else before.ref,
        volume=change.volume or before.volume,
    )
    document = {**before.document, "repoUrl": made.repo_url, "ref": made.ref, "volume": made.volume}
    made = replace(made, document={name: value for name, value in document.items() if value is not None})
    transition = await interpreters.configure(id, made, change.force_new, changed, read_made)
    return TransitionModel(kind=transition.kind.value, reason=transition.reason, changed=list(transition.changed))


@router.get(
    "/{id}/state", response_class=Response, responses=binary_answer("What it has in memory. The headers tell of it.")
)
async def export_state(id: InterpreterId, interpreters: UseInterpreters) -> Response:
    """What it has in memory, as bytes: for `PUT` here, or at another interpreter."""
    interpreter = await interpreters.interpreter(id, read_made)
    path = _passing()
    told = await interpreter.save_state(path)
    headers = {"holdfast-names": str(len(told.names)), "holdfast-unsaved": _header(told.unsaved)}
    return StreamingResponse(await began(_read(interpreter.box, path)), media_type=OCTETS, headers=headers)


@router.put("/{id}/state", openapi_extra=binary_body())
async def import_state(id: InterpreterId, request: Request, interpreters: UseInterpreters) -> SavedModel:
    """Replace all that it has in memory by what was exported: it is never merged."""
    interpreter = await interpreters.interpreter(id, read_made)
    path = _passing()
    try:
        await interpreter.box.files.write(path, _bounded(request.stream()), mode=0o600)
        loaded = await interpreter.load_state(path)
    finally:
        await _remove(interpreter.box, path)
    return SavedModel(names=list(loaded.names), unsaved=dict(loaded.unsaved))


def _passing() -> str:
    """A file of the box, for a moment."""
    return f"/tmp/.holdfast-state-{secrets.token_hex(8)}"


async def _read(box: Box, path: str) -> AsyncIterator[bytes]:
    try:
        async for piece in box.files.stream(path):
            yield piece
    finally:
        await _remove(box, path)


async def _bounded(pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    size = 0
    async for piece in pieces:
        size += len(piece)
        if size > _STATE_LIMIT:
            raise InvalidInterpreter(f"a state has {_STATE_LIMIT:,} bytes at most")
        if piece:
            yield piece


async def _remove(box: Box, path: str) -> None:
    with contextlib.suppress(BoxError):
        await box.files.delete(path)


def _header(unsaved: Mapping[str, str]) -> str:
    """Names and reasons as JSON, as much as a header can hold."""
    few = {_sound(name)[:100]: _sound(why)[:100] for name, why in list(unsaved.items())[:20]}
    return json.dumps({"count": len(unsaved), "first": few})


async def _begin(id: str, new: NewExecution, interpreters: ServerInterpreters) -> Underway:
    try:
        variables = {name: value_codec.from_form(value) for name, value in new.variables.items()}
    except (LookupError, TypeError, ValueError, ArithmeticError, RecursionError) as error:
        raise InvalidInterpreter(f"a variable is not what it says it is: {error}") from None
    execution = new.id or f"x-{secrets.token_hex(8)}"
    return await interpreters.execute(id, new.code, variables, new.timeout_seconds, execution, read_made)


async def _lines(events: AsyncIterator[Any], execution: str) -> AsyncIterator[bytes]:
    yield _line({"type": "execution", "id": execution})
    decoders = {name: codecs.getincrementaldecoder("utf-8")("replace") for name in ("stdout", "stderr")}
    coming: asyncio.Future[Any] | None = None
    try:
        while True:
            coming = coming or asyncio.ensure_future(anext(events))
            done, _ = await asyncio.wait({coming}, timeout=_SILENCE)
            if not done:
                yield b"\n"
                continue
            event, coming = coming.result(), None
            if isinstance(event, Execution):
                result = ExecutionModel.of(event).model_dump(mode="json", by_alias=True)
                yield _line({"type": "result", **result})
                return
            if not isinstance(event, tuple):
                yield _line({"type": "missed", "chunks": event.chunks})
            else:
                stream, data = event
                # Also where half a character is all there is: who comes again counts lines.
                yield _line({"type": "output", "stream": stream, "text": decoders[stream].decode(data)})
    except HoldfastError as error:
        told = {"code": error.code, "message": error.message, "hint": error.hint}
        yield _line({"type": "error", "error": told})
    finally:
        if coming is not None:
            coming.cancel()
            await asyncio.gather(coming, return_exceptions=True)


def _line(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace") + b"\n"
