"""The REST surface: threads, tokens, keys, boxes, health and metrics, with their OpenAPI document."""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from fastapi.security import HTTPAuthorizationCredentials
from starlette.exceptions import HTTPException
from starlette.routing import Route

import holdfast
from holdfast.api.errors import HoldfastError
from holdfast.server.routes import (
    agents,
    box_files,
    box_processes,
    box_snapshots,
    box_websockets,
    boxes,
    egress,
    images,
    interpreters,
    models,
    page,
    runs,
    runtime_tests,
)
from holdfast.server.routes.box_requests import ClientLeft
from holdfast.server.routes.schemas import (
    Chatted,
    CreatedKey,
    EntryList,
    EntryModel,
    Health,
    Key,
    KeyList,
    Link,
    NewChat,
    NewKey,
    NewLink,
    NewThread,
    NewToken,
    Thread,
    ThreadChange,
    ThreadId,
    ThreadList,
    Token,
)
from holdfast.server.routes.services import Administrator, Caller, Services, Use, bearer, documented
from holdfast.server.wire.middleware import RequestMiddleware, error_answer, refusal
from holdfast.threads.access import Scope
from holdfast.threads.errors import InvalidRequest, StreamNotFound
from holdfast.threads.ids import now_ms
from holdfast.threads.offsets import format_offset_text
from holdfast.threads.rows import RowFilter, ThreadStatus, parse_cursor
from holdfast.threads.surface import start_of
from holdfast.validation import describe_problem

