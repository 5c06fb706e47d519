"""Logins of browsers. Times are UTC milliseconds."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from holdfast.api.document import Document, Limits


@dataclass(frozen=True, slots=True, kw_only=True)
class LoginLink(Document):
    """A link that logs one browser in, once."""

    path: str = field(repr=False)
    """The URL of the page, with the code in the fragment, which browsers never send."""
    expires_at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LoginCode(Document):
    code: Annotated[str, Limits(min_length=1, max_length=200)] = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoginRecord(Document):
    """A browser that is logged in."""

    id: str
    user: str
    role: str
    via: str
    """`link` or `oidc`."""
    created_at: int
    expires_at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LoginList(Document):
    logins: tuple[LoginRecord, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoginMethods(Document):
    """How a person can log in to this server, beside a link."""

    oidc: str | None = None
    """The name of the identity provider. `GET /login/oidc` goes there."""
