"""Sessions: a shell in the box that runs one command after another, each with its output and exit code.

A session is a process in its box (`in_box.session`). The words of its command name it, and its output tells all about
its commands, so it is found again by any server.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Annotated, Any, Final

from pydantic import Field
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.websockets import WebSocket

from holdfast.api.box.box import Box
from holdfast.api.box.process import Process, ProcessInfo, ProcessState
from holdfast.api.errors.boxes import BoxConflict
from holdfast.compat.daytona import entrypoint
from holdfast.compat.daytona.http.errors import ApiError, conflict, not_found
from holdfast.compat.daytona.http.requests import answer, body_of, nothing, while_connected
from holdfast.compat.daytona.http.websockets import MAX_FRAME, both, close, ignore, serve
from holdfast.compat.daytona.in_box import bootstrap
from holdfast.compat.daytona.models import Body
from holdfast.compat.daytona.recent import Recent
from holdfast.compat.daytona.toolbox.access import Opened, opened
from holdfast.compat.daytona.toolbox.frames import Frame, available, following
from holdfast.time_limit import time_limit

_PROGRAM: Final = "session"
_MOST: Final = 200
_MAKING_ROOM: Final = 20.0
_CLOSING: Final = 20.0
_MOST_COMMANDS: Final = 10_000
_MOST_CHARACTERS: Final = 32 * 1024 * 1024
"""In the commands of one session, and of all sessions in one answer."""
_MOST_OF_ALL: Final = 64 * 1024 * 1024
"""Characters that are kept of the commands of all sessions. What is forgotten is read again from its box."""
_MOST_INDEXES: Final = 500
_MAX_LOG: Final = 16 * 1024 * 1024
_TAGS: Final = {"out": b"\x01\x01\x01", "err": b"\x02\x02\x02"}

Name = Annotated[str, Field(min_length=1, max_length=255, pattern=r"^[^\x00-\x1f/]+$")]


class NewSession(Body):
    session_id: Name


class NewCommand(Body):
    command: Annotated[str, Field(min_length=1, max_length=4 * 1024 * 1024, pattern=r"^[^\x00]+$")]
    run_async: bool | None = None
    is_async: Annotated[bool | None, Field(alias="async")] = None
    suppress_input_echo: bool | None = None


class Input(Body):
    data: Annotated[str, Field(max_length=1024 * 1024)]


@dataclass(slots=True)
class Command:
    id: str
    text: str
    offset: int
    """Where its first frame begins."""
    exit_code: int | None = None

    def to_json(self) -> dict[str, Any]:
        shown: dict[str, Any] = {"id": self.id, "command": self.text}
        return shown if self.exit_code is None else {**shown, "exitCode": self.exit_code}


@dataclass(slots=True)
class _Index:
    """What was read of a session's output so far. A cache: it is read again if it is lost."""

    offset: int = 0
    commands: dict[str, Command] = field(default_factory=dict)
    ended: bool = False
    """The shell has exited."""
    characters: int = 0
    """In the texts of its commands."""
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    def add(self, command: Command) -> None:
        """Add a command. Of too many, the oldest are forgotten: a box can make up as many as it likes."""
        known = self.commands.pop(command.id, None)
        self.commands[command.id] = command
        self.characters += len(command.text) + len(command.id) - (len(known.text) + len(known.id) if known else 0)
        while len(self.commands) > 1 and (len(self.commands) > _MOST_COMMANDS or self.characters > _MOST_CHARACTERS):
            oldest = self.commands.pop(next(iter(self.commands)))
            self.characters -= len(oldest.text) + len(oldest.id)


class _Session:
    def __init__(self, name: str, process: Process, index: _Index) -> None:
        self.name = name
        self.process = process
        self._index = index

    @property
    def ended(self) -> bool:
        """Whether its shell had exited when its commands were last read."""
        return self._index.ended

    @property
    def offset(self) -> int:
        """Up to where its output was read."""
        return self._index.offset

    @property
    def characters(self) -> int:
        """In the texts of its commands, when they were last read."""
        return self._index.characters

    async def commands(self) -> dict[str, Command]:
        index = self._index
        async with index.lock:
            async for frame in available(self.process, index.offset):
                index.offset = frame.end
                if frame.kind == "run":
                    text = frame.data.decode("utf-8", "replace")
                    index.add(Command(frame.command, text, frame.offset))
                elif frame.kind == "end":
                    index.ended = True
                elif frame.kind == "exit" and frame.command in index.commands:
                    index.commands[frame.command].exit_code = frame.exit_code()
                    index.ended = index.ended or bool(frame.head.get("last"))
            return index.commands

    async def command(self, id: str) -> Command:
        found = (await self.commands()).get(id)
        if found is None:
            raise not_found(f"command {id[:100]} not found in session {self.name}")
        return found

    async def frames(self, id: str, offset: int) -> AsyncIterator[Frame]:
        """The frames of a command from an offset, up to its exit."""
        async for frame in following(self.process, offset):
            if frame.command == id:
                yield frame
            if frame.kind == "end" or (frame.command == id and frame.kind == "exit"):
                return

    async def send(self, message: dict[str, Any]) -> None:
        try:
            await self.process.write(json.dumps(message).encode() + b"\n")
        except BoxConflict:
            raise ended(self.name) from None

    async def close(self) -> None:
        """End the session and the command that runs in it. What earlier commands left in the background goes on."""
        try:
            async with time_limit(_CLOSING):
                await self.send({"op": "close"})
                await self.process.wait()
        except (ApiError, TimeoutError):  # it has just ended, or its own code keeps it from ending
            await self.process.kill()
            await self.process.wait(30)

    async def retire(self) -> bool:
        """End the session if no command is running. Returns whether it has ended."""
        await self.commands()
        offset = self.offset
        try:
            await self.send({"op": "retire"})
        except ApiError:
            return True
        async for frame in following(self.process, offset):
            if frame.kind == "busy":
                return False
        return True


