"""What all routes share: the services, the caller's credential, and the documentation of errors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Final

from fastapi import Depends
from fastapi.requests import HTTPConnection
from fastapi.responses import Response
from fastapi.security import HTTPBearer
from fastapi.security.base import SecurityBase
from pydantic_core import to_json
from starlette.requests import Request

from holdfast.api.document import Document
from holdfast.api.errors import Forbidden
from holdfast.api.server import ErrorAnswer
from holdfast.boxes.service.boxes import Boxes
from holdfast.egress.models import ModelGateway, Models
from holdfast.environments.secrets import Secrets
from holdfast.images.registry.pull import Puller
from holdfast.runs.service import Runs
from holdfast.server.components import FindAgent
from holdfast.server.egress import ServerEgress
from holdfast.server.environments import ServerEnvironments
from holdfast.server.lazy import Lazy
from holdfast.server.routes.roles import OPERATOR, least_role
from holdfast.server.shutdown import Shutdown
from holdfast.server.telemetry.box_metrics import BoxSamples
from holdfast.server.telemetry.metrics import Metrics
from holdfast.server.tenant.audit import AuditLog
from holdfast.server.tenant.quotas import Quotas
from holdfast.server.wire.login_cookie import login_of
from holdfast.server.wire.middleware import CREDENTIAL, GRANT
from holdfast.server.wire.origins import OriginPolicy
from holdfast.server.wire.preview import Previews
from holdfast.server.wire.preview_links import PreviewLinks
from holdfast.sessions.service import Sessions
from holdfast.threads.access.credentials import Access, Grant
from holdfast.threads.access.logins import Logins
from holdfast.threads.access.members import MemberStore
from holdfast.threads.access.shares import ShareStore
from holdfast.threads.service import Threads
from holdfast.threads.subscriptions import Webhooks

if TYPE_CHECKING:
    from holdfast.api.thread.threads import ThreadInfo
    from holdfast.compat.daytona.records import RecordStore
    from holdfast.server.interpreter.interpreters import ServerInterpreters
    from holdfast.server.oidc import Oidc
    from holdfast.server.provider.providers import ServerProviders
    from holdfast.server.session.gateway import SessionGateway
    from holdfast.server.session.tools import ServerTools
    from holdfast.server.tenant.tenants import Tenants
    from holdfast.threads.rows import ThreadRow

bearer = HTTPBearer(auto_error=False, description="An API key, or a token for one thread.")


@dataclass(frozen=True, slots=True)
class Services:
    """The services that the routes need, composed by `serve`."""

    threads: Threads
    access: Access
    metrics: Metrics
    origins: OriginPolicy
    next_request_id: Callable[[], str]
    max_body: int
    open_metrics: bool
    """Whether `/metrics`, which names boxes, requires no key: only on loopback, without a public URL."""
    previews: Previews
    links: PreviewLinks
    shutdown: Shutdown
    egress: Lazy[ServerEgress]
    boxes: Lazy[Boxes]
    samples: BoxSamples
    models: Lazy[Models]
    secrets: Lazy[Secrets]
    gateway: Lazy[ModelGateway]
    environments: Lazy[ServerEnvironments]
    runs: Lazy[Runs]
    find_agent: FindAgent
    interpreters: Lazy[ServerInterpreters]
    puller: Lazy[Puller]
    providers: Lazy[ServerProviders]
    session_gateway: Lazy[SessionGateway]
    daytona_records: Callable[[], RecordStore]
    """Also of a server that does not serve the Daytona API now."""
    sessions: Lazy[Sessions]
    session_tools: Lazy[ServerTools]
    members: MemberStore
    logins: Logins
    oidc: Oidc | None
    public_url: str | None
    """The URL of this server, as browsers know it, if the operator has set it."""
    quotas: Quotas
    audit: AuditLog
    shares: ShareStore
    webhooks: Webhooks
    tenants: Tenants | None
    """The tenants of the server. None in all but the default one, whose owners administer them."""
    listed_threads: dict[int, tuple[ThreadRow, ThreadInfo]] = field(default_factory=dict)
    """What was made of the rows of threads that were listed, by their identity."""


def services_of(connection: HTTPConnection) -> Services:
    services: Services = connection.app.state.services
    return services


# Coroutines although they await nothing, because FastAPI runs other functions in a thread, which takes longer.
async def _services(request: Request) -> Services:
    return services_of(request)


_CHECKED: Final = "holdfast.checked"
"""Where the scope of a request has its grant once the route was checked too: several dependencies may ask for it."""


class _Caller(SecurityBase):
    """The caller of a request, who may use the route. Documented as `bearer`.

    FastAPI solves every dependency of a dependency anew for each request, which takes as long as a small route. So
    this one has none, and the others of a route ask it directly.
    """

    model = bearer.model
    scheme_name = bearer.scheme_name

    async def __call__(self, request: Request) -> Grant:
        grant: Grant | None = request.scope.get(_CHECKED)
        if grant is None:
            grant = request.scope[_CHECKED] = await self._check(request)
        return grant

    async def _check(self, request: Request) -> Grant:
        services = services_of(request)
        credentials = await bearer(request)
        credential = (
            credentials.credentials
            if credentials
            else login_of(dict(request.headers.raw), request.method, services.public_url)
        )
        grant = await services.access.grant(credential)
        request.scope[CREDENTIAL] = credential
        check_route(grant, request.method, request, services)
        return grant


class _Administrator(_Caller):
    """A caller with more than a token for one thread."""

    async def __call__(self, request: Request) -> Grant:
        grant = await super().__call__(request)
        grant.check_administer()
        return grant


def check_route(grant: Grant, method: str, connection: HTTPConnection, services: Services) -> None:
    """Raises `Forbidden` if the role of an API key is not enough for a route, or the tenant has used what it may. A
    token is checked by its thread.
    """
    connection.scope[GRANT] = grant
    services.quotas.take_request()
    if method in ("POST", "PUT", "PATCH"):
        services.quotas.check_storage()
    if grant.thread is not None:
        return
    path = connection.scope["route"].path
    if (method, path) in OPERATOR and services.tenants is None:
        raise Forbidden("this is for owners of the default tenant", hint="ask the operator of this server")
    grant.check_role(least_role(method, path))


_caller, _administrator = _Caller(), _Administrator()


async def _metrics_reader(request: Request, _: Annotated[object, Depends(bearer)]) -> Services:
    services = services_of(request)
    if not services.open_metrics:
        await _administrator(request)
    return services


Use = Annotated[Services, Depends(_services)]
UseMetrics = Annotated[Services, Depends(_metrics_reader)]
Caller = Annotated[Grant, Depends(_caller)]
Administrator = Annotated[Grant, Depends(_administrator)]


async def _boxes(services: Use, _: Administrator) -> Boxes:
    """The box service, for administrators. Waits until it is open."""
    return await services.boxes.get()


async def _egress(services: Use, _: Administrator) -> ServerEgress:
    return await services.egress.get()


async def _runs(services: Use, _: Administrator) -> Runs:
    """The service of runs, for administrators. Waits until it is open."""
    return await services.runs.get()


async def _sessions(services: Use, _: Administrator) -> Sessions:
    """The service of sessions, for administrators. Waits until it is open."""
    return await services.sessions.get()


async def _models(services: Use, _: Administrator) -> Models:
    return await services.models.get()


async def _environments(services: Use, _: Administrator) -> ServerEnvironments:
    return await services.environments.get()


UseEnvironments = Annotated[ServerEnvironments, Depends(_environments)]


async def _secrets(services: Use, _: Administrator) -> Secrets:
    return await services.secrets.get()


UseSecrets = Annotated[Secrets, Depends(_secrets)]
UseModels = Annotated[Models, Depends(_models)]
UseRuns = Annotated[Runs, Depends(_runs)]
UseSessions = Annotated[Sessions, Depends(_sessions)]
UseBoxes = Annotated[Boxes, Depends(_boxes)]
UseEgress = Annotated[ServerEgress, Depends(_egress)]


def documented(*statuses: tuple[int, str]) -> dict[int | str, dict[str, Any]]:
    """Returns the errors of routes for the OpenAPI document.

    They refer to the schema that `app` adds. With a model in each of them, FastAPI would build a validator for every
    error of every route, which takes seconds.
    """
    content = {"application/json": {"schema": {"$ref": f"#/components/schemas/{ErrorAnswer.__name__}"}}}
    return {status: {"description": description, "content": content} for status, description in statuses}


METRICS_ERRORS: Final = documented(
    (401, "No credential, or an invalid one, and the server does not listen on loopback alone."),
    (403, "The credential does not allow this."),
)
THREAD_ERRORS: Final = documented(
    (400, "The request is invalid."),
    (401, "No credential, or an invalid one."),
    (403, "The credential does not allow this."),
    (404, "There is no such thread."),
    (409, "It already exists, or is in another state than the request expects."),
    (410, "The thread was deleted; its forks still exist."),
    (413, "The body is too large."),
    (422, "A field is missing or wrong."),
    (503, "The store cannot write now."),
    (507, "The disk is full."),
)


def answer(document: Document, status: int = 200) -> Response:
    """Answer with a document. Fields that are not set are left out."""
    return Response(to_json(document.to_json()), status, media_type="application/json")
