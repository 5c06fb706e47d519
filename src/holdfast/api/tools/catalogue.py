"""All operations, by name and by group."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Final

from holdfast.api.run.tasks import ToolDefinition
from holdfast.api.tools import channels, children, github, mailbox, memories, secrets, tasks, workflows
from holdfast.api.tools.operation import Operation

ALL: Final = (
    *children.OPERATIONS,
    *memories.OPERATIONS,
    *tasks.OPERATIONS,
    *mailbox.OPERATIONS,
    *workflows.OPERATIONS,
    *github.OPERATIONS,
    *channels.OPERATIONS,
    *secrets.OPERATIONS,
)
BY_NAME: Final[Mapping[str, Operation]] = MappingProxyType({each.name: each for each in ALL})


def tools_of(groups: Collection[str]) -> tuple[ToolDefinition, ...]:
    """Returns the tools that the agent of a session with these groups is offered."""
    return tuple(each.definition for each in ALL if each.for_agents and each.group in groups)
