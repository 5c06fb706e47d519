"""Channels of sessions: connects them, takes messages in, and sends answers out. Their state is on the thread."""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import logging
import secrets
from collections import deque
from collections.abc import Mapping
from typing import Any, Final
from weakref import WeakValueDictionary

import orjson

from holdfast.api.errors import Forbidden, HoldfastError, InvalidRequest, NotFound, TooManyRequests, Unavailable
from holdfast.api.errors.sessions import AgentAway
from holdfast.api.session.sessions import MAX_ATTACHMENTS, MOST_ATTACHMENTS, Attachment
from holdfast.api.tools.channels import ChannelType
from holdfast.change_limit import ChangeLimit
from holdfast.runs.run_log import RunLog
from holdfast.sessions.channels.events import (
    ChatMessage,
    check_slack,
    check_telegram,
    chosen,
    prompt_of,
    question_text,
    refused,
    slack_message,
    telegram_message,
)
from holdfast.sessions.channels.record import (
    CONNECTED,
    DISCONNECTED,
    MOST_SEEN,
    PREFIX,
    SEEN,
    SENT,
    Channel,
    Channels,
    fold,
)
from holdfast.sessions.channels.senders import Image, Senders
from holdfast.sessions.hub.questions import Question
from holdfast.sessions.service import Sessions
from holdfast.sessions.tools.caller import Caller, Handler, keyed_id
from holdfast.sessions.tools.github import SecretSource
from holdfast.threads.access.seals import Seals
from holdfast.threads.sealed_records import SealedRecords
from holdfast.threads.store import StreamStore

log = logging.getLogger(__name__)

_MOST_BYTES: Final = MAX_ATTACHMENTS // 4 * 3
_TAKEN: Final = ("image/", "text/", "application/pdf")
"""What models can look at."""
_NO_SPEECH: Final = "Nobody here can listen to speech: this server has no model that understands it. Please write it."


