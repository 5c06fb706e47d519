"""Who has a connection open through the gateway, so that it can be closed when they lose the right to it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from holdfast.api.errors import Forbidden, HoldfastError, NotFound, Unauthorized
from holdfast.api.session.gateway import NewTunnel, Role
from holdfast.gateway.credentials.cookies import CookieRow
from holdfast.gateway.record import GatewayRecord

_HINT: Final = "ask for a new link to this session"


@dataclass(frozen=True, slots=True, eq=False)
class Visitor:
    """Somebody who makes a request."""

    session: str
    epoch: str
    """The epoch of the session in which they came."""
    subject: str
    role: Role
    credential: str
    """The digest of the token or the cookie."""
    via: tuple[str, ...] = ()
    """The digests of the credentials that it came from, the first one first."""
    cookie: CookieRow | None = None
    """None if it was a token."""
    tunnel: NewTunnel | None = None
    """The tunnel that they use."""
    over: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    """Done when they lose the right to be here."""

    @property
    def credentials(self) -> tuple[str, ...]:
        """Everything that they are here by. If one of them is revoked, they have to leave."""
        return (*self.via, self.credential)

    def check_not_over(self) -> None:
        """Raises if they have lost the right to be here."""
        if self.over.done():
            raise Unauthorized("this session is no longer open to you", hint=_HINT)


def refusal_of(visitor: Visitor, record: GatewayRecord) -> HoldfastError | None:
    """Returns why a visitor may not be here, or not as what they came, or None. Pure."""
    if not record.allows(visitor.epoch, visitor.credentials):
        return Unauthorized("this token or cookie was revoked", hint=_HINT)
    role = record.members.get(visitor.subject)
    if role is None:
        return Forbidden(f"{visitor.subject[:80]!r} is not a member of this session", hint="ask its owner for a link")
    if role is not visitor.role:
        return Forbidden(f"{visitor.subject[:80]!r} has another role now: {role.value}", hint="open this again")
    if visitor.tunnel is not None:
        tunnel = record.tunnels.get(visitor.tunnel.name)
        if tunnel is None or tunnel.port != visitor.tunnel.port:
            return NotFound(f"tunnel {visitor.tunnel.name} of this session was changed or deleted")
    return None


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

    def all(self) -> list[Visitor]:
        return list(self._present)

    def review(self, session: str, record: GatewayRecord) -> None:
        """Close what is open in a session and may no longer be, after its record has changed."""
        for each in self._present:
            if each.session == session and not each.over.done() and refusal_of(each, record) is not None:
                each.over.set_result(None)
