"""What is kept of decisions, and of the policies of environments."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path

import pytest
from tests.stores import open_policies, open_records

from holdfast.api.box.network import Network, NetworkPolicy
from holdfast.api.errors.boxes import InvalidSpec
from holdfast.egress import Decision

pytestmark = pytest.mark.anyio


def decision(number: int, *, box: str = "b-1", allowed: bool = True) -> Decision:
    return Decision(box, f"h{number}.example", 443, "CONNECT", allowed, "why")


async def test_the_newest_come_first_page_by_page(tmp_path: Path) -> None:
    async with open_records(tmp_path / "data.db") as records:
        for number in range(7):
            records.add(decision(number, allowed=number % 2 == 0))
        records.add(decision(99, box="b-2"))
        first = await records.page("b-1", limit=5)
        assert [each.host for each in first.decisions] == [f"h{number}.example" for number in (6, 5, 4, 3, 2)]
        second = await records.page("b-1", limit=5, after=first.next_cursor)
        assert [each.host for each in second.decisions] == ["h1.example", "h0.example"]
        assert second.next_cursor is None
        denied = await records.page("b-1", denied_only=True)
        assert [each.host for each in denied.decisions] == ["h5.example", "h3.example", "h1.example"]


async def test_a_decision_can_be_read_before_it_is_complete_and_survives_a_restart(tmp_path: Path) -> None:
    async with open_records(tmp_path / "data.db") as records:
        one = decision(1)
        records.add(one)
        one.sent = 5
        (found,) = (await records.page("b-1")).decisions
        assert (found.sent, found.ms) == (0, None)
        one.received, one.ms = 7, 12
        records.complete(one)
    async with open_records(tmp_path / "data.db") as records:
        (found,) = (await records.page("b-1")).decisions
        assert (found.sent, found.received, found.ms) == (5, 7, 12)
        await records.forget("b-1")
        assert (await records.page("b-1")).decisions == ()


async def test_a_flood_is_counted_whole_in_a_bounded_number_of_records(tmp_path: Path) -> None:
    async with open_records(tmp_path / "data.db") as records:
        for number in range(20_000):
            one = decision(number, allowed=False)
            records.add(one)
            one.sent, one.ms = 2, 1
            records.complete(one)
        records.add(decision(1, box="b-2"))
        found = (await records.page("b-1", limit=1000)).decisions
        assert len(found) <= 401
        assert sum(each.count for each in found) == 20_000
        assert sum(each.sent for each in found) == 40_000
        assert len((await records.page("b-2")).decisions) == 1


@pytest.mark.parametrize("flood", [False, True])
async def test_a_flood_hides_no_request_to_another_host(tmp_path: Path, flood: bool) -> None:
    """Neither a flood of refused requests to other names, nor one of allowed requests to one host."""
    async with open_records(tmp_path / "data.db", kept=50) as records:
        for number in range(5000):
            name = "usual.example" if flood else f"h{number}.example"
            records.add(Decision("b-1", name, 443, "CONNECT", flood, "why"))
        records.add(Decision("b-1", "evil.example", 443, "CONNECT", True, "why"))
        for batch in range(4):
            for number in range(600):
                records.add(decision(number * 10 + batch, allowed=False))
            await records.flush()
        found = (await records.page("b-1", limit=1000)).decisions
        assert "evil.example" in [each.host for each in found if each.allowed]


async def test_only_the_newest_of_a_box_are_kept(tmp_path: Path) -> None:
    async with open_records(tmp_path / "data.db", kept=50) as records:
        for batch in range(10):
            for number in range(100):
                records.add(decision(batch * 100 + number))
            await records.flush()
    with sqlite3.connect(tmp_path / "data.db") as database:
        (many,) = database.execute("SELECT count(*) FROM egress_decisions").fetchone()
    database.close()
    assert many <= 50 + 500
    async with open_records(tmp_path / "data.db", kept=50) as records:
        assert (await records.page("b-1", limit=1)).decisions[0].host == "h999.example"


@pytest.mark.parametrize("cursor", ["", "x", "x-'; DROP TABLE boxes", "x-" + "g" * 20])
async def test_a_cursor_that_is_none_is_refused(tmp_path: Path, cursor: str) -> None:
    async with open_records(tmp_path / "data.db") as records:
        with pytest.raises(InvalidSpec):
            await records.page("b-1", after=cursor)


async def test_policies_of_environments_are_kept(tmp_path: Path) -> None:
    policy = NetworkPolicy(Network.ALLOW, ("a.example", "default"), bandwidth=4096)
    async with open_policies(tmp_path / "data.db") as policies:
        await policies.put("web", NetworkPolicy(Network.OPEN))
        await policies.put("web", policy)
        await policies.put("other", NetworkPolicy())
        assert await policies.remove("other")
        assert not await policies.remove("other")
        with pytest.raises(InvalidSpec):
            await policies.put("no/name", policy)
    async with open_policies(tmp_path / "data.db") as policies:
        assert policies("web") == policy
        assert policies("other") is None
        assert dict(policies.all()) == {"web": policy}


async def test_a_database_that_is_busy_for_a_moment_loses_nothing(tmp_path: Path) -> None:
    async with open_records(tmp_path / "data.db") as records:
        await records.page("b-1")
        other = sqlite3.connect(tmp_path / "data.db", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        records.add(decision(1))
        reading = asyncio.create_task(records.page("b-1"))
        await asyncio.sleep(0.05)
        other.execute("ROLLBACK")
        other.close()
        assert len((await reading).decisions) == 1
