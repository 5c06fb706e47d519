"""REST: how a browser logs in and out. The credential is then in a cookie (`wire/login_cookie.py`)."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response
from starlette.responses import RedirectResponse

from holdfast.api.access.keys import Caller
from holdfast.api.access.login import LoginCode, LoginLink, LoginList, LoginMethods, LoginRecord
from holdfast.api.access.tenants import DEFAULT_TENANT, TENANT_NAME
from holdfast.api.errors import Forbidden, NotFound
from holdfast.server.oidc import SECURE_STATE_COOKIE, STATE_COOKIE, STATE_SECONDS, Oidc
from holdfast.server.routes.services import THREAD_ERRORS, Administrator, Services, Use, answer
from holdfast.server.tenant.tenants import Tenants
from holdfast.server.wire.login_cookie import came_over_https, login_of, set_cookie
from holdfast.server.wire.origins import is_same_site
from holdfast.threads.access.credentials import Grant
from holdfast.threads.access.logins import LOGIN_MS, Login
from holdfast.threads.access.tenant_names import tenant_named

router = APIRouter(responses=THREAD_ERRORS)
_CALLBACK = "/login/oidc/callback"


@router.post("/v1/login/links", status_code=201, tags=["login"])
async def create_login_link(services: Use, grant: Administrator) -> LoginLink:
    """Create a link that logs one browser in as you, once, within ten minutes."""
    code, expires_at = services.logins.issue_code(grant)
    return LoginLink(path=f"/login#code={code}", expires_at=expires_at)


@router.get("/v1/login/methods", tags=["login"])
async def get_login_methods(services: Use) -> LoginMethods:
    """How a person can log in, beside a link."""
    return LoginMethods(oidc=None if services.oidc is None else services.oidc.settings.name)


@router.post("/v1/login", tags=["login"])
async def log_in(code: LoginCode, request: Request, services: Use) -> Response:
    """Exchange the code of a link for a cookie. Only for pages of this server."""
    origin = request.headers.get("origin", "").encode("latin-1")
    if not is_same_site(origin, request.headers.get("host", "").encode("latin-1")):
        raise Forbidden("only pages of this server log in")
    tenant = await _tenants(services).find(tenant_named(code.code))
    login, secret = await tenant.logins.redeem(code.code)
    grant = Grant(tenant.name, user=login.user, key=login.key, role=login.role, login=login.id)
    await tenant.streams.audit.record(grant, "POST", "/v1/login", 200)
    caller = Caller(tenant=tenant.name, user=login.user, key=login.key, role=login.role.value)
    response = answer(caller)
    _set(response, request, services, secret)
    return response


@router.delete("/v1/login", status_code=204, tags=["login"])
async def log_out(request: Request, services: Use) -> Response:
    """End the login of this browser."""
    credential = login_of(dict(request.headers.raw), request.method, services.public_url)
    if credential is not None:
        grant = await services.access.grant(credential)
        assert grant.login is not None
        await services.logins.end(grant.login)
        await services.access.review()
    response = Response(None, 204)
    _set(response, request, services, "", seconds=0)
    return response


@router.get("/v1/logins", tags=["login"])
async def list_logins(services: Use, _: Administrator) -> LoginList:
    """List the browsers that are logged in."""
    return LoginList(logins=tuple(map(_record, await services.logins.list())))


@router.delete("/v1/logins/{id}", status_code=204, tags=["login"])
async def end_login(id: str, services: Use, _: Administrator) -> None:
    """Log a browser out, at once."""
    if not await services.logins.end(id):
        raise NotFound(f"there is no login {id}", hint="list them: GET /v1/logins")
    await services.access.review()


# --- the identity provider ---


@router.get("/login/oidc", include_in_schema=False)
async def start_oidc(
    request: Request, services: Use, tenant: Annotated[str, Query(pattern=f"^{TENANT_NAME}$")] = DEFAULT_TENANT
) -> Response:
    """Take the browser to the identity provider."""
    started = await _oidc(services).start(f"{_base(request, services)}{_CALLBACK}", tenant)
    response = RedirectResponse(started.location, 303)
    _set_state(response, request, services, started.cookie, STATE_SECONDS)
    response.headers["cache-control"] = "no-store"
    return response


@router.get(_CALLBACK, include_in_schema=False)
async def finish_oidc(request: Request, services: Use) -> Response:
    """Where the identity provider sends the browser back to."""
    name, user = await _oidc(services).finish(
        request.query_params, request.cookies.get(_state_cookie(request, services))
    )
    tenant = await _tenants(services).find(name)
    member = await tenant.storage.members.find(user) if tenant.name == name else None
    if member is None:
        raise Forbidden(f"{user} is not a member here", hint="ask an owner: holdfast member add NAME")
    login, secret = await tenant.logins.begin(user, member.role, "oidc", member=user)
    grant = Grant(tenant.name, user=user, role=login.role, login=login.id)
    await tenant.streams.audit.record(grant, "GET", _CALLBACK, 303)
    response = RedirectResponse("/", 303)
    _set(response, request, services, secret)
    _set_state(response, request, services, "", 0)
    response.headers["cache-control"] = "no-store"
    return response


def _oidc(services: Services) -> Oidc:
    if services.oidc is None:
        raise NotFound("this server has no identity provider", hint="set oidc_issuer: docs/login.md")
    return services.oidc


def _tenants(services: Services) -> Tenants:
    assert services.tenants is not None, "requests without a credential are for the default tenant"
    return services.tenants


def _set(
    response: Response, request: Request, services: Services, secret: str, seconds: int = LOGIN_MS // 1000
) -> None:
    cookie = set_cookie(secret, secure=_is_secure(request, services), seconds=seconds)
    response.headers.append("set-cookie", cookie)


def _state_cookie(request: Request, services: Services) -> str:
    """Over https, the name that no other host and no plain http can set, as that of a login."""
    return SECURE_STATE_COOKIE if _is_secure(request, services) else STATE_COOKIE


def _set_state(response: Response, request: Request, services: Services, value: str, seconds: int) -> None:
    # Lax, because the browser comes back from another site. A name with __Host- needs the path /.
    name, secure = _state_cookie(request, services), _is_secure(request, services)
    path = "/" if secure else "/login/oidc"
    response.set_cookie(name, value, max_age=seconds, path=path, secure=secure, httponly=True, samesite="lax")


def _base(request: Request, services: Services) -> str:
    """The URL of this server, as browsers know it."""
    if services.public_url is not None:
        return services.public_url.rstrip("/")
    scheme = "https" if _is_secure(request, services) else "http"
    return f"{scheme}://{request.headers.get('host', '')}"


def _is_secure(request: Request, services: Services) -> bool:
    return came_over_https(dict(request.headers.raw), services.public_url)


def _record(login: Login) -> LoginRecord:
    return LoginRecord(
        id=login.id,
        user=login.user,
        role=login.role.value,
        via=login.via,
        created_at=login.created_at,
        expires_at=login.expires_at,
    )
