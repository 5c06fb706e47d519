"""Private addresses that boxes may reach because the operator of the server named them: a company's mirror, say.

Nothing else is lifted by this: loopback, this machine itself, link-local addresses and clouds' metadata stay out of
reach, and a policy still has to allow the host.
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
    """What the operator named."""

    hosts: tuple[str, ...] = ()
    """Names, or `*.domain`: these may be at a private address."""
    networks: tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...] = ()
    """Any host may be at these."""

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
                    raise ValueError(f"{text!r} is no host, address or network") from None
                hosts.append(name)
                continue
            if not (is_private(str(network[0])) and is_private(str(network[-1]))):
                raise ValueError(f"{text!r} is not a network of private addresses")
            networks.append(network)
        return cls(tuple(hosts), tuple(networks))

    def names(self, host: str) -> bool:
        """Whether the operator named this host."""
        return any(host_matches(each, host) for each in self.hosts) or self._holds(host)

    def admits(self, host: str, address: str) -> bool:
        """Whether a private address may be connected to, for this host."""
        return is_private(address) and (self.names(host) or self._holds(address))

    def _holds(self, text: str) -> bool:
        try:
            address = ipaddress.ip_address(text)
        except ValueError:
            return False
        return any(address in network for network in self.networks)
