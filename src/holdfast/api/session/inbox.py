"""Messages of sessions to people. Times are UTC milliseconds."""

from __future__ import annotations

from dataclasses import dataclass

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


@dataclass(frozen=True, slots=True, kw_only=True)
class InboxReply(Document):
    text: PromptText


@dataclass(frozen=True, slots=True, kw_only=True)
class SentReply(Document):
    session: str
    prompt: str
    """The id of the prompt that the session gets."""
