"""Tenants of a server, their members, and what each role may do. Times are UTC milliseconds."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Final

from holdfast.api.access.keys import CreatedKey
from holdfast.api.document import Document, Limits

DEFAULT_TENANT: Final = "default"
"""The tenant of the server's own home. Its owners administer the server."""
TENANT_NAME: Final = r"[a-z][a-z0-9]{0,15}"
"""Short, and without a dash: the name is part of credentials and of host names."""
MEMBER_NAME: Final = r"[A-Za-z0-9][A-Za-z0-9._@+-]{0,127}"

TenantName = Annotated[str, Limits(pattern=f"^{TENANT_NAME}$")]
MemberName = Annotated[str, Limits(pattern=f"^{MEMBER_NAME}$")]


class TenantRole(StrEnum):
    """What a member or a key may do in its tenant. Each role includes the next one."""

    OWNER = "owner"
    """Everything: also members, keys, models, secrets, providers and budgets."""
    MEMBER = "member"
    """Work: threads, boxes, runs, sessions, interpreters, environments."""
    VIEWER = "viewer"
    """Read, and change nothing."""

    @property
    def rank(self) -> int:
        return _RANKS[self]

    def includes(self, other: TenantRole) -> bool:
        return self.rank >= other.rank


_RANKS: Final = {TenantRole.VIEWER: 0, TenantRole.MEMBER: 1, TenantRole.OWNER: 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTenant(Document):
    name: TenantName


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantRecord(Document):
    name: str
    created_at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantList(Document):
    tenants: tuple[TenantRecord, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CreatedTenant(Document):
    """A new tenant, and the API key of its first owner, which is returned only this once."""

    tenant: TenantRecord
    key: CreatedKey


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantQuotas(Document):
    """What a tenant may use at most. None is no limit."""

    requests: Annotated[float, Limits(gt=0, le=1_000_000, allow_inf_nan=False)] | None = None
    """Requests a second. Twice as many may come at once."""
    boxes: Annotated[int, Limits(ge=0, le=1_000_000, strict=True)] | None = None
    runs: Annotated[int, Limits(ge=0, le=1_000_000, strict=True)] | None = None
    """Runs at once."""
    storage: Annotated[int, Limits(ge=0, strict=True)] | None = None
    """Bytes of the database: threads and settings. The files of boxes have limits of their own."""
    spend: Annotated[float, Limits(ge=0, le=1_000_000, allow_inf_nan=False)] | None = None
    """Dollars for models in a day, in UTC."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTenantMember(Document):
    role: TenantRole = TenantRole.MEMBER


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantMember(Document):
    """A person of a tenant. Their keys and logins have their role, at any time."""

    name: str
    role: TenantRole
    created_at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantMemberList(Document):
    members: tuple[TenantMember, ...]
