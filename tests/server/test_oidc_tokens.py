"""Tokens that an identity provider did not give to this login are refused."""

from __future__ import annotations

import json
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, generate_private_key
from jwt.algorithms import RSAAlgorithm

from holdfast.api.errors import Forbidden, Unauthorized
from holdfast.server.oidc import Oidc, OidcSettings

pytestmark = pytest.mark.anyio

ISSUER, NOW = "https://login.example.com", 1_800_000_000
CLAIMS = {
    "iss": ISSUER,
    "aud": "holdfast",
    "sub": "kim",
    "exp": NOW + 300,
    "iat": NOW - 5,
    "nonce": "the-nonce",
    "email": "kim@example.com",
    "email_verified": True,
}


@pytest.fixture(scope="module")
def key() -> RSAPrivateKey:
    return generate_private_key(65537, 2048)


@pytest.fixture
def oidc(key: RSAPrivateKey) -> Oidc:
    settings = OidcSettings(ISSUER, "holdfast", "the-secret-of-the-client-that-is-long-enough")
    oidc = Oidc(settings, b"k" * 32, lambda: NOW * 1000, {})
    oidc._configuration = {"issuer": ISSUER, "jwks_uri": "http://127.0.0.1:9/jwks"}
    oidc._keys = {"one": {**json.loads(RSAAlgorithm.to_jwk(key.public_key())), "kid": "one", "alg": "RS256"}}
    return oidc


async def test_a_token_of_this_login_is_taken(oidc: Oidc, key: RSAPrivateKey) -> None:
    token = jwt.encode(CLAIMS, key, "RS256", headers={"kid": "one"})
    assert oidc._name_in(await oidc._verified(token, "the-nonce")) == "kim@example.com"


@pytest.mark.parametrize(
    "changed",
    [
        {"aud": "another"},
        {"aud": ["holdfast", "another"]},
        {"iss": "https://evil.example"},
        {"exp": NOW - 100},
        {"iat": NOW + 1000},
        {"nonce": "another"},
        {"nonce": None},
        {"exp": None},
        {"aud": None},
        {"sub": None},
    ],
    ids=str,
)
async def test_a_token_with_other_claims_is_refused(oidc: Oidc, key: RSAPrivateKey, changed: dict[str, Any]) -> None:
    claims = {name: value for name, value in {**CLAIMS, **changed}.items() if value is not None}
    with pytest.raises(Unauthorized):
        await oidc._verified(jwt.encode(claims, key, "RS256", headers={"kid": "one"}), "the-nonce")


async def test_a_token_with_another_signature_is_refused(oidc: Oidc, key: RSAPrivateKey) -> None:
    secret = oidc.settings.client_secret
    assert secret is not None
    other = generate_private_key(65537, 2048)
    for token in (
        jwt.encode(CLAIMS, other, "RS256", headers={"kid": "one"}),
        jwt.encode(CLAIMS, secret, "HS256", headers={"kid": "one"}),
        jwt.encode(CLAIMS, "", "none", headers={"kid": "one"}),
        "not.a.token",
        "",
    ):
        with pytest.raises(Unauthorized):
            await oidc._verified(token, "the-nonce")


@pytest.mark.parametrize(
    "changed", [{"email_verified": False}, {"email_verified": "true"}, {"email": ""}, {"email": 7}]
)
async def test_an_address_that_is_not_verified_is_nobody(oidc: Oidc, changed: dict[str, Any]) -> None:
    with pytest.raises(Forbidden):
        oidc._name_in({**CLAIMS, **changed})


async def test_a_state_that_was_changed_or_is_old_is_refused(oidc: Oidc) -> None:
    state = {"state": "s", "nonce": "n", "verifier": "v", "redirect": "r", "tenant": "default", "exp": NOW + 1}
    sealed = oidc._sealed(state)
    assert oidc._opened(sealed) == state
    old = oidc._sealed({**state, "exp": NOW})
    for cookie in (None, "", "x", sealed[:-1], "x" + sealed, old, ".", "é.é"):
        with pytest.raises(Unauthorized):
            oidc._opened(cookie)
