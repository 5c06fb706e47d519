"""The parts of a tenant that are opened in the background, when they are needed or have work: egress, boxes, runs,
sessions and what belongs to them. Each is built from parts that stand above it here.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from holdfast.server.components import (
    open_accounts,
    open_boxes,
    open_egress,
    open_environments,
    open_gateway,
    open_interpreters,
    open_models,
    open_prices,
    open_puller,
    open_runs,
    open_secrets,
    open_session_gateway,
    open_session_hub,
    open_session_tools,
    open_sessions,
)
from holdfast.server.lazy import Lazy
from holdfast.server.telemetry.box_metrics import BoxSamples
from holdfast.server.tenant.core import TenantCore
from holdfast.server.wire.guest_api import GuestApi, Internal, SessionTools
from holdfast.server.wire.ports import Ports
from holdfast.sessions.hub.questions import Questions
from holdfast.sessions.hub.runners import Runners

if TYPE_CHECKING:
    from holdfast.boxes.service.boxes import Boxes
    from holdfast.egress.models import ModelGateway, Models
    from holdfast.environments.secrets import Secrets
    from holdfast.images.registry.pull import Puller
    from holdfast.runs.service import Runs
    from holdfast.server.egress import ServerEgress
    from holdfast.server.environments import ServerEnvironments
    from holdfast.server.interpreter.interpreters import ServerInterpreters
    from holdfast.server.provider.providers import ServerProviders
    from holdfast.server.session.gateway import SessionGateway
    from holdfast.server.session.tools import ServerTools
    from holdfast.server.wire.port_relay import PortRelay
    from holdfast.sessions.service import Sessions

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class TenantParts:
    """Everything else that the routes of a tenant use."""

    secrets: Lazy[Secrets]
    egress: Lazy[ServerEgress]
    providers: Lazy[ServerProviders]
    boxes: Lazy[Boxes]
    samples: BoxSamples
    port_relay: Callable[[], PortRelay]
    """Relays requests to ports of boxes. Created for the first one, so that the start does not wait for its modules."""
    models: Lazy[Models]
    gateway: Lazy[ModelGateway]
    environments: Lazy[ServerEnvironments]
    runs: Lazy[Runs]
    sessions: Lazy[Sessions]
    session_tools: Lazy[ServerTools]
    session_gateway: Lazy[SessionGateway]
    interpreters: Lazy[ServerInterpreters]
    puller: Lazy[Puller]
    guest_api: GuestApi

    def begin(self) -> None:
        """Open all that work by themselves, and return at once."""
        for part in (self.boxes, self.models, self.gateway, self.runs, self.sessions, self.session_tools):
            part.begin()


def make_parts(core: TenantCore, ports: Ports, closing: contextlib.AsyncExitStack) -> TenantParts:
    """Make the parts, unopened. `closing` closes those that were opened, the last one first."""
    server, settings = core.server, core.settings

    def part(name: str, open: Callable[[], AbstractAsyncContextManager[T]]) -> Lazy[T]:
        made = Lazy(name, open)
        closing.push_async_callback(made.close)
        return made

    secrets = part("secrets", lambda: open_secrets(core))
    # Connections of boxes go through the egress to the guest API, which asks the runs, which use the boxes, whose
    # network is the egress. This circle is the only one. It is closed here: the guest API is made last, and the egress
    # is opened later than that.
    egress = part("egress", lambda: open_egress(core, secrets, guest_api))
    providers = part("providers", lambda: open_accounts(core, egress))
    boxes = part("boxes", lambda: open_boxes(core, providers, egress))
    samples = BoxSamples()
    closing.push_async_callback(samples.close)

    @functools.cache
    def port_relay() -> PortRelay:
        from holdfast.server.wire.port_relay import PortRelay

        return PortRelay(ports, boxes, server.shutdown, server.metrics, server.next_request_id)

    models = part("models", lambda: open_models(core))
    prices = part("model prices", lambda: open_prices(core))
    gateway = part("model gateway", lambda: open_gateway(core, models, prices, egress))
    environments = part("environments", lambda: open_environments(core, boxes, egress, models, secrets))
    runners = Runners()
    runs = part("runs", lambda: open_runs(core, boxes, egress, models, environments, prices, runners))
    questions = Questions(runners, core.clocks.now, settings.question_timeout)
    sessions = part("sessions", lambda: open_sessions(core, boxes, runs, runners, questions))
    closing.push_async_callback(questions.close)
    session_tools = part("tools of sessions", lambda: open_session_tools(core, boxes, runs, sessions, secrets))
    session_gateway = part(
        "gateway of sessions",
        lambda: open_session_gateway(core, boxes, sessions, session_tools, lambda: port_relay().relay),
    )

    async def internal_api() -> Internal:
        return (await session_gateway.get()).internal_api

    async def tools_of_sessions() -> SessionTools:
        return (await session_tools.get()).operations

    session_hub = part(
        "hub of sessions",
        lambda: open_session_hub(core, runs, sessions, runners, questions, internal_api, session_tools.get),
    )
    interpreters = part("interpreters", lambda: open_interpreters(core, boxes, egress, models, gateway, os.environ))
    puller = part("image puller", lambda: open_puller(core, egress))
    guest_api = GuestApi(
        core.surface,
        core.access,
        server.next_request_id,
        runs,
        gateway,
        max_body=settings.max_body,
        internal_api=internal_api,
        session_tools=tools_of_sessions,
        hub=session_hub.get,
    )
    return TenantParts(
        secrets=secrets,
        egress=egress,
        providers=providers,
        boxes=boxes,
        samples=samples,
        port_relay=port_relay,
        models=models,
        gateway=gateway,
        environments=environments,
        runs=runs,
        sessions=sessions,
        session_tools=session_tools,
        session_gateway=session_gateway,
        interpreters=interpreters,
        puller=puller,
        guest_api=guest_api,
    )
