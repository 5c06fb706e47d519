"""The host names of ports of boxes: `<port>-<box>.localhost`, and the same below the operator's domain. Pure.

Each port has its own host name, so that a page from a box has another origin than every other page and the API.
A signed link has its token in the name, too: `<port>-<box>--<token>.localhost`. So a program may keep nothing but the
host and the port of a link.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple
from urllib.parse import urlsplit

_LABEL: Final = rb"([0-9]{1,5})-([a-z0-9](?:-?[a-z0-9]){0,55})(?:--([0-9a-f]{1,12}-[a-z2-7]{26}))?"
_PATH: Final = re.compile(rb"/v1/boxes/([A-Za-z0-9_-]{1,64})/ports/([0-9]{1,5})(/.*)?", re.DOTALL)
_DOMAIN: Final = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?(?:\.[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?)*")


class BadPreviewUrl(ValueError):
    """A URL below which there cannot be host names of ports."""


@dataclass(frozen=True, slots=True)
class PreviewAddress:
    """An address of this machine that stands for one port of one box."""

    box: str
    port: int
    host: bytes
    """The only Host header that it answers to, such as `127.1.2.3:20456`."""
    token: str | None = None
    """The token that the address stands for. Without one, each visitor needs a credential."""

    @property
    def url(self) -> str:
        return f"http://{self.host.decode()}"


class PortTarget(NamedTuple):
    """A port of a box, and the requested path."""

    box: str
    port: int
    path: bytes
    """The path after the port; empty if not even a slash follows."""
    prefix: bytes
    """The path before it; empty if the host names the port."""
    token: str | None = None
    """The token in the host name, or of the address."""
    address: PreviewAddress | None = None
    """The address through which the request came, if it is not the server's own."""


class BoxHosts:
    """Which host names are ports of boxes."""

    def __init__(self, preview_url: str | None = None) -> None:
        """`preview_url`: names below its host lead to this server, by a wildcard in the operator's DNS. Raises
        `BadPreviewUrl`."""
        self.preview_url = None if preview_url is None else _checked(preview_url)
        domains = [b"localhost"]
        if self.preview_url is not None:
            domains.append(re.escape(self.preview_url[1].encode()))
        pattern = re.compile(_LABEL + rb"\.(?:" + b"|".join(domains) + rb")\.?(?::[0-9]{1,5})?", re.IGNORECASE)
        self.named: Callable[[bytes], tuple[str, int, str | None] | None] = functools.lru_cache(maxsize=512)(
            functools.partial(_parse_host, pattern)
        )
        """The box, port and token that a Host header names, or the part of an Origin after its scheme."""

    def find(self, host: bytes | None, raw_path: bytes, address: PreviewAddress | None = None) -> PortTarget | None:
        """The port that a request is for, or None. If host or address name one, all paths belong to the box."""
        if address is not None:
            return PortTarget(address.box, address.port, raw_path or b"/", b"", address.token, address)
        if host is not None and (named := self.named(host)) is not None:
            return PortTarget(named[0], named[1], raw_path or b"/", b"", named[2])
        if raw_path.startswith(b"/v1/boxes/") and (match := _PATH.fullmatch(raw_path)) is not None:
            path = match[3] or b""
            return PortTarget(match[1].decode(), int(match[2]), path, raw_path[: len(raw_path) - len(path)])
        return None

    def url_below(self, box: str, port: int, token: str | None = None) -> str | None:
        """The URL of a port below the operator's domain, without a slash in the end. None if there is no domain."""
        if self.preview_url is None:
            return None
        scheme, domain, colon_port = self.preview_url
        return f"{scheme}://{_label(box, port, token)}.{domain}{colon_port}"


def host_name(box: str, port: int) -> str:
    return f"{_label(box, port, None)}.localhost"


def _label(box: str, port: int, token: str | None) -> str:
    return f"{port}-{box.lower()}" + ("" if token is None else f"--{token}")


def _parse_host(pattern: re.Pattern[bytes], host: bytes) -> tuple[str, int, str | None] | None:
    match = pattern.fullmatch(host)
    if match is None:
        return None
    return match[2].decode().lower(), int(match[1]), None if match[3] is None else match[3].decode().lower()


def _checked(url: str) -> tuple[str, str, str]:
    """The scheme, the domain, and the port with its colon."""
    try:
        parts = urlsplit(url)
        domain, port = (parts.hostname or "").removesuffix("."), parts.port
    except ValueError as error:
        raise BadPreviewUrl(f"{url!r}: {error}") from None
    if (
        parts.scheme not in ("http", "https")
        or parts.path.strip("/")
        or parts.query
        or parts.fragment
        or parts.username
    ):
        raise BadPreviewUrl(f"{url!r}: a URL such as https://preview.example.com is expected")
    if not _DOMAIN.fullmatch(domain) or domain.rpartition(".")[2].isdigit() or domain == "localhost":
        raise BadPreviewUrl(f"{url!r}: {domain!r} is not a domain that can have names below it")
    return parts.scheme, domain, "" if port is None else f":{port}"
