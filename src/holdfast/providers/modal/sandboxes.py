"""The sandboxes of one home at Modal: created, found, saved and ended. Raises the SDK's errors."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import modal
import modal.experimental
from modal import exception

from holdfast.api.errors.boxes import BoxConflict
from holdfast.boxes.images import DEFAULT_IMAGE, declared_packages
from holdfast.boxes.provider import is_box_id
from holdfast.providers.modal import guest
from holdfast.providers.modal.account import Account, as_any, finished, limited
from holdfast.providers.modal.records import BoxRecord, Records

log = logging.getLogger(__name__)

LIFETIME_SECONDS: Final = 24 * 3600
"""The longest that Modal lets a sandbox live."""
NAMESPACE_TAG: Final = "holdfast-home"
BOX_TAG: Final = "holdfast-box"
_CREATE_SECONDS: Final = 300.0
_SNAPSHOT_SECONDS: Final = 55
_TERMINATE_SECONDS: Final = 60.0
_LOCK_SECONDS: Final = 10.0
_GUEST_MEMORY_MB: Final = 40
"""Beside what the spec of a box allows: the guest and its bridge."""
_LEAST_CPU: Final = 0.125
_LEAST_MEMORY_MB: Final = 128
_MEGABYTE: Final = 1 << 20
_LONGEST_NAME: Final = 64
_TAG: Final = re.compile(r"[a-zA-Z0-9._-]{1,50}")


def named_image(name: str | None, default: str | None) -> modal.Image:
    """Returns the image that a spec names: one of a registry, or one that is declared, which Modal builds and keeps.

    Raises `InvalidSpec`.
    """
    wanted = default if name is None or name == DEFAULT_IMAGE else name
    if wanted is None:
        return modal.Image.debian_slim()
    packages = declared_packages(wanted)
    if packages is None:
        return modal.Image.from_registry(wanted)
    image = modal.Image.debian_slim().apt_install("git", "ca-certificates")
    return image.pip_install(*packages) if packages else image


class Sandboxes:
    def __init__(self, account: Account, namespace: str, image: str | None, ports: Sequence[int]) -> None:
        """`image` is for boxes that name none."""
        self._account = account
        self._namespace = namespace
        self._image = image
        self._ports = ports

    def _name(self, id: str) -> str:
        name = f"{self._namespace}-{id}"
        return name if len(name) <= _LONGEST_NAME else hashlib.sha256(name.encode()).hexdigest()

    def _tags(self, record: BoxRecord) -> dict[str, str]:
        """Labels, as far as Modal takes them: the record has them all."""
        wanted = {**record.labels, NAMESPACE_TAG: self._namespace, BOX_TAG: record.id}
        return {name: value for name, value in wanted.items() if _TAG.fullmatch(name) and _TAG.fullmatch(value)}

    async def create(
        self, record: BoxRecord, nonce: str, volumes: Mapping[str, modal.Volume], network: Mapping[str, Any]
    ) -> modal.Sandbox:
        """Create the sandbox of a box: from its own image, or from that of its spec."""
        spec = record.spec
        client, app = await self._account.client(), await self._account.app()
        own = record.image or record.base
        image = named_image(spec.image, self._image) if own is None else modal.Image.from_id(own, client=as_any(client))
        limits: dict[str, Any] = {}
        if spec.cpu is not None:
            limits["cpu"] = (min(_LEAST_CPU, spec.cpu), spec.cpu)
        if spec.memory is not None:
            most = -(-spec.memory // _MEGABYTE) + _GUEST_MEMORY_MB
            limits["memory"] = (min(_LEAST_MEMORY_MB, most), most)
        return await limited(
            modal.Sandbox.create.aio(
                *guest.first_command(nonce),
                app=app,
                client=client,
                name=self._name(record.id),
                tags=self._tags(record),
                image=image,
                timeout=LIFETIME_SECONDS,  # and no idle time-out: it would not see what an agent does
                volumes=as_any(volumes),
                encrypted_ports=self._ports,
                **limits,
                **network,
            ),
            _CREATE_SECONDS,
        )

    async def get(self, id: str) -> modal.Sandbox:
        return await limited(modal.Sandbox.from_id.aio(id, client=await self._account.client()))

    async def of_box(self, id: str) -> modal.Sandbox:
        """Returns the running sandbox with the name of a box."""
        client, environment = await self._account.client(), self._account.environment
        return await limited(
            modal.Sandbox.from_name.aio(
                self._account.app_name, self._name(id), environment_name=environment, client=client
            )
        )

    async def listed(self) -> set[str]:
        """Returns the ids of this home's sandboxes that run, as Modal lists them."""
        client, app = await self._account.client(), await self._account.app()
        found: set[str] = set()

        async def collect() -> None:
            tags = {NAMESPACE_TAG: self._namespace}
            async for each in modal.Sandbox.list.aio(app_id=app.app_id, tags=tags, client=client):
                found.add(each.object_id)

        await limited(collect())
        return found

    async def retag(self, sandbox: modal.Sandbox, record: BoxRecord) -> None:
        await limited(sandbox.set_tags.aio(self._tags(record)))

    async def save(self, sandbox: modal.Sandbox) -> str:
        """Save the files of a sandbox as an image. Returns its id."""
        work = sandbox.snapshot_filesystem.aio(timeout=_SNAPSHOT_SECONDS, ttl=None)
        return str((await limited(work, _SNAPSHOT_SECONDS + 10)).object_id)

    async def delete_image(self, id: str) -> None:
        with contextlib.suppress(exception.NotFoundError):
            client = await self._account.client()
            await limited(as_any(modal.experimental).image_delete.aio(id, client=client))

    async def end(self, sandbox: modal.Sandbox) -> None:
        """End a sandbox and wait for that. One that has ended is fine."""
        with contextlib.suppress(exception.NotFoundError, exception.SandboxTimeoutError):  # or its time was up
            await limited(sandbox.terminate.aio(wait=True), _TERMINATE_SECONDS)
        await self.detach(sandbox)

    async def try_to_end(self, sandbox: modal.Sandbox) -> None:
        """The same, where what fails is left to the next sweep."""
        try:
            await self.end(sandbox)
        except (exception.Error, OSError) as error:
            if not finished(error):
                log.warning("sandbox %s may still run at Modal: %s", sandbox.object_id, error)

    async def end_unknown(self, id: str, records: Records) -> str | None:
        """End a sandbox that no record names. Returns the box that it was for, or None if it runs on or has ended."""
        try:
            sandbox = await self.get(id)
            if sandbox.returncode is not None:
                return None  # the list is out of date
            box = (await limited(sandbox.get_tags.aio())).get(BOX_TAG)
            if box is None or not is_box_id(box):
                return None
            async with records.locks.lock(box, _LOCK_SECONDS):
                record = records.box(box)
                if record is not None and record.sandbox == id:
                    return None
                await self.end(sandbox)
        except (exception.NotFoundError, BoxConflict):
            return None  # it ended meanwhile, or somebody is at it
        return box

    async def detach(self, sandbox: modal.Sandbox) -> None:
        """Close the connection to a sandbox, which runs on."""
        with contextlib.suppress(exception.Error, OSError):
            await limited(as_any(sandbox.detach).aio())
