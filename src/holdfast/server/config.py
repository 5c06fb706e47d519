"""What a server can be told. Read once, at the start, and passed down."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from holdfast.api.limits import MOST_BYTES
from holdfast.local_server import DEFAULT_PORT

DEFAULT_POOL: Final = 8
"""An idle local box takes about 3 MB, and none is made before somebody asks for its like a second time."""


@dataclass(frozen=True, slots=True)
class Settings:
    home: Path
    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    """0 picks a free one."""
    long_poll_timeout: float = 30.0
    """Seconds that a long-poll waits for something new."""
    auth: bool = True
    """False: nobody is asked for a key. Refused on any address but loopback."""
    first_key: bool = True
    """Make an API key where there is none yet, to be shown to whoever starts the server."""
    log_level: str = "info"
    max_body: int = MOST_BYTES
    """Bytes that one request may carry."""
    request_timeout: float = 60.0
    """Seconds that a request may take to arrive."""
    keep_alive: float = 75.0
    """Seconds that a connection may stay open between requests."""
    tail_cycle: float = 60.0
    """Seconds after which an event stream is ended, for the client to come back."""
    pool: int = DEFAULT_POOL
    """Boxes that are kept ready at most, of specs that are asked for again and again. 0: none."""
    allow_private: tuple[str, ...] = ()
    """Hosts and networks at private addresses that boxes may reach, where their policy allows it."""
    egress_proxy: str | None = None
    """The proxy of this network, for what leaves boxes: `http://host:port`, `env:NAME` or `file:PATH`."""
    daytona: bool = False
    """Serve the Daytona API over the boxes of this server, at `/compat/daytona`."""
    registry_mirrors: tuple[str, ...] = ()
    """URLs of registries that are asked before Docker Hub for the images there."""
    provider_settings: Mapping[str, Any] = field(default_factory=dict)
    """By name: those that providers declare (`holdfast.providers.descriptor`)."""
