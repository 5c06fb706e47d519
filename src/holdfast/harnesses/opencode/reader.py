"""Reads the events of OpenCode's server, as its driver prints them.

A message of the model becomes an entry when its first tool starts, with its text so far, and another when it is
complete. So text stands before the tools that follow it. The records of one message have the ids of its parts, by which
a session can be rebuilt.
"""

from __future__ import annotations

from holdfast.guest import agent_reader
from holdfast.guest.agent_reader import ERROR, INTERRUPTED, MAX_RECORD, OK, usage_of
from holdfast.harnesses.opencode.outcome import Seen, decide_outcome
from holdfast.harnesses.outcomes import status_in

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from holdfast.guest.agent_reader import Payload, Record

_ABORTED = "MessageAbortedError"
_MAX_MESSAGES = 256


class Reader(agent_reader.Reader):
    agent = "opencode"

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._seen = Seen()
        self._users: dict[str, _Message] = {}
        """Messages of the user without an entry yet. Their parts arrive one by one."""
        self._answers: dict[str, _Message] = {}
        """Incomplete messages of the model."""
        self._compacting: dict[str, _Message] = {}
        """Requests for a summary that is not complete yet."""
        self._running: dict[str, Record] = {}
        """Parts of running tools, by call."""

    def take(self, record: Record) -> list[Payload]:
        kind, about = record["type"], record["properties"]
        if kind == "message.part.delta":
            return self._delta(about)
        if kind == "message.part.updated":
            return self._part(about["part"])
        if kind == "message.updated":
            return self._info(about["info"])
        if kind == "session.status":
            return self._status(about["status"])
        if kind == "session.error":
            return self._error(about["error"])
        if kind in ("session.idle", "session.compacted"):
            return []
        if kind.startswith("holdfast."):
            return self._driver(kind[len("holdfast.") :], about)
        return self.event(record)

    def close(self) -> list[Payload]:
        payloads = self._tell_users()
        for answer in list(self._answers.values()):
            # An incomplete summary replaces nothing.
            if not answer.info.get("summary"):
                payloads += self._report_answer(answer, partial=True)
        self._answers.clear()
        return payloads + super().close()

    def outcome(self, exit_code: int | None) -> dict[str, Any]:
        self._seen.usage = self.usage
        return decide_outcome(self._seen, exit_code)

    def interrupted_record(self, call: str) -> Record | None:
        return self._running.get(call)

    # --- the session ---

    def _driver(self, kind: str, about: Record) -> list[Payload]:
        if kind == "session":
            info = about["info"]
            return self.begin_session(str(info["id"]), info, info.get("version"))
        if kind == "ended":
            self._seen.over = self.ended = True
            return []
        if kind == "gave_up":
            self._seen.gave_up = str(about.get("message") or "the model did not answer")
            return self.notice("error", f"gave up after {about.get('attempt')} attempts: {self._seen.gave_up}")
        if kind == "failed":
            self._seen.refused = str(about.get("message"))
            return self.notice("error", self._seen.refused)
        if kind == "exited":
            return self.notice("error", f"opencode serve ended with {about.get('code')}")
        return self.notice("warning", str(about.get("message")))

    def _status(self, status: Record) -> list[Payload]:
        if status["type"] != "retry":
            return []
        payloads = [payload for answer in self._answers.values() for payload in self._drop_text(answer)]
        message = str(status.get("message", ""))
        return payloads + self.retry(int(status.get("attempt", 0)), message, status_in(message))

    def _error(self, error: Record) -> list[Payload]:
        if error.get("name") == _ABORTED:
            self._seen.aborted = True
            return []
        self._seen.error = error
        data = error.get("data")
        message = data.get("message") if isinstance(data, dict) else None
        return self.notice("error", str(message or error.get("name")), error)

    # --- messages ---

    def _info(self, info: Record) -> list[Payload]:
        ident = str(info["id"])
        if info["role"] == "user":
            if len(self._users) < _MAX_MESSAGES:
                self._users.setdefault(ident, _Message(info))
            return []
        payloads = self._tell_users()
        answer = self._answers.get(ident)
        if answer is None:
            if len(self._answers) >= _MAX_MESSAGES:
                del self._answers[next(iter(self._answers))]
            answer = self._answers[ident] = _Message(info)
        answer.info = info
        if "completed" in (info.get("time") or {}):
            payloads += self._end_answer(self._answers.pop(ident))
        return payloads

    def _part(self, part: Record) -> list[Payload]:
        message = str(part["messageID"])
        if message in self._users:
            self._users[message].put(part)
            return []
        answer = self._answers.get(message)
        if answer is None:
            return []
        if part["type"] == "tool":
            return self._tool(answer, part)
        answer.put(part)
        return []

    def _delta(self, about: Record) -> list[Payload]:
        answer = self._answers.get(str(about["messageID"]))
        if answer is None or about.get("field") != "text":
            return []
        words = str(about["delta"])
        kind = answer.add(str(about["partID"]), words)
        if answer.info.get("summary"):
            return []
        if kind == "reasoning":
            return self.stream(answer.name, thinking=words)
        return self.stream(answer.name, text=words) if kind == "text" else []

    def _tool(self, answer: _Message, part: Record) -> list[Payload]:
        call, name, state = str(part["callID"]), str(part["tool"]), part["state"]
        status = state.get("status")
        if status == "pending":
            return []
        payloads: list[Payload] = []
        if call not in self._running:
            if str(part["id"]) in answer.reported:
                return []  # it has ended, and has an entry
            answer.put(part)
            started = {"id": call, "name": name, "arguments": state.get("input")}
            if not answer.segments or answer.has_words():
                payloads += self._report_answer(answer, calls=[started])
            else:
                answer.reported.add(str(part["id"]))
                payloads += self.event({"info": answer.info, "parts": [part]})
            self._running[call] = part
            payloads += self.begin_call(call, name, state.get("input"))
        if status == "running":
            return payloads
        del self._running[call]
        return payloads + self._end_tool(call, state, part)

    def _end_tool(self, call: str, state: Record, part: Record) -> list[Payload]:
        if state.get("status") == "error":
            result = str(state.get("error", ""))
            return self.end_call(call, result, INTERRUPTED if "abort" in result.lower() else ERROR, part)
        result = str(state.get("output", ""))
        notes = state.get("metadata")
        code = notes.get("exit", 0) if isinstance(notes, dict) else 0
        if code is None and "User aborted the command" in result:
            return self.end_call(call, result, INTERRUPTED, part)
        return self.end_call(call, result, OK if code in (0, None) else ERROR, part)

    def _tell_users(self) -> list[Payload]:
        payloads: list[Payload] = []
        for ident, message in list(self._users.items()):
            parts = message.parts()
            if not parts:
                continue
            del self._users[ident]
            words = [
                str(part.get("text", "")) for part in parts if part["type"] == "text" and not part.get("synthetic")
            ]
            if any(part["type"] == "compaction" for part in parts):
                self._compacting[ident] = message
            elif words:
                payloads += self.user("\n".join(words), message.record(parts))
            else:
                payloads += self.event(message.record(parts))
        return payloads

    def _end_answer(self, answer: _Message) -> list[Payload]:
        tokens = answer.info.get("tokens") or {}
        cache = tokens.get("cache") or {}
        usage = usage_of(
            tokens.get("input"),
            (tokens.get("output") or 0) + (tokens.get("reasoning") or 0),
            cache.get("read"),
            cache.get("write"),
            answer.info.get("cost"),
        )
        asked = self._compacting.pop(str(answer.info.get("parentID")), None)
        if answer.info.get("summary"):
            self.usage = agent_reader.add_usage(self.usage, usage)
            if answer.info.get("error") or asked is None:
                return []
            messages = [asked.record(asked.parts()), answer.record(answer.parts())]
            return self.compaction(answer.words("text"), {"messages": messages})
        self._seen.stop = answer.info.get("finish")
        if answer.has_words():
            partial = "error" in answer.info
            return self._report_answer(answer, usage=usage, stop=self._seen.stop, partial=partial)
        self.usage = agent_reader.add_usage(self.usage, usage)
        self.forget_message(answer.name)
        return self.event(answer.record(answer.new_parts()))

    def _report_answer(
        self,
        answer: _Message,
        *,
        calls: list[Record] | None = None,
        usage: dict[str, float] | None = None,
        stop: str | None = None,
        partial: bool = False,
    ) -> list[Payload]:
        """Returns an entry with the new parts of a message of the model."""
        name, text, thinking, parts = answer.name, answer.words("text"), answer.words("reasoning"), answer.new_parts()
        if partial and not (text or thinking):
            self.forget_message(name)
            return self.event(answer.record(parts)) if parts else []
        answer.reported.update(str(part["id"]) for part in parts)
        answer.segments += 1
        return self.end_message(
            name,
            text,
            thinking=thinking,
            calls=calls or (),
            usage=usage,
            model=answer.info.get("modelID"),
            stop=stop,
            record=answer.record(parts),
            partial=partial,
        )

    def _drop_text(self, answer: _Message) -> list[Payload]:
        """Returns the text of an answer that was cut off. OpenCode does not keep it or show it to the model."""
        name, lost = answer.name, answer.drop_unfinished()
        if not lost or answer.info.get("summary"):
            return []
        parts = answer.new_parts()
        answer.reported.update(str(part["id"]) for part in parts)
        answer.segments += 1
        return self.end_message(
            name,
            lost.get("text", ""),
            thinking=lost.get("reasoning", ""),
            calls=(),
            model=answer.info.get("modelID"),
            stop="error",
            record=answer.record(parts),
            partial=True,
        )


