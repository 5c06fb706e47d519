"""The contract of a store of messages as tests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Final

import pytest

from holdfast.api.tools.mailbox import MessageType
from holdfast.sessions.tools.mailbox_rows import MessageRow, MessageStore, Recipient
from holdfast.testing.store_suites.opener import OTHER_TENANT, TENANT, OpenStore

MOST: Final = 100


def message(number: int, to: str = "ada", kind: Recipient = Recipient.PERSON, **more: Any) -> MessageRow:
    return MessageRow(f"n-{number}", kind, to, MessageType.QUESTION, f"message {number}", "t-1", None, number, **more)


def ids(rows: list[MessageRow]) -> list[str]:
    return [each.id for each in rows]


@pytest.mark.anyio
class MessageSuite:
    """Subclass it and define an `open_store` fixture."""

    @pytest.fixture
    async def store(self, open_store: OpenStore[MessageStore]) -> AsyncIterator[MessageStore]:
        async with open_store(TENANT) as store:
            yield store

    async def test_a_message_comes_back_as_it_was(self, store: MessageStore) -> None:
        whole = message(1, context_session="t-2", context_task="k-1", reply_to="n-0", read_at=5)
        bare = MessageRow("n-2", Recipient.SESSION, "t-1", MessageType.APPROVAL, "büro\n", None, "ada", 2)
        for each in (whole, bare):
            assert await store.add(each, MOST)
            assert await store.get(each.id) == each
        assert await store.get("n-3") is None

    async def test_messages_come_in_their_order_by_recipient_and_after_one(self, store: MessageStore) -> None:
        for number, to in ((3, "ada"), (1, "ada"), (2, "bob")):
            await store.add(message(number, to), MOST)
        await store.add(message(4, "ada", Recipient.SESSION), MOST)
        assert ids(await store.list(Recipient.PERSON, "ada", limit=10)) == ["n-3", "n-1"]
        assert ids(await store.list(Recipient.PERSON, None, limit=10)) == ["n-3", "n-1", "n-2"]
        assert ids(await store.list(Recipient.PERSON, None, after="n-3", limit=1)) == ["n-1"]
        assert ids(await store.list(Recipient.SESSION, "ada", limit=10)) == ["n-4"]

    async def test_a_message_is_read_once_and_removed(self, store: MessageStore) -> None:
        await store.add(message(1), MOST)
        await store.add(message(2), MOST)
        await store.mark_read(["n-1", "n-9"], 7)
        await store.mark_read(["n-1"], 8)
        await store.mark_read([], 8)
        assert ids(await store.list(Recipient.PERSON, "ada", unread=True, limit=10)) == ["n-2"]
        found = await store.get("n-1")
        assert found is not None
        assert found.read_at == 7
        assert await store.remove("n-1")
        assert not await store.remove("n-1")

    async def test_a_message_that_is_added_twice_stays_as_it_was(self, store: MessageStore) -> None:
        await store.add(message(1), MOST)
        await store.mark_read(["n-1"], 7)
        assert await store.add(message(1), MOST)
        assert len(await store.list(Recipient.PERSON, "ada", limit=10)) == 1

    async def test_what_was_read_makes_room_and_what_was_not_does_not(self, store: MessageStore) -> None:
        assert [await store.add(message(number), 2) for number in (1, 2, 3)] == [True, True, False]
        assert await store.add(message(4, "bob"), 2)
        await store.mark_read(["n-2"], 7)
        assert await store.add(message(5), 2)
        assert ids(await store.list(Recipient.PERSON, "ada", limit=10)) == ["n-1", "n-5"]

    async def test_what_was_acknowledged_survives_a_restart(self, open_store: OpenStore[MessageStore]) -> None:
        async with open_store(TENANT) as store:
            await store.add(message(1), MOST)
        async with open_store(TENANT) as store:
            assert ids(await store.list(Recipient.PERSON, "ada", limit=10)) == ["n-1"]

    async def test_tenants_do_not_see_each_other(self, open_store: OpenStore[MessageStore]) -> None:
        async with open_store(TENANT) as store, open_store(OTHER_TENANT) as other:
            await store.add(message(1), 1)
            assert await other.list(Recipient.PERSON, None, limit=10) == []
            assert await other.get("n-1") is None
            await other.mark_read(["n-1"], 7)
            assert not await other.remove("n-1")
            assert await other.add(message(1, "bob"), 1)
            assert ids(await store.list(Recipient.PERSON, "ada", unread=True, limit=10)) == ["n-1"]
