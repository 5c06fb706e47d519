"""`opencode serve` as a process, and requests to it.

Used in boxes, by the driver of a run and the host of a session.
"""

from __future__ import annotations

import base64
import http.client
import json
import os
import re
import secrets
import signal
import subprocess
import threading
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

MAX_LINE = 64 << 20
SILENCE = 120.0
"""Seconds of silence on the event stream. The server sends a heartbeat every ten."""
_START = 300.0
"""Seconds until the server must listen."""
_ANSWER = 30.0


class Failed(Exception):
    """The server did not start, or does not answer as expected."""


class Server:
    """`opencode serve` on a free loopback port, with a password that only this process knows."""

    def __init__(self, program: str, environment: Mapping[str, str] | None = None, folder: str | None = None) -> None:
        """`environment` and `folder` are those of this process if left out."""
        password = secrets.token_urlsafe(32)
        own = {"OPENCODE_SERVER_PASSWORD": password, "OPENCODE_SERVER_USERNAME": "opencode"}
        self._credential = base64.b64encode(f"opencode:{password}".encode()).decode()
        self.process = subprocess.Popen(
            [program, "serve", "--hostname", "127.0.0.1", "--port", "0"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            cwd=folder,
            start_new_session=True,  # a signal to the runner's group is not for the agent
            env={**(os.environ if environment is None else environment), **own},
        )
        self._listening = threading.Event()
        self._port = 0
        threading.Thread(target=self._read_output, daemon=True).start()

    def wait(self) -> None:
        end = time.monotonic() + _START
        while not self._listening.wait(0.05):
            if self.process.poll() is not None:
                raise Failed(f"opencode serve ended with {self.process.returncode}")
            if time.monotonic() > end:
                raise Failed(f"opencode serve did not listen within {_START:.0f} s")

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
        return parse_object(self.request(method, path, body))

    def request(self, method: str, path: str, body: Any = None, seconds: float = _ANSWER) -> bytes:
        """Returns the answer. Raises `Failed`."""
        connection = self._connect(seconds)
        try:
            data = None if body is None else json.dumps(body).encode()
            connection.request(method, path, data, self._headers())
            answer = connection.getresponse()
            text = answer.read(MAX_LINE)
        except (OSError, http.client.HTTPException) as error:
            raise Failed(f"opencode does not answer {method} {path}: {error!r}") from error
        finally:
            connection.close()
        if answer.status >= 300:
            raise Failed(f"opencode answers {method} {path} with {answer.status}: {text[:500]!r}")
        return text

    def events(self) -> http.client.HTTPResponse:
        connection = self._connect(SILENCE)
        try:
            connection.request("GET", "/event", headers={**self._headers(), "accept": "text/event-stream"})
            answer = connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise Failed(f"opencode sends no events: {error!r}") from error
        if answer.status != 200:
            answer.close()
            connection.close()
            raise Failed(f"opencode sends no events: status {answer.status}")
        return answer

    def _connect(self, timeout: float) -> http.client.HTTPConnection:
        # Not with urllib, which would use the box's proxies from the environment.
        return http.client.HTTPConnection("127.0.0.1", self._port, timeout=timeout)

    def _headers(self) -> dict[str, str]:
        return {"authorization": f"Basic {self._credential}", "content-type": "application/json"}

    def _read_output(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as output:
            for line in output:
                found = re.search(rb"listening on http://127\.0\.0\.1:(\d+)", line)
                if found and not self._port:
                    self._port = int(found.group(1))
                    self._listening.set()


def parse_object(line: bytes) -> dict[str, Any]:
    """Returns the object of a line of JSON, or an empty one."""
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return message if isinstance(message, dict) else {}
