"""The trace that running code belongs to, in the form of W3C Trace Context, to pass it on to other processes.

OpenTelemetry holds it in processes that have loaded it. Others hold what they were given, and pass it on as it is, so
that a trace does not end at a process without OpenTelemetry.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

TRACEPARENT: Final = "traceparent"
TRACESTATE: Final = "tracestate"
_PARENT: Final = re.compile(r"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
_STATE: Final = re.compile(r"[\x20-\x7e]{1,512}")
_given: ContextVar[Mapping[str, str]] = ContextVar("holdfast_trace", default={})  # noqa: B039  it is never changed


def current_trace() -> dict[str, str]:
    """Returns `traceparent` and perhaps `tracestate`; nothing if there is no trace."""
    if is_loaded():
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        carrier: dict[str, str] = {}
        TraceContextTextMapPropagator().inject(carrier)
        if carrier:
            return carrier
    return dict(_given.get())


@contextmanager
def continued_trace(headers: Mapping[str, str]) -> Iterator[None]:
    """Make what runs inside part of the trace that the sender of these headers has. Ignores invalid ones."""
    trace = _checked(headers)
    if not trace:
        yield
        return
    given = _given.set(trace)
    try:
        if not is_loaded():
            yield
            return
        from opentelemetry import context
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        attached = context.attach(TraceContextTextMapPropagator().extract(trace))
        try:
            yield
        finally:
            context.detach(attached)
    finally:
        _given.reset(given)


def is_loaded() -> bool:
    """Whether this process uses OpenTelemetry. Loading it here would take longer than an execution."""
    return hasattr(sys.modules.get("opentelemetry.trace"), "get_tracer")


def _checked(headers: Mapping[str, str]) -> dict[str, str]:
    parent, state = headers.get(TRACEPARENT, ""), headers.get(TRACESTATE, "")
    if not _PARENT.fullmatch(parent):
        return {}
    return {TRACEPARENT: parent} | ({TRACESTATE: state} if _STATE.fullmatch(state) else {})
