"""The egress of boxes: a proxy on the host that applies network policies and records its decisions."""

from holdfast.egress.box_access import Limits
from holdfast.egress.environment_policies import EnvironmentPolicies, PolicyStore
from holdfast.egress.outbound import (
    CannotConnect,
    CannotResolve,
    Connector,
    GuestApi,
    NeverReached,
    Resolver,
    SystemConnector,
    SystemResolver,
)
from holdfast.egress.policy import DefaultList, Source, git_hosts
from holdfast.egress.private_networks import Private
from holdfast.egress.proxy import EgressProxy, Policies
from holdfast.egress.records import Decision, DecisionLog, DecisionPage, DecisionStore, Records
from holdfast.egress.upstream_proxy import UpstreamProxy

__all__ = [
    "CannotConnect",
    "CannotResolve",
    "Connector",
    "Decision",
    "DecisionLog",
    "DecisionPage",
    "DecisionStore",
    "DefaultList",
    "EgressProxy",
    "EnvironmentPolicies",
    "GuestApi",
    "Limits",
    "NeverReached",
    "Policies",
    "PolicyStore",
    "Private",
    "Records",
    "Resolver",
    "Source",
    "SystemConnector",
    "SystemResolver",
    "UpstreamProxy",
    "git_hosts",
]
