"""The contract of a store of secrets and their audit as tests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

import pytest

from holdfast.api.secrets import SecretAction, SecretEvent
from holdfast.environments.secrets.rows import MOST_EVENTS, NamedSecretStore, SecretRow
from holdfast.testing.store_suites.opener import OTHER_TENANT, TENANT, OpenStore

ROW: Final = SecretRow("TOKEN", '[{"host": "büro"}]', None, "placeholder", 3, 1, 5, "alice", bytes(range(256)))
OTHER: Final = SecretRow("OTHER", "[]", "env", "", 1, 2, 2, "bob", b"x")
SET: Final = SecretEvent(at=5, action=SecretAction.SET, version=3, by="alice")
REMOVED: Final = SecretEvent(at=6, action=SecretAction.REMOVED, version=3, by="bob")
USED: Final = SecretEvent(
    at=7, action=SecretAction.USED, version=3, box="b-1", thread="t-1", host="api.example.com", detail="büro"
)


async def load(store: NamedSecretStore) -> dict[str, SecretRow]:
    """Returns all rows by name. The contract promises no order."""
    return {row.name: row for row in await store.load_all()}


@pytest.mark.anyio
class NamedSecretSuite:
    """Subclass it and define an `open_store` fixture."""

    @pytest.fixture
    async def store(self, open_store: OpenStore[NamedSecretStore]) -> AsyncIterator[NamedSecretStore]:
        async with open_store(TENANT) as store:
            yield store

    async def test_a_secret_comes_back_as_it_was(self, store: NamedSecretStore) -> None:
        assert await store.load_all() == []
        await store.put(ROW, SET)
        await store.put(OTHER, SET)
        assert await load(store) == {"TOKEN": ROW, "OTHER": OTHER}

    async def test_a_secret_is_replaced_whole(self, store: NamedSecretStore) -> None:
        await store.put(ROW, SET)
        new = SecretRow("TOKEN", "[]", "file", "", 4, 1, 6, "bob", b"new")
        await store.put(new, SET)
        assert await load(store) == {"TOKEN": new}

    async def test_a_change_and_its_event_are_written_together(self, store: NamedSecretStore) -> None:
        await store.put(ROW, SET)
        assert await store.events("TOKEN", 10) == [SET]
        assert await store.remove("TOKEN", REMOVED)
        assert not await store.remove("TOKEN", REMOVED)
        assert await load(store) == {}
        assert await store.events("TOKEN", 10) == [REMOVED, SET]

    async def test_events_come_newest_first_and_by_name(self, store: NamedSecretStore) -> None:
        await store.add_events([("TOKEN", SET), ("OTHER", REMOVED), ("TOKEN", USED)])
        assert await store.events("TOKEN", 10) == [USED, SET]
        assert await store.events("TOKEN", 1) == [USED]
        assert await store.events("NONE", 10) == []

    async def test_the_newest_events_of_a_name_are_kept(self, store: NamedSecretStore) -> None:
        many = [
            SecretEvent(at=at, action=SecretAction.USED, version=1, box="b-1", host="h") for at in range(MOST_EVENTS)
        ]
        await store.add_events([("OTHER", SET), ("TOKEN", SET), *(("TOKEN", each) for each in many)])
        assert await store.events("TOKEN", 2 * MOST_EVENTS) == many[::-1]
        assert await store.events("OTHER", 10) == [SET]

    async def test_what_was_acknowledged_survives_a_restart(self, open_store: OpenStore[NamedSecretStore]) -> None:
        async with open_store(TENANT) as store:
            await store.put(ROW, SET)
        async with open_store(TENANT) as store:
            assert await load(store) == {"TOKEN": ROW}
            assert await store.events("TOKEN", 10) == [SET]

    async def test_tenants_do_not_see_each_other(self, open_store: OpenStore[NamedSecretStore]) -> None:
        async with open_store(TENANT) as store, open_store(OTHER_TENANT) as other:
            await store.put(ROW, SET)
            assert await other.load_all() == []
            assert await other.events("TOKEN", 10) == []
            await other.put(OTHER, SET)
            assert not await other.remove("TOKEN", REMOVED)
            assert await load(store) == {"TOKEN": ROW}
