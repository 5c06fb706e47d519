"""The gateways of sessions: links, members and tunnels. Needs an API key."""

from __future__ import annotations

from urllib.parse import quote

from holdfast.api.errors import NotFound
from holdfast.api.session.gateway import (
    LINK_SECONDS,
    Link,
    Member,
    MemberList,
    NewLink,
    NewTunnel,
    Revocation,
    Role,
    Tunnel,
    TunnelList,
    TunnelProtocol,
)
from holdfast.client.connection import ServerConnection, encode_json


class SessionGateways:
    """The gateways of all sessions of one server: `client.gateway`. A session is named by the id of its thread."""

    def __init__(self, connection: ServerConnection) -> None:
        self._connection = connection

    async def link(
        self, session: str, subject: str | None = None, *, role: Role | None = None, seconds: int = LINK_SECONDS
    ) -> Link:
        """Returns a link that opens a session in a browser. Without a subject it is for the caller, who owns it."""
        body = encode_json(NewLink(subject=subject, role=role, seconds=seconds).to_request())
        answer = await self._connection.ask("POST", _path(session, "links"), body=body)
        return answer.read(Link.from_json)

    async def members(self, session: str) -> list[Member]:
        answer = await self._connection.ask("GET", _path(session, "members"))
        return list(answer.read(MemberList.from_json).members)

    async def set_member(self, session: str, subject: str, role: Role) -> Member:
        """Give somebody a role."""
        body = encode_json(Member(subject=subject, role=role).to_request())
        return (await self._connection.ask("PUT", _path(session, "members"), body=body)).read(Member.from_json)

    async def remove_member(self, session: str, subject: str) -> None:
        """Take somebody's role. What they have open is closed."""
        try:
            await self._connection.ask("DELETE", _path(session, "members"), parameters=[("subject", subject)])
        except NotFound as error:
            if not error.repeated:
                raise

    async def revoke(self, session: str, credential: str | None = None) -> None:
        """Revoke a token or the value of a cookie. Without one, revoke everything that opens the session."""
        body = encode_json(Revocation(credential=credential).to_request())
        await self._connection.ask("POST", _path(session, "revoke"), body=body)

    async def tunnels(self, session: str) -> list[Tunnel]:
        answer = await self._connection.ask("GET", _path(session, "tunnels"))
        return list(answer.read(TunnelList.from_json).tunnels)

    async def register_tunnel(
        self, session: str, name: str, port: int, *, protocol: TunnelProtocol = TunnelProtocol.HTTP
    ) -> Tunnel:
        """Let people reach a port of the session's box by a name."""
        body = encode_json(NewTunnel(name=name, port=port, protocol=protocol).to_request())
        return (await self._connection.ask("POST", _path(session, "tunnels"), body=body)).read(Tunnel.from_json)

    async def delete_tunnel(self, session: str, name: str) -> None:
        try:
            await self._connection.ask("DELETE", _path(session, f"tunnels/{quote(name, safe='')}"))
        except NotFound as error:
            if not error.repeated:
                raise


def _path(session: str, rest: str) -> str:
    return f"/v1/sessions/{quote(session, safe='')}/{rest}"
