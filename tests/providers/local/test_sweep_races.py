"""What is removed on this machine is what was judged: a box that comes up meanwhile keeps all that it has."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.machine import needs_groups

from holdfast.api.box.spec import BoxSpec, VolumeMount
from holdfast.api.errors.boxes import VolumeInUse
from holdfast.boxes.rows import BoxRow
from holdfast.boxes.service.boxes import Boxes
from holdfast.providers.host import limits
from holdfast.providers.host.disk.data_dir import BoxRecord
from holdfast.providers.local import LocalProvider
from holdfast.storage.sqlite.boxes import SqliteBoxes

pytestmark = pytest.mark.anyio

STARTS = 60
AT_ONCE = 20


class PausingProvider(LocalProvider):
    """Waits, where it is told to, before a box is launched: its record is written by then."""

    def __init__(self, home: Path) -> None:
        super().__init__(home)
        self.launching = asyncio.Event()
        self.may_launch = asyncio.Event()
        self.may_launch.set()
        launch = self.sandbox.launch

        async def paused(record: BoxRecord) -> int:
            self.launching.set()
            await self.may_launch.wait()
            return await launch(record)

        self.sandbox.launch = paused  # type: ignore[method-assign]


@pytest.fixture
async def provider(tmp_path: Path) -> AsyncIterator[PausingProvider]:
    async with PausingProvider(tmp_path) as provider:
        yield provider


@needs_groups
async def test_a_box_that_comes_up_while_groups_are_swept_is_not_killed(
    provider: PausingProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = asyncio.get_running_loop()
    list_groups = limits.list_groups

    def create_and_list(backend: limits.LimitBackend, home_name: str) -> list[str]:
        """The sweep is on another thread, and may be held up anywhere."""
        monkeypatch.setattr(limits, "list_groups", list_groups)
        asyncio.run_coroutine_threadsafe(provider.create(BoxSpec(), id="new"), loop).result(60)
        return list_groups(backend, home_name)

    monkeypatch.setattr(limits, "list_groups", create_and_list)
    swept = await provider.sweep()
    async with await provider.attach("new") as box:
        assert (await box.exec(["echo", "alive"])).text == "alive\n"
        assert swept.removed == ()
        await box.delete()


async def test_a_volume_of_a_box_that_is_being_created_is_in_use(provider: PausingProvider) -> None:
    await provider.create_volume("data")
    provider.may_launch.clear()
    spec = BoxSpec(volumes=(VolumeMount("data", "/data"),))
    creating = asyncio.create_task(provider.create(spec, id="new"))
    await provider.launching.wait()
    with pytest.raises(VolumeInUse, match="box new mounts volume data"):
        await provider.delete_volume("data")
    provider.may_launch.set()
    async with await creating as box:
        assert (await box.exec(["touch", "/data/kept"])).exit_code == 0
        await box.delete()
    assert await provider.delete_volume("data") >= 0


async def test_real_boxes_that_start_under_constant_sweeps_are_all_there(
    provider: PausingProvider, tmp_path: Path
) -> None:
    """Bounded: so many starts, and sweeps one after the other until they are done."""
    slots = asyncio.Semaphore(AT_ONCE)
    async with SqliteBoxes(tmp_path / "data.db") as rows:
        boxes = Boxes(rows, {"local": provider}, node="here")

        async def create() -> BoxRow:
            async with slots:
                return await boxes.create(BoxSpec())

        async def sweep() -> list[str]:
            removed: list[str] = []
            while not making.done():
                removed += [each.why for each in (await boxes.sweep()).removed]
            return removed

        making = asyncio.gather(*(create() for _ in range(STARTS)))
        sweeping = asyncio.create_task(sweep())
        made = await making
        assert await sweeping == []
        assert {info.id for info in await provider.find()} == {row.id for row in made}
        for row in made:
            async with await boxes.open(row.id) as box:
                assert (await box.exec(["echo", row.id])).text == f"{row.id}\n"
        await asyncio.gather(*(boxes.delete(row.id) for row in made))
        await boxes.close()
