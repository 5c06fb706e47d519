"""The contract of a store of workflows as tests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from holdfast.sessions.workflows.rows import WorkflowKind, WorkflowRow, WorkflowStore
from holdfast.testing.store_suites.opener import OTHER_TENANT, TENANT, OpenStore

WORKFLOW, EXECUTION = WorkflowKind.WORKFLOW, WorkflowKind.EXECUTION


def row(id: str, at: int = 1, kind: WorkflowKind = WORKFLOW, group: str = "", is_open: bool = False) -> WorkflowRow:
    return WorkflowRow(kind, id, group, {"name": "büro", "steps": [{"id": "a"}], "none": None}, at, is_open)


def ids(rows: list[WorkflowRow]) -> list[str]:
    return [each.id for each in rows]


@pytest.mark.anyio
class WorkflowSuite:
    """Subclass it and define an `open_store` fixture."""

    @pytest.fixture
    async def store(self, open_store: OpenStore[WorkflowStore]) -> AsyncIterator[WorkflowStore]:
        async with open_store(TENANT) as store:
            yield store

    async def test_a_row_comes_back_as_it_was_and_is_replaced_whole(self, store: WorkflowStore) -> None:
        first = row("w-1", group="g", is_open=True)
        assert await store.put(first)
        assert await store.get(WORKFLOW, "w-1") == first
        second = replace(first, document={"other": 1}, is_open=False)
        assert await store.put(second)
        assert await store.get(WORKFLOW, "w-1") == second
        assert await store.get(EXECUTION, "w-1") is None

    async def test_rows_are_listed_by_kind_and_group_the_newest_first(self, store: WorkflowStore) -> None:
        for id, at, group, is_open in (("a", 1, "x", True), ("b", 3, "y", True), ("c", 2, "x", False)):
            await store.put(row(id, at, EXECUTION, group, is_open))
        await store.put(row("d", 9))
        assert ids(await store.list(EXECUTION, limit=10)) == ["b", "c", "a"]
        assert ids(await store.list(EXECUTION, group="x", limit=10)) == ["c", "a"]
        assert ids(await store.list(EXECUTION, only_open=True, limit=10)) == ["b", "a"]
        assert ids(await store.list(EXECUTION, limit=1)) == ["b"]

    async def test_there_are_no_more_new_ones_than_the_limit(self, store: WorkflowStore) -> None:
        assert [await store.put(row(id), 2) for id in ("a", "b", "c", "a")] == [True, True, False, True]
        assert await store.put(row("c", kind=EXECUTION), 2)
        assert await store.remove(WORKFLOW, "a")
        assert not await store.remove(WORKFLOW, "a")
        assert await store.put(row("c"), 2)

    async def test_what_was_acknowledged_survives_a_restart(self, open_store: OpenStore[WorkflowStore]) -> None:
        async with open_store(TENANT) as store:
            await store.put(row("a"))
        async with open_store(TENANT) as store:
            assert await store.get(WORKFLOW, "a") == row("a")

    async def test_tenants_do_not_see_each_other(self, open_store: OpenStore[WorkflowStore]) -> None:
        async with open_store(TENANT) as store, open_store(OTHER_TENANT) as other:
            await store.put(row("a"), 1)
            assert await other.list(WORKFLOW, limit=10) == []
            assert await other.get(WORKFLOW, "a") is None
            assert not await other.remove(WORKFLOW, "a")
            assert await other.put(row("a", 5), 1)
            assert await store.get(WORKFLOW, "a") == row("a")
