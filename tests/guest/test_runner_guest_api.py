"""The runner in a real box without a network, and the server's own guest API: the whole way of an entry."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.guest.running import PRELUDE, archive
from tests.server.test_guest_api import Part, Relay, Runs
from tests.stores import open_records

from holdfast.api.box.process import Process
from holdfast.api.thread.entries import Entry
from holdfast.boxes import Box, BoxSpec
from holdfast.egress import EgressProxy
from holdfast.harnesses import runner_archive
from holdfast.providers.local import LocalProvider
from holdfast.server.wire.guest_api import GuestApi, GuestRuns, ModelRelay
from holdfast.storage.sqlite.access.api_keys import SqliteApiKeys
from holdfast.storage.sqlite.streams import SqliteStreams
from holdfast.testing.outside import Nowhere
from holdfast.threads.access.authority import Authority
from holdfast.threads.access.credentials import Access, RunScope
from holdfast.threads.access.seals import Seals
from holdfast.threads.entries import keyed
from holdfast.threads.protocol.surface import StreamSurface
from holdfast.threads.store import AppendRequest, Producer, StreamConfig

pytestmark = pytest.mark.anyio
PATIENCE = 240.0
THREAD = "threads/t-1"


class House:
    """A server's parts that a runner meets, and one box."""

    def __init__(self, store: SqliteStreams, access: Access, runs: Runs, box: Box) -> None:
        self.store = store
        self.access = access
        self.runs = runs
        self.box = box
        self.now = [1_800_000_000_000]

    async def start(self, script: str, **more: Any) -> Process:
        entry = keyed(Entry("runner-2", 1, {"type": "signal.run.runner"}))
        claim = AppendRequest(b"", "application/json", Producer("run", 2, 0), None, False, (entry,))
        await self.store.append(THREAD, claim)
        python = await self.box.python()
        config = {
            "run": "r-1", "thread": "t-1", "agent": "scripted", "reader": "scripted", "epoch": 2,
            "token": self.access.issue_run("t-1", "r-1", 2, self.box.id, RunScope.RUNNER, agent="scripted").token,
            "url": await self.box.open_guest_api(), "argv": [*python, "-I", "-S", "-c", PRELUDE + script], "env": {},
            "cwd": "/workspace", "state": "/home/box/.holdfast/runs/r-1", "beat": 0.1, **more,
        }  # fmt: skip
        process = await self.box.spawn(runner_archive.boot_argv(python), stdin=True, tree=True)
        await process.write(runner_archive.stdin_of(archive(), config))
        await process.close_stdin()
        return process

    async def payloads(self) -> list[dict[str, Any]]:
        found = (await self.store.read(THREAD, 0, 1 << 24)).data
        return [each["payload"] for each in json.loads(b"[" + found.rstrip(b",\n") + b"]")][1:]

    async def until(self, kind: str) -> None:
        changed = asyncio.Event()
        unwatch = self.store.watch(THREAD, lambda change: changed.set())
        try:
            async with asyncio.timeout(PATIENCE):
                while not [each for each in await self.payloads() if each["type"].endswith(kind)]:
                    await changed.wait()
                    changed.clear()
        finally:
            unwatch()


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    store = await SqliteStreams.open(tmp_path / "data.db")
    now = [1_800_000_000_000]
    access = Access(SqliteApiKeys(store), b"secret", required=False, clock=lambda: now[0])
    runs = Runs()
    surface = StreamSurface(store, Authority(Seals(b"tests")))
    guest_api = GuestApi(
        surface, access, lambda: "q-1", Part[GuestRuns](runs), Part[ModelRelay](Relay()), max_body=1 << 20
    )
    await store.create(THREAD, StreamConfig(content_type="application/json"))
    async with (
        open_records(tmp_path / "data.db") as records,
        EgressProxy(Nowhere(), Nowhere(), records, guest_api=guest_api) as proxy,
        LocalProvider(tmp_path / "home", egress=proxy) as provider,
    ):
        box = await provider.create(BoxSpec(), id="b-1")
        house = House(store, access, runs, box)
        house.now = now
        yield house
        await box.delete()
    await store.close()


async def test_what_an_agent_says_in_a_box_without_a_network_is_on_the_thread(house: House) -> None:
    runner = await house.start("for n in range(300): say(n=n)\nsay(message='m', text='done')")
    assert await runner.wait(PATIENCE) == 0, await runner.read("stderr")
    *events, whole, end = await house.payloads()
    assert [each["record"]["n"] for each in events] == list(range(300))
    assert (whole["text"], end["status"]) == ("done", "completed")
    assert house.runs.beats


async def test_a_token_that_expired_while_nobody_looked_is_renewed(house: House) -> None:
    runner = await house.start(
        "say(session='up')\nwhile not os.path.exists('go'): time.sleep(0.01)\nsay(n=1)", beat=1000
    )
    await house.until("session")
    house.now[0] += 3 * 3600 * 1000
    await house.box.files.write("go", b"")
    assert await runner.wait(PATIENCE) == 0, await runner.read("stderr")
    assert [each["type"] for each in await house.payloads()][-2:] == ["scripted.event", "signal.run.finished"]


async def test_a_run_is_cancelled_by_a_signal_that_says_look(house: House) -> None:
    runner = await house.start("say(session='up'); time.sleep(1000)", beat=1000)
    await house.until("session")
    house.runs.cancel = "cancel"
    await runner.signal(signal.SIGTERM)
    assert await runner.wait(PATIENCE) == 0, await runner.read("stderr")
    assert (await house.payloads())[-1]["status"] == "cancelled"


async def test_a_run_that_is_over_is_left(house: House) -> None:
    runner = await house.start("say(session='up'); time.sleep(1000)")
    await house.until("session")
    house.runs.epoch = 3
    assert await runner.wait(PATIENCE) == 75
    assert (await house.payloads())[-1]["type"] == "scripted.session"
    assert (await house.box.metrics()).processes == 0
