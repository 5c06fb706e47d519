"""REST: sharing a thread by a link, and the page that whoever has the link may read.

The page is that of `holdfast export --html`: it stands alone, has no script, and shows neither changes nor cost. The
secret is in its path, so that a link can be opened anywhere; our logs leave it out.
"""

from __future__ import annotations

import asyncio
import secrets
from typing import Final

from fastapi import APIRouter, Request
from fastapi.responses import Response

from holdfast.api.access.shares import CreatedShare, NewShare, ShareList, ShareRecord
from holdfast.api.errors import Conflict, NotFound
from holdfast.api.ids import new_id
from holdfast.api.limits import ThreadId
from holdfast.api.thread.entries import Entry
from holdfast.exports.page import MOST_ENTRIES, Exported, render
from holdfast.server.routes.services import THREAD_ERRORS, Administrator, Services, Use
from holdfast.threads.access.credentials import digest_key
from holdfast.threads.access.tenant_names import share_prefix, tenant_named

router = APIRouter(responses=THREAD_ERRORS)

_MOST: Final = 100
"""Shares of one thread."""
_PAGE: Final = 1000
_MOST_BYTES: Final = 16 * 1024 * 1024
"""Of a thread on its page. Whoever has the link may ask for it again and again."""
_HEADERS: Final = {
    "content-security-policy": (
        "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "referrer-policy": "no-referrer",
    "x-frame-options": "DENY",
    "x-robots-tag": "noindex",
    "cache-control": "no-store",
    "cross-origin-resource-policy": "same-origin",
}
_rendering = asyncio.Semaphore(2)
"""Long threads take a second. More visitors wait, and the rest of the server does not."""


@router.post("/v1/threads/{id}/shares", status_code=201, tags=["shares"])
async def share_thread(id: ThreadId, new: NewShare, services: Use, grant: Administrator) -> CreatedShare:
    """Create a link by which anybody can read this thread as a page, until it expires or is revoked."""
    row = await services.threads.get(id)
    now = services.access.now()
    await services.shares.remove_expired(now)
    if len(await services.shares.list(id)) >= _MOST:
        raise Conflict(f"thread {id} has {_MOST} shares", hint="revoke one: holdfast share revoke THREAD ID")
    secret = share_prefix(grant.tenant) + secrets.token_urlsafe(24)
    share = ShareRecord(
        id=new_id("h"), thread=id, created_by=grant.user, created_at=now, expires_at=now + new.ttl_seconds * 1000
    )
    await services.shares.add(share, digest_key(secret), row.stream)
    return CreatedShare(share=share, path=f"/s/{secret}")


@router.get("/v1/threads/{id}/shares", tags=["shares"])
async def list_shares(id: ThreadId, services: Use, _: Administrator) -> ShareList:
    """List the shares of a thread that have not expired. Their links are not stored."""
    await services.threads.get(id)
    now = services.access.now()
    return ShareList(shares=tuple(each for each in await services.shares.list(id) if each.expires_at > now))


@router.delete("/v1/threads/{id}/shares/{share}", status_code=204, tags=["shares"])
async def revoke_share(id: ThreadId, share: str, services: Use, _: Administrator) -> None:
    """Revoke a share. Its link stops working at once."""
    if not await services.shares.remove(id, share):
        raise NotFound(f"thread {id} has no share {share}", hint=f"list them: holdfast share list {id}")


@router.get("/s/{secret}", include_in_schema=False)
async def show_share(secret: str, request: Request, services: Use) -> Response:
    """The page of a shared thread. Anybody who has the link may read it."""
    assert services.tenants is not None, "requests without a credential are for the default tenant"
    tenant = await services.tenants.find(tenant_named(secret))
    tenant.streams.quotas.take_request()
    found = await tenant.storage.shares.find(digest_key(secret))
    if found is None or tenant.access.now() >= found[0].expires_at:
        raise NotFound("this link has expired or was revoked", hint="ask who sent it for a new one")
    share, stream = found
    page = await _page(await tenant.services(), share.thread, stream)
    return Response(page, 200, _HEADERS, media_type="text/html; charset=utf-8")


async def _page(services: Services, id: str, stream: int) -> bytes:
    row = await services.threads.get(id)
    if row.stream != stream:  # another thread has the id now
        raise NotFound("this link is to a thread that was deleted", hint="ask who sent it for a new one")
    entries: list[Entry] = []
    position, cut = 0, False
    async with _rendering:
        while len(entries) <= MOST_ENTRIES and position < _MOST_BYTES:
            page = await services.threads.entries(id, types=(), since=position, limit=_PAGE, live=False)
            entries += map(Entry.from_json, page.entries)
            position, cut = page.position, not page.up_to_date
            if not cut:
                break
        exported = Exported(id, row.title or id, entries[: MOST_ENTRIES + 1], cut, shows_cost=False)
        return await asyncio.to_thread(lambda: render(exported).encode("utf-8", "replace"))
