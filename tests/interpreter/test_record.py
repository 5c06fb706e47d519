"""A record never makes anybody wait, loses nothing in silence, and replays what happened."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import pytest

from holdfast.api.errors.interpreters import RecordUnwritten
from holdfast.interpreter.record import PendingEntry, QueuedRecord, encode_entry
from holdfast.interpreter.replay import replay

pytestmark = pytest.mark.anyio


class Thread:
    """A thread in memory, whose disk can be held up or broken."""

    def __init__(self) -> None:
        self.batches: list[list[dict[str, Any]]] = []
        self.open = asyncio.Event()
        self.open.set()
        self.written = asyncio.Event()
        self.errors: list[Exception] = []
        self.attempts = 0

    async def write(self, noted: Sequence[PendingEntry]) -> None:
        self.attempts += 1
        await self.open.wait()
        if self.errors:
            raise self.errors.pop(0)
        known = {entry["id"] for entry in self.entries}
        self.batches.append([json.loads(each.data) for each in noted if each.id not in known])
        self.written.set()

    async def read(self, types: Sequence[str]) -> AsyncIterator[Mapping[str, Any]]:
        for entry in self.entries:
            if not types or entry["payload"]["type"] in types:
                yield entry

    @property
    def entries(self) -> list[dict[str, Any]]:
        return [entry for batch in self.batches for entry in batch]

    @property
    def payloads(self) -> list[dict[str, Any]]:
        return [entry["payload"] for entry in self.entries]


class Final(Exception):
    hint = "make another"


@pytest.fixture
async def thread() -> Thread:
    return Thread()


def record_of(thread: Thread, **options: Any) -> QueuedRecord:
    return QueuedRecord(
        "t-1", thread.write, thread.read, is_final=lambda error: isinstance(error, Final), clock=lambda: 7, **options
    )


async def test_what_is_noted_comes_in_order_and_in_few_batches(thread: Thread) -> None:
    record = record_of(thread)
    thread.open.clear()
    for number in range(1200):
        record.note({"type": "interpreter.call", "number": number})
    thread.open.set()
    await record.flush()
    assert [each["number"] for each in thread.payloads] == list(range(1200))
    assert len(thread.batches) <= 4
    assert {entry["ts"] for entry in thread.entries} == {7}
    assert [each async for each in record.entries(["interpreter.call"])] == thread.entries
    await record.close()
    await record.close()


async def test_flushing_nothing_waits_for_nothing(thread: Thread) -> None:
    record = record_of(thread)
    await record.flush()
    assert thread.attempts == 0
    await record.close()


async def test_what_fails_is_tried_again_with_the_same_ids(thread: Thread) -> None:
    record = record_of(thread)
    thread.errors = [ConnectionError("away"), ConnectionError("away")]
    record.note({"type": "interpreter.started"})
    await record.flush()
    assert [each["type"] for each in thread.payloads] == ["interpreter.started"]
    assert thread.attempts == 3
    await record.close()


async def test_a_flush_that_gets_nowhere_says_so_and_the_record_goes_on(thread: Thread) -> None:
    record = record_of(thread, patience=0.01)
    thread.open.clear()
    record.note({"type": "interpreter.started"})
    with pytest.raises(RecordUnwritten, match="1 entries of thread t-1 are not written"):
        await record.flush()
    thread.open.set()
    await thread.written.wait()
    await record.flush()
    await record.close()


async def test_what_was_waited_for_in_vain_is_not_waited_for_again_at_the_end(
    thread: Thread, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = record_of(thread, patience=0.01)
    thread.open.clear()
    record.note({"type": "interpreter.started"})
    with pytest.raises(RecordUnwritten):
        await record.flush()
    monkeypatch.setattr(record, "_patience", 3600)
    await asyncio.wait_for(record.close(), 30)


async def test_a_thread_that_is_gone_ends_the_record_for_good(thread: Thread) -> None:
    record = record_of(thread)
    thread.errors = [Final("deleted")]
    record.note({"type": "interpreter.started"})
    with pytest.raises(RecordUnwritten, match="deleted") as raised:
        await record.flush()
    assert raised.value.hint == "make another"
    record.note({"type": "interpreter.ended"})
    with pytest.raises(RecordUnwritten, match="2 entries"):
        await record.flush()
    assert thread.attempts == 1
    await record.close()


async def test_what_no_longer_fits_is_counted_on_the_thread(thread: Thread) -> None:
    record = record_of(thread, most_bytes=300)
    thread.open.clear()
    for number in range(10):
        record.note({"type": "interpreter.call", "number": number})
    thread.open.set()
    await record.flush()
    record.note({"type": "interpreter.ended"})
    await record.flush()
    kinds = [each["type"] for each in thread.payloads]
    kept = kinds.count("interpreter.call")
    assert kinds == ["interpreter.call"] * kept + ["interpreter.gap", "interpreter.ended"]
    assert replay(thread.entries).missing == 10 - kept > 0
    await record.close()


async def test_an_entry_that_is_too_large_is_cut_and_says_so(thread: Thread) -> None:
    record = record_of(thread)
    record.note({"type": "interpreter.execution", "id": "x-1", "ok": True, "code": "x" * 2_000_000})
    await record.flush()
    (payload,) = thread.payloads
    assert (payload["id"], payload["ok"], payload["cut"]) == ("x-1", True, True)
    assert "code" not in payload
    await record.close()


@pytest.mark.parametrize(
    ("value", "as_told"),
    [
        (float("nan"), None),
        (1 << 80, 1 << 80),
        ("\ud800", "?"),
        ({1: "one"}, {"1": "one"}),
        (b"bytes", "b'bytes'"),
        ((1, [2.5, float("inf")]), [1, [2.5, None]]),
    ],
)
def test_whatever_a_box_sends_becomes_json(value: Any, as_told: Any) -> None:
    assert json.loads(encode_entry({"value": value})) == {"value": as_told}
    deep: Any = 1
    for _ in range(5000):
        deep = [deep]
    json.loads(encode_entry({"value": [value, deep]}))
    json.loads(encode_entry({"value": 1 << 200_000}))


def entry(kind: str, ts: int = 0, **payload: Any) -> dict[str, Any]:
    return {"id": f"e-{ts}", "ts": ts, "payload": {"type": f"interpreter.{kind}", **payload}}


def test_the_thread_replays_what_happened() -> None:
    usage = {"input_tokens": 10, "output_tokens": 2, "cost": 0.5}
    told = replay(
        [
            {"id": "e-0", "ts": 0, "payload": {"type": "signal.thread.created"}},
            entry("started", 1, box="b-1"),
            entry("workspace", 2, transition="created"),
            entry("call", 3, id="c-1", execution="x-1", name="llm_query", status="ok", seconds=0.25, usage=usage),
            entry("execution", 4, id="x-1", code="llm_query('?')", ok=True, seconds=0.5),
            entry("execution", 5, id="x-2", code="SUBMIT(a=1)", ok=True, seconds=0.1, submitted={"a": 1}),
            entry("ended", 6),
            entry("started", 7, box="b-1"),
            entry("state", 8, what="lost"),
            entry("call", 9, id="c-2", execution="x-3", name="look", status="ok", usage={"cost": "much"}),
        ]
    )
    assert told.started is not None
    assert (told.starts, told.started["box"], told.ended) == (2, "b-1", None)
    assert [(each.id, each.code, each.ok) for each in told.executions] == [
        ("x-1", "llm_query('?')", True),
        ("x-2", "SUBMIT(a=1)", True),
        ("x-3", None, None),
    ]
    assert [[call.name for call in each.calls] for each in told.executions] == [["llm_query"], [], ["look"]]
    assert (told.input_tokens, told.output_tokens, told.cost, told.calls) == (10, 2, 0.5, 2)
    assert told.submitted == {"a": 1}
    assert told.workspace is not None
    assert told.workspace["transition"] == "created"
    assert [each["what"] for each in told.states] == ["lost"]


def test_a_thread_with_nothing_of_an_interpreter_replays_as_nothing() -> None:
    told = replay([{"id": "e-0", "ts": 0, "payload": {"type": "chat", "text": "hi"}}, {"id": "x"}])
    assert (told.starts, told.executions, told.submitted, told.workspace) == (0, (), None, None)
