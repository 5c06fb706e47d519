"""The way out of boxes: a proxy on the host that lets through what a policy allows, and records what it decided."""

from holdfast.egress.defaults import DefaultList, Source, git_hosts
from holdfast.egress.environment_policies import SqlitePolicies
from holdfast.egress.limits import Limits
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
from holdfast.egress.private_networks import Private
from holdfast.egress.proxy import EgressProxy, Policies
from holdfast.egress.records import Decision, DecisionPage, Records, SqliteRecords
from holdfast.egress.upstream_proxy import UpstreamProxy

__all__ = [
    "CannotConnect",
    "CannotResolve",
    "Connector",
    "Decision",
    "DecisionPage",
    "DefaultList",
    "EgressProxy",
    "GuestApi",
    "Limits",
    "NeverReached",
    "Policies",
    "Private",
    "Records",
    "Resolver",
    "Source",
    "SqlitePolicies",
    "SqliteRecords",
    "SystemConnector",
    "SystemResolver",
    "UpstreamProxy",
    "git_hosts",
]
