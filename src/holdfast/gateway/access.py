"""Who may use a session: checks tokens and cookies, issues them, and revokes them."""

from __future__ import annotations

import contextlib
import functools
import secrets
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

from holdfast.api.errors import Conflict, Forbidden, HoldfastError, InvalidRequest, NotFound, Unauthorized
from holdfast.api.session.gateway import MAX_MEMBERS, Role
from holdfast.gateway.credentials import tokens
from holdfast.gateway.credentials.cookies import IDLE_SECONDS, Cookies
from holdfast.gateway.credentials.issuers import Issuers, mark
from holdfast.gateway.credentials.tickets import UsedTickets
from holdfast.gateway.record import MEMBER, REVOKED, GatewayRecord
from holdfast.gateway.records import Records
from holdfast.gateway.sessions import SessionView
from holdfast.gateway.visitors import Visitor, Visitors, refusal_of
from holdfast.threads.access.credentials import Issuer

TICKET_SECONDS: Final = 60
"""How long a browser may take from the session's origin to that of a tunnel."""
_REMEMBERED_SECONDS: Final = TICKET_SECONDS + IDLE_SECONDS
"""How long a revocation counts after its token has expired: as long as a ticket, and then a cookie that was missed when
they were removed. A cookie that is refused is not renewed."""
_MOST_REVOKED: Final = 1000


