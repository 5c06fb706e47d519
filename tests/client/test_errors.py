"""Errors cross the wire as themselves, whoever answered."""

from __future__ import annotations

import json

import pytest

from holdfast.api import errors
from holdfast.api.errors import agents, boxes, error_of, interpreters, models, runs, threads
from holdfast.client.connection import Backoff, is_temporary, retry_after


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (400, "invalid_request", errors.InvalidRequest),
        (400, "invalid_entry", threads.InvalidEntry),
        (401, "unauthorized", errors.Unauthorized),
        (403, "forbidden", errors.Forbidden),
        (403, "stale_epoch", threads.StaleEpoch),
        (404, "not_found", errors.NotFound),
        (409, "conflict", errors.Conflict),
        (409, "closed", threads.Closed),
        (409, "producer_gap", threads.ProducerGap),
        (410, "gone", errors.Gone),
        (413, "too_large", errors.TooLarge),
        (418, "teapot", errors.Refused),
        (429, "slow_down", errors.TooManyRequests),
        (500, "internal", errors.ServerFailed),
        (507, "disk_full", errors.DiskFull),
        (410, "box_gone", boxes.BoxGone),
        (507, "no_space", boxes.NoSpace),
        (409, "thread_busy", runs.ThreadBusy),
        (404, "model_not_found", models.ModelNotFound),
        (422, "unknown_agent", agents.UnknownAgent),
        (410, "kernel_lost", interpreters.KernelLost),
    ],
)
def test_each_code_has_its_class(status: int, code: str, kind: type[errors.HoldfastError]) -> None:
    body = json.dumps({"error": {"code": code, "message": "no", "hint": "try this", "requestId": "1"}}).encode()
    error = error_of(status, {"x-request-id": "abc"}, body, "GET /x")
    assert type(error) is kind
    assert (error.status, error.code, error.message, error.hint) == (status, code, "no", "try this")
    assert error.request_id == "abc"


@pytest.mark.parametrize(
    ("status", "headers", "kind"),
    [
        (409, {"stream-closed": "true"}, threads.Closed),
        (409, {"producer-expected-seq": "1"}, threads.ProducerGap),
        (403, {"producer-epoch": "1"}, threads.StaleEpoch),
        (404, {}, errors.NotFound),
        (302, {}, errors.NotUnderstood),
    ],
)
@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b'{"error": "text"}', b"\xff"])
def test_answers_that_are_not_ours_are_typed_by_status_and_headers(
    status: int, headers: dict[str, str], kind: type[errors.HoldfastError], body: bytes
) -> None:
    error = error_of(status, headers, body, "GET /x")
    assert type(error) is kind
    assert error.message.startswith(f"GET /x was answered {status}")


@pytest.mark.parametrize(
    ("status", "expected"),
    [(200, False), (400, False), (409, False), (429, True), (500, True), (502, True), (503, True), (507, False)],
)
def test_what_is_worth_another_attempt(status: int, expected: bool) -> None:
    assert is_temporary(status) is expected


def test_waits_double_up_to_the_cap() -> None:
    longest = Backoff(first=0.1, cap=5.0, randomness=lambda: 1.0)
    assert [longest.delay(attempt) for attempt in range(4)] == [0.1, 0.2, 0.4, 0.8]
    assert longest.delay(1000) == 5.0
    assert Backoff(first=0.1, randomness=lambda: 0.0).delay(0) == 0.05
    assert longest.delay(0, asked=2.0) == 2.0
    assert longest.delay(0, asked=3600.0) == 5.0


@pytest.mark.parametrize(
    ("value", "seconds"), [("3", 3.0), ("0.5", 0.5), ("-1", 0.0), ("Wed, 21 Oct 2015 07:28:00 GMT", 0.0)]
)
def test_retry_after_is_read(value: str, seconds: float) -> None:
    assert retry_after({"retry-after": value}) == seconds
    assert retry_after({}) == 0.0
