"""Channels of sessions, with stand-ins for Telegram and Slack: messages in, answers out, and forged ones."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.runs.world import PATIENCE, SEALS
from tests.sessions.hub.test_hub import FakeRunner
from tests.sessions.tools.world import ToolWorld

from holdfast.api.errors import Forbidden, InvalidRequest, NotFound, TooManyRequests, Unauthorized, Unavailable
from holdfast.sessions.channels.events import slack_message, telegram_message
from holdfast.sessions.hub.hub import Hub
from holdfast.sessions.hub.turn_writer import TurnWriter
from holdfast.testing.chats import Slack, Telegram
from holdfast.threads.access.authority import Authority
from holdfast.threads.protocol.surface import StreamSurface

pytestmark = pytest.mark.anyio
TOKEN, SIGNING = "123456:telegram-token-of-a-bot", "slack-signing-secret-0123"
BOT = "xoxb-0123456789-abcdefghij"
SECRET = "x-telegram-bot-api-secret-token"


@pytest.fixture
def telegram(world: ToolWorld) -> Iterator[Telegram]:
    with Telegram(TOKEN) as telegram:
        world.secrets.add("TG", TOKEN)
        world.chat_apis["telegram"] = telegram.url
        yield telegram


@pytest.fixture
def slack(world: ToolWorld) -> Iterator[Slack]:
    with Slack(BOT, SIGNING) as slack:
        world.secrets.add("BOT", BOT)
        world.secrets.add("SIGNING", SIGNING)
        world.chat_apis["slack"] = slack.url
        yield slack


async def connect(world: ToolWorld, session: str, kind: str, *chats: str, **more: Any) -> dict[str, Any]:
    given = {"channelType": kind, "chats": list(chats), **more}
    return await world.tools.call(session, "connect_channel", given, person="ada")


async def receive(
    world: ToolWorld, session: str, kind: str, headers: dict[str, str], body: bytes, *, later: int = 0
) -> Any:
    now = world.base.base.clock.now() + later
    return await world.channels.receive(f"acme~{session}", kind, headers, body, now)


async def prompts(world: ToolWorld, session: str) -> list[str]:
    entries = await world.base.base.entries(session)
    return [each["payload"]["text"] for each in entries if each["payload"]["type"] == "chat"]


async def test_a_message_in_telegram_becomes_a_prompt_once_and_is_answered(
    world: ToolWorld, telegram: Telegram
) -> None:
    session = await world.session()
    made = await connect(world, session, "telegram", "42", token="TG")
    assert made["path"] == f"/v1/channel-events/acme~{session}/telegram"
    body = Telegram.update(1, 42, "how is it going?")
    for _ in range(2):
        assert await receive(world, session, "telegram", {SECRET: made["secret"]}, body) == {"ok": True}
    await world.restart()
    await receive(world, session, "telegram", {SECRET: made["secret"]}, body)
    other = Telegram.update(2, 42, "and now?")
    await receive(world, session, "telegram", {SECRET: made["secret"]}, other)
    entries = await world.base.base.entries(session)
    channels = [each["payload"]["prompt"]["channel"] for each in entries if each["payload"]["type"] == "chat"]
    assert channels == ["telegram:42"] * 2
    [prompt, _] = await prompts(world, session)
    assert prompt == "[Message of ada in telegram chat 42. Answer with the tool channel_reply.]\n\nhow is it going?"
    assert (await world.call(session, "list_channels"))["channels"] == [{"channelType": "telegram", "channelId": "42"}]
    image = base64.b64encode(b"\x89PNG-image").decode()
    for _ in range(2):
        await world.call(session, "channel_reply", channelType="telegram", channelId="42", message="fine", key="k")
        await world.restart()  # the next server knows what was sent
    await world.call(
        session, "channel_reply", channelType="telegram", channelId="42", imageBase64=image, message="look"
    )
    assert telegram.sent == [
        {"method": "sendMessage", "chat_id": "42", "text": "fine"},
        {"method": "sendPhoto", "chat_id": "42", "caption": "look", "photo": b"\x89PNG-image"},
    ]


async def test_a_message_in_slack_becomes_a_prompt_once_and_is_answered(world: ToolWorld, slack: Slack) -> None:
    session = await world.session()
    await connect(world, session, "slack", "*", token="BOT", signing="SIGNING")
    stamp = world.base.base.clock.now() // 1000
    challenge = json.dumps({"type": "url_verification", "challenge": "abc"}).encode()
    assert await receive(world, session, "slack", slack.headers(challenge, stamp), challenge) == {"challenge": "abc"}
    with pytest.raises(Forbidden):
        await world.call(session, "channel_reply", channelType="slack", channelId="C1", message="hello?")
    body = Slack.event("Ev1", "C1", "deploy it")
    for _ in range(3):
        await receive(world, session, "slack", slack.headers(body, stamp), body)
    for ignored in (
        Slack.event("Ev2", "C1", "x", bot_id="B1"),
        Slack.event("Ev3", "C1", "x", subtype="message_changed"),
    ):
        await receive(world, session, "slack", slack.headers(ignored, stamp), ignored)
    assert len(await prompts(world, session)) == 1
    await world.call(session, "channel_reply", channelType="slack", channelId="C1", message="done")
    image = base64.b64encode(b"GIF89a").decode()
    await world.call(
        session, "channel_reply", channelType="slack", channelId="C1", imageBase64=image, imageMimeType="image/gif"
    )
    assert [each["method"] for each in slack.sent] == ["chat.postMessage", "files.completeUploadExternal"]
    assert slack.sent[1]["channel_id"] == "C1"
    assert list(slack.uploads.values()) == [b"GIF89a"]


def attached(entries: list[dict[str, Any]]) -> list[list[tuple[str, str | None, bytes]]]:
    """The files of each prompt."""
    return [
        [(each["mime"], each.get("filename"), base64.b64decode(each["data"])) for each in chat.get("attachments", ())]
        for chat in (entry["payload"] for entry in entries)
        if chat["type"] == "chat"
    ]


async def test_images_and_files_of_telegram_belong_to_the_prompt(world: ToolWorld, telegram: Telegram) -> None:
    session = await world.session()
    secret = {SECRET: (await connect(world, session, "telegram", "42", token="TG"))["secret"]}
    telegram.files = {"small": b"s", "large": b"\xff\xd8 a photo", "notes": b"turnips", "huge": b"x" * (4 << 20)}
    photo = [{"file_id": "small", "file_size": 1}, {"file_id": "large", "file_size": 9}]
    bodies = [
        Telegram.update(1, 42, caption="What is this?", photo=photo),
        Telegram.update(
            2, 42, document={"file_id": "notes", "file_name": "../my notes.txt", "mime_type": "text/plain"}
        ),
        Telegram.update(3, 42, "see", document={"file_id": "huge", "file_name": "h.png", "mime_type": "image/png"}),
        Telegram.update(4, 42, "see", document={"file_id": "gone", "file_name": "g.png", "mime_type": "image/png"}),
        Telegram.update(5, 42, "see", document={"file_id": "small", "file_name": "a.exe"}),
    ]
    for body in (*bodies, bodies[0]):
        await receive(world, session, "telegram", secret, body)
    entries = await world.base.base.entries(session)
    assert attached(entries) == [
        [("image/jpeg", "photo.jpg", b"\xff\xd8 a photo")],
        [("text/plain", ".._my notes.txt", b"turnips")],
        [], [], [],
    ]  # fmt: skip
    texts = await prompts(world, session)
    assert texts[0].endswith("channel_reply.]\n\nWhat is this?")
    assert texts[1].endswith("channel_reply.]\n\n(a file without words)")
    assert "A file was not taken: h.png, because it has more than 3,145,728 bytes." in texts[2]
    assert "A file was not taken: g.png, because telegram did not take the message" in texts[3]
    assert "A file was not taken: a.exe, because only images, texts and PDFs are." in texts[4]
    assert TOKEN not in json.dumps(entries)


async def test_images_of_slack_belong_to_the_prompt_and_the_token_goes_to_slack_alone(
    world: ToolWorld, slack: Slack
) -> None:
    session = await world.session()
    await connect(world, session, "slack", "C1", token="BOT", signing="SIGNING")
    stamp = world.base.base.clock.now() // 1000
    slack.files = {"1": b"GIF89a"}
    with Slack(BOT, SIGNING) as elsewhere:
        elsewhere.files = {"1": b"GIF89a"}
        gif = {"mimetype": "image/gif", "name": "a.gif", "url_private_download": f"{slack.url}/files-pri/1"}
        foreign = {**gif, "name": "b.gif", "url_private_download": f"{elsewhere.url}/files-pri/1"}
        body = Slack.event("Ev1", "C1", "", subtype="file_share", files=[gif, foreign, 7])
        await receive(world, session, "slack", slack.headers(body, stamp), body)
    assert attached(await world.base.base.entries(session)) == [[("image/gif", "a.gif", b"GIF89a")]]
    [text] = await prompts(world, session)
    assert "A file was not taken: b.gif, because it is not at Slack." in text


async def test_who_speaks_in_a_chat_is_told_once_that_nobody_listens(world: ToolWorld, telegram: Telegram) -> None:
    session = await world.session()
    secret = {SECRET: (await connect(world, session, "telegram", "42", token="TG"))["secret"]}
    voice = {"file_id": "v", "mime_type": "audio/ogg", "duration": 2}
    for _ in range(2):
        await receive(world, session, "telegram", secret, Telegram.update(1, 42, voice=voice))
        await world.restart()
    assert await prompts(world, session) == []
    assert [(each["chat_id"], each["text"]) for each in telegram.sent] == [
        ("42", "Nobody here can listen to speech: this server has no model that understands it. Please write it."),
    ]


@asynccontextmanager
async def asking(world: ToolWorld, session: str) -> AsyncIterator[FakeRunner]:
    """The runner of the session's current run, at the hub."""
    base = world.base.base
    surface = StreamSurface(base.store, Authority(SEALS, frozenset({"scripted"})))
    hub = Hub(
        base.log, TurnWriter(surface, lambda: "q-1"), base.runs, base.runs.ends, world.base.runners,
        world.base.questions, on_question=world.channels.ask, beat_seconds=3600.0,
    )  # fmt: skip
    run = (await world.base.at_work(session)).run
    runner = FakeRunner(hub, session, run)
    await runner.until("init")
    runner.greet(run.run)
    try:
        yield runner
    finally:
        await runner.leave()
        await hub.close()


