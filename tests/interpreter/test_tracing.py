"""One trace spans the host, the box, and the host again. Without OpenTelemetry nothing is loaded."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from holdfast import Client
from holdfast.api.box.spec import BoxSpec
from holdfast.interpreter.bridge.bridge import Delegation
from holdfast.interpreter.client_host import ClientHost
from holdfast.interpreter.execution import CodeError, Execution
from holdfast.interpreter.interpreter import Interpreter
from holdfast.interpreter.kernel.kernel import Kernel
from holdfast.interpreter.tracing import trace_call, trace_execution
from holdfast.providers.local import LocalProvider
from holdfast.testing.server import ServerProcess
from holdfast.trace_context import continued_trace, current_trace


@pytest.fixture(scope="session")
def exporter() -> InMemorySpanExporter:
    provider = TracerProvider()
    exporter = InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    return exporter


@pytest.fixture
def spans(exporter: InMemorySpanExporter) -> Iterator[InMemorySpanExporter]:
    exporter.clear()
    yield exporter
    exporter.clear()


def by_name(exporter: InMemorySpanExporter) -> dict[str, ReadableSpan]:
    return {span.name: span for span in exporter.get_finished_spans()}


def test_calls_are_under_the_box_and_the_box_under_the_execution(spans: InMemorySpanExporter) -> None:
    with trace_execution("x-1", thread="t-1", box="b-1") as execution:
        with trace_call("c-1", "llm_query", "x-1") as call:
            usage = {"input_tokens": 3, "output_tokens": 1, "model": "main/m", "cost": 0.1, "calls": 1}
            call.finish("ok", usage=usage)
        execution.finish(Execution("x-1", compute_seconds=0.5))
    found = by_name(spans)
    outer, box, called = found["interpreter.execute"], found["interpreter.box"], found["interpreter.call llm_query"]
    assert outer.parent is None
    assert box.parent is not None
    assert called.parent is not None
    assert (box.parent.span_id, called.parent.span_id) == (outer.context.span_id, box.context.span_id)
    assert {span.context.trace_id for span in found.values()} == {outer.context.trace_id}
    about = dict(outer.attributes or {})
    assert (about["holdfast.thread"], about["holdfast.box"], about["holdfast.ok"]) == ("t-1", "b-1", True)
    used = dict(called.attributes or {})
    assert (used["gen_ai.operation.name"], used["gen_ai.usage.input_tokens"]) == ("chat", 3)
    told = execution.environment["TRACEPARENT"].split("-")
    assert told[1:3] == [f"{box.context.trace_id:032x}", f"{box.context.span_id:016x}"]


def test_what_goes_wrong_is_told(spans: InMemorySpanExporter) -> None:
    with trace_execution("x-2") as execution:
        with trace_call("c-2", "look", "x-2") as call:
            call.finish("failed", message="nothing there")
        execution.finish(Execution("x-2", error=CodeError("KeyError", "'a'", "")))
    with pytest.raises(RuntimeError), trace_execution("x-3"):
        raise RuntimeError("the box is gone")
    failed = [span for span in spans.get_finished_spans() if span.status.status_code is StatusCode.ERROR]
    assert len(failed) == len(spans.get_finished_spans()) == 5
    assert failed[0].status.description == "nothing there"
    assert dict(failed[2].attributes or {})["error.type"] == "KeyError"


@pytest.mark.anyio
async def test_code_in_a_box_and_what_it_starts_can_go_on_with_the_trace(
    spans: InMemorySpanExporter, tmp_path: Path
) -> None:
    async with LocalProvider(tmp_path / "home") as provider:
        box = await provider.create(BoxSpec(), id="b-traced")
        kernels = await Kernel.start(box)
        try:
            context = await kernels.context()
            with trace_execution("x-1", box=box.id) as traced:
                code = "import os; os.popen('echo $TRACEPARENT').read().strip()"
                done = await context.execute(code, env=traced.environment)
                traced.finish(done)
            assert done.value == traced.environment["TRACEPARENT"]
            assert by_name(spans)["interpreter.box"].context.span_id == int(done.value.split("-")[2], 16)
            assert (await context.execute("'TRACEPARENT' in os.environ")).value is False
        finally:
            await kernels.close()
            await box.delete()


def test_without_opentelemetry_nothing_is_loaded() -> None:
    program = """
import sys
from holdfast.api.box.spec import BoxSpec
from holdfast.interpreter.client_host import ClientHost
from holdfast.interpreter.interpreter import Interpreter
from holdfast.interpreter.kernel.kernel import Kernel
from holdfast.interpreter.execution import Execution
from holdfast.interpreter.tracing import trace_call, trace_execution
with trace_execution("x-1") as execution:
    with trace_call("c-1", "llm_query", "x-1") as call:
        call.finish("ok")
    execution.finish(Execution("x-1"))
