"""Credentials for one port of one box: a token in a URL, exchanged for a cookie. Signed, so nothing is stored."""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from holdfast.api.ids import now_ms
from holdfast.gateway.credentials.tickets import UsedTickets
from holdfast.server.wire.box_hosts import host_name
from holdfast.server.wire.origins import is_loopback

TOKEN: Final = "holdfast_token"
"""The query parameter."""
COOKIE: Final = "holdfast_preview"
_SECONDS: Final = {"url": 300, "link": 300, "cookie": 12 * 3600}


class Carrier(StrEnum):
    """Where a credential is used. One for a URL is not valid as a cookie, and expires earlier."""

    URL = "url"
    LINK = "link"
    """In a URL for a browser, where the pages of the port may see it. A visit by a browser uses it up."""
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
    link_key: bytes = field(default_factory=lambda: secrets.token_bytes(32), repr=False)
    """Of this process alone: it does not know which links were used before its start."""
    used: UsedTickets = field(default_factory=UsedTickets)

    def issue(self, carrier: Carrier, box: str, port: int, *, seconds: int | None = None) -> str:
        """`seconds` is how long the credential lives, if not as long as others of its carrier."""
        expires = self.clock() // 1000 + (seconds or _SECONDS[carrier])
        if carrier is not Carrier.LINK:
            return f"{expires:x}-{self._sign(carrier, box, port, expires)}"
        nonce = secrets.token_hex(8)  # two links of the same second are two
        return f"{expires:x}-{self._sign(carrier, box, port, expires, nonce)}-{nonce}"

    def holds(self, credential: str, carrier: Carrier, box: str, port: int) -> bool:
        if credential in self.expired:
            return False
        expires, signature = expiry(credential), credential.partition("-")[2]
        signature, _, nonce = signature.partition("-") if carrier is Carrier.LINK else (signature, "", "")
        expected = self._sign(carrier, box, port, expires, nonce)
        return hmac.compare_digest(signature.encode("utf-8", "replace"), expected.encode()) and (
            self.clock() // 1000 < expires
        )

    def admits(self, token: str, opens: bool) -> bool:
        """Returns whether no browser has opened the link with this token yet. `opens` uses it up."""
        digest = hashlib.sha256(token.encode()).hexdigest()
        if opens:
            return self.used.use(digest, expiry(token), self.clock() / 1000)
        return not self.used.is_used(digest, expiry(token))

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
        return f"{place}?{TOKEN}={self.issue(Carrier.LINK, box, port)}" if self.required else place

    def _sign(self, carrier: Carrier, box: str, port: int, expires: int, nonce: str = "") -> str:
        text = f"{carrier.value} {box} {port} {expires}{nonce and f' {nonce}'}".encode("utf-8", "replace")
        key = self.link_key if carrier is Carrier.LINK else self.key
        # Half of the digest, in lower case: it has to fit into a host name.
        return base64.b32encode(hmac.digest(key, text, "sha256")[:16]).rstrip(b"=").decode().lower()


def expiry(credential: str) -> int:
    """Returns when a credential expires, in seconds; 0 if it is none.

    There is one way to write it: otherwise a token that was ended, or used, would be valid once more in another
    spelling.
    """
    text = credential.partition("-")[0]
    try:
        expires = int(text, 16)
    except ValueError:
        return 0
    return expires if f"{expires:x}" == text else 0
