"""Who issued a link to a session: it ends with their key, or when they are no longer a member of the tenant.

Tokens and cookies have the credentials that they came from. The first of them names the issuer.
"""

from __future__ import annotations

import base64
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

from holdfast.api.access.tenants import TenantRole
from holdfast.threads.access.credentials import Issuer

_PREFIX: Final = "issuer:"
_FRESH_MS: Final = 5_000
"""How long an answer counts without another look, unless something changes at this server."""
_MOST_KNOWN: Final = 1024

RoleOf = Callable[[Issuer, int], Awaitable[TenantRole | None]]
"""The role that an issuer has now. None if their key was revoked, or they are not the member that they were then."""


def mark(issuer: Issuer, now: int) -> str:
    """Returns the name of an issuer among the credentials of a token. `now` is in seconds."""
    kind, name = ("key", issuer.key) if issuer.key is not None else ("member", issuer.member or "")
    return f"{_PREFIX}{kind}:{base64.urlsafe_b64encode(name.encode()).decode()}:{now}"


def parse(text: str) -> tuple[Issuer, int]:
    """Returns the issuer that a mark names, and since when."""
    _, kind, name, since = text.split(":")
    decoded = base64.urlsafe_b64decode(name).decode()
    return (Issuer(key=decoded) if kind == "key" else Issuer(member=decoded)), int(since)


class Issuers:
    """Whether issuers still have the right to what they issued."""

    def __init__(self, role_of: RoleOf, clock: Callable[[], int]) -> None:
        self._role_of = role_of
        self._clock = clock
        self._known: dict[str, int] = {}
        """Issuers that had the right, and until when that counts (ms)."""

    async def hold(self, credentials: Iterable[str]) -> bool:
        """Whether all issuers among these credentials may still open sessions to others."""
        for each in credentials:
            if each.startswith(_PREFIX) and not await self._holds(each):
                return False
        return True

    def forget(self) -> None:
        """Look again: a key or a member has changed."""
        self._known.clear()

    async def _holds(self, name: str) -> bool:
        now = self._clock()
        if now < self._known.get(name, 0):
            return True
        role = await self._role_of(*parse(name))
        if role is None or not role.includes(TenantRole.MEMBER):
            return False
        if len(self._known) >= _MOST_KNOWN:
            self._known.clear()
        self._known[name] = now + _FRESH_MS
        return True
