"""Tests of the runtime on this machine: timed phases, and what is responsible if one failed."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Literal

from holdfast.api.document import Document, Limits
from holdfast.api.limits import ModelName
from holdfast.api.run.runs import RunBox

TestSeconds = Annotated[float, Limits(gt=0, le=3600, allow_inf_nan=False)]


class Category(StrEnum):
    """What is responsible for a failure."""

    CONFIG = "config"
    """The request is invalid, or this installation does not support it."""
    SERVER = "server"
    """It does not answer, or refuses the request."""
    BOX = "box"
    REPOSITORY = "repository"
    DRIVER = "driver"
    """The kernel in the box."""
    EXECUTION = "execution"
    STATE = "state"
    """The state of one execution was missing in the next."""
    MODEL = "model"
    TIMEOUT = "timeout"
    INTERNAL = "internal"


@dataclass(frozen=True, slots=True, kw_only=True)
class BoxTest(Document):
    box: RunBox | None = None
    """The box to test. Defaults to a local box."""
    repo_url: Annotated[str, Limits(min_length=1, max_length=2048)] | None = None
    """A repository to clone, at a URL that the box can reach."""
    ref: Annotated[str, Limits(min_length=1, max_length=255)] | None = None
    timeout_seconds: TestSeconds = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelTest(Document):
    model: ModelName | None = None
    """`NAME` or `NAME/MODEL`. Defaults to the only model."""
    timeout_seconds: TestSeconds = 60.0


@dataclass(frozen=True, slots=True)
class PhaseProblem(Document):
    category: Category
    code: str
    message: str
    hint: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseReport(Document):
    name: str
    ok: bool
    seconds: float
    detail: str
    error: PhaseProblem | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeReport(Document):
    kind: Literal["box", "lm"]
    ok: bool
    category: Category | None
    """What is responsible for the first failure."""
    seconds: float
    phases: tuple[PhaseReport, ...]
