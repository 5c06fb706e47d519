"""Memories: what sessions write, other sessions find, and who may delete it. The store has its own suite."""

from __future__ import annotations

import pytest
from tests.sessions.tools.world import ToolWorld

from holdfast.api.errors import Conflict, InvalidRequest, NotFound

pytestmark = pytest.mark.anyio


async def test_a_later_session_finds_what_an_earlier_one_wrote(world: ToolWorld) -> None:
    first, second = await world.session(), await world.session()
    written = await world.call(first, "memory_write", content="the build needs node 24", category="fact")
    await world.restart()
    found = (await world.call(second, "memory_read", query="node build"))["memories"]
    assert found == [written["memory"]]
    assert found[0]["sessionId"] == first
    assert (await world.call(second, "memory_read", category="taste"))["memories"] == []


async def test_a_repeated_write_with_the_same_key_is_one_memory(world: ToolWorld) -> None:
    session, other = await world.session(), await world.session()
    for each in (session, session, other):
        await world.call(each, "memory_write", content="once", category="fact", key="k")
    assert len((await world.call(session, "memory_read"))["memories"]) == 2


async def test_a_tree_deletes_its_own_memories_and_people_delete_any(world: ToolWorld) -> None:
    session, stranger = await world.session(), await world.session()
    child = (await world.call(session, "spawn_child", task="t", workspace="w"))["childSessionId"]
    ids = [
        (await world.call(session, "memory_write", content=f"note {each}", category="fact"))["memory"]["id"]
        for each in range(2)
    ]
    with pytest.raises(NotFound):
        await world.call(stranger, "memory_delete", id=ids[0])
    await world.call(child, "memory_delete", memoryId=ids[0])
    with pytest.raises(NotFound):
        await world.call(child, "memory_delete", id=ids[0])
    await world.tools.call(stranger, "memory_delete", {"id": ids[1]}, person="ada")
    assert (await world.call(session, "memory_read"))["memories"] == []


async def test_memories_are_bounded_in_size_and_number(world: ToolWorld) -> None:
    session = await world.session()
    for wrong in ("", "x" * (16 * 1024 + 1)):
        with pytest.raises(InvalidRequest):
            await world.call(session, "memory_write", content=wrong, category="fact")
    with pytest.raises(InvalidRequest):
        await world.call(session, "memory_write", content="x", category="no spaces")
    for number in range(20):
        await world.call(session, "memory_write", content=f"note {number}", category="fact")
    with pytest.raises(Conflict, match="20 memories"):
        await world.call(session, "memory_write", content="one more", category="fact")
