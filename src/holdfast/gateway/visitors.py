"""Who has a connection open through the gateway, so that it can be closed when they lose the right to it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field

from holdfast.api.gateway import Role
from holdfast.gateway.cookies import CookieRow


@dataclass(frozen=True, slots=True, eq=False)
class Visitor:
    """Somebody who makes a request."""

    session: str
    subject: str
    role: Role
    credential: str
    """The digest of the token or the cookie."""
    via: str
    """The digest of the token that they came with at first."""
    cookie: CookieRow | None = None
    """None if it was a token."""
    tunnel: str | None = None
    """The name of the tunnel that they use."""
    over: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    """Done when they lose the right to be here."""


class Visitors:
    """The visitors that have a connection open."""

    def __init__(self) -> None:
        self._present: set[Visitor] = set()

    @contextlib.contextmanager
    def present(self, visitor: Visitor) -> Iterator[None]:
        self._present.add(visitor)
        try:
            yield
        finally:
            self._present.discard(visitor)

    def dismiss(
        self, session: str, *, subject: str | None = None, credential: str | None = None, tunnel: str | None = None
    ) -> int:
        """Close what is open in a session: everything, or what one subject or one credential opened, or what goes
        through one tunnel. Returns how many connections that were."""
        found = [
            each
            for each in self._present
            if each.session == session
            and (subject is None or each.subject == subject)
            and (credential is None or credential in (each.credential, each.via))
            and (tunnel is None or each.tunnel == tunnel)
        ]
        for each in found:
            if not each.over.done():
                each.over.set_result(None)
        return len(found)
