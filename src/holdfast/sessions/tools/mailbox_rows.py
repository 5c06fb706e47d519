"""The contract of a store of messages to sessions and people. `holdfast.testing.store_suites` tests implementations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from holdfast.api.tools.mailbox import MessageType


class Recipient(StrEnum):
    SESSION = "session"
    PERSON = "person"


@dataclass(frozen=True, slots=True)
class MessageRow:
    id: str
    kind: Recipient
    to: str
    """The id of a session, or the name of a person."""
    type: MessageType
    content: str
    from_session: str | None
    from_person: str | None
    created_at: int
    context_session: str | None = None
    context_task: str | None = None
    reply_to: str | None = None
    read_at: int | None = None


class MessageStore(Protocol):
    """The messages of one tenant, in the order in which they were added. A change is on disk when its call returns."""

    async def add(self, row: MessageRow, most: int) -> bool:
        """Add a message. One with the same id stays as it is. If the recipient has `most`, the oldest that were read
        make room. Returns False, and adds nothing, if none were.
        """
        ...

    async def get(self, id: str) -> MessageRow | None: ...

    async def list(
        self, kind: Recipient, to: str | None, *, after: str | None = None, unread: bool = False, limit: int
    ) -> list[MessageRow]:
        """Returns messages, oldest first: to one recipient, or to all of this kind."""
        ...

    async def mark_read(self, ids: Sequence[str], at: int) -> None: ...

    async def remove(self, id: str) -> bool: ...
