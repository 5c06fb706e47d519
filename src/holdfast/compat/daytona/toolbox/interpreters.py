"""Interpreter contexts: a Python in the box that keeps its variables from one piece of code to the next.

A context is a process in its box (`in_box.interpreter`). The words of its command name it, so any server finds it. The
interpreters of Holdfast itself do more (callbacks, saved state) and need a host that stays; these need none.
"""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import json
import posixpath
import uuid
from typing import Annotated, Any, Final

from pydantic import Field, TypeAdapter
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.websockets import WebSocket

from holdfast.api.box.box import Box
from holdfast.api.box.files import FileKind
from holdfast.api.box.process import Process, ProcessInfo, ProcessState
from holdfast.api.errors.boxes import BoxConflict, BoxError, FileProblem
from holdfast.compat.daytona.http.errors import ApiError, bad_request, conflict, not_found
from holdfast.compat.daytona.http.requests import answer, body_of
from holdfast.compat.daytona.http.websockets import both, close, ignore, receive, serve
from holdfast.compat.daytona.in_box import bootstrap
from holdfast.compat.daytona.models import Body, Variables
from holdfast.compat.daytona.recent import Recent
from holdfast.compat.daytona.sandbox_record import timestamp
from holdfast.compat.daytona.toolbox.access import Opened, opened
from holdfast.compat.daytona.toolbox.frames import BrokenFrames, following
from holdfast.time_limit import time_limit

_PROGRAM: Final = "interpreter"
DEFAULT: Final = "default"
"""The context of code that names none."""
_MOST: Final = 100
_DEFAULT_SECONDS: Final = 600
_REQUEST_SECONDS: Final = 30.0
_TIMED_OUT: Final = 4008
_PYTHON: Final = "for each in python3 python; do if command -v $each >/dev/null 2>&1; then echo $each; exit; fi; done"


class NewContext(Body):
    cwd: Annotated[str, Field(max_length=4095, pattern=r"^[^\x00]*$")] | None = None
    language: Annotated[str, Field(max_length=50)] | None = None


class Code(Body):
    code: Annotated[str, Field(max_length=1024 * 1024)]
    context_id: Annotated[str, Field(max_length=255)] | None = None
    envs: Variables | None = None
    timeout: Annotated[int, Field(ge=0, le=7 * 24 * 3600)] | None = None


_CODE: Final = TypeAdapter(Code)
Locks = Recent[asyncio.Lock]
"""Of sandboxes, while a context is looked for and begun."""
Offsets = Recent[int]
"""Up to where the output of contexts was read, by process. What is older belongs to earlier code."""


async def _all(box: Box) -> dict[str, ProcessInfo]:
    found: dict[str, ProcessInfo] = {}
    for info in await box.processes():
        words = bootstrap.words_of(info.argv, _PROGRAM)
        if words and info.state is ProcessState.RUNNING:
            found[words[0]] = info
    return found


async def _spawn(at: Opened, id: str, folder: str) -> Process:
    done = await at.box.exec(["/bin/sh", "-c", _PYTHON], env=at.environment(), timeout=30, max_output=4096)
    python = (done.text.strip(),) if done.text.strip() else await at.box.python()
    argv = bootstrap.argv(python, _PROGRAM, id, folder)
    process = await at.box.spawn(argv, env=at.environment(), cwd=folder, stdin=True, tree=True)
    await process.write(bootstrap.stdin(_PROGRAM))
    return process


def _shown(id: str, folder: str, started_at: int) -> dict[str, Any]:
    return {"id": id, "cwd": folder, "language": "python", "active": True, "createdAt": timestamp(started_at)}


# --- routes ---


async def create_context(request: Request) -> Response:
    async with opened(request) as at:
        new = await body_of(request, NewContext)
        if new.language not in (None, "", "python"):
            raise bad_request(f"language {new.language!r}: contexts run python")
        if len(await _all(at.box)) >= _MOST:
            raise conflict(f"a sandbox has at most {_MOST} contexts: delete some")
        home = at.sandbox.row.spec.workdir
        folder = posixpath.normpath(posixpath.join(home, new.cwd or home))
        await _check_folder(at.box, folder)
        id = str(uuid.uuid4())
        process = await _spawn(at, id, folder)
        return answer(_shown(id, folder, (await process.info()).started_at))


async def _check_folder(box: Box, folder: str) -> None:
    try:
        is_folder = (await box.files.stat(folder)).kind in (FileKind.FOLDER, FileKind.LINK)
    except FileProblem:
        is_folder = False
    if not is_folder:
        raise bad_request(f"cwd {folder}: there is no such folder")


