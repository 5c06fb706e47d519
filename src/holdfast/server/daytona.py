"""Serves the Daytona API (`holdfast.compat.daytona`) as a part of this server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.requests import HTTPConnection

from holdfast.compat.daytona.app import create_app
from holdfast.compat.daytona.records import RecordStore
from holdfast.compat.daytona.service import Daytona, Dependencies, opened_daytona
from holdfast.server.lazy import load_in_thread
from holdfast.server.tenant.core import TenantCore
from holdfast.server.tenant.parts import TenantParts
from holdfast.server.wire.middleware import CREDENTIAL, GRANT
from holdfast.server.wire.preview import Previews
from holdfast.server.wire.preview_links import PreviewLinks
from holdfast.threads.access.credentials import Grant


@asynccontextmanager
async def open_daytona(
    core: TenantCore,
    parts: TenantParts,
    previews: Previews,
    links: PreviewLinks,
    of_tenant: Callable[[str | None], Awaitable[Daytona]] | None,
) -> AsyncIterator[Starlette]:
    """`of_tenant` finds the API of the tenant that a credential names."""

    async def records() -> RecordStore:
        return await load_in_thread(lambda: core.storage.daytona_records)

    async def network_ready() -> None:
        await (await parts.egress.get()).ready()

    def note_caller(connection: HTTPConnection, credential: str | None, grant: Grant) -> None:
        connection.scope[GRANT], connection.scope[CREDENTIAL] = grant, credential

    def count_request(connection: HTTPConnection) -> None:
        core.quotas.take_request()
        if connection.scope.get("method") in ("POST", "PUT", "PATCH"):
            core.quotas.check_storage()

    needs = Dependencies(
        core.access,
        parts.boxes.get,
        records,
        parts.puller.get,
        network_ready,
        previews,
        links,
        core.key("daytona file urls"),
        core.origins.check,
        core.server.shutdown.until_stopping,
        note_caller,
        count_request,
        parts.secrets.get,
        of_tenant,
    )
    async with opened_daytona(needs) as daytona:
        yield create_app(daytona)
