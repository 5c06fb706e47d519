"""PTY sessions: a shell on a terminal in the box, which clients connect to, leave and come back to.

A session is a process in its box. The words of its command name it, so it is found again by any server.
"""

from __future__ import annotations

import base64
import binascii
import json
from typing import Annotated, Any, Final

from pydantic import Field, TypeAdapter
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.websockets import WebSocket

from holdfast.api.box.box import Box
from holdfast.api.box.process import Process, ProcessInfo, ProcessState
from holdfast.api.errors.boxes import BoxError, ProcessLost
from holdfast.boxes.process_output import find_end
from holdfast.compat.daytona.http.errors import ApiError, bad_request, conflict, not_found
from holdfast.compat.daytona.http.requests import answer, body_of, number_of
from holdfast.compat.daytona.http.websockets import MAX_FRAME, both, close, receive, serve
from holdfast.compat.daytona.models import Body, Variables
from holdfast.compat.daytona.recent import Recent
from holdfast.compat.daytona.sandbox_record import timestamp
from holdfast.compat.daytona.toolbox.access import Opened, opened

_MARK: Final = "daytona-pty"
_COMMAND: Final = (
    "/bin/sh",
    "-c",
    "if command -v bash >/dev/null 2>&1; then exec bash -i; fi; exec sh -i",
    _MARK,
)
_EXIT_CONTROL: Final = "X-Daytona-Pty-Exit-Control"
_ENVIRONMENT: Final = "X-Daytona-Pty-Envs~"
_MOST: Final = 100
_KILLED: Final = 128 + 9
_REPLAYED: Final = 1 << 20
"""How much of what a terminal printed before is sent to who connects to it."""
_VARIABLES: Final = TypeAdapter(Variables)

Name = Annotated[str, Field(min_length=1, max_length=255, pattern=r"^[^\x00-\x1f/]+$")]
Size = Annotated[int, Field(ge=1, le=1000)]
_NAME: Final = TypeAdapter(Name)


class NewTerminal(Body):
    id: Name
    cols: Size = 80
    rows: Size = 24
    cwd: Annotated[str, Field(max_length=4095, pattern=r"^[^\x00]*$")] | None = None
    envs: Variables | None = None
    lazy_start: bool = False


class NewSize(Body):
    cols: Size
    rows: Size


Sizes = Recent[tuple[int, int]]
"""The columns and rows of terminals that were resized, by process. A box does not tell them."""


def _words(info: ProcessInfo) -> tuple[str, str, str, str] | None:
    """The id, columns, rows and folder of a terminal. None for another process."""
    count = len(_COMMAND)
    if info.argv[:count] != _COMMAND or len(info.argv) != count + 4:
        return None
    id, columns, rows, folder = info.argv[count:]
    return id, columns, rows, folder


async def _all(box: Box) -> dict[str, ProcessInfo]:
    """Terminals by id. Those that were killed are gone; one whose shell has ended is kept, no longer active."""
    found: dict[str, ProcessInfo] = {}
    for info in await box.processes():
        words = _words(info)
        if words is None:
            continue
        found.pop(words[0], None)
        if info.state is ProcessState.RUNNING:
            found[words[0]] = info
    return found


async def _terminal(connection: HTTPConnection, box: Box) -> tuple[Process, ProcessInfo]:
    id = connection.path_params["session"]
    info = (await _all(box)).get(id)
    if info is None:
        raise not_found(f"PTY session {id[:100]} not found")
    return await box.process(info.id), info


def _shown(connection: HTTPConnection, info: ProcessInfo) -> dict[str, Any]:
    words = _words(info)
    assert words is not None
    id, columns, rows, folder = words
    sizes: Sizes = connection.app.state.terminal_sizes
    size = sizes.get(info.id) or (int(columns), int(rows))
    return {
        "id": id,
        "active": info.state is ProcessState.RUNNING,
        "cols": size[0],
        "rows": size[1],
        "cwd": folder,
        "envs": {},
        "createdAt": timestamp(info.started_at),
        "lazyStart": False,
    }


async def _spawn(at: Opened, new: NewTerminal) -> Process:
    there = await _all(at.box)
    if new.id in there:
        raise conflict(f"PTY session {new.id} already exists")
    if len(there) >= _MOST:
        raise conflict(f"a sandbox has at most {_MOST} PTY sessions: kill some")
    folder = new.cwd or at.sandbox.row.spec.workdir
    argv = [*_COMMAND, new.id, str(new.cols), str(new.rows), folder]
    env = at.environment({"TERM": "xterm-256color", **(new.envs or {})})
    return await at.box.spawn(argv, env=env, cwd=folder, stdin=True, pty=True, rows=new.rows, columns=new.cols)


