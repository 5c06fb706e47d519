"""The contract of a provider, which creates and finds boxes of one kind, and the providers of a service by name.

A new provider needs one folder and one line in a registry.
"""

from __future__ import annotations

import re
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterable, AsyncIterator, Callable, Collection, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

from holdfast.api.box.box import Box, BoxInfo, Liveness, Wake
from holdfast.api.box.records import Step
from holdfast.api.box.snapshots import Snapshot, Volume
from holdfast.api.box.spec import BoxSpec
from holdfast.api.errors.boxes import BoxNotFound, InvalidSpec, Unsupported
from holdfast.boxes.capabilities import Capability, unsupported
from holdfast.boxes.images import ImageStore
from holdfast.boxes.machine_plan import MachinePlan

_ID: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")


@dataclass(frozen=True, slots=True)
class Swept:
    """What a sweep removed: leftovers of operations that were interrupted."""

    removed: tuple[str, ...] = ()
    """One line for each thing removed, for the log."""
    freed: int = 0


class Provider(ABC):
    """Creates and finds boxes of one kind.

    The caller that opens a provider closes it, usually with `async with`. Boxes outlive it: any later process that
    opens a provider on the same data finds them again. What only some providers can do refuses with `Unsupported`
    here; a provider that claims the capability implements it.
    """

    name: str
    """Boxes and snapshots name it by this. It is the kind, or the name of an account: `providers.factory` sets that
    before it opens the provider."""
    capabilities: frozenset[Capability]
    snapshot_kind: str
    """The kind of snapshot that `restore` accepts."""
    isolation: str = ""
    """A short description of what isolates its boxes from the machine."""
    images: ImageStore | None = None
    """Its image store, if it has one."""
    takes_checkpoints: bool = False
    """Whether runs save the files of a box at the end of each turn unless told otherwise."""
    checkpoint_policy: str = "every"
    """The policy of these: what one may cost, and how many are kept."""
    edition: str = ""
    """Version of what new boxes are created with, apart from images. A pooled box of another is out of date."""

    @abstractmethod
    async def open(self) -> None:
        """Prepare the provider for use. Raises `CannotIsolate` if this machine does not allow sandboxes."""

    @abstractmethod
    async def close(self) -> None:
        """Release the provider's resources. Boxes and their processes keep running."""

    def check_usable(self) -> None:
        """Raises an error if this provider cannot work on this machine. Called before a row is written."""
        return

    @abstractmethod
    async def create(self, spec: BoxSpec, *, id: str, labels: Mapping[str, str] | None = None) -> Box:
        """Create a box and start it. A failure leaves nothing behind.

        Raises `Unsupported` before it creates anything. `labels` are stored in addition to those of the spec.
        """

    @abstractmethod
    async def restore(self, snapshot: str, spec: BoxSpec, *, id: str, labels: Mapping[str, str] | None = None) -> Box:
        """Create a box with the files of a snapshot. Raises `SnapshotNotFound` or `WrongSnapshot`."""

    async def hand_over(self, id: str, spec: BoxSpec, *, labels: Mapping[str, str], created_at: int) -> Box:
        """Hand over a pooled box (one labelled `POOL`): give it this spec, which has the same hash, and these labels.

        If several callers ask for the same box, one gets it and the others get `BoxConflict`. The change is atomic: an
        interruption leaves the box either in the pool or handed over. `BoxStopped` and `BoxUnreachable` mean that the
        caller got the box, but that it is dead and has to be removed. A box leaves the pool only in this way, whatever
        the purpose; labels that include `POOL` keep it in the pool.
        """
        raise unsupported(self.name, Capability.POOL)

    @abstractmethod
    async def find(self, labels: Mapping[str, str] | None = None) -> list[BoxInfo]:
        """Returns all boxes with these labels, oldest first: ordered by `created_at`, then by id."""

    @abstractmethod
    async def attach(self, id: str, *, wake: Wake | None = None) -> Box:
        """Returns a handle to a box, running or stopped. Raises `BoxNotFound`, `BoxGone` or `BoxUnreachable`.

        The handle calls `wake` once before a method raises `BoxStopped`.
        """

    @abstractmethod
    async def probe(self, id: str) -> Liveness:
        """Returns whether the box exists. Returns `unknown`, and does not raise, if the box cannot be reached."""

    @abstractmethod
    async def remove(self, id: str) -> int:
        """Delete a box, even one that was only partly created. Returns the bytes freed: 0 if there was no such box."""

    # --- snapshots ---

    @abstractmethod
    async def snapshots(self, labels: Mapping[str, str] | None = None) -> list[Snapshot]:
        """Returns all snapshots with these labels, oldest first."""

    @abstractmethod
    async def snapshot(self, id: str) -> Snapshot:
        """Raises `SnapshotNotFound`."""

    @abstractmethod
    async def delete_snapshot(self, id: str) -> int:
        """Delete a snapshot. Returns the bytes freed. Data that is still in use stays.

        Raises `SnapshotNotFound`.
        """

    async def snapshot_cost(self, id: str) -> int | None:
        """Returns how many bytes a snapshot of this box would copy now, or None if that is unknown."""
        return None

    async def export_snapshot(self, id: str) -> AsyncIterator[bytes]:
        """Yields the snapshot as a stream that `import_snapshot` accepts."""
        raise unsupported(self.name, Capability.EXPORT)
        yield b""

    async def import_snapshot(self, stream: AsyncIterable[bytes]) -> Snapshot:
        """Raises `WrongSnapshot` if the stream is not a snapshot, or one of another kind."""
        raise unsupported(self.name, Capability.EXPORT)

    # --- volumes ---

    async def create_volume(self, name: str) -> Volume:
        """Raises `VolumeExists`."""
        raise unsupported(self.name, Capability.VOLUMES)

    async def volumes(self) -> list[Volume]:
        return []

    async def delete_volume(self, name: str) -> int:
        """Returns the bytes freed. Raises `VolumeNotFound` or `VolumeInUse`."""
        raise unsupported(self.name, Capability.VOLUMES)

    # --- housekeeping ---

    @abstractmethod
    async def sweep(self, keep: Collection[str] | None = None) -> Swept:
        """Remove what interrupted operations left behind. With `keep`, also remove every box not listed there.

        Never touches what another process is creating now.
        """

    @abstractmethod
    async def diagnose(self, id: str | None = None) -> list[Step]:
        """Check the provider, or one of its boxes. Each failed step has a hint on what to do next."""

    async def set_up_machine(self, plan: MachinePlan, tell: Callable[[Step], None]) -> bool:
        """Put programs and variables into a machine of the user, or of a box, and leave alone what the user has there.

        Can be done twice. `tell` gets each step when it is done. Returns whether all worked.
        """
        raise Unsupported(
            f"provider {self.name} has no machines to set up", hint="runs bring their agents into boxes by themselves"
        )

    async def check_access(self) -> list[Step]:
        """Check that the provider answers (`reach`) and accepts the credential (`authorize`), up to the first failure.

        Creates nothing. A provider with a credential checks the two for itself.
        """
        began = time.perf_counter()
        steps = await self.diagnose()
        taken = (time.perf_counter() - began) * 1000
        if (failed := next((each for each in steps if not each.ok), None)) is not None:
            return [Step("reach", False, taken, f"{failed.name}: {failed.detail}", failed.next_step)]
        found = ", ".join(each.detail for each in steps if each.detail)
        return [Step("reach", True, taken, found), Step("authorize", True, 0.0, "it needs no credential")]

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


def is_box_id(id: str) -> bool:
    return _ID.fullmatch(id) is not None


def check_new_id(id: str) -> None:
    """Raises `InvalidSpec` if a new box cannot have this id."""
    if not is_box_id(id):
        raise InvalidSpec(f"{id!r} cannot be the id of a box: lower case letters, digits and -, at most 63")


def check_known_id(id: str, provider: str) -> None:
    """Raises `BoxNotFound` if no box can have this id, so that it never becomes part of a path."""
    if not is_box_id(id):
        raise BoxNotFound(f"there is no {provider} box {id}")
