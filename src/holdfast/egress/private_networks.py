"""Private addresses that the operator of the server lets boxes reach, such as a company's mirror.

All other restrictions stay: boxes reach no loopback, link-local or cloud metadata addresses and not this machine, and a
policy still has to allow the host.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

from holdfast.egress.addresses import is_private
from holdfast.egress.policy import host_matches

_HOST = re.compile(r"(\*\.)?[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?(\.[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?)*")


@dataclass(frozen=True, slots=True)
class Private:
    """The hosts and networks that the operator allowed."""

    hosts: tuple[str, ...] = ()
    """Names, or `*.domain`, that may have a private address."""
    networks: tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...] = ()
    """Networks that any host may be in."""

    @classmethod
    def parse(cls, texts: Iterable[str]) -> Self:
        """Each is a host (`mirror.corp.example`, `*.corp.example`), an address or a network (`10.2.0.0/16`).

        Raises ValueError.
        """
        hosts, networks = [], []
        for text in texts:
            name = text.strip().lower().rstrip(".")
            try:
                network = ipaddress.ip_network(name)
            except ValueError:
                if not _HOST.fullmatch(name) or name.replace(".", "").isdigit() or "/" in name:
                    raise ValueError(f"{text!r} is not a host, address or network") from None
                hosts.append(name)
                continue
            if not (is_private(str(network[0])) and is_private(str(network[-1]))):
                raise ValueError(f"{text!r} is not a network of private addresses")
            networks.append(network)
        return cls(tuple(hosts), tuple(networks))

    def names(self, host: str) -> bool:
        """Returns whether the operator allowed this host."""
        return any(host_matches(each, host) for each in self.hosts) or self._holds(host)

    def admits(self, host: str, address: str) -> bool:
        """Returns whether this host may be reached at this private address."""
        return is_private(address) and (self.names(host) or self._holds(address))

    def _holds(self, text: str) -> bool:
        try:
            address = ipaddress.ip_address(text)
        except ValueError:
            return False
        return any(address in network for network in self.networks)
