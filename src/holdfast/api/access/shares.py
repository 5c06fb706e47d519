"""Shares: a thread as a page that whoever has the link may read. Times are UTC milliseconds."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Final

from holdfast.api.document import Document, Limits

MAX_SHARE_SECONDS: Final = 90 * 24 * 3600


@dataclass(frozen=True, slots=True, kw_only=True)
class NewShare(Document):
    ttl_seconds: Annotated[int, Limits(ge=60, le=MAX_SHARE_SECONDS, strict=True)] = 7 * 24 * 3600


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareRecord(Document):
    id: str
    thread: str
    created_by: str
    created_at: int
    expires_at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CreatedShare(Document):
    """A new share with its link, which is returned only this once."""

    share: ShareRecord
    path: str = field(repr=False)
    """The URL of the page on this server."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareList(Document):
    shares: tuple[ShareRecord, ...]
