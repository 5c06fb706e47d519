"""Routes of the control plane: sandboxes, snapshots and volumes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Final

from starlette.requests import HTTPConnection, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from holdfast.compat.daytona.http.errors import bad_request, not_found, not_supported
from holdfast.compat.daytona.http.requests import (
    answer,
    body_of,
    flag_in,
    flag_of,
    nothing,
    number_in,
    number_of,
    port_of,
    read_body,
    while_connected,
)
from holdfast.compat.daytona.listing import numbered_page, page_of
from holdfast.compat.daytona.models import (
    NewFork,
    NewLabels,
    NewNetwork,
    NewSandbox,
    NewSandboxSnapshot,
    NewSnapshot,
    NewVolume,
    Resources,
)
from holdfast.compat.daytona.sandbox_record import Sandbox, sandbox_json, timestamp
from holdfast.compat.daytona.service import Parts, base_url, daytona_of, toolbox_url
from holdfast.compat.daytona.snapshot.build_log import BuildLog
from holdfast.compat.daytona.snapshot.snapshots import snapshot_json
from holdfast.compat.daytona.volumes import volume_json

PREVIEW_SECONDS: Final = 7 * 24 * 3600
_SIGNED_SECONDS: Final = 60
_MOST_MINUTES: Final = 10_000_000
_MOST_EXPIRED: Final = 1000
_MOST_LINKS: Final = 64


def _shown(connection: HTTPConnection, parts: Parts, sandbox: Sandbox, state: str | None = None) -> Response:
    return answer(sandbox_json(sandbox, parts.organization, toolbox_url(connection), state=state))


# --- sandboxes ---


async def create_sandbox(request: Request) -> Response:
    daytona = daytona_of(request)
    user, parts = (await daytona.grant(request)).user, await daytona.parts()
    new = await body_of(request, NewSandbox)
    return _shown(request, parts, await while_connected(request, parts.sandboxes.create(new, user)))


async def list_sandboxes(request: Request) -> Response:
    parts = await daytona_of(request).admit(request)
    page = page_of(await parts.sandboxes.all(), request)
    items = [sandbox_json(each, parts.organization, toolbox_url(request)) for each in page.sandboxes]
    return answer({"items": items, "nextCursor": page.next_cursor, "total": page.total})


async def list_numbered(request: Request) -> Response:
    parts = await daytona_of(request).admit(request)
    sandboxes, total, page, pages = numbered_page(await parts.sandboxes.all(), request)
    items = [sandbox_json(each, parts.organization, toolbox_url(request)) for each in sandboxes]
    return answer({"items": items, "total": total, "page": page, "totalPages": pages})


async def get_sandbox(request: Request) -> Response:
    parts, sandbox = await daytona_of(request).any_sandbox(request)
    return _shown(request, parts, sandbox)


async def delete_sandbox(request: Request) -> Response:
    parts, sandbox = await daytona_of(request).any_sandbox(request)
    return _shown(request, parts, await parts.sandboxes.delete(sandbox), "destroyed")


async def start_sandbox(request: Request) -> Response:
    parts, sandbox = await daytona_of(request).sandbox(request)
    return _shown(request, parts, await parts.sandboxes.start(sandbox))


async def stop_sandbox(request: Request) -> Response:
    parts, sandbox = await daytona_of(request).sandbox(request)
    return _shown(request, parts, await parts.sandboxes.stop(sandbox))


async def pause_sandbox(request: Request) -> Response:
    parts, sandbox = await daytona_of(request).sandbox(request)
    return _shown(request, parts, await parts.sandboxes.pause(sandbox))


async def archive_sandbox(request: Request) -> Response:
    parts, sandbox = await daytona_of(request).sandbox(request)
    return _shown(request, parts, await parts.sandboxes.archive(sandbox))


async def recover_sandbox(request: Request) -> Response:
    """Sandboxes here have no error state to recover from, except that their box may be stopped."""
    parts, sandbox = await daytona_of(request).sandbox(request)
    if sandbox.state != "error":
        raise bad_request("Sandbox must be in error state to recover")
    return _shown(request, parts, await parts.sandboxes.start(sandbox))


async def resize_sandbox(request: Request) -> Response:
    parts, sandbox = await daytona_of(request).sandbox(request)
    return _shown(request, parts, await parts.sandboxes.resize(sandbox, await body_of(request, Resources)))


async def fork_sandbox(request: Request) -> Response:
    parts, sandbox = await daytona_of(request).sandbox(request)
    new = await body_of(request, NewFork)
    return _shown(request, parts, await parts.sandboxes.fork(sandbox, new.name))


async def list_forks(request: Request) -> Response:
    parts, sandbox = await daytona_of(request).sandbox(request)
    forks = [each for each in await parts.sandboxes.all() if each.details.parent == sandbox.id]
    return answer([sandbox_json(each, parts.organization, toolbox_url(request)) for each in forks])


async def get_parent(request: Request) -> Response:
    parts, sandbox = await daytona_of(request).sandbox(request)
    ancestors = await _ancestors(parts, sandbox)
    if not ancestors:
        raise not_found(f"Sandbox {sandbox.id} has no parent")
    return _shown(request, parts, ancestors[0])


async def list_ancestors(request: Request) -> Response:
    parts, sandbox = await daytona_of(request).sandbox(request)
    shown = [sandbox_json(each, parts.organization, toolbox_url(request)) for each in await _ancestors(parts, sandbox)]
    return answer(shown)


async def _ancestors(parts: Parts, sandbox: Sandbox) -> list[Sandbox]:
    known = {each.id: each for each in await parts.sandboxes.all()}
    found: list[Sandbox] = []
    while (parent := sandbox.details.parent) is not None and parent in known and len(found) < len(known):
        sandbox = known[parent]
        found.append(sandbox)
    return found


async def snapshot_sandbox(request: Request) -> Response:
    parts, sandbox = await daytona_of(request).sandbox(request)
    new = await body_of(request, NewSandboxSnapshot)
    await parts.sandboxes.snapshot(sandbox, new.name)
    return _shown(request, parts, sandbox)


async def replace_labels(request: Request) -> Response:
    parts, sandbox = await daytona_of(request).sandbox(request)
    new = await body_of(request, NewLabels)
    changed = await parts.sandboxes.change(sandbox, labels=new.labels)
    return answer({"labels": changed.details.labels})


async def set_public(request: Request) -> Response:
    parts, sandbox = await daytona_of(request).sandbox(request)
    public = flag_in(request.path_params["value"], "isPublic")
    return _shown(request, parts, await parts.sandboxes.set_public(sandbox, public))


async def set_interval(request: Request) -> Response:
    parts, sandbox = await daytona_of(request).sandbox(request)
    field = request.path_params["interval"]
    names = {
        "autostop": "auto_stop",
        "autopause": "auto_pause",
        "autoarchive": "auto_archive",
        "autodelete": "auto_delete",
        "ttl": "ttl_minutes",
    }
    if field not in names:
        raise not_found(f"there is nothing at {request.url.path}")
    least = -(10**9) if field == "autodelete" else 0
    minutes = number_in(request.path_params["value"], field, least, _MOST_MINUTES)
    return _shown(request, parts, await parts.sandboxes.change(sandbox, **{names[field]: max(minutes, -1)}))


async def set_network(request: Request) -> Response:
    parts, sandbox = await daytona_of(request).sandbox(request)
    return _shown(request, parts, await parts.sandboxes.set_network(sandbox, await body_of(request, NewNetwork)))


async def note_activity(request: Request) -> Response:
    parts, sandbox = await daytona_of(request).sandbox(request)
    await read_body(request, 65_536)
    with parts.boxes.using(sandbox.row.id):
        await parts.sandboxes.note_activity(sandbox)
    return nothing(201)


async def get_toolbox_url(request: Request) -> Response:
    await daytona_of(request).any_sandbox(request)
    return answer({"url": toolbox_url(request)})


# --- keys of file URLs, previews ---


async def get_signing_key(request: Request) -> Response:
    daytona = daytona_of(request)
    _, sandbox = await daytona.sandbox(request)
    return answer(daytona.signing_key(sandbox))


async def rotate_signing_key(request: Request) -> Response:
    daytona = daytona_of(request)
    parts, sandbox = await daytona.sandbox(request)
    changed = await parts.sandboxes.change(sandbox, key_version=sandbox.details.key_version + 1)
    return answer(daytona.signing_key(changed))


async def _link(request: Request, parts: Parts, sandbox: Sandbox, port: int, token: str | None = None) -> str:
    """Returns a link to a port, which is remembered, so that it is there after a restart."""
    daytona = daytona_of(request)
    url = await daytona.needs.links.link(request, sandbox.row.id, port, token)
    known = [(each, signed) for each, signed in sandbox.details.links]
    if (port, token) not in known:
        ended = daytona.needs.previews.ends_early
        live = [each for each in known if each[1] is None or ended(each[1], sandbox.row.id, each[0])]
        await parts.sandboxes.change(sandbox, links=[*live, (port, token)][-_MOST_LINKS:])
    return url


async def get_preview(request: Request) -> Response:
    daytona = daytona_of(request)
    parts, sandbox = await daytona.sandbox(request)
    port = port_of(request)
    token = daytona.needs.previews.preview_token(sandbox.row.id, port, PREVIEW_SECONDS)
    return answer({"sandboxId": sandbox.id, "url": await _link(request, parts, sandbox, port), "token": token})


async def get_signed_preview(request: Request) -> Response:
    daytona = daytona_of(request)
    parts, sandbox = await daytona.sandbox(request)
    port = port_of(request)
    seconds = number_of(request, "expiresInSeconds", _SIGNED_SECONDS, 1, 24 * 3600)
    token = daytona.needs.previews.preview_token(sandbox.row.id, port, seconds)
    url = await _link(request, parts, sandbox, port, token)
    return answer({"sandboxId": sandbox.id, "port": port, "token": token, "url": url})


async def expire_signed_preview(request: Request) -> Response:
    daytona = daytona_of(request)
    parts, sandbox = await daytona.sandbox(request)
    token = request.path_params["token"]
    if not daytona.needs.previews.ends_early(token, sandbox.row.id, port_of(request)):
        return nothing()  # it opens nothing
    known = [*sandbox.details.expired_previews, token][-_MOST_EXPIRED:]
    await parts.sandboxes.change(sandbox, expired_previews=known)
    daytona.needs.previews.expire(token)
    return nothing()


# --- what boxes do not have ---


async def no_ssh(request: Request) -> Response:
    await daytona_of(request).admit(request)
    raise not_supported("this server has no SSH access to sandboxes: use a PTY session, or `holdfast box shell ID`")


async def no_context(request: Request) -> Response:
    await daytona_of(request).admit(request)
    raise not_supported("this server takes no build context: upload the files into a sandbox and take a snapshot")


# --- build logs ---


async def get_build_logs_url(request: Request) -> Response:
    _, sandbox = await daytona_of(request).any_sandbox(request)
    return answer({"url": f"{base_url(request)}/sandbox/{sandbox.id}/build-logs"})


async def get_build_logs(request: Request) -> Response:
    """Empty for a sandbox that needed no build."""
    daytona = daytona_of(request)
    parts, sandbox = await daytona.any_sandbox(request)
    return _log_response(request, parts.sandboxes.pending.log_of(sandbox.id))


def _log_response(request: Request, build_log: BuildLog | None) -> Response:
    lines: AsyncIterator[bytes] = _none() if build_log is None else build_log.lines(bool(flag_of(request, "follow")))
    return StreamingResponse(daytona_of(request).needs.until_stopping(lines), media_type="text/plain")


async def get_snapshot_logs_url(request: Request) -> Response:
    parts = await daytona_of(request).admit(request)
    record = await parts.snapshots.find(request.path_params["id"])
    return answer({"url": f"{base_url(request)}/snapshots/{record.id}/build-logs"})


async def get_snapshot_logs(request: Request) -> Response:
    daytona = daytona_of(request)
    parts = await daytona.admit(request)
    record = await parts.snapshots.find(request.path_params["id"])
    return _log_response(request, parts.snapshots.logs.get(record.id))


async def _none() -> AsyncIterator[bytes]:
    return
    yield b""


# --- snapshots ---


async def create_snapshot(request: Request) -> Response:
    parts = await daytona_of(request).admit(request)
    new = await body_of(request, NewSnapshot)
    if new.build_info is not None and new.build_info.context_hashes:
        await no_context(request)
    record = await parts.snapshots.create(new, parts.sandboxes.provider_of(new.region_id))
    return answer(snapshot_json(record, parts.organization))


async def list_snapshots(request: Request) -> Response:
    parts = await daytona_of(request).admit(request)
    limit, page = number_of(request, "limit", 100, 1, 200), number_of(request, "page", 1, 1, 1_000_000)
    name, source = request.query_params.get("name"), request.query_params.get("sourceSandboxId")
    found = [
        each
        for each in await parts.snapshots.all()
        if (not name or name in each.name) and (not source or each.document["source"] == source)
    ]
    items = [snapshot_json(each, parts.organization) for each in found[(page - 1) * limit : page * limit]]
    return answer({"items": items, "total": len(found), "page": page, "totalPages": -(-len(found) // limit)})


async def get_snapshot(request: Request) -> Response:
    parts = await daytona_of(request).admit(request)
    return answer(snapshot_json(await parts.snapshots.find(request.path_params["id"]), parts.organization))


async def delete_snapshot(request: Request) -> Response:
    parts = await daytona_of(request).admit(request)
    await parts.snapshots.delete(request.path_params["id"])
    return nothing()


async def activate_snapshot(request: Request) -> Response:
    parts = await daytona_of(request).admit(request)
    return answer(snapshot_json(await parts.snapshots.activate(request.path_params["id"]), parts.organization))


async def deactivate_snapshot(request: Request) -> Response:
    parts = await daytona_of(request).admit(request)
    await parts.snapshots.deactivate(request.path_params["id"])
    return nothing(204)


# --- volumes ---


async def list_volumes(request: Request) -> Response:
    parts = await daytona_of(request).admit(request)
    return answer([volume_json(each, parts.organization) for each in await parts.volumes.list()])


async def create_volume(request: Request) -> Response:
    parts = await daytona_of(request).admit(request)
    new = await body_of(request, NewVolume)
    return answer(volume_json(await parts.volumes.create(new.name), parts.organization))


async def get_volume(request: Request) -> Response:
    parts = await daytona_of(request).admit(request)
    return answer(volume_json(await parts.volumes.find(request.path_params["id"]), parts.organization))


async def delete_volume(request: Request) -> Response:
    parts = await daytona_of(request).admit(request)
    await parts.volumes.delete(request.path_params["id"])
    return nothing()


# --- the account ---


async def get_config(request: Request) -> Response:
    """Asked before anybody signs in, so it tells nothing that needs a key."""
    url = base_url(request)
    host = request.headers.get("host") or "localhost"
    return answer(
        {
            "version": "holdfast",
            "oidc": {"issuer": url, "clientId": "none", "audience": "none", "provider": "none"},
            "linkedAccountsEnabled": False,
            "announcements": {},
            "proxyTemplateUrl": f"{request.url.scheme}://{{{{PORT}}}}-{{{{sandboxId}}}}.{host}",
            "proxyToolboxUrl": toolbox_url(request),
            "defaultSnapshot": "daytona-small",
            "dashboardUrl": url,
            "maxAutoArchiveInterval": _MOST_MINUTES,
            "maintananceMode": False,
            "environment": "holdfast",
        }
    )


async def get_api_key(request: Request) -> Response:
    """The key that asks. Its value is not known here, only its digest."""
    await daytona_of(request).admit(request)
    return answer(
        {
            "name": "holdfast",
            "value": "hf_***",
            "createdAt": timestamp(0),
            "permissions": [
                "write:snapshots", "delete:snapshots", "write:sandboxes", "delete:sandboxes", "read:volumes",
                "write:volumes", "delete:volumes",
            ],
            "lastUsedAt": None,
            "expiresAt": None,
            "userId": "holdfast",
        }
    )  # fmt: skip


async def list_organizations(request: Request) -> Response:
    parts = await daytona_of(request).admit(request)
    return answer([_organization(parts.organization)])


async def get_organization(request: Request) -> Response:
    parts = await daytona_of(request).admit(request)
    if "sandbox" in request.path_params:
        await parts.sandboxes.find(request.path_params["sandbox"])
    elif request.path_params["id"] != parts.organization:
        raise not_found(f"Organization {request.path_params['id'][:100]} not found")
    return answer(_organization(parts.organization))


def _organization(id: str) -> dict[str, Any]:
    zeros = (
        "suspensionCleanupGracePeriodHours", "maxCpuPerSandbox", "maxMemoryPerSandbox", "maxDiskPerSandbox",
        "secretQuota", "maxSecretsPerSandbox", "snapshotDeactivationTimeoutMinutes", "authenticatedRateLimit",
        "sandboxCreateRateLimit", "sandboxLifecycleRateLimit", "authenticatedRateLimitTtlSeconds",
        "sandboxCreateRateLimitTtlSeconds", "sandboxLifecycleRateLimitTtlSeconds",
    )  # fmt: skip
    return {
        **dict.fromkeys(zeros, 0),
        "id": id,
        "name": id,
        "createdBy": "holdfast",
        "personal": True,
        "createdAt": timestamp(0),
        "updatedAt": timestamp(0),
        "suspended": False,
        "suspendedAt": timestamp(0),
        "suspensionReason": "",
        "suspendedUntil": timestamp(0),
        "sandboxLimitedNetworkEgress": False,
        "previewWarningEnabled": False,
        "ssoEnabled": False,
        "experimentalConfig": {},
        "otelConfig": None,
    }


async def get_usage(request: Request) -> Response:
    parts = await daytona_of(request).admit(request)
    return answer(
        {
            "regionUsage": [],
            "totalSnapshotQuota": 10_000,
            "currentSnapshotUsage": len(await parts.snapshots.all()),
            "totalVolumeQuota": 1000,
            "currentVolumeUsage": len(await parts.volumes.list()),
        }
    )


async def list_regions(request: Request) -> Response:
    parts = await daytona_of(request).admit(request)
    return answer([_region(name) for name in sorted(parts.boxes.providers)])


async def get_region(request: Request) -> Response:
    parts = await daytona_of(request).admit(request)
    name = request.path_params["id"]
    if name not in parts.boxes.providers:
        raise not_found(f"Region {name[:100]} not found")
    return answer(_region(name))


def _region(name: str) -> dict[str, Any]:
    at = timestamp(0)
    return {"id": name, "name": name, "regionType": "shared", "createdAt": at, "updatedAt": at}


async def get_user(request: Request) -> Response:
    await daytona_of(request).admit(request)
    return answer(
        {
            "id": "holdfast",
            "name": "holdfast",
            "email": "holdfast@localhost",
            "emailVerified": True,
            "publicKeys": [],
            "createdAt": timestamp(0),
        }
    )


async def health(_: Request) -> Response:
    return answer({"status": "ok"})


def routes() -> list[Route]:
    one = "/sandbox/{sandbox}"
    table = [
        ("GET", "/config", get_config),
        ("GET", "/health", health),
        ("GET", "/health/ready", health),
        ("POST", "/sandbox", create_sandbox),
        ("GET", "/sandbox", list_sandboxes),
        ("GET", "/sandbox/paginated", list_numbered),
        ("GET", "/sandbox/ssh-access/validate", no_ssh),
        ("GET", one, get_sandbox),
        ("DELETE", one, delete_sandbox),
        ("POST", f"{one}/start", start_sandbox),
        ("POST", f"{one}/stop", stop_sandbox),
        ("POST", f"{one}/pause", pause_sandbox),
        ("POST", f"{one}/archive", archive_sandbox),
        ("POST", f"{one}/recover", recover_sandbox),
        ("POST", f"{one}/resize", resize_sandbox),
        ("POST", f"{one}/fork", fork_sandbox),
        ("GET", f"{one}/forks", list_forks),
        ("GET", f"{one}/parent", get_parent),
        ("GET", f"{one}/ancestors", list_ancestors),
        ("POST", f"{one}/snapshot", snapshot_sandbox),
        ("PUT", f"{one}/labels", replace_labels),
        ("POST", f"{one}/network-settings", set_network),
        ("POST", f"{one}/last-activity", note_activity),
        ("GET", f"{one}/toolbox-proxy-url", get_toolbox_url),
        ("GET", f"{one}/organization", get_organization),
        ("GET", f"{one}/signing-key", get_signing_key),
        ("POST", f"{one}/signing-key/rotate", rotate_signing_key),
        ("GET", f"{one}/ports/{{port}}/preview-url", get_preview),
        ("GET", f"{one}/ports/{{port}}/signed-preview-url", get_signed_preview),
        ("POST", f"{one}/ports/{{port}}/signed-preview-url/{{token}}/expire", expire_signed_preview),
        ("POST", f"{one}/ssh-access", no_ssh),
        ("DELETE", f"{one}/ssh-access", no_ssh),
        ("GET", f"{one}/build-logs", get_build_logs),
        ("GET", f"{one}/build-logs-url", get_build_logs_url),
        ("POST", f"{one}/public/{{value}}", set_public),
        ("POST", f"{one}/{{interval}}/{{value}}", set_interval),
        ("POST", "/snapshots", create_snapshot),
        ("GET", "/snapshots", list_snapshots),
        ("GET", "/snapshots/{id:path}/build-logs-url", get_snapshot_logs_url),
        ("GET", "/snapshots/{id:path}/build-logs", get_snapshot_logs),
        ("POST", "/snapshots/{id:path}/activate", activate_snapshot),
        ("POST", "/snapshots/{id:path}/deactivate", deactivate_snapshot),
        ("GET", "/snapshots/{id:path}", get_snapshot),
        ("DELETE", "/snapshots/{id:path}", delete_snapshot),
        ("GET", "/volumes", list_volumes),
        ("POST", "/volumes", create_volume),
        ("GET", "/volumes/by-name/{id:path}", get_volume),
        ("GET", "/volumes/{id:path}", get_volume),
        ("DELETE", "/volumes/{id:path}", delete_volume),
        ("GET", "/api-keys/current", get_api_key),
        ("GET", "/organizations", list_organizations),
        ("GET", "/organizations/{id}", get_organization),
        ("GET", "/organizations/{id}/usage", get_usage),
        ("GET", "/regions", list_regions),
        ("GET", "/regions/{id}", get_region),
        ("GET", "/shared-regions", list_regions),
        ("GET", "/users/me", get_user),
        ("GET", "/object-storage/push-access", no_context),
    ]
    return [Route(path, endpoint, methods=[method]) for method, path, endpoint in table]
