"""The one server that a relay forwards to."""

from __future__ import annotations

import asyncio
import ssl
from dataclasses import dataclass, field

from holdfast.api.guest_url import GuestUrl
from holdfast.relay.wire import Wire


@dataclass(frozen=True, slots=True)
class Upstream:
    url: GuestUrl
    tls: ssl.SSLContext | None = field(default=None, repr=False)

    @classmethod
    def parse(cls, text: str) -> Upstream:
        """Raises ValueError."""
        url = GuestUrl.parse(text)
        return cls(url, ssl.create_default_context() if url.scheme == "https" else None)

    @property
    def usual_port(self) -> int:
        return 80 if self.tls is None else 443

    @property
    def port(self) -> int:
        return self.url.port or self.usual_port

    async def connect(self, limit: int) -> Wire:
        """Raises OSError. `limit` bounds the bytes that are read before they are wanted."""
        name = None if self.tls is None else self.url.host
        return Wire(
            *await asyncio.open_connection(
                self.url.host, self.port, ssl=self.tls, server_hostname=name, limit=limit, happy_eyeballs_delay=0.25
            )
        )
