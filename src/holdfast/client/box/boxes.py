"""The boxes of a server: create, list and find them. `box` has the operations on one box.

The command line loads this module for each `box list`, so it imports the types of rarer answers where they are used.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Collection, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Final

from holdfast.api.box.records import (
    BoxOwner,
    BoxRecord,
    BoxRecordPage,
    Fork,
    Freed,
    MadeBox,
    NewBox,
    Owner,
    Preview,
    Pruned,
    Step,
    Steps,
)
from holdfast.api.box.spec import BoxSpec
from holdfast.api.errors import Unreachable
from holdfast.client.connection import ServerConnection, encode_json
from holdfast.client.resource import LONG_SECONDS, Resource

if TYPE_CHECKING:
    from holdfast.api.box.box import Deleted
    from holdfast.api.box.network import NetworkPolicy
    from holdfast.api.box.records import MovedBox
    from holdfast.api.box.snapshots import Snapshot
    from holdfast.api.box.usage import BoxUsages
    from holdfast.api.progress import Progress
    from holdfast.client.box.box import RemoteBox
    from holdfast.client.box.volumes import Volumes

_PAGE: Final = 200


class Boxes:
    """All boxes of one server: `client.boxes`. Box errors are `holdfast.api.errors.boxes.BoxError`s."""

    def __init__(self, connection: ServerConnection) -> None:
        self._connection = connection
        self._boxes = Resource(connection, "/v1/boxes")
        self._snapshots = Resource(connection, "/v1/snapshots")

    @cached_property
    def volumes(self) -> Volumes:
        from holdfast.client.box.volumes import Volumes

        return Volumes(self._connection)

    async def create(
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
        new = NewBox(spec=spec or BoxSpec(), owner=_owner(owner), key=key, fresh=fresh, replaces=replaces)
        # Repeating a request for a key still yields one box.
        answer = await self._boxes.ask(
            "POST", "", new.to_request(), repeatable=key is not None and not fresh, timeout=LONG_SECONDS
        )
        return answer.read(MadeBox.from_json)

    async def get(self, id: str) -> BoxRecord:
        """Returns a box, even one that no longer exists. Raises `BoxNotFound`."""
        return (await self._boxes.below(id).ask("GET")).read(BoxRecord.from_json)

    async def open(self, id: str) -> RemoteBox:
        """Returns a handle on an existing box. Raises `BoxNotFound` or `BoxGone`."""
        return self.handle(await self.get(id))

    def handle(self, record: BoxRecord, *, env: Mapping[str, str] | None = None) -> RemoteBox:
        """Returns a handle for a record from the server, without a request. `env` is that of its spec, if known."""
        from holdfast.client.box.box import RemoteBox  # here: it brings asyncio

        return RemoteBox(self._boxes, record, env)

    async def page(
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
        parameters = [("limit", str(limit)), ("all", str(all).lower())]
        parameters += [("state", str(state)) for state in states]
        parameters += [("label", f"{name}:{value}") for name, value in (labels or {}).items()]
        parameters += [(name, value) for name, value in (("key", key), ("cursor", cursor)) if value is not None]
        return (await self._boxes.ask("GET", parameters=parameters)).read(BoxRecordPage.from_json)

    async def stop(self, id: str) -> BoxRecord:
        """End all processes in a box. Its files are kept."""
        return await self._record(id, "stop")

    async def start(self, id: str) -> BoxRecord:
        """Start a stopped box with its files."""
        return await self._record(id, "start")

    async def delete(self, id: str) -> Deleted:
        """Delete a box and everything it owns. Deleting a box twice is not an error."""
        from holdfast.api.box.box import Deleted

        answer = await self._boxes.below(id).ask("DELETE", timeout=LONG_SECONDS)
        return Deleted(answer.read(Freed.from_json).freed)

    async def set_network(self, id: str, policy: NetworkPolicy) -> BoxRecord:
        """Change what a box may reach, from now on."""
        answer = await self._boxes.below(id).ask("PUT", "/network", policy.to_json(), timeout=LONG_SECONDS)
        return answer.read(BoxRecord.from_json)

    async def preview_address(self, id: str, port: int) -> Preview:
        """The URL of a port, for programs: its host and port are all that a visitor needs. Valid for twelve hours."""
        answer = await self._boxes.below(id).ask("GET", "/preview-address", parameters=[("port", str(port))])
        return answer.read(Preview.from_json)

    async def fork(
        self, id: str, *, owner: Owner | None = None, key: str | None = None, idle_seconds: int | None = None
    ) -> BoxRecord:
        """Create a box with the same spec and files. A `key` must not have a box yet. With `idle_seconds` the fork is
        ephemeral, even if the original is not.
        """
        wanted = Fork(owner=None if owner is None else _owner(owner), key=key, idle_seconds=idle_seconds).to_request()
        answer = await self._boxes.below(id).ask("POST", "/fork", wanted, repeatable=False, timeout=LONG_SECONDS)
        return answer.read(BoxRecord.from_json)

    async def move(
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
        from holdfast.api.box.records import MoveBox, MovedBox
        from holdfast.client.progress_lines import follow_progress

        wanted = MoveBox(to=to, image=image, stop=stop, keep=keep)
        box = self._boxes.below(id)
        async with box.exchange(
            "POST", "/move", body=encode_json(wanted.to_request()), media_type="application/json", silence=LONG_SECONDS
        ) as response:
            if (last := await follow_progress(response, progress)) is not None:
                return MovedBox.from_json(last["moved"])
        raise Unreachable(
            f"{box.url} closed the connection before box {id} was moved", hint="look where it is: holdfast box list"
        )

    async def prune(self) -> Pruned:
        """Delete idle and stopped ephemeral boxes, and leftovers, now."""
        return (await self._boxes.ask("POST", "/prune", timeout=LONG_SECONDS)).read(Pruned.from_json)

    async def usage(self) -> BoxUsages:
        """Returns what all boxes use now."""
        from holdfast.api.box.usage import BoxUsages

        return (await self._boxes.ask("GET", "/metrics", timeout=LONG_SECONDS)).read(BoxUsages.from_json)

    async def diagnose(self, id: str | None = None, *, provider: str = "local") -> list[Step]:
        """Returns what works and what does not, for a provider or for one box."""
        if id is not None:
            answer = await self._boxes.below(id).ask("GET", "/diagnose", timeout=LONG_SECONDS)
        else:
            parameters = [("provider", provider)]
            answer = await self._boxes.ask("GET", "/diagnose", parameters=parameters, timeout=LONG_SECONDS)
        return list(answer.read(Steps.from_json).steps)

    # --- snapshots ---

    async def snapshot(self, id: str, *, labels: Mapping[str, str] | None = None) -> Snapshot:
        """Save the current files of a box."""
        from holdfast.api.box.snapshots import NewSnapshot, Snapshot

        answer = await self._boxes.below(id).ask(
            "POST",
            "/snapshots",
            NewSnapshot(labels=dict(labels or {})).to_request(),
            repeatable=False,
            timeout=LONG_SECONDS,
        )
        return answer.read(Snapshot.from_json)

    async def snapshots(self, *, box: str | None = None, key: str | None = None) -> list[Snapshot]:
        """Returns all snapshots, or those of a box or a key, oldest first."""
        from holdfast.api.box.snapshots import SnapshotList

        parameters = [(name, value) for name, value in (("box", box), ("key", key)) if value is not None]
        answer = await self._snapshots.ask("GET", parameters=parameters)
        return list(answer.read(SnapshotList.from_json).snapshots)

    async def delete_snapshot(self, id: str) -> int:
        """Delete a snapshot. Returns the bytes freed."""
        answer = await self._snapshots.below(id).ask("DELETE", repeatable=False, timeout=LONG_SECONDS)
        return answer.read(Freed.from_json).freed

    async def restore(self, snapshot: str, spec: BoxSpec | None = None, *, owner: Owner | None = None) -> BoxRecord:
        """Create a box with a snapshot's files and the spec of its original box, or with another spec."""
        from holdfast.api.box.snapshots import Restore

        wanted = Restore(spec=spec, owner=_owner(owner)).to_request()
        answer = await self._snapshots.below(snapshot).ask(
            "POST", "/restore", wanted, repeatable=False, timeout=LONG_SECONDS
        )
        return answer.read(BoxRecord.from_json)

    async def export_snapshot(self, id: str) -> AsyncIterator[bytes]:
        """Yields the contents of a snapshot, for `import_snapshot`."""
        async with self._snapshots.below(id).exchange("GET", "/export", silence=LONG_SECONDS) as response:
            async for piece in response.aiter_bytes():
                yield piece

    async def import_snapshot(self, stream: AsyncIterator[bytes], *, provider: str = "local") -> Snapshot:
        """Import an exported snapshot, from this server or another."""
        from holdfast.api.box.snapshots import Snapshot

        async with self._snapshots.exchange(
            "POST", "/import", parameters=[("provider", provider)], body=stream, silence=LONG_SECONDS
        ) as response:
            return Snapshot.from_json(json.loads(await response.aread()))

    async def _record(self, id: str, verb: str) -> BoxRecord:
        return (await self._boxes.below(id).ask("POST", f"/{verb}", timeout=LONG_SECONDS)).read(BoxRecord.from_json)

    # Last, so that `list` means the builtin everywhere above.
    async def list(
        self,
        *,
        states: Collection[str] = (),
        labels: Mapping[str, str] | None = None,
        key: str | None = None,
        all: bool = False,
        limit: int | None = None,
    ) -> AsyncIterator[BoxRecord]:
        """Yields matching boxes, newest first, at most `limit`. With `all`, includes boxes that no longer exist."""
        left, cursor = limit, None
        while left is None or left > 0:
            page = await self.page(
                states=states,
                labels=labels,
                key=key,
                all=all,
                cursor=cursor,
                limit=_PAGE if left is None else min(left, _PAGE),
            )
            for record in page.boxes:
                yield record
            left = None if left is None else left - len(page.boxes)
            cursor = page.next_cursor
            if cursor is None:
                return


def _owner(owner: Owner | None) -> BoxOwner:
    return BoxOwner() if owner is None else BoxOwner(thread=owner.thread, environment=owner.environment)
