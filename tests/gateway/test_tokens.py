"""Tokens of sessions: what is valid, and everything that is not."""

from __future__ import annotations

import base64
import hmac
import json
from typing import Any

import jwt
import pytest

from holdfast.api.errors import Unauthorized
from holdfast.gateway.credentials.tokens import Claims, issue, session_key, verify

SECRET = b"s" * 32
KEY = session_key(SECRET, "t-1", "a/0")
NOW = 1_000


def forged(header: dict[str, Any], payload: dict[str, Any], signature: bytes = b"") -> str:
    parts = [json.dumps(header).encode(), json.dumps(payload).encode(), signature]
    return ".".join(base64.urlsafe_b64encode(part).decode().rstrip("=") for part in parts)


def test_a_token_holds_for_its_session_until_it_expires() -> None:
    token = issue(KEY, "t-1", Claims("ada", NOW + 1))
    assert verify(token, KEY, "t-1", NOW) == Claims("ada", NOW + 1)
    assert jwt.get_unverified_header(token)["alg"] == "HS256"
    claims = jwt.decode(token, KEY, ["HS256"], options={"verify_exp": False})
    assert {**claims, "jti": None} == {"sub": "ada", "sid": "t-1", "exp": NOW + 1, "jti": None}
    assert token != issue(KEY, "t-1", Claims("ada", NOW + 1))
    with pytest.raises(Unauthorized, match="expired"):
        verify(token, KEY, "t-1", NOW + 1)


def test_a_token_has_one_spelling() -> None:
    """A second one would have another digest, and count although the first was revoked."""
    token = issue(KEY, "t-1", Claims("ada", NOW + 1))
    digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    for other in {token[:-1] + each for each in digits} - {token} | {token + "A", token + "AA", token[:-1]}:
        with pytest.raises(Unauthorized):
            verify(other, KEY, "t-1", NOW)


def test_keys_differ_by_session_epoch_and_tunnel() -> None:
    places = [
        ("t-1", "a/0", None), ("t-2", "a/0", None), ("t-1", "a/1", None), ("t-1", "b/0", None), ("t-1", "a/0", "app"),
        ("t-1", "a/0", "other"),
    ]  # fmt: skip
    keys = {session_key(SECRET, *place) for place in places}
    assert len(keys) == len(places)
    assert session_key(b"o" * 32, "t-1", "a/0") not in keys


CLAIMS = {"sub": "ada", "sid": "t-1", "exp": NOW + 60}


def signed(algorithm: str) -> str:
    """With the right key, by another algorithm."""
    unsigned = forged({"alg": algorithm, "typ": "JWT"}, CLAIMS).removesuffix(".")
    signature = hmac.digest(KEY, unsigned.encode(), f"sha{algorithm[2:]}")
    return f"{unsigned}.{base64.urlsafe_b64encode(signature).decode().rstrip('=')}"


assert jwt.decode(signed("HS256"), KEY, ["HS256"], options={"verify_exp": False}) == CLAIMS


@pytest.mark.parametrize(
    "token",
    [
        forged({"alg": "none"}, CLAIMS, b"x"),
        forged({"alg": "None", "typ": "JWT"}, CLAIMS, b"x"),
        forged({"alg": "HS256"}, CLAIMS, b"\0" * 32),
        jwt.encode(CLAIMS, session_key(SECRET, "t-2", "a/0"), "HS256"),
        jwt.encode(CLAIMS, session_key(SECRET, "t-1", "a/1"), "HS256"),
        jwt.encode(CLAIMS, SECRET, "HS256"),
        signed("HS384"),
        signed("HS512"),
        jwt.encode({**CLAIMS, "sid": "t-2"}, KEY, "HS256"),
        jwt.encode({**CLAIMS, "sid": ["t-1"]}, KEY, "HS256"),
        jwt.encode({"sub": "ada", "exp": NOW + 60}, KEY, "HS256"),
        jwt.encode({"sid": "t-1", "exp": NOW + 60}, KEY, "HS256"),
        jwt.encode({"sub": "ada", "sid": "t-1"}, KEY, "HS256"),
        jwt.encode({**CLAIMS, "exp": float(NOW + 60)}, KEY, "HS256"),
        jwt.encode({**CLAIMS, "exp": str(NOW + 60)}, KEY, "HS256"),
        jwt.encode({**CLAIMS, "exp": True}, KEY, "HS256"),
        jwt.encode({**CLAIMS, "sub": ""}, KEY, "HS256"),
        jwt.encode({**CLAIMS, "sub": "a\r\nset-cookie: b=c"}, KEY, "HS256"),
        jwt.encode({**CLAIMS, "sub": "a" * 257}, KEY, "HS256"),
        jwt.encode({**CLAIMS, "more": "a" * 5000}, KEY, "HS256"),
        jwt.encode({**CLAIMS, "via": "a"}, KEY, "HS256"),
        jwt.encode({**CLAIMS, "via": ["a"] * 5}, KEY, "HS256"),
        jwt.encode({**CLAIMS, "via": [{}]}, KEY, "HS256"),
        jwt.encode(CLAIMS, KEY, "HS256") + "=",
        jwt.encode(CLAIMS, KEY, "HS256")[:-1],
        "a.b",
        "",
        "..",
        "ä.ö.ü",
    ],
)
def test_what_is_no_token_of_the_session_is_refused(token: str) -> None:
    with pytest.raises(Unauthorized):
        verify(token, KEY, "t-1", NOW)
