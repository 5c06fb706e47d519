"""Processes in boxes. Times are UTC milliseconds."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated

from holdfast.api.document import Document, Limits
from holdfast.api.limits import Arguments, Base64, PathText, StrictBool, Variables

ExecSeconds = Annotated[float, Limits(gt=0, le=7 * 24 * 3600, allow_inf_nan=False)]


class ProcessState(StrEnum):
    RUNNING = "running"
    EXITED = "exited"
    LOST = "lost"
    """Ended with its box, so its exit code is unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Command(Document):
    argv: Arguments
    env: Variables = field(default_factory=dict)
    cwd: PathText | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Execute(Command):
    timeout: ExecSeconds | None = None
    """Seconds after which it is killed."""
    stdin: Base64 = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecuteFrames(Command):
    """The first frame of a WebSocket that a command runs through."""

    timeout: ExecSeconds | None = None
    stdin: str | None = None
    """Base64, and the command starts at once. None if frames bring it, up to an end frame."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Executed(Document):
    exit_code: int
    stdout: Base64
    stderr: Base64


@dataclass(frozen=True, slots=True, kw_only=True)
class Spawn(Command):
    stdin: StrictBool = False
    pty: StrictBool = False
    rows: Annotated[int, Limits(ge=1, le=10_000)] = 24
    columns: Annotated[int, Limits(ge=1, le=10_000)] = 80
    tree: StrictBool = False


@dataclass(frozen=True, slots=True)
class ProcessInfo(Document):
    id: str
    argv: tuple[str, ...]
    pty: bool
    state: ProcessState
    exit_code: int | None
    started_at: int
    ended_at: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessList(Document):
    processes: tuple[ProcessInfo, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Signal(Document):
    number: Annotated[int, Limits(ge=1, le=64, strict=True)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Resize(Document):
    rows: Annotated[int, Limits(ge=1, le=10_000, strict=True)]
    columns: Annotated[int, Limits(ge=1, le=10_000, strict=True)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Waited(Document):
    exit_code: int | None
    """None if it has not ended yet."""
