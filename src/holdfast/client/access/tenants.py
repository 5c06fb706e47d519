"""The tenants of a server and the members of a tenant. Needs an API key of an owner."""

from __future__ import annotations

from urllib.parse import quote

from holdfast.api.access.keys import CreatedKey, NewKey
from holdfast.api.access.tenants import (
    CreatedTenant,
    NewTenant,
    NewTenantMember,
    TenantList,
    TenantMember,
    TenantMemberList,
    TenantQuotas,
    TenantRecord,
    TenantRole,
)
from holdfast.api.errors import NotFound
from holdfast.api.thread.threads import EntryPage
from holdfast.client.connection import ServerConnection, encode_json


class Tenants:
    """The tenants of one server, for owners of its default tenant: `client.tenants`."""

    def __init__(self, connection: ServerConnection) -> None:
        self._connection = connection

    async def create(self, name: str) -> CreatedTenant:
        """Create a tenant. The key of its first owner is returned only once."""
        body = encode_json(NewTenant(name=name).to_request())
        # If the response is lost, a retry would find the tenant there, and its key would be lost.
        answer = await self._connection.ask("POST", "/v1/tenants", body=body, repeatable=False)
        return answer.read(CreatedTenant.from_json)

    async def create_key(self, tenant: str, name: str) -> CreatedKey:
        """Create an API key of a tenant, for an owner who has lost theirs."""
        body = encode_json(NewKey(name=name).to_request())
        path = f"/v1/tenants/{quote(tenant, safe='')}/keys"
        return (await self._connection.ask("POST", path, body=body, repeatable=False)).read(CreatedKey.from_json)

    async def quotas(self, name: str) -> TenantQuotas:
        """Returns what a tenant may use at most."""
        answer = await self._connection.ask("GET", f"/v1/tenants/{quote(name, safe='')}/quotas")
        return answer.read(TenantQuotas.from_json)

    async def limit(self, name: str, quotas: TenantQuotas) -> TenantQuotas:
        """Set what a tenant may use at most, from now on."""
        body = encode_json(quotas.to_json())
        answer = await self._connection.ask("PUT", f"/v1/tenants/{quote(name, safe='')}/quotas", body=body)
        return answer.read(TenantQuotas.from_json)

    async def list(self) -> list[TenantRecord]:
        """Returns all tenants beside the default one."""
        return list((await self._connection.ask("GET", "/v1/tenants")).read(TenantList.from_json).tenants)

    async def remove(self, name: str) -> None:
        """Remove a tenant with its threads, keys and settings. Refused while it has boxes."""
        try:
            await self._connection.ask("DELETE", f"/v1/tenants/{quote(name, safe='')}")
        except NotFound as error:
            if not error.repeated:
                raise


class Members:
    """The members of the caller's tenant: `client.members`."""

    def __init__(self, connection: ServerConnection) -> None:
        self._connection = connection

    async def put(self, name: str, role: TenantRole) -> TenantMember:
        """Add a member, or change the role of one."""
        body = encode_json(NewTenantMember(role=role).to_json())
        answer = await self._connection.ask("PUT", f"/v1/members/{quote(name, safe='')}", body=body)
        return answer.read(TenantMember.from_json)

    async def audit(self, since: str = "-1", limit: int = 100) -> EntryPage:
        """Returns who changed what in the tenant, oldest first, from an offset of an earlier page."""
        path = f"/v1/audit?since={quote(since, safe='')}&limit={limit}"
        return (await self._connection.ask("GET", path)).read(EntryPage.from_json)

    async def list(self) -> list[TenantMember]:
        return list((await self._connection.ask("GET", "/v1/members")).read(TenantMemberList.from_json).members)

    async def remove(self, name: str) -> None:
        """Remove a member, and revoke all their keys."""
        try:
            await self._connection.ask("DELETE", f"/v1/members/{quote(name, safe='')}")
        except NotFound as error:
            if not error.repeated:
                raise
