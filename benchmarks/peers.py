"""Measures commands and calls of Holdfast beside sandbox-runtime (`srt`), Docker and a bare bubblewrap, in one run.

    .holdfast/dev-*/bin/python benchmarks/peers.py [--quick] [--only ROW] [--json | --markdown]

A peer that this machine cannot run is left out, with a line that says what is missing. docs/benchmarks.md says what
each row is.
"""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final, NamedTuple

import checkout  # noqa: F401 - for what is imported from tests
import httpx
from measuring import Samples, add_folder, add_rounds, folder_of_boxes, options, print_results
from report import Goal, Result, Row
from servers import cpu_seconds
from tests.providers.docker.engine import BUSYBOX_IMAGE, CannotStart, DockerEngine

from holdfast.api.box.sync import SyncBox
from holdfast.client import SyncClient
from holdfast.testing.server import ServerProcess

_HOLDFAST: Final = Path(__file__).parents[1] / "bin" / "holdfast"
_SRT: Final = "@anthropic-ai/sandbox-runtime@0.0.83"
_TIMEOUT: Final = 120.0
_REST_SECONDS: Final = 0.3
_GOAL: Final = Goal("at most", 0.35, "at most 0.35 times")


class Pair(NamedTuple):
    """One row: a step of a peer, and ours beside it."""

    row: Row
    peer: str
    ours: str


def _pair(name: str, work: str, peer: str, ours: str, goal: Goal | None = None) -> Pair:
    return Pair(Row(name, work, "ms", goal), peer, ours)


PAIRS: Final = (
    _pair("exec", "`srt true`, and `holdfast box exec`", "srt", "exec", _GOAL),
    _pair("append", "`srt true`, and `holdfast thread append`", "srt", "append", _GOAL),
    _pair("list", "`srt true`, and `holdfast box list`", "srt", "list", _GOAL),
    _pair("create", "`srt true`, and `holdfast box create`", "srt", "create", _GOAL),
    _pair("docker-exec", "`docker exec`, and `holdfast box exec`", "docker exec", "exec"),
    _pair("docker-run", "`docker run`, and `holdfast box create`", "docker run", "create"),
    _pair("bwrap-create", "a bare `bwrap`, and `holdfast box create`", "bwrap", "create"),
    _pair("api-exec", "exec by API: Docker, and Holdfast", "docker exec by API", "exec by API"),
    _pair("api-create", "create and first command by API: Docker, and Holdfast", "docker run by API", "create by API"),
    _pair("api-bwrap", "a bare `bwrap`, and create and first command by API", "bwrap", "create by API"),
)


class Measured(NamedTuple):
    milliseconds: float
    cpu: float | None
    """Processor milliseconds of the command and of its children; None for what is no command."""


Step = Callable[[], Measured]


