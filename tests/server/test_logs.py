"""Logs are for machines and people, and hold no secrets."""

from __future__ import annotations

import io
import json
import logging
import sys

import pytest

from holdfast.server.telemetry import logs


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("GET /v1/stream/threads/t?offset=-1&live=sse&token=abc.def.ghi 200", "abc.def.ghi"),
        ("Authorization: Bearer hf_secretsecretsecret", "hf_secretsecretsecret"),
        ("key hf_0123456789abcdef was used", "hf_0123456789abcdef"),
        ("a jwt eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJ0In0.c2ln in the middle", "eyJzdWIiOiJ0In0"),
    ],
)
def test_secrets_are_taken_out(text: str, secret: str) -> None:
    redacted = logs.redact(text)
    assert secret not in redacted
    assert "[redacted]" in redacted


def test_a_line_is_an_object_with_its_request(capsys: pytest.CaptureFixture[str]) -> None:
    stream = io.StringIO()
    logs.configure("info", stream)
    token = logs.request_id.set("r-1")
    try:
        logging.getLogger("holdfast.test").info("hello %s", "world", extra={"status": 200})
        try:
            raise ValueError("token=abc")
        except ValueError:
            logging.getLogger("holdfast.test").exception("failed")
    finally:
        logs.request_id.reset(token)
    first, second = (json.loads(line) for line in stream.getvalue().splitlines())
    assert (first["message"], first["requestId"], first["status"], first["level"]) == (
        "hello world",
        "r-1",
        200,
        "info",
    )
    assert "ValueError" in second["error"]
    assert "abc" not in second["error"]


def test_a_path_that_somebody_asked_for_neither_drives_the_terminal_nor_forges_a_line() -> None:
    hostile = "/v1/x\n12:00:00 error   forged\r\x1b]0;title\x07\x9b2J\u202e é"
    try:
        raise ValueError(hostile)
    except ValueError:
        told = sys.exc_info()
    record = logging.LogRecord("holdfast", logging.INFO, "x.py", 1, "GET %s 404", (hostile,), None)
    line = logs.PlainFormatter().format(record)
    assert line.isprintable()
    assert line.endswith("é 404")
    record.exc_info = told
    assert all(each.isprintable() for each in logs.PlainFormatter().format(record).split("\n"))
