"""Records of boxes as JSON, in labels at a cloud or in files of the home."""

from __future__ import annotations

import json
from typing import ClassVar, Self

from holdfast.api.document import Document
from holdfast.api.errors.boxes import InvalidSpec


class StoredRecord(Document):
    """A subclass is a frozen dataclass with slots, and names its fields once. New fields need a default."""

    __slots__ = ()
    exact_types: ClassVar[bool] = True

    def to_text(self) -> str:
        return json.dumps(self.to_json(), separators=(",", ":"))

    @classmethod
    def from_text(cls, text: str) -> Self | None:
        """Returns None for what is not a record: other programs of the account can change labels."""
        try:
            return cls.from_json(json.loads(text))
        except (AttributeError, InvalidSpec, LookupError, TypeError, ValueError):
            return None
