"""An execution of code: its variables, its state on the host while it runs, its result, and the entry that records it.

A box is not trusted. `read_result` checks everything that a context reports and refuses what is malformed.
"""

from __future__ import annotations

import asyncio
import codecs
import keyword
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final

from holdfast.api.box.files import Files
from holdfast.api.box.process import Stream
from holdfast.api.errors.boxes import BoxError
from holdfast.api.errors.interpreters import InvalidInterpreter, KernelUnreachable
from holdfast.api.limits import OUTPUT_LIMIT
from holdfast.guest.kernel import value_codec
from holdfast.interpreter.bridge.calls import Handler
from holdfast.interpreter.record import EXECUTION, show
from holdfast.interpreter.validation import shorten

VALUE: Final = "value"
"""The name of the artifact that holds a value too large for the result."""
LARGEST_VALUE: Final = 1 << 30
"""The largest value that `read_value` reads, in bytes of JSON."""
_LARGEST_IMAGE: Final = 4 << 20
"""The largest figure whose bytes are part of the result."""

OutputCallback = Callable[[Stream, bytes], None]
"""Called with each piece of output as it arrives."""


# --- variables ---


def encode_variables(variables: Mapping[str, Any] | None, reserved: Collection[str]) -> list[bytes]:
    """Encode variables for the box, in pieces. `reserved` are names that a variable must not replace. Pydantic models
    become dictionaries."""
    if not variables:
        return []
    for name in variables:
        if not isinstance(name, str) or not name.isidentifier() or keyword.iskeyword(name):
            raise InvalidInterpreter(f"{shorten(name)} is not a valid variable name", hint="use a Python identifier")
        if name == "__builtins__" or name in reserved:
            raise InvalidInterpreter(
                f"a variable cannot be called {name}: this name is reserved", hint="use another name"
            )
    try:
        return value_codec.dump_parts(dict(variables))
    except value_codec.Unshippable:
        for name, value in variables.items():
            _check_shippable(name, value)
        raise


def _check_shippable(name: str, value: Any) -> None:
    try:
        value_codec.dump_parts({name: value})
    except value_codec.Unshippable as error:
        raise InvalidInterpreter(
            f"variable {name} cannot be sent to a box: {error}",
            hint="pass plain values, arrays, tables or texts, or write a file to the box",
        ) from None


# --- results ---


@dataclass(frozen=True, slots=True)
class CodeError:
    """An error of the code that ran: a result for a model to read, not an exception of ours."""

    kind: str
    """The class of the exception."""
    message: str
    traceback: str
    """Only lines of the user's code."""
    syntax: bool = False
    """The code did not compile, so nothing ran."""


@dataclass(frozen=True, slots=True)
class Artifact:
    """A file in the box that an execution produced."""

    name: str
    media_type: str
    path: str
    size: int
    data: bytes | None = field(default=None, repr=False)
    """The content, if it is small enough to be part of the result."""


@dataclass(frozen=True, slots=True)
class Execution:
    """The result of code that ended or was stopped."""

    id: str
    stdout: str = ""
    """At most `output_limit` characters. The whole output is in an artifact."""
    stderr: str = ""
    value: Any = None
    """The value of the last expression, if it can be sent to the host."""
    value_text: str | None = None
    """The `repr` of the value. None if there is no value."""
    error: CodeError | None = None
    submitted: Mapping[str, Any] | None = None
    """The arguments of SUBMIT."""
    artifacts: tuple[Artifact, ...] = ()
    seconds: float = 0.0
    compute_seconds: float = 0.0
    """Without the time that the code waited for the host."""
    state_lost: bool = False
    """The context was killed, and its memory is lost."""
    restored: bool = False
    """The context was killed, and its memory is as it was before this execution."""
    value_missing: str | None = None
    """Why `value` is None although there is a value: it cannot be sent, or it is large and `read_value` reads it."""

    @property
    def ok(self) -> bool:
        return self.error is None

    @property
    def text(self) -> str:
        """Output, and the error or the value, as a model reads them."""
        parts = [self.stdout, self.stderr]
        if self.error is not None:
            parts.append(self.error.traceback or f"{self.error.kind}: {self.error.message}")
        elif self.value_text is not None and self.submitted is None:
            parts.append(self.value_text)
        return "\n".join(part.rstrip("\n") for part in parts if part)


