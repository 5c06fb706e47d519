"""The client's boxes and volumes for code without `await`.

Written by `bin/generate`: change the async classes instead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.api.box.sync import SyncBox
from holdfast.sync_twin import SyncHandle, SyncIterator, feed

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from holdfast.api.box.box import Deleted
    from holdfast.api.box.network import NetworkPolicy
    from holdfast.api.box.records import BoxRecord, BoxRecordPage, MadeBox, MovedBox, Owner, Preview, Pruned, Step
    from holdfast.api.box.snapshots import Snapshot, Volume
    from holdfast.api.box.spec import BoxSpec
    from holdfast.api.box.usage import BoxUsages
    from holdfast.api.progress import Progress
    from holdfast.client.box.boxes import Boxes
    from holdfast.client.box.volumes import Volumes


class SyncBoxes(SyncHandle):
    """`Boxes` for code without `await`."""

    _async: Boxes

    @property
    def volumes(self) -> SyncVolumes:
        return SyncVolumes._wrap(self._async.volumes, self)

    def create(
        self,
        spec: BoxSpec | None = None,
        *,
        key: str | None = None,
        fresh: bool = False,
        replaces: bool = True,
        owner: Owner | None = None,
    ) -> MadeBox:
        """Create a box. With a key, acquire the box of that key: it is resumed, restored or created.

        `fresh` deletes an existing box of the key first, and the new one shares nothing with it. Without `replaces`,
        raises `BoxDiffers` if the existing box has another spec, and keeps that box.
        """
        return self._loop.run(self._async.create(spec, key=key, fresh=fresh, replaces=replaces, owner=owner))

    def get(self, id: str) -> BoxRecord:
        """Returns a box, even one that no longer exists. Raises `BoxNotFound`."""
        return self._loop.run(self._async.get(id))

    def open(self, id: str) -> SyncBox:
        """Returns a handle on an existing box. Raises `BoxNotFound` or `BoxGone`."""
        return SyncBox._wrap(self._loop.run(self._async.open(id)), self)

    def handle(self, record: BoxRecord, *, env: Mapping[str, str] | None = None) -> SyncBox:
        """Returns a handle for a record from the server, without a request. `env` is that of its spec, if known."""
        return SyncBox._wrap(self._async.handle(record, env=env), self)

    def page(
        self,
        *,
        states: Collection[str] = (),
        labels: Mapping[str, str] | None = None,
        key: str | None = None,
        all: bool = False,
        cursor: str | None = None,
        limit: int = 50,
    ) -> BoxRecordPage:
        """Returns up to `limit` boxes (200 at most) and the cursor of the next page."""
        return self._loop.run(
            self._async.page(states=states, labels=labels, key=key, all=all, cursor=cursor, limit=limit)
        )

    def stop(self, id: str) -> BoxRecord:
        """End all processes in a box. Its files are kept."""
        return self._loop.run(self._async.stop(id))

    def start(self, id: str) -> BoxRecord:
        """Start a stopped box with its files."""
        return self._loop.run(self._async.start(id))

    def delete(self, id: str) -> Deleted:
        """Delete a box and everything it owns. Deleting a box twice is not an error."""
        return self._loop.run(self._async.delete(id))

    def set_network(self, id: str, policy: NetworkPolicy) -> BoxRecord:
        """Change what a box may reach, from now on."""
        return self._loop.run(self._async.set_network(id, policy))

    def preview_address(self, id: str, port: int) -> Preview:
        """The URL of a port, for programs: its host and port are all that a visitor needs. Valid for twelve hours."""
        return self._loop.run(self._async.preview_address(id, port))

    def fork(
        self, id: str, *, owner: Owner | None = None, key: str | None = None, idle_seconds: int | None = None
    ) -> BoxRecord:
        """Create a box with the same spec and files. A `key` must not have a box yet. With `idle_seconds` the fork is
        ephemeral, even if the original is not.
        """
        return self._loop.run(self._async.fork(id, owner=owner, key=key, idle_seconds=idle_seconds))

    def move(
        self,
        id: str,
        to: str,
        *,
        image: str | None = None,
        stop: bool = False,
        keep: bool = False,
        progress: Progress | None = None,
    ) -> MovedBox:
        """Move a box to another provider: a new box there gets its files, key and owner, and the old one is deleted.

        Only the workspace travels. `image` is for the new box, and defaults to that of the old one. Raises
        `Unsupported` if the provider lacks something that the box has, and `BoxConflict` if processes run in the box,
        unless `stop` ends them. `keep` stops the old box instead of deleting it. If a move fails, the box stays as it
        was.
        """
        return self._loop.run(self._async.move(id, to, image=image, stop=stop, keep=keep, progress=progress))

    def prune(self) -> Pruned:
        """Delete idle and stopped ephemeral boxes, and leftovers, now."""
        return self._loop.run(self._async.prune())

    def usage(self) -> BoxUsages:
        """Returns what all boxes use now."""
        return self._loop.run(self._async.usage())

    def diagnose(self, id: str | None = None, *, provider: str = "local") -> list[Step]:
        """Returns what works and what does not, for a provider or for one box."""
        return self._loop.run(self._async.diagnose(id, provider=provider))

    def snapshot(self, id: str, *, labels: Mapping[str, str] | None = None) -> Snapshot:
        """Save the current files of a box."""
        return self._loop.run(self._async.snapshot(id, labels=labels))

    def snapshots(self, *, box: str | None = None, key: str | None = None) -> list[Snapshot]:
        """Returns all snapshots, or those of a box or a key, oldest first."""
        return self._loop.run(self._async.snapshots(box=box, key=key))

    def delete_snapshot(self, id: str) -> int:
        """Delete a snapshot. Returns the bytes freed."""
        return self._loop.run(self._async.delete_snapshot(id))

    def restore(self, snapshot: str, spec: BoxSpec | None = None, *, owner: Owner | None = None) -> BoxRecord:
        """Create a box with a snapshot's files and the spec of its original box, or with another spec."""
        return self._loop.run(self._async.restore(snapshot, spec, owner=owner))

    def export_snapshot(self, id: str) -> SyncIterator[bytes]:
        """Yields the contents of a snapshot, for `import_snapshot`."""
        return SyncIterator._wrap(self._async.export_snapshot(id), self)

    def import_snapshot(self, stream: Iterable[bytes], *, provider: str = "local") -> Snapshot:
        """Import an exported snapshot, from this server or another."""
        return self._loop.run(self._async.import_snapshot(feed(stream), provider=provider))

    def list(
        self,
        *,
        states: Collection[str] = (),
        labels: Mapping[str, str] | None = None,
        key: str | None = None,
        all: bool = False,
        limit: int | None = None,
    ) -> SyncIterator[BoxRecord]:
        """Yields matching boxes, newest first, at most `limit`. With `all`, includes boxes that no longer exist."""
        return SyncIterator._wrap(self._async.list(states=states, labels=labels, key=key, all=all, limit=limit), self)


class SyncVolumes(SyncHandle):
    """`Volumes` for code without `await`."""

    _async: Volumes

    def create(self, name: str, *, provider: str = "local") -> Volume:
        return self._loop.run(self._async.create(name, provider=provider))

    def delete(self, name: str, *, provider: str = "local") -> int:
        """Delete a volume. Returns the bytes freed."""
        return self._loop.run(self._async.delete(name, provider=provider))

    def list(self, *, provider: str = "local") -> list[Volume]:
        return self._loop.run(self._async.list(provider=provider))
