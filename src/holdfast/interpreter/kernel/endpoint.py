"""The address of a kernel in a box, and requests to its fork server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from holdfast.api.box.box import Box
from holdfast.api.box.process import Connection
from holdfast.api.errors import HoldfastError
from holdfast.api.errors.boxes import BoxGone, BoxNotFound, BoxStopped, ConnectRefused, Unsupported
from holdfast.api.errors.interpreters import KernelLost, KernelUnreachable
from holdfast.guest.kernel.protocol import InvalidMessage, Unpacker, pack
from holdfast.time_limit import time_limit

CONNECT_SECONDS: Final = 30.0
BROKEN: Final = (HoldfastError, OSError)
"""What a broken connection raises. Between us and the box there may be a server, a cloud and its network."""


@dataclass(frozen=True, slots=True)
class KernelEndpoint:
    box: Box
    port: int
    token: str
    orphan_seconds: float | None = None
    """The kernel ends after this many seconds without a host. Sent with every attach, because the process that started
    the kernel may have wanted something else."""

    async def connect(self) -> Connection:
        try:
            async with time_limit(CONNECT_SECONDS):
                return await self.box.connect(self.port)
        except Unsupported:
            raise  # the provider of the box cannot have interpreters
        except (ConnectRefused, BoxGone, BoxNotFound, BoxStopped) as error:
            raise KernelLost(f"the kernel of box {self.box.id} has ended: {error.message}") from None
        except (*BROKEN, TimeoutError) as error:
            raise KernelUnreachable(
                f"the kernel of box {self.box.id} cannot be reached: {error}",
                hint=f"holdfast box diagnose {self.box.id}",
            ) from None

    async def signal(self, context: str, number: int) -> bool:
        """Send a signal to a context. Returns whether the context is alive."""
        return bool((await self.ask({"t": "signal", "context": context, "number": number}))["living"])

    async def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        async with await self.connect() as connection:
            await connection.write(pack({**request, "token": self.token}))
            unpacker = Unpacker(0)
            try:
                async with time_limit(CONNECT_SECONDS):
                    while data := await connection.read():
                        for answer, _ in unpacker.take(data):
                            if answer["t"] == "refused":
                                raise KernelUnreachable(f"the kernel refused: {answer.get('why')}")
                            return answer
            except KernelUnreachable:
                raise
            except (InvalidMessage, TimeoutError, *BROKEN) as error:
                raise KernelUnreachable(f"the kernel of box {self.box.id} does not answer: {error}") from None
        raise KernelUnreachable(f"the kernel of box {self.box.id} hung up")
