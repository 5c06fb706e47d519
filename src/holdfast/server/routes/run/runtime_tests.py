"""REST: smoke tests of boxes and models, with the time of each phase.

A failure is a normal answer, with its category and a next step, and not an error of the request.
"""

from __future__ import annotations

from typing import Literal

from fastapi import APIRouter, Request

from holdfast.api.runtime_tests import BoxTest, ModelTest, RuntimeReport
from holdfast.interpreter.host import Host
from holdfast.interpreter.smoke_report import Report
from holdfast.server.environments import spec_of
from holdfast.server.routes.requests import BOX_ERRORS, while_connected
from holdfast.server.routes.services import Administrator, Use

router = APIRouter(prefix="/v1/runtime/tests", responses=BOX_ERRORS, tags=["runtime"])


@router.post("/box")
async def try_box(request: Request, services: Use, _: Administrator, wanted: BoxTest | None = None) -> RuntimeReport:
    """Create a box, start a kernel in it, run two pieces of code that share state, and delete the box."""
    from holdfast.interpreter.smoke_test import smoke  # here, because it imports much

    test = wanted or BoxTest()
    interpreters = await services.interpreters.get()

    async def open_host() -> Host:
        return interpreters.new_host()

    work = smoke(
        open_host,
        repo=test.repo_url,
        ref=test.ref,
        spec=None if test.box is None else spec_of(test.box),
        roots=(),
        timeout=test.timeout_seconds,
    )
    return _report("box", await while_connected(request, work))


@router.post("/lm")
async def try_model(
    request: Request, services: Use, _: Administrator, wanted: ModelTest | None = None
) -> RuntimeReport:
    """Ask a model a short question, over the same path that interpreters use."""
    from holdfast.interpreter.smoke_test import smoke_model

    test = wanted or ModelTest()
    host = (await services.interpreters.get()).new_host()
    work = smoke_model(host, test.model, timeout=test.timeout_seconds)
    return _report("lm", await while_connected(request, work))


def _report(kind: Literal["box", "lm"], report: Report) -> RuntimeReport:
    return RuntimeReport.from_json({"kind": kind, **report.to_json()})
