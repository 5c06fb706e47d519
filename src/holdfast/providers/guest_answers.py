"""Parses answers of a guest. They are untrusted: a process in the box may have taken the guest over."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

from holdfast.api.box.files import FileInfo, FileKind
from holdfast.api.errors.boxes import BoxUnreachable
from holdfast.guest import codec

T = TypeVar("T")
_MAX_ERRNO: Final = 4096


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
