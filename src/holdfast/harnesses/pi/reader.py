"""Reads the output of pi in its RPC mode, and in its JSON mode, which adds a header."""

from __future__ import annotations

from holdfast.guest import agent_reader
from holdfast.guest.agent_reader import ERROR, OK, add_usage, text_of, usage_of
from holdfast.harnesses.outcomes import status_in
from holdfast.harnesses.pi.outcome import Seen, decide_outcome

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from holdfast.guest.agent_reader import Payload, Record

# Other events have the same content. Some of these are large, because they repeat whole messages.
_REPEATED = (b'{"type":"turn_', b'{"type":"tool_execution_update"')
_IGNORED = frozenset(
    (
        "turn_start",
        "turn_end",
        "tool_execution_update",
        "queue_update",
        "compaction_start",
        "summarization_retry_finished",
    )
)
_DIALOGS = frozenset(("select", "confirm", "input", "editor"))


class Reader(agent_reader.Reader):
    agent = "pi"

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._seen = Seen()
        self._message: str | None = None
        self._reported: dict[str, Any] = {}
        """The content of tool results that arrived before their messages."""

    def glance(self, line: bytes) -> list[Payload] | None:
        if line.startswith(_REPEATED):
            return []
        if line.startswith(b'{"type":"agent_end"'):
            self._seen.settled = not line.endswith(b'"willRetry":true}')
            return []
        if line.startswith(b'{"type":"message_start"') and b'"role":"assistant"' not in line[:80]:
            return []
        return None

    def take(self, record: Record) -> list[Payload]:
        kind = record.get("type")
        if kind == "message_update":
            return self._update(record["assistantMessageEvent"])
        if kind == "message_start":
            if record["message"]["role"] == "assistant":
                self._message = self.new_message()
            return []
        if kind == "message_end":
            return self._message_end(record["message"])
        if kind == "tool_execution_start":
            return self.begin_call(record["toolCallId"], record["toolName"], record.get("args"))
        if kind == "tool_execution_end":
            return self._tool_end(record)
        if kind == "agent_start":
            self._seen.settled = False
            return []
        if kind == "agent_end":
            self._seen.settled = not record.get("willRetry")
            return []
        if kind == "agent_settled":
            self._seen.settled = self.ended = True
            return []
        if kind == "response":
            return self._response(record)
        if kind == "session":
            return self.begin_session(record["id"], record)
        if kind in _IGNORED:
            return []
        return self._happened(str(kind), record)

    def outcome(self, exit_code: int | None) -> dict[str, Any]:
        self._seen.usage = self.usage
        return decide_outcome(self._seen, exit_code)

    def _update(self, event: Record) -> list[Payload]:
        kind = event["type"]
        if kind == "text_delta":
            return self.stream(self._current(), text=event["delta"])
        if kind == "thinking_delta":
            return self.stream(self._current(), thinking=event["delta"])
        return []

    def _message_end(self, message: Record) -> list[Payload]:
        role = message["role"]
        if role == "assistant":
            return self._assistant_end(message)
        if role == "toolResult":
            call = message["toolCallId"]
            reported = self._reported.pop(call, None)
            if reported == message.get("content"):
                return []
            if reported is not None:  # changed on its way to the model: this is what counts when the session is rebuilt
                return self.event(message)
            return self._tool(call, message, message)
        if role == "user":
            return self.user(text_of(message.get("content")), message)
        return self.event(message)

    def _assistant_end(self, message: Record) -> list[Payload]:
        ident, self._message = self._current(), None
        blocks = [block for block in message.get("content") or () if isinstance(block, dict)]
        text = "".join(block["text"] for block in blocks if block.get("type") == "text")
        thinking = "\n".join(block["thinking"] for block in blocks if block.get("type") == "thinking")
        calls = [
            {"id": block["id"], "name": block["name"], "arguments": block.get("arguments")}
            for block in blocks
            if block.get("type") == "toolCall"
        ]
        self._seen.stop = message.get("stopReason")
        self._seen.error = str(message.get("errorMessage") or "")
        failed = self._seen.stop in ("error", "aborted")
        if failed and not (text or thinking or calls):
            self.forget_message(ident)
            return self.notice("error", self._seen.error or f"the answer ended with {self._seen.stop}", message)
        return self.end_message(
            ident,
            text,
            thinking=thinking,
            calls=calls,
            usage=_usage(message.get("usage")),
            model=message.get("model"),
            stop=self._seen.stop,
            record=message,
            partial=failed,
        )

    def _tool_end(self, record: Record) -> list[Payload]:
        # Its message comes when all the calls of a turn have ended, which may be long after.
        call = record["toolCallId"]
        result = record["result"]
        message = {
            "role": "toolResult",
            "toolCallId": call,
            "toolName": record["toolName"],
            "content": result.get("content") or [],
            "isError": bool(record.get("isError")),
        }
        if result.get("details") is not None:
            message["details"] = result["details"]
        if len(self._reported) < agent_reader.MAX_OPEN_CALLS:
            self._reported[call] = message["content"]
        return self._tool(call, message, message)

    def _tool(self, call: str, message: Record, record: Record) -> list[Payload]:
        status = ERROR if message.get("isError") else OK
        return self.end_call(call, text_of(message.get("content")), status, record, name=str(message.get("toolName")))

    def _response(self, record: Record) -> list[Payload]:
        command = record.get("command")
        if not record.get("success"):
            error = str(record.get("error") or "no reason given")
            if command == "prompt":
                self._seen.refused = error
                self.ended = True
            return self.notice("error", f"{command}: {error}", record)
        if command == "get_state":
            state = record["data"]
            return self.begin_session(state["sessionId"], state)
        if command == "abort":
            self.ended = True
        return []

    def _happened(self, kind: str, record: Record) -> list[Payload]:
        if kind in ("auto_retry_start", "summarization_retry_scheduled"):
            message = str(record.get("errorMessage") or "")
            return self.retry(record["attempt"], message, status_in(message))
        if kind == "auto_retry_end":
            return [] if record.get("success") else self.notice("error", str(record.get("finalError") or ""), record)
        if kind == "compaction_end":
            return self._compacted(record)
        if kind == "extension_error":
            return self.notice("warning", f"{record.get('extensionPath')}: {record.get('error')}", record)
        if kind == "extension_ui_request":
            method = record.get("method")
            if method == "notify":
                return self.notice("info", str(record.get("message")), record)
            return self.event(record) if method in _DIALOGS else []
        return self.event(record)

    def _compacted(self, record: Record) -> list[Payload]:
        result = record.get("result")
        if result is None:
            said = "was aborted" if record.get("aborted") else f"failed: {record.get('errorMessage')}"
            return self.notice("warning", f"the compaction {said}", record)
        usage = _usage(result.get("usage"))
        if usage:
            self.usage = add_usage(self.usage, usage)
        return self.compaction(result["summary"], record)

    def _current(self) -> str:
        if self._message is None:
            self._message = self.new_message()
        return self._message


def _usage(usage: Any) -> dict[str, float] | None:
    if not isinstance(usage, dict):
        return None
    cost = usage.get("cost")
    return usage_of(
        usage.get("input"),
        usage.get("output"),
        usage.get("cacheRead"),
        usage.get("cacheWrite"),
        cost.get("total") if isinstance(cost, dict) else cost,
    )
