"""Operations as the REST API lists them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from holdfast.api.document import Document
from holdfast.api.tools.operation import Operation, ToolGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolRecord(Document):
    name: str
    group: ToolGroup
    route: str
    """Method and path of the internal API."""
    description: str
    input_schema: dict[str, Any]
    result: str
    """The fields of the answer."""

    @classmethod
    def of(cls, operation: Operation) -> ToolRecord:
        return cls(
            name=operation.name,
            group=operation.group,
            route=operation.route,
            description=operation.description,
            input_schema=operation.input_schema,
            result=operation.result,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolList(Document):
    tools: tuple[ToolRecord, ...]
