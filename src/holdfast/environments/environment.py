"""An environment as values: what a recipe says, parsed and checked. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.api.box.network import NetworkPolicy
from holdfast.api.environments import Service


@dataclass(frozen=True, slots=True)
class Repository:
    url: str
    ref: str | None = None


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
class Environment:
    """None and empty mean that the recipe does not say."""

    name: str | None = None
    provider: str | None = None
    image: str | None = None
    recipe: Mapping[str, Any] | None = None
    """A recipe of an image, as in docs/images.md, instead of a name."""
    repositories: tuple[Repository, ...] = ()
    setup: tuple[str, ...] = ()
    inputs: tuple[str, ...] = ()
    """Files of the workspace that the setup commands read."""
    agent: str | None = None
    models: tuple[str, ...] = ()
    """In order of preference."""
    secrets: tuple[str, ...] = ()
    optional_secrets: tuple[str, ...] = ()
    egress: NetworkPolicy | None = None
    limits: Limits = Limits()
    test: str | None = None
    checkpoints: str | None = None
    services: tuple[Service, ...] = ()
    budget: Mapping[str, float] | None = None
    """Dollars, by what they are for: `run`, `thread`."""


def digest_of(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
