"""The contract of a provider: it makes and finds boxes of one kind.

A new one is one module and one line in a registry.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterable, AsyncIterator, Collection, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from holdfast.api.box_spec import BoxSpec
from holdfast.api.boxes import Step
from holdfast.api.snapshots import Snapshot
from holdfast.api.snapshots import Volume as Volume
from holdfast.boxes.box import Box, BoxInfo, Liveness, Wake
from holdfast.boxes.capabilities import Capability
from holdfast.boxes.errors import Unsupported
from holdfast.boxes.images import ImageStore


@dataclass(frozen=True, slots=True)
class Swept:
    """What a sweep found and removed: leftovers of something that died halfway."""

    removed: tuple[str, ...] = ()
    """One line each, for the log."""
    freed: int = 0


class Provider(ABC):
    """Owned by who opened it; `async with` opens and closes it. Boxes outlive it.

    Everything is found again by any later process that opens a provider on the same data.
    """

    name: str
    capabilities: frozenset[Capability]
    snapshot_kind: str
    """The kind of snapshot that `restore` takes."""
    isolation: str = ""
    """What keeps its boxes apart from the machine, in a few words for people."""
    images: ImageStore | None = None
    """Where it keeps images, if it does."""
    edition: str = ""
    """Of what its boxes are made with now, beside images. One made ahead with another edition is out of date."""

    @abstractmethod
    async def open(self) -> None:
        """Get ready. Raises `CannotIsolate` where this machine does not let us."""

    @abstractmethod
    async def close(self) -> None:
        """Let go. Boxes and their processes go on."""

    def check_usable(self) -> None:
        """Raise what keeps this provider from working here at all, if anything does: before a row is written."""
        return

    @abstractmethod
    async def create(self, spec: BoxSpec, *, id: str, labels: Mapping[str, str] | None = None) -> Box:
        """Make a box and start it. Refuses what it cannot do before anything is made; what fails leaves nothing.

        `labels` are kept with the box beside those of its spec.
        """

    @abstractmethod
    async def restore(self, snapshot: str, spec: BoxSpec, *, id: str, labels: Mapping[str, str] | None = None) -> Box:
        """Make a box that begins with a snapshot's files. Raises `SnapshotNotFound`, `WrongSnapshot`."""

    async def hand_over(self, id: str, spec: BoxSpec, *, labels: Mapping[str, str], created_at: int) -> Box:
        """Make a box that was made ahead, and labelled `POOL`, somebody's: these are its spec and labels from now on.

        The spec has the same hash. Only one of those who ask gets it: the others are told `BoxConflict`. What died
        halfway leaves the box either in the pool or handed over. `BoxStopped` and `BoxUnreachable` say that it is the
        asker's, and not alive: to be removed. To be taken out of the pool for any other purpose, it is handed over
        too; labels with `POOL` in them leave it there.
        """
        raise Unsupported(f"provider {self.name} has no pool")

    @abstractmethod
    async def find(self, labels: Mapping[str, str] | None = None) -> list[BoxInfo]:
        """All boxes with these labels, the oldest first: by `created_at`, and of one millisecond by their ids."""

    @abstractmethod
    async def attach(self, id: str, *, wake: Wake | None = None) -> Box:
        """A handle on a box, running or stopped. Raises `BoxNotFound`, `BoxGone`, `BoxUnreachable`.

        `wake` is called once by the handle, before it answers what is asked of it with `BoxStopped`.
        """

    @abstractmethod
    async def probe(self, id: str) -> Liveness:
        """Whether the box is there. Never raises for a box that cannot be reached: that is `unknown`."""

    @abstractmethod
    async def remove(self, id: str) -> int:
        """Delete a box by id, whole or half made; says how many bytes that freed. One that is not there is fine."""

    # --- snapshots ---

    @abstractmethod
    async def snapshots(self, labels: Mapping[str, str] | None = None) -> list[Snapshot]:
        """All snapshots with these labels, the oldest first."""

    @abstractmethod
    async def snapshot(self, id: str) -> Snapshot:
        """Raises `SnapshotNotFound`."""

    @abstractmethod
    async def delete_snapshot(self, id: str) -> int:
        """Forget a snapshot; says how many bytes that freed. Data that something else refers to stays.

        Raises `SnapshotNotFound`.
        """

    @abstractmethod
    def export_snapshot(self, id: str) -> AsyncIterator[bytes]:
        """The snapshot by value, as a stream that `import_snapshot` takes."""

    @abstractmethod
    async def import_snapshot(self, stream: AsyncIterable[bytes]) -> Snapshot:
        """Raises `WrongSnapshot` where the stream is not one, or of another kind."""

    # --- volumes ---

    @abstractmethod
    async def create_volume(self, name: str) -> Volume:
        """Raises `VolumeExists`."""

    @abstractmethod
    async def volumes(self) -> list[Volume]: ...

    @abstractmethod
    async def delete_volume(self, name: str) -> int:
        """Says how many bytes that freed. Raises `VolumeNotFound`, `VolumeInUse`."""

    # --- housekeeping ---

    @abstractmethod
    async def sweep(self, keep: Collection[str] | None = None) -> Swept:
        """Remove what something that died halfway left behind. With `keep`, also every box that is not among these ids.

        Never touches what another process is making right now.
        """

    @abstractmethod
    async def diagnose(self, id: str | None = None) -> list[Step]:
        """What works and what does not, of the provider, or of one of its boxes, with the next step per failure."""

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
