"""Starts `opencode serve`, sends it the prompt, and prints its events, one JSON object per line.

The runner starts this program in a box instead of the agent, so it uses only the standard library. It reads lines of
JSON from standard input: first `{"type":"prompt","text":...,"model":{...}}`, then possibly `{"type":"abort"}`. It
prints the events of the session without repetitions, and some of its own, whose types start with `holdfast.`: the
session, the end of the server, and the end of the turn.
"""

from __future__ import annotations

import argparse
import base64
import http.client
import json
import os
import queue
import re
import secrets
import signal
import subprocess
import sys
import threading
import time
import urllib.parse

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

_START = 300.0
"""Seconds until the server must listen."""
_ANSWER = 30.0
_SILENCE = 120.0
"""Seconds of silence on the event stream. The server sends a heartbeat every ten."""
_SETTLE = 3.0
"""Seconds to wait for open messages after the session became idle or was aborted."""
_ABORT = 10.0
_LONGEST_WAIT = 900.0
"""The longest wait before a retry that a provider may ask for, in seconds."""
_CHECK_SECONDS = 2.0
"""Seconds between checks for processes that hold the output of a tool open."""
_MAX_LINE = 64 << 20
_MAX_WAITING = 4096
_MAX_ENVIRONMENT = 1 << 20
_MAX_HOLDERS = 5

_TOLD = frozenset(
    (
        "message.updated",
        "message.removed",
        "message.part.updated",
        "message.part.delta",
        "message.part.removed",
        "session.compacted",
        "session.error",
        "session.idle",
        "session.status",
    )
)


def main(arguments: Sequence[str] | None = None) -> int:
    options = argparse.ArgumentParser()
    options.add_argument("--program", required=True)
    options.add_argument("--retries", type=int, default=6)
    options.add_argument("--session")
    chosen = options.parse_args(arguments)
    prompt = _parse(sys.stdin.buffer.readline(_MAX_LINE))
    if prompt.get("type") != "prompt":
        _tell("failed", message="there was no prompt on standard input")
        return 2
    server = _Server(chosen.program)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda received, _: server.die_by(received))
    try:
        return _Turn(server, chosen.session, prompt, chosen.retries).run()
    except _Failed as error:
        code = server.ended()
        if code is not None:
            _tell("exited", code=code)
            return _end_as(code)
        _tell("failed", message=str(error))
        return 1
    finally:
        server.stop()


class _Failed(Exception):
    """The server did not start, or does not answer as expected."""


