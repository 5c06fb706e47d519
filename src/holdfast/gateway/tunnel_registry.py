"""Registers, lists and deletes tunnels of sessions. They are on the session's thread, so followers see each change."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.api.errors import NotFound
from holdfast.api.gateway import NewTunnel, Tunnel
from holdfast.gateway.hosts import SessionHosts
from holdfast.gateway.internal_api import InternalRequest, InternalRoute
from holdfast.gateway.record import TUNNELS, GatewayRecord
from holdfast.gateway.records import Records
from holdfast.gateway.sessions import SessionView
from holdfast.gateway.tunnels import Tunnels, host_label, parse_tunnel, with_tunnel
from holdfast.gateway.visitors import Visitors


class TunnelRegistry:
    """The tunnels of all sessions."""

    def __init__(self, records: Records, hosts: SessionHosts, visitors: Visitors) -> None:
        self._records = records
        self._hosts = hosts
        self._visitors = visitors

    async def list(self, session: SessionView) -> list[Tunnel]:
        record = await self._records.get(session.thread)
        return [self._shown(session.id, each) for each in record.tunnels.values()]

    async def register(self, session: SessionView, wanted: Mapping[str, Any]) -> Tunnel:
        """Add a tunnel, or replace the one of the same name. Raises if its name or port is not allowed."""
        new = parse_tunnel(dict(wanted))

        def compose(record: GatewayRecord) -> dict[str, Any] | None:
            tunnels = with_tunnel(record.tunnels, new)
            return None if tunnels == record.tunnels else self._entry(session.id, tunnels)

        self._visitors.review(session.id, await self._records.change(session.thread, compose))
        return self._shown(session.id, new)

    async def delete(self, session: SessionView, name: str) -> None:
        """Remove a tunnel, and close what is open through it. Raises `NotFound`."""

        def compose(record: GatewayRecord) -> dict[str, Any]:
            if name not in record.tunnels:
                raise NotFound(f"session {session.id} has no tunnel {name[:80]!r}")
            rest = {each: tunnel for each, tunnel in record.tunnels.items() if each != name}
            return self._entry(session.id, rest)

        self._visitors.review(session.id, await self._records.change(session.thread, compose))

    def internal_routes(self) -> tuple[InternalRoute, ...]:
        return (
            InternalRoute("GET", "/api/tunnels", self._answer_list),
            InternalRoute("POST", "/api/tunnels", self._answer_register),
            InternalRoute("DELETE", "/api/tunnels/{name}", self._answer_delete),
        )

    async def _answer_list(self, request: InternalRequest) -> dict[str, Any]:
        return {"tunnels": [each.to_json() for each in await self.list(request.session)]}

    async def _answer_register(self, request: InternalRequest) -> dict[str, Any]:
        return {"ok": True, "tunnel": (await self.register(request.session, request.body)).to_json()}

    async def _answer_delete(self, request: InternalRequest) -> dict[str, Any]:
        await self.delete(request.session, request.path["name"])
        return {"ok": True}

    def _entry(self, session: str, tunnels: Tunnels) -> dict[str, Any]:
        return {"type": TUNNELS, "tunnels": [self._shown(session, each).to_json() for each in tunnels.values()]}

    def _shown(self, session: str, tunnel: NewTunnel) -> Tunnel:
        return Tunnel(
            name=tunnel.name,
            port=tunnel.port,
            protocol=tunnel.protocol,
            path=f"/t/{tunnel.name}/",
            url=f"{self._hosts.origin(session, host_label(tunnel.name))}/",
        )