Indexes = Recent[_Index]
"""By box and process."""


def new_indexes() -> Indexes:
    return Indexes(_MOST_INDEXES, weigh=lambda index: index.characters, heaviest=_MOST_OF_ALL)


def ended(name: str) -> ApiError:
    return ApiError(410, f"session {name} has ended", "SESSION_ENDED")


async def _all(box: Box) -> dict[str, ProcessInfo]:
    """The sessions of a box by name. A session lives until it is deleted."""
    found: dict[str, ProcessInfo] = {}
    for info in await box.processes():
        words = bootstrap.words_of(info.argv, _PROGRAM)
        if words and info.state is ProcessState.RUNNING:
            found[words[0]] = info
    return found


def _index(connection: HTTPConnection, box: Box, info: ProcessInfo) -> _Index:
    indexes: Indexes = connection.app.state.session_indexes
    return indexes.get_or_make(f"{box.id}/{info.id}", _Index)


async def _session(connection: HTTPConnection, box: Box) -> _Session:
    name = connection.path_params["session"]
    info = (await _all(box)).get(name)
    if info is None:
        raise not_found(f"session {name[:100]} not found")
    return _Session(name, await box.process(info.id), _index(connection, box, info))


# --- routes ---


async def create_session(request: Request) -> Response:
    async with opened(request) as at:
        new = await body_of(request, NewSession)
        there = await _all(at.box)
        if new.session_id in there:
            raise conflict(f"session {new.session_id} already exists")
        if len(there) >= _MOST:
            await _make_room(request, at.box, there)
        await _spawn(at, new.session_id)
    return nothing(201)


async def _make_room(request: Request, box: Box, there: dict[str, ProcessInfo]) -> None:
    """End the oldest session without a running command. Some programs make one for every command, and delete none."""
    with contextlib.suppress(TimeoutError):
        async with time_limit(_MAKING_ROOM):
            for name, info in sorted(there.items(), key=lambda each: each[1].started_at):
                session = _Session(name, await box.process(info.id), _index(request, box, info))
                if name != entrypoint.SESSION and await session.retire():
                    return
    raise conflict(f"a sandbox has at most {_MOST} sessions, and commands are running in all of them: delete some")


async def _spawn(at: Opened, name: str) -> Process:
    python = await at.box.python()
    argv = bootstrap.argv(python, _PROGRAM, name)
    process = await at.box.spawn(argv, env=at.environment(), stdin=True)
    await process.write(bootstrap.stdin(_PROGRAM))
    return process


async def list_sessions(request: Request) -> Response:
    async with opened(request) as at:
        shown, characters = [], 0
        for name, info in (await _all(at.box)).items():
            if name != entrypoint.SESSION:
                session = _Session(name, await at.box.process(info.id), _index(request, at.box, info))
                shown.append(await _shown(session))
                characters += session.characters
                if characters > _MOST_CHARACTERS:
                    raise ApiError(
                        413, "the commands of these sessions are too long for one answer: ask for each session"
                    )
    return answer(shown)


async def _shown(session: _Session) -> dict[str, Any]:
    commands = await session.commands()
    return {"sessionId": session.name, "commands": [each.to_json() for each in commands.values()]}


async def get_session(request: Request) -> Response:
    async with opened(request) as at:
        return answer(await _shown(await _session(request, at.box)))


async def delete_session(request: Request) -> Response:
    async with opened(request) as at:
        await (await _session(request, at.box)).close()
    return nothing(204)


async def execute(request: Request) -> Response:
    async with opened(request) as at:
        new = await body_of(request, NewCommand)
        session = await _session(request, at.box)
        await session.commands()
        if session.ended:
            raise ended(session.name)
        offset = session.offset
        id = str(uuid.uuid4())
        message = {"op": "run", "id": id, "command": new.command, "echo": not new.suppress_input_echo}
        await session.send(message)
        if new.run_async or new.is_async:
            await _begun(session, id, offset)
            return answer({"cmdId": id}, 202)
        output, code = await while_connected(request, _collect(session.frames(id, offset)))
    return answer({"cmdId": id, "exitCode": code, **output})


async def _begun(session: _Session, id: str, offset: int) -> None:
    """Wait until the session knows of the command, so that the next request finds it."""
    async for _ in session.frames(id, offset):
        return
    raise ended(session.name)


