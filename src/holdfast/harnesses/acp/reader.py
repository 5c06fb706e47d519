"""Reads the output of the driver of ACP agents."""

from __future__ import annotations

from holdfast.guest import agent_reader
from holdfast.guest.agent_reader import ERROR, MAX_OPEN_CALLS, OK, usage_of
from holdfast.harnesses.acp.outcome import Seen, decide_outcome
from holdfast.harnesses.acp.transcript import result_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from holdfast.guest.agent_reader import Payload, Record

_UNTOLD = frozenset(("available_commands_update", "config_option_update", "current_mode_update", "user_message_chunk"))


class Reader(agent_reader.Reader):
    agent = "acp"

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._seen = Seen(silent=True)
        self._message: str | None = None
        self._told: dict[str, Record] = {}
        """The merged updates of each open call."""
        self._cost: Any = 0

    def take(self, record: Record) -> list[Payload]:
        kind = record.get("type")
        if kind == "update":
            return self._update(record["update"])
        if kind == "session":
            return self._session(record)
        if kind == "prompt":
            return self.user(record["text"], record)
        if kind == "notice":
            return self.notice("warning", str(record["text"]), record)
        if kind == "stop":
            return self._stop(record)
        if kind == "failed":
            self._seen.stage, self._seen.error = str(record["stage"]), record["error"]
            self.ended = True
            return [*self._end_message(), *self.notice("error", str(record["error"].get("message")), record)]
        return self.event(record)

    def outcome(self, exit_code: int | None) -> dict[str, Any]:
        self._seen.usage = self.usage
        return decide_outcome(self._seen, exit_code)

    def _session(self, record: Record) -> list[Payload]:
        agent = record.get("agent")
        version = agent.get("version") if isinstance(agent, dict) else None
        payloads = self.begin_session(record["session"], record, version if isinstance(version, str) else None)
        if record.get("how") == "handed-over":
            payloads += self.notice(
                "info", "the agent could not continue its session, and was told what happened before"
            )
        return payloads

    def _stop(self, record: Record) -> list[Payload]:
        result = record["result"]
        self._seen.stop = str(result.get("stopReason"))
        tokens = result.get("usage")
        usage = None
        if isinstance(tokens, dict):
            usage = usage_of(
                tokens.get("inputTokens"),
                tokens.get("outputTokens"),
                tokens.get("cachedReadTokens"),
                tokens.get("cachedWriteTokens"),
                self._cost,
            )
            self.usage = usage
        self.ended = True
        return [*self._end_message(self._seen.stop), *self.event(record)]

    # --- updates ---

    def _update(self, update: Record) -> list[Payload]:
        kind = update.get("sessionUpdate")
        if kind in ("agent_message_chunk", "agent_thought_chunk"):
            return self._words(kind, update)
        if kind in ("tool_call", "tool_call_update"):
            return [*self._end_message(), *self._call(update)]
        if kind == "usage_update":
            cost = update.get("cost")
            self._cost = cost.get("amount") if isinstance(cost, dict) and cost.get("currency") == "USD" else 0
            return []
        return [] if kind in _UNTOLD else self.event(update)

    def _words(self, kind: str, update: Record) -> list[Payload]:
        content = update["content"]
        if content.get("type") != "text":
            return self.event(update)
        self._seen.silent = False
        ended: list[Payload] = []
        if kind == "agent_thought_chunk" and self._message is not None and self.streamed(self._message)[0]:
            ended = self._end_message()  # it starts to think again
        if self._message is None:
            self._message = self.new_message()
        if kind == "agent_message_chunk":
            return [*ended, *self.stream(self._message, text=content["text"])]
        return [*ended, *self.stream(self._message, thinking=content["text"])]

    def _end_message(self, stop: str | None = None) -> list[Payload]:
        if self._message is None:
            return []
        message, self._message = self._message, None
        text, thinking = self.streamed(message)
        record = {"sessionUpdate": "agent_message", "text": text, "thinking": thinking}
        return self.end_message(message, text, thinking=thinking, stop=stop, record=record)

    def _call(self, update: Record) -> list[Payload]:
        self._seen.silent = False
        call = str(update["toolCallId"])
        if call not in self._told and len(self._told) >= MAX_OPEN_CALLS:
            del self._told[next(iter(self._told))]
        known = self._told.setdefault(call, {"name": _name(update)})
        known.update((field, value) for field, value in update.items() if value is not None)
        known["sessionUpdate"] = "tool_call"
        name, arguments, status = known["name"], known.get("rawInput") or {}, known.get("status")
        if status == "pending":  # many agents announce a call before they know its arguments
            return []
        payloads = self.begin_call(call, name, arguments)
        if status in ("completed", "failed"):
            del self._told[call]
            ended = OK if status == "completed" else ERROR
            payloads += self.end_call(call, result_of(known), ended, known, name=name, arguments=arguments)
        return payloads


def _name(call: Record) -> str:
    """Returns the name of the tool if the title is one, else the kind of tool. Other titles are for people."""
    title, kind = str(call.get("title") or ""), call.get("kind")
    if title and len(title) <= 64 and title.replace("-", "_").replace(".", "_").isidentifier():
        return title
    return kind if isinstance(kind, str) and kind != "other" else title or "tool"
