"""Boxes at a real daemon that do nothing fall asleep by policy, and whoever asks for one next finds it as it was."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.providers.docker.engine import BUSYBOX_IMAGE, PYTHON_IMAGE, DockerEngine

from holdfast.api.box.box import Box, Power
from holdfast.api.box.records import BoxState
from holdfast.api.box.spec import BoxSpec, OnIdle
from holdfast.boxes.labels import HIBERNATION
from holdfast.boxes.service.boxes import Boxes
from holdfast.providers.docker import DockerHost, DockerProvider
from holdfast.storage.sqlite.boxes import SqliteBoxes
from holdfast.testing.provider_suite.base import eventually

pytestmark = pytest.mark.anyio

HIBERNATE = BoxSpec(provider="docker", image=PYTHON_IMAGE, on_idle=OnIdle.HIBERNATE, idle_seconds=1)
PATIENCE = 240.0


@dataclass(frozen=True)
class Place:
    provider: DockerProvider
    boxes: Boxes

    async def state(self, id: str) -> BoxState:
        return (await self.boxes.get(id)).state

    async def asleep(self, id: str) -> None:
        """Let the service look at its boxes, as it would by itself, until it has put this one to sleep."""

        async def sleeps() -> bool:
            await self.boxes.sweep()
            return await self.state(id) is BoxState.HIBERNATED

        await eventually(sleeps, "it does not fall asleep", patience=PATIENCE)
        assert (await self.power(id)) is Power.STOPPED

    async def power(self, id: str) -> Power:
        async with await self.provider.attach(id) as box:
            return await box.power()


@contextlib.asynccontextmanager
async def served(engine: DockerEngine, namespace: str, home: Path) -> AsyncIterator[Place]:
    async with (
        DockerProvider(DockerHost(engine.url), namespace=namespace) as provider,
        SqliteBoxes(home / "data.db") as rows,
    ):
        boxes = Boxes(rows, {"docker": provider}, node="here")
        try:
            yield Place(provider, boxes)
        finally:
            await boxes.close()


@pytest.fixture
async def place(engine: DockerEngine, tmp_path: Path) -> AsyncIterator[Place]:
    async with served(engine, secrets.token_hex(4), tmp_path) as place:
        yield place
        for info in await place.provider.find():
            await place.provider.remove(info.id)
        for snapshot in await place.provider.snapshots():
            await place.provider.delete_snapshot(snapshot.id)


async def sh(box: Box, script: str) -> str:
    done = await box.exec(["sh", "-c", script], timeout=30)
    assert done.ok, done
    return done.text.strip()


async def test_an_idle_box_hibernates_and_the_next_request_finds_its_files(place: Place) -> None:
    id = (await place.boxes.create(HIBERNATE)).id
    held = await place.boxes.open(id)
    await sh(held, "echo kept > /workspace/file; echo system > /etc/mark; mkdir -m 700 /own")
    await place.asleep(id)
    assert len(await place.provider.snapshots({HIBERNATION: id})) == 1
    async with await place.boxes.open(id) as box:
        assert await place.state(id) is BoxState.RUNNING
        assert await sh(box, "cat /workspace/file /etc/mark; stat -c %a /own") == "kept\nsystem\n700"
    # And one that somebody kept a handle on wakes by what is asked of the handle.
    await place.asleep(id)
    assert await sh(held, "cat /workspace/file; echo more >> /workspace/file") == "kept"
    assert await place.state(id) is BoxState.RUNNING
    await place.asleep(id)
    assert len(await place.provider.snapshots({HIBERNATION: id})) == 1
    assert await held.files.read("/workspace/file") == b"kept\nmore\n"
    await held.close()
    await place.boxes.delete(id)
    assert await place.provider.snapshots({HIBERNATION: id}) == []


async def test_a_box_that_works_stays_awake(place: Place) -> None:
    id = (await place.boxes.create(HIBERNATE)).id
    async with await place.boxes.open(id) as box:
        process = await box.spawn(["sh", "-c", "while :; do :; done"])
        for _ in range(6):
            await asyncio.sleep(0.5)  # is what is tested
            await place.boxes.sweep()
            assert await place.state(id) is BoxState.RUNNING
        await process.signal(9)
        await process.wait(240)
    await place.asleep(id)


async def test_a_box_that_sleeps_is_woken_by_the_next_server(
    place: Place, engine: DockerEngine, tmp_path: Path
) -> None:
    id = (await place.boxes.create(HIBERNATE)).id
    async with await place.boxes.open(id) as box:
        await sh(box, "echo kept > file")
    await place.asleep(id)
    async with (
        served(engine, place.provider.names.namespace, tmp_path) as next_one,
        await next_one.boxes.open(id) as box,
    ):
        assert await sh(box, "cat file") == "kept"


async def test_a_box_whose_container_was_removed_in_its_sleep_has_its_files_again(place: Place) -> None:
    id = (await place.boxes.create(HIBERNATE)).id
    async with await place.boxes.open(id) as box:
        await sh(box, "echo kept > file")
    await place.asleep(id)
    await place.provider.remove(id)
    async with await place.boxes.open(id) as box:
        assert await sh(box, "cat file") == "kept"


async def test_a_box_without_python_hibernates_too(place: Place) -> None:
    spec = BoxSpec(provider="docker", image=BUSYBOX_IMAGE, on_idle=OnIdle.HIBERNATE, idle_seconds=1)
    id = (await place.boxes.create(spec)).id
    async with await place.boxes.open(id) as box:
        await sh(box, "echo kept > file")
    await place.asleep(id)
    async with await place.boxes.open(id) as box:
        assert await sh(box, "cat file") == "kept"
