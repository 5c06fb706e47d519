"""Proves that nothing of a local box is lost or left behind: kills the server, a guest, bubblewrap or the launcher at a
step of what is being done, then looks at everything that there is.

A step is the moment right before something is changed: a file, a folder, a control group, a process, a row. The
interpreter tells of them itself (audit events), so that no step can be forgotten and no product code is touched.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import multiprocessing
import os
import signal
import sqlite3
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from random import Random
from typing import Any, Final

from holdfast.boxes.box import Box, Power
from holdfast.boxes.errors import BoxError
from holdfast.boxes.lifecycle import SETTLED
from holdfast.boxes.process import Process, ProcessState
from holdfast.boxes.provider import Provider
from holdfast.boxes.service import Boxes
from holdfast.boxes.spec import BoxSpec, VolumeMount
from holdfast.boxes.sqlite import SqliteBoxes
from holdfast.providers.local import LocalProvider, guest_provider, layers
from holdfast.testing.box_inventory import guests_of, launchers_of, leftovers, monitors_of, take_inventory
from holdfast.threads.ids import new_id, now_ms

NODE: Final = "here"
_SECONDS: Final = 60.0
_SETTLE_SECONDS: Final = 5.0
"""What was killed takes a moment to be gone."""
_LATER_MS: Final = 120_000
"""The sweep after a crash looks from so much later: by then nobody takes the dead for alive."""
_COUNTED: Final = frozenset(
    (
        "fcntl.flock", "os.chmod", "os.chown", "os.kill", "os.link", "os.mkdir", "os.posix_spawn", "os.remove",
        "os.rename", "os.rmdir", "os.setxattr", "os.symlink", "os.truncate", "socket.connect", "socket.sendmsg",
        "subprocess.Popen",
    )
)  # fmt: skip
_CHANGES: Final = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC


class Victim(StrEnum):
    SERVER = "server"
    GUEST = "guest"
    MONITOR = "monitor"
    """Bubblewrap's own process, which waits for the guest."""
    LAUNCHER = "launcher"


class FaultsFound(AssertionError):
    """A half box, something left behind, something lost."""


@dataclass(frozen=True, slots=True)
class Trial:
    """What one process does, and who is killed when."""

    home: str
    work: str
    journal: str
    victim: Victim = Victim.SERVER
    step: int | None = None
    """None kills nobody and only counts."""


# --- the steps --------------------------------------------------------------------------------------------------------


