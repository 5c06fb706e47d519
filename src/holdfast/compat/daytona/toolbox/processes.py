"""Routes of the toolbox that run commands and code to their end, and tell about the sandbox itself."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Annotated, Any, Final

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from holdfast.api.box.box import Box
from holdfast.api.box.files import FileKind
from holdfast.api.errors.boxes import BoxError, CannotExecute, ConnectRefused, ExecTimeout
from holdfast.box_json import parse
from holdfast.compat.daytona.http.errors import ApiError, bad_request
from holdfast.compat.daytona.http.requests import answer, body_of, port_of, while_connected
from holdfast.compat.daytona.in_box import bootstrap
from holdfast.compat.daytona.models import Body, Variable, Variables
from holdfast.compat.daytona.service import daytona_of
from holdfast.compat.daytona.toolbox.access import opened

MAX_OUTPUT: Final = 32 * 1024 * 1024
_DEFAULT_SECONDS: Final = 360
_MOST_SECONDS: Final = 7 * 24 * 3600
_MAX_ARGUMENT: Final = 100_000
_ONE_STREAM: Final = "exec 2>&1"
"""Begins a script whose two streams come in one, in the order in which they were written."""

Path = Annotated[str, Field(min_length=1, max_length=4095, pattern=r"^[^\x00]+$")]
Text = Annotated[str, Field(max_length=8 * 1024 * 1024)]
Seconds = Annotated[int, Field(ge=0, le=_MOST_SECONDS)]


class Execute(Body):
    command: Annotated[str, Field(min_length=1, max_length=_MAX_ARGUMENT, pattern=r"^[^\x00]+$")]
    cwd: Path | None = None
    envs: Variables | None = None
    timeout: Seconds | None = None


class CodeRun(Body):
    code: Text
    language: Annotated[str, Field(max_length=50)] = "python"
    argv: Annotated[list[Annotated[str, Field(max_length=_MAX_ARGUMENT)]], Field(max_length=1000)] | None = None
    envs: Variables | None = None
    timeout: Seconds | None = None


class NewEnvironment(Body):
    set: Variables | None = None
    unset: Annotated[list[Variable], Field(max_length=1024)] | None = None


async def execute(request: Request) -> Response:
    """Run a shell command. Its two streams come as one."""
    async with opened(request) as at:
        asked = await body_of(request, Execute)
        running = _run_in_shell(at.box, asked, at.environment(asked.envs))
        code, output = await while_connected(request, running)
    return answer({"exitCode": code, "result": output})


async def _run_in_shell(box: Box, asked: Execute, env: Mapping[str, str]) -> tuple[int, str]:
    """Run a command in bash, or in the shell of a box that has no bash."""
    script = f"{_ONE_STREAM}\n{asked.command}"
    try:
        return await _execute(box, ["bash", "-c", script], env, asked.cwd or None, asked.timeout)
    except CannotExecute:
        return await _run(box, ["/bin/sh", "-c", script], env, asked.cwd or None, asked.timeout)


async def _run(
    box: Box, argv: list[str], env: Mapping[str, str], cwd: str | None, timeout: int | None
) -> tuple[int, str]:
    try:
        return await _execute(box, argv, env, cwd, timeout)
    except CannotExecute as error:
        raise bad_request(error.message) from None


async def _execute(
    box: Box, argv: list[str], env: Mapping[str, str], cwd: str | None, timeout: int | None
) -> tuple[int, str]:
    seconds = timeout or _DEFAULT_SECONDS
    try:
        done = await box.exec(argv, env=env, cwd=cwd, timeout=seconds, max_output=MAX_OUTPUT)
    except ExecTimeout:
        raise ApiError(
            408, f"command execution timed out after {seconds} seconds", "PROCESS_EXECUTION_TIMEOUT"
        ) from None
    return done.exit_code, done.stdout.decode("utf-8", "replace")


_SUFFIXES: Final = {"python": "py", "javascript": "js", "typescript": "ts"}
_PROGRAMS: Final = {
    "python": 'exec python3 -u "$@"',
    "javascript": 'exec node "$@"',
    "typescript": (
        'for each in tsx ts-node; do if command -v $each >/dev/null; then exec $each "$@"; fi; done; '
        "if node --experimental-strip-types -e 0 2>/dev/null; "
        'then exec node --experimental-strip-types --no-warnings "$@"; fi; '
        "echo 'this sandbox runs no TypeScript: it needs tsx, ts-node or node 22.6'; exit 127"
    ),
}


_DRAWING: Final = ("matplotlib", "pylab", "seaborn", ".plot")
"""Code with one of these words may draw charts. Other code is not slowed down by what that needs."""
_BACKEND: Final = "daytona_charts"
_CHARTS: Final = "charts.jsonl"
_MOST_CHARTS: Final = 50
_MOST_VALUES: Final = 500_000
"""Of all charts of a program."""
_SMALL: Final = 65_536
_MOST_PORTS: Final = 1024 * 1024


async def run_code(request: Request) -> Response:
    """Run a program of one file to its end."""
    async with opened(request) as at:
        asked = await body_of(request, CodeRun)
        if asked.language not in _PROGRAMS:
            raise bad_request(f"language {asked.language!r}: one of {', '.join(_PROGRAMS)} is expected")
        done = await at.box.exec(["mktemp", "-d", "/tmp/daytona-code-XXXXXXXX"], timeout=30, max_output=_SMALL)
        folder = done.text.strip()
        file = f"{folder}/main.{_SUFFIXES[asked.language]}"
        charts: list[Any] = []
        try:
            await at.box.files.write(file, asked.code.encode("utf-8", "replace"))
            script = f"{_ONE_STREAM}; {_PROGRAMS[asked.language]}"
            argv = ["/bin/sh", "-c", script, "sh", file, *(asked.argv or [])]
            draws = asked.language == "python" and any(word in asked.code for word in _DRAWING)
            env = await _charting(at.box, folder) if draws else {}
            running = _run(at.box, argv, {**env, **at.environment(asked.envs)}, None, asked.timeout)
            code, output = await while_connected(request, running)
            if draws:
                charts = await _charts(at.box, f"{folder}/{_CHARTS}")
        finally:
            await at.box.files.delete(folder, recursive=True)
    return answer({"exitCode": code, "result": output, "artifacts": {"charts": charts}})


async def _charting(box: Box, folder: str) -> dict[str, str]:
    """Put our backend of matplotlib beside a program. Returns the variables that make matplotlib use it."""
    await box.files.write(f"{folder}/{_BACKEND}.py", bootstrap.source("charts"))
    return {"MPLBACKEND": f"module://{_BACKEND}", "DAYTONA_CHARTS": f"{folder}/{_CHARTS}"}


async def _charts(box: Box, path: str) -> list[Any]:
    """The charts that a program has shown. What it wrote there itself, and is none, is left out."""
    try:
        info = await box.files.stat(path)
        if info.kind is not FileKind.FILE or info.size > MAX_OUTPUT:
            return []  # not by us: reading a pipe would never end
        lines = (await box.files.read(path, length=MAX_OUTPUT)).split(b"\n", _MOST_CHARTS)
    except BoxError:
        return []  # it has shown none
    charts, room = [], _MOST_VALUES
    for line in lines[:_MOST_CHARTS]:
        with contextlib.suppress(ValueError):
            chart = parse(line, most_bytes=MAX_OUTPUT, most_values=room)
            room -= line.count(b",")
            if isinstance(chart, dict):
                charts.append(chart)
    return charts


async def work_dir(request: Request) -> Response:
    async with opened(request) as at:
        done = await at.box.exec(["pwd"], timeout=30, max_output=_SMALL)
        return answer({"dir": done.text.strip()})


async def home_dir(request: Request) -> Response:
    async with opened(request) as at:
        command = ["/bin/sh", "-c", 'printf %s "$HOME"']
        done = await at.box.exec(command, env=at.environment(), timeout=30, max_output=_SMALL)
        return answer({"dir": done.text.strip() or "/"})


async def update_environment(request: Request) -> Response:
    """Change the variables of processes that are started from now on."""
    async with opened(request) as at:
        new = await body_of(request, NewEnvironment)
        env = {**at.sandbox.details.env, **(new.set or {})}
        for name in new.unset or []:
            env.pop(name, None)
        if len(env) > 1024:
            raise bad_request("a sandbox has at most 1024 variables")
        await at.parts.sandboxes.change(at.sandbox, env=env)
    return answer({})


async def version(request: Request) -> Response:
    await daytona_of(request).sandbox(request)
    return answer({"version": "holdfast"})


# --- ports ---

_LISTENING: Final = """
import json
ports = set()
for name in ("tcp", "tcp6"):
    try:
        with open("/proc/net/" + name) as table:
            rows = [line.split() for line in table.readlines()[1:]]
    except OSError:
        continue
    ports.update(int(row[1].rpartition(":")[2], 16) for row in rows if row[3] == "0A")
