"""Daytona's network settings as our network policies. Pure decisions."""

from __future__ import annotations

import ipaddress
from typing import Final

from holdfast.api.box.network import Network, NetworkPolicy, Rule
from holdfast.compat.daytona.http.errors import bad_request

_MOST_NETWORKS: Final = 10
_MOST_DOMAINS: Final = 100
_PORTS: Final = (22, 80, 443, 8080, 8443)
"""Daytona allows every port of a listed address. Our rules name ports, so these stand for all of them."""


def policy_of(block_all: bool, allow_list: str | None, domains: str | None) -> NetworkPolicy:
    """Returns our policy for Daytona's settings. Raises if it cannot be expressed."""
    if block_all:
        if allow_list or domains:
            raise bad_request("networkBlockAll cannot be combined with networkAllowList or domainAllowList")
        return NetworkPolicy()
    rules = [*map(_address_rule, _split(allow_list, "networkAllowList", _MOST_NETWORKS))]
    rules += map(_domain_rule, _split(domains, "domainAllowList", _MOST_DOMAINS))
    if not rules:
        return NetworkPolicy(Network.OPEN)
    return NetworkPolicy(Network.ALLOW, tuple(rules))


def _split(text: str | None, field: str, most: int) -> list[str]:
    parts = [part.strip() for part in (text or "").split(",") if part.strip()]
    if len(parts) > most:
        raise bad_request(f"{field} has {len(parts)} entries: at most {most} are allowed")
    return parts


def _address_rule(text: str) -> str:
    try:
        network = ipaddress.ip_network(text, strict=False)
    except ValueError:
        raise bad_request(f"networkAllowList: {text[:100]!r} is not a network such as 203.0.113.7/32") from None
    return str(Rule(str(network.network_address if network.num_addresses == 1 else network), _PORTS))


def _domain_rule(text: str) -> str:
    rule = Rule.parse(text)  # raises InvalidSpec
    if rule.ports or rule.methods:
        raise bad_request(f"domainAllowList: {text[:100]!r} is not a domain")
    return str(rule)
