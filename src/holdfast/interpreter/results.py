"""What an execution gives: plain values, for people and for models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

VALUE: Final = "value"
"""The artifact that is the value, where that is too large to come along."""
LARGEST_VALUE: Final = 1 << 30
"""Bytes of a value that is read back, as JSON."""


@dataclass(frozen=True, slots=True)
class CodeError:
    """What the code did wrong: a result that a model can read, never an exception of ours."""

    kind: str
    """The class of the exception."""
    message: str
    traceback: str
    """The user's own lines only."""
    syntax: bool = False
    """Nothing of it ran."""


@dataclass(frozen=True, slots=True)
class Artifact:
    """Something that came of an execution, in a file of the box."""

    name: str
    media_type: str
    path: str
    size: int
    data: bytes | None = field(default=None, repr=False)
    """Its content, where it is small enough to have come along."""


@dataclass(frozen=True, slots=True)
class Execution:
    """One piece of code that ran to its end, or was ended."""

    id: str
    stdout: str = ""
    """At most `OUTPUT_LIMIT` characters of it, or what the interpreter was told: the rest is in an artifact."""
    stderr: str = ""
    value: Any = None
    """Of the last expression, where it has a form that travels."""
    value_text: str | None = None
    """Its `repr`; None where there was none."""
    error: CodeError | None = None
    submitted: Mapping[str, Any] | None = None
    """What SUBMIT was called with."""
    artifacts: tuple[Artifact, ...] = ()
    seconds: float = 0.0
    compute_seconds: float = 0.0
    """Without the time that it waited for the host."""
    state_lost: bool = False
    """Its context was killed: what it had in memory is no more."""
    restored: bool = False
    """Its context was killed: what it had in memory is as it was before this execution."""
    value_missing: str | None = None
    """Why `value` is None although there was a value: it has no form that travels, or is large, and `read_value` has
    it."""

    @property
    def ok(self) -> bool:
        return self.error is None

    @property
    def text(self) -> str:
        """What a model reads of it."""
        parts = [self.stdout, self.stderr]
        if self.error is not None:
            parts.append(self.error.traceback or f"{self.error.kind}: {self.error.message}")
        elif self.value_text is not None and self.submitted is None:
            parts.append(self.value_text)
        return "\n".join(part.rstrip("\n") for part in parts if part)


@dataclass(frozen=True, slots=True)
class Saved:
    """Which names of a context were saved, or loaded, and which were not, with why."""

    names: tuple[str, ...]
    unsaved: Mapping[str, str]
