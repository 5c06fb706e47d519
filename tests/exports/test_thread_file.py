"""An exported thread is read again: what was said and done, and nothing that only its own server could know."""

from __future__ import annotations

import json
from typing import Any

import pytest

from holdfast.api.errors.runs import InvalidRun
from holdfast.api.run.imports import NewImport
from holdfast.api.thread.entries import Entry
from holdfast.exports.thread_file import conversation, entry_line, head_line, is_thread_file, read_thread_file
from holdfast.runs.thread_import import check_agents, compose_entries
from holdfast.threads.access.seals import Seals
from holdfast.threads.rows import ThreadRow, fold
from holdfast.threads.run_events import is_control

NOW = 1_800_000_000_000
OTHER = Seals(b"the key of another home")
OURS = Seals(b"our key")


def entry(id: str, kind: str, ts: int = 5, **fields: Any) -> Entry:
    return Entry(id, ts, {"type": kind, **fields})


def turn(number: int, *, ends: bool = True, agent: str = "pi") -> list[Entry]:
    run = f"r-{agent}{number}"
    return [
        entry(f"c{number}", "chat", text=f"prompt {number}"),
        entry(f"start-{run}", "signal.run.started", run=run, agent=agent, prompts=[f"c{number}"], model="there/model",
              options={"spec": {"env": {"PATH": "/evil"}}, "workspace": "sha256:evil"}),
        entry(f"box-{run}", "signal.run.box", run=run, box="b-someone-elses"),
        entry(f"{run}-1-1", f"{agent.partition(':')[0]}.assistant", text=f"answer {number}"),
        *([entry(f"end-{run}", "signal.run.finished", run=run, status="completed", ms=7)] if ends else []),
    ]  # fmt: skip


def file_of(entries: list[Entry], seals: Seals | None = OTHER) -> bytes:
    sealed = [
        seals.seal("t-there", each) if seals and (is_control(each.payload) or each.type.startswith("signal.")) else each
        for each in entries
    ]
    return head_line("t-there", "A title", NOW) + b"".join(map(entry_line, sealed))


def texts(entries: list[Entry] | tuple[Entry, ...]) -> list[str]:
    return [each.payload["text"] for each in entries if "text" in each.payload]


def imported(data: bytes, run: str = "r-new") -> tuple[list[Entry], ThreadRow]:
    file = read_thread_file(data, NOW)
    numbers = iter(range(100))
    wanted = NewImport(agent="holdfast", session="x", workspace="sha256:" + "0" * 64)
    made = compose_entries(file, wanted, 1, NOW, lambda: f"{run}{next(numbers)}")
    sealed = [OURS.seal("t-here", each) if is_control(each.payload) else each for each in made]
    return made, fold(ThreadRow("t-here", 1), [each.to_json() for each in sealed], OURS)


def test_what_was_said_and_done_is_there_again() -> None:
    told = [*turn(1), *turn(2, agent="codex"), entry("x", "my.own", text="kept", deep={"a": [1]})]
    file = read_thread_file(file_of(told), NOW)
    assert (file.thread, file.title, file.rewound) == ("t-there", "A title", 0)
    made, row = imported(file_of(told))
    kept = [each for each in told if not each.type.startswith("signal.")]
    assert [each for each in made if each in kept] == kept  # the same ids, times and payloads
    assert row.runs.count == 2
    assert list(row.runs.sessions) == ["pi", "codex"]
    assert row.runs.latest is not None
    assert (row.runs.latest.agent, row.runs.latest.prompts, row.runs.latest.ended_by) == ("codex", ("c2",), "import")
    assert made[0].payload == {"type": "signal.thread.imported", "from": "t-there", "entries": 9, "rewound": 0}


@pytest.mark.parametrize("seals", [OTHER, OURS, None])
def test_nothing_that_a_server_acts_on_is_believed(seals: Seals | None) -> None:
    """Not even with a seal of this server, from another thread."""
    hostile = [
        entry("created", "signal.thread.created", title="x", parent="t-parent", labels={"team": "core"}),
        entry("queued", "chat", text="launch me", queued=True, interrupt=True, quiet=False),
        entry("prompt", "chat", text="a prompt of a session", prompt={"id": "p-1"}, session="x", state="queued"),
        *(entry(f"s-{name}", f"signal.session.{name}", box="b-evil") for name in ("created", "slow", "any")),
        entry("archived", "signal.thread.archived"),
        Entry("forked-t-here", 5, {"type": "signal.thread.forked", "from": "t-0", "turn": 1, "snapshot": "s-evil"}),
        entry("d", "signal.thread.delegated", parent="t-p", root="t-p", depth=1, agent="pi", model="", box="own"),
        *turn(1),
        entry("checkpoint-r-pi1", "signal.thread.checkpoint", run="r-pi1", turn=1, offset=9, snapshot="s-evil", size=1),
        entry("m", "signal.model.call", run="r-pi1", model="a/b", status=200, ms=1, input=5, output=5, cost=99.0),
        entry("rp", "signal.thread.reported", run="r-pi1"),
        entry("cr", "signal.run.cancel_requested", run="r-pi1"),
    ]  # fmt: skip
    made, row = imported(file_of(hostile, seals))
    assert not any("seal" in each.payload for each in made)
    ours = ("signal.run.started", "signal.run.finished")
    assert not any(is_control(each.payload) for each in made if each.type not in ours)
    assert "b-evil" not in json.dumps([each.to_json() for each in made])
    assert (row.parent, row.labels, row.archived, row.lineage.fork_of) == (None, {}, False, None)
    assert row.runs.waiting == ()
    assert row.calls == ()
    assert "m" in [each.id for each in made]  # shown, and not counted
    assert row.runs.delegation is None
    run = row.runs.latest
    assert run is not None
    assert (run.run, run.box, run.cancel, run.checkpoint, run.model) == ("r-new1", None, None, None, "")
    assert row.runs.workspace == "sha256:" + "0" * 64
    assert "evil" not in json.dumps(run.options)
    assert "b-someone-elses" not in json.dumps([each.to_json() for each in made])
    assert "launch me" in texts(made)


