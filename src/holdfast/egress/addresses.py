"""Decides which addresses boxes never reach, under any policy and by any name.

Decisions are made on the address to connect to, never on a name. Only public unicast addresses pass. The operator of
the server can allow private addresses (`private_networks`).
"""

from __future__ import annotations

import ipaddress
from functools import lru_cache
from typing import Final

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def _networks(*pairs: tuple[str, str]) -> tuple[tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, str], ...]:
    return tuple((ipaddress.ip_network(network), what) for network, what in pairs)


_IPV4: Final = _networks(
    ("0.0.0.0/8", "an address of this machine"),
    ("127.0.0.0/8", "a loopback address"),
    ("10.0.0.0/8", "a private address"),
    ("172.16.0.0/12", "a private address"),
    ("192.168.0.0/16", "a private address"),
    ("100.64.0.0/10", "a carrier's shared address"),
    ("169.254.0.0/16", "a link-local address"),
    ("168.63.129.16/32", "a cloud's metadata address"),
    ("192.0.0.0/24", "a reserved address"),
    ("192.0.2.0/24", "an address for documentation"),
    ("198.51.100.0/24", "an address for documentation"),
    ("203.0.113.0/24", "an address for documentation"),
    ("192.88.99.0/24", "a 6to4 relay"),
    ("198.18.0.0/15", "an address for benchmarks"),
    ("224.0.0.0/4", "a multicast address"),
    ("240.0.0.0/4", "a reserved address"),
)
_IPV6: Final = _networks(
    ("::/128", "an address of this machine"),
    ("::1/128", "a loopback address"),
    ("fc00::/7", "a private address"),
    ("fe80::/10", "a link-local address"),
    ("fec0::/10", "a private address"),
    ("ff00::/8", "a multicast address"),
    ("2001:db8::/32", "an address for documentation"),
    ("3fff::/20", "an address for documentation"),
    ("2001::/32", "a Teredo tunnel"),
    ("2001::/23", "a reserved address"),
    ("2002::/16", "a 6to4 tunnel"),
)
_PRIVATE: Final = frozenset(("a private address", "a carrier's shared address"))
_LOCAL_NAMES: Final = (".localhost", ".local", ".internal", ".home.arpa", ".lan")
_GLOBAL: Final = ipaddress.IPv6Network("2000::/3")
_NAT64: Final = ipaddress.IPv6Network("64:ff9b::/96")
_ISATAP: Final = (0x00005EFE, 0x02005EFE)


@lru_cache(maxsize=4096)
def refusal(address: str) -> str | None:
    """Returns why this address is never reached, as the end of a sentence (`is …`), or None if it is public."""
    if "%" in address:
        return "an address of one link"
    try:
        return _refusal(ipaddress.ip_address(address))
    except ValueError:
        return "no address"


def is_private(address: str) -> bool:
    """Returns whether this is an address of a private network, which the operator of a server may allow."""
    return refusal(address) in _PRIVATE


def is_local_name(host: str) -> bool:
    """Returns whether a name is valid only in a local network and not on the internet."""
    if refusal(host) != "no address":
        return False
    return "." not in host or host.endswith(_LOCAL_NAMES)


def _refusal(address: Address) -> str | None:
    if isinstance(address, ipaddress.IPv4Address):
        return next((what for network, what in _IPV4 if address in network), None)
    # An address that embeds an IPv4 address is judged by that, because a translator may forward it there.
    if address.ipv4_mapped is not None:
        return _refusal(address.ipv4_mapped)
    low = int(address) & 0xFFFFFFFF
    if address in _NAT64:
        return _refusal(ipaddress.IPv4Address(low))
    if (int(address) >> 32) & 0xFFFFFFFF in _ISATAP:
        return "an ISATAP tunnel"
    if what := next((what for network, what in _IPV6 if address in network), None):
        return what
    return None if address in _GLOBAL else "a reserved address"
