"""A file that cannot be stored is refused with what is wrong in it, and leaves no thread behind."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.api.errors.runs import InvalidRun
from holdfast.api.run.imports import NewImport
from holdfast.harnesses.pi import Pi
from holdfast.runs.session_import import import_session
from holdfast.runs.thread_import import import_thread

DEEP = "[" * 300 + "]" * 300
VALUES = [(str(10**30), "64-bit"), (r'"\ud800"', "UTF-8"), (DEEP, "Recursion"), (r'{"\ud800": 1}', "UTF-8")]


class NoThreads:
    async def create(self, **_: Any) -> None:
        raise AssertionError("a thread is created")


class Agents:
    def find(self, name: str) -> Pi:
        return Pi()


@pytest.mark.parametrize(("value", "why"), VALUES)
@pytest.mark.parametrize("field", ["usage", "error", "a"])
def test_an_exported_thread_that_cannot_be_stored_creates_nothing(field: str, value: str, why: str) -> None:
    lines = [
        '{"id":"e","ts":1,"payload":{"type":"signal.thread.exported","version":1,"thread":"t-old","title":"t"}}',
        '{"id":"s","ts":1,"payload":{"type":"signal.run.started","run":"r-1","agent":"pi"}}',
        f'{{"id":"f","ts":1,"payload":{{"type":"signal.run.finished","run":"r-1","{field}":{{"code":{value}}}}}}}',
    ]
    session = "\n".join(lines)
    wanted = NewImport(agent="holdfast", session=session)
    log: Any = SimpleNamespace(clock=lambda: 5)
    threads: Any = NoThreads()
    agents: Any = Agents()
    with pytest.raises(InvalidRun, match=f"line 3: the entry cannot be stored: .*{why}"):
        asyncio.run(import_thread(log, threads, agents, wanted, session.encode("utf-8", "replace")))


def test_a_session_that_cannot_be_stored_creates_nothing() -> None:
    call = f'{{"type":"toolCall","id":"c","name":"x","arguments":{{"a":{10**30}}}}}'
    lines = [
        '{"type":"session","version":3,"id":"s","timestamp":"2026-01-01T00:00:00.000Z","cwd":"/x"}',
        '{"type":"message","id":"m1","parentId":null,"timestamp":"2026-01-01T00:00:00.000Z",'
        '"message":{"role":"user","content":"hi"}}',
        '{"type":"message","id":"m2","parentId":"m1","timestamp":"2026-01-01T00:00:00.000Z",'
        f'"message":{{"role":"assistant","content":[{call}]}}}}',
    ]
    session = "\n".join(lines)
    wanted = NewImport(agent="pi", session=session)
    log: Any = SimpleNamespace(clock=lambda: 5)
    threads: Any = NoThreads()
    agents: Any = Agents()
    with pytest.raises(InvalidRun, match=r"entry [0-9]+: the entry cannot be stored: .*64-bit"):
        asyncio.run(import_session(log, threads, agents, wanted, session.encode("utf-8", "replace")))