class SessionChannels:
    """The thread has which answers were sent, so that a repeated call with the same key does not send one twice."""

    def __init__(
        self,
        store: StreamStore,
        seals: Seals,
        run_log: RunLog,
        sessions: Sessions,
        secrets: SecretSource,
        senders: Senders,
        limit: ChangeLimit,
        secret: bytes,
        mark: str = "",
    ) -> None:
        """`secret` has 32 bytes and is used only for this. `limit` is for messages, by session. `mark` is what paths of
        events begin with: it names the tenant.
        """
        self._sessions = sessions
        self._secrets = secrets
        self._senders = senders
        self._limit = limit
        self._secret = secret
        self._mark = mark
        self._asking: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """By session: one at a time puts its questions to chats."""
        self._records = SealedRecords[Channels](
            store, seals, run_log.clock, prefix=PREFIX, begin=lambda life: Channels(), fold=fold
        )

    @property
    def handlers(self) -> dict[str, Handler]:
        return {
            "list_channels": self.list,
            "channel_reply": self.reply,
            "connect_channel": self.connect,
            "disconnect_channel": self.disconnect,
        }

    # --- for people ---

    async def connect(self, caller: Caller, input: Mapping[str, Any]) -> dict[str, Any]:
        kind = ChannelType(input["channelType"])
        token, signing = str(input["token"]), input.get("signing")
        if kind is ChannelType.SLACK and signing is None:
            raise InvalidRequest("slack needs signing: the name of the secret with its signing secret")
        for name in (token, *(() if signing is None else (signing,))):
            self._secrets.reveal(name)  # raises if there is none
        payload = {
            "type": CONNECTED,
            "channel": kind.value,
            "token": token,
            "chats": list(input["chats"]),
            "nonce": secrets.token_hex(16),
            **({} if signing is None else {"signing": signing}),
        }
        await self._records.change(caller.id, lambda _: payload)
        shown = {"channelType": kind.value, "path": f"/v1/channel-events/{self._mark}{caller.id}/{kind.value}"}
        return (
            {**shown, "secret": self._webhook_secret(caller.id, payload["nonce"])}
            if kind is ChannelType.TELEGRAM
            else shown
        )

    async def disconnect(self, caller: Caller, input: Mapping[str, Any]) -> dict[str, Any]:
        kind = ChannelType(input["channelType"])

        def compose(channels: Channels) -> dict[str, Any]:
            if kind not in channels.by_type:
                raise NotFound(f"session {caller.id} takes part in no chats of {kind}")
            return {"type": DISCONNECTED, "channel": kind.value}

        await self._records.change(caller.id, compose)
        return {"success": True}

    # --- for agents ---

    async def list(self, caller: Caller, input: Mapping[str, Any]) -> dict[str, Any]:
        channels = (await self._records.get(caller.id)).by_type.values()
        found = [{"channelType": each.type.value, "channelId": chat} for each in channels for chat in each.known]
        return {"channels": found}

    async def reply(self, caller: Caller, input: Mapping[str, Any]) -> dict[str, Any]:
        kind, chat = ChannelType(input["channelType"]), str(input["channelId"])
        channels = await self._records.get(caller.id)
        channel = channels.by_type.get(kind)
        if channel is None or not channel.answers(chat):
            raise Forbidden(f"this session takes no part in {kind} chat {chat}")
        text, image = input.get("message"), _image(input)
        if text is None and image is None:
            raise InvalidRequest("a reply needs a message or an image")
        key = keyed_id("e", caller.id, str(input["key"])) if "key" in input else None
        if key is None or key not in channels.sent:
            await self._senders.send(kind, self._secrets.reveal(channel.token), chat, text, image)
            if key is not None:
                await self._note_sent(caller.id, channel, chat, key)
        return {"success": True}

    # --- questions of agents ---

    async def ask(self, session: str) -> None:
        """Put what the agent asks to the chat that it works for, each question once. Raises `Unavailable`."""
        async with self._asking.setdefault(session, asyncio.Lock()):
            await self._ask(session)

    async def _ask(self, session: str) -> None:
        label, questions = await self._sessions.asked_in(session)
        kind, _, chat = label.partition(":")
        channels = await self._records.get(session)
        channel = channels.by_type.get(ChannelType(kind)) if kind in set(ChannelType) else None
        for each in questions:
            key = _question_key(session, each.id)
            if channel is None or not _may_answer(channel, chat, each) or key in channels.sent:
                continue
            text = question_text(each.text, each.options)
            await self._senders.send(channel.type, self._secrets.reveal(channel.token), chat, text, None)
            await self._note_sent(session, channel, chat, key)

    async def _answer(self, session: str, channel: Channel, message: ChatMessage) -> bool:
        """Returns whether a message is the answer to a question that was put to its chat. The agent gets it."""
        key = keyed_id("e", "answer", session, message.id)
        sent = (await self._records.get(session)).sent
        if key in sent:
            return True  # the service sends it again
        label, questions = await self._sessions.asked_in(session)
        if label != _label(channel, message.chat) or not message.text.strip():
            return False
        asked = next((each for each in questions if _question_key(session, each.id) in sent), None)
        if asked is None or not _may_answer(channel, message.chat, asked):
            return False
        answer = chosen(message.text, asked.options)
        if answer is None and asked.kind == "permission":
            return False  # it is about something else, and gives no permission
        try:
            await self._sessions.answer(session, asked.id, answer or message.text.strip())
        except (NotFound, AgentAway):
            return False
        await self._note_sent(session, channel, message.chat, key)
        return True

    async def _note_sent(self, session: str, channel: Channel, chat: str, key: str) -> None:
        sent = {"type": SENT, "channel": channel.type.value, "chat": chat, "key": key}
        await self._records.change(session, lambda _: sent)

    # --- from the services ---

    async def receive(self, name: str, kind: str, headers: Mapping[str, str], body: bytes, now: int) -> dict[str, Any]:
        """Take an event of a service. Answers in the form that it expects. Raises `Unauthorized`."""
        session = name.removeprefix(self._mark)
        channel = await self._find(session, kind)
        self._check(session, channel, headers, body, now)
        try:
            document = orjson.loads(body)
        except orjson.JSONDecodeError:
            raise InvalidRequest("the event is not valid JSON") from None
        if (
            channel.type is ChannelType.SLACK
            and isinstance(document, dict)
            and document.get("type") == "url_verification"
        ):
            return {"challenge": str(document.get("challenge", ""))[:1000]}
        message = telegram_message(document) if channel.type is ChannelType.TELEGRAM else slack_message(document)
        if message is not None:
            await self._take(session, channel, message)
        return {"ok": True}

    async def _find(self, session: str, kind: str) -> Channel:
        try:
            channel = (await self._records.get(session)).by_type.get(ChannelType(kind))
        except (NotFound, ValueError):
            channel = None
        if channel is None:
            raise refused()
        return channel

    def _check(self, session: str, channel: Channel, headers: Mapping[str, str], body: bytes, now: int) -> None:
        if channel.type is ChannelType.TELEGRAM:
            check_telegram(self._webhook_secret(session, channel.nonce), headers.get("x-telegram-bot-api-secret-token"))
            return
        signing = self._secrets.reveal(channel.signing or "")
        stamp, signature = headers.get("x-slack-request-timestamp"), headers.get("x-slack-signature")
        check_slack(signing, stamp, signature, body, now)

    async def _take(self, session: str, channel: Channel, message: ChatMessage) -> None:
        if not channel.admits(message.chat):
            log.info("session %s takes no part in %s chat %s", session, channel.type, message.chat)
            return
        try:
            self._limit.spend(session)
        except TooManyRequests:
            raise TooManyRequests("messages of this channel come too often: send it again later") from None
        if not channel.answers(message.chat) and len(channel.seen) < MOST_SEEN:
            seen = {"type": SEEN, "channel": channel.type.value, "chat": message.chat}
            await self._records.change(session, lambda _: seen)
        if await self._answer(session, channel, message):
            return
        # The id makes a repetition of the same message no second prompt.
        prompt_id = keyed_id("e", "channel", session, message.id)
        author = f"{channel.type}:{message.author}"[:128]
        if message.is_speech:
            await self._refuse_speech(session, channel, message)
            return
        try:
            attachments, problems = await self._fetch(session, channel, message, prompt_id)
            await self._sessions.prompt(
                session,
                prompt_of(channel.type, message, problems),
                attachments=attachments,
                prompt_id=prompt_id,
                author=_printable(author),
                channel=_label(channel, message.chat),
            )
        except HoldfastError as error:
            log.warning("a message from %s chat %s was not taken: %s", channel.type, message.chat, error)
            if error.status is not None and error.status >= 500:
                raise

    async def _fetch(
        self, session: str, channel: Channel, message: ChatMessage, prompt_id: str
    ) -> tuple[tuple[Attachment, ...], tuple[str, ...]]:
        """Returns the files of a message that fit, and why others were not taken."""
        found: deque[Attachment] = deque()
        problems: deque[str] = deque()
        room = _MOST_BYTES
        if message.files and await self._sessions.has_prompt(session, prompt_id):
            return (), ()  # the service sends it again
        token = self._secrets.reveal(channel.token) if message.files else ""
        for each in message.files[:MOST_ATTACHMENTS]:
            name = each.name or each.mime
            if each.mime.startswith("audio/"):
                problems.append(f"{name}, because this server has no model that understands speech")
                continue
            if not each.mime.startswith(_TAKEN):
                problems.append(f"{name}, because only images, texts and PDFs are")
                continue
            try:
                if each.size is not None and each.size > room:
                    raise Unavailable(f"it has more than {room:,} bytes")
                data = await self._senders.fetch(channel.type, token, each, room)
            except Unavailable as error:
                problems.append(f"{name}, because {error.message}")
                continue
            if data:
                room -= len(data)
                encoded = base64.b64encode(data).decode()
                found.append(Attachment(mime=each.mime, data=encoded, filename=each.name))
        return tuple(found), tuple(problems)

    async def _refuse_speech(self, session: str, channel: Channel, message: ChatMessage) -> None:
        """Tell who spoke that nobody listens, once."""
        key = keyed_id("e", "speech", session, message.id)
        if key in (await self._records.get(session)).sent:
            return
        try:
            await self._senders.send(channel.type, self._secrets.reveal(channel.token), message.chat, _NO_SPEECH, None)
        except Unavailable as error:
            log.warning("%s chat %s was not told that speech is refused: %s", channel.type, message.chat, error)
        await self._note_sent(session, channel, message.chat, key)

    def _webhook_secret(self, session: str, nonce: str) -> str:
        """Another one each time that the channel is connected, also in a thread with the id of a deleted one."""
        return hmac.digest(self._secret, f"telegram\n{session}\n{nonce}".encode(), hashlib.sha256).hex()


def _label(channel: Channel, chat: str) -> str:
    """Returns the channel of the session that a chat is."""
    return f"{channel.type}:{_printable(chat)[:100]}"


def _question_key(session: str, question: str) -> str:
    return keyed_id("e", "question", session, question)


def _may_answer(channel: Channel, chat: str, question: Question) -> bool:
    """Whether a chat is asked. Where everybody is heard who finds the bot, nobody gives permissions."""
    return channel.answers(chat) and (question.kind != "permission" or chat in channel.chats)


def _printable(author: str) -> str:
    return "".join(each if "!" <= each <= "~" else "_" for each in author)


def _image(input: Mapping[str, Any]) -> Image | None:
    if "imageBase64" not in input:
        return None
    try:
        data = base64.b64decode(input["imageBase64"], validate=True)
    except (binascii.Error, ValueError):
        raise InvalidRequest("imageBase64 is not valid base64") from None
    return Image(data, input.get("imageMimeType", "image/png"))