class _Server:
    """`opencode serve` on a free loopback port, with a password that only this process knows."""

    def __init__(self, program: str) -> None:
        password = secrets.token_urlsafe(32)
        self._credential = base64.b64encode(f"opencode:{password}".encode()).decode()
        self.process = subprocess.Popen(
            [program, "serve", "--hostname", "127.0.0.1", "--port", "0"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            env={**os.environ, "OPENCODE_SERVER_PASSWORD": password, "OPENCODE_SERVER_USERNAME": "opencode"},
        )
        self._listening = threading.Event()
        self._port = 0
        threading.Thread(target=self._read_output, daemon=True).start()

    def wait(self) -> None:
        end = time.monotonic() + _START
        while not self._listening.wait(0.05):
            if self.process.poll() is not None:
                raise _Failed(f"opencode serve ended with {self.process.returncode}")
            if time.monotonic() > end:
                raise _Failed(f"opencode serve did not listen within {_START:.0f} s")

    def ended(self) -> int | None:
        """Returns the exit code if it exits on its own."""
        try:
            return self.process.wait(0.5)
        except subprocess.TimeoutExpired:
            return None

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(2)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait(10)

    def die_by(self, number: int) -> None:
        """Pass a signal on to the agent, and exit by the same signal."""
        self.process.send_signal(number)
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    def ask(self, method: str, path: str, body: Any = None) -> dict[str, Any]:
        """Returns the object in the answer, or an empty one."""
        connection = self._connect(_ANSWER)
        try:
            data = None if body is None else json.dumps(body).encode()
            connection.request(method, path, data, self._headers())
            answer = connection.getresponse()
            text = answer.read(_MAX_LINE)
        except (OSError, http.client.HTTPException) as error:
            raise _Failed(f"opencode does not answer {method} {path}: {error!r}") from error
        finally:
            connection.close()
        if answer.status >= 300:
            raise _Failed(f"opencode answers {method} {path} with {answer.status}: {text[:500]!r}")
        return _parse(text)

    def events(self) -> http.client.HTTPResponse:
        connection = self._connect(_SILENCE)
        try:
            connection.request("GET", "/event", headers={**self._headers(), "accept": "text/event-stream"})
            answer = connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            raise _Failed(f"opencode sends no events: {error!r}") from error
        if answer.status != 200:
            raise _Failed(f"opencode sends no events: status {answer.status}")
        return answer

    def _connect(self, timeout: float) -> http.client.HTTPConnection:
        # Not with urllib, which would use the box's proxies from the environment.
        return http.client.HTTPConnection("127.0.0.1", self._port, timeout=timeout)

    def _headers(self) -> dict[str, str]:
        return {"authorization": f"Basic {self._credential}", "content-type": "application/json"}

    def _read_output(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            found = re.search(rb"listening on http://127\.0\.0\.1:(\d+)", line)
            if found and not self._port:
                self._port = int(found.group(1))
                self._listening.set()


class _Turn:
    """One prompt, from its request until all of its results are printed."""

    def __init__(self, server: _Server, session: str | None, prompt: dict[str, Any], retries: int) -> None:
        self._server = server
        self._session = session or ""
        self._prompt = prompt
        self._retries = retries
        self._given_up = False
        self._queue: queue.Queue[tuple[str, Any]] = queue.Queue(_MAX_WAITING)
        self._open: set[str] = set()
        """Incomplete messages of the model."""
        self._once: set[tuple[str, str]] = set()
        self._began = time.time() * 1000
        self._end = float("inf")
        """When the turn ends, even if messages are incomplete."""
        self._tools: dict[str, int] = {}
        """Running tools, and how many checks found that their command has ended."""
        self._checked = 0.0

    def run(self) -> int:
        threading.Thread(target=self._read_orders, daemon=True).start()
        self._server.wait()
        stream = self._server.events()
        threading.Thread(target=self._read_events, args=(stream,), daemon=True).start()
        self._begin()
        while True:
            wait = self._end - time.monotonic()
            if wait <= 0:
                break
            try:
                kind, value = self._queue.get(timeout=min(wait, _CHECK_SECONDS if self._tools else _SILENCE))
            except queue.Empty:
                self._check_tools()
                continue
            self._check_tools()
            if kind == "event" and self._take(value):
                break
            if kind == "abort":
                self._abort()
            if kind == "lost":
                raise _Failed(f"opencode's events stopped: {value}")
        _tell("ended")
        return 0

    def _begin(self) -> None:
        if self._session:
            info = self._server.ask("GET", f"/session/{urllib.parse.quote(self._session, safe='')}")
        else:
            # With a title, OpenCode does not ask the model for one.
            title = " ".join(str(self._prompt.get("text", "")).split())[:60] or "A run"
            info = self._server.ask("POST", "/session", {"title": title})
        if not isinstance(info.get("id"), str):
            raise _Failed("opencode answers with a session that has no id")
        self._session = info["id"]
        _tell("session", info=info)
        body = {"parts": [{"type": "text", "text": str(self._prompt.get("text", ""))}]}
        if isinstance(self._prompt.get("model"), dict):
            body["model"] = self._prompt["model"]
        self._server.ask("POST", f"/session/{self._session}/prompt_async", body)

    def _take(self, line: bytes) -> bool:
        """Print an event if it belongs to this session. Returns whether it ends the turn."""
        event = _parse(line)
        kind, about = event.get("type"), event.get("properties")
        if not isinstance(about, dict):
            return False
        if kind in ("permission.asked", "question.asked"):
            self._answer(str(kind), about)
        if kind not in _TOLD or about.get("sessionID", self._session) != self._session:
            return False
        if kind == "message.updated" and self._is_early(about):
            line = json.dumps(event).encode()
        if kind == "message.part.updated":
            self._watch_tool(about.get("part"))
        if not self._is_repeated(str(kind), about):
            _write(line)
        if kind == "session.status":
            self._watch_retries(about.get("status"))
        elif kind == "session.idle":
            if not self._open:
                return True
            self._end = min(self._end, time.monotonic() + _SETTLE)
        return kind == "message.updated" and self._end < float("inf") and not self._open

    def _is_early(self, about: dict[str, Any]) -> bool:
        """Returns whether the first event of an answer already says that it is complete, which is then too early.

        OpenCode reports the current state when it sends an event. The parts of the answer still follow, and then the
        same event again.
        """
        info = about.get("info") or {}
        times = info.get("time")
        if info.get("role") != "assistant" or not isinstance(times, dict):
            return False
        created = times.get("created")
        if (
            not isinstance(created, (int, float))
            or created < self._began
            or self._seen_before("answer", str(info.get("id")))
        ):
            return False
        return times.pop("completed", None) is not None

    def _is_repeated(self, kind: str, about: dict[str, Any]) -> bool:
        """Returns whether this is a repeated user message, or partial output of a tool, whose end repeats all of it."""
        if kind == "message.updated":
            info = about.get("info") or {}
            ident = str(info.get("id"))
            if info.get("role") == "user":
                return self._seen_before("user", ident)
            if "completed" in (info.get("time") or {}):
                self._open.discard(ident)
                return self._seen_before("whole", ident)
            self._open.add(ident)
        elif kind == "message.part.updated":
            part = about.get("part") or {}
            if part.get("type") == "tool" and (part.get("state") or {}).get("status") == "running":
                return self._seen_before("running", str(part.get("id")))
        return False

    def _seen_before(self, what: str, ident: str) -> bool:
        if (what, ident) in self._once:
            return True
        if len(self._once) > 100_000:
            self._once.clear()
        self._once.add((what, ident))
        return False

    def _watch_tool(self, part: Any) -> None:
        if not isinstance(part, dict) or part.get("type") != "tool":
            return
        ident, state = str(part.get("id")), part.get("state")
        if isinstance(state, dict) and state.get("status") == "running":
            if len(self._tools) < _MAX_WAITING:
                self._tools.setdefault(ident, 0)
        else:
            self._tools.pop(ident, None)

    def _check_tools(self) -> None:
        """Warn if OpenCode waits for the output of a command that has ended, because another process holds it open."""
        if not self._tools or time.monotonic() - self._checked < _CHECK_SECONDS:
            return
        self._checked = time.monotonic()
        holders = _holders_of_output(self._server.process.pid)
        for tool, checks in self._tools.items():
            self._tools[tool] = checks + 1 if holders or checks > 1 else 0
            if holders and checks == 1:  # the second check: it is not a command that is just ending
                _tell(
                    "warning",
                    message=f"the command has ended, and OpenCode waits for its output, which is held open by"
                    f" {', '.join(holders)}; it goes on when that ends, or closes its output",
                )

    def _watch_retries(self, status: Any) -> None:
        """End the turn after too many retries. OpenCode itself never stops retrying."""
        if not isinstance(status, dict) or status.get("type") != "retry" or self._given_up:
            return
        attempt, following = status.get("attempt"), status.get("next")
        too_often = isinstance(attempt, int) and attempt > self._retries
        too_late = isinstance(following, (int, float)) and following / 1000 - time.time() > _LONGEST_WAIT
        if too_often or too_late:
            self._given_up = True  # another attempt may start before the abort
            _tell("gave_up", attempt=attempt, message=str(status.get("message", "")))
            self._abort()

    def _answer(self, kind: str, about: dict[str, Any]) -> None:
        """Answer requests for a user at once, because there is none. Tools ask in sessions of their own."""
        request = urllib.parse.quote(str(about.get("id", "")), safe="")
        try:
            if kind == "permission.asked":
                self._server.ask("POST", f"/permission/{request}/reply", {"reply": "once"})
            else:
                self._server.ask("POST", f"/question/{request}/reject", {})
        except _Failed as error:
            _tell("warning", message=str(error))

    def _abort(self) -> None:
        self._end = min(self._end, time.monotonic() + _ABORT)
        if self._session:
            self._server.ask("POST", f"/session/{self._session}/abort", {})

    def _read_events(self, stream: http.client.HTTPResponse) -> None:
        try:
            while True:
                line = stream.readline(_MAX_LINE)
                if not line:
                    raise OSError("the stream ended")
                if line.startswith(b"data:"):
                    self._queue.put(("event", line[5:].strip()))
        except (OSError, http.client.HTTPException, ValueError) as error:
            self._queue.put(("lost", error))

    def _read_orders(self) -> None:
        for line in iter(lambda: sys.stdin.buffer.readline(_MAX_LINE), b""):
            if _parse(line).get("type") == "abort":
                self._queue.put(("abort", None))


def _holders_of_output(server: int) -> list[str]:
    """Returns processes that outlived their command and hold its output open. Empty while a command runs."""
    parents: dict[int, int] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    state, parent = file.read().rpartition(b")")[2].split()[:2]
            except (OSError, ValueError):
                continue
            if state != b"Z":
                parents[int(name)] = int(parent)
    if server in parents.values():
        return []
    mark = b"HOLDFAST_RUN=" + os.environ.get("HOLDFAST_RUN", "").encode()
    holders = []
    for pid in sorted(parents):
        if pid in (server, os.getpid()):
            continue
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                is_ours = mark in file.read(_MAX_ENVIRONMENT).split(b"\0")
            outputs = [os.readlink(f"/proc/{pid}/fd/{number}") for number in (1, 2)]
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                words = file.read(200).replace(b"\0", b" ").decode("utf-8", "replace").strip()
        except OSError:
            continue
        if is_ours and any(each.startswith(("pipe:", "socket:")) for each in outputs):
            holders.append(f"process {pid} ({words})")
    return holders[:_MAX_HOLDERS]


def _end_as(code: int) -> int:
    """Exit by the signal that ended the server, so that the runner sees the same signal."""
    if code in (-signal.SIGINT, -signal.SIGTERM):
        signal.signal(-code, signal.SIG_DFL)
    if code in (-signal.SIGINT, -signal.SIGTERM, -signal.SIGKILL):
        os.kill(os.getpid(), -code)
    return code or 1 if code >= 0 else 128 - code


def _parse(line: bytes) -> dict[str, Any]:
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return message if isinstance(message, dict) else {}


def _tell(kind: str, **about: Any) -> None:
    _write(json.dumps({"type": f"holdfast.{kind}", "properties": about}).encode())


def _write(line: bytes) -> None:
    sys.stdout.buffer.write(line + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    sys.exit(main())
