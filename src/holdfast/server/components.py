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
from typing import TYPE_CHECKING, Final

from holdfast.server.lazy import Lazy, load_in_thread

if TYPE_CHECKING:
    from holdfast.api.box.box import Box
    from holdfast.api.session.sessions import SessionStep
    from holdfast.boxes.rows import BoxRows
    from holdfast.boxes.service.boxes import Boxes
    from holdfast.egress import GuestApi
    from holdfast.egress.models import ModelGateway, Models, Prices
    from holdfast.environments.secrets import Secrets
    from holdfast.gateway.proxy.relay import Relay
    from holdfast.harnesses.harness import Harness
    from holdfast.images.registry.pull import Puller
    from holdfast.runs.run_log import RunLog
    from holdfast.runs.service import Runs
    from holdfast.server.egress import ServerEgress
    from holdfast.server.environments import ServerEnvironments
    from holdfast.server.interpreter.interpreters import ServerInterpreters
    from holdfast.server.provider.providers import ServerProviders
    from holdfast.server.session.gateway import SessionGateway
    from holdfast.server.session.tools import ServerTools
    from holdfast.server.tenant.core import TenantCore
    from holdfast.sessions.hub.hub import Hub, InternalApi
    from holdfast.sessions.hub.questions import Questions
    from holdfast.sessions.hub.runners import Runners
    from holdfast.sessions.service import Sessions
    from holdfast.threads.rows import ThreadRow
    from holdfast.threads.session_events import Session

log = logging.getLogger(__name__)

FindAgent = Callable[[str], "Harness"]
"""Returns an agent by its name. Raises `UnknownAgent`."""

_KERNEL_START: Final = "holdfast.interpreter.kernel.start"


async def _load(*modules: str) -> None:
    """Import modules without holding up the event loop: some take long."""
    wanted = [name for name in modules if name not in sys.modules]
    if wanted:
        await load_in_thread(lambda: [importlib.import_module(name) for name in wanted])


def _run_log(core: TenantCore) -> RunLog:
    from holdfast.runs.run_log import RunLog

    return RunLog(core.storage.streams, core.threads, core.seals, core.clocks.now)


@asynccontextmanager
async def open_egress(core: TenantCore, secrets: Lazy[Secrets], guest_api: GuestApi) -> AsyncIterator[ServerEgress]:
    await _load("holdfast.server.egress", "holdfast.egress.bound")
    storage = core.storage
    await load_in_thread(lambda: (storage.egress_decisions, storage.egress_policies))
    from holdfast.egress.bound import ServerSecrets
    from holdfast.server.egress import ServerEgress

    outside = await load_in_thread(lambda: core.server.make_outside(core.settings))
    bound = ServerSecrets(await secrets.get(), core.key("certificates of boxes"), outside.trust)
    egress = ServerEgress(
        storage,
        core.home.path,
        outside,
        guest_api=guest_api,
        secrets=bound,
        package_cache=core.settings.package_cache << 20,
    )
    try:
        await egress.open()
        yield egress
    finally:
        await egress.close()


@asynccontextmanager
async def open_accounts(core: TenantCore, egress: Lazy[ServerEgress]) -> AsyncIterator[ServerProviders]:
    """Open all providers, and the accounts that were added."""
    await _load("holdfast.server.provider.providers", "holdfast.providers.registry")
    from holdfast.providers.accounts import Accounts
    from holdfast.providers.registry import descriptors
    from holdfast.server.provider.providers import ServerProviders

    settings = core.settings
    kinds = {
        each.name: each
        for each in await load_in_thread(descriptors)
        if settings.provider_kinds is None or each.name in settings.provider_kinds
    }
    proxy = (await egress.get()).proxy
    store = await load_in_thread(lambda: core.storage.provider_accounts)
    async with Accounts(store, core.key("provider credentials"), kinds) as accounts:
        providers = ServerProviders(
            accounts,
            kinds,
            settings.home,
            proxy,
            flags=settings.provider_settings,
            environment=settings.provider_environment,
        )
        try:
            opened = await core.server.open_providers(replace(settings, provider_settings=providers.settings()), proxy)
            await providers.open_accounts(opened)
            yield providers
        finally:
            await providers.close()


