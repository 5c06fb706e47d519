"""Which web pages may talk to this server. Matters most where no key is asked for: a page must not reach a laptop.

The API takes no credentials from cookies, so with keys required any origin is harmless. Without keys, only pages and
names of this very machine are answered, which also defeats names that are made to point here. Pages that a box serves
are of this machine by name only: they are strangers.
"""

from __future__ import annotations

import functools
import ipaddress
from typing import Final
from urllib.parse import urlsplit

from holdfast.server.box_hosts import is_box_host
from holdfast.threads.errors import Forbidden

_EXPOSED: Final = (
    b"stream-next-offset, stream-cursor, stream-up-to-date, stream-closed, stream-ttl, stream-expires-at,"
    b" stream-sse-data-encoding, producer-epoch, producer-seq, producer-expected-seq, producer-received-seq,"
    b" etag, location, x-request-id"
)


def is_loopback(host: str) -> bool:
    """Whether a host name, as written, means this machine."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


class OriginPolicy:
    """Checks the Host and Origin of a request, and says which CORS headers its response gets."""

    def __init__(self, *, open_server: bool) -> None:
        self._open = open_server
        """No key is asked for."""

    def check(self, headers: dict[bytes, bytes]) -> None:
        if not self._open:
            return
        host = headers.get(b"host", b"localhost")
        if not _is_local(b"//" + host):
            name = host.decode("latin-1")
            raise Forbidden(f"this server runs without keys and answers to localhost only, not to {name!r}")
        origin = headers.get(b"origin")
        if origin is not None and not _is_local(origin):
            raise Forbidden("this server runs without keys and answers no page of another site")

    def check_port(self, host: bytes | None, origin: bytes | None) -> None:
        """For what is proxied to a port of a box: its own page may ask, and so may those that may use the API."""
        if not self._open or origin is None or is_same_site(origin, host):
            return
        if not _is_local(origin):
            raise Forbidden("this server runs without keys and answers no page of another site")

    def response_headers(self, origin: bytes | None) -> list[tuple[bytes, bytes]]:
        if origin is None or (self._open and not _is_local(origin)):
            return []
        return [(b"access-control-allow-origin", b"*"), (b"access-control-expose-headers", _EXPOSED)]


def is_same_site(origin: bytes, host: bytes | None) -> bool:
    """Whether an Origin is the very place that a request with this Host went to."""
    return host is not None and origin.lower() in (b"http://" + host.lower(), b"https://" + host.lower())


@functools.lru_cache(maxsize=256)
def _is_local(url: bytes) -> bool:
    try:
        parts = urlsplit(url.decode("latin-1"))
        return is_loopback(parts.hostname or "") and not is_box_host(parts.netloc.encode("latin-1"))
    except ValueError:  # no URL at all, an unfinished IPv6 address, say
        return False
