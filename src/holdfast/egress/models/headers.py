"""Decides which paths and headers of a request and an answer are forwarded. Pure; all input is untrusted.

Only headers that agents need are forwarded, instead of blocking dangerous ones. So a credential under a new name is
dropped, and a box cannot identify itself to a provider as anything but its run.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from holdfast.api.model.models import Api

PREFIX: Final = b"/model"
_MAX_QUERY: Final = 2000
_QUERY: Final = re.compile(rb"[A-Za-z0-9._~%&=+,-]*")
_VALUE: Final = re.compile(rb"[\t -~]*")

Header = tuple[bytes, bytes]


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """A request for an answer of the model."""

    api: Api
    path: str
    """Appended to the base URL of that API."""
    is_free: bool = False
    """Whether providers charge nothing for it."""


Local = Literal["models", "alive"]
"""Requests that are answered here: the list of models, and a health check."""

_POSTS: Final[Mapping[bytes, ModelRequest]] = {
    b"/v1/chat/completions": ModelRequest(Api.OPENAI_CHAT, "/chat/completions"),
    b"/v1/responses": ModelRequest(Api.OPENAI_RESPONSES, "/responses"),
    b"/v1/responses/compact": ModelRequest(Api.OPENAI_RESPONSES, "/responses/compact"),
    b"/v1/messages": ModelRequest(Api.ANTHROPIC, "/v1/messages"),
    b"/v1/messages/count_tokens": ModelRequest(Api.ANTHROPIC, "/v1/messages/count_tokens", True),
}


def find_route(method: str, raw_path: bytes) -> ModelRequest | Local | None:
    """Compares the bytes of the path as received. Any other spelling is not found."""
    if not raw_path.startswith(PREFIX):
        return None
    path = raw_path[len(PREFIX) :]
    if method == "POST":
        return _POSTS.get(path)
    if method in ("GET", "HEAD") and (path == b"/v1/models" or path.startswith(b"/v1/models/")):
        return "models"
    if method == "HEAD" and path in (b"", b"/", b"/v1", b"/v1/"):
        return "alive"
    return None


def forwarded_query(query: bytes) -> str | None:
    """Returns None if the query is not one that agents send."""
    return query.decode() if len(query) <= _MAX_QUERY and _QUERY.fullmatch(query) else None


_SENT: Final = frozenset(
    (
        b"accept",
        b"accept-language",
        b"content-encoding",
        b"content-length",
        b"content-type",
        b"conversation_id",
        b"http-referer",
        b"idempotency-key",
        b"originator",
        b"session-id",
        b"session_id",
        b"thread-id",
        b"user-agent",
        b"version",
        b"x-app",
        b"x-title",
    )
)
_SENT_PREFIXES: Final = (
    b"anthropic-",
    b"openai-",
    b"x-claude-",
    b"x-client-",
    b"x-codex-",
    b"x-session-",
    b"x-stainless-",
)
_NEVER_SENT: Final = frozenset((b"openai-organization", b"openai-project", b"anthropic-organization-id"))
"""The key determines who pays."""


def headers_for_provider(headers: Iterable[Header], api: Api, key: str | None) -> list[Header]:
    """Returns the headers for the provider: those of the agent that are forwarded, and the key."""
    pairs = [(name.lower(), value) for name, value in headers]
    named = {token.strip().lower() for name, value in pairs if name == b"connection" for token in value.split(b",")}
    sent = [
        (name, value)
        for name, value in pairs
        if (name in _SENT or name.startswith(_SENT_PREFIXES))
        and name not in _NEVER_SENT
        and name not in named
        and _VALUE.fullmatch(value)
    ]
    # Keys can be found only in uncompressed answers, which also need not wait for a compressor.
    sent.append((b"accept-encoding", b"identity"))
    if api is Api.ANTHROPIC:
        if not any(name == b"anthropic-version" for name, _ in sent):
            sent.append((b"anthropic-version", b"2023-06-01"))
        if key is not None:
            sent.append((b"x-api-key", key.encode()))
    elif key is not None:
        sent.append((b"authorization", b"Bearer " + key.encode()))
    return sent


_KEPT_BACK: Final = frozenset(
    (
        # of this connection alone
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
        # of the account, or meant for browsers
        b"alt-svc",
        b"anthropic-organization-id",
        b"openai-organization",
        b"openai-project",
        b"set-cookie",
        b"strict-transport-security",
        b"www-authenticate",
    )
)


def headers_for_agent(answered: Iterable[Header]) -> list[Header]:
    """Returns the headers for the agent: those of the provider that are forwarded."""
    pairs = [(name.lower(), value) for name, value in answered]
    named = {token.strip().lower() for name, value in pairs if name == b"connection" for token in value.split(b",")}
    return [(name, value) for name, value in pairs if name not in _KEPT_BACK and name not in named]