async def attach_images(files: Files, execution: Execution) -> Execution:
    """Read the figures of a result. Other artifacts are read on demand."""
    if not any(each.media_type == "image/png" for each in execution.artifacts):
        return execution
    artifacts: list[Artifact] = []
    for each in execution.artifacts:
        if each.media_type == "image/png" and each.size <= _LARGEST_IMAGE:
            with suppress(BoxError):
                each = replace(each, data=await files.read(each.path))
        artifacts.append(each)
    return replace(execution, artifacts=tuple(artifacts))


async def read_value(files: Files | None, execution: Execution) -> Any:
    """Return the value of an execution, also if it was too large for the result. Raises `InvalidInterpreter`."""
    if execution.value_missing is None:
        return execution.value
    artifact = next((each for each in execution.artifacts if each.name == VALUE), None)
    if artifact is None or files is None:
        raise InvalidInterpreter(
            f"the value of {execution.id} is not available: {execution.value_missing}",
            hint="return plain values, arrays, tables or texts, or write a file",
        )
    data = bytearray()
    async for piece in files.stream(artifact.path):
        data += piece
        if len(data) > LARGEST_VALUE:
            raise InvalidInterpreter(
                f"the value of {execution.id} has more than {LARGEST_VALUE:,} bytes",
                hint="return less, or write a file",
            )
    try:
        return await asyncio.to_thread(value_codec.load, data)
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise InvalidInterpreter(
            f"the value of {execution.id} cannot be read: {error}", hint="run the code again"
        ) from None


def with_memory_outcome(execution: Execution, *, restored: bool) -> Execution:
    """Add to a result whether the memory of its killed context was restored."""
    assert execution.error is not None
    outcome = "was restored to the state before this execution" if restored else "is lost; a new context was started"
    message = f"{execution.error.message}. Its memory {outcome}"
    error = CodeError(execution.error.kind, message, message)
    return replace(execution, error=error, state_lost=not restored, restored=restored)


def to_entry(execution: Execution, code: str) -> dict[str, Any]:
    """The entry that records a result on the thread."""
    entry: dict[str, Any] = {
        "type": EXECUTION,
        "id": execution.id,
        "code": code,
        "ok": execution.ok,
        "stdout": execution.stdout,
        "stderr": execution.stderr,
        "value_text": None if execution.value_text is None else execution.value_text[:OUTPUT_LIMIT],
        "seconds": execution.seconds,
        "compute_seconds": execution.compute_seconds,
    }
    if (error := execution.error) is not None:
        entry["error"] = {"kind": error.kind, "message": error.message, "traceback": error.traceback}
    if execution.submitted is not None:
        entry["submitted"] = show(execution.submitted)
    if execution.artifacts:
        entry["artifacts"] = [
            {"name": each.name, "media_type": each.media_type, "path": each.path, "size": each.size}
            for each in execution.artifacts
        ]
    if execution.value_missing is not None:
        entry["value_missing"] = execution.value_missing
    if execution.state_lost:
        entry["state_lost"] = True
    if execution.restored:
        entry["restored"] = True
    return entry


# --- running executions ---