class Steps:
    """Counts the steps of what this process does while it is armed, and strikes right before the chosen one."""

    def __init__(self, chosen: int | None, strike: Callable[[], None]) -> None:
        self.count = 0
        self._chosen = chosen
        self._strike = strike
        self._armed = False
        self._inside = threading.local()
        sys.addaudithook(self._on_event)
        connect = sqlite3.connect

        def watched(*arguments: Any, **more: Any) -> sqlite3.Connection:
            connection: sqlite3.Connection = connect(*arguments, **more)
            connection.set_trace_callback(lambda statement: self.step())
            return connection

        sqlite3.connect = watched  # type: ignore[assignment]

    @contextlib.contextmanager
    def armed(self) -> Iterator[None]:
        self._armed = True
        try:
            yield
        finally:
            self._armed = False

    def _on_event(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event in _COUNTED or (event == "open" and (arguments[2] or 0) & _CHANGES):
            self.step()

    def step(self) -> None:
        if not self._armed or getattr(self._inside, "busy", False):
            return
        self._inside.busy = True
        try:
            self.count += 1
            if self.count == self._chosen:
                self._strike()
        finally:
            self._inside.busy = False


def _strike(trial: Trial, spared: str) -> None:
    """Kill the victim; one that is not there yet is waited for, beside what goes on."""
    if trial.victim is Victim.SERVER:
        os.kill(os.getpid(), signal.SIGKILL)
    find = {Victim.GUEST: guests_of, Victim.MONITOR: monitors_of, Victim.LAUNCHER: launchers_of}[trial.victim]

    def hunt() -> None:
        deadline = time.monotonic() + 1.0
        while time.monotonic() < deadline:
            found = [pid for pid, box in find(Path(trial.home)) if box != spared]
            for pid in found:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if found:
                return
            time.sleep(0.001)

    threading.Thread(target=hunt, daemon=True).start()
    time.sleep(0.002)


# --- the process that is killed ---------------------------------------------------------------------------------------


class Server:
    """Does one piece of work, and writes down what was acknowledged before anybody can hear of it."""

    def __init__(self, trial: Trial, provider: Provider, boxes: Boxes | None, steps: Steps) -> None:
        self.provider = provider
        self.steps = steps
        self._boxes = boxes
        self._journal = os.open(trial.journal, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC)

    @property
    def boxes(self) -> Boxes:
        assert self._boxes is not None
        return self._boxes

    def say(self, what: str, **more: object) -> None:
        os.write(self._journal, json.dumps({"what": what, **more}).encode() + b"\n")

    async def box(self, id: str | None = None, spec: BoxSpec | None = None) -> Box:
        """One with files, which was acknowledged."""
        id = id or new_id("b")
        box = await self.provider.create(spec or BoxSpec(), id=id)
        await _fill(box)
        self.say("box", id=id)
        return box

    async def row(self) -> str:
        """The same by the service."""
        row = await self.boxes.create(BoxSpec())
        async with await self.boxes.open(row.id) as box:
            await _fill(box)
        self.say("box", id=row.id)
        return row.id


async def _fill(box: Box) -> None:
    """A file, one in a folder, and one that is no more."""
    script = 'mkdir -p inner && echo "$1" > kept && echo "$1" > inner/kept && echo x > gone && rm gone'
    done = await box.exec(["sh", "-c", script, "sh", box.id])
    if not done.ok:
        raise FaultsFound(f"a box could not be filled: {done.stderr!r}")


async def _contents(box: Box) -> str:
    done = await box.exec(["sh", "-c", "cat kept inner/kept; ls -A"], timeout=20.0)
    return done.stdout.decode() + done.stderr.decode()


def _expected(id: str) -> str:
    return f"{id}\n{id}\ninner\nkept\n"


_PRINTER: Final = "i=0; while :; do echo $i; i=$((i + 1)); sleep 0.01; done"


async def _create(server: Server) -> None:
    id = new_id("b")
    server.say("may box", id=id, empty=True)
    with server.steps.armed():
        await server.provider.create(BoxSpec(), id=id)
    server.say("box", id=id, empty=True)


async def _create_on_volume(server: Server) -> None:
    name, id = new_id("v"), new_id("b")
    server.say("may volume", id=name)
    server.say("may box", id=id, empty=True)
    with server.steps.armed():
        await server.provider.create_volume(name)
        server.say("volume", id=name)
        spec = BoxSpec(volumes=(VolumeMount(name, "/mnt/shared", subpath="a/b"),))
        await server.provider.create(spec, id=id)
    server.say("box", id=id, empty=True)


async def _delete(server: Server) -> None:
    box = await server.box()
    server.say("may lose box", id=box.id)
    with server.steps.armed():
        await box.delete()
    server.say("no box", id=box.id)


async def _stop(server: Server) -> None:
    box = await server.box()
    with server.steps.armed():
        await box.stop()


async def _start(server: Server) -> None:
    box = await server.box()
    await box.stop()
    with server.steps.armed():
        await box.start()


async def _snapshot(server: Server) -> None:
    box = await server.box()
    await _snapshot_of(server, box)


async def _snapshot_of(server: Server, box: Box) -> None:
    server.say("may snapshot", of=box.id)
    with server.steps.armed():
        snapshot = await box.snapshot()
    server.say("snapshot", id=snapshot.id, of=box.id)


async def _snapshot_busy(server: Server) -> None:
    """Of a box in which something runs: held still, copied, let go."""
    box = await server.box()
    process = await box.spawn(["sh", "-c", _PRINTER])
    server.say("process", box=box.id, id=process.id)
    await _snapshot_of(server, box)


async def _snapshot_stopped(server: Server) -> None:
    box = await server.box()
    await box.stop()
    await _snapshot_of(server, box)


async def _snapshot_deep(server: Server) -> None:
    """The one at which layers are merged."""
    box = await server.box()
    first = await box.snapshot()
    server.say("snapshot", id=first.id, of=box.id)
    await _fill(box)
    layers.DEEPEST = 2  # type: ignore[misc]
    await _snapshot_of(server, box)


async def _restore(server: Server) -> None:
    box = await server.box()
    snapshot = await box.snapshot()
    server.say("snapshot", id=snapshot.id, of=box.id)
    await box.stop()  # the guest and the bubblewrap that may be struck are those of the new one
    id = new_id("b")
    server.say("may box", id=id, files=box.id)
    with server.steps.armed():
        await server.provider.restore(snapshot.id, BoxSpec(), id=id)
    server.say("box", id=id, files=box.id)


async def _fork(server: Server) -> None:
    box = await server.box()
    id = new_id("b")
    server.say("may box", id=id, files=box.id)
    with server.steps.armed():
        await box.fork(id=id)
        server.say("box", id=id, files=box.id)
        await server.provider.close()  # lets go of what it does beside


async def _delete_snapshot(server: Server) -> None:
    box = await server.box()
    snapshot = await box.snapshot()
    server.say("snapshot", id=snapshot.id, of=box.id)
    await box.delete()
    server.say("no box", id=box.id)
    server.say("may lose snapshot", id=snapshot.id)
    with server.steps.armed():
        await server.provider.delete_snapshot(snapshot.id)
    server.say("no snapshot", id=snapshot.id)


async def _export(server: Server) -> None:
    box = await server.box()
    snapshot = await box.snapshot()
    server.say("snapshot", id=snapshot.id, of=box.id)
    with server.steps.armed():
        async for _ in server.provider.export_snapshot(snapshot.id):
            pass


async def _import(server: Server) -> None:
    box = await server.box()
    snapshot = await box.snapshot()
    server.say("snapshot", id=snapshot.id, of=box.id)
    pieces = [piece async for piece in server.provider.export_snapshot(snapshot.id)]

    async def stream() -> AsyncIterator[bytes]:
        for piece in pieces:
            yield piece

    server.say("may snapshot", of=box.id)
    with server.steps.armed():
        made = await server.provider.import_snapshot(stream())
    server.say("snapshot", id=made.id, of=box.id)


async def _delete_volume(server: Server) -> None:
    name = new_id("v")
    await server.provider.create_volume(name)
    server.say("may volume", id=name)
    with server.steps.armed():
        await server.provider.delete_volume(name)
    server.say("no volume", id=name)


async def _spawn(server: Server) -> None:
    box = await server.box()
    with server.steps.armed():
        process = await box.spawn(["sh", "-c", _PRINTER])
    server.say("process", box=box.id, id=process.id)


async def _service_create(server: Server) -> None:
    id = new_id("b")
    server.say("may box", id=id, empty=True)
    with server.steps.armed():
        row = await server.boxes.create(BoxSpec(), id=id)
    server.say("box", id=row.id, empty=True)


async def _service_acquire(server: Server) -> None:
    """A box of another spec is in the way: it is replaced."""
    key = new_id("k")
    first = (await server.boxes.acquire(key, BoxSpec())).row.id
    server.say("may box", id=first, empty=True)
    server.say("may boxes")
    with server.steps.armed():
        made = await server.boxes.acquire(key, BoxSpec(memory=512 << 20))
    server.say("no box", id=first)
    server.say("box", id=made.row.id, empty=True)


async def _service_delete(server: Server) -> None:
    id = await server.row()
    server.say("may lose box", id=id)
    with server.steps.armed():
        await server.boxes.delete(id)
    server.say("no box", id=id)


async def _service_stop_and_start(server: Server) -> None:
    id = await server.row()
    with server.steps.armed():
        await server.boxes.stop(id)
        await server.boxes.start_box(id)


async def _service_fork(server: Server) -> None:
    id = await server.row()
    server.say("may boxes", files=id)
    with server.steps.armed():
        made = await server.boxes.fork(id)
    server.say("box", id=made.id, files=id)


async def _service_snapshot_and_restore(server: Server) -> None:
    id = await server.row()
    server.say("may snapshot", of=id)
    server.say("may boxes", files=id)
    with server.steps.armed():
        snapshot = await server.boxes.snapshot(id)
        server.say("snapshot", id=snapshot.id, of=id)
        made = await server.boxes.restore(snapshot.id)
    server.say("box", id=made.id, files=id)


async def _serve(server: Server) -> None:
    """Works until it is killed from outside: boxes with all kinds of processes, and new work all the time."""
    boxes = [await server.box() for _ in range(2)]
    for box in boxes:
        for pty in (False, True):
            process = await box.spawn(["sh", "-c", f"stty -onlcr 2>/dev/null; {_PRINTER}"], pty=pty)
            server.say("process", box=box.id, id=process.id)
        reader = await box.spawn(["sh", "-c", 'while read line; do echo "$line"; done; exit 7'], stdin=True)
        server.say("reader", box=box.id, id=reader.id)
        ended = await box.spawn(["sh", "-c", "echo done; exit 9"])
        server.say("ended", box=box.id, id=ended.id)
    server.say("ready")
    while True:
        await asyncio.gather(*(box.exec(["true"]) for box in boxes))


WORK: Final[Mapping[str, Callable[[Server], Awaitable[None]]]] = {
    "create": _create,
    "create on a volume": _create_on_volume,
    "delete": _delete,
    "stop": _stop,
    "start": _start,
    "snapshot": _snapshot,
    "snapshot of a busy box": _snapshot_busy,
    "snapshot of a stopped box": _snapshot_stopped,
    "snapshot that merges": _snapshot_deep,
    "restore": _restore,
    "fork": _fork,
    "delete a snapshot": _delete_snapshot,
    "export": _export,
    "import": _import,
    "delete a volume": _delete_volume,
    "spawn": _spawn,
}
SERVICE_WORK: Final[Mapping[str, Callable[[Server], Awaitable[None]]]] = {
    "service: create": _service_create,
    "service: acquire": _service_acquire,
    "service: delete": _service_delete,
    "service: stop and start": _service_stop_and_start,
    "service: fork": _service_fork,
    "service: snapshot and restore": _service_snapshot_and_restore,
}
_ALL_WORK: Final = {**WORK, **SERVICE_WORK, "serve": _serve}


def _main(trial: Trial, spared: str) -> None:
    """Of the process that is killed, or sees its boxes killed."""
    asyncio.run(_run(trial, spared))


async def _run(trial: Trial, spared: str) -> None:
    guest_provider._START_SECONDS = 5.0  # type: ignore[misc]  # killed halfway, bubblewrap can hang for good
    steps = Steps(trial.step, lambda: _strike(trial, spared))
    if trial.work == "open":
        with steps.armed():
            provider = LocalProvider(Path(trial.home))
            await provider.open()
        Server(trial, provider, None, steps).say("steps", count=steps.count)
        await provider.close()
        return
    async with contextlib.AsyncExitStack() as stack:
        provider = await stack.enter_async_context(LocalProvider(Path(trial.home)))
        boxes = None
        if trial.work in SERVICE_WORK:
            rows = await stack.enter_async_context(SqliteBoxes(Path(trial.home) / "data.db"))
            boxes = Boxes(rows, {provider.name: provider}, node=NODE)
            await boxes.join()
            stack.push_async_callback(boxes.close)
        server = Server(trial, provider, boxes, steps)
        try:
            await _ALL_WORK[trial.work](server)
        except BoxError as error:
            server.say("refused", why=str(error))
        except Exception as error:
            server.say("crashed", why=f"{type(error).__name__}: {error}")
            raise
        finally:
            server.say("steps", count=steps.count)


# --- who looks afterwards ---------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Expected:
    """What there must be and may be, by the journal of the process that was killed."""

    boxes: dict[str, str] = field(default_factory=dict)
    """That were acknowledged, with what they hold."""
    perhaps: dict[str, str] = field(default_factory=dict)
    """On whose making or deletion nothing was heard."""
    perhaps_any: str | None = None
    """What a box holds that may be there by any id."""
    snapshots: dict[str, str] = field(default_factory=dict)
    perhaps_snapshots: dict[str, str] = field(default_factory=dict)
    perhaps_any_snapshot: str | None = None
    volumes: set[str] = field(default_factory=set)
    perhaps_volumes: set[str] = field(default_factory=set)
    processes: list[tuple[str, str]] = field(default_factory=list)
    """That print numbers for ever: box and process."""
    steps: int | None = None
    refused: str | None = None
    crashed: str | None = None


def read_journal(path: Path) -> Expected:
    found = Expected()
    lines = path.read_text().splitlines() if path.exists() else []
    for line in lines:
        told = json.loads(line)
        id = told.get("id", "")
        holds = _expected(told.get("files") or told.get("of") or id) if not told.get("empty") else ""
        match told["what"]:
            case "box":
                found.perhaps.pop(id, None)
                found.boxes[id] = holds
            case "may box":
                found.perhaps[id] = holds
            case "may boxes":
                found.perhaps_any = holds if "files" in told else ""
            case "may lose box":
                found.perhaps[id] = found.boxes.pop(id)
            case "no box":
                found.boxes.pop(id, None)
                found.perhaps.pop(id, None)
            case "snapshot":
                found.snapshots[id] = holds
                found.perhaps_any_snapshot = None
            case "may snapshot":
                found.perhaps_any_snapshot = holds
            case "may lose snapshot":
                found.perhaps_snapshots[id] = found.snapshots.pop(id)
            case "no snapshot":
                found.perhaps_snapshots.pop(id, None)
            case "volume":
                found.volumes.add(id)
            case "may volume":
                found.perhaps_volumes.add(id)
            case "no volume":
                found.volumes.discard(id)
                found.perhaps_volumes.discard(id)
            case "process":
                found.processes.append((told["box"], id))
            case "steps":
                found.steps = told["count"]
            case "refused":
                found.refused = told["why"]
            case "crashed":
                found.crashed = told["why"]
    return found


class Nursery:
    """Starts the processes that are killed: forked from one that has everything loaded, and no threads."""

    def __init__(self) -> None:
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload([__name__])

    def start(self, trial: Trial, spared: str = "") -> multiprocessing.process.BaseProcess:
        process = self._context.Process(target=_main, args=(trial, spared))
        process.start()
        return process

    def run(self, trial: Trial, spared: str = "") -> None:
        process = self.start(trial, spared)
        process.join(_SECONDS)
        if process.exitcode is None:
            process.kill()
            process.join()
            raise FaultsFound(f"{trial} did not end")
        process.close()


class Neighbour:
    """A box beside, in which something prints all the time: it must not notice anything."""

    def __init__(self, id: str, process: str) -> None:
        self.id = id
        self._process = process
        self._seen = 0

    @classmethod
    async def make(cls, home: Path) -> Neighbour:
        async with LocalProvider(home) as provider:
            box = await provider.create(BoxSpec(), id=new_id("neighbour"))
            process = await box.spawn(["sh", "-c", _PRINTER])
            return cls(box.id, process.id)

    async def check(self, provider: Provider) -> list[str]:
        async with await provider.attach(self.id) as box:
            process = await box.process(self._process)
            self._seen, problems = await _still_counts(process, self._seen)
        return [f"the neighbour {problem}" for problem in problems]


async def _still_counts(process: Process, seen: int = 0) -> tuple[int, list[str]]:
    """Whether a process prints numbers, without a gap, and goes on to do so."""
    if (await process.info()).state is not ProcessState.RUNNING:
        return seen, [f"does not run any more: {await process.info()}"]
    deadline = time.monotonic() + _SETTLE_SECONDS
    printed = again = await _all_of(process)
    while time.monotonic() < deadline:
        await asyncio.sleep(0.02)
        again = await _all_of(process)
        if len(again) > len(printed):
            break
    else:
        return seen, ["prints no more"]
    whole = again[: again.rindex(b"\n") + 1].replace(b"\r", b"")
    numbers = [int(line) for line in whole.split()]
    if numbers != list(range(len(numbers))):
        return seen, [f"has a gap in what it printed: {whole[-200:]!r}"]
    return len(numbers), []


async def _all_of(process: Process) -> bytes:
    pieces, offset = [], 0
    while piece := await process.read(offset=offset):
        pieces.append(piece)
        offset += len(piece)
    return b"".join(pieces)


async def examine(home: Path, expected: Expected, neighbour: Neighbour | None, victim: Victim) -> list[str]:
    """As a new server: sweep, then look at everything; at last remove it all, and look again."""
    spared = {neighbour.id} if neighbour else set()
    problems: list[str] = [f"it crashed: {expected.crashed}"] if expected.crashed else []
    async with LocalProvider(home) as provider, _service(home, provider) as boxes:
        if boxes is None:
            await provider.sweep()
        else:
            report = await boxes.sweep()
            problems += [f"the sweep failed at {each}" for each in report.failed]
        problems += await _settled(provider, spared)
        powers = {info.id: info.power for info in await provider.find() if info.id not in spared}
        ids = set(powers)
        problems += [f"box {id} was acknowledged and is gone" for id in expected.boxes.keys() - ids]
        unknown = ids - expected.boxes.keys() - expected.perhaps.keys()
        if expected.perhaps_any is None or len(unknown) > 1:
            problems += [f"box {id} is known to nobody" for id in unknown]
        if victim is Victim.SERVER:  # what was made runs, and what is not yet deleted does, too
            halves = [id for id in ids - expected.boxes.keys() if powers[id] is Power.STOPPED]
            problems += [f"box {id} was half made, or half deleted, and is there" for id in halves]
        holds = {**dict.fromkeys(unknown, expected.perhaps_any or ""), **expected.perhaps, **expected.boxes}
        for id in ids:
            problems += await _examine_box(provider, id, holds[id], [p for b, p in expected.processes if b == id])
        problems += await _examine_snapshots(provider, expected)
        volumes = {volume.name for volume in await provider.volumes()}
        problems += [f"volume {name} is lost" for name in expected.volumes - volumes]
        problems += [f"volume {name} is left" for name in volumes - expected.volumes - expected.perhaps_volumes]
        if boxes is not None:
            problems += await _examine_rows(boxes, ids)
            for id in ids:
                await boxes.delete(id)
        if neighbour is not None:
            problems += await neighbour.check(provider)
        for info in await provider.find():
            if info.id not in spared:
                await provider.remove(info.id)
        for snapshot in await provider.snapshots():
            await provider.delete_snapshot(snapshot.id)
        for name in volumes:
            await provider.delete_volume(name)
        await provider.sweep()
        problems += [f"after all was deleted: {problem}" for problem in await _settled(provider, spared)]
    return problems


@contextlib.asynccontextmanager
async def _service(home: Path, provider: Provider) -> AsyncIterator[Boxes | None]:
    if not (home / "data.db").exists():
        yield None
        return
    async with SqliteBoxes(home / "data.db") as rows:
        boxes = Boxes(rows, {provider.name: provider}, node=NODE, clock=lambda: now_ms() + _LATER_MS)
        try:
            yield boxes
        finally:
            await boxes.close()


async def _settled(provider: LocalProvider, spared: set[str]) -> list[str]:
    """What is there that nothing refers to, once the dying had a moment."""
    deadline = time.monotonic() + _SETTLE_SECONDS
    while True:
        inventory = await asyncio.to_thread(take_inventory, provider.ground)
        problems = leftovers(inventory)
        problems += [f"the neighbour {id} is not alive" for id in spared - inventory.alive]
        if not problems or time.monotonic() > deadline:
            return problems
        await asyncio.sleep(0.05)


async def _examine_box(provider: Provider, id: str, holds: str, processes: Sequence[str]) -> list[str]:
    problems: list[str] = []
    try:
        async with await provider.attach(id) as box:
            if await box.power() is Power.STOPPED:
                await box.start()
            elif processes:
                for each in processes:
                    _, wrong = await _still_counts(await box.process(each))
                    problems += [f"process {each} of box {id} {problem}" for problem in wrong]
            if holds and (found := await _contents(box)) != holds:
                problems.append(f"box {id} holds {found!r} and not {holds!r}")
            elif not holds and not (await box.exec(["true"], timeout=20.0)).ok:
                problems.append(f"box {id} runs no commands")
            await box.files.write("after", b"the fault")
            process = await box.spawn(["sh", "-c", "sleep 0.01; exit 5"])
            if (code := await process.wait(20.0)) != 5:
                problems.append(f"box {id}: a process that should exit with 5 did with {code}")
            strangers = [one for one in await box.processes() if one.id not in processes]
            problems += [f"box {id} has a stranger: {one}" for one in strangers if one.state is ProcessState.RUNNING]
    except BoxError as error:
        problems.append(f"box {id} is not whole: {type(error).__name__}: {error}")
    return problems


async def _examine_snapshots(provider: Provider, expected: Expected) -> list[str]:
    problems = []
    found = {snapshot.id for snapshot in await provider.snapshots()}
    problems += [f"snapshot {id} was acknowledged and is gone" for id in expected.snapshots.keys() - found]
    unknown = found - expected.snapshots.keys() - expected.perhaps_snapshots.keys()
    if expected.perhaps_any_snapshot is None or len(unknown) > 1:
        problems += [f"snapshot {id} is known to nobody" for id in unknown]
    holds = {
        **dict.fromkeys(unknown, expected.perhaps_any_snapshot or ""),
        **expected.perhaps_snapshots,
        **expected.snapshots,
    }
    for id in found:
        try:
            box = await provider.restore(id, BoxSpec(), id=new_id("b"))
            if holds[id] and (content := await _contents(box)) != holds[id]:
                problems.append(f"snapshot {id} holds {content!r} and not {holds[id]!r}")
            await box.delete()
        except BoxError as error:
            problems.append(f"snapshot {id} cannot be restored: {type(error).__name__}: {error}")
    return problems


async def _examine_rows(boxes: Boxes, ids: set[str]) -> list[str]:
    rows = {row.id: row for row in await boxes.rows.live(boxes.tenant, boxes.node)}
    problems = [f"row {id} has no box" for id in rows.keys() - ids]
    problems += [f"box {id} has no row" for id in ids - rows.keys()]
    return problems + [f"row {row.id} is {row.state}" for row in rows.values() if row.state not in SETTLED]


# --- trials -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of one kind of work with one kind of victim."""

    steps: int
    struck: tuple[int, ...]
    completed: int
    """Times that the work was acknowledged in spite of all."""
    problems: tuple[str, ...]

    def check(self) -> None:
        if self.problems:
            raise FaultsFound("\n".join(f"- {problem}" for problem in self.problems))


def strike_at_steps(
    home: Path, work: str, victim: Victim, neighbour: Neighbour | None, *, most: int | None, random: Random
) -> Outcome:
    """Count the steps of some work, then do it again and again and kill somebody at each, or at a few of them."""
    nursery = Nursery()
    spared = neighbour.id if neighbour else ""

    def once(step: int | None) -> tuple[Expected, list[str]]:
        journal = home.with_name(f"{home.name}.{new_id('j')}.journal")
        nursery.run(Trial(str(home), work, str(journal), victim, step), spared)
        expected = read_journal(journal)
        return expected, asyncio.run(examine(home, expected, neighbour, victim))

    return _strike_each(work, victim, once, most, random)


def strike_at_opening(folder: Path, *, most: int | None, random: Random) -> Outcome:
    """The same for a provider that is opened on a new home, which is another one each time."""
    nursery = Nursery()

    def once(step: int | None) -> tuple[Expected, list[str]]:
        home = folder / new_id("home")
        journal = home.with_suffix(".journal")
        nursery.run(Trial(str(home), "open", str(journal), Victim.SERVER, step))
        expected = read_journal(journal)
        return expected, asyncio.run(examine(home, expected, None, Victim.SERVER))

    return _strike_each("open", Victim.SERVER, once, most, random)


def _strike_each(
    work: str,
    victim: Victim,
    once: Callable[[int | None], tuple[Expected, list[str]]],
    most: int | None,
    random: Random,
) -> Outcome:
    counted, found = once(None)
    problems = [f"{work}, nobody killed: {problem}" for problem in found]
    if counted.refused or not counted.steps:
        raise FaultsFound(f"{work} does not work even with nobody killed: {counted.refused}")
    steps = range(1, counted.steps + 1)
    chosen = sorted(steps if most is None or most >= len(steps) else random.sample(steps, most))
    completed = 0
    for step in chosen:
        expected, found = once(step)
        completed += expected.steps is not None and expected.refused is None
        problems += [f"{work}, {victim} killed at step {step} of {counted.steps}: {problem}" for problem in found]
    return Outcome(counted.steps, tuple(chosen), completed, tuple(problems))


# --- restarts ---------------------------------------------------------------------------------------------------------


def serve_and_kill(home: Path, random: Random) -> Served:
    """Have a server work on boxes full of processes, and kill it at some moment."""
    journal = home.with_name(f"{home.name}.{new_id('j')}.journal")
    process = Nursery().start(Trial(str(home), "serve", str(journal)))
    deadline = time.monotonic() + _SECONDS
    while '"ready"' not in (journal.read_text() if journal.exists() else ""):
        if time.monotonic() > deadline or not process.is_alive():
            process.kill()
            raise FaultsFound("the server never got to work")
        time.sleep(0.01)
    time.sleep(random.random() * 0.3)
    process.kill()
    process.join()
    process.close()
    told = [json.loads(line) for line in journal.read_text().splitlines()]

    def of(what: str) -> tuple[tuple[str, str], ...]:
        return tuple((each["box"], each["id"]) for each in told if each["what"] == what)

    boxes = tuple(each["id"] for each in told if each["what"] == "box")
    return Served(boxes, of("process"), of("reader"), of("ended"))


@dataclass(frozen=True, slots=True)
class Served:
    """What a killed server left: boxes, and by box the processes in them."""

    boxes: tuple[str, ...]
    printers: tuple[tuple[str, str], ...]
    """That print numbers for ever."""
    readers: tuple[tuple[str, str], ...]
    """That repeat each line they are given, and exit with 7 at the end of them."""
    ended: tuple[tuple[str, str], ...]
    """That printed "done" and exited with 9."""


async def find_again(provider: Provider, served: Served) -> list[str]:
    """As a new server: every box with its files, every process running, its output complete, its stdin open."""
    problems: list[str] = []
    powers = {info.id: info.power for info in await provider.find()}
    problems += [f"box {id} is {powers.get(id)}" for id in served.boxes if powers.get(id) is not Power.RUNNING]
    for box_id, id in served.printers:
        async with await provider.attach(box_id) as box:
            _, wrong = await _still_counts(await box.process(id))
            problems += [f"process {id} of box {box_id} {problem}" for problem in wrong]
    for box_id, id in served.readers:
        async with await provider.attach(box_id) as box:
            reader = await box.process(id)
            await reader.write(b"first\nsecond\n")
            await reader.close_stdin()
            code = await reader.wait(20.0)
            if (code, await _all_of(reader)) != (7, b"first\nsecond\n"):
                problems.append(f"process {id} exited with {code} after {await _all_of(reader)!r}")
    for box_id, id in served.ended:
        async with await provider.attach(box_id) as box:
            ended = await box.process(id)
            code = await ended.wait(20.0)
            if (code, await _all_of(ended)) != (9, b"done\n"):
                problems.append(f"process {id} is said to have exited with {code} after {await _all_of(ended)!r}")
    for id in served.boxes:
        async with await provider.attach(id) as box:
            if (found := await _contents(box)) != _expected(id):
                problems.append(f"box {id} holds {found!r}")
    return problems


async def come_back(provider: Provider, served: Served) -> list[str]:
    """As after a machine's reboot: boxes are stopped and their processes lost; they start, with their files."""
    problems: list[str] = []
    for id in served.boxes:
        async with await provider.attach(id) as box:
            if (power := await box.power()) is not Power.STOPPED:
                problems.append(f"box {id} is {power}")
            for each in await box.processes():
                wanted = ProcessState.EXITED if (id, each.id) in served.ended else ProcessState.LOST
                if each.state is not wanted:
                    problems.append(f"process {each.id} of box {id} is {each.state}")
            await box.start()
            if (found := await _contents(box)) != _expected(id):
                problems.append(f"box {id} holds {found!r}")
    return problems


async def left_behind(provider: LocalProvider) -> list[str]:
    """Sweep, and tell what is there that nothing refers to."""
    await provider.sweep()
    return await _settled(provider, set())


def kill_all_of(home: Path, *, but: str = "") -> None:
    """Every process of every box, guests, monitors and launchers: as when the machine loses its power."""
    deadline = time.monotonic() + _SETTLE_SECONDS
    while time.monotonic() < deadline:
        found = [pid for find in (guests_of, monitors_of, launchers_of) for pid, box in find(home) if box != but]
        if not found:
            return
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)
    raise FaultsFound("what was killed does not end")
