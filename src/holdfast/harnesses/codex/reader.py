"""Reads the output of Codex, and the records of its session file that the driver adds.

Messages and calls come from the session file, which has them as the model saw them. The output has the session, the
retries and the end. Its items are used only if they are missing in the session file at the end: a full disk stops the
file, but not the turn.
"""

from __future__ import annotations

import json
import re

from holdfast.guest import agent_reader
from holdfast.guest.agent_reader import ERROR, INTERRUPTED, OK, text_of, usage_of
from holdfast.harnesses.codex.outcome import Seen, decide_outcome, status_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from holdfast.guest.agent_reader import Payload, Record

_UNTOLD = (b'"type":"world_state"', b'"type":"turn_context"', b'"type":"session_meta"')
_ANSWERS = frozenset(("function_call_output", "custom_tool_call_output", "tool_search_output", "mcp_tool_call_output"))
_MET_BY = {"agent_message": "text", "command_execution": "type"}
"""Printed items that are compared with the session file, and the field that identifies them. Commands are only counted,
because the file has them shortened."""
_COMMANDS = frozenset(("exec_command", "shell", "shell_command", "local_shell_call", "container.exec"))
"""Tools whose calls are printed as a `command_execution`."""
_EXITED = re.compile(r"^(?:Process exited with code|Exit code:) (-?\d+)$", re.MULTILINE)
_MAX_WAITING = 1024
_OF_THE_CONVERSATION = ("user.", "generic.", "compaction.")
_RECONNECTING = "Reconnecting... "


