"""Links to ports of boxes that have an origin of their own: programs may keep nothing but their host and port."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast.server.wire.box_hosts import BoxHosts
from holdfast.server.wire.origins import is_loopback
from holdfast.server.wire.preview import TOKEN
from holdfast.server.wire.preview_addresses import NoAddress, PreviewAddresses

if TYPE_CHECKING:
    from starlette.requests import HTTPConnection


@dataclass(frozen=True, slots=True)
class PreviewLinks:
    """A name below the operator's domain, if there is one. Otherwise an address for callers on this machine, and a path
    of this server for those on others."""

    hosts: BoxHosts
    addresses: PreviewAddresses

    async def link(self, caller: HTTPConnection, box: str, port: int, token: str | None = None) -> str:
        """The URL of a port for the caller of a request. With a token, it is all that a visitor needs."""
        if (url := self.hosts.url_below(box, port, token)) is not None:
            return url
        host = caller.headers.get("host") or "localhost"
        if _is_on_this_machine(caller.client.host if caller.client else "", host):
            try:
                return (await self.addresses.open(box, port, token)).url
            except NoAddress:
                pass  # such as on a system where 127.0.0.1 is the only address of this machine
        place = f"{caller.url.scheme}://{host}/v1/boxes/{box}/ports/{port}"
        return place if token is None else f"{place}/?{TOKEN}={token}"

    async def reopen(self, box: str, port: int, token: str | None) -> None:
        """Serve a link again that an earlier server gave to a caller on this machine."""
        if self.hosts.preview_url is None:
            await self.addresses.open(box, port, token)

    def close_box(self, box: str) -> None:
        self.addresses.close_box(box)


def _is_on_this_machine(peer: str, host: str) -> bool:
    """Whether a caller is on this machine, by its address and by what it calls us: a reverse proxy is here, too, but
    its callers use another name."""
    name = host.partition("]")[0] + "]" if host.startswith("[") else host.partition(":")[0]
    return is_loopback(peer) and is_loopback(name)
