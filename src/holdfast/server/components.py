"""The parts of a server that are opened in the background: egress, boxes, models, runs, interpreters.

Each opener loads its modules in a thread, waits for the parts that it needs, and cleans up after itself. This module
itself loads none of them.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from holdfast.server.lazy import Lazy, load_in_thread

if TYPE_CHECKING:
    from holdfast.api.box.box import Box
    from holdfast.api.session.sessions import SessionStep
    from holdfast.boxes.network_policy import Egress
    from holdfast.boxes.provider import Provider
    from holdfast.boxes.rows import BoxRows
    from holdfast.boxes.service.boxes import Boxes
    from holdfast.egress import GuestApi
    from holdfast.egress.models import ModelGateway, Models, Prices
    from holdfast.environments.secrets import Secrets
    from holdfast.gateway.hosts import SessionHosts
    from holdfast.gateway.proxy.relay import Relay
    from holdfast.harnesses.harness import Harness
    from holdfast.images.registry.pull import Puller
    from holdfast.runs.service import Runs
    from holdfast.server.clocks import Clocks
    from holdfast.server.config import Settings
    from holdfast.server.egress import Outside, ServerEgress
    from holdfast.server.environments import ServerEnvironments
    from holdfast.server.interpreter.interpreters import ServerInterpreters
    from holdfast.server.provider.providers import ServerProviders
    from holdfast.server.session.gateway import SessionGateway
    from holdfast.server.session.tools import ServerTools
    from holdfast.server.tenant.quotas import Quotas
    from holdfast.sessions.hub.hub import Hub, InternalApi
    from holdfast.sessions.hub.questions import Questions
    from holdfast.sessions.hub.runners import Runners
    from holdfast.sessions.service import Sessions
    from holdfast.storage import Storage
    from holdfast.threads.access.credentials import Access
    from holdfast.threads.access.seals import Seals
    from holdfast.threads.projection import Projection
    from holdfast.threads.protocol.surface import StreamSurface
    from holdfast.threads.rows import ThreadRow
    from holdfast.threads.service import Threads
    from holdfast.threads.store import StreamStore

log = logging.getLogger(__name__)

FindAgent = Callable[[str], "Harness"]
"""Returns an agent by its name. Raises `UnknownAgent`."""

OpenProviders = Callable[["Settings", "Egress"], Awaitable["Mapping[str, Provider]"]]

_KERNEL_START: Final = "holdfast.interpreter.kernel.start"


async def _load(*modules: str) -> None:
    """Import modules without holding up the event loop: some take long."""
    wanted = [name for name in modules if name not in sys.modules]
    if wanted:
        await load_in_thread(lambda: [importlib.import_module(name) for name in wanted])


@asynccontextmanager
async def open_egress(
    storage: Storage,
    home: Path,
    make_outside: Callable[[], Outside],
    guest_api: GuestApi,
    secrets: Lazy[Secrets],
    certificate_secret: bytes,
    package_cache: int,
) -> AsyncIterator[ServerEgress]:
    """From `certificate_secret`, the authorities of boxes that use secrets are derived. `package_cache` is in bytes."""
    await _load("holdfast.server.egress", "holdfast.egress.bound")
    await load_in_thread(lambda: (storage.egress_decisions, storage.egress_policies))
    from holdfast.egress.bound import ServerSecrets
    from holdfast.server.egress import ServerEgress

    outside = await load_in_thread(make_outside)
    bound = ServerSecrets(await secrets.get(), certificate_secret, outside.trust)
    egress = ServerEgress(storage, home, outside, guest_api=guest_api, secrets=bound, package_cache=package_cache)
    try:
        await egress.open()
        yield egress
    finally:
        await egress.close()


@asynccontextmanager
async def open_accounts(
    storage: Storage, secret: bytes, egress: Lazy[ServerEgress], open_providers: OpenProviders, settings: Settings
) -> AsyncIterator[ServerProviders]:
    """Open all providers, and the accounts that were added. `secret` seals their credentials."""
    await _load("holdfast.server.provider.providers", "holdfast.providers.registry")
    from holdfast.providers.accounts import Accounts
    from holdfast.providers.registry import descriptors
    from holdfast.server.provider.providers import ServerProviders

    kinds = {
        each.name: each
        for each in await load_in_thread(descriptors)
        if settings.provider_kinds is None or each.name in settings.provider_kinds
    }
    proxy = (await egress.get()).proxy
    store = await load_in_thread(lambda: storage.provider_accounts)
    async with Accounts(store, secret, kinds) as accounts:
        providers = ServerProviders(
            accounts,
            kinds,
            settings.home,
            proxy,
            flags=settings.provider_settings,
            environment=settings.provider_environment,
        )
        try:
            opened = await open_providers(replace(settings, provider_settings=providers.settings()), proxy)
            await providers.open_accounts(opened)
            yield providers
        finally:
            await providers.close()


@asynccontextmanager
async def open_boxes(
    storage: Storage,
    accounts: Lazy[ServerProviders],
    egress: Lazy[ServerEgress],
    *,
    node: str,
    pool: int,
    quotas: Quotas,
) -> AsyncIterator[Boxes]:
    """`pool` boxes are kept ready at most. Boxes outlive the service."""
    await _load(
        "holdfast.boxes.service.boxes",
        # What WebSockets and ports need, so that the first visitor does not wait for it.
        "holdfast.server.wire.websocket_protocol",
        "holdfast.gateway.proxy.upgrade",
    )
    from holdfast.boxes.labels import WORKSTATION
    from holdfast.boxes.service.boxes import Boxes
    from holdfast.boxes.service.pool_rules import PoolSettings

    rows = await load_in_thread(lambda: storage.boxes)
    providers = (await accounts.get()).providers
    if storage.is_exclusive:
        await _release_leases(rows)
    settings = PoolSettings(boxes=pool, furnishings={"interpreter": _start_kernel, WORKSTATION: _start_workstation})
    boxes = Boxes(
        rows,
        providers,
        node=node,
        pool=settings,
        secrets=(await egress.get()).secrets,
        check_count=quotas.check_box,
    )
    # The first sweep may have much to clean up: nothing waits for it.
    sweep = asyncio.create_task(boxes.start(), name="first sweep of boxes")
    sweep.add_done_callback(_log_sweep)
    try:
        yield boxes
    finally:
        sweep.cancel()
        await asyncio.gather(sweep, return_exceptions=True)
        await boxes.close()


async def _release_leases(rows: BoxRows) -> None:
    """On a storage of ours alone, leases belong to a server that was killed. Its work can be taken up at once."""
    try:
        await rows.release_all()
    except Exception as error:  # a full disk, for example: then the leases expire by themselves
        log.warning("the leases of the last server are left to expire: %s", error)


def _log_sweep(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("the first sweep of boxes failed", exc_info=error)


async def _start_workstation(box: Box) -> None:
    await _load("holdfast.sessions.workstation")
    from holdfast.sessions.workstation import start_workstation

    await start_workstation(box)


async def _start_kernel(box: Box) -> None:
    await _load(_KERNEL_START)
    from holdfast.interpreter.kernel.start import start_ahead

    await start_ahead(box)


@asynccontextmanager
async def open_models(storage: Storage, secret: bytes) -> AsyncIterator[Models]:
    """`secret` seals their keys."""
    await _load("holdfast.egress.models")
    from holdfast.egress.models import Models

    async with Models(await load_in_thread(lambda: storage.models), secret) as models:
        yield models


@asynccontextmanager
async def open_secrets(storage: Storage, secret: bytes) -> AsyncIterator[Secrets]:
    """`secret` seals their values."""
    await _load("holdfast.environments.secrets")
    from holdfast.environments.secrets import Secrets

    async with Secrets(await load_in_thread(lambda: storage.named_secrets), secret) as secrets:
        yield secrets


@asynccontextmanager
async def open_prices(storage: Storage) -> AsyncIterator[Prices]:
    await _load("holdfast.egress.models")
    from holdfast.egress.models import Prices

    async with Prices(await load_in_thread(lambda: storage.model_prices)) as prices:
        yield prices


@asynccontextmanager
async def open_gateway(
    storage: Storage,
    projection: Projection,
    seals: Seals,
    models: Lazy[Models],
    prices: Lazy[Prices],
    egress: Lazy[ServerEgress],
    clocks: Clocks,
    quotas: Quotas,
) -> AsyncIterator[ModelGateway]:
    opened = await models.get()
    from holdfast.egress.models import Budgets, Meter, ModelGateway, ThreadJournal, load_from

    async with Budgets(await load_in_thread(lambda: storage.budgets), day_ceiling=lambda: quotas.day_budget) as budgets:
        meter = Meter(
            await prices.get(),
            budgets,
            load_from(projection),
            ThreadJournal(storage.streams, seals, clocks.now),
            clock=clocks.now,
            ticks=clocks.ticks,
        )
        gateway = ModelGateway(opened, (await egress.get()).make_upstream, meter=meter, ticks=clocks.ticks)
        try:
            yield gateway
        finally:
            await gateway.close()


@asynccontextmanager
async def open_puller(egress: Lazy[ServerEgress], home: Path, mirrors: Sequence[str]) -> AsyncIterator[Puller]:
    """Open what pulls images from registries. It keeps what it fetched in the home."""
    from holdfast.images.registry.pull import Puller

    yield Puller(home / "cache" / "registry", (await egress.get()).make_upstream, mirrors)


@asynccontextmanager
async def open_runs(
    storage: Storage,
    threads: Threads,
    projection: Projection,
    access: Access,
    seals: Seals,
    boxes: Lazy[Boxes],
    egress: Lazy[ServerEgress],
    models: Lazy[Models],
    environments: Lazy[ServerEnvironments],
    prices: Lazy[Prices],
    find_agent: FindAgent,
    home: Path,
    clocks: Clocks,
    delegation: str,
    quotas: Quotas,
    runners: Runners,
) -> AsyncIterator[Runs]:
    """Runs outlive the service. `delegation` has the limits of trees of tasks."""
    opened = await boxes.get()
    await _load("holdfast.runs.service", "holdfast.harnesses.placement", "holdfast.harnesses.runner_archive")
    from holdfast.api.run.tasks import DelegationLimits
    from holdfast.harnesses.installation import Tools
    from holdfast.harnesses.placement import InstalledAgents
    from holdfast.runs.launch.plan import LaunchPlanner
    from holdfast.runs.launch.steps import Launcher
    from holdfast.runs.reconcile.rules import Thresholds
    from holdfast.runs.run_log import RunLog
    from holdfast.runs.service import Runs
    from holdfast.runs.workspace.store import Workspaces

    workspaces = Workspaces(home / "workspaces")
    await asyncio.to_thread(workspaces.sweep)
    run_log = RunLog(storage.streams, threads, seals, clocks.now)
    agents = InstalledAgents(Tools(home), find_agent)
    launcher = Launcher(
        log=run_log,
        boxes=opened,
        workspaces=workspaces,
        agents=agents,
        access=access,
        ticks=clocks.ticks,
        network_ready=(await egress.get()).ready,
        setups=await environments.get(),
        runners=runners,
    )
    runs = Runs(
        storage.streams,
        threads,
        projection,
        opened,
        LaunchPlanner(agents, await models.get(), opened, await prices.get()),
        launcher,
        run_log,
        workspaces,
        ticks=clocks.ticks,
        # On a storage of ours alone, no other server can be at a launch.
        thresholds=Thresholds(launch=0) if storage.is_exclusive else Thresholds(),
        delegation_limits=DelegationLimits.parse(delegation),
        admit=quotas.check_run,
    )
    try:
        await runs.start()
        yield runs
    finally:
        await runs.close()


@asynccontextmanager
async def open_sessions(
    storage: Storage,
    threads: Threads,
    projection: Projection,
    seals: Seals,
    boxes: Lazy[Boxes],
    runs: Lazy[Runs],
    runners: Runners,
    questions: Questions,
    clocks: Clocks,
    most: int,
) -> AsyncIterator[Sessions]:
    """`most` sessions may have a box that runs, at once. Sessions outlive the service."""
    opened = await runs.get()
    await _load("holdfast.sessions.service")
    from holdfast.runs.run_log import RunLog
    from holdfast.sessions.hub.settings import ServerSettings
    from holdfast.sessions.service import Sessions

    run_log = RunLog(storage.streams, threads, seals, clocks.now)
    sessions = Sessions(
        storage.streams,
        threads,
        projection,
        await boxes.get(),
        opened,
        run_log,
        runners,
        questions,
        ServerSettings(storage.streams, seals, run_log, runners),
        ticks=clocks.ticks,
        most=most,
    )
    try:
        await sessions.start()
        yield sessions
    finally:
        await sessions.close()


@asynccontextmanager
async def open_session_hub(
    storage: Storage,
    threads: Threads,
    seals: Seals,
    runs: Lazy[Runs],
    sessions: Lazy[Sessions],
    runners: Runners,
    questions: Questions,
    surface: StreamSurface,
    next_request_id: Callable[[], str],
    internal_api: Callable[[], Awaitable[InternalApi]],
    clocks: Clocks,
    quotas: Quotas,
) -> AsyncIterator[Hub]:
    """Opened with the first runner that connects. Runners outlive it."""
    opened = await runs.get()
    terminate = (await sessions.get()).terminate
    await _load("holdfast.sessions.hub.hub", "holdfast.server.wire.websocket_protocol")
    from holdfast.runs.run_log import RunLog
    from holdfast.sessions.hub.hub import Hub
    from holdfast.sessions.hub.settings import ServerSettings
    from holdfast.sessions.hub.turn_writer import TurnWriter

    run_log = RunLog(storage.streams, threads, seals, clocks.now)
    hub = Hub(
        run_log,
        TurnWriter(surface, next_request_id, quotas.check_append),
        opened,
        opened.ends,
        runners,
        questions,
        internal_api=internal_api,
        on_terminate=terminate,
        settings=ServerSettings(storage.streams, seals, run_log, runners),
    )
    try:
        yield hub
    finally:
        await hub.close()


@asynccontextmanager
async def open_session_tools(
    storage: Storage,
    threads: Threads,
    projection: Projection,
    seals: Seals,
    boxes: Lazy[Boxes],
    runs: Lazy[Runs],
    sessions: Lazy[Sessions],
    clocks: Clocks,
    secrets: Lazy[Secrets],
    settings: Settings,
    secret: bytes,
    tenant: str,
) -> AsyncIterator[ServerTools]:
    """The limits of trees of tasks hold for trees of sessions too. From `secret`, the keys of workflows are derived."""
    opened = await sessions.get()
    await _load("holdfast.server.session.tools")
    from holdfast.api.run.tasks import DelegationLimits
    from holdfast.runs.run_log import RunLog
    from holdfast.server.session.tools import ServerTools, parse_apis
    from holdfast.threads.access.tenant_names import link_mark

    run_log = RunLog(storage.streams, threads, seals, clocks.now)
    async with ServerTools.open(
        storage,
        projection,
        seals,
        await boxes.get(),
        await runs.get(),
        opened,
        run_log,
        DelegationLimits.parse(settings.delegation),
        secret,
        await secrets.get(),
        parse_apis(settings.service_apis),
        link_mark(tenant),
        public_only=settings.public_only,
    ) as tools:
        yield tools


@asynccontextmanager
async def open_environments(
    storage: Storage,
    boxes: Lazy[Boxes],
    egress: Lazy[ServerEgress],
    models: Lazy[Models],
    secrets: Lazy[Secrets],
    find_agent: FindAgent,
    home: Path,
    clocks: Clocks,
) -> AsyncIterator[ServerEnvironments]:
    await _load("holdfast.server.environments", "holdfast.environments.setup")
    from holdfast.environments.library import Environments
    from holdfast.environments.setup import Setups
    from holdfast.runs.workspace.store import Workspaces
    from holdfast.server.environments import ServerEnvironments, ServerKnown

    opened = await boxes.get()
    library = Environments(await load_in_thread(lambda: storage.environments), clocks.now)
    setups = Setups(opened, (await egress.get()).ready)
    known = ServerKnown(opened, await models.get(), find_agent, await secrets.get())
    try:
        await setups.start(exclusive=storage.is_exclusive)
        yield ServerEnvironments(library, setups, opened, known, Workspaces(home / "workspaces"))
    finally:
        await setups.close()


@asynccontextmanager
async def open_session_gateway(
    storage: Storage,
    threads: Threads,
    seals: Seals,
    boxes: Lazy[Boxes],
    sessions: Lazy[Sessions],
    hosts: SessionHosts,
    relay: Callable[[], Relay],
    secret: bytes,
    clock: Callable[[], int],
    access: Access,
    tools: Lazy[ServerTools],
) -> AsyncIterator[SessionGateway]:
    """From `secret`, the keys of sessions are derived."""
    await _load("holdfast.server.session.gateway", "holdfast.server.session.tools", "jwt")
    await load_in_thread(lambda: storage.gateway_cookies)
    from holdfast.server.session.gateway import SessionGateway
    from holdfast.server.session.tools import internal_routes
    from holdfast.sessions.tools.service import SessionTools

    async def operations() -> SessionTools:
        return (await tools.get()).operations

    async def programs(row: ThreadRow) -> Sequence[SessionStep]:
        return await (await sessions.get()).programs(row)

    async with SessionGateway.open(
        storage,
        threads,
        seals,
        await boxes.get(),
        programs,
        hosts,
        relay(),
        secret,
        clock,
        access,
        internal_routes(operations),
    ) as gateway:
        yield gateway


@asynccontextmanager
async def open_interpreters(
    store: StreamStore,
    threads: Threads,
    seals: Seals,
    boxes: Lazy[Boxes],
    egress: Lazy[ServerEgress],
    models: Lazy[Models],
    gateway: Lazy[ModelGateway],
    home: Path,
    environment: Mapping[str, str],
) -> AsyncIterator[ServerInterpreters]:
    """`environment`: the variables that the package tools of this machine use when a template is built.

    The boxes of interpreters outlive the service.
    """
    await _load("holdfast.server.interpreter.interpreters", "holdfast.server.interpreter.template_builder")
    from holdfast.server.interpreter.host import ServerHost
    from holdfast.server.interpreter.interpreters import ServerInterpreters
    from holdfast.server.interpreter.template_builder import ServerTemplates

    opened, network = await boxes.get(), await egress.get()
    templates = ServerTemplates(opened, network.ready, home, environment)
    new_host = partial(
        ServerHost, opened, network.ready, store, threads, await models.get(), await gateway.get(), templates
    )
    interpreters = ServerInterpreters(opened, store, threads, seals, new_host)
    try:
        yield interpreters
    finally:
        await interpreters.close()
