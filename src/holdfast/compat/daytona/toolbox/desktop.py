"""The desktop of a sandbox, for computer use: which programs it consists of, and how they are started and ended.

They are programs of the sandbox's image: a screen without a monitor, a window manager, and a way to look at it from a
browser. Which of them run is read from the processes of the box, so nothing is remembered here.
"""

from __future__ import annotations

import asyncio
import json
import re
from dataclasses import dataclass
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from holdfast.api.box.box import Box
from holdfast.api.box.process import Process, ProcessInfo, ProcessState
from holdfast.api.errors.boxes import BoxError, CannotExecute, ExecTimeout, OutputTooLarge
from holdfast.box_json import parse
from holdfast.boxes.capabilities import Capability
from holdfast.compat.daytona.http.errors import ApiError, bad_request, not_found, not_supported
from holdfast.compat.daytona.http.requests import answer
from holdfast.compat.daytona.in_box import bootstrap
from holdfast.compat.daytona.recent import Recent
from holdfast.compat.daytona.toolbox.access import Opened, opened

DISPLAY: Final = ":1"
VNC_PORT: Final = 5901
PORT: Final = 6080
"""Where a browser looks at the desktop, by a preview."""
_SIZE: Final = re.compile(r"[1-9][0-9]{1,3}x[1-9][0-9]{1,3}")
_USUAL_SIZE: Final = "1024x768"
_START_SECONDS: Final = 20.0
_END_SECONDS: Final = 5.0
_LOOK_SECONDS: Final = 60.0
_MOST_OUTPUT: Final = 32 << 20
_MOST_LOG: Final = 256 << 10
_TERM: Final = 15
_IMAGE: Final = "use an image with them, such as that of holdfast image build workstation"
_PACKAGES: Final = {"Xvfb": "xvfb", "xdotool": "xdotool", "python3": "python3"}
"""What a desktop cannot do without, and the packages of Debian that have it."""

Locks = Recent[asyncio.Lock]
"""By box: only one request at a time starts or ends its desktop."""


@dataclass(frozen=True, slots=True)
class Program:
    name: str
    """Its name in the API."""
    argv: tuple[str, ...]
    priority: int
    """The order of the start."""

    def is_it(self, info: ProcessInfo) -> bool:
        return info.argv[:2] == self.argv[:2]


def programs_of(size: str) -> tuple[Program, ...]:
    """Returns the programs of a desktop in the order of their start. All but the first may be missing in an image."""
    commands = {
        "xvfb": ("Xvfb", DISPLAY, "-screen", "0", f"{size}x24", "-nolisten", "tcp"),
        "fluxbox": ("fluxbox", "-display", DISPLAY),
        "x11vnc": (
            "x11vnc", "-display", DISPLAY, "-localhost", "-forever", "-shared", "-nopw", "-quiet", "-rfbport",
            str(VNC_PORT),
        ),
        "novnc": ("websockify", "--web", "/usr/share/novnc", str(PORT), f"127.0.0.1:{VNC_PORT}"),
    }  # fmt: skip
    return tuple(Program(name, argv, 100 * number) for number, (name, argv) in enumerate(commands.items(), 1))


PROGRAMS: Final = programs_of(_USUAL_SIZE)


def size_in(environment: dict[str, str]) -> str:
    """Returns the size of the screen: VNC_RESOLUTION of the sandbox, if it is one."""
    size = environment.get("VNC_RESOLUTION", "")
    return size if _SIZE.fullmatch(size) else _USUAL_SIZE


def missing(names: list[str]) -> ApiError:
    packages = " ".join(_PACKAGES.get(each, each) for each in names)
    return not_supported(
        f"this sandbox has no {', '.join(names)}, which this needs: {_IMAGE} (Debian: apt-get install {packages})"
    )


def not_started() -> ApiError:
    return ApiError(503, "the desktop of this sandbox is not started: call computer_use.start() first")


