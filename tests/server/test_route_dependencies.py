"""What FastAPI solves for each request before a route runs: it costs as much as a small route itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from fastapi.routing import APIRoute
from fastapi.security.base import SecurityBase

from holdfast.server.routes.app import ROUTERS
from holdfast.server.routes.services import bearer

ROUTES = {
    f"{min(each.methods or ())} {each.path}": each
    for router in ROUTERS
    for each in router.routes
    if isinstance(each, APIRoute)
}


def nested(dependant: Any) -> Iterator[Any]:
    for each in dependant.dependencies:
        yield each
        yield from nested(each)


@pytest.mark.parametrize("route", ["GET /v1/threads", "GET /v1/threads/{id}", "GET /v1/threads/{id}/entries"])
def test_reading_a_thread_needs_the_services_and_the_caller_and_nothing_below_them(route: str) -> None:
    assert len(list(nested(ROUTES[route].dependant))) == 2


def test_the_caller_of_every_route_is_one_dependency() -> None:
    found = [each for route in ROUTES.values() for each in nested(route.dependant)]
    callers = [each for each in found if isinstance(each.call, SecurityBase) and each.call is not bearer]
    assert len(callers) > 100
    assert not [each for each in callers if each.dependencies]
