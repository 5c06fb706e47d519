"""Reads the output of Claude Code: `stream-json` with partial messages.

An answer arrives as one `assistant` event for each block, with stop reason and usage in the stream around them. The
reader emits it as one message when the stream ends, or when the conversation continues without that.
"""

from __future__ import annotations

from holdfast.guest import agent_reader
from holdfast.guest.agent_reader import ERROR, OK, add_usage, text_of, usage_of
from holdfast.harnesses.claude.outcome import Seen, decide_outcome

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from holdfast.guest.agent_reader import Payload, Record

_UNTOLD = frozenset(("keep_alive", "tool_progress", "control_cancel_request"))
_UNTOLD_SYSTEM = frozenset(("status", "thinking_tokens", "post_turn_summary", "task_progress", "task_updated"))
_REFUSALS = (401, 403)
_ENOUGH = 3
"""Attempts after which a refused key counts as wrong."""
_AWAITED = ("agent", "workflow")
"""Kinds of background tasks whose end it waits for. Others, such as a server, may never end."""
_MAX_BLOCKS = 4096
_NEEDED = {"text": ("text",), "thinking": ("thinking",), "tool_use": ("id", "name")}


class Reader(agent_reader.Reader):
    agent = "claude"

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._seen = Seen()
        self._answer: _Answer | None = None
        self._boundary: Record | None = None
        self._awaits = False
        """Background agents are working. After this result, Claude Code will continue and give another."""
        self._whole_usage: dict[str, float] = {}

    def glance(self, line: bytes) -> list[Payload] | None:
        if line.startswith((b'{"type":"system","subtype":"thinking_tokens"', b'{"type":"tool_progress"')):
            return []
        return None

    def take(self, record: Record) -> list[Payload]:
        kind = record.get("type")
        if record.get("parent_tool_use_id") is not None:
            # From a subagent: not part of this conversation.
            return [] if kind in ("stream_event", "tool_progress") else self.event(record)
        if kind == "stream_event":
            return self._stream(record["event"])
        if kind == "assistant":
            return self._assistant(record)
        if kind == "user":
            return [*self._flush(), *self._user(record)]
        if kind == "system":
            return self._system(record)
        if kind == "result":
            return [*self._flush(), *self._result(record)]
        if kind == "control_response":
            # The answer to our only request, the interrupt. Nothing more may follow.
            self.ended = True
            return []
        return [] if kind in _UNTOLD else self.event(record)

    def close(self) -> list[Payload]:
        return [*self._flush(), *super().close()]

    def outcome(self, exit_code: int | None) -> dict[str, Any]:
        self._seen.usage = self._whole_usage or self.usage
        return decide_outcome(self._seen, exit_code)

    # --- an answer ---

    def _stream(self, event: Record) -> list[Payload]:
        kind = event["type"]
        if kind == "content_block_delta":
            delta = event["delta"]
            answer = self._answer
            if answer is None:
                return []
            if delta["type"] == "text_delta":
                return self.stream(answer.ident, text=delta["text"])
            if delta["type"] == "thinking_delta":
                return self.stream(answer.ident, thinking=delta["thinking"])
            return []
        if kind == "message_start":
            flushed = self._flush()
            self._answer = _Answer(event["message"])
            return flushed
        if kind == "message_delta" and self._answer is not None:
            self._answer.stop = event["delta"].get("stop_reason")
            self._answer.count(event.get("usage"))
            return []
        if kind == "message_stop":
            return self._flush()
        return []

    def _assistant(self, record: Record) -> list[Payload]:
        message = record["message"]
        if record.get("error"):
            # Not an answer of the model, but an error of Claude Code in its place.
            return [*self._flush(), *self.notice("error", text_of(message.get("content")), record)]
        flushed = []
        if self._answer is None or self._answer.ident != str(message["id"]):
            flushed = self._flush()
            self._answer = _Answer(message)
        answer = self._answer
        answer.add(record)
        if message.get("stop_reason") and not answer.stop:
            answer.stop = message["stop_reason"]
            answer.count(message.get("usage"))
        return flushed

    def _flush(self) -> list[Payload]:
        """Emits the current answer as far as it has arrived."""
        answer, self._answer = self._answer, None
        if answer is None:
            return []
        text, thinking = self.streamed(answer.ident)
        partial = answer.stop is None
        if answer.blocks:
            whole_text = "".join(block["text"] for block in answer.blocks if block.get("type") == "text")
            whole_thinking = "\n".join(block["thinking"] for block in answer.blocks if block.get("type") == "thinking")
            # For an interrupted answer, more was streamed than is in complete blocks.
            if not partial or len(whole_text) >= len(text):
                text = whole_text
            if not partial or len(whole_thinking) >= len(thinking):
                thinking = whole_thinking
        elif not text and not thinking:
            return []
        calls = [
            {"id": block["id"], "name": block["name"], "arguments": block.get("input")}
            for block in answer.blocks
            if block.get("type") == "tool_use"
        ]
        payloads = self.end_message(
            answer.ident,
            text,
            thinking=thinking,
            calls=calls,
            usage=answer.usage,
            model=answer.model,
            stop=answer.stop,
            record=answer.record(),
            partial=partial,
        )
        for call in calls:
            payloads += self.begin_call(call["id"], call["name"], call["arguments"])
        return payloads

    # --- all else ---

    def _user(self, record: Record) -> list[Payload]:
        content = record["message"]["content"]
        if record.get("isSynthetic") and self._boundary is not None:
            boundary, self._boundary = self._boundary, None
            return self.compaction(text_of(content), {"boundary": boundary, "summary": record})
        results = []
        if isinstance(content, list):
            results = [block for block in content if isinstance(block, dict) and block.get("type") == "tool_result"]
        if not results:
            return self.user(text_of(content), record)
        payloads = []
        for block in results:
            own = record
            if len(results) > 1:
                own = {**record, "message": {**record["message"], "content": [block]}}
            status = ERROR if block.get("is_error") else OK
            payloads += self.end_call(block["tool_use_id"], text_of(block.get("content")), status, own)
        return payloads

    def _system(self, record: Record) -> list[Payload]:
        kind = record.get("subtype")
        if kind == "init":
            if record["session_id"] == self.session:  # repeated at each turn
                return []
            return self.begin_session(record["session_id"], record, record.get("claude_code_version"))
        if kind == "api_retry":
            # The partial answer is lost: it starts again from the beginning.
            flushed = self._flush()
            status = record.get("error_status")
            reason = str(record.get("error") or "no reason given")
            if status in _REFUSALS and record["attempt"] >= _ENOUGH:
                self._seen.refused = status
                self.ended = True  # it would retry for minutes with the same key
            return [*flushed, *self.retry(record["attempt"], reason, status if isinstance(status, int) else None)]
        if kind == "compact_boundary":
            self._boundary = record
            return []
        if kind == "background_tasks_changed":
            kinds = [str(task.get("task_type")) for task in record["tasks"]]
            self._awaits = any(awaited in kind for kind in kinds for awaited in _AWAITED)
            return []
        return [] if kind in _UNTOLD_SYSTEM else self.event(record)

    def _result(self, record: Record) -> list[Payload]:
        self._seen.result = record
        self.ended = self.ended or not self._awaits
        usages = record.get("model_usage_since_last_result")
        for usage in usages.values() if isinstance(usages, dict) else ():
            # The cost of an unknown model is a guess.
            cost = 0 if usage.get("costBasis") == "unknown" else usage.get("costUSD")
            counts = usage_of(
                usage.get("inputTokens"),
                usage.get("outputTokens"),
                usage.get("cacheReadInputTokens"),
                usage.get("cacheCreationInputTokens"),
                cost,
            )
            self._whole_usage = add_usage(self._whole_usage, counts)
        return self.event(record)