async def _collect(frames: AsyncIterator[Frame]) -> tuple[dict[str, str], int | None]:
    """What a command printed, and its exit code. Of much, only the end is kept."""
    kept: dict[str, bytearray] = {"out": bytearray(), "err": bytearray(), "all": bytearray()}
    code: int | None = None
    async for frame in frames:
        if frame.kind == "exit":
            code = frame.exit_code()
        elif frame.kind in _TAGS:
            for name in (frame.kind, "all"):
                kept[name] += frame.data
                if len(kept[name]) > 2 * _MAX_LOG:
                    del kept[name][:-_MAX_LOG]
    texts = {name: bytes(data[-_MAX_LOG:]).decode("utf-8", "replace") for name, data in kept.items()}
    return {"stdout": texts["out"], "stderr": texts["err"], "output": texts["all"]}, code


async def get_command(request: Request) -> Response:
    async with opened(request) as at:
        session = await _session(request, at.box)
        return answer((await session.command(request.path_params["command"])).to_json())


async def send_input(request: Request) -> Response:
    async with opened(request) as at:
        new = await body_of(request, Input)
        session = await _session(request, at.box)
        command = await session.command(request.path_params["command"])
        if command.exit_code is not None:
            raise ApiError(410, f"command {command.id} has already completed", "COMMAND_ALREADY_COMPLETED")
        await session.send({"op": "input", "id": command.id, "data": new.data})
    return nothing(204)


async def get_logs(request: Request) -> Response:
    async with opened(request) as at:
        session = await _session(request, at.box)
        command = await session.command(request.path_params["command"])
        output, _ = await _collect(_until_now(session, command))
    return answer(output)


async def _until_now(session: _Session, command: Command) -> AsyncIterator[Frame]:
    async for frame in available(session.process, command.offset):
        if frame.command == command.id:
            yield frame
            if frame.kind == "exit":
                return


async def follow_logs(socket: WebSocket) -> None:
    """Send what a command prints as it comes, each message with a tag of its stream. Ends with the command."""

    async def work() -> None:
        async with opened(socket) as at:
            session = await _session(socket, at.box)
            command = await session.command(socket.path_params["command"])
            await socket.accept()
            await both(_send_logs(socket, session, command), ignore(socket))
            await close(socket)

    await serve(socket, work)


async def _send_logs(socket: WebSocket, session: _Session, command: Command) -> None:
    async for frame in session.frames(command.id, command.offset):
        if frame.kind in _TAGS:
            for start in range(0, len(frame.data), MAX_FRAME):
                await socket.send_bytes(_TAGS[frame.kind] + frame.data[start : start + MAX_FRAME])


# --- the entrypoint: the one command of its session, if the sandbox has one ---


async def get_entrypoint(request: Request) -> Response:
    async with opened(request) as at:
        session = await _entrypoint(request, at.box)
        return answer({"sessionId": entrypoint.SESSION, "commands": []} if session is None else await _shown(session))


async def _entrypoint(connection: HTTPConnection, box: Box) -> _Session | None:
    info = (await _all(box)).get(entrypoint.SESSION)
    if info is None:
        return None
    return _Session(entrypoint.SESSION, await box.process(info.id), _index(connection, box, info))


async def get_entrypoint_logs(request: Request) -> Response:
    async with opened(request) as at:
        session = await _entrypoint(request, at.box)
        command = None if session is None else (await session.commands()).get(entrypoint.SESSION)
        if session is None or command is None:
            return answer({"output": "", "stdout": "", "stderr": ""})
        output, _ = await _collect(_until_now(session, command))
    return answer(output)


async def follow_entrypoint_logs(socket: WebSocket) -> None:
    async def work() -> None:
        async with opened(socket) as at:
            session = await _entrypoint(socket, at.box)
            command = None if session is None else (await session.commands()).get(entrypoint.SESSION)
            await socket.accept()
            if session is not None and command is not None:
                await both(_send_logs(socket, session, command), ignore(socket))
            await close(socket)

    await serve(socket, work)


def routes() -> list[BaseRoute]:
    one = "/process/session/{session}"
    table: list[tuple[str, str, Any]] = [
        ("GET", "/process/session", list_sessions),
        ("POST", "/process/session", create_session),
        ("GET", f"/process/session/{entrypoint.SESSION}", get_entrypoint),
        ("GET", f"/process/session/{entrypoint.SESSION}/logs", get_entrypoint_logs),
        ("GET", one, get_session),
        ("DELETE", one, delete_session),
        ("POST", f"{one}/exec", execute),
        ("GET", f"{one}/command/{{command}}", get_command),
        ("POST", f"{one}/command/{{command}}/input", send_input),
        ("GET", f"{one}/command/{{command}}/logs", get_logs),
    ]
    return [
        *(Route(path, endpoint, methods=[method]) for method, path, endpoint in table),
        WebSocketRoute(f"/process/session/{entrypoint.SESSION}/logs", follow_entrypoint_logs),
        WebSocketRoute(f"{one}/command/{{command}}/logs", follow_logs),
    ]
