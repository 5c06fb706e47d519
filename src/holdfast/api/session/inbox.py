"""Messages of sessions to people. Times are UTC milliseconds."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from holdfast.api.document import Document
from holdfast.api.limits import PromptText
from holdfast.api.tools.mailbox import MessageType


@dataclass(frozen=True, slots=True, kw_only=True)
class InboxMessage(Document):
    id: str
    to: str
    """The name of the person."""
    type: MessageType
    content: str
    """Written by an agent: it may say anything."""
    session: str | None
    """The session that wrote it."""
    person: str | None
    """The person who wrote it, in the name of a session."""
    context_session: str | None
    context_task: str | None
    reply_to: str | None
    created_at: int
    read_at: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class InboxPage(Document):
    messages: tuple[InboxMessage, ...]
    """Oldest first."""


class WaitingKind(StrEnum):
    QUESTION = "question"
    PERMISSION = "permission"
    APPROVAL = "approval"
    MESSAGE = "message"


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingItem(Document):
    """Something that waits for a person."""

    kind: WaitingKind
    id: str
    """Of the question, the execution or the message."""
    thread: str | None
    """The session that asks, or the thread of the execution."""
    text: str
    """Written by an agent: it may say anything."""
    asked_at: int
    options: tuple[str, ...] = ()
    """Answers to choose from. Of an approval: what it is about."""
    to: str | None = None
    """The person that a message is to. Everything else is for any member."""
    expires_at: int | None = None
    can_reply: bool = True
    """Whether anybody waits for an answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingList(Document):
    waiting: tuple[WaitingItem, ...]
    """Oldest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InboxReply(Document):
    text: PromptText


@dataclass(frozen=True, slots=True, kw_only=True)
class SentReply(Document):
    session: str
    prompt: str
    """The id of the prompt that the session gets."""
