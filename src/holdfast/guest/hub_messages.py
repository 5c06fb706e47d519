"""The messages between the runner of a session and the hub of its server, both ways. Both sides use this module.

A message is a JSON object with its `type` and its fields. The tables below are the protocol: what is not in them is
neither sent nor accepted. A field that is unknown is dropped, because the other side may be newer.

A field is written as `name`, or `name?` if it may be left out, and its kind after a colon: `text` (the default), `int`,
`number`, `bool`, `object` (any JSON object), `any`, `a|b` (one of these words), the name of a shape, `[kind]` (a list)
or `{kind}` (an object with such values). Times are UTC milliseconds.

A runner numbers what it says, from 1 (`numbered`, `number_of`), and the hub acknowledges it with `ack`. What is not
acknowledged is sent again after the connection was lost, so the hub may get it twice, and takes it once.
"""

import json
import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Check = Callable[[Any, str], Any]

LONGEST_MESSAGE = 16 << 20
"""Bytes of a message. Images and files are in messages, in base64."""
LONGEST_LIST = 10_000
EXPIRED = "__expired__"
"""The answer to a question that nobody has answered in time."""
DEEPEST = 32
_LARGEST_INT = (1 << 53) - 1

SHAPES = {
    "attachment": "type:file mime url filename?",
    "channel": "channelType channelId",
    "model": "id name?",
    "models": "provider models:[model]",
    "custom-model": "id name? contextLimit?:int outputLimit?:int",
    "custom-provider": "providerId displayName baseUrl apiKey? models:[custom-model]",
    "config": "tools?:{bool} providerKeys?:{text} instructions?:[text] isOrchestrator?:bool"
    " customProviders?:[custom-provider]",
    "workflow-run": "kind:run|resume executionId workflowHash? resumeToken? decision?:approve|deny payload:object",
    "chat-message": "role content createdAt:int",
    "diff-file": "path status:added|modified|deleted diff?",
    "diff": "files:[diff-file]",
    "changed-file": "path status additions?:int deletions?:int",
    "finding": "id file lineStart:int lineEnd:int severity:critical|warning|suggestion|nitpick category title"
    " description suggestedFix?",
    "reviewed-file": "path summary reviewOrder:int findings:[finding] linesAdded:int linesDeleted:int",
    "review": "files:[reviewed-file] overallSummary stats:object",
    "tunnel": "name port:int protocol?:http|ws|auto path url?",
    "workflow-step": "stepId status attempt?:int startedAt?:int completedAt?:int input?:any output?:any error?",
    "approval": "stepId prompt items:[any] resumeToken",
    "envelope": "ok:bool status:ok|needs_approval|cancelled|failed executionId output?:any steps?:[workflow-step]"
    " requiresApproval?:approval error?",
    "turn": "run epoch:int thread agent session? title? timeoutMs?:int retries?:int",
    "usage": "ocMessageId model inputTokens:int outputTokens:int cacheReadTokens:int cacheWriteTokens:int"
    " reasoningTokens:int",
}

TO_RUNNER = {
    "prompt": "messageId content model? attachments?:[attachment] modelPreferences?:[text] channelType? channelId?"
    " opencodeSessionId? authorId? authorEmail? authorName? gitName? gitEmail? threadId? continuationContext?"
    " replyChannelType? replyChannelId? traceparent? turn?:turn",
    "answer": "questionId answer:any",
    "stop": "",
    "abort": "channelType? channelId?",
    "revert": "messageId channelType? channelId?",
    "diff": "requestId channelType? channelId?",
    "review": "requestId channelType? channelId?",
    "pong": "",
    "init": "",
    "ack": "seq:int",
    "opencode-command": "command args? requestId channelType? channelId?",
    "new-session": "channelType channelId requestId",
    "tunnel-delete": "name actorId? actorName? actorEmail?",
    "opencode-config": "config:config",
    "workflow-execute": "executionId model? modelPreferences?:[text] payload:workflow-run",
    "call-tool-pending": "requestId invocationId message",
    "repo-config": "token expiresAt?:int gitConfig:object repoUrl? branch? ref?",
    "repo-token-refreshed": "token expiresAt?:int",
    "plugin-content": "personas:[object] skills:[object] tools:[object] allowRepoContent:bool toolWhitelist?:[text]",
}
"""Messages of the hub, apart from answers."""

