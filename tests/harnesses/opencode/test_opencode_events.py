"""The host of OpenCode in a session, whose events are lost: what it asks for, and what it does not believe.

The other side of the wire is the test: it speaks as OpenCode's server does, and loses events where it is told to.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Final

import pytest

from holdfast.guest.session_runner.mailbox import Mailbox
from holdfast.harnesses.opencode.host import Host

PATIENCE: Final = 240.0
PROMPT: Final = {
    "messageId": "r-1",
    "content": "do it",
    "turn": {"run": "r-1", "epoch": 2, "thread": "t", "agent": "opencode"},
}
Said = tuple[str, dict[str, Any]]


class Counterpart(ThreadingHTTPServer):
    """What OpenCode answers now. An event of None ends the stream of events."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answers)
        self.events: SimpleQueue[dict[str, Any] | None] = SimpleQueue()
        self.messages: list[dict[str, Any]] = []
        self.status: dict[str, Any] = {}
        self.permissions: list[dict[str, Any]] = []
        self.questions: list[dict[str, Any]] = []
        self.prompted = threading.Event()
        self.streams = 0
        self.refused_streams = 0
        """How many requests for events are refused from now on."""
        self.changed = threading.Condition()

    def wait_streams(self, count: int) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: self.streams >= count, PATIENCE)


class Answers(BaseHTTPRequestHandler):
    server: Counterpart

    def do_GET(self) -> None:
        if self.path == "/event":
            self._stream()
            return
        found: Any = {
            "/session/ses_1/message": self.server.messages,
            "/session/status": self.server.status,
            "/permission": self.server.permissions,
            "/question": self.server.questions,
            "/session/ses_1": {"id": "ses_1"},
        }.get(self.path, {})
        self._answer(found)

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("content-length", 0)))
        self._answer({"id": "ses_1"})
        if self.path.endswith("/prompt_async"):
            self.server.prompted.set()

    def _answer(self, found: Any) -> None:
        text = json.dumps(found).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def _stream(self) -> None:
        with self.server.changed:
            self.server.streams += 1
            refused = self.server.refused_streams > 0
            self.server.refused_streams -= refused
            self.server.changed.notify_all()
        self.send_response(503 if refused else 200)
        self.end_headers()
        while not refused and (event := self.server.events.get()) is not None:
            self.wfile.write(b"data: %s\n\n" % json.dumps(event).encode())
            self.wfile.flush()

    def log_message(self, format: str, *args: Any) -> None:
        pass


class Hosted:
    """A host whose main loop runs on a thread, and what it has said."""

    def __init__(self, folder: Path, server: Counterpart) -> None:
        program = folder / "opencode"
        program.write_text(
            f'#!/bin/sh\necho "listening on http://127.0.0.1:{server.server_address[1]}"\nexec sleep 600\n'
        )
        program.chmod(0o755)
        self._ahead = 0.0
        self.mailbox = Mailbox(lambda: time.monotonic() + self._ahead)
        self._said: SimpleQueue[Said] = SimpleQueue()
        self.all: list[Said] = []
        config = {"folder": str(folder), "file": str(folder / "opencode.json"), "configuration": {}}
        env = {"XDG_CONFIG_HOME": str(folder / "config")}
        self.host = Host(
            self.mailbox,
            lambda type, fields: self._said.put((type, fields)),
            {**config, "program": str(program), "env": env},
        )
        self.errors: list[Exception] = []
        self._thread = threading.Thread(target=self.mailbox.run, args=(self.errors.append,), daemon=True)
        self.host.start()
        self._thread.start()

    def do(self, type: str, fields: dict[str, Any]) -> None:
        self.mailbox.put(lambda: self.host.take(type, fields))

    def until(self, type: str) -> dict[str, Any]:
        while True:
            found = self._said.get(timeout=PATIENCE)
            self.all.append(found)
            if found[0] == type:
                return found[1]

    def later(self, seconds: float) -> None:
        """The clock goes on by so much, and the host looks at it."""

        def look() -> None:
            self._ahead += seconds
            self.host._check()

        self.mailbox.put(look)

    def turns(self) -> list[str]:
        """The turns that are in progress."""
        self.mailbox.put(lambda: self._said.put(("barrier", {})))
        self.mailbox.put(self.host.look)
        self.until("barrier")
        return list(self.until("agentStatus")["turns"])

    def close(self) -> None:
        self.mailbox.stop()
        self.mailbox.put(lambda: None)
        self._thread.join(PATIENCE)
        self.host.close()


