"""What the sweep wakes up for: ends of runs and queued prompts, by what entries are and not by what they contain."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from holdfast.runs.reconcile.sweep import DueThreads, RunChange, run_changes
from holdfast.threads.protocol.framing import frame

END = {"type": "signal.run.finished", "run": "r-1", "status": "completed"}
QUEUED = {"type": "chat", "role": "user", "text": "and this", "queued": True}


@pytest.mark.parametrize(
    ("payloads", "changes"),
    [
        ([END], {RunChange.ENDED}),
        ([QUEUED], {RunChange.QUEUED}),
        ([{"type": "pi.delta", "text": "a"}, END, QUEUED], {RunChange.ENDED, RunChange.QUEUED}),
        ([{"type": "pi.assistant", "text": "a run ends with signal.run.finished"}], set()),
        ([{"type": "pi.tool", "result": orjson.dumps(END).decode()}], set()),
        ([{"type": "pi.tool", "record": {"payload": END, "queued": True}}], set()),
        ([{"type": "chat", "text": 'it is "queued": true'}], set()),
        ([{"type": "chat", "text": "x", "queued": "yes"}], set()),
        ([{"type": "pi.assistant", "queued": True}], set()),
        ([], set()),
    ],
)
def test_only_an_entry_that_is_an_end_or_a_queued_prompt_is_news(
    payloads: list[dict[str, Any]], changes: set[RunChange]
) -> None:
    entries = [{"id": f"e-{number}", "ts": 1, "payload": payload} for number, payload in enumerate(payloads)]
    assert run_changes(frame([orjson.dumps(entry) for entry in entries])) == changes


@pytest.mark.anyio
async def test_threads_that_are_due_are_taken_once() -> None:
    due = DueThreads()
    due.add("t-1", "t-2")
    due.add("t-1")
    assert await due.take(until=float("inf")) == {"t-1", "t-2"}
    assert await due.take(until=0) == set()
