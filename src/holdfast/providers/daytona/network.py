"""What a box may reach, in Daytona's words. Pure functions.

By default a sandbox may reach nothing by itself, and everything goes through Holdfast's egress, over the guest's
stream. With direct networking Daytona keeps the policy, and what it has no words for is refused.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import Final

from holdfast.api.box.network import DEFAULT_LIST, Network, NetworkPolicy
from holdfast.api.errors.boxes import Unsupported

_MOST_ADDRESSES: Final = 10


@dataclass(frozen=True, slots=True)
class DaytonaNetwork:
    """Daytona's settings for one sandbox."""

    block_all: bool
    addresses: str | None = None
    domains: str | None = None


CLOSED: Final = DaytonaNetwork(block_all=True)


def direct(policy: NetworkPolicy) -> DaytonaNetwork:
    """Returns the settings that let a sandbox reach what the policy allows. Raises `Unsupported`."""
    if policy.bandwidth is not None:
        raise _unsupported("a limit of bandwidth")
    if policy.connections is not None:
        raise _unsupported("a limit of connections")
    if policy.mode is Network.NONE:
        return CLOSED
    if policy.mode is Network.OPEN:
        return DaytonaNetwork(block_all=False)
    if not policy.allow or DEFAULT_LIST in policy.allow:
        raise _unsupported("the default list of hosts")
    addresses: list[str] = []
    domains: list[str] = []
    for rule in policy.rules():
        if rule.methods:
            raise _unsupported(f"a rule with methods ({rule})")
        if rule.ports:
            raise _unsupported(f"a rule with ports ({rule})")
        try:
            network = ipaddress.ip_network(rule.host.strip("[]"))
        except ValueError:
            domains.append(rule.host)
            continue
        if network.version == 6:
            raise _unsupported(f"a rule for an IPv6 address ({rule})")
        addresses.append(str(network))
    if len(addresses) > _MOST_ADDRESSES:
        raise _unsupported(f"more than {_MOST_ADDRESSES} addresses")
    return DaytonaNetwork(False, ",".join(addresses) or None, ",".join(domains) or None)


def _unsupported(what: str) -> Unsupported:
    return Unsupported(
        f"provider daytona does not support {what} with direct networking",
        hint="leave it out, or start the server without --daytona-direct",
    )
