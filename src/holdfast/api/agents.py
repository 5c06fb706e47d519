"""Agents that runs can be launched with."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.api.document import Document
from holdfast.api.model_apis import Api


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferedModel(Document):
    """A model that the agent can be used with."""

    name: str
    model: str | None
    """Which of its models is meant if nobody says. Any other that its provider has can be asked for."""
    api: Api
    """What the two speak."""
    is_ready: bool
    """It has a key, or wants none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentRecord(Document):
    name: str
    """What it is asked for by."""
    title: str
    version: str | None
    """The version that its first run installs. None if it has to be in the box already."""
    apis: tuple[Api, ...]
    """That it speaks, the best first."""
    models: tuple[OfferedModel, ...]
    """Those that can be used first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentList(Document):
    agents: tuple[AgentRecord, ...]
