"""Operations of Daytona's control plane that this server does not have: each is refused with what to do instead.

`tests/compat/daytona/test_operations.py` reads all operations from the SDKs, and finds each served or here.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from holdfast.compat.daytona.http.errors import not_supported
from holdfast.compat.daytona.service import daytona_of

_METHODS: Final = ("GET", "POST", "PUT", "PATCH", "DELETE")
_REASONS: Final = {
    "/warm-pools": "this server keeps boxes ready by itself: see `holdfast up --pool`",
    "/api-keys": "this server lists and changes its keys with `holdfast key`",
    "/docker-registry": "this server pulls images by their whole names, with what its machine is logged in to",
    "/organizations": "this server has one organization for each tenant: see `holdfast tenant` and `holdfast member`",
    "/regions": "the regions of this server are its providers: see `holdfast provider`",
    "/users": "the users of this server are members of tenants: see `holdfast member`",
    "/runners": "this server runs sandboxes by itself, and has no runners",
    "/jobs": "this server runs sandboxes by itself, and has no jobs of runners",
    "/audit": "this server shows its audit log with `holdfast audit`",
    "/webhooks": "this server has webhooks of its own: see `holdfast webhook`",
    "/preview": "this server checks who visits a port by itself: ask a sandbox for a preview link",
    "/sandbox/{sandbox}/region-quota": "this server has no quota for a region: see /organizations/ID/usage",
    "/sandbox/{sandbox}/telemetry": "this server collects no traces and logs of sandboxes: use get_metrics",
    "/sandbox/{sandbox}/backup": "this server has the files of a sandbox anyway: create a snapshot to keep them",
    "/sandbox/{sandbox}/state": "the state of a sandbox on this server is that of its box: start or stop it",
}


def routes() -> list[Route]:
    """To be matched last: some of what is below these paths is served."""
    made = []
    for path, reason in _REASONS.items():
        endpoint = _refusing(reason)
        made += [Route(path, endpoint, methods=_METHODS), Route(f"{path}/{{rest:path}}", endpoint, methods=_METHODS)]
    return made


def _refusing(reason: str) -> Callable[[Request], Awaitable[Response]]:
    async def refuse(request: Request) -> Response:
        await daytona_of(request).admit(request)
        raise not_supported(reason)

    return refuse