class Reader(agent_reader.Reader):
    agent = "codex"

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._seen = Seen()
        self._answer = _Answer()
        self._exits: dict[str, bool] = {}
        """Whether commands succeeded, by call."""
        self._commands: dict[str, None] = {}
        """Calls of commands in the session file, oldest first."""
        self._printed: dict[str, Record] = {}
        """Printed items that are not in the session file yet."""
        self._filed: dict[tuple[str, str], int] = {}
        """How often an item is in the session file but not printed yet."""

    def glance(self, line: bytes) -> list[Payload] | None:
        head = line[:160]
        return [] if any(mark in head for mark in _UNTOLD) else None

    def take(self, record: Record) -> list[Payload]:
        if "payload" in record:
            return self._take_filed(record)
        kind = record.get("type")
        if kind == "thread.started":
            return self.begin_session(str(record["thread_id"]), record)
        if kind == "turn.started":
            return []
        if kind == "turn.completed":
            self._seen.completed = self.ended = True
            return self._flush()
        if kind == "turn.failed":
            self._seen.failed = str(record["error"]["message"])
            self.ended = True
            return [*self._flush(), *self.notice("error", self._seen.failed, record)]
        if kind == "error":
            return self._trouble(str(record.get("message", "")))
        if kind in ("item.started", "item.updated", "item.completed"):
            return self._take_item(str(kind), record["item"])
        return self.event(record)

    def close(self) -> list[Payload]:
        payloads = self._flush()
        for item in self._printed.values():
            if item.get("type") == "agent_message":
                payloads += self.end_message(self.new_message(), str(item.get("text", "")), record={"item": item})
            else:
                status = OK if item.get("status") == "completed" else ERROR
                output = str(item.get("aggregated_output", ""))
                arguments = {"cmd": item.get("command")}
                payloads += self.end_call(
                    str(item["id"]), output, status, {"item": item}, name="exec_command", arguments=arguments
                )
        self._printed.clear()
        return payloads + super().close()

    def outcome(self, exit_code: int | None) -> dict[str, Any]:
        self._seen.usage = self.usage
        return decide_outcome(self._seen, exit_code)

    # --- the output ---

    def _trouble(self, message: str) -> list[Payload]:
        if not message.startswith(_RECONNECTING):
            if not self.session:
                self._seen.refused = message
            return []  # `turn.failed` has the same message
        count, _, cause = message[len(_RECONNECTING) :].partition(" ")
        attempt = count.partition("/")[0]
        cause = cause.strip("()")
        return self.retry(int(attempt) if attempt.isdigit() else 0, cause, status_of(None, cause))

    def _take_item(self, event: str, item: Record) -> list[Payload]:
        kind = item.get("type")
        if event != "item.completed":
            return []
        if kind == "error":
            message = str(item.get("message", ""))
            # Codex prints this for every model that is not OpenAI's.
            is_usual = message.startswith("Model metadata for ")
            return [] if is_usual else self.notice("warning", message, item)
        if kind in _MET_BY:
            known = (str(kind), str(item.get(_MET_BY[str(kind)])))
            if self._filed.get(known):
                self._filed[known] -= 1
            elif len(self._printed) < _MAX_WAITING:
                self._printed[str(item["id"])] = item
        return []

    def _met(self, kind: str, value: str) -> None:
        """Called for an item of the session file that is also printed."""
        field = _MET_BY[kind]
        for ident, item in self._printed.items():
            if item.get("type") == kind and item.get(field) == value:
                del self._printed[ident]
                return
        if len(self._filed) >= _MAX_WAITING:
            self._filed.clear()
        self._filed[kind, value] = self._filed.get((kind, value), 0) + 1

    def _met_command(self, call: str) -> None:
        """The session file has a command as an item, as an output, or as both."""
        if call not in self._commands:
            if len(self._commands) >= _MAX_WAITING:
                del self._commands[next(iter(self._commands))]
            self._commands[call] = None
            self._met("command_execution", "command_execution")

    # --- the session file ---

    def _take_filed(self, record: Record) -> list[Payload]:
        kind, filed = record.get("type"), record["payload"]
        if kind == "response_item":
            return self._take_response(filed)
        if kind == "token_usage_record":
            return self._take_usage(filed)
        if kind == "event_msg":
            return self._take_event(filed)
        if kind == "compacted":
            # The message before it is the summary, which the model wrote in a separate turn.
            if self._answer.items and not self._answer.calls:
                self._drop_answer()
            return [*self._flush(), *self.compaction(str(filed.get("message", "")), filed)]
        return []

    def _take_response(self, item: Record) -> list[Payload]:
        kind = item.get("type")
        if kind in _ANSWERS:
            return [*self._flush(), *self._end_tool(item)]
        if kind == "message" and item.get("role") != "assistant":
            return [*self._flush(), *self._told(item)]
        payloads = self._flush() if self._answer.complete else []
        if kind == "message":
            self._met("agent_message", text_of(item.get("content")))
        self._answer.items.append(item)
        call = item.get("call_id")
        if isinstance(call, str) and kind != "message":
            name, arguments = _call_of(item)
            self._answer.calls.append({"id": call, "name": name, "arguments": arguments})
            payloads += self.begin_call(call, name, arguments)
        return payloads

    def _told(self, item: Record) -> list[Payload]:
        """A message of the user, or of Codex about the box, which it repeats."""
        text = text_of(item.get("content"))
        if item.get("role") != "user" or is_context(item):
            return []
        return self.event(item) if _is_codex_own(item) else self.user(text, item)

    def _take_usage(self, filed: Record) -> list[Payload]:
        counted = filed.get("usage") or {}
        cached = counted.get("cached_input_tokens") or 0
        self._answer.usage = usage_of(
            (counted.get("input_tokens") or 0) - cached,
            counted.get("output_tokens"),
            cached,
            counted.get("cache_write_input_tokens"),
        )
        self._answer.ident = str(filed.get("response_id") or "")
        self._answer.complete = True
        # A message without a call may be the summary of a compaction; the next record says so.
        return self._flush() if self._answer.calls else []

    def _take_event(self, event: Record) -> list[Payload]:
        kind = event.get("type")
        if kind == "item_completed":
            item = event.get("item") or {}
            status = item.get("status")
            if isinstance(item.get("id"), str) and isinstance(status, str):
                if len(self._exits) >= _MAX_WAITING:
                    del self._exits[next(iter(self._exits))]
                self._exits[item["id"]] = status == "completed"
                if item.get("type") == "CommandExecution":
                    self._met_command(item["id"])
            return []
        if kind == "token_count":
            return []
        if kind == "task_complete":
            error = event.get("error")
            if isinstance(error, dict):
                self._seen.cause = error.get("codex_error_info")
        elif kind == "turn_aborted":
            self._seen.aborted = self.ended = True
        return self._flush()

    def _end_tool(self, item: Record) -> list[Payload]:
        call = str(item["call_id"])
        output = item.get("output")
        result = output if isinstance(output, str) else text_of(output)
        if self.name_of(call) in _COMMANDS:
            # Session files of older versions of Holdfast or Codex have no item for it.
            self._met_command(call)
        status = OK if self._exits.pop(call, _exited_well(result)) else ERROR
        if result == "aborted" or result.endswith("aborted by user"):
            status = INTERRUPTED
        return self.end_call(call, result, status, item)

    def _flush(self) -> list[Payload]:
        """Returns the model's answer so far as one message."""
        answer = self._answer
        if not answer.items:
            self._drop_answer()
            return []
        self._answer = _Answer()
        texts = [text_of(item.get("content")) for item in answer.items if item.get("type") == "message"]
        thinking = [
            text_of(item.get(field))
            for item in answer.items
            if item.get("type") == "reasoning"
            for field in ("summary", "content")
        ]
        return self.end_message(
            answer.ident or self.new_message(),
            "\n\n".join(text for text in texts if text),
            thinking="\n\n".join(text for text in thinking if text),
            calls=answer.calls,
            usage=answer.usage,
            record={"items": answer.items},
        )

    def _drop_answer(self) -> None:
        if self._answer.usage:
            self.usage = agent_reader.add_usage(self.usage, self._answer.usage)
        self._answer = _Answer()


