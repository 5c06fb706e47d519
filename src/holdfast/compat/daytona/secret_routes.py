"""Routes of the control plane about secrets. No answer has a value."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from holdfast.api.access.tenants import TenantRole
from holdfast.compat.daytona.http.errors import bad_request, not_supported
from holdfast.compat.daytona.http.requests import answer, body_of, nothing, number_of
from holdfast.compat.daytona.listing import cursors
from holdfast.compat.daytona.records import Record
from holdfast.compat.daytona.sandbox_record import sandbox_json
from holdfast.compat.daytona.secrets import ChangedSecret, NewMounts, NewSecret, secret_json
from holdfast.compat.daytona.service import Parts, daytona_of, toolbox_url

_SORTS: Final[dict[str, Callable[[Record], Any]]] = {
    "name": lambda record: record.name,
    "createdAt": lambda record: record.created_at,
    "updatedAt": lambda record: record.changed_at,
}


async def _owner(request: Request) -> tuple[Parts, str]:
    """The parts and the name of a caller who may change secrets, as our own API has it."""
    daytona = daytona_of(request)
    grant = await daytona.grant(request)
    grant.check_role(TenantRole.OWNER)
    return await daytona.parts(), grant.user


async def create_secret(request: Request) -> Response:
    parts, _ = await _owner(request)
    return answer(secret_json(await parts.secrets.create(await body_of(request, NewSecret))), 201)


async def list_secrets(request: Request) -> Response:
    parts = await daytona_of(request).admit(request)
    return answer([secret_json(each) for each in await parts.secrets.all()])


async def list_by_page(request: Request) -> Response:
    parts = await daytona_of(request).admit(request)
    query, limit = request.query_params, number_of(request, "limit", 100, 1, 200)
    sort, order = query.get("sort") or "createdAt", query.get("order") or "desc"
    if sort not in _SORTS or order not in ("asc", "desc"):
        raise bad_request(f"sort: one of {', '.join(_SORTS)} is expected, and asc or desc as order")
    name = query.get("name", "").lower()
    found = [each for each in await parts.secrets.all() if name in each.name.lower()]
    found.sort(key=lambda each: (_SORTS[sort](each), each.id), reverse=order == "desc")
    start, next_cursor = cursors(query.get("cursor"), [each.id for each in found], limit)
    items = [secret_json(each) for each in found[start : start + limit]]
    return answer({"items": items, "total": len(found), "nextCursor": next_cursor})


async def get_secret(request: Request) -> Response:
    parts = await daytona_of(request).admit(request)
    return answer(secret_json(await parts.secrets.find(request.path_params["id"])))


async def update_secret(request: Request) -> Response:
    parts, user = await _owner(request)
    changes = await body_of(request, ChangedSecret)
    return answer(secret_json(await parts.secrets.change(request.path_params["id"], changes, user)))


async def delete_secret(request: Request) -> Response:
    parts, user = await _owner(request)
    await parts.secrets.delete(request.path_params["id"], user)
    return nothing(204)


async def set_mounts(request: Request) -> Response:
    daytona = daytona_of(request)
    user, parts = (await daytona.grant(request)).user, await daytona.parts()
    sandbox = await parts.sandboxes.find(request.path_params["sandbox"])
    changed = await parts.sandboxes.set_secrets(sandbox, await body_of(request, NewMounts), user)
    return answer(sandbox_json(changed, parts.organization, toolbox_url(request)))


async def no_values(request: Request) -> Response:
    await daytona_of(request).admit(request)
    raise not_supported("this server gives no value of a secret away: its egress puts them into requests")


def routes() -> list[Route]:
    table = [
        ("POST", "/secret", create_secret),
        ("GET", "/secret", list_secrets),
        ("GET", "/secret/paginated", list_by_page),
        ("GET", "/secret/{id}", get_secret),
        ("PATCH", "/secret/{id}", update_secret),
        ("DELETE", "/secret/{id}", delete_secret),
        ("PUT", "/sandbox/{sandbox}/secrets", set_mounts),
        ("GET", "/sandbox/{sandbox}/secrets", no_values),
    ]
    return [Route(path, endpoint, methods=[method]) for method, path, endpoint in table]
