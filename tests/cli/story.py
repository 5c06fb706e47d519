"""A thread as runs leave it: an agent repairs a program, its box is killed half-way, it goes on elsewhere."""

from __future__ import annotations

from typing import Any

from holdfast import Entry

BEGAN = 1_790_000_000_000
HOSTILE = (
    "\x1b]0;owned\x07\x1b[2J\x1b[31mred\x1b[0m \x9b5n \x1b]52;c;ZXZpbA==\x1b\\ \u202egnp.exe "
    "<img src=x onerror=alert(1)><script>window.hurt=1</script>"
)


class Story:
    """Numbers entries and lets time pass between them."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self._now = BEGAN

    def add(self, kind: str, after: int = 50, **fields: Any) -> Entry:
        self._now += after
        entry = Entry(f"e-{len(self.entries)}", self._now, {"type": kind, **fields})
        self.entries.append(entry)
        return entry


def repaired() -> list[Entry]:
    story = Story()
    add = story.add
    first, second = "r-1", "r-2"
    add("signal.thread.created", 0, title="Repair the discount")
    add("chat", role="user", text="The tests fail. Find out why, and repair it.")
    add(
        "signal.run.started",
        1,
        run=first,
        epoch=1,
        agent="pi",
        model="scripted/demo",
        prompts=["e-1"],
        provider="local",
    )
    add("signal.run.box", 38, run=first, box="b-7fq2", provider="local", how="created", files="workspace", ms=38,
        isolation="bubblewrap, seccomp, no network")  # fmt: skip
    add("signal.run.provisioned", 12, run=first, agent="pi", version="0.87.1", ms=12, session="new")
    add("signal.run.runner", 3, run=first, epoch=2, process="p-1")
    add("pi.session", 700, session="s-1", record={})
    for piece in ("I'll run ", "the tests ", "first."):
        add("pi.delta", 30, message="m-1", text=piece)
    command = {"command": "python3 -m unittest -q"}
    add("pi.assistant", message="m-1", text="I'll run the tests first.", thinking="Where to begin?\nWith the tests.",
        calls=[{"id": "c-1", "name": "bash", "arguments": command}],
        usage={"input": 900, "output": 20, "cost": 0.0})  # fmt: skip
    add("pi.call", 5, call="c-1", name="bash", arguments=command)
    add("signal.run.heartbeat", 300, run=first)
    failure = (
        "F...\n======\nFAIL: test_once\nRan 4 tests in 0.001s\n\n"
        "\x1b[31mFAILED\x1b[0m (failures=1)\n\nCommand exited with code 1"
    )
    add("pi.tool", 500, call="c-1", name="bash", arguments=command, result=failure, status="error", ms=812, record={})
    add("pi.assistant", 400, message="m-2", text="The failure is in price.py: the discount is applied twice.", calls=[],
        usage={"input": 1100, "output": 40, "cost": 0.0}, record={})  # fmt: skip
    edit = {"path": "price.py", "edits": [{"oldText": "a\n    b\n    c\n", "newText": "a\n    d\n"}]}
    add("pi.call", 5, call="c-2", name="edit", arguments=edit)
    add("pi.tool", 20, call="c-2", name="edit", arguments=edit, result="Edited price.py", status="ok", ms=6, record={})
    add("signal.run.finished", 300, run=first, status="orphaned", ms=2400, by="reconciler",
        error={"code": "box_gone", "message": "box b-7fq2 is gone", "hint": "holdfast resume t-1"})  # fmt: skip
    add("signal.run.started", 200, run=second, epoch=3, agent="pi", model="scripted/demo", prompts=[], resumes=first,
        provider="local")  # fmt: skip
    add("signal.run.box", 41, run=second, box="b-9mx1", provider="local", how="restored", files="kept", ms=41)
    add("signal.run.provisioned", 12, run=second, agent="pi", version="0.87.1", ms=12, session="rebuilt")
    add("signal.run.runner", 3, run=second, epoch=4, process="p-1")
    add("pi.retry", 700, attempt=1, message="429 Too Many Requests", status=429)
    add("pi.call", 5, call="c-3", name="bash", arguments=command)
    add("pi.tool", 800, call="c-3", name="bash", arguments=command, result="Ran 4 tests in 0.001s\n\nOK", status="ok",
        ms=799, record={})  # fmt: skip
    add("pi.assistant", 100, message="m-3", text="Fixed: the discount is now applied once.", calls=[],
        usage={"input": 1300, "output": 12, "cost": 0.0}, record={})  # fmt: skip
    add("signal.run.finished", 20, run=second, status="completed", exit_code=0, ms=2100, by="runner",
        usage={"input": 3300, "output": 72, "cacheRead": 0, "cacheWrite": 0, "cost": 0.0})  # fmt: skip
    return story.entries


def hostile() -> list[Entry]:
    """The same kinds of entries, written by somebody who wants the reader's terminal or browser."""
    story = Story()
    add = story.add
    evil = HOSTILE
    add("chat", role="user", text=evil)
    add("chat", role=evil, text=evil)
    add("signal.run.started", run="r-1", epoch=1, agent=evil, model=evil, prompts=[], provider=evil, version=evil)
    add("signal.run.box", run="r-1", box=evil, provider=evil, how=evil, files=evil, ms="38", isolation=evil)
    add("signal.run.provisioned", run="r-1", agent=evil, version=evil, ms=1e308, session=evil)
    add("evil.call", call=evil, name=evil, arguments={"command": evil})
    add("evil.tool", call=evil, name=evil, arguments={"command": evil}, result=evil, status=evil, ms=-(10**17))
    add("evil.tool", call="2", name=evil, arguments={"path": evil, "content": evil}, result=evil, status="ok")
    add("evil.tool", call="3", name=evil, arguments={"path": evil, "oldText": evil, "newText": evil * 2}, status="ok")
    add("evil.tool", call="4", name=evil, arguments={evil: evil}, result={"not": "text"}, status="error")
    add("evil.tool", call="5", name=evil, arguments=f"*** Begin Patch\n*** Update File: {evil}\n+{evil}", status="ok")
    add("evil.tool", call=["6"], name=7, arguments=[evil], result=None, status=None)
    add("evil.assistant", message=evil, text=f"{evil}\n```{evil}\n{evil}\n```\n**{evil}**", thinking=evil, calls=evil,
        usage=evil, partial=True)  # fmt: skip
    add("evil.retry", attempt=evil, message=evil)
    add("evil.notice", level=evil, text=evil)
    add("evil.compaction", summary=evil)
    add("evil.event", record=evil)
    add("evil.delta", message=evil, text=evil, thinking=evil)
    add("signal.run.cancel_requested", run="r-1", interrupt=evil, by=evil)
    add("signal.run.finished", run="r-1", status=evil, error={"code": evil, "message": evil, "hint": evil},
        usage={"cost": "much"}, ms=evil)  # fmt: skip
    add("signal.run.started", run="__proto__", agent="constructor", model="toString", resumes="constructor")
    add("signal.run.box", run="__proto__", box="valueOf", files="__proto__")
    add("signal.run.provisioned", run="__proto__", session="constructor")
    add("proto.tool", call="__proto__", name="constructor", arguments={"__proto__": 1})
    add("signal.run.finished", run="__proto__", status="constructor")
    add("signal.run.started", run=["r-2"], agent=None, model=None)
    add("signal.run.finished", run={"r": 2}, status="orphaned", error=evil)
    return story.entries
