"""API keys, and tokens and links for one thread. Times are UTC milliseconds."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Literal

from holdfast.api.document import Document, Limits
from holdfast.api.limits import MAX_TOKEN_SECONDS

TokenSeconds = Annotated[int, Limits(ge=1, le=MAX_TOKEN_SECONDS, strict=True)]


class Scope(StrEnum):
    """What a token allows."""

    READ = "read"
    WRITE = "write"
    """Includes reading, because a writer has to know the thread."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewKey(Document):
    name: Annotated[str, Limits(min_length=1, max_length=200)]
    role: Literal["owner", "member", "viewer"] = "owner"
    """What the key may do at most."""
    member: Annotated[str, Limits(min_length=1, max_length=128)] | None = None
    """The member whose key it is. It never does more than the role of its member allows, and ends with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Key(Document):
    """An API key, without its secret."""

    id: str
    name: str
    created_at: int
    revoked_at: int | None
    role: str = "owner"
    member: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyList(Document):
    keys: tuple[Key, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CreatedKey(Document):
    """A new API key with its secret. The server stores only the digest, so this is the only time that it is shown."""

    id: str
    name: str
    created_at: int
    key: str = field(repr=False)

    @property
    def secret(self) -> str:
        return self.key


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller(Document):
    """Who a request comes from, as its credential says."""

    tenant: str
    user: str
    """The name of the API key. `default` if the server requires no key, or the key is the one of the server's home."""
    key: str | None = None
    """The id of the API key."""
    role: str = "owner"
    """What the caller may do: `owner`, `member` or `viewer`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewToken(Document):
    scope: Scope = Scope.READ
    ttl_seconds: TokenSeconds = 7200


@dataclass(frozen=True, slots=True, kw_only=True)
class Token(Document):
    """A credential for one thread and one scope."""

    token: str = field(repr=False)
    thread: str
    scope: Scope
    expires_at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NewLink(Document):
    ttl_seconds: TokenSeconds = 24 * 3600


@dataclass(frozen=True, slots=True, kw_only=True)
class Link(Document):
    """A link to the page of a thread, for reading."""

    path: str
    """The URL of the thread's page, with its key in the fragment, which browsers never send."""
    expires_at: int
