"""The host names of sessions and tunnels: `<session>.localhost`, `<tunnel>--<session>.localhost`, and the same names
below the operator's domain. Pure.

Each tunnel has its own host name, so that its pages have another origin than all other pages: it can read neither their
cookies nor their content.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Final, NamedTuple

from holdfast.api.access.tenants import DEFAULT_TENANT, TENANT_NAME

_LABEL: Final = rb"(?:([a-z0-9](?:-?[a-z0-9]){0,31})--)?([st]-[0-9a-z]{1,40})(?:--at-(" + TENANT_NAME.encode() + rb"))?"
"""The ids of sessions are chosen by their tenants, so the name of a session of another tenant than the default one says
whose it is."""


class SessionHost(NamedTuple):
    """What a host name stands for."""

    session: str
    tunnel: str | None
    """The label of a tunnel. None for the session itself."""
    tenant: str = DEFAULT_TENANT


class SessionHosts:
    """Which host names are sessions."""

    def __init__(self, scheme: str, port: str, domain: str | None = None, tenant: str = DEFAULT_TENANT) -> None:
        """Names below `domain` lead to this server. Without one, they are names of this machine. `port` has its colon,
        if there is one. `tenant` is the one whose sessions `origin` is asked for."""
        self.scheme = scheme
        self._mark = "" if tenant == DEFAULT_TENANT else f"--at-{tenant}"
        self._port = port
        self._domain = domain or "localhost"
        domains = {b"localhost", re.escape(self._domain.encode())}
        pattern = re.compile(_LABEL + rb"\.(?:" + b"|".join(domains) + rb")\.?(?::[0-9]{1,5})?", re.IGNORECASE)
        self.named: Callable[[bytes], SessionHost | None] = functools.lru_cache(maxsize=512)(
            functools.partial(_parse, pattern)
        )
        """The session that a Host header names, or the part of an Origin after its scheme."""

    def origin(self, session: str, tunnel: str | None = None) -> str:
        """The origin of a session, or of the tunnel with this label."""
        label = session if tunnel is None else f"{tunnel}--{session}"
        return f"{self.scheme}://{label}{self._mark}.{self._domain}{self._port}"


def _parse(pattern: re.Pattern[bytes], host: bytes) -> SessionHost | None:
    match = pattern.fullmatch(host)
    if match is None:
        return None
    tunnel, session, tenant = (None if part is None else part.decode().lower() for part in match.groups())
    assert session is not None
    return SessionHost(session, tunnel, tenant or DEFAULT_TENANT)
