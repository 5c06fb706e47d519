"""Turns the output of an agent into entries of a thread. Shared by all readers; the only place for the field names.

Runs inside a box, in the runner, at every start of an agent, so it uses only the standard library and few imports. The
output of an agent is untrusted: a line that cannot be parsed becomes a notice, and no line raises. A reader has no side
effects: time is passed in, and the runner posts what it returns.
"""

from __future__ import annotations

import json
import os
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import Any

    Payload = dict[str, Any]
    Record = dict[str, Any]

MAX_LINE = 64 << 20
"""The longest line in bytes that is parsed."""
MAX_RECORD = 4 << 20
"""The approximate size in bytes up to which an agent's own record is kept complete."""
MAX_RESULT = 64 << 10
"""The longest tool result in bytes that is shown."""
MAX_DEPTH = 200
"""The deepest nesting of lists and objects. Readers of the thread refuse deeper ones."""
MAX_OPEN_CALLS = 1024
MAX_OPEN_MESSAGES = 64
_MAX_NOTICE = 2000
GATEWAY = "Holdfast: "
"""The beginning of the model gateway's own refusals, as opposed to a provider's."""
_ENDS = ('","', '"}', ", url: http", "\n")
"""What agents write after the refusal: the rest of its JSON, or the address that they asked."""
_LEFT_OUT = "\n[… %d bytes left out …]\n"

OK = "ok"
ERROR = "error"
INTERRUPTED = "interrupted"


USAGE_FIELDS = ("input", "output", "cacheRead", "cacheWrite", "cost")


