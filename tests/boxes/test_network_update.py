"""What a box may reach is changed where it can be, and the box replaced where it cannot."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.boxes.conftest import SPEC
from tests.stores import open_records

from holdfast.api.box.box import Liveness, Power
from holdfast.api.box.network import Network, NetworkPolicy
from holdfast.api.box.spec import BoxSpec
from holdfast.api.errors.boxes import BoxGone, BoxNotFound, InvalidSpec, Unsupported
from holdfast.boxes.service.acquire_rules import Decision, Found, How, Replace, Resume, Start, decide
from holdfast.boxes.service.boxes import Boxes
from holdfast.egress import EgressProxy
from holdfast.providers.local import LocalProvider
from holdfast.storage.sqlite.boxes import SqliteBoxes
from holdfast.testing.clock import ManualClock
from holdfast.testing.outside import Nowhere
from holdfast.testing.store_suites.box_rows import box_row as row

ALLOW = NetworkPolicy(Network.ALLOW, ("one.test",))
MORE = NetworkPolicy(Network.ALLOW, ("one.test", "two.test"))


@pytest.mark.parametrize(
    ("had", "wanted", "power", "live", "expected"),
    [
        (ALLOW, ALLOW, Power.RUNNING, False, Resume),
        (ALLOW, ALLOW, Power.STOPPED, False, Start),
        (ALLOW, MORE, Power.RUNNING, True, Resume),
        (ALLOW, MORE, Power.STOPPED, True, Start),
        (ALLOW, MORE, Power.RUNNING, False, Replace),
        (ALLOW, MORE, Power.STOPPED, False, Replace),
        (NetworkPolicy(), NetworkPolicy(Network.OPEN), Power.RUNNING, True, Resume),
        (NetworkPolicy(), NetworkPolicy(Network.OPEN), Power.RUNNING, False, Replace),
    ],
)
def test_another_policy_is_a_reason_to_replace_a_box_only_where_it_cannot_change(
    had: NetworkPolicy, wanted: NetworkPolicy, power: Power, live: bool, expected: type[Decision]
) -> None:
    found = Found(row(spec=replace(SPEC, network=had)), liveness=Liveness.LIVE, power=power, network_live=live)
    assert isinstance(decide(found, replace(SPEC, network=wanted)), expected)


def test_a_box_that_is_replaced_for_its_policy_says_so() -> None:
    found = Found(row(spec=SPEC), liveness=Liveness.LIVE, power=Power.RUNNING, network_live=False)
    decision = decide(found, replace(SPEC, network=NetworkPolicy(Network.OPEN)))
    assert isinstance(decision, Replace)
    assert decision.why == "the spec changed: network none → open"


@pytest.mark.anyio
async def test_a_provider_that_cannot_change_it_refuses_by_name_and_replaces_on_acquire(boxes: Boxes) -> None:
    first = await boxes.acquire("k", SPEC)
    with pytest.raises(Unsupported, match="network-live"):
        await boxes.set_network(first.row.id, NetworkPolicy(Network.OPEN))
    second = await boxes.acquire("k", replace(SPEC, network=NetworkPolicy(Network.OPEN)))
    assert second.replaced == first.row.id
    assert "network none → open" in second.why


@pytest.fixture
async def local(tmp_path: Path, rows: SqliteBoxes, clock: ManualClock) -> AsyncIterator[Boxes]:
    """Real boxes with an egress, into a world without anything in it."""
    async with (
        open_records(tmp_path / "data.db") as records,
        EgressProxy(Nowhere(), Nowhere(), records) as egress,
        LocalProvider(tmp_path, egress=egress) as provider,
    ):
        boxes = Boxes(rows, {"local": provider}, node="here", clock=clock.now)
        yield boxes
        await boxes.close()
        for info in await provider.find():
            await provider.remove(info.id)


@pytest.mark.anyio
async def test_a_policy_changes_on_the_box_and_on_its_row(local: Boxes) -> None:
    made = await local.create(BoxSpec())
    changed = await local.set_network(made.id, ALLOW)
    assert changed.spec.network == ALLOW
    assert (await local.get(made.id)).spec.network == ALLOW
    async with await local.open(made.id) as box:
        assert box.spec.network == ALLOW


@pytest.mark.anyio
async def test_what_cannot_be_set_changes_nothing(local: Boxes) -> None:
    made = await local.create(BoxSpec(network=ALLOW))
    with pytest.raises(InvalidSpec):
        await local.set_network(made.id, NetworkPolicy(Network.OPEN, ("one.test",)))
    assert (await local.get(made.id)).spec.network == ALLOW
    await local.delete(made.id)
    with pytest.raises(BoxGone):
        await local.set_network(made.id, MORE)
    with pytest.raises(BoxNotFound):
        await local.set_network("b-none", MORE)


@pytest.mark.anyio
async def test_who_acquires_with_another_policy_gets_the_same_box_with_it(local: Boxes) -> None:
    first = await local.acquire("k", BoxSpec(network=ALLOW))
    second = await local.acquire("k", BoxSpec(network=MORE))
    assert (second.row.id, second.how, second.replaced) == (first.row.id, How.RESUMED, None)
    assert second.row.spec.network == MORE
    await local.stop(first.row.id)
    third = await local.acquire("k", BoxSpec())
    assert third.row.id == first.row.id
    async with await local.open(first.row.id) as box:
        assert box.spec.network == NetworkPolicy()
        assert "proxy" not in (await box.exec(["env"])).text.lower()
