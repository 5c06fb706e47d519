"""What a session's thread says about its gateway: members, tunnels, revocations. Pure.

Only entries with the server's seal for this thread count. A fork of the thread has none of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from holdfast.api.errors import Conflict, InvalidRequest
from holdfast.api.session.gateway import MAX_MEMBERS, Role
from holdfast.gateway.tunnel.tunnels import Tunnels, parse_tunnel, with_tunnel

PREFIX: Final = "signal.gateway."
TUNNEL: Final = "signal.gateway.tunnel"
"""There is a tunnel of this name from here on, or none."""
MEMBER: Final = "signal.gateway.member"
"""Somebody has a role from here on, or none."""
REVOKED: Final = "signal.gateway.revoked"
"""A generation of tokens and cookies begins, or one token or cookie is no longer valid."""


@dataclass(frozen=True, slots=True)
class GatewayRecord:
    """The state of a session's gateway."""

    generation: int = 0
    """How often all tokens and cookies were revoked."""
    members: Mapping[str, Role] = field(default_factory=dict)
    tunnels: Tunnels = field(default_factory=dict)
    revoked: Mapping[str, int] = field(default_factory=dict)
    """Digests of revoked tokens and cookies, and until when what came from them could be valid, in seconds."""
    life: str = ""
    """Tells this thread from an earlier one that had its id and was deleted."""

    @property
    def epoch(self) -> str:
        """Tokens and cookies are valid in the epoch in which they were issued."""
        return f"{self.life}/{self.generation}"

    def allows(self, epoch: str, credentials: Iterable[str]) -> bool:
        """Whether none of these credentials was revoked. `epoch` is the one in which they were issued."""
        return epoch == self.epoch and self.revoked.keys().isdisjoint(credentials)


def fold(record: GatewayRecord, payload: Mapping[str, Any]) -> GatewayRecord:
    """Returns the state after an entry with the server's seal. An entry that says nothing changes nothing."""
    match payload.get("type"):
        case "signal.gateway.tunnel":
            return _with_tunnel(record, payload.get("name"), payload.get("tunnel"))
        case "signal.gateway.member":
            return _with_member(record, payload.get("subject"), payload.get("role"))
        case "signal.gateway.revoked":
            return _revoke(record, payload)
    return record


def _with_tunnel(record: GatewayRecord, name: Any, value: Any) -> GatewayRecord:
    if value is None:
        return replace(record, tunnels={each: tunnel for each, tunnel in record.tunnels.items() if each != name})
    try:
        return replace(record, tunnels=with_tunnel(record.tunnels, parse_tunnel(value)))
    except (InvalidRequest, Conflict):
        return record  # written by another version


def _with_member(record: GatewayRecord, subject: Any, role: Any) -> GatewayRecord:
    if not isinstance(subject, str):
        return record
    others = {name: known for name, known in record.members.items() if name != subject}
    if role in list(Role) and len(others) < MAX_MEMBERS:
        others[subject] = Role(role)
    return replace(record, members=others)


def _revoke(record: GatewayRecord, payload: Mapping[str, Any]) -> GatewayRecord:
    generation, token, until = payload.get("generation"), payload.get("token"), payload.get("until")
    if type(generation) is int and generation > record.generation:
        return replace(record, generation=generation, revoked={})  # no earlier token is valid anyway
    if isinstance(token, str) and type(until) is int:
        return replace(record, revoked={**record.revoked, token: until})
    return record


def without_expired(record: GatewayRecord, now: float) -> GatewayRecord:
    """Forget revocations of what is no longer valid anyway. `now` is in seconds."""
    live = {token: until for token, until in record.revoked.items() if until > now}
    return record if len(live) == len(record.revoked) else replace(record, revoked=live)
