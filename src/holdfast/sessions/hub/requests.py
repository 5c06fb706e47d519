"""Which route of the internal API answers which request of a runner. Tables, and functions without effects.

A request over the hub and a request to `/api/…` from inside the box are the same request: the same service answers
both. Names differ in places, because both are the names of the protocol.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote, urlencode


@dataclass(frozen=True, slots=True)
class Route:
    method: str
    path: str
    """A name in braces is a field of the request."""
    names: Mapping[str, str] = field(default_factory=dict)
    """Fields that have another name at the route."""
    wraps: str | None = None
    """The field of the answer that has the whole answer of the route."""


_TARGET: Final = {"targetSessionId": "sessionId"}
_MAIL: Final = {
    "toSessionId": "to_session_id",
    "toUserId": "to_user_id",
    "toHandle": "to_handle",
    "messageType": "message_type",
    "contextSessionId": "context_session_id",
    "contextTaskId": "context_task_id",
    "replyToId": "reply_to_id",
}
_TASK: Final = {"sessionId": "session_id", "parentTaskId": "parent_task_id", "blockedBy": "blocked_by"}
_PULL: Final = {"prNumber": "pr_number", "filesLimit": "files_limit", "commentsLimit": "comments_limit"}

ROUTES: Final[Mapping[str, Route]] = {
    "spawn-child": Route("POST", "/api/spawn-child"),
    "session-message": Route("POST", "/api/session-message", _TARGET),
    "session-messages": Route("GET", "/api/session-messages", _TARGET),
    "forward-messages": Route("POST", "/api/forward-messages", _TARGET),
    "terminate-child": Route("POST", "/api/terminate-child"),
    "get-session-status": Route("GET", "/api/session-status", _TARGET, wraps="sessionStatus"),
    "list-child-sessions": Route("GET", "/api/child-sessions"),
    "create-pr": Route("POST", "/api/create-pull-request"),
    "update-pr": Route("POST", "/api/update-pull-request", _PULL),
    "list-pull-requests": Route("GET", "/api/pull-requests"),
    "inspect-pull-request": Route("GET", "/api/pull-request", _PULL, wraps="data"),
    "memory-read": Route("GET", "/api/memories"),
    "memory-write": Route("POST", "/api/memories"),
    "memory-delete": Route("DELETE", "/api/memories/{memoryId}"),
    "list-repos": Route("GET", "/api/org-repos"),
    "list-personas": Route("GET", "/api/personas"),
    "list-channels": Route("GET", "/api/channels"),
    "read-repo-file": Route("POST", "/api/read-repo-file"),
    "workflow-list": Route("GET", "/api/workflows"),
    "workflow-sync": Route("POST", "/api/workflows/sync"),
    "workflow-run": Route("POST", "/api/workflows/run"),
    "workflow-executions": Route("GET", "/api/workflows/executions"),
    "mailbox-send": Route("POST", "/api/notifications/emit", _MAIL),
    "mailbox-check": Route("GET", "/api/notifications"),
    "task-create": Route("POST", "/api/tasks", _TASK),
    "task-list": Route("GET", "/api/tasks"),
    "task-update": Route("PUT", "/api/tasks/{taskId}", _TASK),
    "task-my": Route("GET", "/api/my-tasks"),
    "channel-reply": Route("POST", "/api/channel-reply"),
}
_DEFAULTS: Final = {"success": True, "ok": True}


def call_of(route: Route, fields: Mapping[str, Any]) -> tuple[str, str, bytes, dict[str, Any]]:
    """Returns method, path, query and body of the request to a route."""
    given = {name: value for name, value in fields.items() if name != "requestId"}
    path = route.path
    for name in list(given):
        if f"{{{name}}}" in path:
            path = path.replace(f"{{{name}}}", quote(str(given.pop(name)), safe=""))
    named = {route.names.get(name, name): value for name, value in given.items()}
    if route.method in ("GET", "DELETE"):
        query = {name: value if isinstance(value, str) else str(value).lower() for name, value in named.items()}
        return route.method, path, urlencode(query).encode(), {}
    return route.method, path, b"", named


def answer_of(route: Route, wanted: str, answer: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields of the message with a route's answer. `wanted` lists them, as the protocol does."""
    if route.wraps is not None:
        return {route.wraps: answer.get(route.wraps, dict(answer))}
    names = [each.partition(":")[0].rstrip("?") for each in wanted.split()]
    found = {name: answer[name] for name in names if answer.get(name) is not None}
    return {**{name: _DEFAULTS[name] for name in names if name in _DEFAULTS}, **found}
