"""Serves the Daytona API (`holdfast.compat.daytona`) as a part of this server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.requests import HTTPConnection

from holdfast.boxes.service.boxes import Boxes
from holdfast.compat.daytona.app import create_app
from holdfast.compat.daytona.records import RecordStore
from holdfast.compat.daytona.service import Daytona, Dependencies, opened_daytona
from holdfast.environments.secrets import Secrets
from holdfast.images.registry.pull import Puller
from holdfast.server.egress import ServerEgress
from holdfast.server.lazy import Lazy, load_in_thread
from holdfast.server.shutdown import Shutdown
from holdfast.server.tenant.quotas import Quotas
from holdfast.server.wire.middleware import CREDENTIAL, GRANT
from holdfast.server.wire.origins import OriginPolicy
from holdfast.server.wire.preview import Previews
from holdfast.server.wire.preview_links import PreviewLinks
from holdfast.storage import Storage
from holdfast.threads.access.credentials import Access, Grant


@asynccontextmanager
async def open_daytona(
    storage: Storage,
    access: Access,
    boxes: Lazy[Boxes],
    egress: Lazy[ServerEgress],
    puller: Lazy[Puller],
    previews: Previews,
    links: PreviewLinks,
    origins: OriginPolicy,
    shutdown: Shutdown,
    secret: bytes,
    quotas: Quotas,
    secrets: Lazy[Secrets],
    of_tenant: Callable[[str | None], Awaitable[Daytona]] | None,
) -> AsyncIterator[Starlette]:
    """`secret` signs URLs of files. `of_tenant` finds the API of the tenant that a credential names."""

    async def records() -> RecordStore:
        return await load_in_thread(lambda: storage.daytona_records)

    async def network_ready() -> None:
        await (await egress.get()).ready()

    def note_caller(connection: HTTPConnection, credential: str | None, grant: Grant) -> None:
        connection.scope[GRANT], connection.scope[CREDENTIAL] = grant, credential

    def count_request(connection: HTTPConnection) -> None:
        quotas.take_request()
        if connection.scope.get("method") in ("POST", "PUT", "PATCH"):
            quotas.check_storage()

    needs = Dependencies(
        access,
        boxes.get,
        records,
        puller.get,
        network_ready,
        previews,
        links,
        secret,
        origins.check,
        shutdown.until_stopping,
        note_caller,
        count_request,
        secrets.get,
        of_tenant,
    )
    async with opened_daytona(needs) as daytona:
        yield create_app(daytona)
