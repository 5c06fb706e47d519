"""Secrets by reference: what a session may use, what gets into its box, and what comes out."""

from __future__ import annotations

import base64
import html
import json
import urllib.parse
from collections.abc import Iterable, Iterator

import httpx
import pytest
from tests.server.conftest import api_of, local_server

from holdfast.sessions.tools import masking
from holdfast.sessions.tools.masking import mask, masked_end
from holdfast.testing.server import ServerProcess

__all__ = ["local_server"]
VALUE = "s3cr3t/with+odd&chars=0123456789"


@pytest.mark.parametrize("before", ["", "u", "us", "use"])
def test_a_secret_is_masked_in_every_encoding_that_programs_print(before: str) -> None:
    raw = (before + VALUE + "!").encode()
    for shown in (
        VALUE.encode(), json.dumps(VALUE).encode(), urllib.parse.quote(VALUE, safe="").encode(),
        html.escape(VALUE).encode(), base64.b64encode(raw), base64.urlsafe_b64encode(raw), raw.hex().encode(),
        raw.hex().upper().encode(), VALUE.encode() * 2,
    ):  # fmt: skip
        masked = mask(b"before " + shown + b" after", [VALUE])
        assert masked.startswith(b"before ")
        assert masked.endswith(b" after")
        assert masked.count(b"*") >= len(VALUE) - 4, (shown, masked)
        assert VALUE.encode() not in masked


def test_what_is_no_secret_stays_as_it_is() -> None:
    text = b"plain text, cGxhaW4=, 706c61696e"
    assert mask(text, [VALUE, ""]) == text


@pytest.mark.parametrize(
    "shown", [VALUE, urllib.parse.quote(VALUE, safe=""), base64.b64encode(VALUE.encode()).decode()]
)
def test_a_secret_is_masked_wherever_the_shown_end_of_an_output_begins(shown: str) -> None:
    """Above all where that cuts the secret in two."""
    for after in range(len(shown) + 50):
        output = b"a" * 100_000 + shown.encode() + b"z" * after
        assert masked_end(output, [VALUE], 40) == mask(output, [VALUE])[-40:]
    assert masked_end(b"short", [VALUE], 40) == b"short"
    assert masked_end(b"x" * 100, [], 40) == b"x" * 40


def test_only_the_end_that_is_shown_of_a_long_output_is_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Searching holds up the whole server, and some outputs take seconds for each megabyte."""
    searched = []

    def count(data: bytes, values: Iterable[str]) -> bytes:
        searched.append(len(data))
        return mask(data, values)

    monkeypatch.setattr(masking, "mask", count)
    value = "-----BEGIN PRIVATE KEY-----\n"
    assert masked_end(b"-" * (16 * 1024 * 1024), [value], 65_536) == b"-" * 65_536
    assert sum(searched) <= 65_536 + 64 * len(value)


def new_session(api: httpx.Client, *secrets: str) -> str:
    api.put("/v1/models/m", json={"apis": ["openai-chat"], "baseUrl": "http://127.0.0.1:9", "model": "m", "key": "k"})
    box = {"network": {"mode": "allow", "allow": [], "secrets": list(secrets)}}
    answer = api.post("/v1/sessions", json={"agent": "pi", "model": "m", "tools": ["secrets"], "box": box})
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


@pytest.fixture
def api(local_server: ServerProcess) -> Iterator[httpx.Client]:
    with api_of(local_server) as api:
        yield api


def test_a_command_and_a_file_get_what_the_box_may_see(api: httpx.Client) -> None:
    bound = [{"host": "api.example.com", "placement": "header", "name": "x-key"}]
    secrets = {
        "OPEN": {"value": VALUE, "expose": "env"},
        "BOUND": {"value": "bound-0123456789-abcdef", "bindings": bound},
        "LONG": {"value": "x" * 8_000, "expose": "env"},
        "OTHERS": {"value": "not-for-this-session-0123", "expose": "env"},
    }
    for name, given in secrets.items():
        assert api.put(f"/v1/secrets/{name}", json=given).status_code < 300
    session = new_session(api, "OPEN", "BOUND", "LONG")

    def call(tool: str, **given: object) -> httpx.Response:
        return api.post(f"/v1/sessions/{session}/tools/{tool}", json=given, timeout=120)

    listed = call("list_secrets").json()["secrets"]
    assert [(each["reference"], each["exposed"]) for each in listed] == [
        ("hf://OPEN", True), ("hf://BOUND", False), ("hf://LONG", True),
    ]  # fmt: skip
    shown = 'printf "%s\\n" "$A" "$B" >&2; printf %s "$A" | base64 -w0; [ "${#A}" = 32 ] && echo ok'
    ran = call("run_with_secrets", command=shown, env={"A": "hf://OPEN", "B": "hf://BOUND"}).json()
    assert ran["exitCode"] == 0, ran
    assert "ok" in ran["stdout"]
    whole = json.dumps(ran)
    assert not any(each in whole for each in (VALUE, base64.b64encode(VALUE.encode()).decode(), "bound-0123456789"))
    call("run_with_secrets", command="printf 'a=hf://OPEN b={{ hf://BOUND }}' > template", env={})
    assert call("inject_secrets", templatePath="template", outputPath="filled").json() == {"ok": True, "replaced": 2}
    check = 'printf "a=%s b=holdfast-placeholder-BOUND" "$A" | cmp - filled && stat -c %a filled'
    checked = call("run_with_secrets", command=check, env={"A": "hf://OPEN"}).json()
    assert (checked["exitCode"], checked["stdout"].strip()) == (0, "600"), checked
    call("run_with_secrets", command="yes hf://LONG | head -n 600 > long", env={})
    refused = call("inject_secrets", templatePath="long", outputPath="never")
    assert (refused.status_code, "more than 4194304 bytes" in refused.text) == (400, True), refused.text
    assert call("run_with_secrets", command="test ! -e never", env={}).json()["exitCode"] == 0
    refusals = {"hf://OTHERS": 403, "hf://NOTHING": 403, "OPEN": 400, "hf://OPEN/x": 400, "op://vault/item/field": 501}
    for reference, status in refusals.items():
        assert call("run_with_secrets", command="env", env={"A": reference}).status_code == status, reference
    assert call("run_with_secrets", command="env", env={"A=B": "hf://OPEN"}).status_code == 400
    assert call("run_with_secrets", command="sleep 60", env={}, timeout=1).status_code == 409
    assert call("fill_secret", selector="#x", secretRef="hf://OPEN").status_code == 501
    api.post(f"/v1/sessions/{session}/terminate")
