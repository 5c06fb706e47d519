"""One trace through a program, the code that it runs in a box, the calls of that code, and children in their own boxes.

    python examples/mlflow_tracing.py                             prints the trace
    python examples/mlflow_tracing.py http://127.0.0.1:5000 0     sends it to experiment 0 of an MLflow server

Needs `pip install opentelemetry-sdk`, and for MLflow also `opentelemetry-exporter-otlp-proto-http`. The server can be
`mlflow server --backend-store-uri sqlite:///mlflow.db`. Any other collector of OpenTelemetry works in the same way.
Holdfast itself needs nothing: it traces if the program has loaded OpenTelemetry.
"""

from __future__ import annotations

import asyncio
import sys

from opentelemetry import trace
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor, SpanExporter
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from holdfast import Interpreter
from holdfast.interpreter.bridge.bridge import Delegation

CHAPTERS = ("The keeper lit the lamp at dusk.", "A storm took the boat, and the lamp with it.")
CODE = """\
notes = sub_rlm_batched(["What happens here?"] * len(chapters), chapters)
summary = llm_query("Put together: " + " / ".join(notes))
import subprocess  # a program that the code starts can continue the trace
known = subprocess.run("echo $TRACEPARENT", shell=True, capture_output=True, text=True).stdout.strip()
SUBMIT(summary=summary, trace=known.split("-")[1])
"""


def ask(prompt: str) -> str:
    """Stands for a model, so that the example needs no key. Without it, `llm_query` asks the interpreter's model."""
    with trace.get_tracer("example").start_as_current_span("model", attributes={"prompt": prompt}):
        return f"({prompt})"


async def work() -> str:
    """What the program does. Returns the trace that the code in the box knows."""

    async def read(task: Delegation) -> str:
        async with await py.build_child(tools={"llm_query": ask}, output_fields={"answer": str}) as child:
            done = await child.execute("SUBMIT(answer=llm_query(text))", {"text": task.context})
        if done.submitted is None:
            raise RuntimeError(done.text)
        return str(done.submitted["answer"])

    fields = {"summary": str, "trace": str}
    async with Interpreter(tools={"llm_query": ask}, delegate=read, output_fields=fields) as py:
        done = await py.execute(CODE, {"chapters": list(CHAPTERS)})
    if done.submitted is None:
        raise RuntimeError(done.text)
    print(done.submitted["summary"])
    return str(done.submitted["trace"])


def mlflow_exporter(url: str, experiment: str) -> SpanExporter:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    return OTLPSpanExporter(f"{url.rstrip('/')}/v1/traces", headers={"x-mlflow-experiment-id": experiment})


def print_tree(spans: tuple[ReadableSpan, ...], parent: int | None = None, depth: int = 0) -> None:
    for span in sorted(spans, key=lambda each: each.start_time or 0):
        if (span.parent.span_id if span.parent else None) == parent:
            taken = ((span.end_time or 0) - (span.start_time or 0)) / 1e6
            print(f"{'  ' * depth}{span.name}  {taken:.0f} ms")
            print_tree(spans, span.context.span_id, depth + 1)


def main() -> None:
    kept = InMemorySpanExporter()
    provider = TracerProvider(resource=Resource.create({"service.name": "holdfast-example"}))
    provider.add_span_processor(SimpleSpanProcessor(kept))
    if len(sys.argv) > 1:
        experiment = sys.argv[2] if len(sys.argv) > 2 else "0"
        provider.add_span_processor(BatchSpanProcessor(mlflow_exporter(sys.argv[1], experiment)))
    trace.set_tracer_provider(provider)
    with trace.get_tracer("example").start_as_current_span("read a book") as span:
        known = asyncio.run(work())
    assert known == f"{span.get_span_context().trace_id:032x}", "code in the box knows the trace"
    provider.shutdown()  # sends what is left
    print_tree(kept.get_finished_spans())


if __name__ == "__main__":
    main()
