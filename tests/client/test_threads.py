"""Threads, keys and tokens through the client, on a real server."""

from __future__ import annotations

import gc
import secrets

import httpx
import pytest
from tests.client.proxy import Fault, Proxy

from holdfast import Client
from holdfast.client import Conflict, Forbidden, InvalidRequest, NotFound, NotUnderstood, Unauthorized, Unreachable
from holdfast.testing.server import ServerProcess

pytestmark = pytest.mark.anyio


async def test_a_thread_from_creation_to_deletion(client: Client) -> None:
    parent = await client.threads.create(title="parent")
    thread = await client.threads.create(title="first", parent=parent.id, labels={"team": "core"})
    await thread.chat("hello")
    info = await thread.info()
    assert (info.id, info.title, info.status, info.parent) == (thread.id, "first", "idle", parent.id)
    assert (info.labels, info.archived, info.entry_count) == ({"team": "core"}, False, 2)
    assert info.last_entry is not None
    assert (info.last_entry.type, info.last_entry.text) == ("chat", "hello")
    assert info.to_json()["lastEntry"]["text"] == "hello"
    assert (await client.threads.rename(thread.id, "second")).title == "second"
    assert (await client.threads.update(thread.id, labels={"team": "edge"}, archived=True)).archived
    assert (await client.threads.get(thread.id)).labels == {"team": "edge"}
    await client.threads.delete(thread.id)
    with pytest.raises(NotFound, match=thread.id) as raised:
        await thread.info()
    assert (raised.value.status, raised.value.code) == (404, "not_found")
    with pytest.raises(NotFound):
        await thread.delete()


async def test_lists_filter_and_page(client: Client) -> None:
    group = secrets.token_hex(4)
    made = [
        (await client.threads.create(title=str(number), labels={"group": group, "odd": str(number % 2)})).id
        for number in range(7)
    ]
    await client.threads.update(made[0], archived=True)

    async def ids(labels: dict[str, str | None], **filters: object) -> set[str]:
        found = client.threads.list(labels=labels, **filters)  # type: ignore[arg-type]
        return {info.id async for info in found}

    assert await ids({"group": group}) == set(made[1:])
    assert await ids({"group": group}, archived="any") == set(made)
    assert await ids({"group": group}, archived=True) == {made[0]}
    assert await ids({"group": group, "odd": "1"}) == set(made[1::2])
    assert await ids({"group": group, "odd": None}, status="running") == set()
    assert len(await ids({"group": group}, limit=3)) == 3
    pages, cursor = [], None
    while True:
        page = await client.threads.page(labels={"group": group}, archived="any", cursor=cursor, limit=3)
        pages.append([info.id for info in page.threads])
        cursor = page.next_cursor
        if cursor is None:
            break
    assert [len(page) for page in pages] == [3, 3, 1]
    assert sorted(id for page in pages for id in page) == sorted(made)


async def test_entries_come_by_type_and_page(client: Client) -> None:
    thread = await client.threads.create()
    await thread.append([{"type": "pi.text" if n % 2 else "chat", "text": str(n)} for n in range(10)])
    found = [entry.payload["text"] async for entry in thread.entries(types=["pi.*"])]
    assert found == ["1", "3", "5", "7", "9"]
    assert [entry.payload["text"] async for entry in thread.entries(types="chat", limit=2)] == ["0", "2"]
    page = await thread.page(limit=4)
    assert (len(page.entries), page.up_to_date) == (4, False)
    rest = [entry.payload["text"] async for entry in thread.entries(since=page.next_offset)]
    assert rest == [str(n) for n in range(3, 10)]
    assert [entry async for entry in thread.entries(since="now")] == []


async def test_more_entries_than_a_page_holds(client: Client) -> None:
    thread = await client.threads.create()
    await thread.append([{"type": "test.number", "number": number} for number in range(2500)])
    numbers = [entry.payload["number"] async for entry in thread.entries(types="test.*")]
    assert numbers == list(range(2500))
    page = await thread.page(since="-1+2001", limit=10)
    assert page.entries[0].payload["number"] == 2000


async def test_creating_twice_conflicts_but_a_lost_answer_does_not(client: Client, shaky: Client, proxy: Proxy) -> None:
    id = f"t-{secrets.token_hex(8)}"
    await client.threads.create(id=id)
    with pytest.raises(Conflict, match=id):
        await client.threads.create(id=id)
    proxy.faults.append(Fault.LOSE_ANSWER)
    thread = await shaky.threads.create(title="mine")
    assert (await thread.info()).title == "mine"
    proxy.faults.append(Fault.LOSE_ANSWER)
    with pytest.raises(Unreachable):
        await shaky.threads.create(id=f"{id}-2")  # an id of the caller's choice: who made it cannot be told
    assert (await client.threads.get(f"{id}-2")).id == f"{id}-2"
    proxy.faults.append(Fault.LOSE_REQUEST)
    proxy.faults.append(Fault.LOSE_ANSWER)
    await shaky.threads.delete(id)
    with pytest.raises(NotFound):
        await client.threads.get(id)


