"""Registers, lists and deletes tunnels of sessions. They are on the session's thread, so followers see each change."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

from holdfast.api.errors import NotFound
from holdfast.api.session.gateway import NewTunnel, Tunnel
from holdfast.change_limit import ChangeLimit
from holdfast.gateway.hosts import SessionHosts
from holdfast.gateway.internal_api import InternalRequest, InternalRoute
from holdfast.gateway.record import TUNNEL, GatewayRecord
from holdfast.gateway.records import Records
from holdfast.gateway.sessions import SessionView
from holdfast.gateway.tunnel.tunnels import host_label, parse_tunnel, with_tunnel
from holdfast.gateway.visitors import Visitors


class TunnelRegistry:
    """The tunnels of all sessions."""

    def __init__(self, records: Records, hosts: SessionHosts, visitors: Visitors, limit_inside: ChangeLimit) -> None:
        """`limit_inside` is for changes that come from the box."""
        self._records = records
        self._hosts = hosts
        self._visitors = visitors
        self._limit_inside = limit_inside

    async def list(self, session: SessionView) -> list[Tunnel]:
        record = await self._records.get(session.thread)
        return [self._shown(session.id, each) for each in record.tunnels.values()]

    async def register(
        self, session: SessionView, wanted: Mapping[str, Any], before_change: Callable[[], None] = lambda: None
    ) -> Tunnel:
        """Add a tunnel, or replace the one of the same name. Raises if its name or port is not allowed.

        `before_change` is called if there is something to change. It may raise.
        """
        new = parse_tunnel(dict(wanted))

        def compose(record: GatewayRecord) -> dict[str, Any] | None:
            if with_tunnel(record.tunnels, new) == record.tunnels:
                return None
            before_change()
            return {"type": TUNNEL, "name": new.name, "tunnel": self._shown(session.id, new).to_json()}

        self._visitors.review(session.id, await self._records.change(session.thread, compose))
        return self._shown(session.id, new)

    async def delete(self, session: SessionView, name: str, before_change: Callable[[], None] = lambda: None) -> None:
        """Remove a tunnel, and close what is open through it. Raises `NotFound`."""

        def compose(record: GatewayRecord) -> dict[str, Any]:
            if name not in record.tunnels:
                raise NotFound(f"session {session.id} has no tunnel {name[:80]!r}")
            before_change()
            return {"type": TUNNEL, "name": name, "tunnel": None}

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
        tunnel = await self.register(request.session, request.body, self._spend(request))
        return {"ok": True, "tunnel": tunnel.to_json()}

    async def _answer_delete(self, request: InternalRequest) -> dict[str, Any]:
        await self.delete(request.session, request.path["name"], self._spend(request))
        return {"ok": True}

    def _spend(self, request: InternalRequest) -> Callable[[], None]:
        return functools.partial(self._limit_inside.spend, request.session.id)

    def _shown(self, session: str, tunnel: NewTunnel) -> Tunnel:
        return Tunnel(
            name=tunnel.name,
            port=tunnel.port,
            protocol=tunnel.protocol,
            path=f"/t/{tunnel.name}/",
            url=f"{self._hosts.origin(session, host_label(tunnel.name))}/",
        )
