"""The settings of a server. Read once, at the start, and passed down."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from holdfast.api.limits import MOST_BYTES
from holdfast.client.local_server import DEFAULT_PORT

DEFAULT_POOL: Final = 8
"""An idle local box takes about 3 MB, and none is created before the second request for the same spec."""
DEFAULT_SESSIONS: Final = 100


@dataclass(frozen=True, slots=True)
class Settings:
    home: Path
    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    """0 picks a free one."""
    long_poll_timeout: float = 30.0
    """Seconds that a long-poll waits for new entries."""
    auth: bool = True
    """Whether a key is required. False is allowed only on loopback."""
    first_key: bool = True
    """Create an API key if there is none yet, and print it once."""
    log_level: str = "info"
    max_body: int = MOST_BYTES
    """Most bytes of a request body."""
    request_timeout: float = 60.0
    """Seconds that a request may take to arrive."""
    keep_alive: float = 75.0
    """Seconds that a connection may stay open between requests."""
    tail_cycle: float = 60.0
    """Seconds after which an event stream ends, and the client reconnects."""
    max_sessions: int = DEFAULT_SESSIONS
    """Most sessions that have a box that runs, at once."""
    pool: int = DEFAULT_POOL
    """Most boxes to keep ready, for specs that are requested repeatedly."""
    allow_private: tuple[str, ...] = ()
    """Private hosts and networks that boxes may reach, if their policy allows it."""
    egress_proxy: str | None = None
    """The proxy of this network for the traffic of boxes: `http://host:port`, `env:NAME` or `file:PATH`."""
    daytona: bool = False
    """Serve the Daytona API over the boxes of this server, at `/compat/daytona`."""
    preview_url: str | None = None
    """Names below the host of this URL lead to this server. Ports of boxes are then reached there."""
    delegation: str = ""
    """Limits of trees of tasks that differ from the defaults, as `DelegationLimits` reads them."""
    registry_mirrors: tuple[str, ...] = ()
    """URLs of registries to try before Docker Hub."""
    provider_kinds: tuple[str, ...] | None = None
    """Kinds of providers that boxes may have. None means all."""
    tenant_providers: tuple[str, ...] = ("local",)
    """Kinds of providers that tenants may use. The default tenant, which is the operator's, may use all."""
    provider_settings: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """Settings that providers declare, by name (`holdfast.providers.descriptor`), given on the command line."""
    provider_environment: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """The same, as the variables of the environment have them. A stored account comes before them."""