# --- what routes of computer use share ---


async def on_desktop(at: Opened) -> dict[str, str]:
    """Returns the variables of a program on the desktop. Raises if its screen is not that of this sandbox.

    A box that shares the network of the machine would share the screens there, too.
    """
    if Capability.NETWORK_NONE not in at.parts.boxes.provider(at.sandbox.row.provider).capabilities:
        raise not_supported(f"sandboxes at {at.sandbox.row.provider} are not isolated, so they have no desktop")
    if not (await _running(at.box)).get("xvfb"):
        raise not_started()
    return {**at.environment(), "DISPLAY": DISPLAY}


async def look(at: Opened, environment: dict[str, str], **asked: Any) -> tuple[dict[str, Any], bytes]:
    """Returns what the program of ours in the box says about the screen: a document, and perhaps a picture."""
    argv = bootstrap.argv(("python3",), "screen", json.dumps(asked))
    try:
        done = await at.box.exec(
            argv, env=environment, stdin=bootstrap.stdin("screen"), timeout=_LOOK_SECONDS, max_output=_MOST_OUTPUT
        )
    except CannotExecute:
        raise missing(["python3"]) from None
    except (ExecTimeout, OutputTooLarge) as error:
        raise ApiError(500, f"the screen was not read: {error.message}") from None
    told, picture = document_in(done.stdout), done.stdout.partition(b"\n")[2]
    if done.exit_code or not told:
        raise ApiError(500, f"the screen was not read: {_last_line(done.stderr)}")
    if "error" in told:
        raise _refusal(str(told["error"]), str(told.get("message"))[:500])
    return told, picture


def document_in(output: bytes) -> dict[str, Any]:
    """Returns the JSON in the first line of what the program has written. Empty if it is something else."""
    try:
        found = parse(output.partition(b"\n")[0])
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _refusal(code: str, message: str) -> ApiError:
    if code == "missing":
        return missing([message])
    if code == "outside":
        return bad_request(message)
    return not_started() if code == "closed" else ApiError(500, message)


def _last_line(data: bytes) -> str:
    lines = data.decode("utf-8", "replace").strip().splitlines()
    return lines[-1][:500] if lines else "no answer"


async def _running(box: Box) -> dict[str, ProcessInfo]:
    return {name: info for name, info in (await _latest(box)).items() if info.state is ProcessState.RUNNING}


async def _latest(box: Box) -> dict[str, ProcessInfo]:
    """Returns the last process of each program, by name."""
    found: dict[str, ProcessInfo] = {}
    for info in sorted(await box.processes(), key=lambda each: each.started_at):
        for program in PROGRAMS:
            if program.is_it(info):
                found[program.name] = info
    return found


# --- start and end ---


async def _start(at: Opened) -> None:
    environment = {**at.environment(), "DISPLAY": DISPLAY}
    if lacking := await _lacking(at.box):
        raise missing(lacking)
    running = await _running(at.box)
    for program in programs_of(size_in(at.environment())):
        if program.name in running:
            continue
        try:
            await at.box.spawn(program.argv, env=environment)
        except CannotExecute:
            continue  # it is not in this image, and not needed
        if program.name == "xvfb":
            await look(at, environment, do="look", wait=_START_SECONDS)


async def _lacking(box: Box) -> list[str]:
    script = 'for each; do command -v "$each" >/dev/null || echo "$each"; done'
    done = await box.exec(["sh", "-c", script, "sh", *_PACKAGES], timeout=_START_SECONDS, max_output=4096)
    return [each for each in done.stdout.decode("utf-8", "replace").split() if each in _PACKAGES]


async def _stop(box: Box) -> None:
    running = await _running(box)
    for program in reversed(PROGRAMS):
        if program.name in running:
            await end(await box.process(running[program.name].id))


