"""Snapshots of sprites: checkpoints, whose comments say what they are, under a seal of the home.

A checkpoint belongs to its sprite, and can only be restored in place. A new box gets the files of a snapshot as a copy:
a sprite shows its last five checkpoints as folders, and they are streamed from there into the new sprite.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from sprites.exceptions import SpriteError
from sprites.types import Checkpoint
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed

from holdfast.api.box.snapshots import Holding, Snapshot
from holdfast.api.errors.boxes import BoxConflict, SnapshotNotFound
from holdfast.providers.sprites.api import EXIT, STDERR, STDIN, STDIN_EOF, STDOUT, SpritesApi, created_ms
from holdfast.providers.sprites.errors import ApiProblem
from holdfast.providers.sprites.home_files import HomeFiles
from holdfast.providers.sprites.records import BoxRecord
from holdfast.time_limit import time_limit

KIND: Final = "checkpoint"
CHECKPOINTS: Final = "/.sprite/checkpoints"
"""Where a sprite shows its last checkpoints."""
_ID: Final = re.compile(r"(?P<box>[a-z0-9-]+)\.[0-9a-f]{12}")
_COMMENT: Final = "holdfast "
_COPY_SECONDS: Final = 1800.0
_LAST_WORDS: Final = 2000
_READ: Final = """
set -eu
[ -d "$1" ] || exit 44
cd "$1"
shift
for folder; do if [ -d ".$folder" ]; then set -- "$@" ".$folder"; fi; shift; done
exec tar -cf - --numeric-owner --exclude './*/.holdfast-guest' -- "$@"
"""
_WRITE: Final = """
set -eu
for folder; do
    mkdir -p "$folder"
    find "$folder" -mindepth 1 -maxdepth 1 ! -name .holdfast-guest -exec rm -rf -- {} +
done
exec tar -xpf - -C /
"""
_NOT_MOUNTED: Final = 44


@dataclass(frozen=True, slots=True)
class Kept:
    """A snapshot, and the checkpoint that has its files."""

    snapshot: Snapshot
    checkpoint: str
    total: int
    """Bytes of all files, also of those that earlier snapshots have."""


def new_snapshot_id(box: str) -> str:
    return f"{box}.{secrets.token_hex(6)}"


def box_of(snapshot: str) -> str:
    """Returns the box of a snapshot. Raises `SnapshotNotFound` if the id makes no sense."""
    match = _ID.fullmatch(snapshot)
    if match is None:
        raise SnapshotNotFound(f"there is no snapshot {snapshot}")
    return match["box"]


async def take(api: SpritesApi, files: HomeFiles, sprite: str, snapshot: Snapshot, total: int) -> Kept:
    text = json.dumps(
        {
            "id": snapshot.id,
            "box": snapshot.box,
            "parent": snapshot.parent,
            "size": snapshot.size,
            "total": total,
            "createdAt": snapshot.created_at,
            "labels": snapshot.labels,
        },
        separators=(",", ":"),
    )
    made = await api.checkpoint(sprite, _COMMENT + files.seal(text))
    return Kept(snapshot, made.id, total)


async def kept_in(api: SpritesApi, files: HomeFiles, provider: str, sprite: str, record: BoxRecord) -> list[Kept]:
    """Returns the snapshots of a sprite, oldest first.

    Code in the sprite can take checkpoints, too, and can repeat a comment: the first one that has it is ours.
    """
    if not record.checkpointed:
        return []
    try:
        checkpoints = sorted(await api.checkpoints(sprite), key=created_ms)
    except ApiProblem as problem:
        if problem.missing:
            return []  # deleted since it was listed
        raise
    kept: dict[str, Kept] = {}
    for each in checkpoints:
        found = _read(each, files, provider)
        if found is not None and found.snapshot.box == record.id and found.snapshot.id not in record.forgotten:
            kept.setdefault(found.snapshot.id, found)
    return sorted(kept.values(), key=lambda each: (each.snapshot.created_at, each.snapshot.id))


def _read(checkpoint: Checkpoint, files: HomeFiles, provider: str) -> Kept | None:
    comment = checkpoint.comment or ""
    text = files.opened(comment.removeprefix(_COMMENT)) if comment.startswith(_COMMENT) else None
    if text is None:
        return None
    try:
        told: dict[str, Any] = json.loads(text)
        snapshot = Snapshot(
            str(told["id"]),
            provider,
            KIND,
            Holding.REFERENCE,
            str(told["box"]),
            None if told["parent"] is None else str(told["parent"]),
            int(told["size"]),
            int(told.get("createdAt") or created_ms(checkpoint)),
            {str(name): str(value) for name, value in told["labels"].items()},
        )
        return Kept(snapshot, checkpoint.id, int(told["total"]))
    except (AttributeError, KeyError, TypeError, ValueError):
        return None


async def copy_files(api: SpritesApi, source: str, kept: Kept, target: str, folders: Sequence[str]) -> None:
    """Replace folders of a sprite by those of a checkpoint of another sprite. Other files stay as they are."""
    reading = ["sh", "-c", _READ, "sh", f"{CHECKPOINTS}/{kept.checkpoint}", *folders]
    writing = ["sh", "-c", _WRITE, "sh", *folders]
    async with time_limit(_COPY_SECONDS):
        code, complaints = await _pipe(api, source, reading, target, writing)
    if code == _NOT_MOUNTED:
        raise BoxConflict(
            f"snapshot {kept.snapshot.id} cannot be restored into another sprite: {source} no longer shows checkpoint "
            f"{kept.checkpoint}, only its last five",
            hint=f"go back in place: sprite restore {kept.checkpoint} -s {source}",
        )
    if code != 0:
        raise SpriteError(f"files cannot be copied from {source} to {target}: {complaints}")


async def _pipe(
    api: SpritesApi, source: str, reading: Sequence[str], target: str, writing: Sequence[str]
) -> tuple[int, str]:
    """Run two commands, the output of one into the input of the other. Returns the first code that is not 0."""
    outgoing = await api.connect(source, reading)
    try:
        incoming = await api.connect(target, writing)
        try:
            complaints = bytearray()
            ending = asyncio.create_task(_end_of(incoming, complaints))
            try:
                code = await _carry(outgoing, incoming, complaints)
                if code == 0:
                    code = await ending
            finally:
                ending.cancel()
                await asyncio.gather(ending, return_exceptions=True)
            return code, bytes(complaints[-_LAST_WORDS:]).decode("utf-8", "replace").strip()
        finally:
            await incoming.close()
    finally:
        await outgoing.close()


async def _carry(outgoing: ClientConnection, incoming: ClientConnection, complaints: bytearray) -> int:
    """Send the output of one command to another. Returns the exit code of the first."""
    code = 255
    async for message in outgoing:
        if isinstance(message, str):
            continue
        if message[:1] == bytes([STDERR]):
            complaints += message[1 : _LAST_WORDS + 1]
        elif message[:1] == bytes([EXIT]):
            code = message[1]
            break
        elif message[:1] == bytes([STDOUT]):
            with contextlib.suppress(ConnectionClosed):  # it ended: its exit code says why
                await incoming.send(bytes([STDIN]) + message[1:])
    with contextlib.suppress(ConnectionClosed):  # tar ends with the archive, not with its input
        await incoming.send(bytes([STDIN_EOF]))
    return code


async def _end_of(socket: ClientConnection, complaints: bytearray) -> int:
    async for message in socket:
        if isinstance(message, bytes) and message[:1] == bytes([EXIT]):
            return message[1]
        if isinstance(message, bytes):
            complaints += message[1 : _LAST_WORDS + 1]
    return 255
