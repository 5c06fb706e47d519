"""What a server can be told. Read once, at the start, and passed down."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

DEFAULT_PORT: Final = 8484


def default_home(environment: Mapping[str, str] = os.environ) -> Path:
    """The platform's data folder, unless HOLDFAST_HOME says otherwise."""
    if home := environment.get("HOLDFAST_HOME"):
        return Path(home).expanduser()
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support" / "holdfast"
    if base := environment.get("XDG_DATA_HOME"):
        return Path(base) / "holdfast"
    return Path.home() / ".local" / "share" / "holdfast"


@dataclass(frozen=True, slots=True)
class Settings:
    home: Path = field(default_factory=default_home)
    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    """0 picks a free one."""
    long_poll_timeout: float = 30.0
    """Seconds that a long-poll waits for something new."""
    auth: bool = True
    """False: nobody is asked for a key. Refused on any address but loopback."""
    log_level: str = "info"
    max_body: int = 16 * 1024 * 1024
    """Bytes that one request may carry."""
    request_timeout: float = 60.0
    """Seconds that a request may take to arrive."""
    tail_cycle: float = 60.0
    """Seconds after which an event stream is ended, for the client to come back."""
