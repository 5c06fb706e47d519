"""The Daytona API as an ASGI app. The server mounts it, and puts its own middleware around it."""

from __future__ import annotations

from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route, WebSocketRoute

from holdfast.api.errors import HoldfastError
from holdfast.compat.daytona import control_plane, events, not_served, secret_routes
from holdfast.compat.daytona.http.errors import CONTROL_PLANE, TOOLBOX, ApiError, api_error, response
from holdfast.compat.daytona.service import PREFIX, Daytona
from holdfast.compat.daytona.toolbox import (
    desktop,
    files,
    git,
    interpreters,
    languages,
    metrics,
    mouse_keyboard,
    processes,
    screens,
    sessions,
    terminals,
)


def create_app(daytona: Daytona) -> Starlette:
    parts = (
        processes,
        files,
        git,
        sessions,
        terminals,
        interpreters,
        languages,
        metrics,
        desktop,
        mouse_keyboard,
        screens,
    )
    toolbox = [route for part in parts for route in part.routes()]
    app = Starlette(
        routes=[
            WebSocketRoute("/socket.io/", events.serve_events),
            Mount("/toolbox/{sandbox}", routes=toolbox),
            Route("/sandbox/{sandbox}/telemetry/metrics", metrics.history, methods=["GET"]),
            *secret_routes.routes(),
            *control_plane.routes(),
            *not_served.routes(),
        ],
        exception_handlers={
            ApiError: _refuse,
            HoldfastError: _refuse,
            ValidationError: _refuse,
            HTTPException: _refuse_http,
            Exception: _refuse,
        },
    )
    app.state.daytona = daytona
    app.state.session_indexes = sessions.new_indexes()
    app.state.terminal_sizes = terminals.Sizes(10_000)
    app.state.desktop_locks = desktop.Locks(1000)
    app.state.samples = metrics.Samples(1000)
    app.state.language_servers = languages.LanguageServers()
    daytona.closers.append(app.state.language_servers.close)
    app.state.context_locks = interpreters.Locks(1000)
    app.state.context_offsets = interpreters.Offsets(10_000)
    return app


async def _refuse(request: Request, error: Exception) -> Response:
    return response(api_error(error), _source(request), request.url.path, request.method)


async def _refuse_http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    messages = {
        404: f"Cannot {request.method} {request.url.path}",
        405: f"Cannot {request.method} {request.url.path}",
    }
    message = messages.get(error.status_code, str(error.detail))
    refused = ApiError(404 if error.status_code == 405 else error.status_code, message)
    return response(refused, _source(request), request.url.path, request.method)


def _source(request: Request) -> str:
    return TOOLBOX if request.url.path.startswith(f"{PREFIX}/toolbox/") else CONTROL_PLANE