def test_a_run_that_had_not_ended_ends() -> None:
    _, row = imported(file_of([*turn(1, ends=False), *turn(2, ends=False)]))
    assert row.runs.live is None
    assert row.runs.count == 2
    assert row.runs.latest is not None
    assert row.runs.latest.status == "orphaned"


def test_what_was_rewound_is_left_out() -> None:
    told = [
        *turn(1), *turn(2), entry("w1", "signal.thread.rewound", turn=1), *turn(3), *turn(4),
        entry("w2", "signal.thread.rewound", turn=3), *turn(5),
    ]  # fmt: skip
    assert texts(conversation(told)) == [f"{what} {number}" for number in (1, 3, 5) for what in ("prompt", "answer")]
    file = read_thread_file(file_of(told), NOW)
    assert texts(file.entries) == texts(conversation(told))
    assert file.rewound == 10
    undone = [*told, entry("w3", "signal.thread.rewound", turn=2, undoes=True), *turn(6)]
    assert texts(conversation(undone))[::2] == ["prompt 1", "prompt 2", "prompt 6"]
    none = [*turn(1), entry("w", "signal.thread.rewound", turn=0), *turn(2)]
    assert texts(conversation(none))[-2:] == ["prompt 2", "answer 2"]
    nonsense = [*turn(1), entry("w", "signal.thread.rewound", turn="x"), entry("v", "signal.thread.rewound", turn=99)]
    assert len(texts(conversation(nonsense))) == 2


def test_times_that_are_still_to_come_are_now() -> None:
    file = read_thread_file(entry_line(entry("c", "chat", 253_402_300_799_999, text="x")), NOW)
    assert [each.ts for each in file.entries] == [NOW]


def unstorable(rest: str) -> bytes:
    return b'\n{"id": "a", "ts": 1, "payload": {%b}}\n' % rest.encode()


UNSTORABLE = [
    (unstorable(f'"type": "pi.x", "a": {10**30}'), "Integer exceeds 64-bit range"),
    (unstorable(r'"type": "pi.x", "a": "\ud800"'), "str is not valid UTF-8"),
    (unstorable(r'"type": "signal.run.finished", "usage": {"\ud800": 1}'), "str is not valid UTF-8"),
    (unstorable(r'"type": "signal.run.finished", "error": {"code": "\ud800"}'), "str is not valid UTF-8"),
    (unstorable(r'"type": "signal.run.started", "prompts": ["\ud800"]'), "str is not valid UTF-8"),
    (unstorable(r'"type": "signal.thread.exported", "version": 1, "title": "\ud800"'), "str is not valid UTF-8"),
    (unstorable('"type": "pi.x", "a": ' + "[" * 300 + "]" * 300), "Recursion limit reached"),
    (unstorable('"type": "pi.x", "a": ' + "[" * 240 + "]" * 240), "Recursion limit reached"),
]


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b'{"id": "a", "ts": 1, "payl', "line 1: it is not JSON; is the file cut off"),
        (b"[1]\n", "line 1: an entry must be an object"),
        (b'\n{"ts": 1, "payload": {"type": "chat"}}\n', "line 2: the entry has no id"),
        (b'{"id": "a", "payload": {"type": "chat"}}\n', "the entry has no ts"),
        (b'{"id": "a", "ts": 1, "payload": {"type": "No Type"}}\n', "payload.type"),
        (b'{"id": "a", "ts": 1, "payload": {"type": "signal.thread.exported", "version": 9}}\n', "version 9"),
        (b"[" * 100_000, "not JSON"),
        *((line, f"line 2: the entry cannot be stored: {why}") for line, why in UNSTORABLE),
    ],
)
def test_a_file_that_is_no_thread_is_refused_with_its_line(data: bytes, why: str) -> None:
    with pytest.raises(InvalidRun) as refused:
        read_thread_file(data, NOW)
    assert why in refused.value.message


def test_only_agents_by_name_are_continued() -> None:
    class Agents:
        def find(self, name: str) -> None:
            assert name == "pi"

    check_agents(read_thread_file(file_of(turn(1)), NOW), Agents())  # type: ignore[arg-type]
    with pytest.raises(InvalidRun, match="names a command"):
        check_agents(read_thread_file(file_of(turn(1, agent="acp:rm -rf /")), NOW), Agents())  # type: ignore[arg-type]
    with pytest.raises(InvalidRun, match="no run of an agent"):
        check_agents(read_thread_file(file_of([entry("c", "chat", text="x")]), NOW), Agents())  # type: ignore[arg-type]


def test_a_thread_file_is_recognised() -> None:
    assert is_thread_file(file_of(turn(1)))
    assert is_thread_file(entry_line(entry("c", "chat", text="x")))
    for other in (
        b"",
        b"{",
        b'{"type": "session", "cwd": "/"}',
        b'{"type": "x", "payload": {}, "timestamp": 1}',
        b"[]",
    ):
        assert not is_thread_file(other)
