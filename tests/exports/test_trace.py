"""The trace of a run, from the entries of its thread."""

from __future__ import annotations

from typing import Any

from holdfast.exports.trace import as_otlp, spans_of


def entry(id: str, ts: int, type: str, **fields: Any) -> dict[str, Any]:
    return {"id": id, "ts": ts, "payload": {"type": type, **fields}}


ENTRIES = [
    entry("e-0", 900, "chat", role="user", text="go"),
    entry("e-1", 1000, "signal.run.started", run="r-1", agent="pi", model="m", provider="local"),
    entry("e-2", 1300, "signal.run.box", run="r-1", box="b-1", how="created", ms=250),
    entry("e-3", 1500, "signal.run.provisioned", run="r-1", agent="pi", ms=150, session="new"),
    entry("e-4", 1600, "signal.run.runner", run="r-1", epoch=1, process="7"),
    entry("e-5", 2600, "signal.model.call", run="r-1", model="p/m", status=200, ms=900, input=10, cost=0.5),
    entry("e-6", 2900, "pi.tool", call="c", name="bash", status="error", ms=200),
    entry("e-7", 3500, "signal.model.call", run="r-1", model="p/m", status=529, ms=100),
    entry("e-8", 4000, "signal.run.finished", run="r-1", status="failed", error={"code": "auth", "message": "no"}),
    entry("e-9", 5000, "signal.run.started", run="r-2", agent="pi"),
]


def test_a_run_is_one_trace_of_launch_box_agent_models_and_tools() -> None:
    spans = spans_of("t-1", ENTRIES)
    names = {each.id: each.name for each in spans}
    assert [(each.name, names.get(each.parent or ""), each.start, each.end, each.error) for each in spans] == [
        ("run", None, 1000, 4000, "auth: no"),
        ("invoke_agent pi", "run", 1600, 4000, "auth: no"),
        ("box", "run", 1050, 1300, None),
        ("provision", "run", 1350, 1500, None),
        ("chat p/m", "invoke_agent pi", 1700, 2600, None),
        ("execute_tool bash", "invoke_agent pi", 2700, 2900, "error"),
        ("chat p/m", "invoke_agent pi", 3400, 3500, "status 529"),
        ("run", None, 5000, None, None),
    ]
    assert len({each.trace for each in spans}) == 2
    assert spans == spans_of("t-1", ENTRIES)
    assert spans[0].trace != spans_of("t-2", ENTRIES)[0].trace


def test_it_is_written_as_otlp_without_what_goes_on() -> None:
    document = as_otlp(spans_of("t-1", ENTRIES), "1.0")
    (written,) = document["resourceSpans"][0]["scopeSpans"]
    assert len(written["spans"]) == 7
    call = written["spans"][4]
    assert (len(call["traceId"]), len(call["spanId"]), call["startTimeUnixNano"]) == (32, 16, "1700000000")
    assert {"key": "holdfast.cost", "value": {"doubleValue": 0.5}} in call["attributes"]
    assert written["spans"][0]["status"] == {"code": 2, "message": "auth: no"}


def test_hostile_entries_make_no_span_that_cannot_be_written() -> None:
    odd = [
        entry("e-a", 1, "signal.run.box", run="r-0", ms=1),
        entry("e-b", 2, "signal.run.started", run=7),
        entry("e-1", 1000, "signal.run.started", run="r-1", agent=["x"]),
        entry("e-2", 1000, "signal.run.box", run="r-1", ms="soon", box={"a": 1}),
        entry("e-3", 1000, "pi.tool", name="x" * 10_000, ms=-5, status={"a": "x" * 10_000}),
        entry("e-4", 1000, "signal.model.call", run="r-1", ms=10**30, status="bad", model=None),
        entry("e-5", 1000, "signal.run.finished", run="r-1", status=None, error="text"),
    ]
    spans = spans_of("t-1", odd)
    assert [(len(each.name) <= 200, len(each.error or "") <= 200, each.start >= 0) for each in spans] == [
        (True,) * 3
    ] * 4
    assert len(as_otlp(spans, "1.0")["resourceSpans"][0]["scopeSpans"][0]["spans"]) == 4
