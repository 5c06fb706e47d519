"""Maps a network policy of ours to the rules of a sprite, which filter names.

By default a sprite may reach nothing by itself, and everything goes through Holdfast's egress, over the guest's stream.
With direct networking, the sprite applies the policy. What its rules cannot express is refused by name.
"""

from __future__ import annotations

import contextlib
import ipaddress
from typing import Final

from sprites.types import NetworkPolicy as SpriteNetworkPolicy
from sprites.types import PolicyRule

from holdfast.api.box.network import DEFAULT_LIST, Network, NetworkPolicy, Rule
from holdfast.api.errors.boxes import CannotIsolate, Unsupported
from holdfast.api.guest_url import GuestUrl

_REST: Final = "*"


def closed() -> SpriteNetworkPolicy:
    """Returns rules that deny everything."""
    return SpriteNetworkPolicy(rules=[PolicyRule(domain=_REST, action="deny")])


def direct(policy: NetworkPolicy) -> SpriteNetworkPolicy:
    """Returns the rules that let a sprite reach what the policy allows. Raises `Unsupported`."""
    if policy.bandwidth is not None:
        raise _unsupported("a limit of bandwidth")
    if policy.connections is not None:
        raise _unsupported("a limit of connections")
    if policy.mode is Network.NONE:
        return closed()
    if policy.mode is Network.OPEN:
        return SpriteNetworkPolicy(rules=[PolicyRule(domain=_REST, action="allow")])
    if not policy.allow or DEFAULT_LIST in policy.allow:
        raise _unsupported("the default list of hosts")
    allowed = [PolicyRule(domain=_domain(rule), action="allow") for rule in policy.rules()]
    return SpriteNetworkPolicy(rules=[*allowed, PolicyRule(domain=_REST, action="deny")])


def check_relay(relay: GuestUrl | None) -> GuestUrl | None:
    """Returns the relay. Raises `CannotIsolate` if a sprite cannot be allowed to reach it."""
    if relay is not None:
        with contextlib.suppress(ValueError):
            ipaddress.ip_address(relay.host)
            raise CannotIsolate(
                f"--sprites-relay: a sprite filters names only, and {relay.host} is an address",
                hint="give the relay a name",
            )
    return relay


def _domain(rule: Rule) -> str:
    if rule.methods:
        raise _unsupported(f"a rule with methods ({rule})")
    if rule.ports:
        raise _unsupported(f"a rule with ports ({rule})")
    try:
        ipaddress.ip_network(rule.host)
    except ValueError:
        return rule.host
    raise _unsupported(f"a rule for an address ({rule})")


def _unsupported(what: str) -> Unsupported:
    return Unsupported(
        f"provider sprites does not support {what} with direct networking: a sprite filters names only",
        hint="leave it out, or start the server without --sprites-direct",
    )