class Reader:
    """Reads one agent's standard output, line by line, for one run.

    A subclass sets `agent`, handles records in `take`, and decides on the result in `outcome`. It reports what it saw
    with the methods below, which return the payloads to post. `close` closes the calls and messages that are still
    open.
    """

    agent = "agent"

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.ended = False
        """The agent reported that it is done."""
        self.session: str | None = None
        """The agent's own session id."""
        self.usage: dict[str, float] = {}
        """Of all messages so far."""
        self._clock = clock
        self._calls: dict[str, tuple[str, Any, float]] = {}
        self._messages: dict[str, _OpenMessage] = {}
        self._tag = os.urandom(4).hex()
        self._count = 0
        self._cut = False

    # --- called by the runner ---

    def read(self, line: bytes) -> list[Payload]:
        """Returns the payloads of one line of output, with or without its line end."""
        line = line.strip()
        if not line:
            return []
        if len(line) > MAX_LINE:
            return self.notice("warning", f"a line of {len(line)} bytes was skipped")
        try:
            quick = self.glance(line)
            if quick is not None:
                return quick
            record = parse(line)
        except (ValueError, RecursionError):
            return self.notice("output", shorten(line.decode("utf-8", "replace"), _MAX_NOTICE))
        self._cut = len(line) > MAX_RECORD
        if self._cut:
            record = cut_record(record)
        try:
            return self.take(record)
        except (AttributeError, ArithmeticError, LookupError, TypeError, ValueError, RecursionError) as error:
            # The agent uses a format that this reader does not know. Keep the record and continue.
            return [
                *self.notice("warning", f"a record could not be read: {type(error).__name__}: {error}"),
                *self.event(record),
            ]
        finally:
            self._cut = False

    def close(self) -> list[Payload]:
        """Returns the payloads for what is open when the output ends: partial messages, then interrupted calls."""
        payloads = []
        for message in list(self._messages):
            open_message = self._messages[message]
            text, thinking = open_message.text(), open_message.thinking()
            if text or thinking:
                record = self.partial_record(message, text, thinking)
                payloads += self.end_message(message, text, thinking=thinking, record=record, partial=True)
        self._messages.clear()
        for call in list(self._calls):
            payloads += self.end_call(call, "", INTERRUPTED, self.interrupted_record(call))
        return payloads

    # --- implemented by the reader of an agent ---

    def take(self, record: Record) -> list[Payload]:
        """Returns the payloads of one record. If it raises for an unexpected record, that is kept as an event."""
        raise NotImplementedError

    def outcome(self, exit_code: int | None) -> dict[str, Any]:
        """Returns how the run ended: `{status, error?, usage?}`. The exit code is negative for a signal, None if
        unknown.
        """
        raise NotImplementedError

    def glance(self, line: bytes) -> list[Payload] | None:
        """Returns the payloads of a line without parsing all of it, or None. For events that come by the thousand."""
        return None

    def partial_record(self, message: str, text: str, thinking: str) -> Record | None:
        """Returns the agent's own record of an unfinished message, if it needs one to resume."""
        return None

    def interrupted_record(self, call: str) -> Record | None:
        """Returns the agent's own record of an unfinished call, if it needs one to resume."""
        return None

    # --- payloads ---

    def begin_session(self, session: str, record: Any = None, version: str | None = None) -> list[Payload]:
        self.session = session
        return [self._payload("session", session=session, version=version, record=record)]

    def begin_call(self, call: str, name: str, arguments: Any) -> list[Payload]:
        """A tool call begins. Repeating this for the same call posts nothing."""
        known = call in self._calls
        if not known and len(self._calls) >= MAX_OPEN_CALLS:
            del self._calls[next(iter(self._calls))]
        self._calls[call] = (name, arguments, self._calls[call][2] if known else self._clock())
        return [] if known else [self._payload("call", call=call, name=name, arguments=arguments)]

    def end_call(
        self, call: str, result: str, status: str, record: Any = None, *, name: str = "", arguments: Any = None
    ) -> list[Payload]:
        """A tool call ended. Its name and arguments default to those of its beginning."""
        began = self._calls.pop(call, None)
        ms = None
        if began is not None:
            name, arguments, start = name or began[0], began[1] if arguments is None else arguments, began[2]
            ms = max(0, round((self._clock() - start) * 1000))
        shown = shorten(result, MAX_RESULT)
        payload = self._payload(
            "tool", call=call, name=name, arguments=arguments, result=shown, status=status, ms=ms, record=record
        )
        if self._cut or shown is not result:
            payload["truncated"] = True
        return [payload]

    def open_calls(self) -> list[str]:
        return list(self._calls)

    def name_of(self, call: str) -> str:
        """Returns the tool of an open call, or an empty string if no such call is open."""
        return self._calls[call][0] if call in self._calls else ""

    def new_message(self) -> str:
        """Returns an id for a message of an agent that has none, unique across runs."""
        self._count += 1
        return f"m-{self._tag}-{self._count}"

    def stream(self, message: str, text: str = "", thinking: str = "") -> list[Payload]:
        """Text of an unfinished message arrived."""
        if not text and not thinking:
            return []
        self._opened(message).add(text, thinking)
        return [self._payload("delta", message=message, text=text or None, thinking=thinking or None)]

    def streamed(self, message: str) -> tuple[str, str]:
        """Returns the text and the thinking streamed so far for an open message."""
        known = self._messages.get(message)
        return ("", "") if known is None else (known.text(), known.thinking())

    def forget_message(self, message: str) -> None:
        """Forget a message that the agent dropped."""
        self._messages.pop(message, None)

    def end_message(
        self,
        message: str,
        text: str,
        *,
        thinking: str = "",
        calls: Iterable[Mapping[str, Any]] = (),
        usage: Mapping[str, float] | None = None,
        model: str | None = None,
        stop: str | None = None,
        record: Any = None,
        partial: bool = False,
    ) -> list[Payload]:
        """A message is complete, or will not be continued (`partial`). Its usage is added to the run's."""
        self._messages.pop(message, None)
        if usage:
            self.usage = add_usage(self.usage, usage)
        payload = self._payload(
            "assistant",
            message=message,
            text=text,
            thinking=thinking or None,
            calls=list(calls),
            usage=dict(usage) if usage else None,
            model=model,
            stop=stop,
            partial=partial or None,
            record=record,
        )
        if self._cut:
            payload["truncated"] = True
        return [payload]

    def user(self, text: str, record: Any = None) -> list[Payload]:
        return [self._payload("user", text=text, record=record)]

    def compaction(self, summary: str, record: Any = None) -> list[Payload]:
        return [self._payload("compaction", summary=summary, record=record)]

    def retry(self, attempt: int, message: str, status: int | None = None) -> list[Payload]:
        return [
            self._payload("retry", attempt=attempt, message=shorten(gateway_words(message), _MAX_NOTICE), status=status)
        ]

    def notice(self, level: str, text: str, record: Any = None) -> list[Payload]:
        """A message for people. `level` is info, warning, error, or output (a line that is not an event)."""
        words = text if level == "output" else gateway_words(text)
        return [self._payload("notice", level=level, text=words, record=record)]

    def event(self, record: Any) -> list[Payload]:
        """Any other record worth keeping."""
        return [self._payload("event", record=record)]

    def _payload(self, kind: str, **fields: Any) -> Payload:
        payload: Payload = {"type": f"{self.agent}.{kind}"}
        for name, value in fields.items():
            if value is not None:
                payload[name] = value
        return payload

    def _opened(self, message: str) -> _OpenMessage:
        known = self._messages.get(message)
        if known is None:
            if len(self._messages) >= MAX_OPEN_MESSAGES:
                del self._messages[next(iter(self._messages))]
            known = self._messages[message] = _OpenMessage()
        return known


