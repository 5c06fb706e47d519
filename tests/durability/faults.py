"""Proves that nothing acknowledged is lost: kills a server that is written to, or fills its disk, then looks.

From a shell, on any home (on the disk that you mean to use, say): `python -m tests.durability.faults --kills 50`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random, SystemRandom
from typing import Any, Final

import httpx
import orjson
from tests.disks import CannotMount, SmallDisk
from tests.durability.evidence import Ledger, compare, judge
from tests.durability.shapes import BytesShape, EntryShape, JsonShape, Length, Shape, large_length, mixed_length
from tests.durability.traffic import (
    STREAMS,
    THREADS,
    ChatWriter,
    ClientReader,
    ClientWriter,
    ProducerWriter,
    Reader,
    Scene,
    UnexpectedAnswer,
    Writer,
    ask,
    connect,
    read_pages,
)

from holdfast.client import Client
from holdfast.testing.server import ServerProcess

_SPOT_CHECKS: Final = 12
"""Acknowledged offsets per stream from which the rest of the stream is read again."""
_REFUSALS: Final = 40
"""Appends that a full disk has to refuse before it counts as full."""
_GOES_ON: Final = 30
"""Appends that have to be acknowledged once there is room again."""
_LIVE_SECONDS: Final = 20.0
"""Within which a live reader has what was acknowledged."""
_SHARED_THREAD: Final = "t-faults-shared"
_CLIENT_THREAD: Final = "t-faults-client"


class FaultsFound(AssertionError):
    """Something was lost, doubled, torn or out of order."""


@dataclass(frozen=True, slots=True)
class FaultReport:
    """What a trial did and what it found. `problems` is empty where all is well."""

    seed: int
    kills: int
    """Times that the server was killed while it was written to."""
    startup_kills: int
    """Times that it was killed again while it started."""
    kills_in_flight: int
    """Kills that hit at least one append on its way."""
    appends_hit: int
    """Appends on their way at a kill, in all."""
    refused: int
    """Appends that a full disk kept out, each time they were tried."""
    acknowledged: int
    """Messages."""
    repeated: int
    """Appends that turned out to have been written when they were repeated."""
    unknown: int
    """Messages that nobody acknowledged and nobody repeated."""
    unknown_found: int
    """Those of them that are there."""
    reconnections: int
    """Of the readers."""
    seconds: float
    problems: tuple[str, ...]

    def check(self) -> None:
        """Raise where something is wrong."""
        if self.problems:
            raise FaultsFound(f"{self}\n" + "\n".join(f"- {problem}" for problem in self.problems))

    def __str__(self) -> str:
        verdict = f"{len(self.problems)} problems" if self.problems else "nothing lost"
        return (
            f"{verdict}: {self.acknowledged} messages acknowledged, {self.kills} kills"
            f" ({self.kills_in_flight} of them hit {self.appends_hit} appends on their way)"
            f" and {self.startup_kills} during start-up, {self.refused} appends refused by a full disk,"
            f" {self.repeated} repeated ones found written, {self.unknown_found} of {self.unknown}"
            f" messages of unknown fate found, {self.reconnections} reconnections of readers,"
            f" {self.seconds:.1f} s, seed {self.seed}"
        )


@dataclass(frozen=True, slots=True)
class KillPlan:
    """How often to kill, and when. The moment is chosen by the traffic, so that a kill hits writes on their way."""

    kills: int = 50
    startup_kills: int = 10
    appends: int = 300
    """At most so many acknowledged appends between a start and a kill."""
    delay: float = 0.010
    """At most so many seconds more; half of the kills come at once."""


@dataclass(frozen=True, slots=True)
class _Stream:
    path: str
    shape: Shape
    ledger: Ledger
    reader: Reader

    @property
    def thread(self) -> str | None:
        return self.path.removeprefix(THREADS) if self.path.startswith(THREADS) else None


class Trial:
    """A server, everybody who writes to it and reads from it, and the evidence. `open_trial` makes one."""

    def __init__(
        self, server: ServerProcess, scene: Scene, http: httpx.AsyncClient, client: Client, length: Length, seed: int
    ) -> None:
        self.server = server
        self.scene = scene
        self._http = http
        self.random = Random(seed)
        self.problems: list[str] = []
        self._seed = seed
        self._began = time.monotonic()
        self._kills = self._startup_kills = self._kills_in_flight = self._appends_hit = 0
        self._startup_seconds = 0.1
        self._client_reader = ClientReader(scene, client, _CLIENT_THREAD)
        self._streams: list[_Stream] = []
        self._writers: list[Writer] = []
        self._writing: list[asyncio.Task[None]] = []
        self._populate(client, length)

    def _populate(self, client: Client, length: Length) -> None:
        scene = self.scene
        shared, own = self._stream("faults/shared", JsonShape(length)), self._stream("faults/own", JsonShape(length))
        raw = self._stream("faults/bytes", BytesShape(length))
        entries = EntryShape(length)
        thread = self._stream(THREADS + _SHARED_THREAD, entries)
        client_thread = self._stream(THREADS + _CLIENT_THREAD, entries)
        self._writers = [
            *(ProducerWriter(scene, f"shared-{n}", shared.path, shared.shape, shared.ledger) for n in range(3)),
            ProducerWriter(scene, "own", own.path, own.shape, own.ledger),
            *(ProducerWriter(scene, f"bytes-{n}", raw.path, raw.shape, raw.ledger) for n in range(2)),
            ProducerWriter(scene, "producer", thread.path, entries, thread.ledger),
            Writer(scene, "entries", thread.path, entries, thread.ledger),
            ChatWriter(scene, "chat", _SHARED_THREAD, entries, thread.ledger),
            ClientWriter(scene, "client", client, _CLIENT_THREAD, entries, client_thread.ledger),
        ]

    def _stream(self, path: str, shape: Shape) -> _Stream:
        stream = _Stream(path, shape, Ledger(), Reader(self.scene, path))
        self._streams.append(stream)
        return stream

    async def create(self) -> None:
        """Make what is written to."""
        for stream in self._streams:
            if stream.thread is not None:
                await ask(self._http, "POST", "/v1/threads", json={"id": stream.thread, "title": "faults"})
            else:
                headers = {"content-type": stream.shape.content_type}
                await ask(self._http, "PUT", STREAMS + stream.path, headers=headers)

    @contextlib.asynccontextmanager
    async def traffic(self) -> AsyncIterator[None]:
        """Everybody writes and reads until the end, or until the first of them meets what no fault explains."""
        try:
            async with asyncio.TaskGroup() as group:
                self._writing = [group.create_task(writer.write()) for writer in self._writers]
                readers = [group.create_task(stream.reader.read()) for stream in self._streams]
                readers.append(group.create_task(self._client_reader.read()))
                yield
                for reader in readers:
                    reader.cancel()
        except* UnexpectedAnswer as group_of_errors:
            first = _leaves(group_of_errors)[0]
            raise FaultsFound(f"{first} (after {self._kills} kills, seed {self._seed})") from first

    async def finish(self) -> None:
        """Let the writers come to an end."""
        self.scene.finishing = True
        await asyncio.wait(self._writing)

    # Faults

    async def kill_after(self, appends: int, delay: float, *, last: bool) -> None:
        """Kill at the moment an append is acknowledged, or a little later: both come upon others on their way."""

        def kill() -> None:
            self.scene.finishing = last
            self.kill()

        if self.random.random() < 0.5:
            await self.scene.wait_acknowledged(appends, then=kill)
        else:
            await self.scene.wait_acknowledged(appends)
            await asyncio.sleep(self.random.random() * delay)
            kill()

    def kill(self) -> None:
        """Now, whatever is on its way."""
        hit = self.scene.in_flight
        self.scene.went_down()
        self.server.kill()
        self._kills += 1
        self._appends_hit += hit
        self._kills_in_flight += hit > 0

    async def start(self) -> None:
        began = time.monotonic()
        await asyncio.to_thread(self.server.start)
        self._startup_seconds = (self._startup_seconds + time.monotonic() - began) / 2
        self.scene.came_up()

    async def restart(self) -> None:
        """In peace."""
        self.scene.went_down()
        await asyncio.to_thread(self.server.restart)
        self.scene.came_up()

    async def kill_during_startup(self) -> None:
        await asyncio.to_thread(self.server.launch)
        await asyncio.sleep(self.random.random() * self._startup_seconds)
        self.server.kill()
        self._startup_kills += 1

    async def wait_full(self) -> None:
        """Until appends have been refused again and again, which a single large one would not cause."""
        answers = self.scene.answers
        target = answers[507] + _REFUSALS
        await self.scene.wait_until(lambda: answers[507] >= target, f"{_REFUSALS} appends to find the disk full")

    async def wait_going_on(self) -> None:
        """Until appends are acknowledged again, and those who read live have been told."""
        await self.scene.wait_acknowledged(_GOES_ON)
        for stream in self._streams:
            head = await ask(self._http, "HEAD", STREAMS + stream.path)
            await self._wait_reader(stream, head.headers["stream-next-offset"])

    # Judgement

    async def examine(self, when: str) -> None:
        """Read everything back, by every way there is, and note what does not agree. Writers must have stopped."""
        for stream in self._streams:
            self._note(when, stream, await self._examine_stream(stream))
        damage = await asyncio.to_thread(check_database, self.server)
        self.problems += [f"{when}: {problem}" for problem in damage]

    async def examine_while_writing(self, when: str) -> None:
        """See that reads are served, and that what was acknowledged before they began is in them."""
        for stream in self._streams:
            acknowledged = dict(stream.ledger.acknowledged)
            pages, _ = await read_pages(self._http, stream.path)
            seen = Ledger(list(stream.ledger.deliveries), acknowledged)
            self._note(when, stream, judge(seen, stream.shape.split(pages)))
            if stream.thread is not None:
                await ask(self._http, "GET", f"/v1/threads/{stream.thread}")
                await ask(self._http, "GET", f"/v1/threads/{stream.thread}/entries")
        for url in ("/health", "/metrics", "/v1/threads", "/v1/keys"):
            await ask(self._http, "GET", url)

    def _note(self, when: str, stream: _Stream, problems: Sequence[str]) -> None:
        self.problems += [f"{when}: {stream.path}: {problem}" for problem in problems]

    async def _examine_stream(self, stream: _Stream) -> list[str]:
        http, ledger = self._http, stream.ledger
        pages, end = await read_pages(http, stream.path)
        stored = stream.shape.split(pages)
        problems = judge(ledger, stored)
        head = await ask(http, "HEAD", STREAMS + stream.path)
        if head.headers["stream-next-offset"] != end:
            problems.append(f"HEAD says it ends at {head.headers['stream-next-offset']}, reading it at {end}")
        await self._wait_reader(stream, end)
        problems += compare("the live reader", stream.shape.split(stream.reader.pages), stored)
        problems += await self._examine_offsets(stream, stored)
        if stream.thread is not None:
            problems += await self._examine_thread(stream.thread, pages, end)
        if stream.thread == _CLIENT_THREAD:
            reader = self._client_reader
            await self.scene.wait_until(
                lambda: len(reader.messages) >= len(stored), "the client's reader to catch up", patience=_LIVE_SECONDS
            )
            problems += compare("the client's reader", reader.messages, stored)
        return problems

    async def _wait_reader(self, stream: _Stream, end: str) -> None:
        # Less than a connection lasts, or a reader that is forgotten by the server would be saved by the next one.
        what = f"the live reader of {stream.path} to reach {end}"
        await self.scene.wait_until(lambda: stream.reader.offset >= end, what, patience=_LIVE_SECONDS)

    async def _examine_offsets(self, stream: _Stream, stored: Sequence[bytes]) -> list[str]:
        """Reading on from an acknowledged offset gives exactly what stands behind the message."""
        known = [
            (delivery.messages[-1], acknowledgement.offset)
            for delivery, acknowledgement in stream.ledger.acknowledged.items()
            if acknowledgement.offset is not None
        ]
        place = {message: index for index, message in enumerate(stored)}
        problems = []
        for message, offset in self.random.sample(known, min(_SPOT_CHECKS, len(known))):
            pages, _ = await read_pages(self._http, stream.path, offset)
            if message in place:
                rest = stream.shape.split(pages)
                problems += compare(f"reading on from {offset}", rest, stored[place[message] + 1 :])
        return problems

    async def _examine_thread(self, thread: str, pages: Sequence[bytes], end: str) -> list[str]:
        """The thread's row and its REST reading agree with its stream."""
        entries: list[dict[str, Any]] = [entry for page in pages for entry in orjson.loads(page)]
        row = (await ask(self._http, "GET", f"/v1/threads/{thread}")).json()
        last = row["lastEntry"] or {}
        problems = [
            f"the row's {name} is {said!r}, by the stream it is {right!r}"
            for name, said, right in (
                ("entryCount", row["entryCount"], len(entries)),
                ("nextOffset", row["nextOffset"], end),
                ("lastEntry.id", last.get("id"), entries[-1]["id"]),
                ("title", row["title"], "faults"),
            )
            if said != right
        ]
        ids, since, up_to_date = [], "-1", False
        while not up_to_date:
            parameters: dict[str, str | int] = {"since": since, "limit": 1000}
            answer = (await ask(self._http, "GET", f"/v1/threads/{thread}/entries", params=parameters)).json()
            ids += [entry["id"].encode() for entry in answer["entries"]]
            since, up_to_date = answer["nextOffset"], answer["upToDate"]
        return problems + compare("reading by REST", ids, [entry["id"].encode() for entry in entries])

    async def report(self) -> FaultReport:
        unknown = [(stream, delivery.messages) for stream in self._streams for delivery in stream.ledger.unknown]
        stored: dict[str, set[bytes]] = {}
        for stream in self._streams:
            stored[stream.path] = set(stream.shape.split((await read_pages(self._http, stream.path))[0]))
        answers = self.scene.answers
        return FaultReport(
            seed=self._seed,
            kills=self._kills,
            startup_kills=self._startup_kills,
            kills_in_flight=self._kills_in_flight,
            appends_hit=self._appends_hit,
            refused=answers[507] + answers[503],
            acknowledged=sum(stream.ledger.acknowledged_messages for stream in self._streams),
            repeated=sum(writer.repeated for writer in self._writers),
            unknown=sum(len(messages) for _, messages in unknown),
            unknown_found=sum(message in stored[stream.path] for stream, messages in unknown for message in messages),
            reconnections=sum(stream.reader.connections - 1 for stream in self._streams),
            seconds=time.monotonic() - self._began,
            problems=tuple(self.problems),
        )


