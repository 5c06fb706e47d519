"""The REST surface: threads, tokens, keys, boxes, health and metrics, with their OpenAPI document."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException
from starlette.routing import Route
from starlette.types import ASGIApp

import holdfast
from holdfast.api.errors import HoldfastError, InvalidRequest, NotFound
from holdfast.api.errors.boxes import BoxError
from holdfast.api.ids import now_ms
from holdfast.api.problems import describe_problems
from holdfast.api.server import ErrorAnswer, Health
from holdfast.server.routes import (
    egress,
    environments,
    images,
    interpreters,
    page,
    providers,
    secrets,
    threads,
    webhooks,
)
from holdfast.server.routes.access import keys, login, login_page, members, shares
from holdfast.server.routes.box import boxes, files, processes, snapshots, websockets
from holdfast.server.routes.model import completion_socket, costs, models
from holdfast.server.routes.requests import ClientLeft
from holdfast.server.routes.run import agents, forks, runs, runtime_tests, tasks
from holdfast.server.routes.services import METRICS_ERRORS, Services, UseMetrics, services_of
from holdfast.server.routes.session import channels, gateway, inbox, sessions, tools, workflows
from holdfast.server.wire.html_page import error_page, is_navigation
from holdfast.server.wire.middleware import RequestMiddleware, error_answer, refusal

ROUTERS = (
    threads.router,
    keys.router,
    login.router,
    login_page.router,
    members.router,
    agents.router,
    channels.router,
    boxes.router,
    files.router,
    processes.router,
    snapshots.router,
    egress.router,
    forks.router,
    gateway.router,
    environments.router,
    images.router,
    inbox.router,
    interpreters.router,
    models.router,
    costs.router,
    page.router,
    providers.router,
    runs.router,
    runtime_tests.router,
    secrets.router,
    tools.router,
    sessions.router,
    shares.router,
    tasks.router,
    webhooks.router,
    workflows.router,
)


def create_app(services: Services, mounts: Mapping[str, ASGIApp] | None = None) -> FastAPI:
    """`mounts` are other apps, by the path below which they answer."""
    app = FastAPI(
        title="Holdfast",
        version=holdfast.__version__,
        openapi_url="/v1/openapi.json",
        docs_url=None,
        redoc_url=None,
    )
    app.state.services = services
    started_at = now_ms()
    for path, mounted in (mounts or {}).items():  # first: their requests need not be compared with every other route
        app.mount(path, mounted)
    # Not `include_router`, which builds every route once more, at the first request: most of a second. The routers are
    # complete by themselves.
    for each in (websockets.router, completion_socket.router, *ROUTERS):
        app.router.routes.extend(each.routes)

    # The errors of the other routes refer to the schema that this adds to the OpenAPI document.
    @app.get("/health", tags=["server"], responses={"default": {"model": ErrorAnswer, "description": "An error."}})
    async def health() -> Health:
        """Returns whether the server answers."""
        return Health(version=holdfast.__version__, started_at=started_at)

    # A key or none: whether one is needed depends on the address that the server listens on.
    @app.get(
        "/metrics", tags=["server"], response_class=Response, openapi_extra={"security": [{}]}, responses=METRICS_ERRORS
    )
    async def metrics(services: UseMetrics) -> Response:
        """Counters and gauges, for Prometheus. Requires a key, unless only this machine reaches the server."""
        boxes = services.boxes.opened
        rows = [] if boxes is None else await boxes.rows.live(boxes.tenant, boxes.node)
        usages = None if boxes is None else services.samples.latest(boxes, {row.id for row in rows})
        pool = None if boxes is None else boxes.pool.statistics()
        exposition, content_type = services.metrics.render(Counter(row.state.value for row in rows), usages, pool)
        return Response(exposition, media_type=content_type)

    app.add_exception_handler(HoldfastError, _refuse)
    app.add_exception_handler(ClientLeft, _refuse_left)
    app.add_exception_handler(RequestValidationError, _refuse_fields)
    app.add_exception_handler(HTTPException, _refuse_http)
    app.add_middleware(RequestMiddleware, services=services)
    return app


async def _refuse(request: Request, error: Exception) -> Response:
    assert isinstance(error, HoldfastError)
    if isinstance(error, BoxError) and (providers := services_of(request).providers.opened) is not None:
        error.message = providers.redacted(error.message)  # a vendor may quote the credential that it refuses
        error.hint = error.hint and providers.redacted(error.hint)
    return error_page(request, error) or refusal(error)


async def _refuse_left(_: Request, __: Exception) -> Response:
    return error_answer(499, "client_left", "the client has left")


async def _refuse_fields(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    if is_navigation(request):  # such as a view of a thread that does not exist
        return await _refuse(request, NotFound(f"there is no {request.url.path}"))
    problems = error.errors()
    for each in problems:
        if each["type"] == "json_invalid":
            return await _refuse(request, InvalidRequest(f"the body is not valid JSON: {each['ctx']['error']}"))
    # Without the first part, which says where the field was: in the body, the query or the path.
    fields = ({**each, "loc": each["loc"][1:]} for each in problems)
    return error_answer(422, "invalid_request", describe_problems(fields))


async def _refuse_http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == 404 and is_navigation(request):
        return await _refuse(request, NotFound(f"there is no {request.url.path}"))
    names = {404: "not_found", 405: "method_not_allowed", 413: "too_large"}
    messages = {
        404: f"there is no {request.url.path}",
        405: f"{request.url.path} does not support {request.method}",
    }
    return error_answer(
        error.status_code,
        names.get(error.status_code, "invalid_request"),
        messages.get(error.status_code, str(error.detail)),
        headers={"allow": _allowed(request)} if error.status_code == 405 else None,
    )


def _allowed(request: Request) -> str:
    """All methods of a path. The framework names only those of the first route that matches."""
    routes = (route for route in request.app.routes if isinstance(route, Route))
    matching = [route for route in routes if route.path_regex.match(request.url.path)]
    # A literal path takes precedence over a route with an id.
    named = [route for route in matching if route.path == request.url.path]
    methods = {method for route in named or matching for method in route.methods or ()}
    return ", ".join(sorted(methods))
