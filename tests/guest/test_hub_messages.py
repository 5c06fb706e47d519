"""The messages between a session's runner and the hub: what one side sends the other reads, and nothing else passes."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.guest import hub_messages
from holdfast.guest.hub_messages import (
    LONGEST_LIST,
    LONGEST_MESSAGE,
    REQUESTS,
    SHAPES,
    TO_HUB,
    TO_RUNNER,
    InvalidMessage,
    from_hub,
    from_runner,
    seconds_to_wait,
    to_hub,
    to_runner,
)
from holdfast.sessions.hub.requests import ROUTES

Send = Callable[[str, dict[str, Any]], str]
Read = Callable[[str], tuple[str, dict[str, Any]]]

OF_HUB = {**TO_RUNNER, **{f"{name}-result": f"requestId {answer}" for name, (_, answer) in REQUESTS.items()}}
OF_RUNNER = {**TO_HUB, **{name: f"requestId {asked}" for name, (asked, _) in REQUESTS.items()}}
MESSAGES: list[tuple[str, str, Send, Read]] = [
    *((name, fields, to_runner, from_hub) for name, fields in OF_HUB.items()),
    *((name, fields, to_hub, from_runner) for name, fields in OF_RUNNER.items()),
]
each_message = pytest.mark.parametrize(
    ("name", "written", "send", "read"), MESSAGES, ids=[each[0] for each in MESSAGES]
)
TEXTS = st.text(max_size=20)
NUMBERS = st.integers(-(2**53) + 1, 2**53 - 1)
JSON = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)


def values(kind: str) -> st.SearchStrategy[Any]:
    """What a field of this kind may be."""
    if kind.startswith("["):
        return st.lists(values(kind[1:-1]), max_size=3)
    if kind.startswith("{"):
        return st.dictionaries(TEXTS, values(kind[1:-1]), max_size=3)
    simple = {
        "text": TEXTS, "int": NUMBERS, "bool": st.booleans(), "any": JSON,
        "object": st.dictionaries(TEXTS, JSON, max_size=3),
    }  # fmt: skip
    if kind in simple:
        return simple[kind]
    return documents(SHAPES[kind]) if kind in SHAPES else st.sampled_from(kind.split("|"))


def documents(written: str) -> st.SearchStrategy[dict[str, Any]]:
    required: dict[str, st.SearchStrategy[Any]] = {}
    optional: dict[str, st.SearchStrategy[Any]] = {}
    for each in written.split():
        name, _, kind = each.partition(":")
        (optional if name.endswith("?") else required)[name.rstrip("?")] = values(kind or "text")
    return st.fixed_dictionaries(required, optional=optional)


@each_message
@settings(max_examples=6, deadline=None)
@given(data=st.data())
def test_what_one_side_sends_the_other_reads(
    name: str, written: str, send: Send, read: Read, data: st.DataObject
) -> None:
    fields = data.draw(documents(written))
    assert read(send(name, fields)) == (name, fields)


@each_message
@settings(max_examples=3, deadline=None)
@given(data=st.data())
def test_a_message_that_lacks_a_field_is_neither_sent_nor_read(
    name: str, written: str, send: Send, read: Read, data: st.DataObject
) -> None:
    fields = data.draw(documents(written))
    for each in written.split():
        missing = each.partition(":")[0]
        if missing.endswith("?"):
            continue
        less = {known: value for known, value in fields.items() if known != missing}
        with pytest.raises(InvalidMessage, match="lacks"):
            send(name, less)
        with pytest.raises(InvalidMessage, match="lacks"):
            read(json.dumps({"type": name, **less}))


@settings(max_examples=200, deadline=None)
@given(value=JSON, name=st.sampled_from([name for name, *_ in MESSAGES]))
def test_nothing_but_an_invalid_message_is_raised(value: Any, name: str) -> None:
    for text in (json.dumps(value), json.dumps({"type": name, **(value if isinstance(value, dict) else {})})):
        for read in (from_hub, from_runner):
            try:
                kind, _ = read(text)
            except InvalidMessage:
                continue
            assert kind in OF_HUB or kind in OF_RUNNER


@pytest.mark.parametrize(
    "text",
    [
        "", "null", "[]", "{}", "{", '{"type":1}', '{"type":"nonsense"}', '{"type":"ping"', "\ud800",
        '{"type":"error","messageId":"m","error":NaN}', '{"type":"error","messageId":1,"error":"x"}',
        '{"type":"error","messageId":"m","error":null}', '{"type":"agentStatus","status":"asleep"}',
        '{"type":"tunnels","tunnels":{}}', '{"type":"tunnels","tunnels":[{"name":"a","port":true,"path":"/"}]}',
        '{"type":"git-state","commitCount":1e400}', '{"type":"git-state","commitCount":1.5}',
        '{"type":"git-state","commitCount":9007199254740992}', '{"type":"question","questionId":"q","text":"\\ud800"}',
        '{"type":"screenshot","data":"x","description":' + "[" * 100_000,
    ],
)  # fmt: skip
def test_what_is_malformed_is_refused(text: str) -> None:
    with pytest.raises(InvalidMessage):
        from_runner(text)


def test_sizes_have_a_bound() -> None:
    with pytest.raises(InvalidMessage, match="bytes"):
        from_runner(" " * (LONGEST_MESSAGE + 1))
    with pytest.raises(InvalidMessage, match="bytes"):
        to_hub("error", {"messageId": "m", "error": "ü" * (LONGEST_MESSAGE // 2)})
    with pytest.raises(InvalidMessage, match="items"):
        to_hub("reverted", {"messageIds": ["m"] * (LONGEST_LIST + 1)})
    deep: Any = []
    for _ in range(40):
        deep = [deep]
    with pytest.raises(InvalidMessage, match="deeply"):
        to_hub("workflow-chat-message", {"role": "user", "content": "x", "parts": deep})


def test_what_the_other_side_does_not_know_is_not_sent_and_what_this_one_does_not_know_is_dropped() -> None:
    with pytest.raises(InvalidMessage, match="does not take"):
        to_hub("ping", {"more": 1})
    with pytest.raises(InvalidMessage, match="does not take"):
        to_hub("ping", {"type": "pong"})
    assert from_runner('{"type":"ping","more":1}') == ("ping", {})
    with pytest.raises(InvalidMessage, match="no message 'pong'"):
        from_runner('{"type":"pong"}')


def test_an_answer_has_its_fields_or_an_error() -> None:
    assert from_hub(to_runner("spawn-child-result", {"requestId": "q", "error": "no room"})) == (
        "spawn-child-result",
        {"requestId": "q", "error": "no room"},
    )
    for fields in ({"requestId": "q"}, {"error": "no room"}, {"childSessionId": "t-1"}):
        with pytest.raises(InvalidMessage, match="lacks"):
            to_runner("spawn-child-result", fields)


@pytest.mark.parametrize(
    ("request_type", "seconds"), [("spawn-child", 60), ("terminate-child", 30), ("create-pr", 30), ("memory-read", 15)]
)
def test_each_request_has_a_time_to_wait(request_type: str, seconds: int) -> None:
    assert seconds_to_wait(request_type) == seconds


def test_an_error_quotes_no_value() -> None:
    with pytest.raises(InvalidMessage) as refused:
        from_hub('{"type":"opencode-config","config":{"providerKeys":{"openai":["sk-secret"]}}}')
    assert "sk-secret" not in str(refused.value)


def test_every_kind_in_the_tables_is_known() -> None:
    """A word that looks like a shape but is none would be taken for the only value of a field."""
    tables = [
        *SHAPES.values(),
        *TO_RUNNER.values(),
        *TO_HUB.values(),
        *(each for pair in REQUESTS.values() for each in pair),
    ]
    kinds = {kind for table in tables for _, _, kind in (each.partition(":") for each in table.split()) if kind}
    words = {re.sub(r"[\[\]{}]", "", kind) for kind in kinds}
    simple = set(hub_messages._SIMPLE)
    assert {word for word in words if word not in simple and word not in SHAPES and "|" not in word} == {"file"}


def test_the_page_about_messages_has_each_of_them_and_no_other() -> None:
    page = (Path(__file__).parents[2] / "docs" / "hub-messages.md").read_text()
    told: list[list[set[str]]] = []
    for part in page.split("\n## ")[1:]:
        rows = [line.split("|") for line in part.splitlines() if line.startswith("| `")]
        told.append([set(re.findall(r"`([^`]+)`", cell)) for row in rows for cell in row[1:3]])
    to_runner, to_hub, requests = told
    assert set().union(*to_runner[::2]) == set(TO_RUNNER)
    assert set().union(*to_hub[::2]) == set(TO_HUB)
    assert set().union(*requests[::2]) == set(ROUTES)
    assert set().union(*requests[1::2]) == set(REQUESTS) - set(ROUTES)
