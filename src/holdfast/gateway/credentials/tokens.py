"""Tokens for one session: HS256 JWTs `{sub, sid, exp}`, and `jti`, which tells two of the same second apart.

Each session has keys of its own, derived from the secret of the server, the session's id and its epoch: which thread of
that id it is, and its generation. A new generation makes all earlier tokens of the session invalid.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import secrets
from dataclasses import dataclass
from typing import Any, Final

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from holdfast.api.errors import Unauthorized

MAX_TOKEN: Final = 4096
"""Characters. Longer texts are refused unread."""
MAX_SUBJECT: Final = 256
_MOST_VIA: Final = 4
_FORM: Final = re.compile(r"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+")
_OUR_PREFIXES: Final = ("hf_", "hfl_")
_HINT: Final = "ask for a new link to this session"


@dataclass(frozen=True, slots=True)
class Claims:
    subject: str
    """Who it is for."""
    expires: int
    """In seconds."""
    via: tuple[str, ...] = ()
    """What it came from, the first one first: who issued it (`issuers.py`) and, of a ticket to a tunnel, the digests
    of the credentials that its visitor came with."""


def session_key(secret: bytes, session: str, epoch: str, tunnel: str | None = None) -> bytes:
    """Returns the key of a session's tokens. A tunnel has another, so that its tokens work at its own origin alone."""
    purpose = "session" if tunnel is None else f"tunnel {tunnel}"
    info = f"holdfast gateway\n{session}\n{epoch}\n{purpose}".encode()
    return HKDF(algorithm=hashes.SHA256(), length=32, salt=None, info=info).derive(secret)


def cookie_key(secret: bytes) -> bytes:
    """Returns the key that authenticates the values of cookies."""
    return HKDF(algorithm=hashes.SHA256(), length=32, salt=None, info=b"holdfast gateway cookies").derive(secret)


def issue(key: bytes, session: str, claims: Claims) -> str:
    import jwt

    payload: dict[str, Any] = {
        "sub": claims.subject,
        "sid": session,
        "exp": claims.expires,
        "jti": secrets.token_hex(8),  # one can be revoked without the other
    }
    if claims.via:
        payload["via"] = list(claims.via)
    return jwt.encode(payload, key, "HS256")


def looks_like_token(text: str) -> bool:
    """Whether a text has the form of a token. Other texts are not for us."""
    return len(text) <= MAX_TOKEN and _FORM.fullmatch(text) is not None


def verify(token: str, key: bytes, session: str, now: float) -> Claims:
    """Returns the claims of a valid token for this session. `now` is in seconds. Raises `Unauthorized`."""
    claims = parse(token, key, session)
    if now >= claims.expires:
        raise Unauthorized("this token has expired", hint=_HINT)
    return claims


def parse(token: str, key: bytes, session: str) -> Claims:
    """Returns the claims of a token that was issued for this session, also of an expired one. Raises `Unauthorized`."""
    import jwt

    if not looks_like_token(token):
        raise Unauthorized("this is not a token of a session", hint=_HINT)
    if not _is_canonical(token.rpartition(".")[2]):
        # Not all versions of the library check that. Another spelling of a token has another digest, so it could be
        # used after the token was revoked or used up.
        raise Unauthorized("this token is not valid for this session", hint=_HINT)
    try:
        claims: dict[str, Any] = jwt.decode(
            token,
            key,
            algorithms=["HS256"],
            # Only the signature is left to the library: the claims are few, and checked strictly below.
            options={
                "verify_exp": False, "verify_iat": False, "verify_nbf": False, "verify_aud": False, "verify_iss": False,
                "verify_sub": False, "verify_jti": False,
            },
        )  # fmt: skip
    except jwt.InvalidTokenError:
        raise Unauthorized("this token is not valid for this session", hint=_HINT) from None
    subject, sid, expires = claims.get("sub"), claims.get("sid"), claims.get("exp")
    via = claims.get("via", [])
    if not isinstance(via, list) or len(via) > _MOST_VIA or not all(isinstance(each, str) for each in via):
        raise Unauthorized("this token is not valid for this session", hint=_HINT)
    if sid != session or not is_subject(subject) or type(expires) is not int:
        raise Unauthorized("this token is not valid for this session", hint=_HINT)
    return Claims(str(subject), expires, tuple(via))


def _is_canonical(signature: str) -> bool:
    """Whether the unused bits of the last digit are zero. The other parts of a token are signed as they are written."""
    decoded = base64.urlsafe_b64decode(signature + "=" * (-len(signature) % 4)) if len(signature) % 4 != 1 else b""
    return base64.urlsafe_b64encode(decoded).decode().rstrip("=") == signature


def is_of_holdfast(credential: str) -> bool:
    """Whether a credential is one of ours, valid or not: a key, or a token of a session or a thread. A program in a box
    must not see it."""
    if credential.startswith(_OUR_PREFIXES):
        return True
    if not looks_like_token(credential):
        return False
    part = credential.split(".")[1]
    try:
        claims = json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
    except (ValueError, RecursionError):
        return False
    return isinstance(claims, dict) and ("sid" in claims or claims.get("iss") == "holdfast")


def is_subject(subject: object) -> bool:
    """Whether this can name who uses a session: text without control characters."""
    return isinstance(subject, str) and 0 < len(subject) <= MAX_SUBJECT and subject.isprintable()


def digest(credential: str) -> str:
    """Names a token or a cookie where the credential itself must not be stored."""
    return hashlib.sha256(credential.encode()).hexdigest()