async def sent(telegram: Telegram, count: int) -> list[str]:
    async with asyncio.timeout(PATIENCE):
        while len(telegram.sent) < count:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    return [each["text"] for each in telegram.sent]


async def test_a_question_is_put_to_the_chat_that_the_agent_works_for_and_answered_there(
    world: ToolWorld, telegram: Telegram
) -> None:
    session = await world.session()
    secret = {SECRET: (await connect(world, session, "telegram", "42", "43", token="TG"))["secret"]}
    await receive(world, session, "telegram", secret, Telegram.update(1, 42, "set up a database"))
    async with asking(world, session) as runner:
        question = {"questionId": "que_1", "text": "Which?", "options": ["PostgreSQL", "SQLite"]}
        runner.say("question", {**question, "turnId": runner.run.run})
        asked = "The agent asks:\nWhich?\n1. PostgreSQL\n2. SQLite\nAnswer with a number, or in words."
        assert await sent(telegram, 1) == [asked]
        await world.channels.ask(session)  # also after a restart
        await receive(world, session, "telegram", secret, Telegram.update(2, 43, "1"))
        assert len(await prompts(world, session)) == 2, "another chat is not asked"
        for _ in range(2):
            await receive(world, session, "telegram", secret, Telegram.update(3, 42, "2"))
        assert await runner.until("answer") == {"questionId": "que_1", "answer": "SQLite"}
        await runner.acked(runner.say("question-closed", {"questionId": "que_1", "answer": "SQLite"}))
        permission = {"questionId": "per_1", "kind": "permission", "text": "May it?", "options": ["once", "reject"]}
        runner.say("question", {**permission, "turnId": runner.run.run})
        await sent(telegram, 2)
        await receive(world, session, "telegram", secret, Telegram.update(4, 42, "why?"))
        await receive(world, session, "telegram", secret, Telegram.update(5, 42, "ONCE"))
        assert await runner.until("answer") == {"questionId": "per_1", "answer": "once"}
    assert [each.rpartition("\n")[2] for each in await prompts(world, session)] == ["set up a database", "1", "why?"]