@pytest.fixture
def server() -> Iterator[Counterpart]:
    with Counterpart() as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server
        for _ in range(8):
            server.events.put(None)
        server.shutdown()
        thread.join(PATIENCE)


@pytest.fixture
def hosted(tmp_path: Path, server: Counterpart) -> Iterator[Hosted]:
    hosted = Hosted(tmp_path, server)
    yield hosted
    hosted.close()
    assert hosted.errors == []


def begin(hosted: Hosted, server: Counterpart) -> None:
    hosted.do("prompt", PROMPT)
    hosted.until("message.create")
    assert server.prompted.wait(PATIENCE)
    server.wait_streams(1)


def answer(at: int, text: str = "Done.") -> dict[str, Any]:
    info = {"id": "msg_1", "sessionID": "ses_1", "role": "assistant", "time": {"created": at, "completed": at + 1}}
    part = {
        "id": "prt_1",
        "sessionID": "ses_1",
        "messageID": "msg_1",
        "type": "text",
        "text": text,
        "time": {"end": at},
    }
    return {"info": info, "parts": [part]}


FAR: Final = 4_000_000_000_000
"""Later than the beginning of any turn, in UTC milliseconds."""


def test_a_turn_whose_end_was_lost_ends_with_all_that_was_said(hosted: Hosted, server: Counterpart) -> None:
    begin(hosted, server)
    server.messages = [answer(FAR)]
    server.events.put(None)
    assert hosted.until("message.finalize")["reason"] == "end_turn"
    assert any("Done." in json.dumps(fields) for type, fields in hosted.all if type.startswith("message."))


def test_a_prompt_that_opencode_has_not_begun_is_not_taken_for_answered(hosted: Hosted, server: Counterpart) -> None:
    """Not even if its session has the answer to an earlier prompt, which is not said again."""
    server.messages = [answer(1, "Before.")]
    begin(hosted, server)
    server.permissions = [{"id": "per_1", "sessionID": "ses_1", "permission": "bash", "patterns": ["ls"]}]
    server.events.put(None)
    hosted.until("question")
    hosted.later(30)
    assert hosted.turns() == ["r-1"]
    server.permissions = []
    server.messages = [answer(1, "Before."), answer(FAR)]
    server.events.put(None)
    assert hosted.until("message.finalize")["reason"] == "end_turn"
    assert [said for said in hosted.all if "Before." in json.dumps(said)] == []
    assert [said for said in hosted.all if "Done." in json.dumps(said)] != []


def test_what_was_asked_while_events_were_lost_is_asked_now(hosted: Hosted, server: Counterpart) -> None:
    begin(hosted, server)
    server.status = {"ses_1": {"type": "busy"}}
    server.permissions = [{"id": "per_1", "sessionID": "ses_1", "permission": "bash", "patterns": ["ls"]}]
    server.questions = [{"id": "que_1", "sessionID": "ses_1", "questions": [{"question": "Which?", "options": []}]}]
    server.events.put(None)
    assert [hosted.until("question")["questionId"] for _ in range(2)] == ["per_1", "que_1"]


def test_a_server_that_gives_no_more_events_is_started_again(hosted: Hosted, server: Counterpart) -> None:
    begin(hosted, server)
    server.status = {"ses_1": {"type": "busy"}}
    server.refused_streams = 5
    server.events.put(None)
    health = hosted.until("runner-health")
    assert health["kind"] == "opencode_health_timeout"
    assert hosted.until("message.finalize")["reason"] == "error"
    server.wait_streams(7)
