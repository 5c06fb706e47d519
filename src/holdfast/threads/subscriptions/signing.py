"""Signatures of webhook requests (Ed25519, so that receivers need no secret) and of callback tokens (HMAC).

A receiver checks `Webhook-Signature: t=<seconds>,kid=<key>,ed25519=<signature>` over `<seconds>.<body>` with the key
that `__ds/jwks.json` publishes under that id. `verify_signature` does this.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from holdfast.api.access.tenants import DEFAULT_TENANT
from holdfast.threads.subscriptions.errors import TokenExpired, TokenInvalid

TOKEN_SECONDS: Final = 3600
TOKEN_REFRESH_SECONDS: Final = 1200
"""Twice the longest lease, so a worker that reports in time gets a new token before its old one expires."""
SIGNATURE_TOLERANCE_SECONDS: Final = 300
_MAX_TOKEN: Final = 4096
_SIGNATURE: Final = re.compile(r"t=(\d{1,15}),kid=([^,]{1,128}),ed25519=([A-Za-z0-9_-]{1,128})")


def _encode(data: bytes) -> str:
    return urlsafe_b64encode(data).rstrip(b"=").decode()


def _decode(text: str) -> bytes:
    return urlsafe_b64decode(text + "=" * (-len(text) % 4))


class WebhookSigner:
    """Signs webhook requests, and publishes the public key."""

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key
        x = _encode(key.public_key().public_bytes_raw())
        # The thumbprint of RFC 7638, so the key has the same id on every server and after every restart.
        thumbprint = hashlib.sha256(b'{"crv":"Ed25519","kty":"OKP","x":"%b"}' % x.encode()).digest()
        self.key_id = f"ds_{_encode(thumbprint)}"
        self._jwk = {"kty": "OKP", "crv": "Ed25519", "x": x, "kid": self.key_id, "use": "sig", "alg": "EdDSA"}

    def sign(self, body: bytes, now: int) -> str:
        """Returns the value of `Webhook-Signature` at `now` (milliseconds)."""
        seconds = now // 1000
        return f"t={seconds},kid={self.key_id},ed25519={_encode(self._key.sign(b'%d.%b' % (seconds, body)))}"

    def key_set(self) -> dict[str, Any]:
        return {"keys": [self._jwk]}


def verify_signature(
    body: bytes,
    header: str,
    key_set: Mapping[str, Any],
    now: int,
    tolerance_seconds: int = SIGNATURE_TOLERANCE_SECONDS,
) -> bool:
    """Returns whether one of these keys signed this body at about `now` (milliseconds)."""
    match = _SIGNATURE.fullmatch(header)
    if match is None or abs(now // 1000 - int(match[1])) > tolerance_seconds:
        return False
    key = next((each for each in key_set["keys"] if each["kid"] == match[2] and each["crv"] == "Ed25519"), None)
    if key is None:
        return False
    try:
        Ed25519PublicKey.from_public_bytes(_decode(key["x"])).verify(_decode(match[3]), match[1].encode() + b"." + body)
    except (InvalidSignature, ValueError):
        return False
    return True


@dataclass(frozen=True, slots=True)
class TokenClaims:
    generation: int
    expires_at: int
    """Seconds."""

    def needs_refresh(self, now: int) -> bool:
        return self.expires_at - now // 1000 <= TOKEN_REFRESH_SECONDS


class CallbackTokens:
    """Issues and checks the tokens of wakes. A token is valid for one generation of one subscription."""

    def __init__(self, secret: bytes, tenant: str = DEFAULT_TENANT) -> None:
        self._tenant = tenant
        if len(secret) < 16:
            raise ValueError("the secret of callback tokens must have at least 16 bytes")
        # The secret may have other uses, so derive a separate one.
        self._secret = hmac.digest(secret, b"holdfast subscription callbacks", hashlib.sha256)

    def issue(self, subscription: str, generation: int, now: int) -> str:
        payload = _encode(
            orjson.dumps(
                {
                    "sub": _subject(subscription),
                    "epoch": generation,
                    "exp": now // 1000 + TOKEN_SECONDS,
                    "jti": secrets.token_hex(8),
                    "ten": self._tenant,
                }
            )
        )
        return f"{payload}.{self._sign(payload)}"

    def check(self, token: str, subscription: str, now: int) -> TokenClaims:
        payload, _, signature = token.partition(".")
        if len(token) > _MAX_TOKEN or not token.isascii() or not hmac.compare_digest(signature, self._sign(payload)):
            raise TokenInvalid("this token is not valid on this server")
        claims = orjson.loads(_decode(payload))
        if claims["sub"] != _subject(subscription):
            raise TokenInvalid(f"this token is not for subscription {subscription}")
        if now // 1000 > claims["exp"]:
            raise TokenExpired(
                "this token has expired", hint="report at least once per lease: responses contain a new token"
            )
        return TokenClaims(claims["epoch"], claims["exp"])

    def _sign(self, payload: str) -> str:
        return _encode(hmac.digest(self._secret, payload.encode(), hashlib.sha256))


def _subject(subscription: str) -> str:
    return f"subscription:{subscription}"
