"""Calls of code in a box to its host. Each is carried out once, however often it arrives.

A context repeats a call on every new connection until it has the answer. Only this module recognizes repeated calls, so
a handler sees each call once.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

from holdfast.api.errors.interpreters import KernelLost, KernelUnreachable

MOST_AT_ONCE: Final = 256
"""The number of calls of one context that run at the same time."""
_KEPT: Final = 256
"""The number of answers kept for repeated calls."""
_KEPT_BYTES: Final = 64 << 20
_MOST_DROPPED: Final = 10_000
"""The number of calls remembered as answered after their answers were dropped."""


@dataclass(frozen=True, slots=True)
class Answer:
    document: dict[str, Any]
    content: bytes = b""


def refusal(kind: str, message: str, content: bytes = b"") -> Answer:
    """Returns an answer that raises in the box."""
    return Answer({"ok": False, "kind": kind, "message": message}, content)


class HostCalls:
    """Owns the running calls, and the answers that were sent."""

    def __init__(self, send: Callable[[dict[str, Any], bytes], Awaitable[None]]) -> None:
        """`send` raises `KernelUnreachable` if there is no connection: the call is repeated on the next one.

        It raises `KernelLost` if there will be none. The execution that made the call then raises that too.
        """
        self._send = send
        self._underway: dict[str, asyncio.Task[None]] = {}
        self._answers: OrderedDict[str, Answer] = OrderedDict()
        self._size = 0
        self._dropped: OrderedDict[str, None] = OrderedDict()
        self._sending: set[asyncio.Task[None]] = set()

    @property
    def underway(self) -> int:
        """The number of running calls."""
        return len(self._underway)

    def take(self, id: str, carry_out: Callable[[], Awaitable[Answer]]) -> None:
        """Carry out a call that has arrived, unless it is running or answered already."""
        if id in self._underway:
            return  # the answer will be sent when it is ready
        answer = self._answers.get(id)
        if answer is None and id in self._dropped:
            answer = refusal("CallRefused", "this call was carried out before, and its result is no longer kept")
        if answer is None:
            self._underway[id] = asyncio.create_task(self._carry_out(id, carry_out), name=f"call {id}")
        else:
            sending = asyncio.create_task(self._answer(id, answer))
            self._sending.add(sending)
            sending.add_done_callback(self._sending.discard)

    def cancel(self, id: str) -> None:
        """Cancel a call whose result the code no longer needs."""
        if (task := self._underway.get(id)) is not None:
            task.cancel()

    async def end(self) -> None:
        """Cancel running calls and forget the answers. The execution is over, so no call is repeated."""
        await self.drop()
        self.forget()

    async def drop(self) -> None:
        """Cancel running calls."""
        tasks = [*self._underway.values(), *self._sending]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def forget(self) -> None:
        self._answers.clear()
        self._dropped.clear()
        self._size = 0

    async def _carry_out(self, id: str, carry_out: Callable[[], Awaitable[Answer]]) -> None:
        try:
            answer = await carry_out()
            self._keep(id, answer)
        finally:
            self._underway.pop(id, None)
        await self._answer(id, answer)

    async def _answer(self, id: str, answer: Answer) -> None:
        with contextlib.suppress(KernelUnreachable, KernelLost):
            await self._send({"t": "answer", "call": id, **answer.document}, answer.content)

    def _keep(self, id: str, answer: Answer) -> None:
        self._answers[id] = answer
        self._size += len(answer.content)
        while len(self._answers) > _KEPT or self._size > _KEPT_BYTES:
            dropped, old = self._answers.popitem(last=False)
            self._size -= len(old.content)
            self._dropped[dropped] = None
        while len(self._dropped) > _MOST_DROPPED:
            self._dropped.popitem(last=False)
