"""Calls of a box to its host are carried out once, however often they arrive."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast.api.errors.interpreters import KernelLost, KernelUnreachable
from holdfast.interpreter.kernel import host_calls
from holdfast.interpreter.kernel.host_calls import Answer, HostCalls, refusal

pytestmark = pytest.mark.anyio


class Connection:
    """Takes answers, and may be broken."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, bytes]] = []
        self.broken: Exception | None = None
        self.tried = asyncio.Event()

    async def send(self, document: dict[str, Any], content: bytes) -> None:
        self.tried.set()
        if self.broken is not None:
            raise self.broken
        self.sent.append((document["call"], content or document["message"].encode()))

    async def until_sent(self, count: int) -> None:
        async with asyncio.timeout(240):
            while len(self.sent) < count:
                self.tried.clear()
                await self.tried.wait()


class Work:
    """What carries a call out, when told."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.may_end = asyncio.Event()
        self.began = 0
        self.cancelled = False

    async def __call__(self) -> Answer:
        self.began += 1
        try:
            await self.may_end.wait()
        except asyncio.CancelledError:
            self.cancelled = True
            raise
        return self.answer


OK = Answer({"ok": True}, b"42")


@pytest.mark.parametrize("answer", [OK, refusal("ValueError", "no")])
async def test_a_call_that_is_repeated_gets_the_same_answer_or_error(answer: Answer) -> None:
    connection, work = Connection(), Work(answer)
    calls = HostCalls(connection.send)
    calls.take("c-1", work)
    await asyncio.sleep(0)
    calls.take("c-1", work)  # while it is carried out
    work.may_end.set()
    await connection.until_sent(1)
    calls.take("c-1", work)  # after its answer
    await connection.until_sent(2)
    assert work.began == 1
    assert len(set(connection.sent)) == 1


async def test_an_answer_that_did_not_get_through_is_sent_when_the_call_is_repeated() -> None:
    connection, work = Connection(), Work(OK)
    calls = HostCalls(connection.send)
    connection.broken = KernelUnreachable("broken")
    calls.take("c-1", work)
    work.may_end.set()
    await connection.tried.wait()
    connection.broken = None
    calls.take("c-1", work)
    await connection.until_sent(1)
    assert (work.began, connection.sent) == (1, [("c-1", b"42")])


async def test_an_answer_to_a_box_that_is_lost_meanwhile_raises_nothing_that_nobody_awaits() -> None:
    """The execution itself raises why: asyncio would print a traceback of the call beside it."""
    connection, work = Connection(), Work(OK)
    calls = HostCalls(connection.send)
    calls.take("c-1", work)
    [call] = calls._underway.values()
    connection.broken = KernelLost("the box is gone")
    work.may_end.set()
    await asyncio.wait((call,), timeout=240)
    calls.take("c-1", work)
    [sending] = calls._sending
    await asyncio.wait((sending,), timeout=240)
    assert (call.exception(), sending.exception(), connection.sent) == (None, None, [])


async def test_answers_that_are_kept_are_bounded_and_no_call_is_carried_out_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(host_calls, "_KEPT_BYTES", 10_000)
    connection, work = Connection(), Work(Answer({"ok": True}, b"x" * 6000))
    work.may_end.set()
    calls = HostCalls(connection.send)
    for number in range(4):
        calls.take(f"c-{number}", work)
        await connection.until_sent(number + 1)
    assert calls._size <= 10_000
    calls.take("c-0", work)
    await connection.until_sent(5)
    assert b"carried out before, and its result is no longer kept" in connection.sent[-1][1]
    assert work.began == 4


async def test_a_call_that_is_cancelled_is_not_answered() -> None:
    connection, work = Connection(), Work(OK)
    calls = HostCalls(connection.send)
    calls.take("c-1", work)
    await asyncio.sleep(0)
    calls.cancel("c-1")
    await calls.end()
    assert (work.cancelled, calls.underway, connection.sent) == (True, 0, [])