TO_HUB = {
    "message.create": "turnId channelType? channelId? opencodeSessionId? threadId?",
    "message.part.text-delta": "turnId delta messageId? thinking? entryId? ts?:int",
    "message.part.tool-update": "turnId callId toolName status:pending|running|completed|error args?:any result?:any"
    " error? entry?",
    "message.entry": "turnId entry",
    "message.finalize": "turnId reason:end_turn|error|canceled finalText? error? entry?",
    "workflow-chat-message": "role content parts?:any channelType? channelId? opencodeSessionId?",
    "question": "questionId text options?:[text] turnId? kind?:question|permission",
    "question-closed": "questionId answer?",
    "screenshot": "data description",
    "error": "messageId error",
    "complete": "",
    "agentStatus": "status:idle|thinking|tool_calling|streaming|error detail? turns?:[text] lastTurn? sessions?:{text}",
    "git-state": "branch? baseBranch? commitCount?:int",
    "models": "models:[models]",
    "aborted": "",
    "reverted": "messageIds:[text]",
    "diff": "requestId data:diff",
    "files-changed": "files:[changed-file]",
    "review-result": "requestId data?:review diffFiles?:[diff-file] error?",
    "self-terminate": "",
    "ping": "",
    "workflow-execution-result": "executionId envelope:envelope",
    "model-switched": "messageId fromModel toModel reason",
    "tunnels": "tunnels:[tunnel]",
    "audio-transcript": "messageId transcript",
    "command-result": "requestId command result?:any error?",
    "channel-session-created": "channelKey opencodeSessionId",
    "session-reset": "channelType channelId requestId",
    "opencode-config-applied": "success:bool restarted:bool error?",
    "runner-health": "kind:opencode_crash|opencode_health_timeout|opencode_fatal|upgrade_failure exitCode?:int"
    " crashCount?:int message?",
    "usage-report": "turnId entries:[usage]",
    "wait-subscription": "reason? sessionIds?:[text] notifyOn? statuses?:[text]",
    "thread.created": "threadId title?",
    "thread.updated": "threadId title?",
    "repo:clone-complete": "success:bool error?",
    "analytics:emit": "events:[object]",
}
"""Messages of the runner, apart from requests."""

REQUESTS = {
    "spawn-child": (
        "task workspace repoUrl? branch? ref? title? sourceType? sourcePrNumber?:int sourceIssueNumber?:int"
        " sourceRepoFullName? model?",
        "childSessionId",
    ),
    "session-message": ("targetSessionId content interrupt?:bool", "success:bool"),
    "session-messages": ("targetSessionId limit?:int after?", "messages:[chat-message]"),
    "forward-messages": ("targetSessionId limit?:int after?", "count:int sourceSessionId"),
    "terminate-child": ("childSessionId", "success:bool"),
    "get-session-status": ("targetSessionId", "sessionStatus:object"),
    "list-child-sessions": ("", "children:[object]"),
    "create-pr": ("branch title body? base?", "number:int url title state"),
    "update-pr": ("prNumber:int title? body? state? labels?:[text]", "number:int url title state"),
    "list-pull-requests": ("owner? repo? state? limit?:int", "pulls:[object]"),
    "inspect-pull-request": ("prNumber:int owner? repo? filesLimit?:int commentsLimit?:int", "data:object"),
    "memory-read": ("category? query? limit?:int", "memories:[object]"),
    "memory-write": ("content category", "memory:object success:bool"),
    "memory-delete": ("memoryId", "success:bool"),
    "list-repos": ("source?", "repos:[object]"),
    "list-personas": ("", "personas:[object]"),
    "list-channels": ("", "channels:[object]"),
    "read-repo-file": ("owner? repo? repoUrl? path ref?", "content encoding truncated:bool path repo ref"),
    "workflow-list": ("", "workflows:[object]"),
    "workflow-sync": ("id? slug? name description? version? data:object", "success:bool workflow:object"),
    "workflow-run": (
        "workflowId variables?:object repoUrl? branch? ref? sourceRepoFullName?",
        "execution:object",
    ),
    "workflow-executions": ("workflowId? limit?:int", "executions:[object]"),
    "workflow-api": ("action payload?:object", "data:any"),
    "trigger-api": ("action payload?:object", "data:any"),
    "execution-api": ("action payload?:object", "data:any"),
    "mailbox-send": (
        "toSessionId? toUserId? toHandle? messageType? content contextSessionId? contextTaskId? replyToId?",
        "messageId",
    ),
    "mailbox-check": ("limit?:int after?", "messages:[object]"),
    "task-create": ("title description? sessionId? parentTaskId? blockedBy?:[text]", "task:object"),
    "task-list": ("status? limit?:int", "tasks:[object]"),
    "task-update": ("taskId status? result? description? sessionId? title?", "task:object"),
    "task-my": ("status?", "tasks:[object]"),
    "channel-reply": (
        "channelType channelId message imageBase64? imageMimeType? followUp?:bool fileBase64? fileMimeType? fileName?",
        "success:bool",
    ),
    "mem-read": ("path", "content"),
    "mem-write": ("path content", "success:bool"),
    "mem-patch": ("path patches:[object]", "success:bool"),
    "mem-rm": ("path", "success:bool"),
    "mem-search": ("query limit?:int", "results:[object]"),
    "list-tools": ("service? query?", "tools:[object] warnings:[text]"),
    "call-tool": ("toolId params?:object", "result:any images?:[object]"),
    "skill-api": ("action payload?:object", "data:any statusCode:int"),
    "persona-api": ("action payload?:object", "data:any statusCode:int"),
    "identity-api": ("action payload?:object", "data:any statusCode:int"),
    "repo:refresh-token": ("", "token expiresAt?:int"),
}
"""Requests of the runner, with the fields of the answer, whose type is that of the request and `-result`. All of them
have a `requestId`. An answer has these fields, or an `error`."""

