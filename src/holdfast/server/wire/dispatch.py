"""The outermost ASGI app: sends requests to ports of boxes or to the API."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from holdfast.server.lazy import Lazy
from holdfast.server.wire.ports import Ports

if TYPE_CHECKING:
    from holdfast.server.wire.port_relay import PortRelay


class Dispatch:
    """Decides by host and path alone.

    The relay is created for the first request to a port, so that the start does not wait for its modules. Requests to
    the API wait until that is loaded.
    """

    def __init__(self, api: Lazy[Any], ports: Ports, make_relay: Callable[[], PortRelay]) -> None:
        self._api = api
        self.ports = ports
        self._make_relay = make_relay

    @functools.cached_property
    def relay(self) -> PortRelay:
        return self._make_relay()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and self.ports.find(scope["headers"], scope["raw_path"]) is not None:
            await self.relay(scope, receive, send)
        else:
            await (await self._api.get())(scope, receive, send)
