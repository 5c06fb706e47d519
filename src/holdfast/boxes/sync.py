"""Providers for code without `await`.

Written by `bin/generate`: change the async classes instead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from holdfast.api.box.sync import SyncBox
from holdfast.sync_twin import SyncHandle, SyncIterator, SyncOwner, feed

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from holdfast.api.box.box import BoxInfo, Liveness, Wake
    from holdfast.api.box.records import Step
    from holdfast.api.box.snapshots import Snapshot, Volume
    from holdfast.api.box.spec import BoxSpec
    from holdfast.api.images import Image, ImageConfig
    from holdfast.boxes.capabilities import Capability
    from holdfast.boxes.images import ImageStore
    from holdfast.boxes.machine_plan import MachinePlan
    from holdfast.boxes.provider import Provider, Swept


class SyncProvider(SyncOwner):
    """`Provider` for code without `await`."""

    _async: Provider

    def __init__(self, provider: Provider) -> None:
        self._own(lambda: provider)

    @property
    def name(self) -> str:
        """Boxes and snapshots name it by this. It is the kind, or the name of an account: `providers.factory` sets that
        before it opens the provider.
        """
        return self._async.name

    @property
    def capabilities(self) -> frozenset[Capability]:
        return self._async.capabilities

    @property
    def snapshot_kind(self) -> str:
        """The kind of snapshot that `restore` accepts."""
        return self._async.snapshot_kind

    @property
    def isolation(self) -> str:
        """A short description of what isolates its boxes from the machine."""
        return self._async.isolation

    @property
    def images(self) -> SyncImageStore | None:
        """Its image store, if it has one."""
        return None if self._async.images is None else SyncImageStore._wrap(self._async.images, self)

    @property
    def takes_checkpoints(self) -> bool:
        """Whether runs save the files of a box at the end of each turn unless told otherwise."""
        return self._async.takes_checkpoints

    @property
    def checkpoint_policy(self) -> str:
        """The policy of these: what one may cost, and how many are kept."""
        return self._async.checkpoint_policy

    @property
    def edition(self) -> str:
        """Version of what new boxes are created with, apart from images. A pooled box of another is out of date."""
        return self._async.edition

    def open(self) -> None:
        """Prepare the provider for use. Raises `CannotIsolate` if this machine does not allow sandboxes."""
        self._loop.run(self._async.open())

    def close(self) -> None:
        """Release the provider's resources. Boxes and their processes keep running."""
        self._end(self._async.close)

    def check_usable(self) -> None:
        """Raises an error if this provider cannot work on this machine. Called before a row is written."""
        self._async.check_usable()

    def create(self, spec: BoxSpec, *, id: str, labels: Mapping[str, str] | None = None) -> SyncBox:
        """Create a box and start it. A failure leaves nothing behind.

        Raises `Unsupported` before it creates anything. `labels` are stored in addition to those of the spec.
        """
        return SyncBox._wrap(self._loop.run(self._async.create(spec, id=id, labels=labels)), self)

    def restore(self, snapshot: str, spec: BoxSpec, *, id: str, labels: Mapping[str, str] | None = None) -> SyncBox:
        """Create a box with the files of a snapshot. Raises `SnapshotNotFound` or `WrongSnapshot`."""
        return SyncBox._wrap(self._loop.run(self._async.restore(snapshot, spec, id=id, labels=labels)), self)

    def hand_over(self, id: str, spec: BoxSpec, *, labels: Mapping[str, str], created_at: int) -> SyncBox:
        """Hand over a pooled box (one labelled `POOL`): give it this spec, which has the same hash, and these labels.

        If several callers ask for the same box, one gets it and the others get `BoxConflict`. The change is atomic: an
        interruption leaves the box either in the pool or handed over. `BoxStopped` and `BoxUnreachable` mean that the
        caller got the box, but that it is dead and has to be removed. A box leaves the pool only in this way, whatever
        the purpose; labels that include `POOL` keep it in the pool.
        """
        return SyncBox._wrap(
            self._loop.run(self._async.hand_over(id, spec, labels=labels, created_at=created_at)), self
        )

    def find(self, labels: Mapping[str, str] | None = None) -> list[BoxInfo]:
        """Returns all boxes with these labels, oldest first: ordered by `created_at`, then by id."""
        return self._loop.run(self._async.find(labels))

    def attach(self, id: str, *, wake: Wake | None = None) -> SyncBox:
        """Returns a handle to a box, running or stopped. Raises `BoxNotFound`, `BoxGone` or `BoxUnreachable`.

        The handle calls `wake` once before a method raises `BoxStopped`.
        """
        return SyncBox._wrap(self._loop.run(self._async.attach(id, wake=wake)), self)

    def probe(self, id: str) -> Liveness:
        """Returns whether the box exists. Returns `unknown`, and does not raise, if the box cannot be reached."""
        return self._loop.run(self._async.probe(id))

    def remove(self, id: str) -> int:
        """Delete a box, even one that was only partly created. Returns the bytes freed: 0 if there was no such box."""
        return self._loop.run(self._async.remove(id))

    def snapshots(self, labels: Mapping[str, str] | None = None) -> list[Snapshot]:
        """Returns all snapshots with these labels, oldest first."""
        return self._loop.run(self._async.snapshots(labels))

    def snapshot(self, id: str) -> Snapshot:
        """Raises `SnapshotNotFound`."""
        return self._loop.run(self._async.snapshot(id))

    def delete_snapshot(self, id: str) -> int:
        """Delete a snapshot. Returns the bytes freed. Data that is still in use stays.

        Raises `SnapshotNotFound`.
        """
        return self._loop.run(self._async.delete_snapshot(id))

    def snapshot_cost(self, id: str) -> int | None:
        """Returns how many bytes a snapshot of this box would copy now, or None if that is unknown."""
        return self._loop.run(self._async.snapshot_cost(id))

    def export_snapshot(self, id: str) -> SyncIterator[bytes]:
        """Yields the snapshot as a stream that `import_snapshot` accepts."""
        return SyncIterator._wrap(self._async.export_snapshot(id), self)

    def import_snapshot(self, stream: Iterable[bytes]) -> Snapshot:
        """Raises `WrongSnapshot` if the stream is not a snapshot, or one of another kind."""
        return self._loop.run(self._async.import_snapshot(feed(stream)))

    def create_volume(self, name: str) -> Volume:
        """Raises `VolumeExists`."""
        return self._loop.run(self._async.create_volume(name))

    def volumes(self) -> list[Volume]:
        return self._loop.run(self._async.volumes())

    def delete_volume(self, name: str) -> int:
        """Returns the bytes freed. Raises `VolumeNotFound` or `VolumeInUse`."""
        return self._loop.run(self._async.delete_volume(name))

    def sweep(self, keep: Collection[str] | None = None) -> Swept:
        """Remove what interrupted operations left behind. With `keep`, also remove every box not listed there.

        Never touches what another process is creating now.
        """
        return self._loop.run(self._async.sweep(keep))

    def diagnose(self, id: str | None = None) -> list[Step]:
        """Check the provider, or one of its boxes. Each failed step has a hint on what to do next."""
        return self._loop.run(self._async.diagnose(id))

    def set_up_machine(self, plan: MachinePlan, tell: Callable[[Step], None]) -> bool:
        """Put programs and variables into a machine of the user, or of a box, and leave alone what the user has there.

        Can be done twice. `tell` gets each step when it is done. Returns whether all worked.
        """
        return self._loop.run(self._async.set_up_machine(plan, tell))

    def check_access(self) -> list[Step]:
        """Check that the provider answers (`reach`) and accepts the credential (`authorize`), up to the first failure.

        Creates nothing. A provider with a credential checks the two for itself.
        """
        return self._loop.run(self._async.check_access())

    def __enter__(self) -> Self:
        self._enter(self._async.__aenter__())
        return self

    def _leave(self) -> None:
        self.close()


