"""REST: the gateway of a session: links, members, tunnels, and what revokes them."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Query

from holdfast.api.errors import Forbidden, NotFound
from holdfast.api.session.gateway import (
    Link,
    Member,
    MemberList,
    NewLink,
    NewTunnel,
    Revocation,
    Role,
    SessionId,
    Subject,
    Tunnel,
    TunnelList,
    TunnelName,
)
from holdfast.gateway.sessions import SessionView
from holdfast.server.routes.requests import BOX_ERRORS
from holdfast.server.routes.services import Administrator, Use
from holdfast.server.session.gateway import SessionGateway

router = APIRouter(prefix="/v1/sessions", responses=BOX_ERRORS, tags=["gateway"])


async def _gateway(services: Use, _: Administrator) -> SessionGateway:
    return await services.session_gateway.get()


UseGateway = Annotated[SessionGateway, Depends(_gateway)]


async def _session(id: SessionId, gateway: UseGateway) -> SessionView:
    session = await gateway.app.sessions.find(id)
    if session is None:
        raise NotFound(f"there is no session {id}", hint="list threads: holdfast thread list")
    return session


UseSession = Annotated[SessionView, Depends(_session)]


@router.post("/{id}/links", status_code=201)
async def create_link(wanted: NewLink, session: UseSession, gateway: UseGateway, caller: Administrator) -> Link:
    """Create a link that opens the session in a browser. A caller who names nobody becomes its owner."""
    access = gateway.app.access
    subject = wanted.subject or caller.user
    members = (await access.records.get(session.thread)).members
    role = wanted.role or members.get(subject)
    if role is None and wanted.subject is None:
        role = Role.OWNER
    if role is None:
        raise Forbidden(f"{subject!r} is not a member of session {session.id}", hint="name a role for them")
    await access.set_member(session, subject, role)
    token, expires = await access.issue_token(session, subject, wanted.seconds, caller.as_issuer)
    url = f"{gateway.app.hosts.origin(session.id)}/?token={token}"
    return Link(url=url, token=token, subject=subject, role=role, expires_at=expires * 1000)


@router.get("/{id}/members")
async def list_members(session: UseSession, gateway: UseGateway) -> MemberList:
    """List who may open the session, and what they may do."""
    members = (await gateway.app.access.records.get(session.thread)).members
    return MemberList(members=tuple(Member(subject=subject, role=role) for subject, role in members.items()))


@router.put("/{id}/members")
async def set_member(member: Member, session: UseSession, gateway: UseGateway) -> Member:
    """Give somebody a role. It holds at once, also for what they have open."""
    await gateway.app.access.set_member(session, member.subject, member.role)
    return member


@router.delete("/{id}/members", status_code=204)
async def remove_member(subject: Annotated[Subject, Query()], session: UseSession, gateway: UseGateway) -> None:
    """Take somebody's role. What they have open is closed."""
    await gateway.app.access.remove_member(session, subject)


@router.post("/{id}/revoke", status_code=204)
async def revoke(wanted: Revocation, session: UseSession, gateway: UseGateway) -> None:
    """Revoke a token or a cookie, or everything that opens the session. Members keep their roles."""
    if wanted.credential is None:
        await gateway.app.access.revoke_all(session)
    else:
        await gateway.app.access.revoke(session, wanted.credential)


@router.get("/{id}/tunnels")
async def list_tunnels(session: UseSession, gateway: UseGateway) -> TunnelList:
    """List the tunnels of a session, oldest first."""
    return TunnelList(tunnels=tuple(await gateway.tunnels.list(session)))


@router.post("/{id}/tunnels", status_code=201)
async def register_tunnel(wanted: NewTunnel, session: UseSession, gateway: UseGateway) -> Tunnel:
    """Let people reach a port of the session's box by a name. A tunnel of the same name is replaced."""
    return await gateway.tunnels.register(session, wanted.to_json())


@router.delete("/{id}/tunnels/{name}", status_code=204)
async def delete_tunnel(name: TunnelName, session: UseSession, gateway: UseGateway) -> None:
    """Delete a tunnel. What is open through it is closed."""
    await gateway.tunnels.delete(session, name)
