"""What the routes share: the services behind them, who is calling, and how their errors are documented."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final

from fastapi import Depends
from fastapi.requests import HTTPConnection
from fastapi.responses import Response
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from pydantic_core import to_json
from starlette.requests import Request

from holdfast.api.document import Document
from holdfast.api.server import ErrorAnswer
from holdfast.boxes.service.boxes import Boxes
from holdfast.egress.models import ModelGateway, Models
from holdfast.images.registry.pull import Puller
from holdfast.runs.service import Runs
from holdfast.server.box_metrics import BoxSamples
from holdfast.server.egress import ServerEgress
from holdfast.server.lazy import Lazy
from holdfast.server.metrics import Metrics
from holdfast.server.parts import FindAgent
from holdfast.server.shutdown import Shutdown
from holdfast.server.wire.origins import OriginPolicy
from holdfast.server.wire.preview import Previews
from holdfast.threads.access.credentials import Access, Grant
from holdfast.threads.service import Threads

if TYPE_CHECKING:
    from holdfast.server.interpreters import ServerInterpreters

bearer = HTTPBearer(auto_error=False, description="An API key, or a token for one thread.")


@dataclass(frozen=True, slots=True)
class Services:
    """What the routes need, put together by `serve`."""

    threads: Threads
    access: Access
    metrics: Metrics
    origins: OriginPolicy
    next_request_id: Callable[[], str]
    max_body: int
    previews: Previews
    shutdown: Shutdown
    egress: Lazy[ServerEgress]
    boxes: Lazy[Boxes]
    samples: BoxSamples
    models: Lazy[Models]
    gateway: Lazy[ModelGateway]
    runs: Lazy[Runs]
    find_agent: FindAgent
    interpreters: Lazy[ServerInterpreters]
    puller: Lazy[Puller]


def services_of(connection: HTTPConnection) -> Services:
    services: Services = connection.app.state.services
    return services


# These wait for nothing. They are coroutines since FastAPI runs any other function in a thread, which takes longer.
async def _services(request: Request) -> Services:
    return services_of(request)


async def _grant(
    services: Annotated[Services, Depends(_services)],
    credentials: Annotated[HTTPAuthorizationCredentials | None, Depends(bearer)],
) -> Grant:
    return await services.access.grant(credentials.credentials if credentials else None)


async def _administrator(grant: Annotated[Grant, Depends(_grant)]) -> Grant:
    grant.check_administer()
    return grant


Use = Annotated[Services, Depends(_services)]
Caller = Annotated[Grant, Depends(_grant)]
Administrator = Annotated[Grant, Depends(_administrator)]


async def _boxes(services: Use, _: Administrator) -> Boxes:
    """The box service, for who may use it. Waits while it is being opened."""
    return await services.boxes.get()


async def _egress(services: Use, _: Administrator) -> ServerEgress:
    return await services.egress.get()


async def _runs(services: Use, _: Administrator) -> Runs:
    """The runs, for who may do anything with them. Waits while they are being opened."""
    return await services.runs.get()


async def _models(services: Use, _: Administrator) -> Models:
    return await services.models.get()


UseModels = Annotated[Models, Depends(_models)]
UseRuns = Annotated[Runs, Depends(_runs)]
UseBoxes = Annotated[Boxes, Depends(_boxes)]
UseEgress = Annotated[ServerEgress, Depends(_egress)]


def documented(*statuses: tuple[int, str]) -> dict[int | str, dict[str, Any]]:
    return {status: {"model": ErrorAnswer, "description": description} for status, description in statuses}


THREAD_ERRORS: Final = documented(
    (400, "The request makes no sense."),
    (401, "No credential, or one that does not hold."),
    (403, "The credential does not allow this."),
    (404, "There is no such thread."),
    (409, "It is there already, or not what the request takes it for."),
    (410, "The thread was deleted; its forks live on."),
    (413, "The body is too large."),
    (422, "A field is missing or wrong."),
    (503, "The store cannot write now."),
    (507, "The disk is full."),
)


def answer(document: Document, status: int = 200) -> Response:
    """An answer as its type writes itself: what is not set in it is left out."""
    return Response(to_json(document.to_json()), status, media_type="application/json")