class _OpenMessage:
    """The streamed part of a message, kept in pieces, because joining each time would be quadratic."""

    __slots__ = ("_text", "_thinking", "text_length", "thinking_length")

    def __init__(self) -> None:
        self._text: list[str] = []
        self._thinking: list[str] = []
        self.text_length = 0
        self.thinking_length = 0

    def add(self, text: str, thinking: str) -> None:
        # The lengths count everything, but what is kept is limited.
        if text:
            if self.text_length < MAX_RECORD:
                self._text.append(text)
            self.text_length += len(text)
        if thinking:
            if self.thinking_length < MAX_RECORD:
                self._thinking.append(thinking)
            self.thinking_length += len(thinking)

    def text(self) -> str:
        return "".join(self._text)

    def thinking(self) -> str:
        return "".join(self._thinking)


# --- lines and records ---


def parse(line: bytes) -> Record:
    """Returns the JSON object of a line, in a form that can be encoded as UTF-8 JSON. Raises `ValueError` or
    `RecursionError`.
    """
    record = json.loads(line.decode("utf-8", "replace"), parse_constant=_no_number)
    if not isinstance(record, dict):
        raise ValueError("not an object")
    if line.count(b"[") + line.count(b"{") > MAX_DEPTH and _depth(record) > MAX_DEPTH:
        raise ValueError("too deep")
    if b"\\ud" in line or b"\\uD" in line:  # a lone surrogate cannot be encoded as UTF-8
        try:
            json.dumps(record, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            return dict(_without_surrogates(record))
    return record


def indented(text: str) -> str:
    """Indent all lines of a transcript entry but the first. Otherwise an agent, or something that a tool read, could
    write a line that looks like one from the user.
    """
    return "\n  ".join(text.splitlines())


def gateway_words(message: str) -> str:
    """Returns the refusal of the model gateway that a message of an agent repeats, otherwise the message itself."""
    _, ours, words = message.partition(GATEWAY)
    if not ours:
        return message
    for end in _ENDS:
        words = words.partition(end)[0]
    return ours + words.replace('\\"', '"')


def shorten(text: str, limit: int) -> str:
    """Returns the text if it has at most `limit` bytes, otherwise its beginning and its end."""
    if len(text) * 4 <= limit:
        return text
    data = text.encode("utf-8", "replace")
    if len(data) <= limit:
        return text
    head = limit * 3 // 4
    tail = limit - head
    return "".join(
        (
            data[:head].decode("utf-8", "ignore"),
            _LEFT_OUT % (len(data) - limit),
            data[len(data) - tail :].decode("utf-8", "ignore"),
        )
    )


def cut_record(record: Record) -> Record:
    """Shorten the long texts of an oversized record, keeping its structure."""
    for limit in (256 << 10, 16 << 10, 1 << 10):
        record = _shortened(record, limit)
        if len(json.dumps(record, ensure_ascii=False)) <= MAX_RECORD:
            return record
    return {key: value for key, value in record.items() if isinstance(value, (str, int, float, bool))}


def text_of(content: Any) -> str:
    """Returns the text of a message's content in the usual formats: a string, or a list of blocks."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return ""
    texts = []
    for block in content:
        if isinstance(block, str):
            texts.append(block)
        elif isinstance(block, dict):
            if isinstance(block.get("text"), str):
                texts.append(block["text"])
            elif block.get("type") == "image":
                texts.append("[image]")
    return "\n".join(texts)


# --- usage ---


def usage_of(
    tokens_in: Any = 0, tokens_out: Any = 0, cache_read: Any = 0, cache_write: Any = 0, cost: Any = 0
) -> dict[str, float]:
    """Returns usage counts. Values that are not numbers count as 0."""
    values = (tokens_in, tokens_out, cache_read, cache_write, cost)
    return {field: _number(value) for field, value in zip(USAGE_FIELDS, values)}


def add_usage(one: Mapping[str, float], other: Mapping[str, float]) -> dict[str, float]:
    return {field: round(_number(one.get(field, 0)) + _number(other.get(field, 0)), 9) for field in USAGE_FIELDS}


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return 0
    return value if 0 <= value < 1e15 else 0


def _no_number(name: str) -> None:
    """Replaces NaN and the infinities, which are not JSON."""
    return


def _depth(value: Any) -> int:
    deepest = 0
    todo = [(value, 1)]
    while todo:
        item, depth = todo.pop()
        if isinstance(item, dict):
            todo += [(inner, depth + 1) for inner in item.values() if isinstance(inner, (dict, list))]
        elif isinstance(item, list):
            todo += [(inner, depth + 1) for inner in item if isinstance(inner, (dict, list))]
        deepest = max(deepest, depth)
    return deepest


def _without_surrogates(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, list):
        return [_without_surrogates(item) for item in value]
    if isinstance(value, dict):
        return {_without_surrogates(key): _without_surrogates(item) for key, item in value.items()}
    return value


def _shortened(value: Any, limit: int) -> Any:
    if isinstance(value, str):
        return shorten(value, limit)
    if isinstance(value, list):
        return [_shortened(item, limit) for item in value]
    if isinstance(value, dict):
        return {key: _shortened(item, limit) for key, item in value.items()}
    return value