@asynccontextmanager
async def open_boxes(
    core: TenantCore, accounts: Lazy[ServerProviders], egress: Lazy[ServerEgress]
) -> AsyncIterator[Boxes]:
    """Boxes outlive the service."""
    await _load(
        "holdfast.boxes.service.boxes",
        # What WebSockets and ports need, so that the first visitor does not wait for it.
        "holdfast.server.wire.websocket_protocol",
        "holdfast.gateway.proxy.upgrade",
    )
    from holdfast.boxes.labels import WORKSTATION
    from holdfast.boxes.service.boxes import Boxes
    from holdfast.boxes.service.pool_rules import PoolSettings

    rows = await load_in_thread(lambda: core.storage.boxes)
    providers = (await accounts.get()).providers
    if core.storage.is_exclusive:
        await _release_leases(rows)
    furnishings = {"interpreter": _start_kernel, WORKSTATION: _start_workstation}
    boxes = Boxes(
        rows,
        providers,
        node=core.home.node(),
        pool=PoolSettings(boxes=core.settings.pool, furnishings=furnishings),
        secrets=(await egress.get()).secrets,
        check_count=core.quotas.check_box,
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
async def open_models(core: TenantCore) -> AsyncIterator[Models]:
    await _load("holdfast.egress.models")
    from holdfast.egress.models import Models

    async with Models(await load_in_thread(lambda: core.storage.models), core.key("model keys")) as models:
        yield models


@asynccontextmanager
async def open_secrets(core: TenantCore) -> AsyncIterator[Secrets]:
    await _load("holdfast.environments.secrets")
    from holdfast.environments.secrets import Secrets

    store = await load_in_thread(lambda: core.storage.named_secrets)
    async with Secrets(store, core.key("named secrets")) as secrets:
        yield secrets


@asynccontextmanager
async def open_prices(core: TenantCore) -> AsyncIterator[Prices]:
    await _load("holdfast.egress.models")
    from holdfast.egress.models import Prices

    async with Prices(await load_in_thread(lambda: core.storage.model_prices)) as prices:
        yield prices


@asynccontextmanager
async def open_gateway(
    core: TenantCore, models: Lazy[Models], prices: Lazy[Prices], egress: Lazy[ServerEgress]
) -> AsyncIterator[ModelGateway]:
    opened = await models.get()
    from holdfast.egress.models import Budgets, Meter, ModelGateway, ThreadJournal, load_from

    clocks = core.clocks
    store = await load_in_thread(lambda: core.storage.budgets)
    async with Budgets(store, day_ceiling=lambda: core.quotas.day_budget) as budgets:
        meter = Meter(
            await prices.get(),
            budgets,
            load_from(core.projection),
            ThreadJournal(core.storage.streams, core.seals, clocks.now),
            clock=clocks.now,
            ticks=clocks.ticks,
        )
        gateway = ModelGateway(opened, (await egress.get()).make_upstream, meter=meter, ticks=clocks.ticks)
        try:
            yield gateway
        finally:
            await gateway.close()


@asynccontextmanager
async def open_puller(core: TenantCore, egress: Lazy[ServerEgress]) -> AsyncIterator[Puller]:
    """Open what pulls images from registries. It keeps what it fetched in the home."""
    from holdfast.images.registry.pull import Puller

    cache = core.home.path / "cache" / "registry"
    yield Puller(cache, (await egress.get()).make_upstream, core.settings.registry_mirrors)


@asynccontextmanager
async def open_runs(
    core: TenantCore,
    boxes: Lazy[Boxes],
    egress: Lazy[ServerEgress],
    models: Lazy[Models],
    environments: Lazy[ServerEnvironments],
    prices: Lazy[Prices],
    runners: Runners,
) -> AsyncIterator[Runs]:
    """Runs outlive the service."""
    opened = await boxes.get()
    await _load("holdfast.runs.service", "holdfast.harnesses.placement", "holdfast.harnesses.runner_archive")
    from holdfast.api.run.tasks import DelegationLimits
    from holdfast.harnesses.installation import Tools
    from holdfast.harnesses.placement import InstalledAgents
    from holdfast.runs.launch.plan import LaunchPlanner
    from holdfast.runs.launch.steps import Launcher
    from holdfast.runs.reconcile.rules import Thresholds
    from holdfast.runs.service import Runs
    from holdfast.runs.workspace.store import Workspaces

    storage, clocks = core.storage, core.clocks
    workspaces = Workspaces(core.home.path / "workspaces")
    await asyncio.to_thread(workspaces.sweep)
    run_log = _run_log(core)
    agents = InstalledAgents(Tools(core.home.path), core.server.find_agent)
    launcher = Launcher(
        log=run_log,
        boxes=opened,
        workspaces=workspaces,
        agents=agents,
        access=core.access,
        ticks=clocks.ticks,
        network_ready=(await egress.get()).ready,
        setups=await environments.get(),
        runners=runners,
    )
    runs = Runs(
        storage.streams,
        core.threads,
        core.projection,
        opened,
        LaunchPlanner(agents, await models.get(), opened, await prices.get()),
        launcher,
        run_log,
        workspaces,
        ticks=clocks.ticks,
        # On a storage of ours alone, no other server can be at a launch.
        thresholds=Thresholds(launch=0) if storage.is_exclusive else Thresholds(),
        delegation_limits=DelegationLimits.parse(core.settings.delegation),
        admit=core.quotas.check_run,
    )
    try:
        await runs.start()
        yield runs
    finally:
        await runs.close()


@asynccontextmanager
async def open_sessions(
    core: TenantCore, boxes: Lazy[Boxes], runs: Lazy[Runs], runners: Runners, questions: Questions
) -> AsyncIterator[Sessions]:
    """Sessions outlive the service. The audit log has the end of each."""
    opened = await runs.get()
    await _load("holdfast.sessions.service")
    from holdfast.sessions.hub.settings import ServerSettings
    from holdfast.sessions.service import Sessions

    streams, run_log = core.storage.streams, _run_log(core)

    async def note_end(id: str, session: Session) -> None:
        state, why = session.state.value, session.reason
        await core.audit.record_end(id, state, by=session.by, why=why, parent=session.parent)

    sessions = Sessions(
        streams,
        core.threads,
        core.projection,
        await boxes.get(),
        opened,
        run_log,
        runners,
        questions,
        ServerSettings(streams, core.seals, run_log, runners),
        ticks=core.clocks.ticks,
        on_end=note_end,
        most=core.settings.max_sessions,
    )
    try:
        await sessions.start()
        yield sessions
    finally:
        await sessions.close()


@asynccontextmanager
async def open_session_hub(
    core: TenantCore,
    runs: Lazy[Runs],
    sessions: Lazy[Sessions],
    runners: Runners,
    questions: Questions,
    internal_api: Callable[[], Awaitable[InternalApi]],
    tools: Callable[[], Awaitable[ServerTools]],
) -> AsyncIterator[Hub]:
    """Opened with the first runner that connects. Runners outlive it."""
    opened = await runs.get()
    terminate = (await sessions.get()).terminate
    await _load("holdfast.sessions.hub.hub", "holdfast.server.wire.websocket_protocol")
    from holdfast.sessions.hub.hub import Hub
    from holdfast.sessions.hub.settings import ServerSettings
    from holdfast.sessions.hub.turn_writer import TurnWriter

    async def ask_chats(session: str) -> None:
        await (await tools()).channels.ask(session)

    run_log = _run_log(core)
    hub = Hub(
        run_log,
        TurnWriter(core.surface, core.server.next_request_id),
        opened,
        opened.ends,
        runners,
        questions,
        internal_api=internal_api,
        on_terminate=terminate,
        on_question=ask_chats,
        settings=ServerSettings(core.storage.streams, core.seals, run_log, runners),
    )
    try:
        yield hub
    finally:
        await hub.close()


@asynccontextmanager
async def open_session_tools(
    core: TenantCore, boxes: Lazy[Boxes], runs: Lazy[Runs], sessions: Lazy[Sessions], secrets: Lazy[Secrets]
) -> AsyncIterator[ServerTools]:
    """The limits of trees of tasks hold for trees of sessions too."""
    opened = await sessions.get()
    await _load("holdfast.server.session.tools")
    from holdfast.api.run.tasks import DelegationLimits
    from holdfast.server.session.tools import ServerTools, parse_apis
    from holdfast.threads.access.tenant_names import link_mark

    settings = core.settings
    async with ServerTools.open(
        core.storage,
        core.projection,
        core.seals,
        await boxes.get(),
        await runs.get(),
        opened,
        _run_log(core),
        DelegationLimits.parse(settings.delegation),
        core.key("workflows"),
        await secrets.get(),
        parse_apis(settings.service_apis),
        link_mark(core.name),
        public_only=settings.public_only,
    ) as tools:
        yield tools


@asynccontextmanager
async def open_environments(
    core: TenantCore,
    boxes: Lazy[Boxes],
    egress: Lazy[ServerEgress],
    models: Lazy[Models],
    secrets: Lazy[Secrets],
) -> AsyncIterator[ServerEnvironments]:
    await _load("holdfast.server.environments", "holdfast.environments.setup")
    from holdfast.environments.library import Environments
    from holdfast.environments.setup import Setups
    from holdfast.runs.workspace.store import Workspaces
    from holdfast.server.environments import ServerEnvironments, ServerKnown

    opened = await boxes.get()
    library = Environments(await load_in_thread(lambda: core.storage.environments), core.clocks.now)
    setups = Setups(opened, (await egress.get()).ready)
    known = ServerKnown(opened, await models.get(), core.server.find_agent, await secrets.get())
    try:
        await setups.start(exclusive=core.storage.is_exclusive)
        yield ServerEnvironments(library, setups, opened, known, Workspaces(core.home.path / "workspaces"))
    finally:
        await setups.close()


@asynccontextmanager
async def open_session_gateway(
    core: TenantCore,
    boxes: Lazy[Boxes],
    sessions: Lazy[Sessions],
    tools: Lazy[ServerTools],
    relay: Callable[[], Relay],
) -> AsyncIterator[SessionGateway]:
    await _load("holdfast.server.session.gateway", "holdfast.server.session.tools", "jwt")
    await load_in_thread(lambda: core.storage.gateway_cookies)
    from holdfast.server.session.gateway import SessionGateway
    from holdfast.server.session.tools import internal_routes
    from holdfast.sessions.tools.service import SessionTools

    async def operations() -> SessionTools:
        return (await tools.get()).operations

    async def programs(row: ThreadRow) -> Sequence[SessionStep]:
        return await (await sessions.get()).programs(row)

    async with SessionGateway.open(
        core.storage,
        core.threads,
        core.seals,
        await boxes.get(),
        programs,
        core.session_hosts,
        relay(),
        core.key("session gateway"),
        core.clocks.now,
        core.access,
        internal_routes(operations),
    ) as gateway:
        yield gateway


@asynccontextmanager
async def open_interpreters(
    core: TenantCore,
    boxes: Lazy[Boxes],
    egress: Lazy[ServerEgress],
    models: Lazy[Models],
    gateway: Lazy[ModelGateway],
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
    templates = ServerTemplates(opened, network.ready, core.home.path, environment)
    store = core.storage.streams
    new_host = partial(
        ServerHost, opened, network.ready, store, core.threads, await models.get(), await gateway.get(), templates
    )
    interpreters = ServerInterpreters(opened, store, core.threads, core.seals, new_host)
    try:
        yield interpreters
    finally:
        await interpreters.close()