async def test_no_permission_is_asked_for_where_everybody_is_heard(world: ToolWorld, telegram: Telegram) -> None:
    session = await world.session()
    secret = {SECRET: (await connect(world, session, "telegram", "*", token="TG"))["secret"]}
    await receive(world, session, "telegram", secret, Telegram.update(1, 42, "delete it all"))
    async with asking(world, session) as runner:
        permission = {"questionId": "per_1", "kind": "permission", "text": "May it?", "options": ["once", "reject"]}
        runner.say("question", {**permission, "turnId": runner.run.run})
        runner.say("question", {"questionId": "que_1", "text": "Sure?", "turnId": runner.run.run})
        assert await sent(telegram, 1) == ["The agent asks:\nSure?\nYour next message is the answer."]
        await receive(world, session, "telegram", secret, Telegram.update(2, 42, "once"))
        assert await runner.until("answer") == {"questionId": "que_1", "answer": "once"}
        assert [each.id for each in await world.base.sessions.questions(session)] == ["per_1"]


async def test_a_forged_or_replayed_event_is_refused_with_one_answer(
    world: ToolWorld, telegram: Telegram, slack: Slack
) -> None:
    session, other = await world.session(), await world.session()
    made = await connect(world, session, "telegram", "42", token="TG")
    theirs = await connect(world, other, "telegram", "42", token="TG")
    await connect(world, session, "slack", "C1", token="BOT", signing="SIGNING")
    update, event = Telegram.update(1, 42, "x"), Slack.event("Ev1", "C1", "x")
    stamp = world.base.base.clock.now() // 1000
    signed = slack.headers(event, stamp)
    wrong: list[tuple[str, str, dict[str, str], bytes, int]] = [
        (session, "telegram", {}, update, 0),
        (session, "telegram", {SECRET: made["secret"].upper()}, update, 0),
        (session, "telegram", {SECRET: theirs["secret"]}, update, 0),
        (session, "telegram", {SECRET: "é"}, update, 0),
        ("t-nothing", "telegram", {SECRET: made["secret"]}, update, 0),
        (session, "odd", {SECRET: made["secret"]}, update, 0),
        (other, "slack", signed, event, 0),
        (session, "slack", {}, event, 0),
        (session, "slack", signed, event + b" ", 0),
        (session, "slack", signed, event, 301_000),
        (session, "slack", {**signed, "x-slack-request-timestamp": str(stamp + 1)}, event, 0),
        (session, "slack", Slack(BOT, "another").headers(event, stamp), event, 0),
    ]
    for where, kind, headers, body, later in wrong:
        with pytest.raises(Unauthorized, match="there is no such channel, or the request is not from its service"):
            await receive(world, where, kind, headers, body, later=later)
    assert await prompts(world, session) == await prompts(world, other) == []


