"""What a server does with local boxes in a trial of `tests.providers.local.faults`, and the steps at which one dies.

A step is the moment right before something is changed: a file, a folder, a control group, a process, a row. The
interpreter tells of them itself (audit events), so that no step can be forgotten and no product code is touched.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sqlite3
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from tests.providers.local.inventory import guests_of, launchers_of, monitors_of

from holdfast.api.box.box import Box
from holdfast.api.box.spec import BoxSpec, VolumeMount
from holdfast.api.errors.boxes import BoxError
from holdfast.api.ids import new_id, now_ms
from holdfast.boxes.labels import HIBERNATION, POOL
from holdfast.boxes.provider import Provider
from holdfast.boxes.service.boxes import Boxes
from holdfast.boxes.service.pool_rules import PoolSettings
from holdfast.providers.host import power
from holdfast.providers.host.disk import layers
from holdfast.providers.local import LocalProvider
from holdfast.storage.sqlite.boxes import SqliteBoxes

NODE: Final = "here"
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


async def contents_of(box: Box) -> str:
    done = await box.exec(["sh", "-c", "cat kept inner/kept; ls -A"], timeout=20.0)
    return done.stdout.decode() + done.stderr.decode()


def filled_with(id: str) -> str:
    return f"{id}\n{id}\ninner\nkept\n"


PRINTER: Final = "i=0; while :; do echo $i; i=$((i + 1)); sleep 0.01; done"


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


async def _pause(server: Server) -> None:
    box = await _printing(server)
    with server.steps.armed():
        await box.pause()


async def _resume(server: Server) -> None:
    box = await _printing(server)
    await box.pause()
    with server.steps.armed():
        await box.start()


async def _printing(server: Server) -> Box:
    box = await server.box()
    process = await box.spawn(["sh", "-c", PRINTER])
    server.say("process", box=box.id, id=process.id)
    return box


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
    process = await box.spawn(["sh", "-c", PRINTER])
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
        process = await box.spawn(["sh", "-c", PRINTER])
    server.say("process", box=box.id, id=process.id)


async def _ahead(server: Server) -> tuple[str, str]:
    """A box of a pool, which nobody was told of: whoever comes after a crash may remove it."""
    id, hash = new_id("b"), BoxSpec().hash
    server.say("may box", id=id, empty=True)
    await server.provider.create(BoxSpec(), id=id, labels={POOL: hash})
    return id, hash


async def _hand_over(server: Server) -> None:
    id, _ = await _ahead(server)
    with server.steps.armed():
        await server.provider.hand_over(id, BoxSpec(), labels={"some": "one"}, created_at=now_ms())
    server.say("box", id=id, empty=True)


async def _service_hand_over(server: Server) -> None:
    """A box out of the pool of the service, which is filled again behind it."""
    server.say("may boxes")
    await server.boxes.pool.keep(BoxSpec(), 1)
    await server.boxes.pool.settled()
    with server.steps.armed():
        row = await server.boxes.create(BoxSpec())
    server.say("box", id=row.id, empty=True)


async def _service_refill(server: Server) -> None:
    server.say("may boxes")
    with server.steps.armed():
        await server.boxes.pool.keep(BoxSpec(), 1)
        await server.boxes.pool.settled()


async def _service_drain(server: Server) -> None:
    server.say("may boxes")
    await server.boxes.pool.keep(BoxSpec(), 1)
    await server.boxes.pool.settled()
    with server.steps.armed():
        await server.boxes.pool.keep(BoxSpec(), 0)
        await server.boxes.pool.settled()


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


async def _service_hibernate_and_wake(server: Server) -> None:
    """The second sleep: the snapshot of the first goes."""
    id = await server.row()
    await server.boxes.hibernate(id)
    (first,) = await server.provider.snapshots({HIBERNATION: id})
    server.say("snapshot", id=first.id, of=id)
    await server.boxes.start_box(id)
    server.say("may lose snapshot", id=first.id)
    server.say("may snapshot", of=id)
    with server.steps.armed():
        await server.boxes.hibernate(id)
        async with await server.boxes.open(id) as box:
            await box.exec(["true"])


async def _service_restore_what_sleeps(server: Server) -> None:
    """Its files are lost while it sleeps."""
    id = await server.row()
    server.say("may snapshot", of=id)
    await server.boxes.hibernate(id)
    server.say("may lose box", id=id)
    await server.provider.remove(id)
    with server.steps.armed():
        async with await server.boxes.open(id) as box:
            await box.exec(["true"])
    server.say("box", id=id)


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
            process = await box.spawn(["sh", "-c", f"stty -onlcr 2>/dev/null; {PRINTER}"], pty=pty)
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
    "pause": _pause,
    "resume": _resume,
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
    "hand over": _hand_over,
}
SERVICE_WORK: Final[Mapping[str, Callable[[Server], Awaitable[None]]]] = {
    "service: create": _service_create,
    "service: acquire": _service_acquire,
    "service: delete": _service_delete,
    "service: stop and start": _service_stop_and_start,
    "service: hibernate and wake": _service_hibernate_and_wake,
    "service: restore what sleeps": _service_restore_what_sleeps,
    "service: fork": _service_fork,
    "service: snapshot and restore": _service_snapshot_and_restore,
    "service: hand over": _service_hand_over,
    "service: refill": _service_refill,
    "service: drain": _service_drain,
}
_ALL_WORK: Final = {**WORK, **SERVICE_WORK, "serve": _serve}


def run_trial(trial: Trial, spared: str) -> None:
    """Of the process that is killed, or sees its boxes killed."""
    asyncio.run(_run(trial, spared))


async def _run(trial: Trial, spared: str) -> None:
    power._START_SECONDS = 5.0  # type: ignore[misc]  # killed halfway, bubblewrap can hang for good
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
            pool = PoolSettings(boxes=1, quiet_seconds=0.0, half_life=0.001, memory=lambda: 1.0)
            boxes = Boxes(rows, {provider.name: provider}, node=NODE, pool=pool)
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
