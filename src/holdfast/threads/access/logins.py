"""Logins of browsers: a code that is used once is exchanged for a secret in a cookie. Only digests are stored.

A login has the role of the key or the member behind it, as it is now, and ends with them.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from holdfast.api.access.tenants import TenantRole
from holdfast.api.errors import Unauthorized
from holdfast.api.ids import new_id
from holdfast.threads.access.credentials import Grant, digest_key
from holdfast.threads.access.tenant_names import code_prefix, login_prefix

CODE_MS: Final = 10 * 60 * 1000
LOGIN_MS: Final = 14 * 24 * 3600 * 1000
_MOST_CODES: Final = 20
"""Codes of one caller that were not used. Nobody makes the codes of others void."""
_HINT: Final = "get a new link: holdfast login"


@dataclass(frozen=True, slots=True)
class Login:
    id: str
    user: str
    role: TenantRole
    via: str
    created_at: int
    expires_at: int
    key: str | None = None
    """The API key that made its link. The login ends when the key is revoked."""
    member: str | None = None
    """The member that it is of. It has at most the role of the member, and ends when they are removed."""


class LoginStore(Protocol):
    """The contract of a store of logins. It holds digests, never a secret itself."""

    async def add(self, login: Login, digest: bytes) -> None: ...

    async def find(self, digest: bytes) -> Login | None:
        """Returns a login whose key is not revoked and whose member is still one, with the role of now. It may have
        expired.
        """
        ...

    async def list(self) -> list[Login]:
        """Returns all logins that `find` would return, oldest first."""
        ...

    async def remove(self, id: str) -> bool: ...

    async def remove_expired(self, now: int) -> int: ...


class Logins:
    """Issues codes and logins of one tenant. Codes are kept in memory: after a restart, links have to be made anew."""

    def __init__(self, store: LoginStore, tenant: str, clock: Callable[[], int]) -> None:
        self._store = store
        self._tenant = tenant
        self._clock = clock
        self._codes: dict[bytes, tuple[Grant, int]] = {}
        """Who made a code, and when it expires, by digest. The oldest first."""

    def issue_code(self, grant: Grant) -> tuple[str, int]:
        """Returns a code that logs a browser in as the caller, and when it expires."""
        now = self._clock()
        self._codes = {digest: each for digest, each in self._codes.items() if now < each[1]}
        own = [digest for digest, (by, _) in self._codes.items() if _caller(by) == _caller(grant)]
        for digest in own[: max(0, len(own) - _MOST_CODES + 1)]:
            del self._codes[digest]
        code = code_prefix(self._tenant) + secrets.token_urlsafe(32)
        expires_at = now + CODE_MS
        self._codes[digest_key(code)] = (grant, expires_at)
        return code, expires_at

    async def redeem(self, code: str) -> tuple[Login, str]:
        """Exchange a code for a login and its secret. Raises `Unauthorized`; a code is valid once."""
        grant, expires_at = self._codes.pop(digest_key(code), (None, 0))
        if grant is None or self._clock() >= expires_at:
            raise Unauthorized("this link was used already, or has expired", hint=_HINT)
        return await self.begin(grant.user, grant.role, "link", key=grant.key, member=grant.member)

    async def begin(
        self, user: str, role: TenantRole, via: str, *, key: str | None = None, member: str | None = None
    ) -> tuple[Login, str]:
        """Log a browser in. Returns the login and its secret."""
        now = self._clock()
        await self._store.remove_expired(now)
        secret = login_prefix(self._tenant) + secrets.token_urlsafe(32)
        login = Login(new_id("l"), user, role, via, now, now + LOGIN_MS, key, member)
        await self._store.add(login, digest_key(secret))
        return login, secret

    async def end(self, id: str) -> bool:
        return await self._store.remove(id)

    async def list(self) -> list[Login]:
        now = self._clock()
        return [each for each in await self._store.list() if each.expires_at > now]


def _caller(grant: Grant) -> tuple[str | None, str | None, str | None]:
    return grant.user, grant.key, grant.member
