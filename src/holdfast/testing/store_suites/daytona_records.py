"""The contract of a store of what the Daytona API keeps beside boxes as tests. It has the records of all tenants."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from holdfast.compat.daytona.records import Document, Record, RecordStore
from holdfast.testing.store_suites.opener import TENANT, OpenStore


def record(number: int, kind: str = "sandbox") -> Record:
    return Record(kind, f"b-{number}", f"name-{number}", {"n": number, "labels": {"a": None}}, number, number)


def add_one(document: Document) -> Document:
    return {**document, "n": document["n"] + 1}


@pytest.mark.anyio
class RecordSuite:
    """Subclass it and define an `open_store` fixture."""

    @pytest.fixture
    async def store(self, open_store: OpenStore[RecordStore]) -> AsyncIterator[RecordStore]:
        async with open_store(TENANT) as store:
            yield store

    async def test_a_record_is_found_by_its_id_and_its_name(self, store: RecordStore) -> None:
        assert await store.insert("a", record(1))
        assert await store.find("a", "sandbox", "b-1") == record(1)
        assert await store.find("a", "sandbox", "name-1") == record(1)
        assert await store.find("a", "sandbox", "none") is None

    async def test_ids_and_names_are_taken_within_a_tenant_and_a_kind(self, store: RecordStore) -> None:
        assert await store.insert("a", record(1))
        assert not await store.insert("a", replace(record(2), name="name-1"))
        assert not await store.insert("a", replace(record(2), id="b-1"))
        assert await store.list("a", "sandbox") == [record(1)], "nothing was written"
        assert await store.insert("b", record(1)), "another tenant has names of its own"
        assert await store.insert("a", record(1, "volume")), "and so has another kind"

    async def test_an_id_comes_before_a_name(self, store: RecordStore) -> None:
        await store.insert("a", record(1))
        await store.insert("a", replace(record(2), name="b-1"))
        assert await store.find("a", "sandbox", "b-1") == record(1)

    async def test_records_are_listed_newest_first(self, store: RecordStore) -> None:
        for number in (2, 3, 1):
            await store.insert("a", record(number))
        await store.insert("a", record(9, "volume"))
        await store.insert("b", record(9))
        assert await store.list("a", "sandbox") == [record(3), record(2), record(1)]
        assert await store.count("a", "sandbox") == 3
        assert await store.count("c", "sandbox") == 0

    async def test_a_change_replaces_the_document_alone(self, store: RecordStore) -> None:
        await store.insert("a", record(1))
        await store.insert("b", record(1))
        changed = await store.change("a", "sandbox", "b-1", add_one, 9)
        assert changed == replace(record(1), document={**record(1).document, "n": 2}, changed_at=9)
        assert await store.find("a", "sandbox", "b-1") == changed
        assert await store.find("b", "sandbox", "b-1") == record(1), "that of the other tenant is as it was"
        assert await store.change("a", "sandbox", "none", add_one, 9) is None
        assert await store.change("a", "volume", "b-1", add_one, 9) is None

    async def test_no_change_is_lost_to_another_at_the_same_time(self, store: RecordStore) -> None:
        await store.insert("a", record(1))
        await asyncio.gather(*(store.change("a", "sandbox", "b-1", add_one, 9) for _ in range(20)))
        found = await store.find("a", "sandbox", "b-1")
        assert found is not None
        assert found.document["n"] == 21

    async def test_a_change_that_fails_changes_nothing(self, store: RecordStore) -> None:
        def fail(document: Document) -> Document:
            document["n"] = 99
            raise ValueError("no")

        await store.insert("a", record(1))
        with pytest.raises(ValueError, match="no"):
            await store.change("a", "sandbox", "b-1", fail, 9)
        assert await store.find("a", "sandbox", "b-1") == record(1)

    async def test_a_removed_record_is_gone_and_its_name_is_free(self, store: RecordStore) -> None:
        await store.insert("a", record(1))
        assert not await store.remove("b", "sandbox", "b-1")
        assert not await store.remove("a", "volume", "b-1")
        assert await store.remove("a", "sandbox", "b-1")
        assert not await store.remove("a", "sandbox", "b-1")
        assert await store.insert("a", replace(record(2), name="name-1"))

    async def test_records_outlive_the_server(self, open_store: OpenStore[RecordStore]) -> None:
        async with open_store(TENANT) as store:
            await store.insert("a", record(1))
        async with open_store(TENANT) as store:
            assert await store.list("a", "sandbox") == [record(1)]
