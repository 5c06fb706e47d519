"""The contract of a store of decisions about egress as tests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from holdfast.egress.records import Decision, DecisionStore, first_hosts
from holdfast.testing.store_suites.opener import TENANT, OpenStore


def decision(number: int, *, box: str = "b-1", allowed: bool = True, **fields: Any) -> Decision:
    made = Decision(box, f"h{number}.example", 443, "CONNECT", allowed, "why", id=f"x-{number:020x}", at=number)
    return replace(made, **fields)


async def read(store: DecisionStore, box: str = "b-1") -> list[Decision]:
    return await store.page(box, after=None, limit=1000, denied_only=False)


async def numbers(store: DecisionStore, box: str = "b-1") -> list[int]:
    """Returns the numbers of a box's decisions, the newest first."""
    return [each.at for each in await read(store, box)]


@pytest.mark.anyio
class DecisionSuite:
    """Subclass it, and give it an `open_store` fixture."""

    @pytest.fixture
    async def store(self, open_store: OpenStore[DecisionStore]) -> AsyncIterator[DecisionStore]:
        async with open_store(TENANT) as store:
            yield store

    async def test_a_decision_comes_back_as_it_was(self, store: DecisionStore) -> None:
        added = [
            decision(1, count=7),
            decision(2, allowed=False, host="", port=0, method="", why="nö"),
            decision(3, failed=True),
        ]
        await store.write(added, {}, {})
        assert await read(store) == added[::-1]

    async def test_the_newest_come_first_page_by_page(self, store: DecisionStore) -> None:
        await store.write([decision(number) for number in (3, 1, 2)], {}, {})
        await store.write([decision(number) for number in (5, 4)], {}, {})
        await store.write([decision(9, box="b-2")], {}, {})
        first = await store.page("b-1", after=None, limit=3, denied_only=False)
        assert [each.at for each in first] == [5, 4, 3]
        rest = await store.page("b-1", after=first[-1].id, limit=3, denied_only=False)
        assert [each.at for each in rest] == [2, 1]
        assert await store.page("b-1", after=rest[-1].id, limit=3, denied_only=False) == []
        assert await numbers(store, "b-2") == [9]
        assert await numbers(store, "b-3") == []

    async def test_denied_ones_can_be_read_alone(self, store: DecisionStore) -> None:
        await store.write([decision(number, allowed=number % 2 == 0) for number in range(6)], {}, {})
        await store.write([decision(6, failed=True)], {}, {})  # it was allowed
        denied = await store.page("b-1", after=None, limit=10, denied_only=True)
        assert [each.at for each in denied] == [5, 3, 1]
        older = await store.page("b-1", after=denied[0].id, limit=1, denied_only=True)
        assert [each.at for each in older] == [3]

    async def test_what_is_completed_adds_up(self, store: DecisionStore) -> None:
        one, two, three = decision(1), decision(2), decision(3)
        await store.write([one, two], {two.id: (1, 2, 30)}, {})
        await store.write([three], {two.id: (10, 20, 5)}, {})
        assert await read(store) == [three, replace(two, sent=11, received=22, ms=30), one]
        await store.write([], {one.id: (0, 0, 0), decision(99).id: (1, 1, 1)}, {})
        assert await read(store) == [three, replace(two, sent=11, received=22, ms=30), replace(one, ms=0)]

    async def test_bytes_of_a_decision_count_once_it_is_completed(self, store: DecisionStore) -> None:
        one = decision(1)
        under_way = replace(one, sent=5, received=6, ms=7)
        await store.write([under_way], {}, {})
        assert await read(store) == [one]
        await store.write([], {one.id: (5, 6, 7)}, {})
        assert await read(store) == [under_way]

    async def test_all_but_the_newest_of_a_box_are_trimmed(self, store: DecisionStore) -> None:
        await store.write([decision(number) for number in range(5)], {}, {"b-1": 10})
        await store.write([decision(number, box="b-2") for number in range(10, 15)], {}, {})
        assert await numbers(store) == [4, 3, 2, 1, 0]
        await store.write([decision(5)], {}, {"b-1": 3, "b-3": 1})
        assert await numbers(store) == [5, 4, 3]
        assert await numbers(store, "b-2") == [14, 13, 12, 11, 10]

    async def test_refused_ones_push_out_no_others(self, store: DecisionStore) -> None:
        await store.write([decision(number) for number in range(3)], {}, {})
        refused = [replace(decision(number), allowed=False) for number in range(10, 40)]
        failed = [replace(decision(number), failed=True) for number in range(40, 60)]
        await store.write([*refused, *failed], {}, {"b-1": 5})
        assert await numbers(store) == [59, 58, 57, 56, 55, 2, 1, 0]

    async def test_the_first_to_each_of_the_first_hosts_is_kept(self, store: DecisionStore) -> None:
        kept = 30
        assert first_hosts(kept) == 3
        hosts = ["a", "b", "a", "b", "c", "d"]
        await store.write([replace(decision(n), host=host) for n, host in enumerate(hosts)], {}, {"b-1": kept})
        for start in (100, 200):  # again and again
            later = [replace(decision(start + n), host=f"{n}.example") for n in range(kept)]
            await store.write(later, {}, {"b-1": kept})
            assert (await numbers(store))[kept:] == [4, 1, 0]
        refused = [replace(decision(300 + n), host=host, allowed=False) for n, host in enumerate("efgh")]
        more = [replace(decision(400 + n), host="x", allowed=False) for n in range(kept)]
        await store.write([*refused, *more], {}, {"b-1": kept})
        found = await numbers(store)
        assert [each for each in found if each < 400] == [302, 301, 300, *range(229, 199, -1), 4, 1, 0]

    async def test_one_box_is_forgotten(self, store: DecisionStore) -> None:
        await store.write([decision(1), decision(2), decision(3, box="b-2")], {}, {})
        await store.forget("b-1")
        await store.forget("b-1")
        assert (await numbers(store), await numbers(store, "b-2")) == ([], [3])

    async def test_old_ones_expire(self, store: DecisionStore) -> None:
        await store.write([decision(1), decision(2), decision(3), decision(0, box="b-2")], {}, {})
        await store.expire(2)
        assert (await numbers(store), await numbers(store, "b-2")) == ([3, 2], [])

    async def test_decisions_survive_a_restart(self, open_store: OpenStore[DecisionStore]) -> None:
        async with open_store(TENANT) as store:
            await store.write([decision(1), decision(2)], {decision(1).id: (1, 2, 3)}, {})
        async with open_store(TENANT) as store:
            assert await read(store) == [decision(2), decision(1, sent=1, received=2, ms=3)]
