"""Ports of boxes as sites of the proxy: `Ports` decides who may visit one, and the box service connects to it."""

from __future__ import annotations

import contextlib
import functools
import html
from collections.abc import AsyncIterator, Callable

from holdfast.api.box.box import Box
from holdfast.boxes.service.boxes import Boxes
from holdfast.gateway.proxy.headers import Header
from holdfast.gateway.proxy.relay import ANSWER_SECONDS, CONNECT_SECONDS, Receive, Relay, Scope, Send, connect
from holdfast.gateway.proxy.site import Lease, Reply, Site, Visit
from holdfast.server.lazy import Lazy
from holdfast.server.shutdown import Shutdown
from holdfast.server.telemetry.metrics import Metrics
from holdfast.server.wire.box_hosts import PortTarget
from holdfast.server.wire.ports import Exchange, KeyVisit, Ports


class PortSite(Site):
    """A port of a box."""

    def __init__(self, ports: Ports, target: PortTarget, boxes: Lazy[Boxes], connect_seconds: float) -> None:
        self._ports = ports
        self._target = target
        self._boxes = boxes
        self._connect_seconds = connect_seconds

    async def admit(
        self, method: str, query: bytes, headers: list[Header], *, scheme: str, upgrade: bool
    ) -> Visit | Reply:
        visit = await self._ports.admit(self._target, method, query, headers, scheme=scheme)
        return _reply(visit) if isinstance(visit, Exchange) else visit

    @contextlib.asynccontextmanager
    async def connected(self, visit: Visit, *, may_reuse: bool = False) -> AsyncIterator[Lease]:
        boxes = await self._boxes.get()
        id, port = self._target.box, self._target.port
        with boxes.working(id):
            box: Box
            async with (
                self._watched(visit),
                await boxes.open(id) as box,
                await connect(box, port, self._connect_seconds) as connection,
            ):
                yield Lease(connection)

    def _watched(self, visit: Visit) -> contextlib.AbstractAsyncContextManager[None]:
        """Ends a visit by an API key when the key loses the right to it."""
        if not isinstance(visit, KeyVisit) or visit.grant is None or visit.over is None:
            return contextlib.nullcontext()
        return self._ports.access.watched(visit.credential, visit.grant, functools.partial(visit.over.set_result, None))


class PortRelay:
    """Relays requests to ports of boxes."""

    def __init__(
        self,
        ports: Ports,
        boxes: Lazy[Boxes],
        shutdown: Shutdown,
        metrics: Metrics,
        next_request_id: Callable[[], str],
        *,
        connect_seconds: float = CONNECT_SECONDS,
        answer_seconds: float = ANSWER_SECONDS,
    ) -> None:
        self.ports = ports
        self._boxes = boxes
        self._connect_seconds = connect_seconds
        self.relay = Relay(next_request_id, metrics.count, lambda: shutdown.begun, answer_seconds=answer_seconds)

    def site(self, target: PortTarget) -> PortSite:
        return PortSite(self.ports, target, self._boxes, self._connect_seconds)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        target = self.ports.find(scope["headers"], scope["raw_path"], scope["state"].get("preview"))
        assert target is not None
        await self.relay.serve(self.site(target), scope, receive, send)


def _reply(exchange: Exchange) -> Reply:
    if not exchange.cookie:
        return Reply(308, [(b"location", exchange.location)])
    # Not a redirect: after a link from another site, a browser would not send the new cookie.
    place = html.escape(exchange.location.decode("latin-1"), quote=True)
    page = f'<!doctype html><meta http-equiv="refresh" content="0;url={place}"><title>One moment</title>'
    headers = [
        (b"content-type", b"text/html; charset=latin-1"),
        (b"set-cookie", exchange.cookie),
        (b"cache-control", b"no-store"),
        (b"referrer-policy", b"no-referrer"),
        (b"content-security-policy", b"default-src 'none'"),
    ]
    return Reply(200, headers, page.encode("latin-1"))
