"""The sandboxes of one home at Daytona: created, found, and what their labels say about their boxes."""

from __future__ import annotations

import contextlib
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Final

from daytona import (
    AsyncSandbox,
    CreateSandboxFromImageParams,
    CreateSandboxFromSnapshotParams,
    DaytonaError,
    VolumeMount,
)

from holdfast.api.box.box import Power
from holdfast.api.box.spec import Lifetime
from holdfast.api.errors.boxes import BoxError, BoxUnreachable, ImageNotFound, SnapshotNotFound
from holdfast.boxes.provider import is_box_id
from holdfast.boxes.shielded import to_the_end
from holdfast.providers.daytona.api import DaytonaApi, Refused, milliseconds, state_name
from holdfast.providers.daytona.errors import status_of, translated
from holdfast.providers.daytona.images import Origin
from holdfast.providers.daytona.network import DaytonaNetwork
from holdfast.providers.daytona.records import HOME_LABEL, BoxRecord
from holdfast.providers.daytona.states import Phase, phase_of, power_of

AUTO_STOP_MINUTES: Final = (3 * 24 + 1) * 60
"""Longer than the longest run, which its runaway guard ends after three days. Holdfast stops idle boxes long before."""
ONE_SHOT_MINUTES: Final = 60
"""How long a stopped one-shot box is kept, if no server deletes it."""


@dataclass(frozen=True, slots=True)
class Found:
    """A sandbox and what its labels say about its box."""

    sandbox: AsyncSandbox
    record: BoxRecord

    @property
    def phase(self) -> Phase:
        return phase_of(self.sandbox.state)

    @property
    def gone(self) -> bool:
        return self.phase is Phase.GONE or (self.phase is Phase.FAILED and self.record.failed)

    @property
    def power(self) -> Power:
        """Raises `BoxUnreachable` if the state does not tell."""
        power = power_of(self.phase)
        if power is None:
            raise BoxUnreachable(
                f"Daytona cannot tell the state of box {self.record.id}: {state_name(self.sandbox)}",
                hint="try again later",
            )
        return power