class _Message:
    """A message whose parts, and their text, arrive in pieces."""

    __slots__ = ("_parts", "_sizes", "_words", "info", "reported", "segments")

    def __init__(self, info: Record) -> None:
        self.info = info
        self.reported: set[str] = set()
        """The ids of parts that have an entry."""
        self.segments = 0
        """How many entries the message has so far."""
        self._parts: dict[str, Record] = {}
        self._words: dict[str, list[str]] = {}
        self._sizes: dict[str, int] = {}

    @property
    def name(self) -> str:
        """The name of the next entry."""
        return str(self.info["id"]) if not self.segments else f"{self.info['id']}.{self.segments + 1}"

    def put(self, part: Record) -> None:
        ident = str(part["id"])
        self._parts[ident] = part
        if part.get("text"):
            self._words.pop(ident, None)

    def add(self, ident: str, words: str) -> str | None:
        """Add text to a part. Returns its kind."""
        part = self._parts.get(ident)
        if part is None:
            return None
        size = self._sizes.get(ident, 0)
        if size < MAX_RECORD:
            self._words.setdefault(ident, []).append(words)
            self._sizes[ident] = size + len(words)
        return str(part["type"])

    def drop_unfinished(self) -> dict[str, str]:
        """Remove the text of incomplete parts, and return it by kind."""
        lost: dict[str, list[str]] = {}
        for ident, words in self._words.items():
            lost.setdefault(str(self._parts[ident]["type"]), []).append("".join(words))
        self._words.clear()
        self._sizes.clear()
        return {kind: "\n\n".join(texts) for kind, texts in lost.items()}

    def parts(self) -> list[Record]:
        return [self._whole(ident) for ident in self._parts]

    def new_parts(self) -> list[Record]:
        return [self._whole(ident) for ident in self._parts if ident not in self.reported]

    def words(self, kind: str) -> str:
        """Returns all new text of a kind."""
        texts = [str(part.get("text", "")) for part in self.new_parts() if part["type"] == kind]
        return "\n\n".join(text for text in texts if text)

    def has_words(self) -> bool:
        return bool(self.words("text") or self.words("reasoning"))

    def record(self, parts: list[Record]) -> Record:
        return {"info": self.info, "parts": parts}

    def _whole(self, ident: str) -> Record:
        part, words = self._parts[ident], self._words.get(ident)
        return {**part, "text": "".join(words)} if words else part