def _leaves(group: BaseExceptionGroup[UnexpectedAnswer]) -> list[UnexpectedAnswer]:
    return [
        leaf
        for each in group.exceptions
        for leaf in (_leaves(each) if isinstance(each, BaseExceptionGroup) else [each])
    ]


_INTEGRITY: Final = """
import sqlite3, sys
for (found,) in sqlite3.connect(f"file:{sys.argv[1]}?mode=ro", uri=True).execute("PRAGMA integrity_check"):
    sys.stdout.write(found + chr(10))
"""


def check_database(server: ServerProcess) -> list[str]:
    """What SQLite itself finds wrong with the database of a server, seen from where the server is."""
    command = [*server.command, sys.executable, "-c", _INTEGRITY, str(server.home / "holdfast.db")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    found = (done.stdout + done.stderr).strip()
    return [] if found == "ok" else [f"the database is damaged: {found}"]


@contextlib.asynccontextmanager
async def open_trial(server: ServerProcess, seed: int, *, length: Length = mixed_length) -> AsyncIterator[Trial]:
    """Start a server and get everything ready; the server is stopped at the end."""
    async with server:
        key = await _durable_key(server)
        async with connect(server.url, key) as http, Client(server.url, api_key=key) as client:
            scene = Scene(server.address, key, Random(seed))
            trial = Trial(server, scene, http, client, length, seed)
            await trial.create()
            scene.came_up()
            yield trial


async def _durable_key(server: ServerProcess) -> str | None:
    """A key that outlives the server, unlike the one it announces."""
    if server.api_key is None:
        return None
    async with connect(server.url, server.api_key) as http:
        key: str = (await ask(http, "POST", "/v1/keys", json={"name": "faults"})).json()["key"]
        return key


async def kill_while_writing(server: ServerProcess, plan: KillPlan, seed: int) -> FaultReport:
    """Kill a server again and again while it is written to, then compare what it has with what it acknowledged.

    The home must be new. The last kill is followed by no repetition, so that there are appends of unknown fate.
    """
    async with open_trial(server, seed) as trial:
        async with trial.traffic():
            at_startup = set(trial.random.sample(range(plan.kills), min(plan.startup_kills, plan.kills)))
            for number in range(plan.kills):
                await trial.kill_after(trial.random.randint(1, plan.appends), plan.delay, last=number == plan.kills - 1)
                if number in at_startup:
                    await trial.kill_during_startup()
                await trial.start()
            await trial.finish()
            await trial.examine("after the last kill")
            await trial.restart()
            await trial.examine("after a restart in peace")
        return await trial.report()


async def fill_disk_while_writing(size: int, seed: int, *, log: Path) -> FaultReport:
    """Let a server write until its disk of `size` bytes is full, see that it still serves reads, and make room.

    First by deleting a file, then by making the disk larger, both under the running server. Then it is filled again,
    killed, started on the full disk, and given room once more. Raises `CannotMount` where no small disk can be had.
    """
    with SmallDisk(size) as disk:
        # There is four times as much room each time: what is in the log has to be copied, and copied again, before
        # its own room can be used for something new.
        disk.put_ballast(size * 3 // 4)
        async with open_trial(disk.server(log=log), seed, length=large_length) as trial:
            async with trial.traffic():
                await trial.wait_full()
                await trial.examine_while_writing("with the disk full")
                disk.drop_ballast()
                await trial.wait_going_on()
                await trial.wait_full()
                disk.enlarge(4 * size)
                await trial.wait_going_on()
                for _ in range(3):
                    await trial.wait_full()
                    trial.kill()
                    await trial.start()
                await trial.wait_full()
                await trial.examine_while_writing("started on a full disk")
                disk.enlarge(16 * size)
                await trial.wait_going_on()
                await trial.finish()
                await trial.examine("with room again")
                await trial.restart()
                await trial.examine("after a restart in peace")
            return await trial.report()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.durability.faults",
        description="Kill a server while it is written to; nothing may be lost.",
    )
    parser.add_argument("--kills", type=int, default=50, metavar="N", help="kills under traffic (50)")
    parser.add_argument("--startup-kills", type=int, default=10, metavar="N", help="kills during start-up (10)")
    parser.add_argument("--seed", type=int, metavar="S", help="to repeat a trial (a new one each time)")
    parser.add_argument("--home", type=Path, metavar="DIR", help="a new folder, on the disk to prove (a temporary one)")
    parser.add_argument("--full-disk", type=int, metavar="MB", help="fill a disk of so many megabytes instead")
    options = parser.parse_args(arguments)
    seed = options.seed if options.seed is not None else SystemRandom().randrange(2**32)
    with tempfile.TemporaryDirectory(prefix="holdfast-faults-") as temporary:
        home = options.home or Path(temporary) / "home"
        if home.exists() and any(home.iterdir()):
            parser.error(f"{home} is not empty: give a folder that is new")
        sys.stdout.write(f"seed {seed}\n")
        sys.stdout.flush()
        try:
            if options.full_disk is not None:
                log = Path(temporary) / "server.log"
                report = asyncio.run(fill_disk_while_writing(options.full_disk * 1024 * 1024, seed, log=log))
            else:
                plan = KillPlan(options.kills, options.startup_kills)
                report = asyncio.run(kill_while_writing(ServerProcess(home), plan, seed))
            report.check()
        except (FaultsFound, CannotMount) as error:
            sys.stdout.write("\n".join([str(error), *getattr(error, "__notes__", ())]) + "\n")
            return 1
    sys.stdout.write(f"{report}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