_SECONDS = {"spawn-child": 60, "terminate-child": 30, "create-pr": 30, "update-pr": 30}
_RESULT = "-result"


_NUMBER = re.compile(r'\{"seq":([1-9][0-9]{0,15}),')


class InvalidMessage(ValueError):
    """A message is not one of the protocol. The text says why, and quotes nothing that may be secret."""


def numbered(number: int, text: str) -> str:
    """Returns a message of the runner with its number."""
    return '{"seq":%d,%s' % (number, text[1:])


def number_of(text: str) -> "int | None":
    """Returns the number of a message of the runner, or None if it has none."""
    found = _NUMBER.match(text)
    return None if found is None else int(found.group(1))


def seconds_to_wait(request: str) -> int:
    """Returns how long a runner waits for the answer to a request."""
    return _SECONDS.get(request, 15)


def to_runner(type: str, fields: "dict[str, Any]") -> str:
    """Returns a message of the hub as text. Raises `InvalidMessage`."""
    return _encode(_TO_RUNNER, type, fields)


def from_hub(text: "str | bytes") -> "tuple[str, dict[str, Any]]":
    """Returns the type and the fields of a message that the hub has sent. Raises `InvalidMessage`."""
    return _decode(_TO_RUNNER, text)


def to_hub(type: str, fields: "dict[str, Any]") -> str:
    """Returns a message of the runner as text. Raises `InvalidMessage`."""
    return _encode(_TO_HUB, type, fields)


def from_runner(text: "str | bytes") -> "tuple[str, dict[str, Any]]":
    """Returns the type and the fields of a message that a runner has sent. Raises `InvalidMessage`."""
    return _decode(_TO_HUB, text)


# --- checking ---


