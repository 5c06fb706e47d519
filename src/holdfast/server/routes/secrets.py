"""REST: secrets that boxes use without seeing them. Values are never returned."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from holdfast.api.secrets import (
    RotateSecret,
    SecretEventList,
    SecretName,
    SecretRecord,
    SecretRecordList,
    SetSecret,
)
from holdfast.server.routes.requests import BOX_ERRORS
from holdfast.server.routes.services import Administrator, UseSecrets

router = APIRouter(prefix="/v1", responses=BOX_ERRORS, tags=["secrets"])


@router.get("/secrets")
async def list_secrets(secrets: UseSecrets) -> SecretRecordList:
    """List secrets by name: where they may go, not what they are."""
    return SecretRecordList(secrets=tuple(secrets.all()))


@router.get("/secrets/{name}")
async def get_secret(name: SecretName, secrets: UseSecrets) -> SecretRecord:
    """Get where a secret may go, and when it changed. Its value is not returned."""
    return secrets.get(name)


@router.put("/secrets/{name}")
async def set_secret(name: SecretName, wanted: SetSecret, secrets: UseSecrets, caller: Administrator) -> SecretRecord:
    """Store a secret, in place of the one of that name. Other bindings need the value again."""
    return await secrets.set(
        name,
        wanted.value,
        wanted.bindings,
        expose=wanted.expose,
        placeholder=wanted.placeholder,
        by=caller.user,
    )


@router.post("/secrets/{name}/rotate")
async def rotate_secret(
    name: SecretName, wanted: RotateSecret, secrets: UseSecrets, caller: Administrator
) -> SecretRecord:
    """Give a secret a new value. The next request of every box uses it, and the earlier value is gone."""
    return await secrets.rotate(name, wanted.value, by=caller.user)


@router.delete("/secrets/{name}", status_code=204)
async def remove_secret(name: SecretName, secrets: UseSecrets, caller: Administrator) -> None:
    """Remove a secret. Boxes can no longer use it. Its events are kept."""
    await secrets.remove(name, by=caller.user)


@router.get("/secrets/{name}/events")
async def list_secret_events(
    name: SecretName, secrets: UseSecrets, limit: Annotated[int, Query(ge=1, le=1000)] = 100
) -> SecretEventList:
    """List who changed a secret, and which boxes used it where, newest first. Also of a removed secret."""
    return SecretEventList(events=tuple(await secrets.events(name, limit)))
