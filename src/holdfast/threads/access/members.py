"""The contracts of the stores of members and of tenants."""

from __future__ import annotations

from typing import Protocol

from holdfast.api.access.tenants import TenantMember, TenantQuotas, TenantRecord, TenantRole


class MemberStore(Protocol):
    """The members of one tenant."""

    async def find(self, name: str) -> TenantMember | None: ...

    async def list(self) -> list[TenantMember]:
        """Returns all members, by name."""
        ...

    async def put(self, name: str, role: TenantRole, now: int) -> TenantMember:
        """Add a member, or change the role of one. `created_at` stays."""
        ...

    async def remove(self, name: str, now: int) -> bool:
        """Remove a member and revoke their keys. Returns False if there is no such member."""
        ...


class TenantStore(Protocol):
    """The tenants of a server beside the default one."""

    async def list(self) -> list[TenantRecord]:
        """Returns all tenants, by name."""
        ...

    async def add(self, name: str, now: int) -> bool:
        """Returns False if there is one of that name."""
        ...

    async def remove(self, name: str) -> bool: ...

    async def quotas(self) -> dict[str, TenantQuotas]:
        """Returns the quotas of the tenants that have any."""
        ...

    async def put_quotas(self, name: str, quotas: TenantQuotas) -> None: ...
