"""A box that is reached over a stream, which carries requests to its guest and connections to its ports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Final, Protocol

from holdfast.api.box.box import BoxInfo, Power, Wake
from holdfast.api.box.files import Files
from holdfast.api.box.network import NetworkPolicy
from holdfast.api.box.process import Connection
from holdfast.api.errors.boxes import BoxUnreachable, ConnectRefused
from holdfast.providers.diagnosis import Check
from holdfast.providers.guest_box import GuestBox, Lifecycle, ResourceUsage, check_port
from holdfast.providers.guest_protocol import GuestRefused
from holdfast.providers.stream.files import StreamFiles
from holdfast.providers.stream.guest_client import Call, StreamGuestClient, WakingGuestClient
from holdfast.providers.stream.process import StreamProcesses
from holdfast.providers.stream.stream_egress import StreamEgress

_CONNECT_SECONDS: Final = 10.0


class PortConnection(Connection):
    """A connection in the box, carried over the stream."""

    def __init__(self, call: Call) -> None:
        self._call = call

    async def read(self, limit: int = 1 << 16) -> bytes:
        return await self._call.streams[0].read(limit)

    async def write(self, data: bytes) -> None:
        try:
            await self._call.streams[0].write(data)
        except BrokenPipeError:
            raise BoxUnreachable("the box closed the connection") from None

    async def close_write(self) -> None:
        self._call.streams[0].finish()

    async def close(self) -> None:
        self._call.close()


class StreamBox(GuestBox):
    """Subclasses implement `power`, and `usage` and `disk` if possible.

    The guest client belongs to the provider; a handle never closes it.
    """

    def __init__(
        self,
        info: BoxInfo,
        lifecycle: Lifecycle,
        guest: StreamGuestClient,
        wake: Wake | None = None,
        *,
        environment: Mapping[str, str],
        workdir: str | None = None,
    ) -> None:
        """`environment` is that of every command in the box. The variables of the spec override it."""
        self.guest = guest
        self.environment = environment
        self.workdir = info.spec.workdir if workdir is None else workdir
        self._waking = WakingGuestClient(guest, wake)
        super().__init__(info, lifecycle, guest, StreamProcesses(self._waking), StreamProcesses(guest))

    @cached_property
    def files(self) -> Files:  # type: ignore[override]  # made when used: most handles are for one command
        return StreamFiles(self._waking, self.workdir)

    def own_environment(self) -> Mapping[str, str]:
        return self.environment

    def own_workdir(self) -> str:
        return self.workdir

    async def connect(self, port: int) -> Connection:
        check_port(port)
        call = await self._waking.call({"op": "connect", "port": port})
        try:
            await call.answer(_CONNECT_SECONDS)
        except GuestRefused:
            call.close()
            raise ConnectRefused(f"nothing listens on port {port} in box {self.id}") from None
        except BaseException:
            call.close()
            raise
        return PortConnection(call)

    def _connection_checks(self) -> Sequence[tuple[str, Check]]:
        return ("box", self._ping_box), ("stream", self._ping_stream)

    async def _ping_box(self) -> str:
        return (await self.power()).value

    async def _ping_stream(self) -> str:
        known = self.guest.alive
        await self.guest.open()
        return "open" if known else "dialled"


class CloudLifecycle(Lifecycle, Protocol):
    """Changes the boxes at a cloud or a daemon, and reports on them."""

    async def power(self, id: str) -> Power:
        """Raises `BoxGone`."""


class CloudBox(StreamBox):
    """A box at a cloud or a daemon. Its egress, if it has one, goes over its stream."""

    def __init__(
        self,
        info: BoxInfo,
        lifecycle: CloudLifecycle,
        guest: StreamGuestClient,
        egress: StreamEgress,
        wake: Wake | None = None,
        *,
        environment: Mapping[str, str],
        workdir: str | None = None,
    ) -> None:
        """`environment` is that of commands in the machine, without the variables of the egress."""
        self._machine_environment = environment
        self._egress = egress
        self._cloud = lifecycle
        whole = {**environment, **egress.environment(info.spec.network)}
        super().__init__(info, lifecycle, guest, wake, environment=whole, workdir=workdir)

    async def power(self) -> Power:
        return await self._cloud.power(self.id)

    async def set_network(self, policy: NetworkPolicy) -> None:
        await super().set_network(policy)
        self.environment = {**self._machine_environment, **self._egress.environment(policy)}

    async def usage(self) -> ResourceUsage:
        traffic = self._egress.traffic(self.id)
        return ResourceUsage() if traffic is None else ResourceUsage(sent=traffic.sent, received=traffic.received)
