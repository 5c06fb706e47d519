"""The trace of each run of a thread: spans for its launch, its box, its agent, its model calls and its tools. Pure.

A trace is read from the thread, so it needs no collector while a run goes on, and is the same after a restart. Its ids
are derived from the thread and the run: whoever computes it again gets the same spans, and a collector that gets them
twice keeps one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from holdfast.threads import model_events, run_events

_SERVICE: Final = "holdfast"
_STEPS: Final = {
    run_events.BOX: "box",
    run_events.INSTALLING: "install",
    run_events.SETUP: "setup",
    run_events.SERVICES: "services",
    run_events.PROVISIONED: "provision",
}
"""The steps of a launch. Each has an entry when it is done, with the time that it took."""
_LONGEST: Final = 200
_MOST_MS: Final = 366 * 24 * 3600 * 1000
_INTERNAL: Final = 1
_ERROR: Final = 2


@dataclass(frozen=True, slots=True)
class Span:
    trace: str
    id: str
    parent: str | None
    name: str
    start: int
    """UTC milliseconds."""
    end: int | None
    """None while it goes on."""
    error: str | None = None
    attributes: Mapping[str, str | int | float] = field(default_factory=dict)


@dataclass(slots=True)
class _Run:
    """A run whose entries are being read."""

    root: Span
    agent: Span | None = None
    spans: list[Span] = field(default_factory=list)


def spans_of(thread: str, entries: Iterable[Mapping[str, Any]]) -> list[Span]:
    """Returns the spans of all runs, each run first and then its parts in the order of their ends."""
    runs: dict[str, _Run] = {}
    latest: str | None = None
    for entry in entries:
        payload = entry["payload"]
        kind = payload["type"]
        run = payload.get("run") if isinstance(payload.get("run"), str) else latest
        if kind == run_events.STARTED and isinstance(run, str):
            latest = run
            runs.setdefault(run, _begin(thread, run, entry))
        elif run in runs:
            _take(runs[run], entry, kind)
    return [span for each in runs.values() for span in (each.root, *([each.agent] if each.agent else []), *each.spans)]


def _begin(thread: str, run: str, entry: Mapping[str, Any]) -> _Run:
    trace = _digest(f"{thread} {run}", 32)
    known = {name: entry["payload"].get(name) for name in ("agent", "model", "provider")}
    named = {f"holdfast.{name}": value[:_LONGEST] for name, value in known.items() if isinstance(value, str)}
    attributes = {"holdfast.thread": thread, "holdfast.run": run, **named}
    return _Run(Span(trace, _digest(f"{trace} run", 16), None, "run", entry["ts"], None, None, attributes))


def _take(run: _Run, entry: Mapping[str, Any], kind: str) -> None:
    payload, at, root = entry["payload"], entry["ts"], run.root
    if kind == run_events.FINISHED:
        error = payload.get("error")
        failed = None if payload.get("status") == "completed" else str(payload.get("status"))
        if isinstance(error, dict):
            failed = f"{error.get('code')}: {error.get('message')}"[:_LONGEST]
        run.root = _ended(root, at, failed)
        run.agent = run.agent and _ended(run.agent, at, failed)
    elif kind == run_events.RUNNER and run.agent is None:
        name = f"invoke_agent {root.attributes.get('holdfast.agent', '')}".rstrip()
        run.agent = Span(root.trace, _digest(f"{root.trace} agent", 16), root.id, name, at, None)
    elif kind in _STEPS and "ms" in payload:
        told = {name: payload.get(name) for name in ("box", "how", "what", "environment", "version", "session")}
        run.spans.append(_done(run, entry, root.id, _STEPS[kind], None, told))
    elif kind == model_events.CALL:
        told = {name: payload.get(name) for name in ("model", "input", "output", "cost")}
        status = payload.get("status")
        error = f"status {status}" if isinstance(status, int) and status >= 400 else None
        run.spans.append(_done(run, entry, _within(run), f"chat {payload.get('model', '')}", error, told))
    elif kind.endswith(".tool") and isinstance(payload.get("name"), str):
        status = str(payload.get("status", "ok"))
        error = None if status == "ok" else status
        run.spans.append(_done(run, entry, _within(run), f"execute_tool {payload['name']}", error, {}))


def _within(run: _Run) -> str:
    return run.root.id if run.agent is None else run.agent.id


def _done(
    run: _Run, entry: Mapping[str, Any], parent: str, name: str, error: str | None, told: Mapping[str, Any]
) -> Span:
    trace, ms = run.root.trace, entry["payload"].get("ms")
    took = min(max(0, int(ms)), _MOST_MS) if isinstance(ms, int | float) and not isinstance(ms, bool) else 0
    attributes = {
        f"holdfast.{key}": value[:_LONGEST] if isinstance(value, str) else value
        for key, value in told.items()
        if isinstance(value, str | int | float)
    }
    id = _digest(f"{trace} {entry['id']}", 16)
    start = max(0, entry["ts"] - took)
    error = error and error[:_LONGEST]
    return Span(trace, id, parent, name.strip()[:_LONGEST], start, entry["ts"], error, attributes)


def _ended(span: Span, at: int, error: str | None) -> Span:
    return Span(span.trace, span.id, span.parent, span.name, span.start, at, error, span.attributes)


def _digest(text: str, digits: int) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:digits]


def as_otlp(spans: Iterable[Span], version: str) -> dict[str, Any]:
    """Returns the spans that have ended as the body of a request to `/v1/traces` of OTLP over HTTP, in JSON."""
    resource = {"service.name": _SERVICE, "service.version": version}
    scope = {"name": _SERVICE, "version": version}
    written = [_write(each, each.end) for each in spans if each.end is not None]
    return {
        "resourceSpans": [
            {"resource": {"attributes": _attributes(resource)}, "scopeSpans": [{"scope": scope, "spans": written}]}
        ]
    }


def _write(span: Span, end: int) -> dict[str, Any]:
    written: dict[str, Any] = {
        "traceId": span.trace,
        "spanId": span.id,
        "name": span.name,
        "kind": _INTERNAL,
        "startTimeUnixNano": str(span.start * 1_000_000),
        "endTimeUnixNano": str(end * 1_000_000),
        "attributes": _attributes(span.attributes),
        "status": {} if span.error is None else {"code": _ERROR, "message": span.error},
    }
    return written if span.parent is None else {**written, "parentSpanId": span.parent}


def _attributes(values: Mapping[str, str | int | float]) -> list[dict[str, Any]]:
    return [{"key": key, "value": _value(value)} for key, value in values.items()]


def _value(value: str | float) -> dict[str, Any]:
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    return {"doubleValue": value} if isinstance(value, float) else {"stringValue": value}
