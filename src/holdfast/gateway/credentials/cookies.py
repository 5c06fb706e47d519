"""Cookies: who has opened a session in a browser, for as long as they use it.

A cookie is 64 hexadecimal digits that nobody can guess. The store has only its digest, so that cookies survive a
restart and a copy of the database opens nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, Protocol

from holdfast.gateway.credentials.cookie_values import is_of, new_value
from holdfast.gateway.credentials.tokens import digest

log = logging.getLogger(__name__)

COOKIE: Final = "holdfast_session"
SECURE_COOKIE: Final = f"__Host-{COOKIE}"
"""Its name over https. Browsers take a cookie of such a name only from its own host, for all paths."""
IDLE_SECONDS: Final = 15 * 60
"""How long a cookie is valid after its last use."""
_RENEW_MS: Final = 60_000
"""A use is written to the store at most this often."""
_SWEEP_SECONDS: Final = 60.0
_CACHED: Final = 4096


@dataclass(frozen=True, slots=True)
class CookieRow:
    """A cookie in the store."""

    digest: str
    place: str
    """The session, or `<tunnel>--<session>`: it is valid at the origin that set it and nowhere else."""
    session: str
    epoch: str
    subject: str
    via: tuple[str, ...]
    """The digests of the credentials that it came from, the first one first. It ends when one of them is revoked."""
    expires_at: int
    """UTC milliseconds."""


class CookieStore(Protocol):
    """The contract of a store of cookies."""

    async def add(self, row: CookieRow) -> None: ...

    async def find(self, digest: str) -> CookieRow | None:
        """Returns the cookie with this digest, also an expired one."""
        ...

    async def renew(self, digest: str, expires_at: int) -> bool:
        """Returns whether there is such a cookie."""
        ...

    async def remove_session(self, session: str) -> int:
        """Remove all cookies of a session. Returns how many there were."""
        ...

    async def remove_tree(self, session: str, credential: str) -> int:
        """Remove the cookies of a session that are the credential with this digest, or came from it. Returns how many
        there were."""
        ...

    async def remove_expired(self, now: int) -> int:
        """Remove cookies that expired at `now` or before. Returns how many there were."""
        ...


@dataclass(slots=True)
class _Known:
    row: CookieRow
    expires: int
    written: int
    """The expiry that the store has."""
    open: int = 0
    """Connections that are open with it. While there is one, it is in use."""


class Cookies:
    """Issues, finds, renews and ends cookies. What it remembers, it can read again from the store."""

    def __init__(
        self, store: CookieStore, clock: Callable[[], int], key: bytes, *, idle_seconds: int = IDLE_SECONDS
    ) -> None:
        """`key` authenticates the values of cookies."""
        self._store = store
        self._clock = clock
        self._key = key
        self._idle_ms = idle_seconds * 1000
        self._known: OrderedDict[str, _Known] = OrderedDict()

    async def issue(self, place: str, session: str, epoch: str, subject: str, via: tuple[str, ...]) -> str:
        """Returns the value of a new cookie. It never takes over a value that a browser sent."""
        value = new_value(self._key, place)
        expires = self._clock() + self._idle_ms
        row = CookieRow(digest(value), place, session, epoch, subject, via, expires)
        await self._store.add(row)
        self._remember(_Known(row, expires, expires))
        return value

    async def find(self, value: str, place: str) -> CookieRow | None:
        """Returns the cookie with this value if it is for this place and has not expired. The caller decides whether it
        is valid, and then calls `use`: what is refused must not be renewed."""
        # Looked up by a digest: how long that takes tells nothing about the value.
        key = digest(value)
        if key not in self._known and not is_of(self._key, place, value):
            return None
        known = await self._look_up(key)
        if known is None:
            return None
        expired = self._clock() >= known.expires and not known.open
        return None if expired or known.row.place != place else known.row

    async def use(self, row: CookieRow) -> None:
        """Count this as a use of a cookie."""
        if (known := self._known.get(row.digest)) is not None:
            await self._use(known, self._clock())

    @contextlib.contextmanager
    def in_use(self, row: CookieRow) -> Iterator[None]:
        """Keep a cookie valid while a connection is open with it."""
        known = self._known.get(row.digest)
        if known is None:  # it was revoked meanwhile, or forgotten among many
            known = _Known(row, row.expires_at, row.expires_at)
        known.open += 1
        try:
            yield
        finally:
            known.open -= 1
            known.expires = self._clock() + self._idle_ms

    async def remove_tree(self, session: str, credential: str) -> int:
        """Remove the cookies of a session that are the credential with this digest, or came from it. Returns how many
        there were. One that is being issued or looked up now can be missed: the session's record refuses it."""
        count = await self._store.remove_tree(session, credential)
        self._forget(lambda row: row.session == session and credential in (row.digest, *row.via))
        return count

    async def remove_session(self, session: str) -> None:
        """Remove all cookies of a session."""
        await self._store.remove_session(session)
        self._forget(lambda row: row.session == session)

    async def keep(self) -> None:
        """Write down which cookies are in use, and remove expired ones, until cancelled."""
        while True:
            await asyncio.sleep(_SWEEP_SECONDS)
            try:
                await self.sweep()
            except Exception:
                log.exception("cookies could not be swept; this is tried again in %s s", _SWEEP_SECONDS)

    async def sweep(self) -> None:
        now = self._clock()
        for key, known in list(self._known.items()):
            if known.open:
                await self._use(known, now)
            elif now >= known.expires:
                self._known.pop(key, None)
        await self._store.remove_expired(now)

    async def _look_up(self, key: str) -> _Known | None:
        known = self._known.get(key)
        if known is not None:
            self._known.move_to_end(key)
            return known
        row = await self._store.find(key)
        if row is None:
            return None
        if (known := self._known.get(key)) is None:  # else another request was faster
            known = _Known(row, row.expires_at, row.expires_at)
            self._remember(known)
        return known

    async def _use(self, known: _Known, now: int) -> None:
        expires = now + self._idle_ms
        known.expires = max(expires, known.expires)
        if expires - known.written >= min(_RENEW_MS, self._idle_ms // 4):
            known.written = expires
            if not await self._store.renew(known.row.digest, expires):
                self._known.pop(known.row.digest, None)  # another server revoked it

    def _remember(self, known: _Known) -> None:
        self._known[known.row.digest] = known
        if len(self._known) > _CACHED:
            unused = next((key for key, each in self._known.items() if not each.open), None)
            if unused is not None:
                del self._known[unused]

    def _forget(self, is_meant: Callable[[CookieRow], bool]) -> None:
        for key in [key for key, known in self._known.items() if is_meant(known.row)]:
            del self._known[key]
