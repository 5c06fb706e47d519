"""The operations of a session on sessions of its own."""

from __future__ import annotations

from typing import Final

from holdfast.api.limits import MAX_PROMPT
from holdfast.api.tools.operation import AFTER, BOOLEAN, ID, KEY, Field, Operation, ToolGroup, choice, integer, text

_SESSION: Final = Field(
    "sessionId", "The id of the session.", ID, required=True, aliases=("targetSessionId", "childSessionId")
)
_MESSAGES: Final = Field("limit", "How many at most. Default: 20.", integer(1, 100))
_ABOUT: Final = text(500)

OPERATIONS: Final = (
    Operation(
        name="spawn_child",
        group=ToolGroup.CHILDREN,
        route="POST /api/spawn-child",
        description=(
            "Start another session that belongs to this one: a machine with the same settings, and an agent that works"
            " on the task. It does not see this conversation, so the task has to say everything it needs to know."
            " Returns its id at once. Read what it says with session_messages."
        ),
        fields=(
            Field("task", "What the agent of the new session is to do.", text(MAX_PROMPT), required=True),
            Field("workspace", "A short name for its work.", text(128), required=True),
            Field("title", "A title, for people. Default: the name.", _ABOUT),
            Field(
                "box",
                "own: its machine has the files that yours started with (default). fork: a copy of yours as it is now.",
                choice("own", "fork"),
            ),
            Field("model", "A model of this session: its own, or one of its fallbacks.", text(256)),
            Field("repoUrl", "The repository of this session. No other one is possible.", text(2048)),
            Field("branch", "The branch that this session started with. No other one is possible.", text(255)),
            Field("ref", "The commit that this session started with. No other one is possible.", text(255)),
            Field("sourceType", "What the task is about: a note for people.", text(64)),
            Field("sourcePrNumber", "The number of the pull request that it is about.", integer(1, 1 << 31)),
            Field("sourceIssueNumber", "The number of the issue that it is about.", integer(1, 1 << 31)),
            Field("sourceRepoFullName", "The repository that it is about, as owner/name.", text(300)),
            KEY,
        ),
        result="childSessionId",
    ),
    Operation(
        name="session_message",
        group=ToolGroup.CHILDREN,
        route="POST /api/session-message",
        description=(
            "Send a prompt to a session below this one, or to the session that this one belongs to. It works on it"
            " after its current work, or at once if you interrupt it. Only sessions below can be interrupted."
        ),
        fields=(
            _SESSION,
            Field("content", "The prompt.", text(MAX_PROMPT), required=True),
            Field("interrupt", "Interrupt its current work. Default: false.", BOOLEAN),
            KEY,
        ),
        result="ok, success, messageId",
    ),
    Operation(
        name="session_messages",
        group=ToolGroup.CHILDREN,
        route="GET /api/session-messages",
        description="Read what was said in a session below this one: prompts, and the messages of its agent.",
        fields=(_SESSION, _MESSAGES, AFTER),
        result="messages [{id, role, content, createdAt}]",
        changes=False,
    ),
    Operation(
        name="forward_messages",
        group=ToolGroup.CHILDREN,
        route="POST /api/forward-messages",
        description="Copy what was said in a session below this one to this session, for the people who follow it.",
        fields=(_SESSION, _MESSAGES, AFTER),
        result="count, sourceSessionId",
    ),
    Operation(
        name="session_status",
        group=ToolGroup.CHILDREN,
        route="GET /api/session-status",
        description="Say how a session below this one is: its state, its agent's state and its queue.",
        fields=(_SESSION,),
        result="sessionStatus {id, title, state, agentState, jointState, queued, processing, ended, …}",
        changes=False,
    ),
    Operation(
        name="child_sessions",
        group=ToolGroup.CHILDREN,
        route="GET /api/child-sessions",
        description="List the sessions that belong to this one.",
        result="children [sessionStatus]",
        changes=False,
    ),
    Operation(
        name="terminate_child",
        group=ToolGroup.CHILDREN,
        route="POST /api/terminate-child",
        description="End a session below this one, and everything below it. Its files and its thread stay.",
        fields=(_SESSION,),
        result="success",
    ),
    Operation(
        name="complete_session",
        group=ToolGroup.CHILDREN,
        route="POST /api/complete-session",
        description="End this session, because its work is done. Ends your turn too.",
        result="success",
    ),
)
