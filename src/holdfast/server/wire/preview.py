"""Credentials for one port of one box: a token in a URL, exchanged for a cookie. Signed, so nothing is stored."""

from __future__ import annotations

import base64
import hmac
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from holdfast.api.ids import now_ms
from holdfast.server.wire.box_hosts import host_name
from holdfast.server.wire.origins import is_loopback

TOKEN: Final = "holdfast_token"
"""The query parameter."""
COOKIE: Final = "holdfast_preview"
_SECONDS: Final = {"url": 300, "cookie": 12 * 3600}


class Carrier(StrEnum):
    """Where a credential is used. One for a URL is not valid as a cookie, and expires earlier."""

    URL = "url"
    COOKIE = "cookie"


@dataclass(frozen=True, slots=True)
class Previews:
    """Issues and checks these credentials, and knows the URLs of ports."""

    key: bytes
    required: bool
    """Whether a credential is required."""
    clock: Callable[[], int] = now_ms
    public: set[str] = field(default_factory=set)
    """Boxes whose ports anybody may visit, by explicit choice of their owner."""
    expired: set[str] = field(default_factory=set)
    """Tokens that were ended before their time."""

    def issue(self, carrier: Carrier, box: str, port: int, *, seconds: int | None = None) -> str:
        """`seconds` is how long the credential lives, if not as long as others of its carrier."""
        expires = self.clock() // 1000 + (seconds or _SECONDS[carrier])
        return f"{expires:x}-{self._sign(carrier, box, port, expires)}"

    def holds(self, credential: str, carrier: Carrier, box: str, port: int) -> bool:
        if credential in self.expired:
            return False
        expires, signature = expiry(credential), credential.partition("-")[2]
        expected = self._sign(carrier, box, port, expires)
        return hmac.compare_digest(signature.encode("utf-8", "replace"), expected.encode()) and (
            self.clock() // 1000 < expires
        )

    def preview_token(self, box: str, port: int, seconds: int) -> str:
        """A token for URLs and headers that lives as long as the caller wants."""
        return self.issue(Carrier.URL, box, port, seconds=seconds)

    def set_public(self, box: str, public: bool) -> None:
        (self.public.add if public else self.public.discard)(box)

    def ends_early(self, token: str, box: str, port: int) -> bool:
        """Whether this is a token of this port that has not expired yet, and so has to be remembered as ended."""
        return self.holds(token, Carrier.URL, box, port)

    def expire(self, token: str) -> None:
        """End a token before its time. Tokens that have expired by themselves are forgotten."""
        now = self.clock() // 1000
        self.expired.difference_update([each for each in self.expired if expiry(each) <= now])
        self.expired.add(token)

    def url(self, scheme: str, host: str, box: str, port: int) -> str:
        """The URL of a port, for a browser that calls us `host`. Names below localhost are for this machine only."""
        name, colon, number = host.rpartition(":") if not host.endswith("]") else (host, "", "")
        if not colon:
            name, number = host, ""
        if is_loopback(name):
            place = f"{scheme}://{host_name(box, port)}{colon}{number}/"
        else:
            place = f"{scheme}://{host}/v1/boxes/{box}/ports/{port}/"
        return f"{place}?{TOKEN}={self.issue(Carrier.URL, box, port)}" if self.required else place

    def _sign(self, carrier: Carrier, box: str, port: int, expires: int) -> str:
        text = f"{carrier.value} {box} {port} {expires}".encode()
        # Half of the digest, in lower case: it has to fit into a host name.
        return base64.b32encode(hmac.digest(self.key, text, "sha256")[:16]).rstrip(b"=").decode().lower()


def expiry(credential: str) -> int:
    """Returns when a credential expires, in seconds; 0 if it is none."""
    try:
        return int(credential.partition("-")[0], 16)
    except ValueError:
        return 0
