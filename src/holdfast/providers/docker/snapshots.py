"""Snapshots of boxes at Docker: images created by a commit, and exported as files.

Only files are exported and imported, because an archive in Docker's format could also set names and settings.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import secrets
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Mapping
from dataclasses import replace
from typing import Any, Final

from holdfast.api.box.snapshots import Holding, Snapshot
from holdfast.api.errors.boxes import BoxUnreachable, NoSpace, SnapshotNotFound, WrongSnapshot
from holdfast.api.ids import new_id, now_ms
from holdfast.boxes.shielded import to_the_end
from holdfast.providers.docker.engine import LONG_SECONDS, Engine, EngineProblem, Removal
from holdfast.providers.docker.objects import (
    MAKER,
    RECORD,
    SNAPSHOT_KIND,
    Kind,
    Maker,
    Names,
    snapshot_from_text,
    snapshot_to_text,
)

DEEPEST: Final = 100
"""From this many layers on, the next image is made of the files alone: Docker mounts at most 125."""
_MAGIC: Final = b"holdfast docker snapshot 1\n"
_LARGEST_HEAD: Final = 1 << 20
_LONGEST_PIECE: Final = 1 << 20
_DIGEST: Final = 32


class Snapshots:
    """The snapshots of one namespace at one daemon."""

    def __init__(self, engine: Engine, names: Names, provider: str) -> None:
        self._engine = engine
        self._names = names
        self._provider = provider
        self._me = str(Maker.this())

    # --- finding ---

    async def image(self, id: str) -> dict[str, Any]:
        """Raises `SnapshotNotFound`."""
        missing = f"there is no docker snapshot {id}"
        if not id or not id.replace("-", "").isalnum() or len(id) > 64:
            raise SnapshotNotFound(missing)
        try:
            found = await self._engine.image(self._names.snapshot(id))
        except EngineProblem as problem:
            if problem.missing or problem.status == 400:
                raise SnapshotNotFound(missing) from None
            raise
        return found

    async def get(self, id: str) -> Snapshot:
        labels = ((await self.image(id)).get("Config") or {}).get("Labels") or {}
        snapshot = snapshot_from_text(self._provider, labels.get(RECORD, ""))
        if snapshot is None or snapshot.id != id:
            raise SnapshotNotFound(f"there is no docker snapshot {id}")
        return snapshot

    async def all(self) -> list[Snapshot]:
        found = []
        for each in await self._engine.images(self._names.labels(Kind.SNAPSHOT)):
            snapshot = snapshot_from_text(self._provider, (each.get("Labels") or {}).get(RECORD, ""))
            if snapshot is not None and self._names.snapshot(snapshot.id) in (each.get("RepoTags") or ()):
                found.append(snapshot)
        return sorted(found, key=lambda snapshot: (snapshot.created_at, snapshot.id))

    # --- taking ---

    async def take(self, box: str, labels: Mapping[str, str], *, running: bool) -> Snapshot:
        container = self._names.box(box)
        found = await self._engine.container(container, size=True)
        size = int(found.get("SizeRw") or 0)
        snapshot = Snapshot(
            new_id("s"), self._provider, SNAPSHOT_KIND, Holding.VALUE, box, None, size, now_ms(), dict(labels)
        )
        await self._commit(
            found, self._names.snapshot(snapshot.id),
            self._names.labels(Kind.SNAPSHOT, **{RECORD: snapshot_to_text(snapshot), MAKER: self._me}), running=running,
        )  # fmt: skip
        return snapshot

    async def fork(self, box: str, *, running: bool) -> dict[str, Any]:
        """Returns an image of a box's files, for another box."""
        found = await self._engine.container(self._names.box(box))
        name = self._names.kept(secrets.token_hex(8))
        await self._commit(found, name, self._names.labels(Kind.FORK, **{RECORD: "", MAKER: self._me}), running=running)
        return await self._engine.image(name)

    async def _commit(
        self, container: Mapping[str, Any], name: str, labels: Mapping[str, str], *, running: bool
    ) -> None:
        base = await self._engine.image(str(container["Image"]))
        if len((base.get("RootFS") or {}).get("Layers") or ()) >= DEEPEST:
            await self._flatten(container, name, labels, running=running)
            return
        await self.commit(str(container["Id"]), name, {"Labels": dict(labels)}, pause=running)

    async def commit(self, container: str, name: str, config: Mapping[str, Any], *, pause: bool) -> None:
        repository, _, tag = name.rpartition(":")
        params = {"container": container, "repo": repository, "tag": tag, "pause": int(pause)}
        # The container's configuration belongs to that box alone.
        config = {"Entrypoint": [], "Cmd": [], "Healthcheck": None, **config}
        try:
            # The daemon does not stop if the caller leaves, and the container is paused until it has finished.
            await to_the_end(self._engine.ask("POST", "commit", params=params, body=config, seconds=LONG_SECONDS))
        except EngineProblem as problem:
            if "no space left" in problem.message:
                raise NoSpace(f"the Docker daemon has no room for a snapshot: {problem.message}") from None
            raise

    async def _flatten(
        self, container: Mapping[str, Any], name: str, labels: Mapping[str, str], *, running: bool
    ) -> None:
        path = f"containers/{container['Id']}"
        if running:
            await self._engine.ask("POST", f"{path}/pause")
        try:
            await self._import(self._engine.receive(f"{path}/export"), name, labels)
        finally:
            if running:
                await self._engine.ask("POST", f"{path}/unpause")

    async def _import(self, files: AsyncIterable[bytes], name: str, labels: Mapping[str, str]) -> None:
        """Create an image of files alone. The values of the labels have neither quotes nor spaces."""
        repository, _, tag = name.rpartition(":")
        changes = [f"LABEL {key}={value}" for key, value in labels.items() if value]
        params = {"fromSrc": "-", "repo": repository, "tag": tag, "changes": "\n".join(changes)}
        await self._engine.send("images/create", files, params=params)

    # --- letting go ---

    async def delete(self, id: str) -> int:
        snapshot = await self.get(id)
        return await self.unname(self._names.snapshot(id), snapshot.size)

    async def unname(self, name: str, size: int) -> int:
        """Remove a name of an image. Returns the bytes freed. Boxes created from it keep it."""
        removal = await self._engine.remove_image(name)
        if removal is Removal.USED:
            # The daemon removes no image that a container uses, unless it has another name.
            await self._engine.tag_image(name, self._names.kept(secrets.token_hex(8)))
            removal = await self._engine.remove_image(name)
        return size if removal is Removal.DELETED else 0

    async def clear_fork(self, image: str) -> None:
        """Remove an image that only one box used, after that box is deleted."""
        try:
            tags = (await self._engine.image(image)).get("RepoTags") or ()
        except EngineProblem:
            return
        for tag in tags:
            if tag.startswith(self._names.kept_prefix):
                with contextlib.suppress(EngineProblem):
                    await self._engine.remove_image(tag)

    # --- by value ---

    @contextlib.asynccontextmanager
    async def container_of(self, image: str) -> AsyncIterator[str]:
        """Yields a container that is never started."""
        labels = self._names.labels(Kind.HELPER, **{MAKER: self._me})
        config = {"Image": image, "Cmd": ["nothing"], "Labels": labels, "HostConfig": {"NetworkMode": "none"}}
        container = await self._engine.create_container(self._names.helper(secrets.token_hex(8)), config)
        try:
            yield container
        finally:
            await self._engine.remove_container(container)

    async def export(self, id: str) -> AsyncGenerator[bytes, None]:
        snapshot = await self.get(id)
        environment = ((await self.image(id)).get("Config") or {}).get("Env") or []
        head = json.dumps({"snapshot": snapshot_to_text(snapshot), "environment": environment}).encode()
        yield _MAGIC + len(head).to_bytes(4, "big") + head
        digest = hashlib.sha256(head)
        async with self.container_of(self._names.snapshot(id)) as container:
            async for piece in self._engine.receive(f"containers/{container}/export"):
                for start in range(0, len(piece), _LONGEST_PIECE):
                    part = piece[start : start + _LONGEST_PIECE]
                    digest.update(part)
                    yield len(part).to_bytes(4, "big") + part
        yield bytes(4) + digest.digest()

    async def import_(self, stream: AsyncIterable[bytes]) -> Snapshot:
        reader = _Pieces(stream)
        if await reader.exactly(len(_MAGIC)) != _MAGIC:
            raise WrongSnapshot("this is not a snapshot of the docker provider")
        size = int.from_bytes(await reader.exactly(4), "big")
        if size > _LARGEST_HEAD:
            raise WrongSnapshot("this is not a snapshot of the docker provider: its head is too large")
        head = await reader.exactly(size)
        try:
            header = json.loads(head)
            exported = snapshot_from_text(self._provider, str(header["snapshot"]))
            environment = [str(each) for each in header["environment"]]
        except (KeyError, TypeError, ValueError):
            exported, environment = None, []
        if exported is None:
            raise WrongSnapshot("this is not a snapshot of the docker provider: its head is invalid")
        snapshot = replace(exported, id=new_id("s"), created_at=now_ms())
        name = self._names.snapshot(snapshot.id)
        labels = self._names.labels(Kind.SNAPSHOT, **{RECORD: snapshot_to_text(snapshot), MAKER: self._me})
        counted = _Counted(reader, hashlib.sha256(head))
        staged = self._names.kept(secrets.token_hex(8))
        try:
            await self._import(counted.pieces(), staged, self._names.labels(Kind.FORK, **{MAKER: self._me}))
            snapshot = replace(snapshot, size=counted.size)
            labels[RECORD] = snapshot_to_text(snapshot)
            async with self.container_of(staged) as container:
                await self.commit(container, name, {"Labels": labels, "Env": environment}, pause=False)
        except EngineProblem as problem:
            raise WrongSnapshot(f"the snapshot cannot be imported: Docker says: {problem.message}") from None
        finally:
            with contextlib.suppress(EngineProblem, BoxUnreachable):
                await self._engine.remove_image(staged)
        return snapshot


class _Pieces:
    """Reads a stream in pieces of a requested size."""

    def __init__(self, stream: AsyncIterable[bytes]) -> None:
        self._stream = aiter(stream)
        self._buffer = bytearray()

    async def exactly(self, count: int) -> bytes:
        while len(self._buffer) < count:
            try:
                self._buffer += await anext(self._stream)
            except StopAsyncIteration:
                raise WrongSnapshot("the snapshot is truncated") from None
        taken = bytes(self._buffer[:count])
        del self._buffer[:count]
        return taken


class _Counted:
    """The files of a snapshot in its stream, checked at the end against what was sent."""

    def __init__(self, reader: _Pieces, digest: Any) -> None:
        self._reader = reader
        self._digest = digest
        self.size = 0

    async def pieces(self) -> AsyncIterator[bytes]:
        while size := int.from_bytes(await self._reader.exactly(4), "big"):
            if size > _LONGEST_PIECE:
                raise WrongSnapshot("the snapshot is invalid: a piece of it is too large")
            piece = await self._reader.exactly(size)
            self._digest.update(piece)
            self.size += size
            yield piece
        if await self._reader.exactly(_DIGEST) != self._digest.digest():
            raise WrongSnapshot("the snapshot is damaged: its checksum does not match")
