"""Proves that nothing of a local box is lost or left behind: kills the server, a guest, bubblewrap or the launcher at a
step of what is being done, then looks at everything that there is.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import multiprocessing
import os
import signal
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Final

from tests.providers.local.fault_work import (
    NODE,
    PRINTER,
    FaultsFound,
    Trial,
    Victim,
    contents_of,
    filled_with,
    run_trial,
)
from tests.providers.local.inventory import guests_of, launchers_of, leftovers, monitors_of, take_inventory

from holdfast.api.box.box import Power
from holdfast.api.box.process import Process, ProcessState
from holdfast.api.box.records import BoxState
from holdfast.api.box.spec import BoxSpec
from holdfast.api.errors.boxes import BoxError
from holdfast.api.ids import new_id, now_ms
from holdfast.boxes.lifecycle import SETTLED
from holdfast.boxes.provider import Provider
from holdfast.boxes.service.boxes import Boxes
from holdfast.providers.local import LocalProvider
from holdfast.storage.sqlite.boxes import SqliteBoxes

_SECONDS: Final = 60.0
_SETTLE_SECONDS: Final = 5.0
"""What was killed takes a moment to be gone."""
_LATER_MS: Final = 120_000
"""The sweep after a crash looks from so much later: by then nobody takes the dead for alive."""


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
        holds = filled_with(told.get("files") or told.get("of") or id) if not told.get("empty") else ""
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
        process = self._context.Process(target=run_trial, args=(trial, spared))
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
            process = await box.spawn(["sh", "-c", PRINTER])
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
        inventory = await asyncio.to_thread(take_inventory, provider.data_dir)
        problems = leftovers(inventory)
        problems += [f"the neighbour {id} is not alive" for id in spared - inventory.alive]
        if not problems or time.monotonic() > deadline:
            return problems
        await asyncio.sleep(0.05)


async def _examine_box(provider: Provider, id: str, holds: str, processes: Sequence[str]) -> list[str]:
    problems: list[str] = []
    try:
        async with await provider.attach(id) as box:
            stopped = await box.power() is Power.STOPPED
            await box.start()
            if processes and not stopped:
                for each in processes:
                    _, wrong = await _still_counts(await box.process(each))
                    problems += [f"process {each} of box {id} {problem}" for problem in wrong]
            if holds and (found := await contents_of(box)) != holds:
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
            if holds[id] and (content := await contents_of(box)) != holds[id]:
                problems.append(f"snapshot {id} holds {content!r} and not {holds[id]!r}")
            await box.delete()
        except BoxError as error:
            problems.append(f"snapshot {id} cannot be restored: {type(error).__name__}: {error}")
    return problems


async def _examine_rows(boxes: Boxes, ids: set[str]) -> list[str]:
    rows = {row.id: row for row in await boxes.rows.live(boxes.tenant, boxes.node)}
    # One that sleeps may have lost its files: its snapshot brings it back.
    awake = {id for id, row in rows.items() if row.state is not BoxState.HIBERNATED}
    problems = [f"row {id} has no box" for id in awake - ids]
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
            if (found := await contents_of(box)) != filled_with(id):
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
            if (found := await contents_of(box)) != filled_with(id):
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
