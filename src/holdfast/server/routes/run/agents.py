"""REST: the agents, and the models that each can use."""

from __future__ import annotations

from fastapi import APIRouter

from holdfast.api.limits import AgentName
from holdfast.api.run.agents import AgentList, AgentRecord, OfferedModel
from holdfast.egress.models import Models
from holdfast.harnesses import registry
from holdfast.harnesses.harness import Harness
from holdfast.runs.launch.plan import Offer, offers
from holdfast.server.routes.requests import BOX_ERRORS
from holdfast.server.routes.services import Use, UseModels

router = APIRouter(prefix="/v1", responses=BOX_ERRORS, tags=["agents"])


@router.get("/agents")
async def list_agents(services: Use, models: UseModels) -> AgentList:
    """List agents, each with the models it can use."""
    found = [services.find_agent(name) for name in (*registry.names(), *registry.kinds())]
    return AgentList(agents=tuple(_record(each, models) for each in found))


@router.get("/agents/{name:path}")
async def get_agent(name: AgentName, services: Use, models: UseModels) -> AgentRecord:
    """Get an agent, with the models it can use."""
    return _record(services.find_agent(name), models)


def _record(harness: Harness, models: Models) -> AgentRecord:
    return AgentRecord(
        name=harness.agent,
        title=harness.title,
        version=None if harness.package is None else harness.package.version,
        apis=harness.apis,
        models=tuple(map(_offered, offers(harness.apis, models.all()))),
    )


def _offered(offer: Offer) -> OfferedModel:
    model = offer.model
    return OfferedModel(name=model.name, model=model.model or None, api=offer.api, is_ready=model.is_ready)