class GatewayAccess:
    """The credentials of sessions. A subject has the role that the session's thread says now."""

    def __init__(
        self,
        secret: bytes,
        records: Records,
        cookies: Cookies,
        visitors: Visitors,
        issuers: Issuers,
        clock: Callable[[], int],
    ) -> None:
        self._issuers = issuers
        self.records = records
        self.cookies = cookies
        self.visitors = visitors
        self._clock = clock
        self._key: Callable[[str, str], bytes] = functools.lru_cache(maxsize=512)(
            functools.partial(tokens.session_key, secret)
        )
        self._ticket_secret = secrets.token_bytes(32)
        """Of this process alone: it does not know which tickets were used before its start."""
        self._used = UsedTickets()

    # --- checking ---

    async def by_token(self, session: SessionView, token: str) -> Visitor:
        """Raises `Unauthorized`."""
        record = await self.records.get(session.thread)
        visitor, _ = await self._read(record, session, token, self._key(session.id, record.epoch))
        return visitor

    async def by_ticket(self, session: SessionView, ticket: str, tunnel: str) -> Visitor:
        """`tunnel` is the label of the tunnel whose origin the ticket is for. The ticket is used up. Raises
        `Unauthorized`."""
        record = await self.records.get(session.thread)
        key = tokens.session_key(self._ticket_secret, session.id, record.epoch, tunnel)
        visitor, expires = await self._read(record, session, ticket, key)
        if not self._used.use(visitor.credential, expires, self._clock() / 1000):
            raise Unauthorized("this way to a tunnel was used before", hint="open the tunnel from its session again")
        return visitor

    async def _read(self, record: GatewayRecord, session: SessionView, token: str, key: bytes) -> tuple[Visitor, int]:
        """Returns whose a token is, and when it expires. Raises `Unauthorized`."""
        claims = tokens.verify(token, key, session.id, self._clock() / 1000)
        name = tokens.digest(token)
        if not record.allows(record.epoch, (*claims.via, name)) or not await self._issuers.hold(claims.via):
            raise Unauthorized("this token was revoked", hint="ask for a new link to this session")
        role = _role(record, claims.subject)
        return Visitor(session.id, record.epoch, claims.subject, role, name, claims.via), claims.expires

    async def by_cookies(self, session: SessionView, values: list[str], tunnel: str | None = None) -> Visitor | None:
        """Returns who has one of these cookies, or None."""
        for value in values:
            row = await self.cookies.find(value, place(session.id, tunnel))
            if row is None or row.session != session.id:
                continue
            record = await self.records.get(session.thread)  # not before: there can be many cookies to look up
            if not record.allows(row.epoch, (*row.via, row.digest)) or not await self._issuers.hold(row.via):
                continue
            role = _role(record, row.subject)
            await self.cookies.use(row)
            return Visitor(session.id, row.epoch, row.subject, role, row.digest, row.via, row)
        return None

    async def check(self, session: SessionView, visitor: Visitor) -> GatewayRecord:
        """Returns the session's record. Raises if it no longer lets this visitor in."""
        record = await self.records.get(session.thread)
        if (refusal := refusal_of(visitor, record)) is not None:
            raise refusal
        if not await self._issuers.hold(visitor.via):
            raise Unauthorized("whoever issued this link has lost the right to it", hint="ask for a new link")
        return record

    async def review_issuers(self) -> None:
        """Close what is open by links of issuers that lost the right to them."""
        self._issuers.forget()
        for each in self.visitors.all():
            if not each.over.done() and not await self._issuers.hold(each.via) and not each.over.done():
                each.over.set_result(None)

    @contextlib.asynccontextmanager
    async def present(self, session: SessionView, visitor: Visitor) -> AsyncIterator[None]:
        """Count somebody as here while a connection is open. Raises if they lost the right to it since they came.

        Whoever takes a right away changes the record first, and then closes what is open. So somebody who is counted
        first and checked afterwards is found by one of the two.
        """
        in_use = contextlib.nullcontext() if visitor.cookie is None else self.cookies.in_use(visitor.cookie)
        with self.visitors.present(visitor), in_use:
            await self.check(session, visitor)
            yield

    # --- issuing ---

    async def issue_token(
        self, session: SessionView, subject: str, seconds: int, issuer: Issuer | None = None
    ) -> tuple[str, int]:
        """Returns a token and when it expires, in seconds. It ends with the rights of its issuer. Raises if the subject
        is not a member."""
        record = await self.records.get(session.thread)
        _role(record, subject)
        now = self._clock() // 1000
        via = () if issuer is None else (mark(issuer, now),)
        claims = tokens.Claims(subject, now + seconds, via)
        return tokens.issue(self._key(session.id, record.epoch), session.id, claims), claims.expires

    async def issue_ticket(self, session: SessionView, visitor: Visitor, tunnel: str) -> str:
        """Returns a token that takes a visitor of the session to the origin of a tunnel."""
        await self.check(session, visitor)
        claims = tokens.Claims(visitor.subject, self._clock() // 1000 + TICKET_SECONDS, visitor.credentials)
        key = tokens.session_key(self._ticket_secret, session.id, visitor.epoch, tunnel)
        return tokens.issue(key, session.id, claims)

    async def issue_cookie(self, session: SessionView, visitor: Visitor, tunnel: str | None = None) -> str:
        """Returns the value of a new cookie for the origin of the session, or of a tunnel."""
        where = place(session.id, tunnel)
        value = await self.cookies.issue(where, session.id, visitor.epoch, visitor.subject, visitor.credentials)
        try:
            await self.check(session, visitor)  # what was revoked before it was stored was not removed with the others
        except HoldfastError:
            await self.cookies.remove_tree(session.id, tokens.digest(value))
            raise
        return value

    # --- members ---

    async def set_member(self, session: SessionView, subject: str, role: Role) -> None:
        """Give somebody a role. What they have open with another role is closed."""
        if not tokens.is_subject(subject):
            raise InvalidRequest(f"{subject[:80]!r} does not name anybody: use 1 to 256 printable characters")

        def compose(record: GatewayRecord) -> dict[str, Any] | None:
            if record.members.get(subject) is role:
                return None
            if subject not in record.members and len(record.members) >= MAX_MEMBERS:
                raise Conflict(f"a session has at most {MAX_MEMBERS} members: remove one first")
            return {"type": MEMBER, "subject": subject, "role": role.value}

        self.visitors.review(session.id, await self.records.change(session.thread, compose))

    async def remove_member(self, session: SessionView, subject: str) -> None:
        def compose(record: GatewayRecord) -> dict[str, Any]:
            if subject not in record.members:
                raise NotFound(f"{subject[:80]!r} is not a member of session {session.id}")
            return {"type": MEMBER, "subject": subject, "role": None}

        self.visitors.review(session.id, await self.records.change(session.thread, compose))

    # --- revoking ---

    async def revoke_all(self, session: SessionView) -> None:
        """Make all tokens and cookies of a session invalid, and close what is open."""

        def compose(record: GatewayRecord) -> dict[str, Any]:
            return {"type": REVOKED, "generation": record.generation + 1}

        self.visitors.review(session.id, await self.records.change(session.thread, compose))
        await self.cookies.remove_session(session.id)

    async def revoke(self, session: SessionView, credential: str) -> None:
        """Make one token or cookie invalid with all that came from it, and close what is open with them. It may have
        expired. Raises `NotFound` if it is neither."""
        name, expires = tokens.digest(credential), 0
        if tokens.looks_like_token(credential):
            record = await self.records.get(session.thread)
            try:
                expires = tokens.parse(credential, self._key(session.id, record.epoch), session.id).expires
            except Unauthorized:
                raise NotFound("this is not a token of this session") from None
        elif not await self.cookies.remove_tree(session.id, name):
            raise NotFound("this is neither a token nor a cookie of this session")
        until = max(expires, self._clock() // 1000) + _REMEMBERED_SECONDS

        def compose(record: GatewayRecord) -> dict[str, Any]:
            if len(record.revoked) >= _MOST_REVOKED:
                raise Conflict("too many single credentials are revoked: revoke all credentials of the session")
            return {"type": REVOKED, "token": name, "until": until}

        self.visitors.review(session.id, await self.records.change(session.thread, compose))
        await self.cookies.remove_tree(session.id, name)


def place(session: str, tunnel: str | None) -> str:
    """Names the origin that a cookie is for."""
    return session if tunnel is None else f"{tunnel}--{session}"


def _role(record: GatewayRecord, subject: str) -> Role:
    role = record.members.get(subject)
    if role is None:
        raise Forbidden(f"{subject[:80]!r} is not a member of this session", hint="ask its owner for a link")
    return role
