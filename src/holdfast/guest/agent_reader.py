"""Turning what an agent prints into a thread's entries: what all readers share, and the one place for the field names.

Runs inside a box, in the runner, at every start of an agent: standard library only, and few imports. What an agent
prints is not trusted: a line that cannot be understood becomes a notice, and no line raises. A reader decides and does
nothing: time is passed in, and what it gives back is posted by the runner.
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
"""Bytes of a line that are looked at."""
MAX_RECORD = 4 << 20
"""Bytes of an agent's own record that are kept whole, about."""
MAX_RESULT = 64 << 10
"""Bytes of a tool's result that people are shown."""
MAX_DEPTH = 200
"""Of lists and objects within each other. Deeper ones are refused by those who read the thread."""
MAX_OPEN_CALLS = 1024
MAX_OPEN_MESSAGES = 64
_MAX_NOTICE = 2000
_LEFT_OUT = "\n[… %d bytes left out …]\n"

OK = "ok"
ERROR = "error"
INTERRUPTED = "interrupted"


USAGE_FIELDS = ("input", "output", "cacheRead", "cacheWrite", "cost")


class Reader:
    """Reads one agent's standard output, a line at a time, for one run.

    A subclass names its `agent`, takes records in `take`, and judges in `outcome`. It tells what it saw by the methods
    below, each of which gives the payloads to post; the calls and messages it left open are closed by `close`.
    """

    agent = "agent"

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.ended = False
        """The agent said by its own event that it is done."""
        self.session: str | None = None
        """The agent's own id of its session."""
        self.usage: dict[str, float] = {}
        """Of all messages so far."""
        self._clock = clock
        self._calls: dict[str, tuple[str, Any, float]] = {}
        self._messages: dict[str, _OpenMessage] = {}
        self._tag = os.urandom(4).hex()
        self._count = 0
        self._cut = False

    # --- what the runner calls ---

    def read(self, line: bytes) -> list[Payload]:
        """The payloads of one line of output, with or without its end."""
        line = line.strip()
        if not line:
            return []
        if len(line) > MAX_LINE:
            return self.notice("warning", f"a line of {len(line)} bytes was left out")
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
            # The agent's format is not what this reader knows: keep the record, and go on.
            return [
                *self.notice("warning", f"a record was not understood: {type(error).__name__}: {error}"),
                *self.event(record),
            ]
        finally:
            self._cut = False

    def close(self) -> list[Payload]:
        """What is left open when the output has ended: the partial messages, then the interrupted calls."""
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

    # --- what a reader of one agent says ---

    def take(self, record: Record) -> list[Payload]:
        """The payloads of one record. May fail on a record of a strange shape: it is kept as an event then."""
        raise NotImplementedError

    def outcome(self, exit_code: int | None) -> dict[str, Any]:
        """How the run ended: `{status, error?, usage?}`. The exit code is negative for a signal, None if unknown."""
        raise NotImplementedError

    def glance(self, line: bytes) -> list[Payload] | None:
        """The payloads of a line that need not be parsed whole, else None. For events that come by the thousand."""
        return None

    def partial_record(self, message: str, text: str, thinking: str) -> Record | None:
        """The agent's own record of a message that it did not end, where it needs one to be resumed."""
        return None

    def interrupted_record(self, call: str) -> Record | None:
        """The agent's own record of a call that did not end, where it needs one to be resumed."""
        return None

    # --- payloads ---

    def begin_session(self, session: str, record: Any = None, version: str | None = None) -> list[Payload]:
        self.session = session
        return [self._payload("session", session=session, version=version, record=record)]

    def begin_call(self, call: str, name: str, arguments: Any) -> list[Payload]:
        """A tool begins. Said again of the same call, it is told once."""
        known = call in self._calls
        if not known and len(self._calls) >= MAX_OPEN_CALLS:
            del self._calls[next(iter(self._calls))]
        self._calls[call] = (name, arguments, self._calls[call][2] if known else self._clock())
        return [] if known else [self._payload("call", call=call, name=name, arguments=arguments)]

    def end_call(
        self, call: str, result: str, status: str, record: Any = None, *, name: str = "", arguments: Any = None
    ) -> list[Payload]:
        """A tool ended. Its name and arguments are those of its beginning, where that was told."""
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
        """The tool of an open call; empty where no such call is open."""
        return self._calls[call][0] if call in self._calls else ""

    def new_message(self) -> str:
        """An id for a message of an agent that gives none: unlike that of any other run."""
        self._count += 1
        return f"m-{self._tag}-{self._count}"

    def stream(self, message: str, text: str = "", thinking: str = "") -> list[Payload]:
        """Words that came, of a message that is not whole yet."""
        if not text and not thinking:
            return []
        self._opened(message).add(text, thinking)
        return [self._payload("delta", message=message, text=text or None, thinking=thinking or None)]

    def streamed(self, message: str) -> tuple[str, str]:
        """The text and the thinking that were streamed of an open message."""
        known = self._messages.get(message)
        return ("", "") if known is None else (known.text(), known.thinking())

    def forget_message(self, message: str) -> None:
        """The message will not end: the agent itself dropped it."""
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
        """A whole message, or what there is of one that will not go on. Its usage is added to the run's."""
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
        return [self._payload("retry", attempt=attempt, message=shorten(message, _MAX_NOTICE), status=status)]

    def notice(self, level: str, text: str, record: Any = None) -> list[Payload]:
        """Something for people: `level` is info, warning, error, or output (a line that is no event)."""
        return [self._payload("notice", level=level, text=text, record=record)]

    def event(self, record: Any) -> list[Payload]:
        """Anything else that is worth keeping."""
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
    """What has been streamed of a message. Kept in pieces: joining at each would be quadratic."""

    __slots__ = ("_text", "_thinking", "text_length", "thinking_length")

    def __init__(self) -> None:
        self._text: list[str] = []
        self._thinking: list[str] = []
        self.text_length = 0
        self.thinking_length = 0

    def add(self, text: str, thinking: str) -> None:
        # The lengths count all that came; of what is kept there is an end.
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
    """The JSON object of a line, fit to be written as UTF-8 JSON again. Raises `ValueError` and `RecursionError`."""
    record = json.loads(line.decode("utf-8", "replace"), parse_constant=_no_number)
    if not isinstance(record, dict):
        raise ValueError("not an object")
    if line.count(b"[") + line.count(b"{") > MAX_DEPTH and _depth(record) > MAX_DEPTH:
        raise ValueError("too deep")
    if b"\\ud" in line or b"\\uD" in line:  # half of a surrogate pair cannot be written as UTF-8
        try:
            json.dumps(record, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            return dict(_without_surrogates(record))
    return record


def indented(text: str) -> str:
    """An entry of a transcript: only its first line begins at the left. An agent, or what a tool read, could otherwise
    write a line that looks like the user's word to whoever reads the transcript."""
    return "\n  ".join(text.splitlines())


def shorten(text: str, limit: int) -> str:
    """The text itself if it has at most `limit` bytes, else its beginning and its end."""
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
    """A record that is too large, with its long texts shortened, so that its shape stays."""
    for limit in (256 << 10, 16 << 10, 1 << 10):
        record = _shortened(record, limit)
        if len(json.dumps(record, ensure_ascii=False)) <= MAX_RECORD:
            return record
    return {key: value for key, value in record.items() if isinstance(value, (str, int, float, bool))}


def text_of(content: Any) -> str:
    """The text of a message's content as most wires have it: a string, or a list of blocks."""
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
    """Counts as an agent gives them; what is no number counts as nothing."""
    values = (tokens_in, tokens_out, cache_read, cache_write, cost)
    return {field: _number(value) for field, value in zip(USAGE_FIELDS, values)}


def add_usage(one: Mapping[str, float], other: Mapping[str, float]) -> dict[str, float]:
    return {field: round(_number(one.get(field, 0)) + _number(other.get(field, 0)), 9) for field in USAGE_FIELDS}


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return 0
    return value if 0 <= value < 1e15 else 0


def _no_number(name: str) -> None:
    """NaN and the infinities, which are no JSON."""
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
