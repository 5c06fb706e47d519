"""REST: interpreters in the server. Output is sent as it comes, as lines of JSON."""

from __future__ import annotations

import asyncio
import base64
import codecs
import contextlib
import json
import secrets
from collections.abc import AsyncIterator, Mapping
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Annotated, Any, Final

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import Response, StreamingResponse
from pydantic import TypeAdapter, ValidationError

from holdfast.api.box.box import Box
from holdfast.api.box.records import Preview
from holdfast.api.box.spec import OnIdle
from holdfast.api.errors import HoldfastError
from holdfast.api.errors.boxes import BoxError
from holdfast.api.errors.interpreters import InvalidInterpreter
from holdfast.api.interpreters import (
    ExecutionArtifact,
    ExecutionError,
    InterpreterDetail,
    InterpreterInfo,
    InterpreterPage,
    InterpreterSettings,
    LoadedState,
    NewExecution,
    NewInterpreter,
    RemoteExecution,
    SavedSession,
    SessionName,
    WorkspaceChange,
    WorkspaceTransition,
)
from holdfast.api.limits import InterpreterId, PortNumber
from holdfast.guest.kernel import value_codec
from holdfast.interpreter.execution import Execution
from holdfast.interpreter.record import THREAD_LABEL
from holdfast.server.environments import spec_of
from holdfast.server.routes.requests import BOX_ERRORS, OCTETS, began, binary_answer, binary_body, preview_of
from holdfast.server.routes.services import Administrator, Use
from holdfast.threads.rows import RowFilter, ThreadRow, parse_cursor

if TYPE_CHECKING:
    from holdfast.server.interpreter.interpreters import Description, Made, ServerInterpreters, Underway

NDJSON: Final = "application/x-ndjson"
_STATE_LIMIT: Final = 4 << 30
_SILENCE: Final = 15.0
"""Seconds without a line after which an empty line is sent, to show that the server is there."""
_SETTINGS: Final = TypeAdapter(InterpreterSettings)
_TRANSITION: Final = TypeAdapter(WorkspaceTransition)

router = APIRouter(prefix="/v1/interpreters", responses=BOX_ERRORS, tags=["interpreters"])


async def _interpreters(services: Use, _: Administrator) -> ServerInterpreters:
    return await services.interpreters.get()


if TYPE_CHECKING:
    UseInterpreters = Annotated[ServerInterpreters, Depends(_interpreters)]
else:
    # Loaded with the first request for an interpreter, because it imports much.
    UseInterpreters = Annotated[Any, Depends(_interpreters)]


# --- settings ---


def to_made(settings: InterpreterSettings) -> Made:
    """Raises `InvalidInterpreter` if an output field has no type that SUBMIT knows."""
    from holdfast.interpreter.bridge.budget import Limits
    from holdfast.interpreter.bridge.submit_fields import parse_fields
    from holdfast.server.interpreter.interpreters import Made

    output_fields = None
    if settings.output_fields is not None:
        output_fields = [{"name": each.name, "type": each.type} for each in settings.output_fields]
        parse_fields(output_fields)  # refuse it now, and not when the interpreter is opened again
    limits = settings.limits
    return Made(
        document=settings.to_json(),  # whole: a null may stand for no limit, where the default is one
        # A sleeping box would lose the state in memory.
        spec=replace(spec_of(settings.box), on_idle=OnIdle.KEEP, idle_seconds=None),
        template=settings.template,
        model=settings.model,
        repo_url=settings.repo_url,
        ref=settings.ref,
        volume=settings.volume,
        workspace=settings.workspace,
        output_fields=output_fields,
        timeout=settings.timeout_seconds,
        output_limit=settings.output_limit,
        memory=settings.memory,
        restore=settings.restore,
        limits=Limits(
            calls=limits.calls,
            tokens=limits.tokens,
            cost=limits.cost,
            seconds=limits.seconds,
            call_seconds=limits.call_seconds,
        ),
    )


def read_made(document: Mapping[str, Any]) -> Made:
    """Parse the settings on a thread, with the checks of a new request. Raises ValueError."""
    try:
        return to_made(_SETTINGS.validate_python(document))
    except ValidationError as error:
        raise ValueError(f"{error.error_count()} of its settings are invalid") from None


# --- conversion to API types ---


def _info(row: ThreadRow, box: str | None, is_live: bool) -> InterpreterInfo:
    return InterpreterInfo(**_facts(row, box, is_live))


