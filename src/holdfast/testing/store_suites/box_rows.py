"""The contract of the rows of a store of boxes as tests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any, Final

import pytest

from holdfast.api.box.network import Network, NetworkPolicy
from holdfast.api.box.records import BoxState
from holdfast.api.box.spec import BoxSpec, Lifetime, VolumeMount
from holdfast.api.errors.boxes import BoxConflict, InvalidSpec
from holdfast.boxes.rows import BoxFilter, BoxRow, BoxRows
from holdfast.testing.store_suites.opener import OTHER_TENANT, TENANT, OpenStore

NOW: Final = 1_800_000_000_000
SPEC: Final = BoxSpec(provider="dummy")


def box_row(state: BoxState = BoxState.RUNNING, spec: BoxSpec = SPEC, **fields: Any) -> BoxRow:
    """Returns the row of a box `b-1` of key `k`, with some fields changed."""
    row = BoxRow(
        id="b-1",
        tenant=TENANT,
        node="here",
        provider="dummy",
        key="k",
        spec=spec,
        labels={},
        state=state,
        created_at=NOW,
        changed_at=NOW,
        last_active_at=NOW,
    )
    return replace(row, **fields)


async def listed(store: BoxRows, **wanted: Any) -> list[str]:
    """Returns the ids of one page."""
    return [row.id for row in (await store.list(TENANT, BoxFilter(**wanted))).rows]


@pytest.mark.anyio
class BoxRowSuite:
    """Subclass it, and give it an `open_store` fixture. A store of boxes is for all tenants: its methods name one."""

    @pytest.fixture
    async def store(self, open_store: OpenStore[BoxRows]) -> AsyncIterator[BoxRows]:
        async with open_store(TENANT) as store:
            yield store

    # Several rows at once

    async def test_several_rows_are_replaced_together_or_not_at_all(self, store: BoxRows) -> None:
        old, new = box_row(BoxState.MOVING), box_row(BoxState.CREATING, id="b-2", key=None)
        for row in (old, new):
            await store.insert(row)
        without, with_key = replace(old, key=None), replace(new, key="k", state=BoxState.RUNNING)
        with pytest.raises(BoxConflict):
            await store.swap_all(((old, without), (replace(new, holder="other"), with_key)))
        assert await store.of_key(TENANT, "k") == old
        await store.swap_all(((old, without), (new, with_key)))
        assert await store.of_key(TENANT, "k") == with_key
        assert await store.get(TENANT, "b-1") == without

    # Reading

    async def test_a_row_comes_back_as_it_was(self, store: BoxRows) -> None:
        whole = box_row(
            spec=replace(
                SPEC,
                cpu=0.5,
                env={"A": "ü\n"},
                volumes=(VolumeMount("v", "/v", "sub", True),),
                network=NetworkPolicy(Network.ALLOW, ("a.example",)),
                lifetime=Lifetime.EPHEMERAL,
                idle_seconds=0,
            ),
            labels={"a": "b"},
            ended_at=1,
            ended_why="why",
            freed=2,
            snapshot="s",
            holder="h",
        )
        await store.insert(whole)
        assert await store.get(TENANT, "b-1") == whole
        assert await store.of_key(TENANT, "k") == whole
        assert await store.live(TENANT, "here") == [whole]
        assert (await store.list(TENANT, BoxFilter())).rows == (whole,)

    async def test_what_is_not_there_is_none(self, store: BoxRows) -> None:
        await store.insert(box_row())
        assert await store.get(TENANT, "b-2") is None
        assert await store.of_key(TENANT, "other") is None
        assert await store.live(TENANT, "there") == []

    async def test_the_live_boxes_of_a_node_come_with_the_oldest_first(self, store: BoxRows) -> None:
        for id, created_at, state in (
            ("b-3", NOW, BoxState.STOPPED),
            ("b-2", NOW, BoxState.CREATING),
            ("b-9", NOW - 1, BoxState.DELETING),
            ("b-4", NOW, BoxState.GONE),
            ("b-5", NOW, BoxState.DELETED),
        ):
            await store.insert(box_row(state, id=id, key=None, created_at=created_at))
        await store.insert(box_row(id="b-6", node="there"))
        assert [row.id for row in await store.live(TENANT, "here")] == ["b-9", "b-2", "b-3"]

    async def test_live_boxes_are_counted_by_provider(self, store: BoxRows) -> None:
        assert await store.count_live(TENANT) == {}
        for id, provider, state in (
            ("b-1", "local", BoxState.RUNNING),
            ("b-2", "local", BoxState.CREATING),
            ("b-3", "work", BoxState.HIBERNATED),
            ("b-4", "work", BoxState.DELETED),
            ("b-5", "old", BoxState.GONE),
        ):
            await store.insert(box_row(state, id=id, key=None, provider=provider))
        await store.insert(box_row(id="b-6", key=None, provider="work", node="there"))
        await store.insert(box_row(id="b-7", key=None, provider="work", tenant="other"))
        assert await store.count_live(TENANT) == {"local": 2, "work": 2}

    async def test_rows_are_listed_page_by_page_with_the_newest_first(self, store: BoxRows) -> None:
        for number in range(5):
            await store.insert(box_row(id=f"b-{number}", key=None, created_at=NOW + number // 2))
        pages = [await store.list(TENANT, BoxFilter(limit=2))]
        while (after := pages[-1].next_cursor) is not None:
            pages.append(await store.list(TENANT, BoxFilter(limit=2, after=after)))
        assert [[row.id for row in page.rows] for page in pages] == [["b-4", "b-3"], ["b-2", "b-1"], ["b-0"]]
        assert (await store.list(TENANT, BoxFilter(limit=5))).next_cursor is None

    async def test_a_list_has_what_fits_all_that_is_asked_for(self, store: BoxRows) -> None:
        quoted = {'q"uote': "1", "odd": "0"}
        await store.insert(box_row(id="b-1", key="one", labels={"odd": "1"}))
        await store.insert(box_row(BoxState.STOPPED, id="b-2", key="two", labels=quoted))
        await store.insert(box_row(BoxState.DELETED, id="b-3", key="one", labels={"odd": "1"}))
        assert await listed(store) == ["b-2", "b-1"]
        assert await listed(store, live_only=False) == ["b-3", "b-2", "b-1"]
        assert await listed(store, states=[BoxState.DELETED]) == ["b-3"]
        assert await listed(store, states=[BoxState.DELETED, BoxState.STOPPED]) == ["b-3", "b-2"]
        assert await listed(store, key="one") == ["b-1"]
        assert await listed(store, key="one", live_only=False) == ["b-3", "b-1"]
        assert await listed(store, labels=quoted) == ["b-2"]
        assert await listed(store, labels={**quoted, "odd": "1"}) == []
        assert await listed(store, labels={"odd": "1"}, states=[BoxState.STOPPED]) == []

    @pytest.mark.parametrize(
        "wanted", [{"limit": 0}, {"limit": 1001}, {"after": ""}, {"after": "x.b-1"}, {"after": "nonsense"}]
    )
    async def test_a_list_that_makes_no_sense_is_refused(self, store: BoxRows, wanted: dict[str, Any]) -> None:
        with pytest.raises(InvalidSpec):
            await store.list(TENANT, BoxFilter(**wanted))

    # Writing

    async def test_a_key_has_one_live_box_besides_one_shots(self, store: BoxRows) -> None:
        await store.insert(box_row())
        with pytest.raises(BoxConflict, match="b-1"):
            await store.insert(box_row(id="b-2"))
        await store.insert(box_row(id="b-2", spec=replace(SPEC, lifetime=Lifetime.ONE_SHOT)))
        await store.insert(box_row(id="b-3", tenant=OTHER_TENANT))
        await store.insert(box_row(id="b-4", key=None))
        await store.insert(box_row(id="b-5", key=None))
        assert await store.of_key(TENANT, "k") == box_row()
        await store.swap(box_row(), box_row(BoxState.GONE))
        assert await store.of_key(TENANT, "k") is None
        await store.insert(box_row(id="b-6"))
        with pytest.raises(BoxConflict, match="b-6"):
            await store.insert(box_row(id="b-6", key="other"))
        assert await store.get(TENANT, "b-6") == box_row(id="b-6")

    @pytest.mark.parametrize(
        "meanwhile", [{"holder": "another"}, {"holder": None}, {"changed_at": NOW + 1}, {"last_active_at": NOW + 1}]
    )
    async def test_a_swap_fails_where_another_came_back_to_the_same_state(
        self, store: BoxRows, meanwhile: dict[str, Any]
    ) -> None:
        read = box_row(BoxState.STOPPING, holder="dead")
        changed = replace(read, **meanwhile)
        await store.insert(read)
        await store.swap(read, changed)
        with pytest.raises(BoxConflict, match="stopping"):
            await store.swap(read, box_row(BoxState.STOPPED))
        assert await store.get(TENANT, "b-1") == changed

    async def test_a_swap_wants_the_row_as_it_was_read(self, store: BoxRows) -> None:
        await store.insert(box_row())
        await store.insert(box_row(id="b-2", key="other"))
        await store.swap(box_row(), box_row(BoxState.STOPPING))
        with pytest.raises(BoxConflict, match="stopping"):
            await store.swap(box_row(), box_row(BoxState.DELETING))
        assert await store.get(TENANT, "b-1") == box_row(BoxState.STOPPING)
        await store.forget(TENANT, "b-1")
        with pytest.raises(BoxConflict, match="b-1"):
            await store.swap(box_row(), box_row(BoxState.DELETING))
        assert await store.live(TENANT, "here") == [box_row(id="b-2", key="other")]

    async def test_activity_is_noted_in_the_state_that_was_read(self, store: BoxRows) -> None:
        await store.insert(box_row())
        assert not await store.touch(TENANT, "b-1", BoxState.STOPPED, NOW + 5)
        assert not await store.touch(TENANT, "b-2", BoxState.RUNNING, NOW + 5)
        assert await store.get(TENANT, "b-1") == box_row()
        assert await store.touch(TENANT, "b-1", BoxState.RUNNING, NOW + 5)
        assert await store.get(TENANT, "b-1") == box_row(last_active_at=NOW + 5)

    async def test_activity_in_the_same_moment_fails_a_swap_too(self, store: BoxRows) -> None:
        await store.insert(box_row())
        assert await store.touch(TENANT, "b-1", BoxState.RUNNING, NOW)
        with pytest.raises(BoxConflict):
            await store.swap(box_row(), box_row(BoxState.STOPPING))

    async def test_old_tombstones_and_leases_are_pruned(self, store: BoxRows) -> None:
        for id, ended_at in (("old", 5), ("kept", 5), ("young", 10)):
            await store.insert(box_row(BoxState.DELETED, id=id, ended_at=ended_at))
        await store.insert(box_row(BoxState.GONE, id="gone", ended_at=9))
        await store.insert(box_row(id="alive"))
        await store.take(TENANT, "old", "h", 0, 5)
        await store.take(TENANT, "young", "h", 0, 10)
        assert await store.prune(TENANT, 10, ["kept"]) == 2
        assert set(await listed(store, live_only=False)) == {"kept", "young", "alive"}
        assert await store.held(TENANT, "", -1) == {"young"}
        assert await store.prune(TENANT, 10, ["kept"]) == 0

    async def test_a_store_knows_since_when_it_knows_a_node(self, store: BoxRows) -> None:
        assert await store.join(TENANT, "here", 5) == 5
        assert await store.join(TENANT, "here", 9) == 5
        assert await store.join(TENANT, "there", 9) == 9
        assert await store.join(OTHER_TENANT, "here", 9) == 9

    # Several at once

    async def test_a_change_that_fails_fails_alone(self, store: BoxRows) -> None:
        rows = [box_row(id=f"b-{number % 8}", key=None) for number in range(16)]
        answers = await asyncio.gather(*(store.insert(row) for row in rows), return_exceptions=True)
        assert sorted(str(type(answer).__name__) for answer in answers) == ["BoxConflict"] * 8 + ["NoneType"] * 8
        assert [row.id for row in await store.live(TENANT, "here")] == [f"b-{number}" for number in range(8)]

    async def test_two_servers_that_want_one_key_get_one_box(self, open_store: OpenStore[BoxRows]) -> None:
        async with open_store(TENANT) as one, open_store(TENANT) as two:
            for key in ("x", "y", "z"):
                answers = await asyncio.gather(
                    one.insert(box_row(id=f"{key}-1", key=key)),
                    two.insert(box_row(id=f"{key}-2", key=key)),
                    return_exceptions=True,
                )
                assert {type(answer) for answer in answers} == {BoxConflict, type(None)}
                assert await one.of_key(TENANT, key) == await two.of_key(TENANT, key) is not None

    async def test_of_two_servers_that_swap_one_row_one_does(self, open_store: OpenStore[BoxRows]) -> None:
        async with open_store(TENANT) as one, open_store(TENANT) as two:
            await one.insert(box_row())
            read = box_row()
            for number in range(10):
                after = [replace(read, changed_at=NOW + number + 1, holder=holder) for holder in ("one", "two")]
                answers = await asyncio.gather(
                    one.swap(read, after[0]), two.swap(read, after[1]), return_exceptions=True
                )
                assert {type(answer) for answer in answers} == {BoxConflict, type(None)}
                read = after[answers.index(None)]
                assert await one.get(TENANT, "b-1") == await two.get(TENANT, "b-1") == read

    async def test_rows_survive_a_restart(self, open_store: OpenStore[BoxRows]) -> None:
        async with open_store(TENANT) as store:
            await store.insert(box_row())
            await store.swap(box_row(), box_row(BoxState.STOPPED))
            await store.join(TENANT, "here", 5)
        async with open_store(TENANT) as store:
            assert await store.get(TENANT, "b-1") == box_row(BoxState.STOPPED)
            assert await store.join(TENANT, "here", 9) == 5

    async def test_tenants_do_not_see_each_other(self, store: BoxRows) -> None:
        mine = box_row(BoxState.DELETED, ended_at=5)
        await store.insert(mine)
        await store.insert(box_row(id="b-2"))
        assert await store.get(OTHER_TENANT, "b-1") is None
        assert await store.of_key(OTHER_TENANT, "k") is None
        assert await store.live(OTHER_TENANT, "here") == []
        assert (await store.list(OTHER_TENANT, BoxFilter(live_only=False))).rows == ()
        assert not await store.touch(OTHER_TENANT, "b-2", BoxState.RUNNING, NOW + 5)
        assert await store.prune(OTHER_TENANT, 10, []) == 0
        await store.forget(OTHER_TENANT, "b-2")
        assert await store.get(TENANT, "b-1") == mine
        assert await store.get(TENANT, "b-2") == box_row(id="b-2")