print(json.dumps(sorted(ports)))
"""


async def list_ports(request: Request) -> Response:
    async with opened(request) as at:
        done = await at.box.exec([*await at.box.python(), "-c", _LISTENING], timeout=30, max_output=_MOST_PORTS)
    try:
        ports = parse(done.stdout)
    except ValueError:
        ports = None
    if not isinstance(ports, list) or not all(type(port) is int for port in ports):
        raise ApiError(500, "the ports of this sandbox cannot be read")
    return answer({"ports": ports})


async def port_in_use(request: Request) -> Response:
    async with opened(request) as at:
        port = port_of(request)
        try:
            async with await at.box.connect(port):
                in_use = True
        except (ConnectRefused, BoxError):
            in_use = False
    return answer({"isInUse": in_use})


def routes() -> list[Route]:
    table: list[tuple[str, str, Any]] = [
        ("POST", "/process/execute", execute),
        ("POST", "/process/code-run", run_code),
        ("GET", "/work-dir", work_dir),
        ("GET", "/user-home-dir", home_dir),
        ("POST", "/env", update_environment),
        ("GET", "/version", version),
        ("GET", "/port", list_ports),
        ("GET", "/port/{port}/in-use", port_in_use),
    ]
    return [Route(path, endpoint, methods=[method]) for method, path, endpoint in table]
