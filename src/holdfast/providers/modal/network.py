"""What a box may reach, in Modal's words. Pure functions.

With a proxy on the host, a sandbox has no network of its own: the guest's stream carries its traffic, and the policy is
kept as for any other box. Directly, Modal keeps the policy, and what it has no words for is refused.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from typing import Any

from holdfast.api.box.network import DEFAULT_LIST, Network, NetworkPolicy
from holdfast.api.errors.boxes import Unsupported


def closed(ports: Sequence[int]) -> dict[str, Any]:
    """Arguments of `Sandbox.create` for no way out. Modal has no tunnels where the network is blocked altogether."""
    return {"outbound_cidr_allowlist": [], "outbound_domain_allowlist": []} if ports else {"block_network": True}


def direct(policy: NetworkPolicy) -> dict[str, list[str]]:
    """Arguments for a policy that Modal keeps. Raises `Unsupported` for what it cannot."""
    for name, value in (("bandwidth", policy.bandwidth), ("connections", policy.connections)):
        if value is not None:
            raise _unsupported(f"a limit of {name}")
    if policy.mode is Network.OPEN:
        return {}
    if policy.mode is Network.NONE:
        return {"outbound_cidr_allowlist": [], "outbound_domain_allowlist": []}
    if not policy.allow or DEFAULT_LIST in policy.allow:
        raise _unsupported("the default list")
    addresses: list[str] = []
    domains: list[str] = []
    for rule in policy.rules():
        if rule.methods:
            raise _unsupported(f"the rule {rule}: methods")
        if rule.ports:
            raise _unsupported(f"the rule {rule}: ports")
        try:
            addresses.append(str(ipaddress.ip_network(rule.host)))
        except ValueError:
            domains.append(rule.host)
    return {"outbound_cidr_allowlist": addresses, "outbound_domain_allowlist": domains}


def _unsupported(what: str) -> Unsupported:
    return Unsupported(
        f"Modal does not support network-allow with {what}",
        hint="list plain hosts, or leave out --modal-direct: then traffic goes through this server",
    )
