"""The contract of a store of workflows, triggers, and the list of executions. `holdfast.testing.store_suites` tests
implementations.

What happens in an execution is on its thread. Its row only tells which threads there are to look at.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol


class WorkflowKind(StrEnum):
    WORKFLOW = "workflow"
    TRIGGER = "trigger"
    EXECUTION = "execution"


@dataclass(frozen=True, slots=True)
class WorkflowRow:
    kind: WorkflowKind
    id: str
    group: str
    """What rows of its kind are listed by: the workflow of a trigger or of an execution."""
    document: Mapping[str, Any]
    created_at: int
    is_open: bool = False
    """Of an execution: whether it has not ended. Of a trigger: whether it is enabled."""


class WorkflowStore(Protocol):
    """The rows of one tenant. A change is on disk when its call returns."""

    async def put(self, row: WorkflowRow, most: int | None = None) -> bool:
        """Add a row, or replace that of the same kind and id. Returns False, and changes nothing, if there are `most`
        of its kind already and this is a new one.
        """
        ...

    async def get(self, kind: WorkflowKind, id: str) -> WorkflowRow | None: ...

    async def list(
        self, kind: WorkflowKind, *, group: str | None = None, only_open: bool = False, limit: int
    ) -> list[WorkflowRow]:
        """Returns rows, the newest first."""
        ...

    async def remove(self, kind: WorkflowKind, id: str) -> bool: ...
