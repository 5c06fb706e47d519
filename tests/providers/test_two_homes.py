"""Boxes of two homes on one machine may have the same id. What happens to the one is nothing to the other."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.boxes.box import Power
from holdfast.boxes.network_policy import Network, NetworkPolicy
from holdfast.boxes.provider import Provider
from holdfast.boxes.spec import BoxSpec
from holdfast.providers.local import LocalProvider
from holdfast.providers.process import ProcessProvider
from holdfast.threads.ids import new_id


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("make", "network"),
    [(LocalProvider, NetworkPolicy()), (ProcessProvider, NetworkPolicy(Network.OPEN))],
)
async def test_ending_a_box_leaves_the_box_of_that_id_of_another_home_alone(
    make: Callable[[Path], Provider], network: NetworkPolicy, tmp_path: Path
) -> None:
    id = new_id("b")
    async with make(tmp_path / "one") as one, make(tmp_path / "two") as two:
        mine = await one.create(BoxSpec(provider=one.name, network=network), id=id)
        other = await two.create(BoxSpec(provider=two.name, network=network), id=id)
        process = await other.spawn(["sleep", "1000"])
        await mine.stop()
        await mine.start()
        await mine.delete()
        assert await other.power() is Power.RUNNING
        assert (await process.info()).exit_code is None
        assert (await other.exec(["true"])).ok
        await other.delete()
