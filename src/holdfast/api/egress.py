"""The network policies of environments, and decisions about requests of boxes."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.api.box.network import NetworkPolicy
from holdfast.api.document import Document


@dataclass(frozen=True, slots=True)
class EnvironmentPolicy(Document):
    """What boxes of an environment may reach if their own spec lists nothing."""

    environment: str
    network: NetworkPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentPolicyList(Document):
    policies: tuple[EnvironmentPolicy, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DefaultRule(Document):
    rule: str
    source: str
    """The program that uses it: pip, npm, apt, cargo, git."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DefaultList(Document):
    """The rules that `default` stands for in a list of rules."""

    rules: tuple[DefaultRule, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class EgressDecision(Document):
    """The decision about one request of a box, or about several similar ones."""

    id: str
    at: int
    """UTC milliseconds."""
    host: str
    """Empty if the request named none."""
    port: int
    method: str
    """`CONNECT` for HTTPS and everything else that uses a tunnel."""
    allowed: bool
    failed: bool
    """It was allowed but failed: the name has no address, or the host did not answer."""
    why: str
    """The rule that allowed it, or the reason why it was refused."""
    count: int
    """How many requests this record stands for: many similar requests share one."""
    sent: int
    """Bytes sent by the box."""
    received: int
    milliseconds: int | None
    """None while it is in progress."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EgressDecisionPage(Document):
    decisions: tuple[EgressDecision, ...]
    """Newest first."""
    next_cursor: str | None