def run(command: Sequence[str | Path], env: Mapping[str, str] | None = None) -> Measured:
    """Run a command to its end. Its processor time is without that of servers and daemons that it asks."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    begin = time.perf_counter()
    done = subprocess.run(
        command, env={**os.environ, **(env or {})}, stdin=subprocess.DEVNULL, capture_output=True, timeout=_TIMEOUT
    )
    taken = time.perf_counter() - begin
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(map(str, command))} failed: {done.stderr.decode(errors='replace').strip()}")
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Measured(taken * 1000, used * 1000)


def timed(call: Callable[[], object]) -> Measured:
    begin = time.perf_counter()
    call()
    return Measured((time.perf_counter() - begin) * 1000, None)


def left_out(what: str, why: str) -> None:
    print(f"{what} is left out: {why}", file=sys.stderr)


# --- ours ---


class Holdfast:
    """A server in a process of its own, as `holdfast up` starts it, with a thread and a box that lives."""

    def __init__(self, server: ServerProcess, client: SyncClient, stack: ExitStack) -> None:
        self._env = {"HOLDFAST_HOME": str(server.home)}
        self._pid = server.pid
        self._client = client
        self._thread = client.threads.create().id
        self._box: SyncBox = stack.enter_context(client.boxes.open(client.boxes.create(key="peers").box.id))

    def steps(self) -> dict[str, Step]:
        return {
            "exec": lambda: self._command("box", "exec", "peers", "--", "true"),
            "append": lambda: self._command("thread", "append", self._thread, "hello"),
            "list": lambda: self._command("box", "list"),
            "create": self._create,
            "exec by API": lambda: timed(lambda: self._box.exec(["true"])),
            "create by API": self._create_by_api,
        }

    def _command(self, *words: str) -> Measured:
        return run([_HOLDFAST, *words], self._env)

    def _create(self) -> Measured:
        taken = self._command("box", "create", "--label", "made:here")
        self._clear()
        return taken

    def _create_by_api(self) -> Measured:
        def work() -> None:
            with self._client.boxes.open(self._client.boxes.create().box.id) as box:
                box.exec(["true"])

        taken = timed(work)
        self._clear()
        return taken

    def _clear(self) -> None:
        """Delete the box again, and wait until the pool is full: what is measured next has the machine for itself."""
        for record in self._client.boxes.list():
            if record.id != self._box.id:
                self._client.boxes.delete(record.id)
        before, now = -1.0, cpu_seconds(self._pid)
        while now > before:
            time.sleep(_REST_SECONDS)
            before, now = now, cpu_seconds(self._pid)


# --- the others ---


def srt_steps(folder: Path) -> dict[str, Step]:
    """sandbox-runtime, installed by npm into the folder."""
    missing = [name for name in ("npm", "bwrap", "socat", "rg") if shutil.which(name) is None]
    if missing:
        left_out("srt", f"there is no {' and no '.join(missing)} (apt-get install npm bubblewrap socat ripgrep)")
        return {}
    install: list[str | Path] = ["npm", "install", "--no-audit", "--no-fund", "--prefix", folder, _SRT]
    command: list[str | Path] = [folder / "node_modules" / ".bin" / "srt", "true"]
    try:
        run(install)
        run(command)
    except (RuntimeError, OSError) as error:
        left_out("srt", str(error))
        return {}
    return {"srt": lambda: run(command)}


def bwrap_steps() -> dict[str, Step]:
    """A sandbox that sees the files of the machine, read-only, and has no network."""
    command = ["bwrap", "--unshare-all", "--die-with-parent", "--ro-bind", "/", "/", "--dev", "/dev", "true"]
    try:
        run(command)
    except (RuntimeError, OSError) as error:
        left_out("bwrap", str(error))
        return {}
    return {"bwrap": lambda: run(command)}


@contextlib.contextmanager
def docker_steps() -> Iterator[dict[str, Step]]:
    """A daemon of its own, with an image of busybox and one container that lives."""
    with ExitStack() as stack:
        try:
            if shutil.which("docker") is None:
                raise CannotStart("there is no docker command: apt-get install docker.io")
            engine = stack.enter_context(DockerEngine())
        except CannotStart as error:
            left_out("Docker", str(error))
            yield {}
            return
        docker = ["docker", "-H", engine.url]
        run([*docker, "run", "--detach", "--name", "peer", "--network", "none", BUSYBOX_IMAGE, "sleep", "100000"])
        transport = httpx.HTTPTransport(uds=str(engine.socket))
        api = stack.enter_context(httpx.Client(transport=transport, base_url="http://docker", timeout=_TIMEOUT))
        yield {
            "docker exec": lambda: run([*docker, "exec", "peer", "true"]),
            "docker run": lambda: run([*docker, "run", "--rm", "--network", "none", BUSYBOX_IMAGE, "true"]),
            "docker exec by API": lambda: timed(lambda: _docker_exec(api)),
            "docker run by API": lambda: timed(lambda: _docker_run(api)),
        }


def _docker_exec(api: httpx.Client) -> None:
    made = api.post("/containers/peer/exec", json={"Cmd": ["true"], "AttachStdout": True}).raise_for_status().json()
    api.post(f"/exec/{made['Id']}/start", json={}).raise_for_status()


def _docker_run(api: httpx.Client) -> None:
    wanted = {"Image": BUSYBOX_IMAGE, "Cmd": ["true"], "HostConfig": {"NetworkMode": "none"}}
    id = api.post("/containers/create", json=wanted).raise_for_status().json()["Id"]
    api.post(f"/containers/{id}/start").raise_for_status()
    api.post(f"/containers/{id}/wait").raise_for_status()
    api.delete(f"/containers/{id}").raise_for_status()


# --- in turns ---


def measure(folder: Path, rounds: int, pairs: Sequence[Pair]) -> list[Result]:
    with ExitStack() as stack:
        server = stack.enter_context(ServerProcess(folder / "home", pool=8))
        client = stack.enter_context(SyncClient(server.url, api_key=server.api_key))
        steps = {
            **srt_steps(folder / "srt"),
            **bwrap_steps(),
            **stack.enter_context(docker_steps()),
            **Holdfast(server, client, stack).steps(),
        }
        wanted = {name for pair in pairs for name in (pair.peer, pair.ours)}
        names = [name for name in steps if name in wanted]
        found: dict[str, list[Measured]] = {name: [] for name in names}
        for name in names:
            steps[name]()  # what is loaded and built the first time
        for number in range(rounds):
            print(f"round {number + 1}/{rounds}", file=sys.stderr)
            for name in names if number % 2 == 0 else reversed(names):
                found[name].append(steps[name]())
    samples = Samples()
    for pair in pairs:
        for side, name in (("reference", pair.peer), ("holdfast", pair.ours)):
            fastest = min((each.milliseconds for each in found.get(name, [])), default=0.0)
            for each in found.get(name, []):
                cpu = {} if each.cpu is None else {"cpu ms": each.cpu}
                samples.add(pair.row.name, side, each.milliseconds, **{"fastest ms": fastest}, **cpu)
    return samples.results([pair.row for pair in pairs])


def main() -> None:
    parser = options(__doc__, [pair.row for pair in PAIRS])
    add_rounds(parser)
    add_folder(parser)
    given = parser.parse_args()
    pairs = [pair for pair in PAIRS if not given.only or pair.row.name in given.only]
    with folder_of_boxes(given.dir) as folder:
        results = measure(folder, given.rounds or (3 if given.quick else 25), pairs)
    print_results(given, results, "the other")


if __name__ == "__main__":
    main()
