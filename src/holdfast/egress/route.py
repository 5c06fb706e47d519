"""How a connection of a box gets to its target: judged by name, resolved, judged by address, and connected.

The address that was judged is the one that is connected to, so a later answer of a name server changes nothing.
"""

from __future__ import annotations

import contextlib
from typing import Final, Protocol

from holdfast.egress import addresses
from holdfast.egress.box_access import BoxAccess
from holdfast.egress.http_head import BadHead
from holdfast.egress.outbound import CannotConnect, CannotResolve, NeverReached
from holdfast.egress.policy import Target
from holdfast.egress.sockets import Ended, Meter, Socket
from holdfast.egress.upstream_proxy import UpstreamProxy, tunnel_problem, tunnel_request
from holdfast.time_limit import time_limit

_MOST_ADDRESSES: Final = 6
"""The most addresses tried for one name."""
_NEXT_SECONDS: Final = 4.0


class Denied(Exception):
    """The policy or the address forbids the request."""


class Failed(Exception):
    """The request was allowed but failed."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


class Note(Protocol):
    def __call__(self, allowed: bool, why: str, *, failed: bool = False) -> None:
        """Record a decision."""


class Route:
    """Opens connections for one connection of a box. What is read from them is counted by `meter`."""

    def __init__(self, access: BoxAccess, meter: Meter, note: Note) -> None:
        self._access = access
        self._limits = access.limits
        self._meter = meter
        self._note = note

    async def reach(self, target: Target) -> tuple[Socket, str]:
        """Returns a connection to the target and the rule that allows it. Raises `Denied` and `Failed`."""
        ruling = self._access.judge(target)
        if not ruling.allowed:
            raise Denied(ruling.why)
        if self._access.upstream is not None and not self._access.private.names(target.host):
            return await self._reach_through(self._access.upstream, target, ruling.why), ruling.why
        # Resolved only now, because a DNS query itself sends data to the name server of that name.
        found = await self._addresses(target)
        refused = [(address, self._refusal(target.host, address)) for address in found]
        usable = [address for address, why in refused if why is None]
        if not usable:
            raise Denied(self._never_reached(target.host, refused[0][0]))
        problem: Exception | None = None
        try:
            async with time_limit(self._limits.connect):
                tried = usable[:_MOST_ADDRESSES]
                for address in tried:
                    # An address that does not answer must not use up the time of the others.
                    patience = None if address == tried[-1] else _NEXT_SECONDS
                    try:
                        async with time_limit(patience):
                            connected = await self._access.connector.connect(address, target.port)
                        return Socket(connected, self._meter), ruling.why
                    except NeverReached as error:
                        raise Denied(f"{error}, which no box reaches") from None
                    except CannotConnect as error:
                        problem = error
                    except TimeoutError:
                        problem = CannotConnect(f"{address} did not answer")
        except TimeoutError:
            problem = problem or CannotConnect(f"no answer within {self._limits.connect:g} s")
        self._note(True, f"{ruling.why}; {problem}", failed=True)
        raise Failed(502, f"cannot connect to {target}: {problem}")

    def _refusal(self, host: str, address: str) -> str | None:
        return None if self._access.private.admits(host, address) else addresses.refusal(address)

    def _never_reached(self, host: str, address: str) -> str:
        name = "" if address == host else f"{host} is at {address}: "
        unless = f" unless the server is started with --allow-private {host}" if addresses.is_private(address) else ""
        return f"{name}{address} is {addresses.refusal(address)}, which no box reaches{unless}"

    async def _reach_through(self, proxy: UpstreamProxy, target: Target, rule: str) -> Socket:
        """Connects through the proxy of this network, which resolves the name. Refuses names of the local network."""
        if addresses.is_local_name(target.host):
            raise Denied(f"{target.host} is a name of this network, which no box reaches")
        if addresses.refusal(target.host) not in (None, "no address"):
            raise Denied(self._never_reached(target.host, target.host))
        problem = f"no answer within {self._limits.connect:g} s"
        with contextlib.suppress(TimeoutError):
            async with time_limit(self._limits.connect):
                try:
                    connected, credential = await proxy.connect()
                    wire = Socket(connected, self._meter)
                    try:
                        await wire.write(tunnel_request(target.host, target.port, credential))
                        problem = tunnel_problem(await wire.head(self._limits.head_size)) or ""
                    except BaseException:
                        wire.close()
                        raise
                    if not problem:
                        return wire
                    wire.close()
                except (CannotConnect, BadHead, Ended) as error:
                    problem = str(error)
        self._note(True, f"{rule}; {problem}", failed=True)
        raise Failed(502, f"cannot connect to {target}: {problem}")

    async def _addresses(self, target: Target) -> list[str]:
        if addresses.refusal(target.host) != "no address":
            return [target.host]
        try:
            async with time_limit(self._limits.resolve):
                found = list(await self._access.resolve(target.host, target.port))
            if not found:
                raise CannotResolve(f"{target.host} has no address")
        except CannotResolve as error:
            problem = str(error)
        except TimeoutError:
            problem = f"{target.host} was not resolved within {self._limits.resolve:g} s"
        else:
            return found
        self._note(True, problem, failed=True)
        raise Failed(502, problem)