class _Answer:
    """The items of one answer of the model. Codex writes each separately, and the token count after the last."""

    __slots__ = ("calls", "complete", "ident", "items", "usage")

    def __init__(self) -> None:
        self.items: list[Record] = []
        self.calls: list[Record] = []
        self.usage: dict[str, float] | None = None
        self.ident = ""
        self.complete = False


def _call_of(item: Record) -> tuple[str, Any]:
    """Returns the name and the arguments of a call, which are JSON text, free text or an object."""
    name = str(item.get("name") or item.get("type"))
    for field in ("arguments", "input", "action"):
        if field in item:
            value = item[field]
            if field != "arguments" or not isinstance(value, str):
                return name, value
            try:
                return name, json.loads(value)
            except (ValueError, RecursionError):
                return name, value
    return name, None


def _exited_well(result: str) -> bool:
    """Reads the lines that Codex puts before a command's output. Other tools have none, and count as successful."""
    code = _EXITED.search(result.partition("\nOutput:\n")[0])
    return code is None or int(code[1]) == 0


def is_context(item: Record) -> bool:
    """Returns whether Codex wrote this as the user about the box: the folder, the date, the repository's instructions.

    Notes about the conversation, such as an aborted turn or the summary of a compaction, are not context.
    """
    kinds = _notes(item, "content_item_kinds")
    return bool(kinds) and _is_codex_own(item) and not any(str(kind).startswith(_OF_THE_CONVERSATION) for kind in kinds)


def _is_codex_own(item: Record) -> bool:
    pieces = _notes(item, "content_item_metadata")
    sources = [(piece.get("provenance") or {}).get("type") for piece in pieces if isinstance(piece, dict)]
    return bool(sources) and "user" not in sources


def _notes(item: Record, name: str) -> list[Any]:
    notes = item.get("internal_chat_message_metadata_passthrough")
    found = notes.get(name) if isinstance(notes, dict) else None
    return found if isinstance(found, list) else []
