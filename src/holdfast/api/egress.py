"""Policies of environments, and what was decided about what boxes asked for."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.api.box.network import NetworkPolicy
from holdfast.api.document import Document


@dataclass(frozen=True, slots=True)
class EnvironmentPolicy(Document):
    """What boxes of an environment may reach if they list nothing themselves."""

    environment: str
    network: NetworkPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentPolicyList(Document):
    policies: tuple[EnvironmentPolicy, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DefaultRule(Document):
    rule: str
    source: str
    """Whose it is: pip, npm, apt, cargo, git."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DefaultList(Document):
    """What `default` stands for in a list of rules."""

    rules: tuple[DefaultRule, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class EgressDecision(Document):
    """What was decided about one request of a box, or about several that are alike."""

    id: str
    at: int
    """UTC milliseconds."""
    host: str
    """Empty if the request named none."""
    port: int
    method: str
    """`CONNECT` for HTTPS, and whatever else goes through a tunnel."""
    allowed: bool
    failed: bool
    """It was allowed, and came to nothing: the name had no address, or nobody answered there."""
    why: str
    """The rule that allowed it, or what speaks against it."""
    count: int
    """How many this stands for: like ones that came in a flood share a record."""
    sent: int
    """Bytes out of the box."""
    received: int
    milliseconds: int | None
    """None while it is in progress."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EgressDecisionPage(Document):
    decisions: tuple[EgressDecision, ...]
    """The newest first."""
    next_cursor: str | None
