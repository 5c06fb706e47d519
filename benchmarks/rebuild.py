"""Measures how long it takes to make an agent's session again from a thread of 100,000 entries, read off the disk.

    .holdfast/dev-*/bin/python benchmarks/rebuild.py [--quick] [--only AGENT] [--json | --markdown]

What is read and rebuilt is what a launch in a fresh box reads and rebuilds. docs/benchmarks.md keeps the figures.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import uvloop
from measuring import Samples, add_folder, add_rounds, folder_of_boxes, in_rounds, options, print_results
from report import Goal, Result, Row

from holdfast.api.ids import now_ms
from holdfast.api.thread.entries import Entry
from holdfast.harnesses.harness import ModelAccess, Place, Task
from holdfast.harnesses.registry import find
from holdfast.runs.launch.steps import rebuild
from holdfast.runs.run_log import RunLog
from holdfast.storage.sqlite.streams import SqliteStreams
from holdfast.storage.sqlite.thread_rows import SqliteThreadRows
from holdfast.threads.access.seals import Seals
from holdfast.threads.projection import Projection
from holdfast.threads.service import Threads

_BATCH: Final = 1000
_SAID: Final = "word " * 50
_RESULT: Final = "line\n" * 60
_TOLD: Final = tuple(json.dumps(text)[1:-1].encode() for text in (_SAID, _RESULT))


def pi(n: int) -> Iterator[dict[str, Any]]:
    call = {"type": "toolCall", "id": f"c{n}", "name": "bash", "arguments": {"command": "ls"}}
    record = {
        "role": "assistant", "content": [{"type": "text", "text": _SAID}, call], "api": "a", "provider": "p",
        "model": "m", "usage": {"totalTokens": 1}, "stopReason": "toolUse", "timestamp": n,
    }  # fmt: skip
    yield {"type": "pi.assistant", "message": f"m{n}", "text": _SAID, "calls": [], "record": record}
    content = [{"type": "text", "text": _RESULT}]
    given = {"role": "toolResult", "toolCallId": f"c{n}", "toolName": "bash", "content": content, "isError": False}
    yield {"type": "pi.tool", "call": f"c{n}", "name": "bash", "arguments": {}, "result": _RESULT, "status": "ok",
           "record": given}  # fmt: skip


def claude(n: int) -> Iterator[dict[str, Any]]:
    use = {"type": "tool_use", "id": f"c{n}", "name": "Bash", "input": {"command": "ls"}}
    message = {"id": f"msg{n}", "role": "assistant", "content": [{"type": "text", "text": _SAID}, use]}
    record = {"type": "assistant", "uuid": f"a{n}", "message": message}
    yield {"type": "claude.assistant", "message": f"msg{n}", "text": _SAID, "calls": [], "record": record}
    content = [{"type": "tool_result", "tool_use_id": f"c{n}", "content": _RESULT}]
    given = {"type": "user", "uuid": f"u{n}", "message": {"role": "user", "content": content}}
    yield {"type": "claude.tool", "call": f"c{n}", "name": "Bash", "arguments": {}, "result": _RESULT, "status": "ok",
           "record": given}  # fmt: skip


def codex(n: int) -> Iterator[dict[str, Any]]:
    items = [
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": _SAID}]},
        {"type": "function_call", "call_id": f"c{n}", "name": "exec_command", "arguments": '{"cmd":"ls"}'},
    ]
    yield {"type": "codex.assistant", "message": f"m{n}", "text": _SAID, "calls": [], "record": {"items": items}}
    given = {"type": "function_call_output", "call_id": f"c{n}", "output": _RESULT}
    yield {"type": "codex.tool", "call": f"c{n}", "name": "exec_command", "arguments": {}, "result": _RESULT,
           "status": "ok", "record": given}  # fmt: skip


def opencode(n: int) -> Iterator[dict[str, Any]]:
    message, part = f"msg_{n:012x}abcdefghijklmn", f"prt_{n:012x}abcdefghijklm"
    info = {"id": message, "role": "assistant", "sessionID": "ses_old", "time": {"created": n}}
    words = {"id": f"{part}0", "type": "text", "text": _SAID, "messageID": message}
    yield {"type": "opencode.assistant", "message": message, "text": _SAID, "calls": [],
           "record": {"info": info, "parts": [words]}}  # fmt: skip
    state = {"status": "completed", "input": {}, "output": _RESULT, "title": "", "metadata": {}, "time": {}}
    given = {"id": f"{part}1", "type": "tool", "callID": f"c{n}", "tool": "bash", "state": state, "messageID": message}
    yield {"type": "opencode.tool", "call": f"c{n}", "name": "bash", "result": _RESULT, "status": "ok",
           "record": given}  # fmt: skip


_TURNS: Final[dict[str, Callable[[int], Iterator[dict[str, Any]]]]] = {
    "pi": pi, "claude": claude, "codex": codex, "opencode": opencode
}  # fmt: skip
ROWS: Final = tuple(
    Row(name, f"{find(name).title}: 100,000 entries read and rebuilt", "ms", Goal("under", 2000, "under 2 s"))
    for name in _TURNS
)


async def measure(entries: int, rounds: int, only: list[str], folder: Path) -> list[Result]:
    samples = Samples()
    store = await SqliteStreams.open(folder / "data.db")
    seals = Seals(b"of a benchmark")
    projection = Projection(store, SqliteThreadRows(store), seals)
    threads = Threads(store, projection)
    log = RunLog(store, threads, seals, now_ms)
    access = ModelAccess(find("pi").apis[0], "http://127.0.0.1:3128/model", "token", "m")
    task = Task("go on", Place("/workspace", "/state", "/program", "/node"), access)
    names = only or list(_TURNS)
    for name in names:
        await threads.create(id=f"t-{name}")
        batch: list[Entry] = []
        for n in range(entries // 2):
            batch += [log.entry(payload) for payload in _TURNS[name](n)]
            if len(batch) >= _BATCH:
                await log.append(f"t-{name}", *batch)
                batch = []
    for name in in_rounds(names, rounds):
        began, at_work = time.perf_counter(), time.process_time()
        rebuilt = await rebuild(log, f"t-{name}", "r-next", find(name), task)
        took, worked = time.perf_counter() - began, time.process_time() - at_work
        assert rebuilt is not None
        (file,) = rebuilt.files.values()
        assert all(file.count(text) == entries // 2 for text in _TOLD)
        samples.add(name, "holdfast", took * 1000, cpu=worked * 1000)
    await projection.close()
    await store.close()
    return samples.results(ROWS)


def main() -> None:
    parser = options(__doc__, ROWS)
    add_rounds(parser)
    add_folder(parser)
    given = parser.parse_args()
    entries, rounds = (2_000, 1) if given.quick else (100_000, given.rounds or 5)
    with folder_of_boxes(given.dir) as folder:
        results = uvloop.run(measure(entries, rounds, given.only, folder))
    print_results(given, results, "–")


if __name__ == "__main__":
    main()
