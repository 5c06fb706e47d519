"""Agents that runs can be launched with."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.api.document import Document
from holdfast.api.model.models import Api


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferedModel(Document):
    """A model that the agent can be used with."""

    name: str
    model: str | None
    """The default model. Any other model of the provider can be used too."""
    api: Api
    """The API that agent and model use."""
    is_ready: bool
    """Whether it has a key or needs none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentRecord(Document):
    name: str
    """The name for use in requests."""
    title: str
    version: str | None
    """The version that the first run installs. None if it must already be in the box."""
    apis: tuple[Api, ...]
    """The APIs that it supports, preferred one first."""
    models: tuple[OfferedModel, ...]
    """Usable models first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentList(Document):
    agents: tuple[AgentRecord, ...]