def _detail(found: Description) -> InterpreterDetail:
    history = found.history
    started, workspace = history.started or {}, history.workspace
    return InterpreterDetail(
        **_facts(found.row, found.box, found.is_live),
        python=_text(started.get("python")),
        transition=None if workspace is None else _transition(workspace),
        executions=len(history.executions),
        calls=history.calls,
        input_tokens=history.input_tokens,
        output_tokens=history.output_tokens,
        cost=history.cost,
        settings=None if history.settings is None else dict(history.settings),
        creator=found.creator,
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


def _transition(payload: Mapping[str, Any]) -> WorkspaceTransition | None:
    """The details on the thread. Any client may have written them, so they are checked."""
    document = {"kind": payload.get("transition"), "reason": payload.get("reason"), "changed": payload.get("changed")}
    try:
        return _TRANSITION.validate_python(document)
    except ValidationError:
        return None


def _execution(done: Execution) -> RemoteExecution:
    error = done.error
    return RemoteExecution(
        id=done.id,
        ok=done.ok,
        stdout=_sound(done.stdout),
        stderr=_sound(done.stderr),
        value=_form(done.value),
        value_text=None if done.value_text is None else _sound(done.value_text),
        value_missing=None if done.value_missing is None else _sound(done.value_missing),
        error=None
        if error is None
        else ExecutionError(
            kind=_sound(error.kind),
            message=_sound(error.message),
            traceback=_sound(error.traceback),
            syntax=error.syntax,
        ),
        submitted=None if done.submitted is None else {name: _form(each) for name, each in done.submitted.items()},
        artifacts=tuple(
            ExecutionArtifact(
                name=_sound(each.name),
                media_type=_sound(each.media_type),
                path=_sound(each.path),
                size=each.size,
                data=None if each.data is None else base64.b64encode(each.data).decode(),
            )
            for each in done.artifacts
        ),
        seconds=done.seconds,
        compute_seconds=done.compute_seconds,
        state_lost=done.state_lost,
        restored=done.restored,
        text=_sound(done.text),
    )


def _sound(text: str) -> str:
    return text.encode("utf-8", "replace").decode()


def _form(value: Any) -> Any:
    """A value as JSON. Values that JSON does not have get a form with `$`."""
    try:
        return json.loads(value_codec.dump(value).decode("utf-8", "replace"))
    except (value_codec.Unshippable, ValueError):
        return None


# --- routes ---


@router.post("", status_code=201)
async def create_interpreter(
    interpreters: UseInterpreters, grant: Administrator, new: NewInterpreter | None = None
) -> InterpreterDetail:
    """Create an interpreter: a box, and a Python in it that keeps its state. Its tenant and user are the caller's."""
    wanted = new or NewInterpreter()
    settings = InterpreterSettings(**{each.name: getattr(wanted, each.name) for each in fields(InterpreterSettings)})
    id = await interpreters.create(to_made(settings), grant.caller, title=wanted.title, labels=wanted.labels)
    return _detail(await interpreters.describe(id))


@router.get("")
async def list_interpreters(
    interpreters: UseInterpreters,
    deleted: Annotated[bool, Query(description="Only deleted interpreters.")] = False,
    cursor: str | None = None,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
) -> InterpreterPage:
    """List interpreters, including those of scripts and notebooks, most recently active first."""
    after = parse_cursor(cursor) if cursor is not None else None
    page = await interpreters.page(
        RowFilter(labels=((THREAD_LABEL, None),), archived=deleted, limit=limit, after=after)
    )
    boxes = await interpreters.boxes()
    found = [(row, row.labels.get(THREAD_LABEL, "")) for row in page.rows]
    return InterpreterPage(
        interpreters=tuple(_info(row, boxes.get(id), interpreters.is_live(id)) for row, id in found),
        next_cursor=page.next_cursor,
    )


@router.get("/{id}")
async def get_interpreter(id: InterpreterId, interpreters: UseInterpreters) -> InterpreterDetail:
    """Get an interpreter: its box, its executions and its use of tokens."""
    return _detail(await interpreters.describe(id))


@router.get("/{id}/preview")
async def preview_port(
    id: InterpreterId,
    request: Request,
    services: Use,
    interpreters: UseInterpreters,
    port: Annotated[PortNumber, Query()],
) -> Preview:
    """The URL of a port that code of an interpreter listens on. It contains a credential for that port, valid for a few
    minutes."""
    return preview_of(services, request, await interpreters.box_of(id), port)


@router.delete("/{id}", status_code=204)
async def delete_interpreter(id: InterpreterId, interpreters: UseInterpreters) -> None:
    """Delete an interpreter with its box and state. Its volume stays, and so does its thread, archived."""
    await interpreters.delete(id)


@router.post("/{id}/execute")
async def execute_code(
    id: InterpreterId, new: NewExecution, request: Request, services: Use, interpreters: UseInterpreters
) -> RemoteExecution:
    """Run code to its end. Errors of the code are in the answer. The code keeps running if the client leaves.

    With the header `traceparent`, it is part of the caller's trace.
    """
    underway = await _begin(id, new, request, interpreters)
    async for event in services.shutdown.until_stopping(underway.follow()):
        if isinstance(event, Execution):
            return _execution(event)
    raise AssertionError("an execution ends with its result")


@router.post(
    "/{id}/execute/stream",
    response_class=Response,
    responses={200: {"description": "Lines of JSON: output, then the result.", "content": {NDJSON: {}}}},
)
async def stream_code(
    id: InterpreterId, new: NewExecution, request: Request, services: Use, interpreters: UseInterpreters
) -> Response:
    """Run code, and send its output as it comes: `{"type": "output", "stream", "text"}`; the last line is
    `{"type": "result", …}` or `{"type": "error", …}`. Empty lines mean that it is still running."""
    underway = await _begin(id, new, request, interpreters)
    lines = _lines(services.shutdown.until_stopping(underway.follow()), underway.id)
    return StreamingResponse(await began(lines), media_type=NDJSON)


@router.post("/{id}/interrupt", status_code=204)
async def interrupt_code(id: InterpreterId, interpreters: UseInterpreters) -> None:
    """Raise KeyboardInterrupt in the running code, if there is any."""
    await interpreters.interrupt(id, read_made)


@router.post("/{id}/reset", status_code=204)
async def reset_interpreter(id: InterpreterId, interpreters: UseInterpreters) -> None:
    """Clear the memory: start a new Python in the same box. Files and thread stay; running code is ended."""
    await interpreters.reset(id, read_made)


@router.post("/{id}/workspace")
async def configure_workspace(
    id: InterpreterId, change: WorkspaceChange, interpreters: UseInterpreters
) -> WorkspaceTransition:
    """Change the workspace in place. The state in memory stays, unless another box is needed."""
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
    made = replace(made, document=document)
    transition = await interpreters.configure(id, made, change.force_new, changed, read_made)
    return WorkspaceTransition(kind=transition.kind.value, reason=transition.reason, changed=transition.changed)


@router.get(
    "/{id}/state", response_class=Response, responses=binary_answer("The state in memory. The headers describe it.")
)
async def export_state(id: InterpreterId, interpreters: UseInterpreters) -> Response:
    """Export the state in memory as bytes, for `PUT` to this or another interpreter."""
    interpreter = await interpreters.interpreter(id, read_made)
    path = _passing()
    saved = await interpreter.save_state(path)
    headers = {"holdfast-names": str(len(saved.names)), "holdfast-unsaved": _header(saved.unsaved)}
    return StreamingResponse(await began(_read(interpreter.box, path)), media_type=OCTETS, headers=headers)


@router.put("/{id}/state", openapi_extra=binary_body())
async def import_state(id: InterpreterId, request: Request, interpreters: UseInterpreters) -> LoadedState:
    """Replace the state in memory by an exported one. They are never merged."""
    interpreter = await interpreters.interpreter(id, read_made)
    path = _passing()
    try:
        await interpreter.box.files.write(path, _bounded(request.stream()), mode=0o600)
        loaded = await interpreter.load_state(path)
    finally:
        await _remove(interpreter.box, path)
    return LoadedState(names=loaded.names, unsaved=dict(loaded.unsaved))


@router.post("/{id}/sessions/{session}/save")
async def save_session(id: InterpreterId, session: SessionName, interpreters: UseInterpreters) -> SavedSession:
    """Save the state in memory on the volume, as a session of the user who created the interpreter."""
    saved = await (await interpreters.interpreter(id, read_made)).save_session(session)
    return SavedSession(names=saved.names, unsaved=dict(saved.unsaved))


@router.post("/{id}/sessions/{session}/load")
async def load_session(id: InterpreterId, session: SessionName, interpreters: UseInterpreters) -> LoadedState:
    """Replace the state in memory by a session of the user who created the interpreter."""
    loaded = await (await interpreters.interpreter(id, read_made)).load_session(session)
    return LoadedState(names=loaded.names, unsaved=dict(loaded.unsaved))


def _passing() -> str:
    """A temporary file in the box."""
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
    """Names and reasons as JSON, cut to what fits into a header."""
    few = {_sound(name)[:100]: _sound(why)[:100] for name, why in list(unsaved.items())[:20]}
    return json.dumps({"count": len(unsaved), "first": few})


async def _begin(id: str, new: NewExecution, request: Request, interpreters: ServerInterpreters) -> Underway:
    try:
        variables = {name: value_codec.from_form(value) for name, value in new.variables.items()}
    except (LookupError, TypeError, ValueError, ArithmeticError, RecursionError) as error:
        raise InvalidInterpreter(f"a variable is invalid: {error}") from None
    execution = new.id or f"x-{secrets.token_hex(8)}"
    return await interpreters.execute(
        id, new.code, variables, new.timeout_seconds, execution, read_made, request.headers
    )


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
                yield _line({"type": "result", **_execution(event).to_json()})
                return
            if not isinstance(event, tuple):
                yield _line({"type": "missed", "chunks": event.chunks})
            else:
                stream, data = event
                # Even for half a character: a client that reconnects counts lines.
                yield _line({"type": "output", "stream": stream, "text": decoders[stream].decode(data)})
    except HoldfastError as error:
        problem = {"code": error.code, "message": error.message, "hint": error.hint}
        yield _line({"type": "error", "error": problem})
    finally:
        if coming is not None:
            coming.cancel()
            await asyncio.gather(coming, return_exceptions=True)


def _line(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace") + b"\n"
