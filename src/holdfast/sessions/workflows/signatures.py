"""Resume tokens of approvals, and the signatures of webhooks. Pure, but for the secret.

A resume token follows from the server's secret and names one approval. It is stored nowhere: the thread has its digest,
and people with an API key are shown it. A webhook is signed with a secret that follows from its trigger.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from typing import Final

from holdfast.api.errors import Unauthorized

WINDOW_SECONDS: Final = 300
"""How old, or how far ahead, the timestamp of a webhook may be."""
TIMESTAMP: Final = "x-holdfast-timestamp"
SIGNATURE: Final = "x-holdfast-signature"
_VERSION: Final = "v1"


class WorkflowKeys:
    def __init__(self, secret: bytes) -> None:
        """`secret` has 32 bytes and is used only for this."""
        self._secret = secret

    def resume_token(self, execution: str, step: str) -> str:
        return self._derive("resume", execution, step)

    def webhook_secret(self, trigger: str, generation: str | int) -> str:
        """`generation` is chosen anew for each trigger, because ids with a key come again."""
        return f"whsec_{self._derive('webhook', trigger, str(generation))}"

    def _derive(self, *parts: str) -> str:
        return hmac.digest(self._secret, "\n".join(parts).encode(), hashlib.sha256).hex()


def digest_of(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def is_token(token: str, digest: str | None) -> bool:
    """Whether a token has this digest. Takes as long for a wrong one."""
    return digest is not None and hmac.compare_digest(digest_of(token).encode(), digest.encode())


def sign(secret: str, timestamp: str, body: bytes) -> str:
    """Returns the signature of a webhook, as the sender puts it into its header."""
    signed = hmac.digest(secret.encode(), f"{_VERSION}:{timestamp}:".encode() + body, hashlib.sha256)
    return f"{_VERSION}={signed.hex()}"


def check_webhook(secret: str, timestamp: str | None, signature: str | None, body: bytes, now: int) -> str:
    """Returns an id of the delivery, the same one for a repetition. `now` is in UTC milliseconds. Raises
    `Unauthorized`, with the same message for everything that can be wrong.
    """
    refused = Unauthorized("there is no such webhook, or its signature is wrong or too old")
    if timestamp is None or signature is None or re.fullmatch(r"[0-9]{1,12}", timestamp) is None:
        raise refused
    genuine = hmac.compare_digest(sign(secret, timestamp, body).encode(), signature.encode("utf-8", "replace"))
    if not genuine or abs(now / 1000 - int(timestamp)) > WINDOW_SECONDS:
        raise refused
    return hashlib.sha256(signature.encode()).hexdigest()