assert execution.environment == {}
from holdfast.trace_context import continued_trace
parent = "00-" + "a" * 32 + "-" + "b" * 16 + "-01"
with continued_trace({"traceparent": parent}), trace_execution("x-2") as execution:
    assert execution.environment == {"TRACEPARENT": parent}
assert not [name for name in sys.modules if name.startswith("opentelemetry")]
"""
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("traced") / "home") as server:
        yield server


@pytest.mark.anyio
async def test_an_interpreter_traces_its_executions_and_their_calls(
    spans: InMemorySpanExporter, server: ServerProcess
) -> None:
    def double(n: int) -> int:
        with trace.get_tracer("test").start_as_current_span("inside the tool"):
            return 2 * n

    host = await ClientHost.of_home(server.home)
    async with Interpreter(host=host, tools=[double]) as py:
        with trace.get_tracer("test").start_as_current_span("outside"):
            done = await py.execute("import os; [double(4), os.environ['TRACEPARENT'].split('-')[1]]")
        thread = py.thread
    await host.close()
    found = by_name(spans)
    names = ["outside", "interpreter.execute", "interpreter.box", "interpreter.call double", "inside the tool"]
    for name, above in zip(names[1:], names, strict=False):
        parent = found[name].parent
        assert parent is not None
        assert parent.span_id == found[above].context.span_id
    assert done.value == [8, f"{found['outside'].context.trace_id:032x}"]
    assert dict(found["interpreter.execute"].attributes or {})["holdfast.thread"] == thread


@pytest.mark.anyio
async def test_children_belong_to_the_trace_of_the_code_that_asked_for_them(
    spans: InMemorySpanExporter, server: ServerProcess
) -> None:
    async def delegate(task: Delegation) -> Any:
        async with await py.build_child(tools={"look": str.upper}) as child:
            code = "import os\nSUBMIT([look(query), os.environ['TRACEPARENT']])"
            return (await child.execute(code, {"query": task.query})).submitted

    host = await ClientHost.of_home(server.home)
    async with Interpreter(host=host, delegate=delegate) as py:
        with trace.get_tracer("test").start_as_current_span("outside"):
            done = await py.execute("sub_rlm('why')")
    await host.close()
    assert done.ok, done.text
    answer, told = done.value["output"]
    assert answer == "WHY"

    ended = {span.context.span_id: span for span in spans.get_finished_spans()}

    def path(span: ReadableSpan) -> list[str]:
        above = [] if span.parent is None else path(ended[span.parent.span_id])
        return [*above, span.name]

    below = ["outside", "interpreter.execute", "interpreter.box", "interpreter.call sub_rlm"]
    paths = [path(span) for span in ended.values()]
    assert [*below, "interpreter.start"] in paths
    assert [*below, "interpreter.execute", "interpreter.box", "interpreter.call look"] in paths
    in_box = ended[int(told.split("-")[2], 16)]
    assert path(in_box) == [*below, "interpreter.execute", "interpreter.box"]
    about = [dict(span.attributes or {}) for span in ended.values() if span.name == "interpreter.execute"]
    assert {each["holdfast.depth"] for each in about} == {0, 1}
    assert len({each["holdfast.interpreter"] for each in about}) == 2


@pytest.mark.anyio
async def test_a_trace_passes_a_server_that_has_no_opentelemetry(
    spans: InMemorySpanExporter, server: ServerProcess
) -> None:
    code = "import os; [os.environ.get('TRACEPARENT'), os.environ.get('TRACESTATE')]"
    async with Client(server.url, api_key=server.api_key) as client:
        made = await client.interpreters.create()
        with trace.get_tracer("test").start_as_current_span("outside") as outside:
            done = await client.interpreters.execute(made.id, code)
        about = outside.get_span_context()
        assert done.value[0].startswith(f"00-{about.trace_id:032x}-{about.span_id:016x}-")
        assert done.value[1] is None
        assert (await client.interpreters.execute(made.id, code)).value == [None, None], "a trace ends"
        await client.interpreters.delete(made.id)


@pytest.mark.parametrize(
    "wrong", ["", "00-1-2-01", f"00-{'0' * 32}-{'1' * 16}-01", f"00-{'A' * 32}-{'1' * 16}-01", "x" * 10_000]
)
def test_what_is_no_trace_is_not_continued(wrong: str) -> None:
    with continued_trace({"traceparent": wrong, "tracestate": "a=b"}):
        assert current_trace() == {}


def test_a_trace_of_another_process_is_continued(spans: InMemorySpanExporter) -> None:
    parent = f"00-{'a' * 32}-{'b' * 16}-01"
    with continued_trace({"traceparent": parent, "tracestate": "vendor=1"}):
        assert current_trace() == {"traceparent": parent, "tracestate": "vendor=1"}
        with trace_execution("x-1"):
            pass
    assert current_trace() == {}
    above = by_name(spans)["interpreter.execute"].parent
    assert above is not None
    assert (above.trace_id, above.span_id) == (int("a" * 32, 16), int("b" * 16, 16))
