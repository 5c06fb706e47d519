"""REST: what boxes may reach, and what was decided about what they asked for."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import StringConstraints

from holdfast.boxes.network_policy import Network, NetworkPolicy
from holdfast.egress import Decision
from holdfast.server.routes.box_requests import BOX_ERRORS
from holdfast.server.routes.box_schemas import BoxId, BoxModel, NetworkModel, shown
from holdfast.server.routes.schemas import Model
from holdfast.server.routes.services import UseBoxes, UseEgress

EnvironmentName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")]

router = APIRouter(prefix="/v1", responses=BOX_ERRORS, tags=["egress"])


class EnvironmentPolicyModel(Model):
    environment: str
    network: NetworkModel

    @classmethod
    def of(cls, environment: str, policy: NetworkPolicy) -> EnvironmentPolicyModel:
        return cls(environment=environment, network=NetworkModel.of(policy))


class EnvironmentPolicyList(Model):
    policies: list[EnvironmentPolicyModel]


class DefaultRule(Model):
    rule: str
    source: str
    """Whose it is: pip, npm, apt, cargo, git."""


class DefaultListModel(Model):
    """What `default` stands for in a list of rules."""

    rules: list[DefaultRule]


class DecisionModel(Model):
    id: str
    at: int
    host: str
    """Empty where it did not come to one."""
    port: int
    method: str
    """`CONNECT` for HTTPS, and whatever else goes through a tunnel."""
    allowed: bool
    failed: bool
    """It was allowed, and came to nothing: the name had no address, or nobody answered there."""
    why: str
    """The rule that allowed it, or what speaks against it."""
    count: int
    """How many this stands for: like ones that came in a flood share a record."""
    sent: int
    """Bytes out of the box."""
    received: int
    milliseconds: int | None
    """None while it goes on."""

    @classmethod
    def of(cls, decision: Decision) -> DecisionModel:
        return cls(
            id=decision.id,
            at=decision.at,
            host=shown(decision.host),
            port=decision.port,
            method=shown(decision.method),
            allowed=decision.allowed,
            failed=decision.failed,
            why=shown(decision.why),
            count=decision.count,
            sent=decision.sent,
            received=decision.received,
            milliseconds=decision.ms,
        )


class DecisionList(Model):
    decisions: list[DecisionModel]
    next_cursor: str | None


@router.put("/boxes/{id}/network")
async def set_network(id: BoxId, network: NetworkModel, boxes: UseBoxes, egress: UseEgress) -> BoxModel:
    """Change what a box may reach, from now on. Connections that are not allowed any more are ended."""
    policy = network.to_policy()
    if policy.mode is not Network.NONE:
        await egress.ready()
    return BoxModel.of(await boxes.set_network(id, policy))


@router.get("/boxes/{id}/egress")
async def list_decisions(
    id: BoxId,
    boxes: UseBoxes,
    egress: UseEgress,
    denied: Annotated[bool, Query(description="Only what was refused.")] = False,
    cursor: str | None = None,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
) -> DecisionList:
    """What a box asked the network for and what was decided, the newest first."""
    await boxes.get(id)
    page = await egress.records.page(id, after=cursor, limit=limit, denied_only=denied)
    return DecisionList(decisions=[DecisionModel.of(each) for each in page.decisions], next_cursor=page.next_cursor)


@router.get("/egress/default")
async def show_default_list(egress: UseEgress) -> DefaultListModel:
    """What `default` stands for: the registries that this machine's own clients use, and git hosts."""
    found = await egress.defaults()
    return DefaultListModel(rules=[DefaultRule(rule=str(each.rule), source=each.why) for each in found.sources])


@router.get("/egress/policies")
async def list_policies(egress: UseEgress) -> EnvironmentPolicyList:
    """The policies of environments, by name."""
    found = egress.policies.all()
    return EnvironmentPolicyList(policies=[EnvironmentPolicyModel.of(*each) for each in found.items()])


@router.get("/egress/policies/{environment}")
async def get_policy(environment: EnvironmentName, egress: UseEgress) -> EnvironmentPolicyModel:
    """What boxes of an environment may reach that have mode `allow` and list nothing themselves."""
    return EnvironmentPolicyModel.of(environment, egress.policy(environment))


@router.put("/egress/policies/{environment}")
async def set_policy(environment: EnvironmentName, network: NetworkModel, egress: UseEgress) -> EnvironmentPolicyModel:
    """Set the policy of an environment. It reaches its running boxes at once."""
    policy = network.to_policy()
    await egress.set_policy(environment, policy)
    return EnvironmentPolicyModel.of(environment, policy)


@router.delete("/egress/policies/{environment}", status_code=204)
async def remove_policy(environment: EnvironmentName, egress: UseEgress) -> None:
    """Forget the policy of an environment: its boxes fall back to the default list, at once."""
    await egress.remove_policy(environment)
