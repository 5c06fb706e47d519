"""Faults that the counterpart of Modal's API commits when told to: what a cloud does to its callers on a bad day."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Final

from grpclib import GRPCError, Status
from grpclib.server import Stream
from modal_proto import api_pb2

FOREVER: Final = 1 << 30


@dataclass(slots=True)
class Fault:
    """What happens to the next calls of one method. Names are those of the wire, such as `SandboxCreateV2`; a pattern
    such as `Sandbox*` stands for several.
    """

    method: str
    times: int = 1
    status: Status | None = None
    """The call is refused with this status."""
    retry_after: float | None = None
    """With RESOURCE_EXHAUSTED: what the refusal says about when to come back."""
    seconds: float = 0.0
    """The call takes this much longer."""
    answers_first: bool = False
    """The call does its work, and is refused then."""
    cut_after: int | None = None
    """The connection is cut after so many answers of a stream, together with all other calls on it."""


class Faults:
    """The faults that are still to come, in order."""

    def __init__(self) -> None:
        self._waiting: list[Fault] = []
        self.committed: list[str] = []
        """The methods that were struck."""

    def add(self, fault: Fault) -> None:
        self._waiting.append(fault)

    def clear(self) -> None:
        self._waiting.clear()

    def take(self, method: str) -> Fault | None:
        """Returns the fault for this call, if there is one."""
        for fault in self._waiting:
            if fnmatchcase(method, fault.method) and fault.times > 0:
                fault.times -= 1
                self.committed.append(method)
                return fault
        return None


async def begin(fault: Fault | None) -> None:
    if fault is not None and fault.seconds:
        await asyncio.sleep(fault.seconds)
    if fault is not None and not fault.answers_first:
        refuse(fault)


def refuse(fault: Fault | None) -> None:
    """Raises the refusal of a fault that has one."""
    if fault is not None and fault.status is not None:
        raise GRPCError(fault.status, f"{fault.method} was told to fail", list(_details(fault)))


def _details(fault: Fault) -> Iterable[Any]:
    if fault.retry_after is not None:
        yield api_pb2.RPCRetryPolicy(retry_after_secs=fault.retry_after)


def cut(stream: Stream[Any, Any]) -> None:
    """Cut the connection that a call came on."""
    stream._stream._transport.abort()
