"""The agent as a process: started in its own session, given input, read line by line. Does not interpret lines."""

from __future__ import annotations

import errno
import os

from holdfast.guest.runner.event_loop import READ, WRITE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from holdfast.guest.runner.event_loop import Loop

MAX_LINE = 16 << 20
KEPT_STDERR = 64 << 10
_PIECE = 256 << 10
_SIGNALS = (1, 2, 13, 25)
"""What the runner or its interpreter ignores: hangup, interrupt, broken pipes, files that grow too large."""


class Lines:
    """Splits bytes into lines. Of a line that is too long, only the length is kept."""

    def __init__(self, limit: int = MAX_LINE) -> None:
        self._limit = limit
        self._begun = bytearray()
        self._skipped = 0

    def add(self, data: bytes) -> list[bytes | int]:
        """Returns the complete lines without line ends, or the length of a line that was skipped."""
        pieces = data.split(b"\n")
        whole: list[bytes | int] = []
        for piece in pieces[:-1]:
            if self._begun or self._skipped:
                self._continue(piece)
                whole += self.rest()
            elif len(piece) <= self._limit:
                whole.append(piece)
            else:
                whole.append(len(piece))
        self._continue(pieces[-1])
        return whole

    def rest(self) -> list[bytes | int]:
        """Returns what came after the last line end."""
        line: bytes | int = self._skipped or bytes(self._begun)
        self._begun = bytearray()
        self._skipped = 0
        return [line] if line else []

    def _continue(self, piece: bytes) -> None:
        if self._skipped:
            self._skipped += len(piece)
        elif len(self._begun) + len(piece) > self._limit:
            self._skipped = len(self._begun) + len(piece)
            self._begun = bytearray()
        else:
            self._begun += piece


class Agent:
    """Owns the pipes to the process. The caller that reaps it reports its exit."""

    def __init__(self, loop: Loop, on_lines: Callable[[list[bytes | int]], None], on_end: Callable[[], None]) -> None:
        self.pid = 0
        self.ended = False
        """Its output has ended."""
        self.stderr = bytearray()
        """The end of its error output."""
        self._loop = loop
        self._on_lines = on_lines
        self._on_end = on_end
        self._lines = Lines()
        self._stdin = -1
        self._stdout = -1
        self._errors = -1
        self._input = b""
        self._keep_stdin = False
        self._paused = False

    def start(
        self,
        argv: list[str],
        env: Mapping[str, str],
        cwd: str,
        *,
        stdin: bytes | None,
        keep_stdin: bool,
        program: int | None = None,
    ) -> None:
        """Start the process. Raises OSError. With `keep_stdin`, more may be written later. `program` becomes descriptor
        3.
        """
        path = find_program(argv[0], env, cwd)
        opened: list[int] = []

        def pipe() -> tuple[int, int]:
            ends = os.pipe2(os.O_CLOEXEC)
            opened.extend(ends)
            return ends

        here = os.getcwd()
        child_ends: list[int] = []
        try:
            if stdin is not None or keep_stdin:
                source, self._stdin = pipe()
            else:
                source = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
                opened.append(source)
            self._stdout, output = pipe()
            self._errors, errors = pipe()
            child_ends = [source, output, errors]
            actions: list[tuple[Any, ...]] = [
                (os.POSIX_SPAWN_DUP2, each, number) for number, each in enumerate(child_ends)
            ]
            if program is not None:
                actions.append((os.POSIX_SPAWN_DUP2, program, 3))
            os.chdir(cwd)
            self.pid = os.posix_spawn(
                path, argv, env, file_actions=actions, setsid=True, setsigmask=(), setsigdef=_SIGNALS
            )
        except BaseException:
            for each in opened:
                os.close(each)
            self._stdin = self._stdout = self._errors = -1
            raise
        finally:
            os.chdir(here)
        for each in child_ends:
            os.close(each)
        for each in (self._stdin, self._stdout, self._errors):
            if each >= 0:
                os.set_blocking(each, False)
        self._keep_stdin = keep_stdin
        self._loop.watch(self._stdout, READ, self._on_output)
        self._loop.watch(self._errors, READ, self._on_errors)
        if self._stdin >= 0:
            self.write(stdin or b"")

    # --- its input ---

    def write(self, data: bytes) -> None:
        """Write to the agent as it reads. If it no longer reads, the data is dropped."""
        if self._stdin >= 0:
            self._input += data
            self._feed(0)

    def _feed(self, events: int) -> None:
        try:
            while self._input:
                self._input = self._input[os.write(self._stdin, self._input) :]
        except BlockingIOError:
            self._loop.watch(self._stdin, WRITE, self._feed)
            return
        except OSError:
            self.close_stdin()
            return
        self._loop.unwatch(self._stdin)
        if not self._keep_stdin:
            self.close_stdin()

    def close_stdin(self) -> None:
        if self._stdin >= 0:
            self._loop.unwatch(self._stdin)
            os.close(self._stdin)
            self._stdin = -1
            self._input = b""

    # --- its output ---

    def pause(self) -> None:
        """Stop reading for now. The agent blocks when its pipe is full."""
        if not self._paused and not self.ended and self._stdout >= 0:
            self._paused = True
            self._loop.unwatch(self._stdout)

    def go_on(self) -> None:
        if self._paused and not self.ended:
            self._paused = False
            self._loop.watch(self._stdout, READ, self._on_output)

    def _on_output(self, events: int) -> None:
        try:
            data = os.read(self._stdout, _PIECE)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            lines = self._lines.add(data)
            if lines:
                self._on_lines(lines)
        else:
            self.end_output()

    def end_output(self) -> None:
        """End the output, even if a process still holds the other end."""
        if not self.ended and self._stdout >= 0:
            self.ended = True
            self._loop.unwatch(self._stdout)
            os.close(self._stdout)
            rest = self._lines.rest()
            if rest:
                self._on_lines(rest)
            self._on_end()

    def _on_errors(self, events: int) -> None:
        try:
            data = os.read(self._errors, _PIECE)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            self.stderr += data
            del self.stderr[:-KEPT_STDERR]
        else:
            self.end_errors()

    def end_errors(self) -> None:
        """Read what is available, and no more."""
        if self._errors >= 0:
            descriptor, self._errors = self._errors, -1
            self._loop.unwatch(descriptor)
            try:
                for _ in range(64):  # a process with the other end could write forever
                    data = os.read(descriptor, _PIECE)
                    if not data:
                        break
                    self.stderr += data
                    del self.stderr[:-KEPT_STDERR]
            except OSError:
                pass
            os.close(descriptor)


def find_program(name: str, env: Mapping[str, str], cwd: str) -> str:
    """Find a program in the PATH of the agent, not in ours. Raises OSError."""
    if "/" in name:
        return name
    number = errno.ENOENT
    for folder in env.get("PATH", os.defpath).split(":"):
        path = os.path.join(cwd, folder, name)
        if os.path.isfile(path):
            if os.access(path, os.X_OK):
                return path
            number = errno.EACCES
    raise OSError(number, os.strerror(number), name)