class SyncImageStore(SyncHandle):
    """`ImageStore` for code without `await`."""

    _async: ImageStore

    @property
    def takes_pulled(self) -> bool:
        """Whether Holdfast pulls images for it (`import_pulled`). False where the provider pulls them by itself."""
        return self._async.takes_pulled

    @property
    def takes_archives(self) -> bool:
        """Whether it has all images that boxes can start from, and takes new ones (`import_archive`). False where it
        only names snapshots, and other names are for the provider to find.
        """
        return self._async.takes_archives

    def list(self) -> list[Image]:
        """Returns all images, sorted by name."""
        return self._loop.run(self._async.list())

    def get(self, name: str) -> Image:
        return self._loop.run(self._async.get(name))

    def import_archive(self, name: str, archive: Iterable[bytes]) -> Image:
        """Import a root filesystem, an OCI layout or the output of `docker save`, as a tar stream, optionally
        compressed. An existing name moves to the new image.

        Raises `HostileArchive`, and then leaves nothing behind.
        """
        return self._loop.run(self._async.import_archive(name, feed(archive)))

    def from_snapshot(
        self, snapshot: str, name: str, *, config: ImageConfig | None = None, labels: Mapping[str, str] | None = None
    ) -> Image:
        """Create an image from a snapshot. Files are shared, not copied. `config` defaults to that of its image."""
        return self._loop.run(self._async.from_snapshot(snapshot, name, config=config, labels=labels))

    def remove(self, name: str) -> int:
        """Remove a name. Returns the bytes freed. Layers that are still in use stay."""
        return self._loop.run(self._async.remove(name))

    def import_pulled(self, name: str, archive: Iterable[bytes], digest: str) -> Image:
        """Import an OCI layout from a registry, and record its digest there in `Image.pulled`."""
        return self._loop.run(self._async.import_pulled(name, feed(archive), digest))
