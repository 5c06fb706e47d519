"""An environment as values: what a recipe says, parsed and checked. Pure."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

from holdfast.api.box.network import NetworkPolicy
from holdfast.api.environments import Service
from holdfast.api.model.budgets import Budget


@dataclass(frozen=True, slots=True)
class Limits:
    """None leaves a limit to the provider."""

    cpu: float | None = None
    memory: int | None = None
    """Bytes."""
    disk: int | None = None
    pids: int | None = None
    timeout: int | None = None
    """Seconds of a run."""


@dataclass(frozen=True, slots=True)
class Repository:
    """A further repository to clone into the workspace."""

    url: str
    ref: str | None
    path: str
    """The folder for it, below the workspace."""

    def __str__(self) -> str:
        return self.url if self.ref is None else f"{self.url}@{self.ref}"


@dataclass(frozen=True, slots=True)
class Environment:
    """None and empty mean that the recipe does not say."""

    name: str | None = None
    provider: str | None = None
    image: str | None = None
    setup: tuple[str, ...] = ()
    inputs: tuple[str, ...] = ()
    """Files of the workspace that the setup commands read."""
    repositories: tuple[Repository, ...] = ()
    services: tuple[Service, ...] = ()
    agent: str | None = None
    models: tuple[str, ...] = ()
    """In order of preference."""
    secrets: tuple[str, ...] = ()
    optional_secrets: tuple[str, ...] = ()
    egress: NetworkPolicy | None = None
    limits: Limits = Limits()
    test: str | None = None
    budget: Budget = field(default_factory=Budget)
    """Of a run."""
    checkpoints: str | None = None
    """`every` or `off`."""


def digest_of(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