# --- routes ---


async def create_terminal(request: Request) -> Response:
    async with opened(request) as at:
        new = await body_of(request, NewTerminal)
        await _spawn(at, new)
    return answer({"sessionId": new.id}, 201)


async def list_terminals(request: Request) -> Response:
    async with opened(request) as at:
        return answer({"sessions": [_shown(request, info) for info in (await _all(at.box)).values()]})


async def get_terminal(request: Request) -> Response:
    async with opened(request) as at:
        _, info = await _terminal(request, at.box)
        return answer(_shown(request, info))


async def kill_terminal(request: Request) -> Response:
    async with opened(request) as at:
        process, _ = await _terminal(request, at.box)
        await process.kill()
        await process.wait(30)
    return answer({"message": "PTY session deleted"})


async def resize_terminal(request: Request) -> Response:
    async with opened(request) as at:
        new = await body_of(request, NewSize)
        process, info = await _terminal(request, at.box)
        await process.resize(new.rows, new.cols)
        sizes: Sizes = request.app.state.terminal_sizes
        sizes.set(info.id, (new.cols, new.rows))
        return answer(_shown(request, info))


async def create_and_connect(socket: WebSocket) -> None:
    async def work() -> None:
        async with opened(socket) as at:
            new = NewTerminal(
                id=_NAME.validate_python(socket.query_params.get("id", "")),
                cols=number_of(socket, "cols", 80, 1, 1000),
                rows=number_of(socket, "rows", 24, 1, 1000),
                cwd=socket.query_params.get("cwd") or None,
                envs=_variables(socket),
            )
            await _attach(socket, await _spawn(at, new))

    await serve(socket, work)


async def connect(socket: WebSocket) -> None:
    async def work() -> None:
        async with opened(socket) as at:
            process, _ = await _terminal(socket, at.box)
            await _attach(socket, process, max(0, await find_end(process, _REPLAYED) - _REPLAYED))

    await serve(socket, work)


def _variables(socket: WebSocket) -> dict[str, str]:
    """The variables of a terminal, which the SDK sends as a subprotocol."""
    for protocol in socket.scope.get("subprotocols", []):
        if protocol.startswith(_ENVIRONMENT):
            text = protocol.removeprefix(_ENVIRONMENT)
            try:
                told = base64.b64decode(text + "=" * (-len(text) % 4), b"-_", validate=True)
            except (binascii.Error, ValueError):
                raise bad_request(f"the subprotocol {_ENVIRONMENT} is malformed") from None
            return _VARIABLES.validate_json(told)
    return {}


async def _attach(socket: WebSocket, process: Process, offset: int = 0) -> None:
    wants_control = _EXIT_CONTROL in socket.scope.get("subprotocols", [])
    await socket.accept(subprotocol=_EXIT_CONTROL if wants_control else None)
    await socket.send_text(json.dumps({"type": "control", "status": "connected"}))

    async def down() -> None:
        async for chunk in process.output("stdout", offset):
            for start in range(0, len(chunk.data), MAX_FRAME):
                await socket.send_bytes(chunk.data[start : start + MAX_FRAME])

    async def up() -> None:
        while True:
            message = await receive(socket)
            try:
                await process.write(message.encode() if isinstance(message, str) else message)
            except (BoxError, OSError):
                continue  # it has ended: what it printed is still worth sending

    await both(down(), up())
    told: dict[str, Any] = {"exitCode": await _exit_code(process)}
    if told["exitCode"] == _KILLED:
        told["exitReason"] = "the PTY session was killed"
    if wants_control:
        await socket.send_text(json.dumps({"type": "control", "status": "exited", **told}))
    await close(socket, 1000, json.dumps(told))


async def _exit_code(process: Process) -> int:
    try:
        return await process.wait(30)
    except ProcessLost:
        return 1
    except TimeoutError:
        raise ApiError(500, "the PTY session does not end") from None


def routes() -> list[BaseRoute]:
    one = "/process/pty/{session}"
    table: list[tuple[str, str, Any]] = [
        ("GET", "/process/pty", list_terminals),
        ("POST", "/process/pty", create_terminal),
        ("GET", one, get_terminal),
        ("DELETE", one, kill_terminal),
        ("POST", f"{one}/resize", resize_terminal),
    ]
    return [
        *(Route(path, endpoint, methods=[method]) for method, path, endpoint in table),
        WebSocketRoute("/process/pty/create-connect", create_and_connect),
        WebSocketRoute(f"{one}/connect", connect),
    ]
