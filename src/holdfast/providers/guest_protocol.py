"""Requests to a guest and its answers, whichever way they travel.

Commands are checked before they are sent. Answers are untrusted: a process in the box may have taken the guest over.
"""

from __future__ import annotations

import collections
import errno
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

from holdfast.api.box.files import FileInfo, FileKind
from holdfast.api.errors.boxes import (
    BoxConflict,
    BoxUnreachable,
    CannotExecute,
    CommandNotFound,
    InvalidSpec,
    OutputTooLarge,
    Unsupported,
)
from holdfast.guest.init import codec

T = TypeVar("T")
_MAX_ERRNO: Final = 4096
_MAX_SIZE: Final = 10_000
_TAIL: Final = 64 * 1024


class GuestRefused(Exception):
    """The guest refused a request, with an errno and its subject."""

    def __init__(self, number: int, about: str) -> None:
        super().__init__(f"{about}: {os.strerror(number)}")
        self.number = number
        self.about = about


class ArchiveRefused(GuestRefused):
    """A child of the guest rejected its input. If it had no input, this is a refusal like any other."""

    def __init__(self, about: str) -> None:
        super().__init__(errno.EPROTO, about)

    def __str__(self) -> str:
        return self.about


def read_answer(data: bytes, box: str) -> dict[str, Any]:
    """Parses one message. Raises `GuestRefused` for a refusal and `BoxUnreachable` for an invalid message."""
    try:
        message = codec.decode(data)
    except (codec.BadMessage, RecursionError) as error:
        raise BoxUnreachable(f"box {box} sent an invalid message: {error}") from None
    if not isinstance(message, dict):
        raise BoxUnreachable(f"box {box} sent an invalid message")
    if "error" in message:
        number, about = message["error"], message.get("about")
        raise GuestRefused(
            number if isinstance(number, int) and 0 < number < _MAX_ERRNO else errno.EIO,
            about if isinstance(about, str) else "",
        )
    return message


def check_refused(message: Mapping[str, Any]) -> None:
    """Raises `ArchiveRefused` if a child of the guest rejected its input."""
    if "refused" in message:
        raise ArchiveRefused(str(message.get("about"))[:500])


def number_in(answer: Mapping[str, Any], name: str) -> int:
    value = answer.get(name)
    if not isinstance(value, int) or isinstance(value, bool):
        raise BoxUnreachable(f"the guest's answer has no {name}")
    return value


def optional_number_in(answer: Mapping[str, Any], name: str) -> int | None:
    """Returns a number that the guest of an older box may not send."""
    return number_in(answer, name) if name in answer else None


def many(answer: dict[str, Any], name: str, read: Callable[[Any], T]) -> list[T]:
    values = answer.get(name)
    if not isinstance(values, list):
        raise BoxUnreachable(f"the guest's answer has no {name}")
    try:
        return [read(each) for each in values]
    except (IndexError, TypeError, KeyError):
        raise BoxUnreachable(f"the guest's answer has invalid {name}") from None


def infos(answer: dict[str, Any]) -> Sequence[FileInfo]:
    return many(answer, "files", info)


def info(value: Any) -> FileInfo:
    try:
        path, kind, size, mode, modified_at, target = value
        return FileInfo(
            text_of(path),
            FileKind(kind),
            number_of(size),
            number_of(mode),
            number_of(modified_at),
            None if target is None else text_of(target),
        )
    except (TypeError, ValueError):
        raise BoxUnreachable("the guest sent an invalid description of a file") from None


def text_of(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError("not text")
    return value


def number_of(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError("not a number")
    return value


# --- commands ---


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
