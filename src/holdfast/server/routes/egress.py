"""REST: what boxes may reach, and the decisions about their requests."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from holdfast.api.box.network import Network, NetworkPolicy
from holdfast.api.box.records import BoxRecord
from holdfast.api.egress import (
    DefaultList,
    DefaultRule,
    EgressDecision,
    EgressDecisionPage,
    EnvironmentPolicy,
    EnvironmentPolicyList,
)
from holdfast.api.limits import BoxId, EnvironmentName
from holdfast.egress import Decision
from holdfast.server.routes.box.views import box_record, shown
from holdfast.server.routes.requests import BOX_ERRORS
from holdfast.server.routes.services import UseBoxes, UseEgress

router = APIRouter(prefix="/v1", responses=BOX_ERRORS, tags=["egress"])


@router.put("/boxes/{id}/network")
async def set_network(id: BoxId, network: NetworkPolicy, boxes: UseBoxes, egress: UseEgress) -> BoxRecord:
    """Change what a box may reach. Connections that are no longer allowed are closed."""
    network.check()
    if network.mode is not Network.NONE:
        await egress.ready()
    return box_record(await boxes.set_network(id, network))


@router.get("/boxes/{id}/egress")
async def list_decisions(
    id: BoxId,
    boxes: UseBoxes,
    egress: UseEgress,
    denied: Annotated[bool, Query(description="Only denied requests.")] = False,
    cursor: str | None = None,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
) -> EgressDecisionPage:
    """List the network requests of a box, and whether they were allowed, newest first."""
    await boxes.get(id)
    page = await egress.records.page(id, after=cursor, limit=limit, denied_only=denied)
    return EgressDecisionPage(decisions=tuple(map(_decision, page.decisions)), next_cursor=page.next_cursor)


@router.get("/egress/default")
async def show_default_list(egress: UseEgress) -> DefaultList:
    """The rules that `default` stands for: the registries that clients on this machine use, and git hosts."""
    found = await egress.defaults()
    return DefaultList(rules=tuple(DefaultRule(rule=str(each.rule), source=each.why) for each in found.sources))


@router.get("/egress/policies")
async def list_policies(egress: UseEgress) -> EnvironmentPolicyList:
    """List the policies of environments, by name."""
    found = egress.policies.all().items()
    return EnvironmentPolicyList(policies=tuple(EnvironmentPolicy(name, policy) for name, policy in found))


@router.get("/egress/policies/{environment}")
async def get_policy(environment: EnvironmentName, egress: UseEgress) -> EnvironmentPolicy:
    """What boxes of an environment may reach if they have mode `allow` and no rules of their own."""
    return EnvironmentPolicy(environment, egress.policy(environment))


@router.put("/egress/policies/{environment}")
async def set_policy(environment: EnvironmentName, network: NetworkPolicy, egress: UseEgress) -> EnvironmentPolicy:
    """Set the policy of an environment. It applies to running boxes at once."""
    network.check()
    await egress.set_policy(environment, network)
    return EnvironmentPolicy(environment, network)


@router.delete("/egress/policies/{environment}", status_code=204)
async def remove_policy(environment: EnvironmentName, egress: UseEgress) -> None:
    """Remove the policy of an environment. Its boxes use the default list at once."""
    await egress.remove_policy(environment)


def _decision(decision: Decision) -> EgressDecision:
    return EgressDecision(
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
