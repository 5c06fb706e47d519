"""What services of chats send us: checked, and read as messages. Pure."""

from __future__ import annotations

import hashlib
import hmac
import re
from dataclasses import dataclass
from typing import Any, Final

from holdfast.api.errors import Unauthorized

SLACK_SECONDS: Final = 300
_MOST: Final = 64 * 1024


@dataclass(frozen=True, slots=True)
class ChatMessage:
    id: str
    """The same one if the service sends it again."""
    chat: str
    author: str
    text: str


def refused() -> Unauthorized:
    """For everything that can be wrong."""
    return Unauthorized("there is no such channel, or the request is not from its service")


def check_telegram(expected: str, given: str | None) -> None:
    """Telegram sends the secret that the webhook was registered with. Raises `Unauthorized`."""
    if given is None or not hmac.compare_digest(expected.encode(), given.encode("utf-8", "replace")):
        raise refused()


def slack_signature(signing: str, timestamp: str, body: bytes) -> str:
    signed = hmac.digest(signing.encode(), f"v0:{timestamp}:".encode() + body, hashlib.sha256)
    return f"v0={signed.hex()}"


def check_slack(signing: str, timestamp: str | None, signature: str | None, body: bytes, now: int) -> None:
    """Slack signs its requests. `now` is in UTC milliseconds. Raises `Unauthorized`."""
    if timestamp is None or signature is None or re.fullmatch(r"[0-9]{1,12}", timestamp) is None:
        raise refused()
    genuine = hmac.compare_digest(
        slack_signature(signing, timestamp, body).encode(), signature.encode("utf-8", "replace")
    )
    if not genuine or abs(now / 1000 - int(timestamp)) > SLACK_SECONDS:
        raise refused()


def telegram_message(update: Any) -> ChatMessage | None:
    """Returns the message of an update of Telegram's Bot API, or None if it has no text."""
    message = _dict(_dict(update).get("message"))
    chat, text = _dict(message.get("chat")).get("id"), message.get("text", message.get("caption"))
    number = _dict(update).get("update_id")
    if type(chat) is not int or type(number) is not int or not isinstance(text, str):
        return None
    sender = _dict(message.get("from"))
    author = sender.get("username") or sender.get("first_name") or "somebody"
    return ChatMessage(f"telegram-{number}", str(chat), str(author)[:100], text[:_MOST])


def slack_message(event: Any) -> ChatMessage | None:
    """Returns the message of an event of Slack, or None if it is none of a person."""
    inner = _dict(_dict(event).get("event"))
    number, chat, text = _dict(event).get("event_id"), inner.get("channel"), inner.get("text")
    if inner.get("type") not in ("message", "app_mention") or inner.get("subtype") or inner.get("bot_id"):
        return None
    if not (isinstance(number, str) and isinstance(chat, str) and isinstance(text, str)):
        return None
    return ChatMessage(f"slack-{number[:100]}", chat, str(inner.get("user") or "somebody")[:100], text[:_MOST])


def prompt_of(kind: str, message: ChatMessage) -> str:
    """Returns the prompt of a session for a message. The first line is ours, and the rest what somebody wrote."""
    author = "".join(each for each in message.author if each.isprintable() and each not in "[]")
    return (
        f"[Message of {author} in {kind} chat {message.chat}. Answer with the tool channel_reply.]\n\n"
        f"{message.text.replace(chr(0), '')}"
    )


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
