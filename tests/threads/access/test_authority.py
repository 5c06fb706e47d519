"""Who may write what on a thread: the whole table, and the ways around it."""

from __future__ import annotations

import json
from itertools import product
from typing import Any

import orjson
import pytest

from holdfast.api.errors import Forbidden
from holdfast.api.errors.threads import InvalidEntry
from holdfast.api.thread.entries import Entry
from holdfast.harnesses.registry import entry_prefixes
from holdfast.threads.access.authority import (
    KEY,
    MAY_WRITE,
    TOKEN,
    Author,
    Authority,
    EntryKind,
    Writer,
    kind_of,
    may_append,
)
from holdfast.threads.access.seals import Origin, Seals

AGENTS = frozenset(entry_prefixes())
RUNNER = Author(Writer.RUNNER, "r-1", 2, "pi")
END = {"type": "signal.run.finished", "run": "r-1", "status": "completed", "by": "runner"}

PAYLOADS: dict[EntryKind, list[dict[str, Any]]] = {
    EntryKind.CHAT: [{"type": "chat", "text": "x"}, {"type": "chat", "text": "x", "queued": False}],
    EntryKind.PROMPT: [
        {"type": "chat", "text": "x", "queued": True},
        {"type": "chat", "text": "x", "queued": 1},
        {"type": "chat", "text": "x", "queued": "no"},
        {"type": "chat", "text": "x", "prompt": {"mode": "steer", "priority": 0}},
        {"type": "chat", "text": "x", "prompt": False},
    ],
    EntryKind.RUN_END: [END],
    EntryKind.RUN_SIGNAL: [
        {"type": f"signal.run.{name}", "run": "r-1"}
        for name in (
            "started", "box", "installing", "provisioned", "runner", "heartbeat", "cancel_requested", "x", "finished.x"
        )
    ],
    EntryKind.THREAD_SIGNAL: [
        {"type": f"signal.thread.{name}"} for name in ("created", "renamed", "labelled", "archived", "status_changed")
    ],
    EntryKind.SIGNAL: [
        {"type": "signal.box.gone"}, {"type": "signal"}, {"type": "signal.runs.started"},
        {"type": "signal.session.created"}, {"type": "signal.session.terminated"},
    ],
    EntryKind.INTERPRETER: [{"type": f"interpreter.{name}"} for name in ("settings", "started", "execution", "call")],
    EntryKind.AGENT: [{"type": f"{agent}.{name}"} for agent in AGENTS for name in ("session", "assistant", "tool")],
    EntryKind.OTHER: [{"type": "mine.said"}, {"type": "pip.assistant"}, {"type": "signals.run.started"}, {"type": "x"}],
}  # fmt: skip


def test_every_kind_of_entry_has_a_row_in_the_table() -> None:
    assert set(MAY_WRITE) == set(EntryKind) == set(PAYLOADS)


@pytest.mark.parametrize(("kind", "payload"), [(kind, each) for kind, all in PAYLOADS.items() for each in all])
def test_an_entry_is_of_one_kind(kind: EntryKind, payload: dict[str, Any]) -> None:
    assert kind_of(payload, AGENTS) is kind


@pytest.mark.parametrize(("author", "kind"), list(product((KEY, TOKEN), EntryKind)))
def test_keys_and_tokens_write_what_the_table_says(author: Author, kind: EntryKind) -> None:
    for payload in PAYLOADS[kind]:
        assert (may_append(author, None, payload, AGENTS) is None) is (author.writer in MAY_WRITE[kind])


@pytest.mark.parametrize("kind", EntryKind)
def test_a_runner_writes_its_own_agents_entries_and_its_own_end(kind: EntryKind) -> None:
    for payload in PAYLOADS[kind]:
        own = payload == END or payload["type"].startswith("pi.")
        id = "end-r-1" if payload == END else "r-1-2-7"
        assert (may_append(RUNNER, id, payload, AGENTS) is None) is own


@pytest.mark.parametrize(
    ("id", "changed"),
    [
        ("end-r-2", {"run": "r-2"}),
        ("end-r-2", {}),
        ("end-r-1", {"run": "r-2"}),
        ("r-1-2-1", {}),
        (None, {}),
        ("end-r-1", {"by": "reconciler"}),
        ("end-r-1", {"by": None}),
        ("end-r-1", {"status": "orphaned"}),
        ("end-r-1", {"status": "running"}),
        ("end-r-1", {"status": ["completed"]}),
        ("end-r-1", {"epoch": 3}),
        ("end-r-1", {"epoch": None}),
    ],
)
def test_no_other_end_is_a_runners(id: str | None, changed: dict[str, Any]) -> None:
    assert may_append(RUNNER, id, {**END, **changed}, AGENTS) is not None