async def end(process: Process) -> None:
    """End a process, by force if it takes long."""
    try:
        await process.signal(_TERM)
        await process.wait(_END_SECONDS)
    except TimeoutError:
        await process.kill()
    except BoxError:
        pass  # it has ended by itself


async def _described(box: Box) -> dict[str, Any]:
    running = await _running(box)
    return {
        each.name: {"running": each.name in running, "priority": each.priority, "autoRestart": False}
        for each in PROGRAMS
    }


# --- routes ---


def _lock(request: Request, at: Opened) -> asyncio.Lock:
    locks: Locks = request.app.state.desktop_locks
    return locks.get_or_make(at.box.id, asyncio.Lock)


async def start(request: Request) -> Response:
    async with opened(request) as at:
        try:
            await on_desktop(at)
        except ApiError as error:
            if error.status != 503:
                raise
        async with _lock(request, at):
            await _start(at)
        return answer({"message": "computer use is started", "status": await _described(at.box)})


async def stop(request: Request) -> Response:
    async with opened(request) as at:
        async with _lock(request, at):
            await _stop(at.box)
        return answer({"message": "computer use is stopped", "status": await _described(at.box)})


async def status(request: Request) -> Response:
    async with opened(request) as at:
        running = await _running(at.box)
    return answer({"status": "active" if "xvfb" in running else "partial" if running else "inactive"})


def _program(request: Request) -> Program:
    name = request.path_params["program"]
    for each in PROGRAMS:
        if each.name == name:
            return each
    raise not_found(f"there is no process {name[:50]!r}: they are {', '.join(each.name for each in PROGRAMS)}")


async def program_status(request: Request) -> Response:
    program = _program(request)
    async with opened(request) as at:
        return answer({"processName": program.name, "running": program.name in await _running(at.box)})


async def restart(request: Request) -> Response:
    """Restart a program. All others have their windows on the first one, so they are restarted with it."""
    program = _program(request)
    async with opened(request) as at, _lock(request, at):
        running = await _running(at.box)
        if program.name == "xvfb":
            await _stop(at.box)
        elif program.name in running:
            await end(await at.box.process(running[program.name].id))
        await _start(at)
    return answer({"processName": program.name, "message": f"{program.name} is restarted"})


async def logs(request: Request) -> Response:
    program = _program(request)
    return answer({"processName": program.name, "logs": await _output(request, program, "stdout")})


async def errors(request: Request) -> Response:
    program = _program(request)
    return answer({"processName": program.name, "errors": await _output(request, program, "stderr")})


async def _output(request: Request, program: Program, stream: Any) -> str:
    """Returns the end of what a program has printed."""
    async with opened(request) as at:
        info = (await _latest(at.box)).get(program.name)
        if info is None:
            return ""
        process, kept, offset = await at.box.process(info.id), b"", 0
        while piece := await process.read(stream, offset):
            offset += len(piece)
            kept = (kept + piece)[-_MOST_LOG:]
            if offset > 4 * _MOST_OUTPUT:
                break
    return kept.decode("utf-8", "replace")


async def no_accessibility(request: Request) -> Response:
    async with opened(request) as at:
        await on_desktop(at)
    raise ApiError(503, "the desktop of this sandbox has no accessibility bus: look at it by screenshots")


def routes() -> list[Route]:
    one = "/computeruse/process/{program}"
    return [
        Route("/computeruse/start", start, methods=["POST"]),
        Route("/computeruse/stop", stop, methods=["POST"]),
        Route("/computeruse/status", status, methods=["GET"]),
        Route("/computeruse/process-status", status, methods=["GET"]),
        Route(f"{one}/status", program_status, methods=["GET"]),
        Route(f"{one}/restart", restart, methods=["POST"]),
        Route(f"{one}/logs", logs, methods=["GET"]),
        Route(f"{one}/errors", errors, methods=["GET"]),
        Route("/computeruse/a11y/{rest:path}", no_accessibility, methods=["GET", "POST"]),
    ]
