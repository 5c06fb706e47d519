"""REST: API keys, and the renewal of tokens."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends
from fastapi.security import HTTPAuthorizationCredentials

from holdfast.api.access.keys import Caller, CreatedKey, Key, KeyList, NewKey, Token
from holdfast.api.access.tenants import TenantRole
from holdfast.api.errors import NotFound
from holdfast.server.routes.services import THREAD_ERRORS, Administrator, Use, bearer
from holdfast.threads.access.credentials import ApiKey, IssuedToken

router = APIRouter(prefix="/v1", responses=THREAD_ERRORS)


@router.post("/tokens/renew", tags=["tokens"])
async def renew_token(
    services: Use, credentials: Annotated[HTTPAuthorizationCredentials | None, Depends(bearer)]
) -> Token:
    """Exchange the thread token of this request for a new one."""
    return token_of(await services.access.renew(credentials.credentials if credentials else None))


@router.get("/caller", tags=["keys"])
async def get_caller(grant: Administrator) -> Caller:
    """Who you are to this server."""
    return grant.caller


@router.get("/keys", tags=["keys"])
async def list_keys(services: Use, _: Administrator) -> KeyList:
    """List API keys, including revoked ones. The keys themselves are not stored."""
    return KeyList(keys=tuple(map(_key, await services.access.list_keys())))


@router.post("/keys", status_code=201, tags=["keys"])
async def create_key(new: NewKey, services: Use, _: Administrator) -> CreatedKey:
    """Create an API key. It is returned only this once."""
    if new.member is not None and await services.members.find(new.member) is None:
        raise NotFound(f"there is no member {new.member}", hint="add one with holdfast member add NAME")
    key, secret = await services.access.create_key(new.name, TenantRole(new.role), new.member)
    return CreatedKey(id=key.id, name=key.name, created_at=key.created_at, key=secret)


@router.delete("/keys/{id}", status_code=204, tags=["keys"])
async def revoke_key(id: str, services: Use, _: Administrator) -> None:
    """Revoke an API key, at once."""
    if not await services.access.revoke_key(id):
        raise NotFound(f"there is no active API key {id}", hint="list keys with holdfast key list")


def token_of(issued: IssuedToken) -> Token:
    return Token(token=issued.token, thread=issued.thread, scope=issued.scope, expires_at=issued.expires_at)


def _key(key: ApiKey) -> Key:
    return Key(
        id=key.id,
        name=key.name,
        created_at=key.created_at,
        revoked_at=key.revoked_at,
        role=key.role.value,
        member=key.member,
    )