@pytest.mark.parametrize(
    "id", [None, "e-1", "end-r-1", "start-r-1", "cancel-r-1", "interrupt-r-1", "r-1-1-1", "r-1-22-1", "r-2-2-1", "r-1"]
)
def test_a_runners_entries_have_ids_of_its_run_and_epoch(id: str | None) -> None:
    assert may_append(RUNNER, id, {"type": "pi.assistant"}, AGENTS) is not None


def test_a_runner_that_was_given_no_agent_writes_nothing_but_its_end() -> None:
    nameless = Author(Writer.RUNNER, "r-1", 2)
    assert may_append(nameless, "r-1-2-1", {"type": "pi.assistant"}, AGENTS) is not None
    assert may_append(nameless, "r-1-2-1", {"type": ".assistant"}, AGENTS) is not None
    assert may_append(nameless, "end-r-1", END, AGENTS) is None


@pytest.mark.parametrize(
    ("author", "id"), list(product((KEY, TOKEN), ("start-r-1", "end-r-1", "cancel-r-1", "interrupt-r-1", "r-1-1-1")))
)
def test_nobody_takes_the_ids_of_runs(author: Author, id: str) -> None:
    assert may_append(author, id, {"type": "chat", "text": "x"}, AGENTS) is not None
    assert may_append(author, "end-of-story", {"type": "chat", "text": "x"}, AGENTS) is None


SEALS = Seals(b"a key")
AUTHORITY = Authority(SEALS, AGENTS)


def test_one_refused_entry_refuses_all_of_a_request() -> None:
    body = json.dumps([{"payload": {"type": "chat"}}, {"payload": {"type": "signal.run.started"}}]).encode()
    with pytest.raises(Forbidden):
        AUTHORITY.entries(body, 1, "t-1", TOKEN)
    assert len(AUTHORITY.entries(body, 1, "t-1", KEY)) == 2


def test_a_type_that_stands_twice_is_judged_as_it_will_be_read() -> None:
    body = b'{"payload":{"type":"chat"},"payload":{"type":"signal.run.started","type":"signal.run.box"}}'
    with pytest.raises(Forbidden, match="box"):
        AUTHORITY.entries(body, 1, "t-1", TOKEN)


def test_the_end_of_a_runner_is_sealed_and_nothing_else_is() -> None:
    body = json.dumps(
        [
            {"id": "r-1-2-1", "payload": {"type": "pi.assistant", "text": "done"}},
            {"id": "end-r-1", "ts": 7, "payload": END},
        ]
    ).encode()
    said, ended = (orjson.loads(each.data[:-2]) for each in AUTHORITY.entries(body, 5, "t-1", RUNNER))
    assert "seal" not in said["payload"]
    assert SEALS.origin("t-1", ended) is Origin.HERE


def test_an_end_that_is_nested_too_deep_to_be_sealed_is_refused() -> None:
    deep = b'{"id":"end-r-1","payload":{"type":"signal.run.finished","run":"r-1","status":"failed","by":"runner","x":'
    with pytest.raises(InvalidEntry):
        AUTHORITY.entries(deep + b"[" * 500 + b"]" * 500 + b"}}", 5, "t-1", RUNNER)


# --- seals ---

ENTRY = Entry("start-r-1", 5, {"type": "signal.run.started", "run": "r-1", "options": {"b": 1.5, "a": [None]}})


def test_a_seal_names_the_thread_that_it_was_made_for() -> None:
    sealed = orjson.loads(orjson.dumps(SEALS.seal("t-1", ENTRY).to_json()))
    assert SEALS.origin("t-1", sealed) is Origin.HERE
    assert SEALS.origin("t-2", sealed) is Origin.FORK
    assert Seals(b"another key").origin("t-1", sealed) is Origin.UNPROVEN


@pytest.mark.parametrize(
    "seal", [None, 1, "", ".", "t-1.", "t-1.AAAAAAAAAAAAAAAAAAAAAA", "x" * 10_000, "t-1.é", ["t-1"]]
)
def test_what_is_no_seal_proves_nothing(seal: object) -> None:
    forged = {**ENTRY.to_json(), "payload": {**ENTRY.payload, "seal": seal}}
    assert SEALS.origin("t-1", forged) is Origin.UNPROVEN


@pytest.mark.parametrize(
    "changed", [{"id": "start-r-2"}, {"ts": 6}, {"authorId": "u-1"}, {"payload": {"run": "r-2"}}, {"payload": {"x": 1}}]
)
def test_an_entry_that_was_changed_has_no_seal(changed: dict[str, Any]) -> None:
    sealed = SEALS.seal("t-1", ENTRY).to_json()
    payload = {**sealed["payload"], **changed.get("payload", {})}
    assert SEALS.origin("t-1", {**sealed, **changed, "payload": payload}) is Origin.UNPROVEN


def test_the_thread_in_a_seal_cannot_be_exchanged() -> None:
    sealed = SEALS.seal("t-1", ENTRY).to_json()
    sealed["payload"]["seal"] = sealed["payload"]["seal"].replace("t-1.", "t-2.")
    assert SEALS.origin("t-2", sealed) is Origin.UNPROVEN
