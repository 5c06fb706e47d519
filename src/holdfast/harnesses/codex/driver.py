"""Starts `codex exec --json`, and prints its output together with the records of its session file.

The runner starts this program in a box instead of the agent, so it uses only the standard library. It reads lines of
JSON from standard input: first `{"type":"prompt","text":...}`, then possibly `{"type":"abort"}`. An abort sends SIGINT
to Codex, which ends its tool, notes the abort in its session and exits. The driver exits like Codex.
"""

from __future__ import annotations

import argparse
import glob
import json
import os
import select
import signal
import stat
import subprocess
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

_READ = 1 << 16
_SOON = 0.05
"""Seconds between reads of the session file while Codex prints nothing."""
_LONGEST = 64 << 20
"""The most bytes of a record. Longer records are skipped."""


def main(arguments: Sequence[str] | None = None) -> int:
    options = argparse.ArgumentParser()
    options.add_argument("--home", required=True)
    options.add_argument("--program", required=True)
    options.add_argument("--node", required=True)
    options.add_argument("--session")
    chosen = options.parse_args(arguments)
    lines = _Lines(0)
    prompt = _prompt(lines)
    if prompt is None:
        print("there was no prompt on standard input", file=sys.stderr)
        return 2
    rollout = _Rollout(chosen.home, chosen.session)
    process = subprocess.Popen(
        _command(chosen.program, chosen.node, chosen.session), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    # The runner knows only this process, so pass on signals that are meant for the agent.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda received, _: process.send_signal(received))
    assert process.stdout is not None
    _Follower(process, process.stdout.fileno(), rollout, lines, prompt).run()
    return _end_as(process.wait())


def _command(program: str, node: str, session: str | None) -> list[str]:
    flags = ["--json", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"]
    # The package starts Codex with a node script. Starting the binary directly is faster.
    native = sorted(glob.glob(f"{glob.escape(program)}/node_modules/@openai/codex-*/vendor/*/bin/codex"))
    codex = native[:1] or [node, f"{program}/node_modules/.bin/codex"]
    if session is None:
        return [*codex, "exec", *flags, "-"]
    return [*codex, "exec", "resume", *flags, session, "-"]


def _prompt(lines: _Lines) -> str | None:
    while not lines.over:
        for line in lines.read():
            message = _parse(line)
            if message.get("type") == "prompt":
                return str(message.get("text", ""))
    return None


def _end_as(code: int) -> int:
    """Exit by the signal that ended Codex, so that the runner sees the same signal."""
    if code >= 0:
        return code
    if code in (-signal.SIGINT, -signal.SIGTERM):
        signal.signal(-code, signal.SIG_DFL)
    if code in (-signal.SIGINT, -signal.SIGTERM, -signal.SIGKILL):
        os.kill(os.getpid(), -code)
    return 128 - code


class _Follower:
    """Passes on the output and the session records of Codex until it has exited."""

    def __init__(
        self, process: subprocess.Popen[bytes], output: int, rollout: _Rollout, input_lines: _Lines, prompt: str
    ) -> None:
        self._process = process
        self._output = _Lines(output)
        self._rollout = rollout
        self._input = input_lines
        self._prompt = memoryview(prompt.encode("utf-8", "replace"))

    def run(self) -> None:
        feed = self._process.stdin
        assert feed is not None
        os.set_blocking(feed.fileno(), False)
        while not self._output.over:
            reads = [self._output.descriptor]
            if not self._input.over:
                reads.append(self._input.descriptor)
            writes = [] if feed.closed else [feed.fileno()]
            ready, writable, _ = select.select(reads, writes, [], _SOON)
            if writable:
                self._feed()
            if self._output.descriptor in ready:
                # Session records first: Codex writes a record before it prints its event.
                printed = self._output.read()
                for line in printed:
                    if b'"thread.started"' in line:
                        self._rollout.begin(str(_parse(line).get("thread_id", "")))
                _write(self._rollout.read())
                _write(printed)
            else:
                _write(self._rollout.read())
            if self._input.descriptor in ready:
                self._obey()
            if self._process.poll() is not None and self._output.descriptor not in ready:
                break  # a tool that outlived Codex may keep its output open
        if not feed.closed:
            feed.close()
        self._process.wait()
        _write(self._rollout.read())

    def _feed(self) -> None:
        feed = self._process.stdin
        assert feed is not None
        try:
            if self._prompt:
                self._prompt = self._prompt[os.write(feed.fileno(), self._prompt) :]
        except BlockingIOError:
            return
        except BrokenPipeError:
            self._prompt = self._prompt[:0]
        if not self._prompt:
            feed.close()

    def _obey(self) -> None:
        for line in self._input.read():
            if _parse(line).get("type") == "abort":
                self._process.send_signal(signal.SIGINT)


class _Rollout:
    """Reads new records of the session file."""

    def __init__(self, home: str, session: str | None) -> None:
        self._folder = f"{glob.escape(home)}/sessions"
        self._session = ""
        self._file: int | None = None
        self._cutter = _Cutter()
        self._known = 0
        if session is not None:
            path = self._find(session)
            if path is not None:
                self._known = _mend(path)

    def begin(self, session: str) -> None:
        """Called when Codex has reported its session."""
        if not self._session and session.replace("-", "").isalnum():
            self._session = session

    def read(self) -> list[bytes]:
        if self._file is None and not self._open():
            return []
        assert self._file is not None
        lines: list[bytes] = []
        while True:
            data = os.read(self._file, _READ)
            if not data:
                return lines
            lines += self._cutter.cut(data)

    def _open(self) -> bool:
        path = self._find(self._session) if self._session else None
        if path is None:
            return False
        try:
            # The agent controls this path. It may be a link or a pipe, which must not block the driver.
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return False
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            return False
        os.lseek(descriptor, self._known, os.SEEK_SET)
        self._file = descriptor
        return True

    def _find(self, session: str) -> str | None:
        found = sorted(glob.glob(f"{self._folder}/*/*/*/rollout-*{glob.escape(session)}.jsonl"))
        return found[-1] if found else None


def _mend(path: str) -> int:
    """Remove an incomplete record from the end of a session file. Returns the new size."""
    try:
        with open(path, "r+b") as file:
            size = end = file.seek(0, os.SEEK_END)
            while end > 0:
                start = max(0, end - _READ)
                file.seek(start)
                found = file.read(end - start).rfind(b"\n")
                if found >= 0:
                    end = start + found + 1
                    break
                end = start
            if end != size:
                file.truncate(end)
            return end
    except OSError:
        return 0


class _Lines:
    """Reads lines from a pipe."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.over = False
        self._cutter = _Cutter()

    def read(self) -> list[bytes]:
        """Returns the complete lines of one read. Blocks if nothing is available."""
        data = os.read(self.descriptor, _READ)
        if data:
            return self._cutter.cut(data)
        self.over = True
        return self._cutter.cut(b"\n")


class _Cutter:
    """Splits data into lines. Skips lines that are empty or too long."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._size = 0

    def cut(self, data: bytes) -> list[bytes]:
        first, *others = data.split(b"\n")
        self._add(first)
        lines = []
        for piece in others:
            if 0 < self._size <= _LONGEST:
                lines.append(b"".join(self._pieces))
            self._pieces, self._size = [], 0
            self._add(piece)
        return lines

    def _add(self, piece: bytes) -> None:
        self._size += len(piece)
        if self._size <= _LONGEST:
            self._pieces.append(piece)
        else:
            self._pieces = []


def _parse(line: bytes) -> dict[str, object]:
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return message if isinstance(message, dict) else {}


def _write(lines: list[bytes]) -> None:
    if lines:
        sys.stdout.buffer.write(b"\n".join(lines) + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    sys.exit(main())