class Sandboxes:
    def __init__(self, api: DaytonaApi, namespace: str) -> None:
        self._api = api
        self._namespace = namespace

    def name(self, id: str) -> str:
        return f"hf-{self._namespace}-{id}"

    # --- finding ---

    def _record_of(self, sandbox: AsyncSandbox) -> BoxRecord | None:
        """Returns the record in the labels of a sandbox. A fork has the labels of its origin for a moment."""
        if sandbox.labels.get(HOME_LABEL) != self._namespace:
            return None
        record = BoxRecord.from_labels(sandbox.labels)
        return record if record is not None and self.name(record.id) == sandbox.name else None

    async def look(self, id: str, *, unfinished: bool = False) -> Found | None:
        """Returns a box, or None if there is no such box. `unfinished` includes those that are being created."""
        if not is_box_id(id):
            return None
        with translated(f"box {id} cannot be looked up"):
            sandbox = await self._api.find(self.name(id))
        record = None if sandbox is None else self._record_of(sandbox)
        if sandbox is None or record is None or not (record.ready or unfinished):
            return None
        found = Found(sandbox, record.with_env(sandbox.env or {}))
        return None if found.phase is Phase.GONE else found

    async def all(
        self, *, known: Collection[str] = (), removed: Collection[str] = (), unfinished: bool = False
    ) -> list[Found]:
        """Returns all boxes of this home. Daytona's list may be out of date: boxes that are `known` and not in it are
        looked up, and those that were `removed` are left out.
        """
        with translated("boxes cannot be listed"):
            listed = await self._api.list_sandboxes({HOME_LABEL: self._namespace})
        found: dict[str, Found] = {}
        missing = list(known)
        for sandbox in listed:
            record = self._record_of(sandbox)
            if record is None or not (record.ready or unfinished) or record.id in removed:
                continue
            if record.variables:
                missing.append(record.id)  # a list has no variables
            elif phase_of(sandbox.state) is not Phase.GONE:
                found[record.id] = Found(sandbox, record)
        for id in missing:
            if id not in found and (whole := await self.look(id, unfinished=unfinished)) is not None:
                found[id] = whole
        return list(found.values())

    async def strays(self, before: int) -> list[AsyncSandbox]:
        """Returns sandboxes of this home, made before a time, that are no boxes: forks that were never finished."""
        with translated("boxes cannot be listed"):
            listed = await self._api.list_sandboxes({HOME_LABEL: self._namespace})
            # The list may be out of date: a fork that was finished meanwhile has a record.
            found = [await self._api.find(each.name) for each in listed if self._is_stray(each, before)]
        return [each for each in found if each is not None and self._is_stray(each, before)]

    def _is_stray(self, sandbox: AsyncSandbox, before: int) -> bool:
        if not sandbox.name.startswith(self.name("")) or self._record_of(sandbox) is not None:
            return False
        return 0 < milliseconds(sandbox.created_at) < before

    # --- creating ---

    async def create(
        self, record: BoxRecord, origin: Origin, mounts: list[VolumeMount], network: DaytonaNetwork
    ) -> AsyncSandbox:
        """Create the sandbox of a box, or leave none behind: a cancelled request may still be carried out.

        Raises errors of the SDK, `ImageNotFound` or `SnapshotNotFound`.
        """
        try:
            return await to_the_end(self._request(record, origin, mounts, network))
        except BaseException:
            with contextlib.suppress(BoxError, DaytonaError, TimeoutError, OSError):
                await to_the_end(self._discard_own(record))
            raise

    async def _request(
        self, record: BoxRecord, origin: Origin, mounts: list[VolumeMount], network: DaytonaNetwork
    ) -> AsyncSandbox:
        common: dict[str, Any] = {
            "name": self.name(record.id),
            "labels": record.to_labels(self._namespace),
            "env_vars": dict(record.spec.env),
            "volumes": mounts,
            "auto_stop_interval": AUTO_STOP_MINUTES,
            "auto_delete_interval": ONE_SHOT_MINUTES if record.spec.lifetime is Lifetime.ONE_SHOT else None,
            "network_block_all": network.block_all or None,
            "network_allow_list": network.addresses,
            "domain_allow_list": network.domains,
        }
        params: CreateSandboxFromImageParams | CreateSandboxFromSnapshotParams
        if origin.image is not None:
            params = CreateSandboxFromImageParams(image=origin.image, **common)
        else:
            params = CreateSandboxFromSnapshotParams(snapshot=origin.snapshot, **common)
        try:
            return await self._api.create(params, lambda sandbox: self._is_own(sandbox, record))
        except DaytonaError as error:
            raise _about_origin(error, record, origin) or error from None

    def _is_own(self, sandbox: AsyncSandbox, record: BoxRecord) -> bool:
        found = self._record_of(sandbox)
        return found is not None and found.maker == record.maker

    async def _discard_own(self, record: BoxRecord) -> None:
        sandbox = await self._api.find(self.name(record.id))
        if sandbox is not None and self._is_own(sandbox, record):
            await self._api.delete(sandbox)

    async def write(self, sandbox: AsyncSandbox, record: BoxRecord) -> None:
        await self._api.set_labels(sandbox, record.to_labels(self._namespace))


def _about_origin(error: DaytonaError, record: BoxRecord, origin: Origin) -> BoxError | None:
    """Returns what it means for the origin of a sandbox that it could not be created, or None if it is not about it."""
    status = status_of(error)
    if record.snapshot is not None and status == 404:
        return SnapshotNotFound(f"there is no snapshot {record.snapshot}: Daytona says: {error}")
    if origin.snapshot is not None and status == 404:
        return ImageNotFound(f"Daytona has no snapshot {origin.snapshot}: {error}")
    failed = isinstance(error, Refused) or (status is None and "entered error state" in str(error))  # the SDK's words
    if origin.image is not None and (status in (400, 404, 422) or failed):
        name = origin.image if isinstance(origin.image, str) else "of the declarative build"
        return ImageNotFound(
            f"image {name} cannot be used at Daytona: {error}", hint="name an image that a registry has, with its tag"
        )
    return None
