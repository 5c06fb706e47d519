"""Who may use a session: checks tokens and cookies, issues them, and revokes them."""

from __future__ import annotations

import functools
import secrets
from collections.abc import Callable
from typing import Any, Final

from holdfast.api.errors import Conflict, Forbidden, InvalidRequest, NotFound, Unauthorized
from holdfast.api.gateway import MAX_MEMBERS, Role
from holdfast.gateway import tokens
from holdfast.gateway.cookies import Cookies
from holdfast.gateway.record import MEMBER, REVOKED, GatewayRecord
from holdfast.gateway.records import Records
from holdfast.gateway.sessions import SessionView
from holdfast.gateway.tickets import UsedTickets
from holdfast.gateway.visitors import Visitor, Visitors

TICKET_SECONDS: Final = 60
"""How long a browser may take from the session's origin to that of a tunnel."""
_MOST_REVOKED: Final = 1000


class GatewayAccess:
    """The credentials of sessions. A subject has the role that the session's thread says now."""

    def __init__(
        self, secret: bytes, records: Records, cookies: Cookies, visitors: Visitors, clock: Callable[[], int]
    ) -> None:
        self.records = records
        self.cookies = cookies
        self.visitors = visitors
        self._clock = clock
        self._key: Callable[[str, int], bytes] = functools.lru_cache(maxsize=512)(
            functools.partial(tokens.session_key, secret)
        )
        self._ticket_secret = secrets.token_bytes(32)
        """Of this process alone: it does not know which tickets were used before its start."""
        self._used = UsedTickets()

    # --- checking ---

    async def by_token(self, session: SessionView, token: str) -> Visitor:
        """Raises `Unauthorized`."""
        record = await self.records.get(session.thread)
        visitor, _ = self._check(record, session, token, self._key(session.id, record.generation))
        return visitor

    async def by_ticket(self, session: SessionView, ticket: str, tunnel: str) -> Visitor:
        """`tunnel` is the label of the tunnel whose origin the ticket is for. The ticket is used up. Raises
        `Unauthorized`."""
        record = await self.records.get(session.thread)
        key = tokens.session_key(self._ticket_secret, session.id, record.generation, tunnel)
        visitor, expires = self._check(record, session, ticket, key)
        if not self._used.use(visitor.credential, expires, self._clock() / 1000):
            raise Unauthorized("this way to a tunnel was used before", hint="open the tunnel from its session again")
        return visitor

    def _check(self, record: GatewayRecord, session: SessionView, token: str, key: bytes) -> tuple[Visitor, int]:
        """Returns whose a token is, and when it expires. Raises `Unauthorized`."""
        claims = tokens.verify(token, key, session.id, self._clock() / 1000)
        name = tokens.digest(token)
        if name in record.revoked:
            raise Unauthorized("this token was revoked", hint="ask for a new link to this session")
        if claims.via is not None and claims.via in record.revoked:
            raise Unauthorized("this token was revoked", hint="ask for a new link to this session")
        role = _role(record, claims.subject)
        return Visitor(session.id, claims.subject, role, name, claims.via or name), claims.expires

    async def by_cookies(self, session: SessionView, values: list[str], tunnel: str | None = None) -> Visitor | None:
        """Returns who has one of these cookies, or None."""
        record = await self.records.get(session.thread)
        for value in values:
            row = await self.cookies.find(value, place(session.id, tunnel), record.generation)
            if row is not None and row.session == session.id:
                return Visitor(session.id, row.subject, _role(record, row.subject), row.digest, row.via, row)
        return None

    # --- issuing ---

    async def issue_token(self, session: SessionView, subject: str, seconds: int) -> tuple[str, int]:
        """Returns a token and when it expires, in seconds. Raises if the subject is not a member."""
        record = await self.records.get(session.thread)
        _role(record, subject)
        claims = tokens.Claims(subject, self._clock() // 1000 + seconds)
        return tokens.issue(self._key(session.id, record.generation), session.id, claims), claims.expires

    async def issue_ticket(self, session: SessionView, visitor: Visitor, tunnel: str) -> str:
        """Returns a token that takes a visitor of the session to the origin of a tunnel."""
        record = await self.records.get(session.thread)
        claims = tokens.Claims(visitor.subject, self._clock() // 1000 + TICKET_SECONDS, visitor.via)
        key = tokens.session_key(self._ticket_secret, session.id, record.generation, tunnel)
        return tokens.issue(key, session.id, claims)

    async def issue_cookie(self, session: SessionView, visitor: Visitor, tunnel: str | None = None) -> str:
        """Returns the value of a new cookie for the origin of the session, or of a tunnel."""
        record = await self.records.get(session.thread)
        where = place(session.id, tunnel)
        return await self.cookies.issue(where, session.id, record.generation, visitor.subject, visitor.via)

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

        before = (await self.records.get(session.thread)).members.get(subject)
        await self.records.change(session.thread, compose)
        if before is not role:
            self.visitors.dismiss(session.id, subject=subject)

    async def remove_member(self, session: SessionView, subject: str) -> None:
        def compose(record: GatewayRecord) -> dict[str, Any]:
            if subject not in record.members:
                raise NotFound(f"{subject[:80]!r} is not a member of session {session.id}")
            return {"type": MEMBER, "subject": subject, "role": None}

        await self.records.change(session.thread, compose)
        self.visitors.dismiss(session.id, subject=subject)

    # --- revoking ---

    async def revoke_all(self, session: SessionView) -> None:
        """Make all tokens and cookies of a session invalid, and close what is open."""

        def compose(record: GatewayRecord) -> dict[str, Any]:
            return {"type": REVOKED, "generation": record.generation + 1}

        await self.records.change(session.thread, compose)
        await self.cookies.revoke_session(session.id)
        self.visitors.dismiss(session.id)

    async def revoke(self, session: SessionView, credential: str) -> None:
        """Make one token or cookie invalid, and close what is open with it. Raises `NotFound` if it is neither."""
        name = tokens.digest(credential)
        if not tokens.looks_like_token(credential):
            if not await self.cookies.revoke(session.id, credential):
                raise NotFound("this is neither a token nor a cookie of this session")
            self.visitors.dismiss(session.id, credential=name)
            return
        record = await self.records.get(session.thread)
        key = self._key(session.id, record.generation)
        try:
            claims = tokens.verify(credential, key, session.id, self._clock() / 1000)
        except Unauthorized:
            raise NotFound("this is not a valid token of this session") from None

        def compose(record: GatewayRecord) -> dict[str, Any]:
            if len(record.revoked) >= _MOST_REVOKED:
                raise Conflict("too many single tokens are revoked: revoke all credentials of the session")
            return {"type": REVOKED, "token": name, "until": claims.expires}

        await self.records.change(session.thread, compose)
        await self.cookies.revoke_via(session.id, name)
        self.visitors.dismiss(session.id, credential=name)


def place(session: str, tunnel: str | None) -> str:
    """Names the origin that a cookie is for."""
    return session if tunnel is None else f"{tunnel}--{session}"


def _role(record: GatewayRecord, subject: str) -> Role:
    role = record.members.get(subject)
    if role is None:
        raise Forbidden(f"{subject[:80]!r} is not a member of this session", hint="ask its owner for a link")
    return role