def _encode(table: "dict[str, Check]", type: str, fields: "dict[str, Any]") -> str:
    checked = _checked(table, type, fields)
    if len(checked) != len(fields):  # also if one of them is null, which is to be left out instead
        raise InvalidMessage("%s has a field that it does not take" % type)
    text = json.dumps({"type": type, **checked}, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    if len(text.encode()) > LONGEST_MESSAGE:
        raise InvalidMessage("%s has more than %d bytes" % (type, LONGEST_MESSAGE))
    return text


def _decode(table: "dict[str, Check]", text: "str | bytes") -> "tuple[str, dict[str, Any]]":
    if len(text.encode("utf-8", "replace") if isinstance(text, str) else text) > LONGEST_MESSAGE:
        raise InvalidMessage("a message has more than %d bytes" % LONGEST_MESSAGE)
    try:
        value = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        raise InvalidMessage("a message is not valid JSON") from None
    if not isinstance(value, dict) or not isinstance(value.get("type"), str):
        raise InvalidMessage("a message is not an object with a type")
    type = value.pop("type")
    return type, _checked(table, type, value)


def _checked(table: "dict[str, Check]", type: str, fields: "dict[str, Any]") -> "dict[str, Any]":
    check = table.get(type)
    if check is None:
        raise InvalidMessage("there is no message %.64r here" % type)
    checked: dict[str, Any] = check(fields, type)
    return checked


def _refuse_constant(name: str) -> None:
    raise ValueError(name)


# --- kinds ---


def _text(value: "Any", where: str) -> "Any":
    if not isinstance(value, str):
        raise InvalidMessage("%s is not a text" % where)
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InvalidMessage("%s is not valid Unicode" % where) from None
    return value


def _int(value: "Any", where: str) -> "Any":
    if type(value) is not int or abs(value) > _LARGEST_INT:
        raise InvalidMessage("%s is not a whole number" % where)
    return value


def _number(value: "Any", where: str) -> "Any":
    if type(value) is float and value == value and abs(value) != float("inf"):
        return value
    return _int(value, where)


def _bool(value: "Any", where: str) -> "Any":
    if type(value) is not bool:
        raise InvalidMessage("%s is neither true nor false" % where)
    return value


def _any(value: "Any", where: str, depth: int = DEEPEST) -> "Any":
    if value is None or type(value) is bool:
        return value
    if isinstance(value, str):
        return _text(value, where)
    if isinstance(value, (int, float)):
        return _number(value, where)
    if not depth:
        raise InvalidMessage("%s is nested too deeply" % where)
    if isinstance(value, list):
        return [_any(each, where, depth - 1) for each in _bounded(value, where)]
    if isinstance(value, dict):
        return {_text(name, where): _any(each, where, depth - 1) for name, each in _bounded(value, where).items()}
    raise InvalidMessage("%s is not JSON" % where)


def _object(value: "Any", where: str) -> "Any":
    if not isinstance(value, dict):
        raise InvalidMessage("%s is not an object" % where)
    return _any(value, where)


def _bounded(value: "Any", where: str) -> "Any":
    if len(value) > LONGEST_LIST:
        raise InvalidMessage("%s has more than %d items" % (where, LONGEST_LIST))
    return value


def _one_of(words: "frozenset[str]") -> "Check":
    def check(value: "Any", where: str) -> "Any":
        if not isinstance(value, str) or value not in words:
            raise InvalidMessage("%s is not one of %s" % (where, ", ".join(sorted(words))))
        return value

    return check


def _list_of(item: "Check") -> "Check":
    def check(value: "Any", where: str) -> "Any":
        if not isinstance(value, list):
            raise InvalidMessage("%s is not a list" % where)
        return [item(each, where) for each in _bounded(value, where)]

    return check


def _map_of(item: "Check") -> "Check":
    def check(value: "Any", where: str) -> "Any":
        if not isinstance(value, dict):
            raise InvalidMessage("%s is not an object" % where)
        return {_text(name, where): item(each, where) for name, each in _bounded(value, where).items()}

    return check


def _fields(written: str) -> "Check":
    """Returns the check of an object with these fields."""
    known = {}
    for each in written.split():
        name, _, kind = each.partition(":")
        known[name.rstrip("?")] = (_kind(kind or "text"), not name.endswith("?"))

    def check(value: "Any", where: str) -> "Any":
        if not isinstance(value, dict):
            raise InvalidMessage("%s is not an object" % where)
        checked = {}
        for name, (item, required) in known.items():
            given = value.get(name)
            if given is None and (name not in value or not required) and item is not _any:
                if required:
                    raise InvalidMessage("%s lacks %s" % (where, name))
            elif name in value:
                checked[name] = item(given, "%s.%s" % (where, name))
            elif required:
                raise InvalidMessage("%s lacks %s" % (where, name))
        return checked

    return check


def _answer(written: str) -> "Check":
    """Returns the check of an answer: it has its fields, or an error."""
    succeeded, failed = _fields("requestId " + written), _fields("requestId error")

    def check(value: "Any", where: str) -> "Any":
        if isinstance(value, dict) and value.get("error") is not None:
            return failed(value, where)
        return succeeded(value, where)

    return check


def _kind(written: str) -> "Check":
    if written.startswith("["):
        return _list_of(_kind(written[1:-1]))
    if written.startswith("{"):
        return _map_of(_kind(written[1:-1]))
    if written in _SIMPLE:
        return _SIMPLE[written]
    if written in SHAPES:
        return _fields(SHAPES[written])
    return _one_of(frozenset(written.split("|")))


_SIMPLE = {"text": _text, "int": _int, "number": _number, "bool": _bool, "any": _any, "object": _object}
_TO_RUNNER = {
    **{type: _fields(written) for type, written in TO_RUNNER.items()},
    **{type + _RESULT: _answer(answer) for type, (_, answer) in REQUESTS.items()},
}
_TO_HUB = {
    **{type: _fields(written) for type, written in TO_HUB.items()},
    **{type: _fields("requestId " + written) for type, (written, _) in REQUESTS.items()},
}
