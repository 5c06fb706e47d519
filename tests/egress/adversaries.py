"""Resolvers and connectors that behave badly, and one that refuses everything."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence

from holdfast.testing.outside import LoopbackConnector


class ShiftingName:
    """A resolver that gives another answer each time, the last one for ever: the trick of DNS rebinding."""

    def __init__(self, *answers: Sequence[str]) -> None:
        self._answers = list(answers)
        self.asked: list[str] = []

    async def resolve(self, host: str, port: int) -> Sequence[str]:
        self.asked.append(host)
        return self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]


class RefusingConnector(LoopbackConnector):
    """Connects to nothing, and remembers what it was asked for."""

    def __init__(self) -> None:
        super().__init__({})


class NeverConnector:
    """Waits until it is cancelled: a server that never answers."""

    async def connect(self, address: str, port: int) -> socket.socket:
        await asyncio.Event().wait()
        raise AssertionError("unreachable")
