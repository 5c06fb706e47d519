"""What services of chats send us: checked, and read as messages. Pure."""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from holdfast.api.errors import Unauthorized

SLACK_SECONDS: Final = 300
_MOST: Final = 64 * 1024
_MOST_QUESTION: Final = 3_000
_MOST_OPTIONS: Final = 20
_MOST_FILES: Final = 8
_LONGEST_PLACE: Final = 2_000
_LONGEST_NAME: Final = 100
_MIME: Final = re.compile(r"[a-z]+/[A-Za-z0-9.+-]{1,80}")
_UNSAFE: Final = re.compile(r"[^\w. -]+")


@dataclass(frozen=True, slots=True)
class ChatFile:
    """A file or an image that somebody has sent, as its service describes it."""

    place: str
    """Of Telegram its id, of Slack its URL."""
    mime: str
    name: str | None = None
    size: int | None = None


@dataclass(frozen=True, slots=True)
class ChatMessage:
    id: str
    """The same one if the service sends it again."""
    chat: str
    author: str
    text: str
    files: tuple[ChatFile, ...] = ()

    @property
    def is_speech(self) -> bool:
        """Whether somebody spoke, and wrote nothing."""
        return not self.text.strip() and any(each.mime.startswith("audio/") for each in self.files)


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
    """Returns the message of an update of Telegram's Bot API, or None if it has neither text nor files."""
    message = _dict(_dict(update).get("message"))
    chat, text = _dict(message.get("chat")).get("id"), message.get("text", message.get("caption", ""))
    number, files = _dict(update).get("update_id"), _telegram_files(message)
    if type(chat) is not int or type(number) is not int or not isinstance(text, str) or not (text or files):
        return None
    sender = _dict(message.get("from"))
    author = sender.get("username") or sender.get("first_name") or "somebody"
    return ChatMessage(f"telegram-{number}", str(chat), str(author)[:100], text[:_MOST], files)


def _telegram_files(message: dict[str, Any]) -> tuple[ChatFile, ...]:
    """A photo comes in several sizes, of which the last is the largest. All else comes once."""
    photos = message.get("photo")
    found: list[tuple[dict[str, Any], str, str | None]] = []
    if isinstance(photos, list) and photos:
        found.append((_dict(photos[-1]), "image/jpeg", "photo.jpg"))
    found += [
        (_dict(message[kind]), usual, None)
        for kind, usual in (("document", "application/octet-stream"), ("voice", "audio/ogg"), ("audio", "audio/mpeg"))
        if kind in message
    ]
    files = [
        _file(each.get("file_id"), each.get("mime_type", usual), each.get("file_name", name), each.get("file_size"))
        for each, usual, name in found
    ]
    return tuple(each for each in files if each is not None)


def slack_message(event: Any) -> ChatMessage | None:
    """Returns the message of an event of Slack, or None if it is none of a person."""
    inner = _dict(_dict(event).get("event"))
    number, chat, text = _dict(event).get("event_id"), inner.get("channel"), inner.get("text")
    if inner.get("type") not in ("message", "app_mention") or inner.get("bot_id"):
        return None
    if inner.get("subtype") not in (None, "", "file_share"):
        return None
    if not (isinstance(number, str) and isinstance(chat, str) and isinstance(text, str)):
        return None
    given = inner.get("files")
    files = [
        _file(each.get("url_private_download"), each.get("mimetype"), each.get("name"), each.get("size"))
        for each in map(_dict, given[:_MOST_FILES] if isinstance(given, list) else ())
    ]
    known = tuple(each for each in files if each is not None)
    if not (text or known):
        return None
    return ChatMessage(f"slack-{number[:100]}", chat, str(inner.get("user") or "somebody")[:100], text[:_MOST], known)


def _file(place: Any, mime: Any, name: Any, size: Any) -> ChatFile | None:
    if not isinstance(place, str) or not 0 < len(place) <= _LONGEST_PLACE:
        return None
    known = mime if isinstance(mime, str) and _MIME.fullmatch(mime) else "application/octet-stream"
    named = _UNSAFE.sub("_", name)[-_LONGEST_NAME:] if isinstance(name, str) and name else None
    return ChatFile(place, known, named, size if type(size) is int and size >= 0 else None)


def prompt_of(kind: str, message: ChatMessage, problems: Sequence[str] = ()) -> str:
    """Returns the prompt of a session for a message. The first line is ours, and the rest what somebody wrote.

    `problems` says which of its files were not taken, and why.
    """
    author = "".join(each for each in message.author if each.isprintable() and each not in "[]")
    lacking = "".join(f" A file was not taken: {each}." for each in problems)
    text = message.text.replace(chr(0), "").strip() or "(a file without words)"
    return (
        f"[Message of {author} in {kind} chat {message.chat}. Answer with the tool channel_reply.{lacking}]\n\n{text}"
    )


def question_text(text: str, options: Sequence[str]) -> str:
    """Returns a question of an agent for a chat."""
    lines = [f"{number}. {each}" for number, each in enumerate(options, 1)]
    how = "Answer with a number, or in words." if options else "Your next message is the answer."
    return "\n".join(["The agent asks:", text[:_MOST_QUESTION], *lines[:_MOST_OPTIONS], how])


def chosen(text: str, options: Sequence[str]) -> str | None:
    """Returns the option that somebody has named, by its number or in words, or None."""
    said = text.strip()
    if said.isascii() and said.isdigit() and len(said) < 4 and 1 <= int(said) <= len(options):
        return options[int(said) - 1]
    return next((each for each in options if each.casefold() == said.casefold()), None)


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
