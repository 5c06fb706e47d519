"""The MCP server of boxes, as an agent would use it: lines of JSON-RPC in, lines out, and a fake Holdfast behind it."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from holdfast.api.run.tasks import TOOLS
from holdfast.guest import mcp_server
from holdfast.harnesses.tool_server import tool_access, tool_files


class FakeHoldfast:
    """Answers calls with `answers`, in order, and then with what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str | None, dict[str, Any]]] = []
        self.answers: list[tuple[int, bytes]] = []
        fake = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                fake.asked.append((self.path, self.headers["authorization"], body))
                status, answer = fake.answers.pop(0) if fake.answers else (200, json.dumps(body).encode())
                self.send_response(status)
                self.send_header("content-length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_: Any) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def holdfast() -> Iterator[FakeHoldfast]:
    fake = FakeHoldfast()
    yield fake
    fake.close()


class Agent:
    def __init__(self, folder: Path, url: str) -> None:
        for path, data in tool_files(str(folder), url, "the-token", TOOLS).items():
            Path(path).parent.mkdir(exist_ok=True)
            Path(path).write_bytes(data)
        command = tool_access(str(folder), (sys.executable,)).command
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._number = 0

    def ask(self, method: str, **params: Any) -> dict[str, Any]:
        self._number += 1
        return self.say(json.dumps({"jsonrpc": "2.0", "id": self._number, "method": method, "params": params}))

    def say(self, line: str) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(line.encode() + b"\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer

    def tell(self, method: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"jsonrpc": "2.0", "method": method}).encode() + b"\n")

    def close(self) -> int:
        assert self._process.stdin is not None
        self._process.stdin.close()
        code = self._process.wait(240)
        assert self._process.stdout is not None
        self._process.stdout.close()
        return code


@pytest.fixture
def agent(tmp_path: Path, holdfast: FakeHoldfast) -> Iterator[Agent]:
    agent = Agent(tmp_path, holdfast.url)
    yield agent
    assert agent.close() == 0


@pytest.mark.parametrize(("wanted", "got"), [("2025-06-18", "2025-06-18"), ("1999-01-01", "2025-11-25")])
def test_an_agent_finds_the_tools(agent: Agent, wanted: str, got: str) -> None:
    begun = agent.ask("initialize", protocolVersion=wanted, capabilities={}, clientInfo={})
    assert begun["result"]["protocolVersion"] == got
    agent.tell("notifications/initialized")  # gets no answer
    tools = agent.ask("tools/list")["result"]["tools"]
    assert [each["name"] for each in tools] == [each.name for each in TOOLS]
    assert tools[0]["inputSchema"]["required"] == ["prompt"]
    assert agent.ask("ping")["result"] == {}


def test_a_call_goes_to_holdfast_with_the_token_of_the_run(agent: Agent, holdfast: FakeHoldfast) -> None:
    answer = agent.ask("tools/call", name="task_status", arguments={"task": "t-1"})["result"]
    assert (answer["isError"], json.loads(answer["content"][0]["text"])) == (False, {"task": "t-1"})
    assert holdfast.asked == [("/v1/tools/task_status", "Bearer the-token", {"task": "t-1"})]


def test_a_refusal_is_told_to_the_agent_with_its_hint(agent: Agent, holdfast: FakeHoldfast) -> None:
    holdfast.answers = [(409, b'{"error": {"code": "delegation_limit", "message": "too many", "hint": "wait"}}')]
    answer = agent.ask("tools/call", name="delegate_task", arguments={"prompt": "a"})["result"]
    assert (answer["isError"], answer["content"][0]["text"]) == (True, "too many (wait)")


def test_a_call_that_is_repeated_has_the_same_key(agent: Agent, holdfast: FakeHoldfast) -> None:
    holdfast.answers = [(503, b"{}"), (502, b"{}")]
    answer = agent.ask("tools/call", name="delegate_task", arguments={"prompt": "a"})["result"]
    assert not answer["isError"]
    keys = {body["key"] for _, _, body in holdfast.asked}
    assert (len(holdfast.asked), len(keys)) == (3, 1)
    agent.ask("tools/call", name="delegate_task", arguments={"prompt": "a"})
    assert holdfast.asked[-1][2]["key"] not in keys
    agent.ask("tools/call", name="delegate_task", arguments={"prompt": "a", "key": "mine"})
    assert holdfast.asked[-1][2]["key"] == "mine"


def test_whatever_an_agent_says_it_gets_an_answer(agent: Agent, holdfast: FakeHoldfast) -> None:
    assert agent.say("{")["error"]["code"] == -32700
    assert agent.ask("nothing/like/it")["error"]["code"] == -32601
    assert agent.ask("tools/call", name="rm", arguments={})["result"]["isError"]
    assert agent.ask("tools/call")["result"]["isError"]
    for line in ("[]", "7", '"x"', '{"id": 1}', '{"result": {}, "id": 3}'):  # no requests: no answers
        agent_line(agent, line)
    assert agent.ask("ping")["result"] == {}
    assert holdfast.asked == []


def agent_line(agent: Agent, line: str) -> None:
    process = agent._process
    assert process.stdin is not None
    process.stdin.write(line.encode() + b"\n")


@pytest.mark.parametrize("answer", ["", "not json", "[]", '{"error": "text"}', '{"error": {}}', "x" * 9000])
def test_no_answer_of_a_server_breaks_the_message(answer: str) -> None:
    assert len(mcp_server.message_in(answer)) <= 500
