"""JSON-RPC over the standard streams of an agent, and lines of JSON on our own standard input, in one thread.

Runs inside a box, so it needs only the standard library. The agent is not trusted: malformed lines are skipped.
"""

from __future__ import annotations

import json
import os
import select

TYPE_CHECKING = False
if TYPE_CHECKING:
    import subprocess
    from typing import Any

    Message = dict[str, Any]

NO_SUCH_METHOD = -32601
WRONG_PARAMETERS = -32602
FAILED = -32603
_READ = 1 << 16
_LONGEST = 64 << 20
"""The most bytes of a line. Longer lines are skipped."""


class Gone(Exception):
    """The agent's output has ended."""


class RpcConnection:
    """Owns the streams of the process. Writing blocks while the agent does not read, but keeps reading meanwhile."""

    def __init__(self, process: subprocess.Popen[bytes], own_input: Lines, early: list[Message]) -> None:
        """`early` are messages of our own input that were already read."""
        assert process.stdin is not None
        assert process.stdout is not None
        self._to_agent = process.stdin.fileno()
        self._from_agent = Lines(process.stdout.fileno())
        self._own = own_input
        self._count = 0
        self._read: list[tuple[bool, Message]] = [(False, message) for message in early]
        os.set_blocking(self._to_agent, False)

    def request(self, method: str, parameters: Message) -> int:
        self._count += 1
        self._send({"jsonrpc": "2.0", "id": self._count, "method": method, "params": parameters})
        return self._count

    def notify(self, method: str, parameters: Message) -> None:
        self._send({"jsonrpc": "2.0", "method": method, "params": parameters})

    def answer(self, request: Any, result: Any) -> None:
        self._send({"jsonrpc": "2.0", "id": request, "result": result})

    def refuse(self, request: Any, code: int, message: str) -> None:
        self._send({"jsonrpc": "2.0", "id": request, "error": {"code": code, "message": message}})

    def receive(self, seconds: float | None) -> list[tuple[bool, Message]]:
        """Returns the messages, each with whether it is from the agent. Empty after a timeout. Raises `Gone`."""
        if not self._read:
            self._wait(seconds, b"")
        read, self._read = self._read, []
        if not read and self._from_agent.over:
            raise Gone
        return read

    def _send(self, message: Message) -> None:
        left = memoryview(json.dumps(message).encode("utf-8", "replace") + b"\n")
        while left:
            if self._from_agent.over:
                raise Gone
            left = left[self._wait(None, left) :]

    def _wait(self, seconds: float | None, data: bytes | memoryview) -> int:
        """Reads what is available, and writes what fits. Returns the number of bytes written."""
        sources = [each for each in (self._from_agent, self._own) if not each.over]
        targets = [self._to_agent] if data else []
        ready, writable, _ = select.select([each.descriptor for each in sources], targets, [], seconds)
        for each in sources:
            if each.descriptor in ready:
                self._read += [(each is self._from_agent, message) for message in each.read()]
        if not writable:
            return 0
        try:
            return os.write(self._to_agent, data[:_READ])
        except BlockingIOError:
            return 0
        except BrokenPipeError:
            raise Gone from None


class Lines:
    """Reads JSON objects from a pipe, one per line."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.over = False
        self._pieces: list[bytes] = []
        self._size = 0

    def read(self) -> list[Message]:
        """Returns the complete messages of one read."""
        data = os.read(self.descriptor, _READ)
        if not data:
            self.over = True
            data = b"\n"
        first, *others = data.split(b"\n")
        self._add(first)
        messages = []
        for piece in others:
            if 0 < self._size <= _LONGEST:
                messages += _parsed(b"".join(self._pieces))
            self._pieces, self._size = [], 0
            self._add(piece)
        return messages

    def _add(self, piece: bytes) -> None:
        self._size += len(piece)
        if self._size <= _LONGEST:
            self._pieces.append(piece)
        else:
            self._pieces = []


def _parsed(line: bytes) -> list[Message]:
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        return []
    return [message] if isinstance(message, dict) else []
