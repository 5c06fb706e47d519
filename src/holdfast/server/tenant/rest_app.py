"""Opens the REST app of a tenant, with the Daytona API mounted in it if the server has one. Loads neither by itself."""

from __future__ import annotations

import contextlib
import importlib
import os
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING

from holdfast.server.lazy import load_in_thread
from holdfast.server.tenant.core import TenantCore
from holdfast.server.tenant.parts import TenantParts
from holdfast.server.wire.origins import is_loopback
from holdfast.server.wire.preview import Previews
from holdfast.server.wire.preview_links import PreviewLinks
from holdfast.threads.access.tenant_names import tenant_named
from holdfast.threads.subscriptions import Webhooks

if TYPE_CHECKING:
    from fastapi import FastAPI
    from starlette.applications import Starlette

    from holdfast.compat.daytona.service import Daytona


@contextlib.asynccontextmanager
async def open_rest_app(
    core: TenantCore, parts: TenantParts, previews: Previews, links: PreviewLinks
) -> AsyncIterator[FastAPI]:
    if not core.settings.daytona:
        yield await load_in_thread(lambda: _make(core, parts, previews, links, {}))
        return
    async with _opened_daytona(core, parts, previews, links) as daytona:
        from holdfast.compat.daytona.service import PREFIX

        app = await load_in_thread(lambda: _make(core, parts, previews, links, {PREFIX: daytona}))
        app.state.daytona = daytona.state.daytona
        yield app


@contextlib.asynccontextmanager
async def _opened_daytona(
    core: TenantCore, parts: TenantParts, previews: Previews, links: PreviewLinks
) -> AsyncIterator[Starlette]:
    await load_in_thread(lambda: importlib.import_module("holdfast.server.daytona"))
    from holdfast.server.daytona import open_daytona

    async def of_tenant(credential: str | None) -> Daytona:
        return await (await core.server.tenants.find(tenant_named(credential))).daytona()

    async with open_daytona(core, parts, previews, links, of_tenant if core.is_default else None) as app:
        yield app


def _make(
    core: TenantCore, parts: TenantParts, previews: Previews, links: PreviewLinks, mounts: Mapping[str, Starlette]
) -> FastAPI:
    from holdfast.server.oidc import make_oidc
    from holdfast.server.routes.app import create_app
    from holdfast.server.routes.services import Services

    server, settings, storage = core.server, core.settings, core.storage
    services = Services(
        threads=core.threads,
        access=core.access,
        metrics=server.metrics,
        origins=core.origins,
        next_request_id=server.next_request_id,
        max_body=settings.max_body,
        # Behind a proxy, all requests come from this machine.
        open_metrics=is_loopback(settings.host) and not settings.public_url and not settings.preview_url,
        previews=previews,
        links=links,
        shutdown=server.shutdown,
        egress=parts.egress,
        boxes=parts.boxes,
        samples=parts.samples,
        models=parts.models,
        secrets=parts.secrets,
        gateway=parts.gateway,
        environments=parts.environments,
        runs=parts.runs,
        find_agent=server.find_agent,
        interpreters=parts.interpreters,
        puller=parts.puller,
        providers=parts.providers,
        session_gateway=parts.session_gateway,
        daytona_records=lambda: storage.daytona_records,
        sessions=parts.sessions,
        session_tools=parts.session_tools,
        members=storage.members,
        logins=core.logins,
        oidc=make_oidc(settings, core.key("states of logins"), core.clocks.now, os.environ)
        if core.is_default
        else None,
        public_url=settings.public_url,
        quotas=core.quotas,
        audit=core.audit,
        shares=storage.shares,
        webhooks=Webhooks(core.subscriptions),
        tenants=server.tenants if core.is_default else None,
    )
    return create_app(services, mounts)