async def list_contexts(request: Request) -> Response:
    """The contexts that were created. The default one is not among them."""
    async with opened(request) as at:
        found = {id: info for id, info in (await _all(at.box)).items() if id != DEFAULT}
    shown = []
    for id, info in found.items():
        words = bootstrap.words_of(info.argv, _PROGRAM)
        assert words is not None
        shown.append(_shown(id, words[1], info.started_at))
    return answer({"contexts": shown})


async def delete_context(request: Request) -> Response:
    async with opened(request) as at:
        id = request.path_params["context"]
        if id == DEFAULT:
            raise bad_request("the default context cannot be deleted")
        info = (await _all(at.box)).get(id)
        if info is None:
            raise not_found(f"context {id[:100]} not found")
        process = await at.box.process(info.id)
        await process.kill()
        await process.wait(30)
    return answer({"message": "Context deleted successfully"})


async def execute(socket: WebSocket) -> None:
    """Run code. The first message says which; what it prints and raises comes back as it happens."""

    async def work() -> None:
        async with opened(socket) as at:
            await socket.accept()
            code = await _first(socket)
            locks: Locks = socket.app.state.context_locks
            async with locks.get_or_make(at.sandbox.row.id, asyncio.Lock):  # or two would begin the default context
                process = await _context(at, code.context_id or DEFAULT)
            id = str(uuid.uuid4())
            seconds = _DEFAULT_SECONDS if code.timeout is None else code.timeout
            try:
                async with time_limit(seconds or None):
                    await both(_run(socket, process, id, code), ignore(socket))
            except TimeoutError:
                await _interrupt(process, id)
                await close(socket, _TIMED_OUT, "execution timed out")
                return
            except BaseException:
                # The client left, or the server stops: nobody would read what comes.
                await asyncio.shield(_interrupt(process, id))
                raise
            await close(socket)

    await serve(socket, work)


async def _first(socket: WebSocket) -> Code:
    try:
        async with time_limit(_REQUEST_SECONDS):
            return _CODE.validate_json(await receive(socket))
    except TimeoutError:
        raise bad_request("the first message, which has the code, did not come in time") from None


async def _context(at: Opened, id: str) -> Process:
    info = (await _all(at.box)).get(id)
    if info is not None:
        return await at.box.process(info.id)
    if id != DEFAULT:
        raise not_found(f"context {id[:100]} not found")
    return await _spawn(at, DEFAULT, at.sandbox.row.spec.workdir)


async def _run(socket: WebSocket, process: Process, id: str, code: Code) -> None:
    offsets: Offsets = socket.app.state.context_offsets
    offset = offsets.get(process.id) or 0
    try:
        await process.write(json.dumps({"id": id, "code": code.code, "envs": code.envs or {}}).encode() + b"\n")
    except BoxConflict:
        raise ApiError(410, "the context has ended") from None
    kinds = {"out": "stdout", "err": "stderr"}
    # A program may write a letter in two pieces.
    decoders = {kind: codecs.getincrementaldecoder("utf-8")("replace") for kind in kinds}
    async for frame in following(process, offset):
        if frame.command != id:
            continue
        if frame.kind in kinds:
            await _say(socket, kinds[frame.kind], decoders[frame.kind].decode(frame.data))
        elif frame.kind == "exit":
            for kind, decoder in decoders.items():
                await _say(socket, kinds[kind], decoder.decode(b"", final=True))
            if error := frame.head.get("error"):
                await socket.send_text(json.dumps({"type": "error", **_problem(error)}))
            offsets.set(process.id, frame.end)
            await socket.send_text(json.dumps({"type": "control", "text": "completed"}))
            return
    raise ApiError(410, "the context ended while the code ran")


async def _say(socket: WebSocket, kind: str, text: str) -> None:
    if text:
        await socket.send_text(json.dumps({"type": kind, "text": text}))


def _problem(told: Any) -> dict[str, str]:
    """The error of the code, as the box tells it."""
    if not isinstance(told, dict):
        raise BrokenFrames
    return {name: str(told.get(name) or "") for name in ("name", "value", "traceback")}


async def _interrupt(process: Process, id: str) -> None:
    """Interrupt code that runs or waits. The context keeps its variables, unless the code does not end when asked."""
    with contextlib.suppress(BoxError):
        await process.write(json.dumps({"interrupt": id}).encode() + b"\n")


def routes() -> list[BaseRoute]:
    table: list[tuple[str, str, Any]] = [
        ("GET", "/process/interpreter/context", list_contexts),
        ("POST", "/process/interpreter/context", create_context),
        ("DELETE", "/process/interpreter/context/{context}", delete_context),
    ]
    return [
        *(Route(path, endpoint, methods=[method]) for method, path, endpoint in table),
        WebSocketRoute("/process/interpreter/execute", execute),
    ]
