"""The network of sprites: a proxy on a port in each of them, which applies the sprite's own policy.

The sprites of the cloud filter names. Local boxes have no network, so programs in them need this proxy.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from typing import Any, Final

from holdfast.api.box.network import Network, NetworkPolicy
from holdfast.boxes.network_policy import PROXY_PORT, Egress
from holdfast.providers.host.guest_client import GuestClient

PORT: Final = PROXY_PORT + 1
"""Not the port that Holdfast's own egress uses in a box."""
_NOTHING: Final = NetworkPolicy(Network.ALLOW, ("nothing.invalid",))


class CannotApply(Exception):
    """The rules make no sense, or this counterpart cannot apply them."""


def policy_of(rules: Sequence[Mapping[str, Any]]) -> NetworkPolicy:
    """Returns the rules of a sprite as a policy of ours. Rules apply in their order; what none names is denied."""
    allowed: list[str] = []
    for rule in rules:
        if rule.get("include") is not None:
            raise CannotApply("the counterpart has no presets to include")
        domain, action = rule.get("domain"), rule.get("action")
        if not isinstance(domain, str) or action not in ("allow", "deny"):
            raise CannotApply("a rule has a domain and an action, allow or deny")
        if domain == "*":
            if action == "allow":
                return NetworkPolicy(Network.OPEN)
            break
        if action == "deny":
            raise CannotApply("the counterpart cannot deny single domains")
        allowed.append(domain)
    policy = NetworkPolicy(Network.ALLOW, tuple(allowed)) if allowed else _NOTHING
    policy.check()
    return policy


async def open_network(egress: Egress, sprite: str, guest: GuestClient, policy: NetworkPolicy) -> None:
    """Open the proxy port in a sprite that has just started."""
    _, (descriptor,) = await guest.ask_descriptors({"op": "listen", "port": PORT, "looks": True})
    listener = socket.socket(fileno=descriptor)
    listener.setblocking(False)
    egress.admit(sprite, policy, {})
    egress.listen(sprite, listener)


def environment(egress: Egress, policy: NetworkPolicy) -> dict[str, str]:
    """Returns the variables that lead programs in a sprite to its proxy."""
    return {
        name: value.replace(f":{PROXY_PORT}", f":{PORT}")
        for name, value in egress.environment(policy).items()
        if name not in ("NO_PROXY", "no_proxy")
    }
