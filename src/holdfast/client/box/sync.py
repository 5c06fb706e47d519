"""The sync twin of `client.boxes`: the async one, run on the client's private event loop."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from holdfast.boxes.box import Deleted, Step
from holdfast.boxes.labels import Owner
from holdfast.boxes.network_policy import NetworkPolicy
from holdfast.boxes.provider import Volume
from holdfast.boxes.snapshots import Snapshot
from holdfast.boxes.spec import BoxSpec
from holdfast.boxes.sync import SyncBox, SyncIterator
from holdfast.client.box.boxes import Boxes, Volumes
from holdfast.client.box.types import BoxRecord, BoxRecordPage, BoxUsages, MadeBox, Pruned
from holdfast.loop_thread import LoopThread


class SyncBoxes:
    """All boxes of one server: `client.boxes`."""

    def __init__(self, boxes: Boxes, loop: LoopThread) -> None:
        self._boxes = boxes
        self._loop = loop
        self.volumes = SyncVolumes(boxes.volumes, loop)

    def create(
        self,
        spec: BoxSpec | None = None,
        *,
        key: str | None = None,
        fresh: bool = False,
        replaces: bool = True,
        owner: Owner | None = None,
    ) -> MadeBox:
        """Make a box; with a key, acquire the one of that key: resumed, restored or created. `fresh`: the one that
        there is gets deleted, and the new one has nothing of it. Not `replaces`: one of another spec is a
        `BoxDiffers`, and stays."""
        return self._loop.run(self._boxes.create(spec, key=key, fresh=fresh, replaces=replaces, owner=owner))

    def get(self, id: str) -> BoxRecord:
        """A box, dead or alive. Raises `BoxNotFound`."""
        return self._loop.run(self._boxes.get(id))

    def open(self, id: str) -> SyncBox:
        """A handle on a box that is there. Raises `BoxNotFound`, `BoxGone`."""
        return SyncBox(self._loop.run(self._boxes.open(id)), self._loop)

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
        """Up to `limit` boxes at once (200 at most), and where the next ones are."""
        asked = self._boxes.page(states=states, labels=labels, key=key, all=all, cursor=cursor, limit=limit)
        return self._loop.run(asked)

    def stop(self, id: str) -> BoxRecord:
        """End every process in a box. Its files stay."""
        return self._loop.run(self._boxes.stop(id))

    def start(self, id: str) -> BoxRecord:
        """Start a stopped box on its files."""
        return self._loop.run(self._boxes.start(id))

    def delete(self, id: str) -> Deleted:
        """Delete a box and everything of its own. Deleting twice is fine."""
        return self._loop.run(self._boxes.delete(id))

    def set_network(self, id: str, policy: NetworkPolicy) -> BoxRecord:
        """Change what a box may reach, from now on."""
        return self._loop.run(self._boxes.set_network(id, policy))

    def fork(self, id: str, *, owner: Owner | None = None, key: str | None = None) -> BoxRecord:
        """Another box with the same spec and files; of a key, where one is given that has no box yet."""
        return self._loop.run(self._boxes.fork(id, owner=owner, key=key))

    def prune(self) -> Pruned:
        """Delete idle and stopped ephemeral boxes, and leftovers, now."""
        return self._loop.run(self._boxes.prune())

    def usage(self) -> BoxUsages:
        """What all boxes use now."""
        return self._loop.run(self._boxes.usage())

    def diagnose(self, id: str | None = None, *, provider: str = "local") -> list[Step]:
        """What works and what does not: of a provider, or of one box."""
        return self._loop.run(self._boxes.diagnose(id, provider=provider))

    def snapshot(self, id: str, *, labels: Mapping[str, str] | None = None) -> Snapshot:
        """Keep the files of a box as they are now."""
        return self._loop.run(self._boxes.snapshot(id, labels=labels))

    def snapshots(self, *, box: str | None = None, key: str | None = None) -> list[Snapshot]:
        """All snapshots, or those of a box or a key, the oldest first."""
        return self._loop.run(self._boxes.snapshots(box=box, key=key))

    def delete_snapshot(self, id: str) -> int:
        """Forget a snapshot; says how many bytes that freed."""
        return self._loop.run(self._boxes.delete_snapshot(id))

    def restore(self, snapshot: str, spec: BoxSpec | None = None, *, owner: Owner | None = None) -> BoxRecord:
        """Make a box that begins with a snapshot's files, as the box that it was taken of, or by another spec."""
        return self._loop.run(self._boxes.restore(snapshot, spec, owner=owner))

    # Last, so that `list` means the builtin everywhere above.
    def list(
        self,
        *,
        states: Collection[str] = (),
        labels: Mapping[str, str] | None = None,
        key: str | None = None,
        all: bool = False,
        limit: int | None = None,
    ) -> SyncIterator[BoxRecord]:
        """Boxes that fit, or the first `limit` of them, the newest first. With `all`, those that are no more, too."""
        found = self._boxes.list(states=states, labels=labels, key=key, all=all, limit=limit)
        return SyncIterator(found, self._loop)


class SyncVolumes:
    """All volumes of one server: `client.boxes.volumes`."""

    def __init__(self, volumes: Volumes, loop: LoopThread) -> None:
        self._volumes = volumes
        self._loop = loop

    def create(self, name: str, *, provider: str = "local") -> Volume:
        return self._loop.run(self._volumes.create(name, provider=provider))

    def delete(self, name: str, *, provider: str = "local") -> int:
        """Says how many bytes that freed."""
        return self._loop.run(self._volumes.delete(name, provider=provider))

    def list(self, *, provider: str = "local") -> list[Volume]:
        return self._loop.run(self._volumes.list(provider=provider))