class _Answer:
    """The answer of the model that is being read."""

    __slots__ = ("_last", "_uuids", "blocks", "ident", "model", "stop", "usage")

    def __init__(self, message: Record) -> None:
        self.ident = str(message["id"])
        self.model = message.get("model")
        self.stop: str | None = None
        self.usage: dict[str, float] | None = None
        self.blocks: list[Record] = []
        self._uuids: list[Any] = []
        self._last: Record | None = None
        self.count(message.get("usage"))

    def add(self, record: Record) -> None:
        blocks = [block for block in record["message"]["content"] if isinstance(block, dict)]
        for block in blocks:
            if not all(isinstance(block.get(name), str) for name in _NEEDED.get(str(block.get("type")), ())):
                raise ValueError("a block lacks a required field")
        if len(self.blocks) < _MAX_BLOCKS:
            self.blocks += blocks
            self._uuids.append(record.get("uuid"))
        self._last = record

    def count(self, usage: Any) -> None:
        """Later counts cover the whole answer, but may omit unchanged values."""
        if not isinstance(usage, dict):
            return
        before = self.usage or usage_of()
        counts = usage_of(
            usage.get("input_tokens", before["input"]),
            usage.get("output_tokens", before["output"]),
            usage.get("cache_read_input_tokens", before["cacheRead"]),
            usage.get("cache_creation_input_tokens", before["cacheWrite"]),
        )
        self.usage = counts

    def record(self) -> Record | None:
        """Returns the events of all blocks merged into one."""
        if self._last is None:
            return None
        message = {**self._last["message"], "content": self.blocks, "stop_reason": self.stop}
        return {**self._last, "message": message, "uuids": self._uuids}
