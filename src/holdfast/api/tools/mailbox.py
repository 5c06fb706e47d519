"""The operations on messages to other sessions of the tree, and to people."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from holdfast.api.tools.operation import AFTER, ID, KEY, LIMIT, Field, Operation, ToolGroup, choice, text

MAX_MESSAGE: Final = 16 * 1024
"""Characters."""
MOST_MESSAGES: Final = 1_000
"""Of one recipient."""
PERSON: Final = r"^@?[A-Za-z0-9][A-Za-z0-9._@+-]*$"


class MessageType(StrEnum):
    NOTIFICATION = "notification"
    QUESTION = "question"
    ESCALATION = "escalation"
    APPROVAL = "approval"


OPERATIONS: Final = (
    Operation(
        name="send_notification",
        group=ToolGroup.MAILBOX,
        route="POST /api/notifications/emit",
        description=(
            "Send a message to a person, or to another session of this tree. People see it with holdfast inbox, and"
            " their answer comes as a prompt. A session finds it with check_notifications. Name exactly one recipient."
        ),
        fields=(
            Field("content", "The message.", text(MAX_MESSAGE), required=True),
            Field("toSessionId", "A session of this tree.", ID),
            Field("toUserId", "A person, by name.", text(128, pattern=PERSON)),
            Field("toHandle", "A person, by handle: @ada.", text(128, pattern=PERSON)),
            Field("messageType", "What kind of message it is. Default: notification.", choice(*MessageType)),
            Field("contextSessionId", "The session that it is about.", ID),
            Field("contextTaskId", "The task that it is about.", ID),
            Field("replyToId", "The message that it answers.", ID),
            KEY,
        ),
        result="notificationId, messageId",
    ),
    Operation(
        name="check_notifications",
        group=ToolGroup.MAILBOX,
        route="GET /api/notifications",
        description="Read the messages to this session, oldest first. Without `after`, those that were not read yet.",
        fields=(LIMIT, AFTER),
        result="messages [{id, type, content, fromSessionId, fromUserId, replyToId, createdAt, …}]",
    ),
)
