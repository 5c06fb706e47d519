"""Definitions of workflows, cron expressions and signatures: by table."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from holdfast.api.errors import InvalidRequest, Unauthorized
from holdfast.sessions.workflows.cron import parse_cron
from holdfast.sessions.workflows.definition import environment_of, fill, parse_definition
from holdfast.sessions.workflows.library import map_variables
from holdfast.sessions.workflows.signatures import WorkflowKeys, check_webhook, sign

AGENT = {"id": "a", "type": "agent", "prompt": "look at {{variables.what}}"}
NOW = 1_800_000_000_000


def test_a_definition_comes_back_as_it_was_and_its_hash_names_it() -> None:
    data: dict[str, Any] = {
        "variables": {"what": "tests"},
        "steps": [
            AGENT,
            {"id": "b", "type": "command", "command": "make", "timeoutSeconds": 5, "repeat": False},
            {"id": "c", "type": "approval", "prompt": "ok with {{ steps.b.output }}?", "notify": "@ada"},
            {"id": "d", "type": "tool", "tool": "memory_write", "input": {"content": "{{steps.a.output}}"}},
        ],
    }
    definition = parse_definition(data)
    assert definition.json == data
    assert parse_definition(definition.json).hash == definition.hash
    assert parse_definition({**data, "variables": {"what": "x"}}).hash != definition.hash


@pytest.mark.parametrize(
    "data",
    [
        None, [], {}, {"steps": []}, {"steps": [AGENT], "odd": 1}, {"steps": [AGENT]}, {"steps": ["x"]},
        {"steps": [{"id": "a", "type": "odd"}]}, {"steps": [{"id": "a b", "type": "agent", "prompt": "x"}]},
        {"steps": [{"type": "agent", "prompt": "x"}]}, {"steps": [{"id": "a", "type": "agent"}]},
        {"steps": [{"id": "a", "type": "agent", "prompt": "x", "shell": "y"}]},
        {"steps": [{"id": "a", "type": "agent", "prompt": "x"}] * 2},
        {"steps": [{"id": "a", "type": "agent", "prompt": "{{steps.a.output}}"}]},
        {"steps": [{"id": "a", "type": "agent", "prompt": "{{steps.b.output}}"},
                   {"id": "b", "type": "agent", "prompt": "x"}]},
        {"variables": {"v": "1"}, "steps": [{"id": "a", "type": "command", "command": "echo {{variables.v}}"}]},
        {"variables": {"v": 1}, "steps": [{"id": "a", "type": "agent", "prompt": "x"}]},
        {"variables": {"a-b": ""}, "steps": [{"id": "a", "type": "agent", "prompt": "x"}]},
        {"steps": [{"id": "a", "type": "tool", "tool": "nothing"}]},
        {"steps": [{"id": "a", "type": "tool", "tool": "run_workflow"}]},
        {"steps": [{"id": "a", "type": "tool", "tool": "complete_session"}]},
        {"steps": [{"id": f"s{number}", "type": "agent", "prompt": "x"} for number in range(51)]},
    ],
)  # fmt: skip
def test_what_is_no_definition_is_refused(data: Any) -> None:
    with pytest.raises(InvalidRequest):
        parse_definition(data)


def test_values_are_filled_in_once_and_reach_commands_by_their_environment() -> None:
    variables, outputs = {"v": "{{steps.s.output}}; rm -rf /"}, {"s": "secret"}
    assert fill({"a": ["x {{variables.v}}", 1]}, variables, outputs) == {"a": ["x {{steps.s.output}}; rm -rf /", 1]}
    assert environment_of(variables, outputs) == {"VAR_v": variables["v"], "STEP_s": "secret"}


def test_values_that_are_too_long_together_are_refused() -> None:
    long = {"a": "x" * 1000}
    assert fill("{{steps.a.output}}" * 10, {}, long, 10_180) == "x" * 10_000
    with pytest.raises(InvalidRequest, match="more than 10180 characters"):
        fill("{{steps.a.output}}" * 11, {}, long, 10_180)
    with pytest.raises(InvalidRequest, match="more than 1048576 characters"):
        fill({"a": ["{{steps.a.output}}" * 700], "b": {"c": "{{variables.v}}" * 700}}, {"v": long["a"]}, long)


def test_variables_come_from_the_body_of_a_webhook() -> None:
    mapping = {"a": "body.x.y", "b": "body.none", "c": "body.x", "d": "odd"}
    assert map_variables(mapping, {"x": {"y": 7}}) == {"a": "7"}
    assert map_variables(mapping, [1]) == {}


def at(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1000)


@pytest.mark.parametrize(
    ("cron", "after", "expected"),
    [
        ("* * * * *", "2026-11-18T02:00:00", "2026-11-18T02:01:00"),
        ("* * * * *", "2026-11-18T02:00:59.999", "2026-11-18T02:01:00"),
        ("*/15 * * * *", "2026-11-18T02:45:00", "2026-11-18T03:00:00"),
        ("5/20 * * * *", "2026-11-18T02:26:00", "2026-11-18T02:45:00"),
        ("0 6 * * 1-5", "2026-11-20T06:00:00", "2026-11-23T06:00:00"),
        ("30 8 1 * *", "2026-12-01T08:30:00", "2027-01-01T08:30:00"),
        ("0 0 29 2 *", "2026-01-01T00:00:00", "2028-02-29T00:00:00"),
        ("0 0 13 * 5", "2026-11-18T00:00:00", "2026-11-20T00:00:00"),
        ("0 0 * * 7", "2026-11-18T00:00:00", "2026-11-22T00:00:00"),
        ("1,3 2 * * *", "2026-11-18T02:01:00", "2026-11-18T02:03:00"),
        ("@daily", "2026-11-18T02:00:00", "2026-11-19T00:00:00"),
    ],
)
def test_cron_tells_the_next_time(cron: str, after: str, expected: str) -> None:
    assert parse_cron(cron).next_after(at(after)) == at(expected)


@pytest.mark.parametrize(
    "cron",
    [
        "", "* * * *", "60 * * * *", "* 24 * * *", "* * 0 * *", "* * * 13 *", "* * * * 8", "5-1 * * * *", "*/0 * * * *",
        "a * * * *", "-1 * * * *", "1- * * * *", "٣ * * * *", "0 0 30 2 *", "* * * * * *", "@never", "1,,2 * * * *",
    ],
)  # fmt: skip
def test_what_is_no_cron_expression_is_refused(cron: str) -> None:
    with pytest.raises(InvalidRequest):
        parse_cron(cron)


def test_only_a_fresh_genuine_signature_counts() -> None:
    secret, stamp = WorkflowKeys(b"s" * 32).webhook_secret("g-1", 1), str(NOW // 1000)
    signature = sign(secret, stamp, b"{}")
    first = check_webhook(secret, stamp, signature, b"{}", NOW)
    assert first == check_webhook(secret, stamp, signature, b"{}", NOW + 299_000)
    later = str(NOW // 1000 + 1)
    wrong: list[tuple[str | None, str | None, bytes, int]] = [
        (stamp, signature, b"{ }", NOW), (later, signature, b"{}", NOW), (stamp, signature, b"{}", NOW + 301_000),
        (stamp, signature, b"{}", NOW - 301_000), (None, signature, b"{}", NOW), (stamp, None, b"{}", NOW),
        (stamp, signature[3:], b"{}", NOW), (stamp, signature.upper(), b"{}", NOW), ("x", signature, b"{}", NOW),
        (stamp, "v1=é", b"{}", NOW), (stamp, sign(secret + "x", stamp, b"{}"), b"{}", NOW),
    ]  # fmt: skip
    for timestamp, given, body, now in wrong:
        with pytest.raises(Unauthorized):
            check_webhook(secret, timestamp, given, body, now)
