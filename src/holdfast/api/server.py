"""What a server says of itself, and the shape of its errors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from holdfast.api.document import Document


@dataclass(frozen=True, slots=True, kw_only=True)
class Health(Document):
    status: Literal["ok"] = "ok"
    version: str
    started_at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorDetail(Document):
    code: str
    message: str
    hint: str | None = None
    """What to do next, where that is not plain from the message."""
    request_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorAnswer(Document):
    error: ErrorDetail
