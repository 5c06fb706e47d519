"""OpenTelemetry spans of an interpreter: its start, each execution, its part in the box, and each call to the host.

One trace spans host, box and children: code in the box finds `TRACEPARENT` in its environment, so programs that it
starts can continue the trace, and what a call does on the host is below the span of the call. If this process has not
loaded OpenTelemetry, there are no spans.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from holdfast import __version__
from holdfast.trace_context import current_trace, is_loaded

if TYPE_CHECKING:
    from opentelemetry.trace import Span, Tracer

    from holdfast.interpreter.execution import Execution

START: Final = "interpreter.start"
EXECUTE: Final = "interpreter.execute"
IN_BOX: Final = "interpreter.box"
CALL: Final = "interpreter.call"
_LONGEST: Final = 500
_OPERATIONS: Final = {
    "llm_query": "chat",
    "llm_query_batched": "chat",
    "sub_rlm": "invoke_agent",
    "sub_rlm_batched": "invoke_agent",
}
"""Calls by OpenTelemetry's names of what generative AI does, so that collectors tell them apart. Others are tools."""


@dataclass(slots=True)
class ExecutionTrace:
    """A running execution. `environment` is for the box."""

    environment: Mapping[str, str] = field(default_factory=dict)
    _outer: Span | None = None
    _inner: Span | None = None

    def finish(self, execution: Execution) -> None:
        if self._outer is None or self._inner is None:
            return
        attributes: dict[str, Any] = {
            "holdfast.ok": execution.ok,
            "holdfast.submitted": execution.submitted is not None,
            "holdfast.state_lost": execution.state_lost,
            "holdfast.artifacts": len(execution.artifacts),
            "holdfast.compute_seconds": execution.compute_seconds,
        }
        self._outer.set_attributes(attributes)
        if execution.error is not None:
            for span in (self._inner, self._outer):
                span.set_attribute("error.type", execution.error.kind)
                _fail(span, f"{execution.error.kind}: {execution.error.message}")


@dataclass(slots=True)
class CallTrace:
    """A running call."""

    _span: Span | None = None

    def finish(self, status: str, *, usage: Mapping[str, Any] | None = None, message: str = "") -> None:
        """`usage` is what models used for it; `message` describes an error."""
        if self._span is None:
            return
        self._span.set_attribute("holdfast.status", status)
        names = {
            "input_tokens": "gen_ai.usage.input_tokens",
            "output_tokens": "gen_ai.usage.output_tokens",
            "model": "gen_ai.response.model",
            "cost": "holdfast.cost",
            "calls": "holdfast.model_calls",
        }
        for name, attribute in names.items():
            if usage and isinstance(value := usage.get(name), str | int | float):
                self._span.set_attribute(attribute, value)
        if status != "ok":
            _fail(self._span, message or status)


@dataclass(slots=True)
class StartTrace:
    """A start that is under way."""

    _span: Span | None = None

    def finish(self, box: str, how: str) -> None:
        """`how` it got its box."""
        if self._span is not None:
            self._span.set_attributes({"holdfast.box": box, "holdfast.transition": how})


@contextmanager
def trace_start(interpreter: str, *, depth: int = 0) -> Iterator[StartTrace]:
    """Trace the start of an interpreter: its box, its workspace and its Python."""
    tracer = _tracer()
    if tracer is None:
        yield StartTrace()
        return
    attributes: dict[str, Any] = {"holdfast.interpreter": interpreter, "holdfast.depth": depth}
    with tracer.start_as_current_span(START, attributes=attributes) as span:
        yield StartTrace(span)


@contextmanager
def trace_execution(
    id: str,
    *,
    interpreter: str | None = None,
    thread: str | None = None,
    box: str | None = None,
    context: str = "main",
    depth: int = 0,
) -> Iterator[ExecutionTrace]:
    """Trace an execution. The trace does not contain the code. `depth` is 0 for a root, and 1 for its children."""
    tracer = _tracer()
    if tracer is None:
        yield ExecutionTrace(_environment())
        return
    attributes: dict[str, Any] = {"holdfast.execution": id, "holdfast.context": context, "holdfast.depth": depth}
    named = {"holdfast.interpreter": interpreter, "holdfast.thread": thread, "holdfast.box": box}
    attributes |= {name: value for name, value in named.items() if value}
    with (
        tracer.start_as_current_span(EXECUTE, attributes=attributes) as outer,
        tracer.start_as_current_span(IN_BOX, attributes=attributes) as inner,
    ):
        yield ExecutionTrace(_environment(), outer, inner)


@contextmanager
def trace_call(id: str, name: str, execution: str) -> Iterator[CallTrace]:
    """Trace a call of code in a box. Its parent is the current span, which is the part in the box."""
    tracer = _tracer()
    if tracer is None:
        yield CallTrace()
        return
    attributes = {"holdfast.call": id, "holdfast.execution": execution, "holdfast.tool": name}
    attributes["gen_ai.operation.name"] = _OPERATIONS.get(name, "execute_tool")
    with tracer.start_as_current_span(f"{CALL} {name}"[:_LONGEST], attributes=attributes) as span:
        yield CallTrace(span)


def _tracer() -> Tracer | None:
    """Programs that want traces have loaded OpenTelemetry."""
    if not is_loaded():
        return None
    from opentelemetry.trace import get_tracer

    return get_tracer("holdfast.interpreter", __version__)


def _environment() -> dict[str, str]:
    """The current trace as environment variables."""
    return {name.upper(): value for name, value in current_trace().items()}


def _fail(span: Span, message: str) -> None:
    from opentelemetry.trace import Status, StatusCode

    span.set_status(Status(StatusCode.ERROR, message[:_LONGEST]))
