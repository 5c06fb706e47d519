"""Commands in a guest: checks them before they are sent, keeps their output, and turns refusals into errors."""

from __future__ import annotations

import collections
import errno
import os
from collections.abc import Mapping, Sequence
from typing import Any, Final

from holdfast.api.errors.boxes import (
    BoxConflict,
    BoxUnreachable,
    CannotExecute,
    CommandNotFound,
    InvalidSpec,
    OutputTooLarge,
    Unsupported,
)
from holdfast.providers.guest_answers import GuestRefused

_MAX_SIZE: Final = 10_000
_TAIL: Final = 64 * 1024


def start_request(
    operation: str, argv: Sequence[str], env: Mapping[str, str], cwd: str, **more: object
) -> dict[str, Any]:
    """Returns the request for a command. Raises `InvalidSpec` if the command is malformed."""
    if isinstance(argv, (str, bytes)) or not argv or not all(isinstance(each, str) for each in argv) or not argv[0]:
        raise InvalidSpec("a command is a list of strings that starts with a program, for example ['ls', '-l']")
    for each in (*argv, *env, *env.values(), cwd):
        if "\0" in each:
            raise InvalidSpec("a command, its environment and its folder cannot hold a NUL character")
    if any("=" in name or not name for name in env):
        raise InvalidSpec("the name of an environment variable cannot be empty or hold a =")
    return {"op": operation, "argv": list(argv), "env": dict(env), "cwd": cwd, **more}


def check_terminal(rows: int, columns: int) -> None:
    if not (0 < rows <= _MAX_SIZE and 0 < columns <= _MAX_SIZE):
        raise InvalidSpec(f"a terminal cannot have {rows} rows and {columns} columns: 1 to {_MAX_SIZE} of each")


def cannot_execute(refused: GuestRefused, argv: Sequence[str], cwd: str) -> Exception:
    reason = os.strerror(refused.number).lower()
    if refused.number in (errno.EPROTO, errno.EEXIST):
        return BoxUnreachable(f"the guest did not understand a request: {refused}")
    if refused.about == cwd != argv[0]:
        return CannotExecute(f"the command cannot start in {cwd}: {reason}", hint="choose another folder")
    if refused.number in (errno.EAGAIN, errno.ENOMEM):
        return CannotExecute(f"cannot start {argv[0]}: the box has reached its limit of processes or memory")
    kind = CommandNotFound if refused.number == errno.ENOENT else CannotExecute
    return kind(f"cannot start {argv[0]}: {reason}")


def cannot_tell(refused: GuestRefused, process: str) -> Exception:
    """Returns the error for input, a signal or a resize that a spawned process did not accept."""
    if refused.number == errno.ESRCH:
        return BoxConflict(f"process {process} has ended")
    if refused.number == errno.EPIPE:
        return BoxConflict(f"process {process} does not read its stdin, or its stdin is closed")
    if refused.number == errno.ENOTTY:
        return Unsupported(f"process {process} has no terminal: spawn it with pty=True")
    return BoxUnreachable(f"process {process}: {refused}")


class Collected:
    """Keeps all output, up to `limit` bytes."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._pieces: list[bytes] = []
        self._size = 0

    def add(self, data: bytes) -> None:
        """Raises `OutputTooLarge`."""
        self._size += len(data)
        if self._size > self._limit:
            raise OutputTooLarge(
                f"the command printed more than {self._limit} bytes",
                hint="pass a sink (on_stdout, on_stderr) that receives the output as it arrives, or use spawn",
            )
        self._pieces.append(data)

    def __bytes__(self) -> bytes:
        return b"".join(self._pieces)


class Tail:
    """Keeps only the end of the output."""

    def __init__(self, limit: int = _TAIL) -> None:
        self.limit = limit
        self._pieces: collections.deque[bytes] = collections.deque()
        self._size = 0

    def add(self, data: bytes) -> None:
        self._pieces.append(data)
        self._size += len(data)
        while self._size - len(self._pieces[0]) >= self.limit:
            self._size -= len(self._pieces.popleft())

    def __bytes__(self) -> bytes:
        return b"".join(self._pieces)[-self.limit :]
