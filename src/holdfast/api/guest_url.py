"""The address at which boxes that have a network reach the guest API: the server's own, or that of a relay."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

GUEST_PREFIX: Final = "/guest"
"""Where a server has the guest API for boxes that connect to it. A relay forwards nothing else."""

_PRIVATE: Final = (".internal", ".local", ".localhost")


@dataclass(frozen=True, slots=True)
class GuestUrl:
    """Tokens of runs are sent there, so it is https, except in a private network."""

    scheme: str
    host: str
    port: int | None

    @classmethod
    def parse(cls, text: str) -> GuestUrl:
        """Raises ValueError."""
        parts = urlsplit(text)
        try:
            port = parts.port
        except ValueError:
            raise ValueError(f"{text!r} has no valid port") from None
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{text!r} is not a URL: it looks like https://relay.example.com")
        if parts.username or parts.query or parts.fragment or parts.path not in ("", "/"):
            raise ValueError("the URL of a relay has a host and perhaps a port, and nothing else")
        if parts.scheme == "http" and not is_private(parts.hostname):
            raise ValueError(f"{text!r} has to be https: boxes send the tokens of their runs there")
        return cls(parts.scheme, parts.hostname, port)

    @property
    def origin(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}" + ("" if self.port is None else f":{self.port}")

    @property
    def base(self) -> str:
        """The URL of the guest API for boxes."""
        return f"{self.origin}{GUEST_PREFIX}"


def is_private(host: str) -> bool:
    """Returns whether a host, as it is written, is of this machine or of a private network."""
    if ("." not in host and ":" not in host) or host.endswith(_PRIVATE):
        return True
    try:
        return ipaddress.ip_address(host).is_private
    except ValueError:
        return False
