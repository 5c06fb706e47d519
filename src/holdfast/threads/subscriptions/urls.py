"""Where webhooks may go. A subscriber can make this server send requests, which must not reach into its own network:
only https to public addresses is allowed, or http to this machine if the server allows it.

A name is checked by its addresses at the time of sending, and the connection goes to a checked address. So a name whose
addresses change in between gains nothing.
"""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import TYPE_CHECKING, Final

from holdfast.threads.subscriptions.errors import WebhookRefused

if TYPE_CHECKING:
    import httpx  # see delivery: loaded late

MAX_URL: Final = 2048
_NAME: Final = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)(\.(?!-)[a-z0-9_-]{1,63}(?<!-))*")
_NUMBER: Final = re.compile(r"(0x[0-9a-f]*|[0-9]+)", re.IGNORECASE)
_INTERNAL_SUFFIXES: Final = (".localhost", ".local", ".internal", ".intranet", ".lan", ".home.arpa")

# Addresses that `is_global` accepts, or did in some version of Python: those that embed another address, which a
# gateway may unpack, and blocks reserved later.
_NOT_PUBLIC: Final = tuple(
    ip_network(text)
    for text in (
        "0.0.0.0/8",
        "100.64.0.0/10",
        "192.0.0.0/24",
        "192.88.99.0/24",
        "224.0.0.0/3",
        "::/32",
        "64:ff9b::/96",
        "64:ff9b:1::/48",
        "100::/64",
        "2001::/23",
        "2002::/16",
        "3fff::/20",
        "5f00::/16",
        "fc00::/7",
        "fe80::/9",
        "ff00::/8",
    )
)

Address = IPv4Address | IPv6Address
Resolver = Callable[[str, int], Awaitable[Sequence[str]]]
"""Returns the addresses of a host name for a port. Raises OSError if there are none."""


async def resolve(host: str, port: int) -> list[str]:
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


@dataclass(frozen=True, slots=True)
class WebhookTarget:
    """A URL that may be called if its host resolves to an allowed address."""

    url: httpx.URL
    host: str
    port: int
    local: bool
    """Whether it must be this machine; otherwise it must not be."""

    def at(self, address: Address) -> httpx.URL:
        """Returns the same URL with an address instead of the name."""
        return self.url.copy_with(host=str(address))


def parse_target(text: str, *, allow_local: bool) -> WebhookTarget:
    """Check the form of a URL. `judge_addresses` checks what its name resolves to."""
    if len(text) > MAX_URL or not text.isascii() or not text.isprintable() or " " in text or "\\" in text:
        raise WebhookRefused(f"a webhook URL must have at most {MAX_URL} ASCII characters: quote all others")
    import httpx

    try:
        url = httpx.URL(text)
    except httpx.InvalidURL as error:
        raise WebhookRefused(f"webhook.url is not a valid URL: {error}") from None
    host = url.raw_host.decode("ascii").lower()
    if url.scheme not in ("http", "https") or not host:
        raise WebhookRefused(f"webhook.url must be an https URL with a host, not {text[:200]!r}")
    if url.userinfo:
        raise WebhookRefused("webhook.url must not have a user name or password: check the signature instead")
    if url.fragment:
        raise WebhookRefused("webhook.url must not have a fragment")
    if url.port is not None and not 0 < url.port < 65536:
        raise WebhookRefused(f"webhook.url has port {url.port}: it must be 1 to 65535")
    literal = _literal(host)
    local = host == "localhost" or (literal is not None and literal.is_loopback and _plain(literal))
    port = url.port or (443 if url.scheme == "https" else 80)
    if url.scheme == "http":
        if not local:
            raise WebhookRefused("webhook.url must use https: http is allowed for localhost and 127.0.0.1 only")
        if not allow_local:
            raise WebhookRefused("this server does not call webhooks on its own machine: use https and a public host")
        return WebhookTarget(url, host, port, local=True)
    if literal is not None:
        judge_public(literal)
    elif host == "localhost" or "." not in host or host.endswith(_INTERNAL_SUFFIXES):
        raise WebhookRefused(f"webhook.url must have a public host, not {host}")
    return WebhookTarget(url, host, port, local=False)


def _literal(host: str) -> Address | None:
    """Returns the address if the host is one. Raises for unusual spellings of addresses."""
    try:
        address = ip_address(host)
    except ValueError:
        if ":" in host or _NUMBER.fullmatch(host.rpartition(".")[2]) or not _NAME.fullmatch(host) or len(host) > 253:
            raise WebhookRefused(f"{host[:200]!r} is neither a host name nor a plain address") from None
        return None
    if isinstance(address, IPv6Address) and address.scope_id is not None:
        raise WebhookRefused("webhook.url must not name a network interface")
    return address


def _plain(address: Address) -> bool:
    return isinstance(address, IPv4Address) or address.ipv4_mapped is None


def judge_public(address: Address) -> None:
    """Raises `WebhookRefused` if the address is not public."""
    if (
        not address.is_global
        or address.is_multicast
        or address.is_reserved
        or address.is_unspecified
        or address.is_link_local
        or any(address in network for network in _NOT_PUBLIC if network.version == address.version)
    ):
        raise WebhookRefused(f"webhook.url leads to {address}, which is not a public address")


def judge_addresses(target: WebhookTarget, addresses: Sequence[str]) -> Address:
    """Returns the address to connect to. One bad address refuses all, because a mixture is a trick or a mistake."""
    judged = []
    for text in addresses:
        try:
            address = ip_address(text)
        except ValueError:
            raise WebhookRefused(f"{target.host} has an invalid address: {text[:64]!r}") from None
        if not target.local:
            judge_public(address)
        elif not (address.is_loopback and _plain(address)):
            raise WebhookRefused(f"{target.host} resolves to {address}, which is not this machine")
        judged.append(address)
    if not judged:
        raise WebhookRefused(f"{target.host} has no address")
    return judged[0]


async def find_address(target: WebhookTarget, resolver: Resolver) -> Address:
    """Resolve and check a host. The caller handles OSError, because a name may be unknown only for a while."""
    literal = _literal(target.host)
    addresses = [str(literal)] if literal is not None else await resolver(target.host, target.port)
    return judge_addresses(target, addresses)
