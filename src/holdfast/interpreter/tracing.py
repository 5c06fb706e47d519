"""OpenTelemetry spans of an interpreter: an execution, what of it runs in the box, and each call that comes from there.

One trace spans host and box: code in the box finds `TRACEPARENT` in its environment, as programs that are started by
traced ones do, so what it starts can go on with the trace. Where nobody in this process has set OpenTelemetry up,
nothing is loaded and nothing is done.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from holdfast import __version__

if TYPE_CHECKING:
    from opentelemetry.trace import Span, Tracer

    from holdfast.interpreter.results import Execution

EXECUTE: Final = "interpreter.execute"
IN_BOX: Final = "interpreter.box"
CALL: Final = "interpreter.call"
_LONGEST: Final = 500


@dataclass(slots=True)
class ExecutionTrace:
    """An execution under way. `environment` is for the box."""

    environment: Mapping[str, str] = field(default_factory=dict)
    _outer: Span | None = None
    _inner: Span | None = None

    def ended(self, execution: Execution) -> None:
        """Say what came of it."""
        if self._outer is None or self._inner is None:
            return
        told: dict[str, Any] = {
            "holdfast.ok": execution.ok,
            "holdfast.submitted": execution.submitted is not None,
            "holdfast.state_lost": execution.state_lost,
            "holdfast.artifacts": len(execution.artifacts),
            "holdfast.compute_seconds": execution.compute_seconds,
        }
        self._outer.set_attributes(told)
        if execution.error is not None:
            for span in (self._inner, self._outer):
                span.set_attribute("error.type", execution.error.kind)
                _fail(span, f"{execution.error.kind}: {execution.error.message}")


@dataclass(slots=True)
class CallTrace:
    """A call under way."""

    _span: Span | None = None

    def ended(self, status: str, *, usage: Mapping[str, Any] | None = None, told: str = "") -> None:
        """`usage` is what models took for it; `told`: what was wrong."""
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
            _fail(self._span, told or status)


@contextmanager
def trace_execution(
    id: str, *, thread: str | None = None, box: str | None = None, context: str = "main"
) -> Iterator[ExecutionTrace]:
    """Around an execution: all that happens inside is part of it. The code itself is not told."""
    tracer = _tracer()
    if tracer is None:
        yield ExecutionTrace()
        return
    about: dict[str, Any] = {"holdfast.execution": id, "holdfast.context": context}
    about |= {name: value for name, value in (("holdfast.thread", thread), ("holdfast.box", box)) if value}
    with (
        tracer.start_as_current_span(EXECUTE, attributes=about) as outer,
        tracer.start_as_current_span(IN_BOX, attributes=about) as inner,
    ):
        yield ExecutionTrace(_environment(), outer, inner)


@contextmanager
def trace_call(id: str, name: str, execution: str) -> Iterator[CallTrace]:
    """Around a call that code in a box made. Its parent is the span that is current: what runs in the box."""
    tracer = _tracer()
    if tracer is None:
        yield CallTrace()
        return
    about = {"holdfast.call": id, "holdfast.execution": execution, "holdfast.tool": name}
    with tracer.start_as_current_span(f"{CALL} {name}"[:_LONGEST], attributes=about) as span:
        yield CallTrace(span)


def _tracer() -> Tracer | None:
    """Who wants traces has loaded OpenTelemetry before. To load it here would take longer than an execution does."""
    trace = sys.modules.get("opentelemetry.trace")
    if trace is None or not hasattr(trace, "get_tracer"):
        return None
    found: Tracer = trace.get_tracer("holdfast.interpreter", __version__)
    return found


def _environment() -> dict[str, str]:
    """The current span as W3C Trace Context has it, under the names that environment variables have for it."""
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    carrier: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(carrier)
    return {name.upper(): value for name, value in carrier.items()}


def _fail(span: Span, why: str) -> None:
    from opentelemetry.trace import Status, StatusCode

    span.set_status(Status(StatusCode.ERROR, why[:_LONGEST]))
