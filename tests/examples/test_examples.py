"""The examples do what they say, as programs that somebody starts."""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Final

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from holdfast import SyncClient
from holdfast.testing.server import ServerProcess

EXAMPLES: Final = Path(__file__).parents[2] / "examples"


def run(example: str, server: ServerProcess, *arguments: str) -> str:
    env = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / example), *arguments],
        env={**env, "HOLDFAST_HOME": str(server.home)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_long_context_is_explored_by_code(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "home") as server:
        told = run("long_context.py", server)
        assert told.count("--- step") == 4
        assert told.rstrip().endswith("40 letters, most of them from Bergen")
        with SyncClient(server.url, api_key=server.api_key) as client:
            assert [each.id for each in client.boxes.list()] == []


class Collector(ThreadingHTTPServer):
    """Takes traces as MLflow does: by OTLP over HTTP, for the experiment that a header names."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Collect)
        self.requests: list[tuple[str, str | None]] = []
        self.spans: list[Span] = []


class _Collect(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        if self.headers.get("content-encoding") == "gzip":
            body = gzip.decompress(body)
        self.server.requests.append((self.path, self.headers.get("x-mlflow-experiment-id")))
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            self.server.spans += [span for scope in resource.scope_spans for span in scope.spans]
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


def test_a_trace_of_host_box_and_children_goes_to_mlflow(tmp_path: Path) -> None:
    with Collector() as collector, ServerProcess(tmp_path / "home") as server:
        serving = threading.Thread(target=collector.serve_forever)
        serving.start()
        try:
            told = run("mlflow_tracing.py", server, f"http://127.0.0.1:{collector.server_port}", "7")
        finally:
            collector.shutdown()
            serving.join()
    tree = [line.rpartition("  ")[0] for line in told.splitlines()[1:]]
    assert tree[:2] == ["read a book", "  interpreter.start"]
    child = ["interpreter.execute", "  interpreter.box", "    interpreter.call llm_query", "      model"]
    below = [each.removeprefix("        ") for each in tree if each.startswith("        ")]
    assert [below.count(each) for each in child] == [2, 2, 2, 2], told
    assert "    interpreter.box" in tree
    assert "      interpreter.call sub_rlm_batched" in tree
    assert set(collector.requests) == {("/v1/traces", "7")}
    assert len({span.trace_id for span in collector.spans}) == 1
    assert len(collector.spans) == len(tree)