async def test_only_chats_that_were_allowed_are_heard_and_answered(world: ToolWorld, telegram: Telegram) -> None:
    session = await world.session()
    made = await connect(world, session, "telegram", "42", token="TG")
    await receive(world, session, "telegram", {SECRET: made["secret"]}, Telegram.update(1, 43, "let me in"))
    assert await prompts(world, session) == []
    with pytest.raises(Forbidden):
        await world.call(session, "channel_reply", channelType="telegram", channelId="43", message="x")
    with pytest.raises(Forbidden, match="for people"):
        await world.call(session, "connect_channel", channelType="telegram", token="TG", chats=["*"])
    await world.tools.call(session, "disconnect_channel", {"channelType": "telegram"}, person="ada")
    with pytest.raises(Unauthorized):
        await receive(world, session, "telegram", {SECRET: made["secret"]}, Telegram.update(2, 42, "x"))
    with pytest.raises(NotFound):
        await world.tools.call(session, "disconnect_channel", {"channelType": "telegram"}, person="ada")


async def test_what_a_service_answers_never_has_the_token(world: ToolWorld, telegram: Telegram, slack: Slack) -> None:
    session = await world.session()
    await connect(world, session, "telegram", "42", token="TG")
    await connect(world, session, "slack", "C1", token="BOT", signing="SIGNING")
    telegram.token = slack.token = "another"
    for kind, chat in (("telegram", "42"), ("slack", "C1")):
        with pytest.raises(Unavailable, match="did not take") as refused:
            await world.call(session, "channel_reply", channelType=kind, channelId=chat, message="x")
        assert not any(each in refused.value.message for each in (TOKEN, BOT))
    world.chat_apis["telegram"] = "http://127.0.0.1:9"
    with pytest.raises(Unavailable, match="cannot be reached") as unreachable:
        await world.call(session, "channel_reply", channelType="telegram", channelId="42", message="x")
    assert TOKEN not in str(unreachable.value)
    everything = json.dumps(await world.base.base.entries(session))
    assert not any(each in everything for each in (TOKEN, BOT, SIGNING))


