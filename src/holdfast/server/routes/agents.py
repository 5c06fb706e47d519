"""REST: the agents that runs can be launched with, and which models each of them can use."""

from __future__ import annotations

from fastapi import APIRouter

from holdfast.egress.models import Models
from holdfast.harnesses import registry
from holdfast.harnesses.harness import Harness
from holdfast.model_apis import Api
from holdfast.runs.launch_plan import Offer, offers
from holdfast.server.routes.box_requests import BOX_ERRORS
from holdfast.server.routes.runs import AgentName
from holdfast.server.routes.schemas import Model
from holdfast.server.routes.services import Use, UseModels

router = APIRouter(prefix="/v1", responses=BOX_ERRORS, tags=["agents"])


class OfferModel(Model):
    """A model that the agent can be used with."""

    name: str
    model: str | None
    """Which of its models is meant where nobody says. Any other that its provider has can be asked for."""
    api: Api
    """What the two speak."""
    is_ready: bool
    """It has a key, or wants none."""

    @classmethod
    def of(cls, offer: Offer) -> OfferModel:
        model = offer.model
        return cls(name=model.name, model=model.model or None, api=offer.api, is_ready=model.is_ready)


class AgentModel(Model):
    name: str
    """What it is asked for by."""
    title: str
    version: str | None
    """That is installed with its first run; none of one that has to be in the box."""
    apis: list[Api]
    """That it speaks, the best first."""
    models: list[OfferModel]
    """Those that can be used first."""

    @classmethod
    def of(cls, harness: Harness, models: Models) -> AgentModel:
        return cls(
            name=harness.agent,
            title=harness.title,
            version=None if harness.package is None else harness.package.version,
            apis=list(harness.apis),
            models=[OfferModel.of(each) for each in offers(harness.apis, models.all())],
        )


class AgentList(Model):
    agents: list[AgentModel]


@router.get("/agents")
async def list_agents(services: Use, models: UseModels) -> AgentList:
    """Agents, each with the models that it can be used with."""
    found = [services.find_agent(name) for name in (*registry.names(), *registry.kinds())]
    return AgentList(agents=[AgentModel.of(each, models) for each in found])


@router.get("/agents/{name:path}")
async def get_agent(name: AgentName, services: Use, models: UseModels) -> AgentModel:
    """One agent, with the models that it can be used with."""
    return AgentModel.of(services.find_agent(name), models)
