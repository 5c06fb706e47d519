"""Messages of sessions to each other and to people, and the answers of people."""

from __future__ import annotations

import pytest
from tests.sessions.tools.world import ToolWorld

from holdfast.api.errors import Conflict, InvalidRequest, NotFound

pytestmark = pytest.mark.anyio


async def test_a_session_reads_a_message_of_its_tree_once(world: ToolWorld) -> None:
    parent, stranger = await world.session(), await world.session()
    child = (await world.call(parent, "spawn_child", task="t", workspace="w"))["childSessionId"]
    sent = await world.call(child, "send_notification", to_session_id=parent, content="look", key="k")
    assert await world.call(child, "send_notification", toSessionId=parent, content="look", key="k") == sent
    await world.restart()
    [message] = (await world.call(parent, "check_notifications"))["messages"]
    assert (message["id"], message["content"], message["fromSessionId"]) == (sent["messageId"], "look", child)
    assert (await world.call(parent, "check_notifications"))["messages"] == []
    with pytest.raises(NotFound):
        await world.call(stranger, "send_notification", toSessionId=parent, content="x")
    with pytest.raises(NotFound):
        await world.call(child, "send_notification", toHandle="ada", content="x", contextSessionId=stranger)


async def test_the_answer_of_a_person_is_a_prompt_of_the_session(world: ToolWorld) -> None:
    session = await world.session()
    sent = await world.call(
        session, "send_notification", toHandle="@Ada", content="Which port?", messageType="question"
    )
    [row] = await world.mailbox.inbox("ada", after=None, unread=True, limit=10)
    assert (row.id, row.from_session, row.type) == (sent["notificationId"], session, "question")
    _, prompt = await world.mailbox.reply(row.id, "8080", by="ada")
    assert await world.mailbox.inbox("ADA", after=None, unread=True, limit=10) == []
    entry = next(each for each in await world.base.base.entries(session) if each["id"] == prompt)
    assert entry["payload"]["text"] == f"[Answer to your message {row.id}:]\n> Which port?\n\n8080"
    assert entry["authorId"] == "ada"
    assert len((await world.base.session(session)).queue) == 1


async def test_people_neither_see_nor_answer_messages_between_sessions(world: ToolWorld) -> None:
    session = await world.session()
    child = (await world.call(session, "spawn_child", task="t", workspace="w"))["childSessionId"]
    sent = (await world.call(session, "send_notification", toSessionId=child, content="x"))["messageId"]
    assert await world.mailbox.inbox(None, after=None, unread=False, limit=10) == []
    for work in (world.mailbox.read(sent), world.mailbox.reply(sent, "x", by="ada"), world.mailbox.delete(sent)):
        with pytest.raises(NotFound):
            await work


async def test_a_message_has_one_recipient_and_there_is_a_limit(world: ToolWorld) -> None:
    session = await world.session()
    for wrong in ({}, {"toUserId": "a", "toHandle": "b"}, {"toUserId": "a b"}, {"toHandle": "x", "messageType": "odd"}):
        with pytest.raises(InvalidRequest):
            await world.tools.call(session, "send_notification", {"content": "x", **wrong})
    for _ in range(5):
        await world.call(session, "send_notification", toUserId="ada", content="x")
    with pytest.raises(Conflict, match="5 unread"):
        await world.call(session, "send_notification", toUserId="ada", content="x")
