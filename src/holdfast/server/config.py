"""What a server can be told. Read once, at the start, and passed down."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

DEFAULT_PORT: Final = 8484


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
    log_level: str = "info"
    max_body: int = 16 * 1024 * 1024
    """Bytes that one request may carry."""
    request_timeout: float = 60.0
    """Seconds that a request may take to arrive."""
    tail_cycle: float = 60.0
    """Seconds after which an event stream is ended, for the client to come back."""
    allow_process_provider: bool = False
    """Boxes of the process provider run on this machine without isolation. For development only."""
