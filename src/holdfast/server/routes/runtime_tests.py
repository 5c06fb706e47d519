"""REST: does it work here? One box with a kernel in it, one question to a model; each phase timed.

What fails is an answer, with its category and what to do; it is no error of the request.
"""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Request
from pydantic import Field, StringConstraints

from holdfast.api.limits import ModelName
from holdfast.api.runs import RunBox
from holdfast.interpreter.host import Host
from holdfast.interpreter.smoke_report import Category, Report
from holdfast.server.routes.box_requests import BOX_ERRORS, while_connected
from holdfast.server.routes.runs import spec_of
from holdfast.server.routes.schemas import Model
from holdfast.server.routes.services import Administrator, Use

router = APIRouter(prefix="/v1/runtime/tests", responses=BOX_ERRORS, tags=["runtime"])

Seconds = Annotated[float, Field(gt=0, le=3600, allow_inf_nan=False)]


class BoxTest(Model):
    box: RunBox | None = None
    """What to try; a local box, where it is left out."""
    repo_url: Annotated[str, StringConstraints(min_length=1, max_length=2048)] | None = None
    """To clone, at a URL that the box can reach."""
    ref: Annotated[str, StringConstraints(min_length=1, max_length=255)] | None = None
    timeout_seconds: Seconds = 300.0


class ModelTest(Model):
    model: ModelName | None = None
    """`NAME` or `NAME/MODEL`; the only one, where it is left out."""
    timeout_seconds: Seconds = 60.0


class ProblemModel(Model):
    category: Category
    code: str
    message: str
    hint: str | None


class PhaseModel(Model):
    name: str
    ok: bool
    seconds: float
    detail: str
    error: ProblemModel | None = None


class ReportModel(Model):
    kind: Literal["box", "lm"]
    ok: bool
    category: Category | None
    """Of the first failure: whose turn it is."""
    seconds: float
    phases: list[PhaseModel]

    @classmethod
    def of(cls, kind: Literal["box", "lm"], report: Report) -> ReportModel:
        return cls.model_validate({"kind": kind, **report.to_json()})


@router.post("/box")
async def try_box(request: Request, services: Use, _: Administrator, wanted: BoxTest | None = None) -> ReportModel:
    """Make a box, start a kernel in it, run two pieces of code that share state, and delete it again."""
    from holdfast.interpreter.smoke_test import smoke  # late: it loads much

    asked = wanted or BoxTest()
    interpreters = await services.interpreters.get()

    async def open_host() -> Host:
        return interpreters.new_host()

    work = smoke(
        open_host,
        repo=asked.repo_url,
        ref=asked.ref,
        spec=None if asked.box is None else spec_of(asked.box),
        roots=(),
        timeout=asked.timeout_seconds,
    )
    return ReportModel.of("box", await while_connected(request, work))


@router.post("/lm")
async def try_model(request: Request, services: Use, _: Administrator, wanted: ModelTest | None = None) -> ReportModel:
    """Ask a model one small question, by the way that interpreters go."""
    from holdfast.interpreter.smoke_test import smoke_model

    asked = wanted or ModelTest()
    host = (await services.interpreters.get()).new_host()
    work = smoke_model(host, asked.model, timeout=asked.timeout_seconds)
    return ReportModel.of("lm", await while_connected(request, work))
