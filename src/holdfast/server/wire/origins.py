"""Decides which web pages may use this server. This matters most if no key is required.

The API takes no credentials from cookies, so with keys required any origin is harmless. Without keys, only pages of
this server are answered: with a host name of this machine, which defeats DNS rebinding, and from the port of the
request. Other ports of this machine may be forwarded from a box, so their pages are not trusted.
"""

from __future__ import annotations

import functools
import ipaddress
from typing import Final
from urllib.parse import urlsplit

from holdfast.api.errors import Forbidden
from holdfast.gateway.hosts import SessionHosts
from holdfast.server.wire.box_hosts import BoxHosts

_EXPOSED: Final = (
    b"stream-next-offset, stream-cursor, stream-up-to-date, stream-closed, stream-ttl, stream-expires-at,"
    b" stream-sse-data-encoding, producer-epoch, producer-seq, producer-expected-seq, producer-received-seq,"
    b" etag, location, x-request-id"
)

_STRANGER: Final = "this server runs without keys and answers only its own pages: start it with keys for others"
_ELSEWHERE: Final = (b"cross-site", b"same-site")


def is_loopback(host: str) -> bool:
    """Returns whether a host name, as written, means this machine."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


class OriginPolicy:
    """Checks the Host and Origin of a request, and returns the CORS headers of its response."""

    def __init__(
        self, *, open_server: bool, hosts: BoxHosts | None = None, sessions: SessionHosts | None = None
    ) -> None:
        self._open = open_server
        """No key is required."""
        self._hosts = hosts or BoxHosts()
        self._sessions = sessions or SessionHosts("http", "")

    def check(self, headers: dict[bytes, bytes]) -> None:
        if not self._open:
            return
        host = headers.get(b"host", b"localhost")
        if not self._is_local(b"//" + host):
            name = host.decode("latin-1")
            raise Forbidden(f"this server runs without keys and answers to localhost only, not to {name!r}")
        origin = headers.get(b"origin")
        if origin is not None and not is_same_site(origin, host):
            raise Forbidden(_STRANGER)
        # Images and scripts are loaded without an Origin, but browsers send where the page comes from.
        if headers.get(b"sec-fetch-site") in _ELSEWHERE and headers.get(b"sec-fetch-mode") != b"navigate":
            raise Forbidden(_STRANGER)

    def check_port(self, host: bytes | None, origin: bytes | None) -> None:
        """Check a request to a port of a box: allowed are its own pages, and those that may use the API."""
        if not self._open or origin is None or is_same_site(origin, host):
            return
        if not self._is_local(origin) or _port_of(origin) != _port_of(b"//" + (host or b"")):
            raise Forbidden(_STRANGER)

    def _is_local(self, url: bytes) -> bool:
        host = _local_host(url)
        # The pages of boxes and sessions are not pages of this machine: code in a box wrote them.
        return host is not None and self._hosts.named(host) is None and self._sessions.named(host) is None

    def response_headers(self, origin: bytes | None) -> list[tuple[bytes, bytes]]:
        if origin is None or self._open:
            return []  # its own pages need no such headers
        return [(b"access-control-allow-origin", b"*"), (b"access-control-expose-headers", _EXPOSED)]


def is_same_site(origin: bytes, host: bytes | None) -> bool:
    """Returns whether an Origin is the host that the request went to."""
    return host is not None and origin.lower() in (b"http://" + host.lower(), b"https://" + host.lower())


@functools.lru_cache(maxsize=256)
def _local_host(url: bytes) -> bytes | None:
    """The host and port of a URL, if they are of this machine."""
    try:
        parts = urlsplit(url.decode("latin-1"))
        return parts.netloc.encode("latin-1") if is_loopback(parts.hostname or "") else None
    except ValueError:  # not a URL, for example an incomplete IPv6 address
        return None


def _port_of(url: bytes) -> int | None:
    """The port of a URL, 80 if it has none, or None if it is not a URL."""
    try:
        return urlsplit(url.decode("latin-1")).port or 80
    except ValueError:
        return None
