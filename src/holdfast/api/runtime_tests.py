"""Tests of the runtime: does it work here? Phases, each timed, and whose turn it is if one failed."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Literal

from holdfast.api.document import Document, Limits
from holdfast.api.limits import ModelName
from holdfast.api.runs import RunBox

TestSeconds = Annotated[float, Limits(gt=0, le=3600, allow_inf_nan=False)]


class Category(StrEnum):
    """Whose turn it is."""

    CONFIG = "config"
    """What was asked for makes no sense, or this installation cannot do it."""
    SERVER = "server"
    """It does not answer, or refuses."""
    BOX = "box"
    REPOSITORY = "repository"
    DRIVER = "driver"
    """The kernel in the box."""
    EXECUTION = "execution"
    STATE = "state"
    """What one execution left was not there for the next."""
    MODEL = "model"
    TIMEOUT = "timeout"
    INTERNAL = "internal"


@dataclass(frozen=True, slots=True, kw_only=True)
class BoxTest(Document):
    box: RunBox | None = None
    """What to try; a local box, if it is left out."""
    repo_url: Annotated[str, Limits(min_length=1, max_length=2048)] | None = None
    """A repository to clone, at a URL that the box can reach."""
    ref: Annotated[str, Limits(min_length=1, max_length=255)] | None = None
    timeout_seconds: TestSeconds = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelTest(Document):
    model: ModelName | None = None
    """`NAME` or `NAME/MODEL`; the only one, if it is left out."""
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
    """Of the first failure: whose turn it is."""
    seconds: float
    phases: tuple[PhaseReport, ...]
