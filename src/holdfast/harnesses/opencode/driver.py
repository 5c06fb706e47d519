"""Starts `opencode serve`, sends it the prompt, and prints its events, one JSON object per line.

The runner starts this program in a box instead of the agent, so it uses only the standard library. It reads lines of
JSON from standard input: first `{"type":"prompt","text":...,"model":{...}}`, then possibly `{"type":"abort"}`. It
prints the events of the session without repetitions, and some of its own, whose types start with `holdfast.`: the
session, the end of the server, and the end of the turn.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import queue
import signal
import sys
import threading
import time
import urllib.parse

from holdfast.harnesses.opencode.events import ASKED, TurnEvents
from holdfast.harnesses.opencode.server import MAX_LINE, SILENCE, Failed, Server, parse_object

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

_SETTLE = 3.0
"""Seconds to wait for open messages after the session became idle or was aborted."""
_ABORT = 10.0
_LONGEST_WAIT = 900.0
"""The longest wait before a retry that a provider may ask for, in seconds."""
_CHECK_SECONDS = 2.0
"""Seconds between checks for processes that hold the output of a tool open."""
_MAX_WAITING = 4096
_MAX_ENVIRONMENT = 1 << 20
_MAX_HOLDERS = 5


def main(arguments: Sequence[str] | None = None) -> int:
    options = argparse.ArgumentParser()
    options.add_argument("--program", required=True)
    options.add_argument("--retries", type=int, default=6)
    options.add_argument("--session")
    chosen = options.parse_args(arguments)
    prompt = parse_object(sys.stdin.buffer.readline(MAX_LINE))
    if prompt.get("type") != "prompt":
        _tell("failed", message="there was no prompt on standard input")
        return 2
    server = Server(chosen.program)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda received, _: server.die_by(received))
    try:
        return _Turn(server, chosen.session, prompt, chosen.retries).run()
    except Failed as error:
        code = server.ended()
        if code is not None:
            _tell("exited", code=code)
            return _end_as(code)
        _tell("failed", message=str(error))
        return 1
    finally:
        server.stop()


class _Turn:
    """One prompt, from its request until all of its results are printed."""

    def __init__(self, server: Server, session: str | None, prompt: dict[str, Any], retries: int) -> None:
        self._server = server
        self._session = session or ""
        self._prompt = prompt
        self._retries = retries
        self._given_up = False
        self._queue: queue.Queue[tuple[str, Any]] = queue.Queue(_MAX_WAITING)
        self._events = TurnEvents(self._session, time.time() * 1000)
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
                kind, value = self._queue.get(timeout=min(wait, _CHECK_SECONDS if self._tools else SILENCE))
            except queue.Empty:
                self._check_tools()
                continue
            self._check_tools()
            if kind == "event" and self._take(value):
                break
            if kind == "abort":
                self._abort()
            if kind == "lost":
                raise Failed(f"opencode's events stopped: {value}")
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
            raise Failed("opencode answers with a session that has no id")
        self._session = self._events.session = info["id"]
        _tell("session", info=info)
        body = {"parts": [{"type": "text", "text": str(self._prompt.get("text", ""))}]}
        if isinstance(self._prompt.get("model"), dict):
            body["model"] = self._prompt["model"]
        self._server.ask("POST", f"/session/{self._session}/prompt_async", body)

    def _take(self, line: bytes) -> bool:
        """Print an event if it belongs to this session. Returns whether it ends the turn."""
        event = self._events.take(line)
        if event is None:
            return False
        if event.kind in ASKED:
            self._answer(event.kind, event.about)
            return False
        if event.kind == "message.part.updated":
            self._watch_tool(event.about.get("part"))
        if event.told is not None:
            _write(event.told)
        if event.kind == "session.status":
            self._watch_retries(event.about.get("status"))
        elif event.kind == "session.idle":
            if not self._events.open:
                return True
            self._end = min(self._end, time.monotonic() + _SETTLE)
        return event.kind == "message.updated" and self._end < float("inf") and not self._events.open

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
        except Failed as error:
            _tell("warning", message=str(error))

    def _abort(self) -> None:
        self._end = min(self._end, time.monotonic() + _ABORT)
        if self._session:
            self._server.ask("POST", f"/session/{self._session}/abort", {})

    def _read_events(self, stream: http.client.HTTPResponse) -> None:
        try:
            while True:
                line = stream.readline(MAX_LINE)
                if not line:
                    raise OSError("the stream ended")
                if line.startswith(b"data:"):
                    self._queue.put(("event", line[5:].strip()))
        except (OSError, http.client.HTTPException, ValueError) as error:
            self._queue.put(("lost", error))

    def _read_orders(self) -> None:
        for line in iter(lambda: sys.stdin.buffer.readline(MAX_LINE), b""):
            if parse_object(line).get("type") == "abort":
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


def _tell(kind: str, **about: Any) -> None:
    _write(json.dumps({"type": f"holdfast.{kind}", "properties": about}).encode())


def _write(line: bytes) -> None:
    sys.stdout.buffer.write(line + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    sys.exit(main())