async def test_a_token_is_for_one_thread_and_one_scope(client: Client, server: ServerProcess) -> None:
    mine, other = await client.threads.create(), await client.threads.create()
    token = await mine.token("read", ttl_seconds=60)
    assert (token.thread, token.scope) == (mine.id, "read")
    assert token.token not in repr(token)
    async with Client(server.url, api_key=token.token) as reader:
        assert (await reader.threads.get(mine.id)).id == mine.id
        with pytest.raises(Forbidden, match="only read"):
            await reader.thread(mine.id).chat("hello")
        with pytest.raises(Forbidden, match=other.id):
            await reader.threads.get(other.id)
        with pytest.raises(Forbidden):
            await reader.keys.list()
        renewed = await reader.renew_token()
        assert renewed.token != token.token
        assert (await reader.threads.get(mine.id)).id == mine.id
    written = await client.threads.token(mine.id, "write")
    async with Client(server.url, api_key=written.token) as writer:
        await writer.thread(mine.id).chat("hello")


async def test_keys_are_made_listed_and_revoked(client: Client, server: ServerProcess) -> None:
    key = await client.keys.create("laptop")
    assert key.secret is not None
    assert key.secret not in repr(key)
    async with Client(server.url, api_key=key.secret) as other:
        assert key.id in {each.id for each in await other.keys.list()}
        await client.keys.revoke(key.id)
    async with Client(server.url, api_key=key.secret) as other:
        with pytest.raises(Unauthorized, match="revoked") as raised:
            await other.keys.list()
        assert raised.value.hint
    [revoked] = [each for each in await client.keys.list() if each.id == key.id]
    assert revoked.revoked_at is not None
    with pytest.raises(NotFound):
        await client.keys.revoke("k-nobody")


async def test_no_key_is_unauthorized_but_health_needs_none(server: ServerProcess) -> None:
    async with Client(server.url) as client:
        assert (await client.health())["status"] == "ok"
        with pytest.raises(Unauthorized):
            await client.threads.create()


async def test_bad_values_are_told(client: Client) -> None:
    with pytest.raises(InvalidRequest):
        await client.threads.create(id="not an id!")
    thread = await client.threads.create()
    with pytest.raises(InvalidRequest, match="garbage"):
        await thread.page(since="garbage")
    with pytest.raises(InvalidRequest):
        await thread.token("read", ttl_seconds=0)


async def test_ids_cannot_lead_elsewhere(client: Client) -> None:
    """An id is quoted into the URL, whatever it is."""
    for id in ("../keys", "t-1/entries", "t-1?x=1", "t-1#x"):
        with pytest.raises((NotFound, InvalidRequest)):
            await client.thread(id).info()


async def test_another_kind_of_server_is_not_understood(proxy: Proxy, shaky: Client) -> None:
    proxy.faults.append(Fault.OTHER_SERVER)
    with pytest.raises(NotUnderstood, match="cannot be read") as raised:
        await shaky.threads.get("t-1")
    assert raised.value.hint == "check that this is the URL of a Holdfast server"


@pytest.mark.parametrize("url", ["", "localhost:8484", "ftp://127.0.0.1", "http://"])
def test_what_is_no_url_is_refused_at_once(url: str) -> None:
    with pytest.raises(ValueError, match="should look like"):
        Client(url)


# --- memory ---


def _exchanges() -> list[object]:
    return [each for each in gc.get_objects() if isinstance(each, (httpx.Request, httpx.Response))]


async def test_what_was_sent_and_received_is_not_left_to_the_garbage_collector(client: Client) -> None:
    """A collection of everything is rare in a process that has little to do, and a body may be large."""
    await client.threads.create()
    gc.collect()
    before = len(_exchanges())
    gc.disable()
    try:
        thread = await client.threads.create()
        await thread.chat("x" * 100_000)
        assert (await thread.info()).entry_count == 2
        async with thread.tail() as tail:
            assert [(await anext(tail)).type for _ in range(2)] == ["signal.thread.created", "chat"]
        with pytest.raises(NotFound):
            await client.threads.get("t-unknown")
        assert len(_exchanges()) == before
    finally:
        gc.enable()
