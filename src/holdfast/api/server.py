"""The health of a server, and the format of its errors."""

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
    """What to do next, if the message does not make that clear."""
    request_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorAnswer(Document):
    error: ErrorDetail