async def test_channels_are_limited(world: ToolWorld, telegram: Telegram) -> None:
    session = await world.session()
    made = await connect(world, session, "telegram", "42", token="TG")
    for number in range(60):
        await receive(world, session, "telegram", {SECRET: made["secret"]}, Telegram.update(number, 42, "again"))
    with pytest.raises(TooManyRequests):
        await receive(world, session, "telegram", {SECRET: made["secret"]}, Telegram.update(60, 42, "again"))
    assert len(await prompts(world, session)) == 60
    for wrong in ({}, {"imageBase64": "no base64!"}, {"imageBase64": "aGk", "imageMimeType": "text/html"}):
        with pytest.raises(InvalidRequest):
            await world.call(session, "channel_reply", channelType="telegram", channelId="42", **wrong)


@pytest.mark.parametrize(
    "odd", [None, 1, [], {}, {"message": 1}, {"update_id": "x", "message": {"chat": {"id": 1}, "text": "x"}}]
)
async def test_an_odd_event_is_no_message(odd: Any) -> None:
    assert telegram_message(odd) is None
    assert slack_message(odd) is None


async def test_a_webhook_has_another_secret_each_time_it_is_connected(world: ToolWorld, telegram: Telegram) -> None:
    session = await world.session()
    first = await connect(world, session, "telegram", "42", token="TG")
    await world.tools.call(session, "disconnect_channel", {"channelType": "telegram"}, person="ada")
    second = await connect(world, session, "telegram", "*", token="TG")
    assert first["secret"] != second["secret"]
    with pytest.raises(Unauthorized):
        await receive(world, session, "telegram", {SECRET: first["secret"]}, Telegram.update(1, 42, "x"))
    for number in (1, 2):  # also once a chat was seen
        await receive(world, session, "telegram", {SECRET: second["secret"]}, Telegram.update(number, 42, "x"))
    assert len(await prompts(world, session)) == 2