_ERRORS = documented(
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

router = APIRouter(prefix="/v1", responses=_ERRORS)


@router.post("/threads", status_code=201, tags=["threads"])
async def create_thread(new: NewThread, services: Use, _: Administrator) -> Thread:
    """Create a thread."""
    row = await services.threads.create(id=new.id, title=new.title, parent=new.parent, labels=new.labels)
    return Thread.of(row)


@router.get("/threads", tags=["threads"])
async def list_threads(
    services: Use,
    _: Administrator,
    parent: ThreadId | None = None,
    status: ThreadStatus | None = None,
    label: Annotated[list[str] | None, Query(description="`name:value`, or just `name`; all must match.")] = None,
    archived: Literal["false", "true", "any"] = "false",
    cursor: str | None = None,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
) -> ThreadList:
    """List threads, the latest active first."""
    page = await services.threads.list(
        RowFilter(
            parent=parent,
            status=status,
            labels=tuple(_label(each) for each in label or ()),
            archived=None if archived == "any" else archived == "true",
            limit=limit,
            after=parse_cursor(cursor) if cursor is not None else None,
        )
    )
    return ThreadList(threads=[Thread.of(row) for row in page.rows], next_cursor=page.next_cursor)


def _label(text: str) -> tuple[str, str | None]:
    name, colon, value = text.partition(":")
    return name, value if colon else None


@router.get("/threads/{id}", tags=["threads"])
async def get_thread(id: ThreadId, services: Use, grant: Caller) -> Thread:
    """Look at one thread."""
    grant.check_thread(id, Scope.READ)
    runs = services.runs.opened
    return Thread.of(await (services.threads.get(id) if runs is None else runs.reconcile(id)))


@router.patch("/threads/{id}", tags=["threads"])
async def change_thread(id: ThreadId, change: ThreadChange, services: Use, _: Administrator) -> Thread:
    """Rename, label or archive a thread. What is left out stays."""
    if change.title is not None:
        await services.threads.rename(id, change.title)
    if change.labels is not None:
        await services.threads.label(id, change.labels)
    if change.archived is not None:
        await services.threads.archive(id, change.archived)
    return Thread.of(await services.threads.get(id))


@router.delete("/threads/{id}", status_code=204, tags=["threads"])
async def delete_thread(id: ThreadId, services: Use, _: Administrator) -> None:
    """Delete a thread and everything on it, and the box that was made for its runs."""
    if (runs := services.runs.opened) is not None:
        await runs.forget(id)
    await services.threads.delete(id)


@router.post("/threads/{id}/chat", status_code=201, response_model_exclude_unset=True, tags=["entries"])
async def post_chat(id: ThreadId, chat: NewChat, services: Use, grant: Caller) -> Chatted:
    """Say something on a thread."""
    grant.check_thread(id, Scope.WRITE)
    entry, position = await services.threads.chat(id, chat.text, author_id=chat.author_id, entry_id=chat.id)
    return Chatted(entry=EntryModel.model_validate(entry.to_json()), next_offset=format_offset_text(position))


@router.get("/threads/{id}/entries", response_model_exclude_unset=True, tags=["entries"])
async def read_entries(
    id: ThreadId,
    services: Use,
    grant: Caller,
    type: Annotated[list[str] | None, Query(description="Payload types: exact, or a prefix such as `pi.*`.")] = None,
    since: Annotated[str, Query(description="An offset that was given out, or `-1` for the beginning.")] = "-1",
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    live: Annotated[bool, Query(description="With text as it came, piece by piece, before its whole message.")] = False,
    unfinished: Annotated[
        bool, Query(description="With the pieces of a message that is not whole yet: to follow the thread from there.")
    ] = False,
) -> EntryList:
    """Read entries, the oldest first. Live reading is the stream's business."""
    grant.check_thread(id, Scope.READ)
    page = await services.threads.entries(
        id, types=tuple(type or ()), since=start_of(since), limit=limit, live=live, unfinished=unfinished
    )
    return EntryList(
        entries=[EntryModel.model_validate(entry) for entry in page.entries],
        next_offset=format_offset_text(page.position),
        up_to_date=page.up_to_date,
    )


@router.post("/threads/{id}/tokens", status_code=201, tags=["tokens"])
async def issue_token(id: ThreadId, new: NewToken, services: Use, _: Administrator) -> Token:
    """Make a token for this thread alone."""
    await services.threads.get(id)
    return Token.of(services.access.issue(id, new.scope, new.ttl_seconds))


@router.post("/threads/{id}/links", status_code=201, tags=["tokens"])
async def issue_link(id: ThreadId, new: NewLink, services: Use, _: Administrator) -> Link:
    """Make a link to the page of this thread, for reading."""
    await services.threads.get(id)
    issued = services.access.issue_link(id, new.ttl_seconds)
    return Link(path=f"/t/{id}#key={issued.key}", expires_at=issued.expires_at)


@router.post("/tokens/renew", tags=["tokens"])
async def renew_token(
    services: Use, credentials: Annotated[HTTPAuthorizationCredentials | None, Depends(bearer)]
) -> Token:
    """Exchange the thread token that this is called with for a fresh one."""
    return Token.of(await services.access.renew(credentials.credentials if credentials else None))


@router.get("/keys", tags=["keys"])
async def list_keys(services: Use, _: Administrator) -> KeyList:
    """List API keys, revoked ones too. The keys themselves are not kept."""
    return KeyList(keys=[Key.of(key) for key in await services.access.list_keys()])


@router.post("/keys", status_code=201, tags=["keys"])
async def create_key(new: NewKey, services: Use, _: Administrator) -> CreatedKey:
    """Make an API key. It is shown this once."""
    key, secret = await services.access.create_key(new.name)
    return CreatedKey(id=key.id, name=key.name, created_at=key.created_at, key=secret)


@router.delete("/keys/{id}", status_code=204, tags=["keys"])
async def revoke_key(id: str, services: Use, _: Administrator) -> None:
    """Revoke an API key, at once."""
    if not await services.access.revoke_key(id):
        raise StreamNotFound(
            f"there is no API key {id} that could be revoked", hint="holdfast key list shows the keys there are"
        )


_ROUTERS = (
    router,
    agents.router,
    boxes.router,
    box_files.router,
    box_processes.router,
    box_snapshots.router,
    egress.router,
    images.router,
    interpreters.router,
    models.router,
    page.router,
    runs.router,
    runtime_tests.router,
)


def create_app(services: Services) -> FastAPI:
    app = FastAPI(
        title="Holdfast",
        version=holdfast.__version__,
        openapi_url="/v1/openapi.json",
        docs_url=None,
        redoc_url=None,
    )
    app.state.services = services
    started_at = now_ms()
    # Routes are put together as far as requests look through them: a socket would wait for all that stand before it.
    for each in (box_websockets.router, *_ROUTERS):
        app.include_router(each)

    @app.get("/health", tags=["server"])
    async def health() -> Health:
        """Whether the server answers."""
        return Health(version=holdfast.__version__, started_at=started_at)

    @app.get("/metrics", tags=["server"], response_class=Response)
    async def metrics(services: Use) -> Response:
        """Counters and gauges, for Prometheus."""
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


async def _refuse(_: Request, error: Exception) -> Response:
    assert isinstance(error, HoldfastError)
    return refusal(error)


async def _refuse_left(_: Request, __: Exception) -> Response:
    return error_answer(499, "client_left", "nobody is there to read this")


async def _refuse_fields(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    problems = []
    for each in error.errors()[:5]:
        if each["type"] == "json_invalid":
            return await _refuse(_, InvalidRequest(f"the body is not valid JSON: {each['ctx']['error']}"))
        where = ".".join(str(part) for part in each["loc"] if part not in ("body", "query", "path"))
        problems.append(f"{where or 'the body'}: {describe_problem(each)}")
    return error_answer(422, "invalid_request", "; ".join(problems))


async def _refuse_http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    names = {404: "not_found", 405: "method_not_allowed", 413: "too_large"}
    messages = {
        404: f"there is nothing at {request.url.path}",
        405: f"{request.method} is not something {request.url.path} does",
    }
    return error_answer(
        error.status_code,
        names.get(error.status_code, "invalid_request"),
        messages.get(error.status_code, str(error.detail)),
        headers={"allow": _allowed(request)} if error.status_code == 405 else None,
    )


def _allowed(request: Request) -> str:
    """All methods of a path; the framework names only those of the first route that matches."""
    # The app holds what it includes as one route, which does not tell its own.
    included = (route for each in _ROUTERS for route in each.routes)
    routes = (route for route in (*request.app.routes, *included) if isinstance(route, Route))
    matching = [route for route in routes if route.path_regex.match(request.url.path)]
    # A name that stands for itself is no id, whatever a route with an id would say.
    named = [route for route in matching if route.path == request.url.path]
    methods = {method for route in named or matching for method in route.methods or ()}
    return ", ".join(sorted(methods))
