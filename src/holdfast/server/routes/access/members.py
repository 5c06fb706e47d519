"""REST: the members of a tenant, and the tenants of a server."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Path, Query
from fastapi.responses import Response

from holdfast.api.access.keys import CreatedKey, NewKey
from holdfast.api.access.tenants import (
    MEMBER_NAME,
    TENANT_NAME,
    CreatedTenant,
    NewTenant,
    NewTenantMember,
    TenantList,
    TenantMember,
    TenantMemberList,
    TenantQuotas,
    TenantRole,
)
from holdfast.api.errors import Conflict, Forbidden, InvalidRequest, NotFound
from holdfast.api.thread.entries import Entry
from holdfast.api.thread.threads import EntryPage
from holdfast.server.routes.services import THREAD_ERRORS, Administrator, Use, answer
from holdfast.server.tenant.tenants import Tenants
from holdfast.threads.protocol.offsets import format_offset_text, parse_offset

router = APIRouter(prefix="/v1", responses=THREAD_ERRORS)

MemberName = Annotated[str, Path(pattern=f"^{MEMBER_NAME}$")]
TenantName = Annotated[str, Path(pattern=f"^{TENANT_NAME}$")]


# --- members ---


@router.get("/members", tags=["members"])
async def list_members(services: Use, _: Administrator) -> TenantMemberList:
    """List the members of your tenant."""
    return TenantMemberList(members=tuple(await services.members.list()))


@router.put("/members/{name}", tags=["members"])
async def put_member(name: MemberName, new: NewTenantMember, services: Use, grant: Administrator) -> TenantMember:
    """Add a member, or change the role of one. It holds at once, also for keys that they have."""
    if grant.user == name and new.role is not TenantRole.OWNER:
        raise Conflict("you cannot take the role of owner from yourself", hint="ask another owner")
    member = await services.members.put(name, new.role, services.access.now())
    await services.access.review()
    return member


@router.delete("/members/{name}", status_code=204, tags=["members"])
async def remove_member(name: MemberName, services: Use, grant: Administrator) -> None:
    """Remove a member, and revoke all their keys."""
    if grant.user == name:
        raise Conflict("you cannot remove yourself", hint="ask another owner")
    if not await services.members.remove(name, services.access.now()):
        raise NotFound(f"there is no member {name}", hint="list them with holdfast member list")
    await services.access.review()


@router.get("/audit", response_model=EntryPage, tags=["members"])
async def read_audit_log(
    services: Use,
    _: Administrator,
    since: Annotated[str, Query(description="An offset from an earlier answer, or `-1` for the beginning.")] = "-1",
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> Response:
    """Who changed what in your tenant, oldest first. To follow it live, read the stream `holdfast/audit`."""
    start = 0 if since == "-1" else parse_offset(since)
    entries, end, up_to_date = await services.audit.entries(start, limit)
    page = EntryPage(
        entries=tuple(map(Entry.from_json, entries)), next_offset=format_offset_text(end), up_to_date=up_to_date
    )
    return answer(page)


# --- tenants ---


async def _tenants(services: Use, _: Administrator) -> Tenants:
    if services.tenants is None:
        raise Forbidden("only owners of the default tenant administer tenants", hint="ask the operator of this server")
    return services.tenants


UseTenants = Annotated[Tenants, Depends(_tenants)]


@router.get("/tenants", tags=["tenants"])
async def list_tenants(tenants: UseTenants) -> TenantList:
    """List the tenants of this server, beside the default one."""
    return TenantList(tenants=tuple(await tenants.list()))


@router.post("/tenants", status_code=201, tags=["tenants"])
async def create_tenant(new: NewTenant, tenants: UseTenants) -> CreatedTenant:
    """Create a tenant. The API key of its first owner is returned only this once."""
    record, key, secret = await tenants.create(new.name)
    created = CreatedKey(id=key.id, name=key.name, created_at=key.created_at, key=secret)
    return CreatedTenant(tenant=record, key=created)


@router.delete("/tenants/{name}", status_code=204, tags=["tenants"])
async def remove_tenant(name: TenantName, tenants: UseTenants) -> None:
    """Remove a tenant with its threads, keys and settings. Refused while it has boxes."""
    await tenants.remove(name)


@router.get("/tenants/{name}/quotas", tags=["tenants"])
async def get_quotas(name: TenantName, tenants: UseTenants) -> TenantQuotas:
    """What a tenant may use at most."""
    await tenants.named(name)
    return tenants.quotas_of(name)


@router.put("/tenants/{name}/quotas", tags=["tenants"])
async def put_quotas(name: TenantName, quotas: TenantQuotas, tenants: UseTenants) -> TenantQuotas:
    """Set what a tenant may use at most, at once. Fields that are left out have no limit."""
    await tenants.limit(name, quotas)
    return quotas


@router.post("/tenants/{name}/keys", status_code=201, tags=["tenants"])
async def create_tenant_key(name: TenantName, new: NewKey, tenants: UseTenants) -> CreatedKey:
    """Create an API key of a tenant, for an owner who has lost theirs. It is returned only this once."""
    if new.member is not None:
        raise InvalidRequest("a key of a member is created in the tenant", hint="use POST /v1/keys with a key of it")
    tenant = await tenants.named(name)
    key, secret = await tenant.access.create_key(new.name, TenantRole(new.role))
    return CreatedKey(id=key.id, name=key.name, created_at=key.created_at, key=secret)
