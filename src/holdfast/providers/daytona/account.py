"""The account at Daytona: the key, the address of the API, and where sandboxes are made."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

API_URL: Final = "https://app.daytona.io/api"


@dataclass(frozen=True, slots=True)
class Account:
    api_key: str = field(repr=False)
    api_url: str = API_URL
    target: str | None = None
    """The region of new sandboxes. By default, that of the organization."""
    organization: str | None = None
    """For keys that are valid in several organizations."""
