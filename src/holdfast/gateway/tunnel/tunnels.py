"""Tunnels: their names, and the host names that they get. Pure."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Any, Final

from holdfast.api.errors import Conflict, InvalidRequest
from holdfast.api.session.gateway import MAX_TUNNELS, NewTunnel, TunnelProtocol
from holdfast.boxes.network_policy import PROXY_PORT

RESERVED: Final = frozenset(
    {"vscode", "vnc", "tty", "ttyd", "t", "api", "health", "opencode", "index", "login", "logout"}
)
"""Names of routes. A tunnel of such a name could be taken for one."""
_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,32}")
_HOST_LABEL: Final = re.compile(r"[a-z0-9](?:-?[a-z0-9])*")

Tunnels = Mapping[str, NewTunnel]
"""By name, in the order of their registration."""


def parse_tunnel(value: Any) -> NewTunnel:
    """Read a tunnel from a request or an entry. Raises `InvalidRequest`."""
    if not isinstance(value, dict):
        raise InvalidRequest("a tunnel is a JSON object with a name and a port")
    name, port, protocol = value.get("name"), value.get("port"), value.get("protocol", "http")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidRequest(f"name {_shown(name)} is not 1 to 32 letters, digits, '_' or '-'")
    if name.lower() in RESERVED:
        raise InvalidRequest(f"name {name!r} is that of a route of the gateway: choose another one")
    if type(port) is not int or not 1 <= port <= 65535:
        raise InvalidRequest(f"port {_shown(port)} is not a number from 1 to 65535")
    if port == PROXY_PORT:
        raise InvalidRequest(f"port {port} leads from the box to the server, and not into the box: choose another one")
    if protocol not in list(TunnelProtocol):
        raise InvalidRequest(f"protocol {_shown(protocol)} is not http, ws or auto")
    return NewTunnel(name=name, port=port, protocol=TunnelProtocol(protocol))


def with_tunnel(tunnels: Tunnels, new: NewTunnel) -> Tunnels:
    """Add a tunnel, in place of one of the same name. Raises if it cannot have an origin of its own, or is one too
    many."""
    label = host_label(new.name)
    for each in tunnels:
        if each != new.name and host_label(each) == label:
            raise Conflict(f"tunnel {new.name!r} would have the host name of tunnel {each!r}: choose another name")
    if new.name not in tunnels and len(tunnels) >= MAX_TUNNELS:
        raise Conflict(f"a session has at most {MAX_TUNNELS} tunnels: delete one first")
    return {**tunnels, new.name: new}


def host_label(name: str) -> str:
    """The part of a host name that stands for a tunnel. Host names ignore case and have no underscores, so other names
    get a digest."""
    if _HOST_LABEL.fullmatch(name):
        return name
    return f"x{hashlib.sha256(name.encode()).hexdigest()[:12]}"


def _shown(value: Any) -> str:
    return repr(value)[:80]