class StreamExcerpt:
    """The beginning and the end of an output stream, up to a number of characters."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._head = ""
        self._tail = ""
        self._characters = 0
        self._bytes = 0

    def add(self, data: bytes) -> None:
        self._bytes += len(data)
        self._add_text(self._decoder.decode(data))

    def _add_text(self, text: str) -> None:
        self._characters += len(text)
        room = self._limit - len(self._head)
        self._head += text[:room]
        if len(text) > room:
            self._tail = (self._tail + text[room:])[-self._limit :]

    def text(self, file: Artifact | None) -> str:
        """`file` holds the stream, or as much of it as the box keeps."""
        self._add_text(self._decoder.decode(b"", final=True))
        if self._characters <= self._limit:
            return self._head
        half = self._limit // 2
        first, last = self._head[:half], (self._head + self._tail)[-half:]
        where = ""
        if file is not None:
            kept = "all of it is" if file.size >= self._bytes else f"its first {file.size} bytes are"
            where = f": {kept} in {file.path}"
        left_out = self._characters - len(first) - len(last)
        return f"{first}\n... {left_out} characters left out{where} ...\n{last}"


@dataclass(slots=True)
class RunningExecution:
    """An execution that has not ended."""

    id: str
    began: float
    limit: int
    done: asyncio.Future[tuple[Mapping[str, Any], bytes]]
    on_output: OutputCallback | None
    handler: Handler | None = None
    """Answers the calls of the code."""
    streams: dict[Stream, StreamExcerpt] = field(default_factory=dict)
    calls: int = 0
    """The number of calls that the host carries out now."""
    waited: float = 0.0
    """Seconds that the code has waited for the host, without the current wait."""
    waiting_since: float = 0.0
    calls_changed: asyncio.Event = field(default_factory=asyncio.Event)

    def add_output(self, stream: Stream, data: bytes) -> None:
        if stream not in self.streams:
            self.streams[stream] = StreamExcerpt(self.limit)
        self.streams[stream].add(data)

    def discard_output(self, stream: Stream) -> None:
        """Forget what was added: the whole stream will be added again."""
        self.streams.pop(stream, None)

    def output(self, stream: Stream, file: Artifact | None) -> str:
        excerpt = self.streams.get(stream)
        return "" if excerpt is None else excerpt.text(file)

    def computed(self, now: float) -> float:
        """Seconds since the start in which the code did not wait for the host."""
        waiting = now - self.waiting_since if self.calls else 0.0
        return now - self.began - self.waited - waiting

    def call_began(self, now: float) -> None:
        if self.calls == 0:
            self.waiting_since = now
        self.calls += 1
        self.calls_changed.set()

    def call_ended(self, now: float) -> None:
        self.calls -= 1
        if self.calls == 0:
            self.waited += now - self.waiting_since
        self.calls_changed.set()


def read_result(running: RunningExecution, document: Mapping[str, Any], content: bytes, now: float) -> Execution:
    """Read the result that a context sent. Raises `KernelUnreachable` if it is malformed."""
    try:
        artifacts = tuple(
            Artifact(str(each["name"]), str(each["media"]), str(each["path"]), int(each["size"]))
            for each in document.get("artifacts", ())
        )
        reported = document.get("error")
        error = None
        if reported is not None:
            error = CodeError(
                str(reported["kind"]),
                str(reported["message"]),
                str(reported["traceback"]),
                bool(reported.get("syntax")),
            )
        value = value_codec.load(content) if content else None
        text = document.get("text")
        missing = None if document.get("unshipped") is None else str(document["unshipped"])
        if missing is not None and text is None:
            text = f"<{missing}>"
        large = next((each for each in artifacts if each.name == VALUE), None)
        if large is not None:
            missing = f"it has {large.size:,} bytes: use read_value"
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as broken:
        raise KernelUnreachable(f"the kernel sent a malformed result: {broken}") from None
    files = {each.name: each for each in artifacts}
    submitted = value if document.get("submitted") else None
    return Execution(
        running.id,
        running.output("stdout", files.get("stdout")),
        running.output("stderr", files.get("stderr")),
        None if submitted is not None else value,
        None if text is None else str(text),
        error,
        submitted,
        artifacts,
        now - running.began,
        running.computed(now),
        state_lost=bool(document.get("lost")),
        value_missing=missing,
    )


def killed_result(message: str) -> dict[str, Any]:
    """The document of an execution whose context was killed, as `read_result` takes it."""
    return {"error": {"kind": "KernelKilled", "message": message, "traceback": message}, "lost": True}
