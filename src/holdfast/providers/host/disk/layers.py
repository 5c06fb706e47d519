"""Layers and snapshots on disk. A layer is a folder that never changes; a snapshot is a list of layers.

Turning the files of a stopped box into a layer is a rename. The provider starts and stops boxes, not this module.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

from holdfast.api.box.snapshots import Holding, Snapshot
from holdfast.api.errors.boxes import FileProblem, SnapshotNotFound, WrongSnapshot
from holdfast.api.ids import new_id, now_ms
from holdfast.guest.init import tree
from holdfast.providers.host.disk.data_dir import (
    BoxImage,
    BoxRecord,
    DataDir,
    Emptied,
    measure,
    remove_tree,
    updated,
    write_whole,
)

BASE: Final = "base-2"
"""The layer with the folders that every box starts with."""
IMAGE_BASE: Final = "image-base-2"
"""The same for boxes with an image, below the image."""
IMAGE_ETC: Final = "image-etc-1"
"""On top of an image: replaces files in its /etc that describe the machine on which it was built."""
IMAGE_APT: Final = "image-apt-1"
"""On top of an image with apt, which cannot change to another user here."""
OWN_LAYERS: Final = frozenset({BASE, IMAGE_BASE, IMAGE_ETC, IMAGE_APT})
"""Created by Holdfast, and again if they are missing. Never removed."""
KIND: Final = "layers"
DEEPEST: Final = 20
"""The most layers of one box. More are merged, because a mount takes a limited number and each costs a little."""
DEEPEST_ASLEEP: Final = 5
"""The same for a box that hibernates, which it may do any number of times."""
_MAGIC: Final = b"HOLDFAST-SNAPSHOT 1\n"
_HEADER_LIMIT: Final = 64 * 1024
_OPAQUE: Final = "user.overlay.opaque"
_EXPORT: Final = "export."
"""Prefix in the trash of snapshots that are being exported."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """The content of `snapshots/<id>.json`."""

    snapshot: Snapshot
    layers: tuple[str, ...]
    image: BoxImage | None = None

    def to_json(self) -> dict[str, Any]:
        snapshot = self.snapshot
        return {
            "id": snapshot.id,
            "provider": snapshot.provider,
            "kind": snapshot.kind,
            "holding": snapshot.holding.value,
            "box": snapshot.box,
            "parent": snapshot.parent,
            "size": snapshot.size,
            "createdAt": snapshot.created_at,
            "labels": dict(snapshot.labels),
            "layers": list(self.layers),
            "image": None if self.image is None else self.image.to_json(),
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Manifest:
        return cls(
            Snapshot(
                document["id"],
                document["provider"],
                document["kind"],
                Holding(document["holding"]),
                document["box"],
                document["parent"],
                document["size"],
                document["createdAt"],
                document["labels"],
            ),
            tuple(document["layers"]),
            BoxImage.from_json(document["image"]) if document.get("image") else None,
        )


def read_manifest(data_dir: DataDir, id: str) -> Manifest:
    """Raises `SnapshotNotFound`, `WrongSnapshot`."""
    if not id or "/" in id or id.startswith("."):
        raise SnapshotNotFound(f"there is no snapshot {id!r}")
    try:
        manifest = Manifest.from_json(json.loads((data_dir.snapshots / f"{id}.json").read_bytes()))
    except FileNotFoundError:
        raise SnapshotNotFound(f"there is no local snapshot {id}") from None
    except (ValueError, KeyError, TypeError) as error:
        raise WrongSnapshot(f"the manifest of snapshot {id} cannot be read ({error})") from None
    if manifest.snapshot.kind != KIND:
        raise WrongSnapshot(f"snapshot {id} is of kind {manifest.snapshot.kind}; local boxes are restored from {KIND}")
    return manifest


def manifests(data_dir: DataDir) -> list[Manifest]:
    """Returns all manifests, oldest first."""
    found = []
    for name in sorted(entry.name for entry in os.scandir(data_dir.snapshots) if entry.name.endswith(".json")):
        if not name.startswith("."):
            with contextlib.suppress(SnapshotNotFound, WrongSnapshot):
                found.append(read_manifest(data_dir, name.removesuffix(".json")))
    return found


# --- freezing ---------------------------------------------------------------------------------------------------------


def recover(data_dir: DataDir, record: BoxRecord) -> BoxRecord:
    """Finish or undo an interrupted freeze. The box is locked and does not run."""
    folder = data_dir.box(record.id)
    freezing = record.freezing
    if freezing is not None:
        if (data_dir.layers / freezing / "files").is_dir():
            record = updated(record, layers=(*record.layers, freezing), freezing=None)
        else:
            with contextlib.suppress(OSError):
                (data_dir.layers / freezing).rmdir()
            record = updated(record, freezing=None)
        _fresh_upper(data_dir, folder)
        data_dir.write(record)
    elif not (folder / "upper").is_dir() or not (folder / "work").is_dir():
        _fresh_upper(data_dir, folder)
    return record


def _fresh_upper(data_dir: DataDir, folder: Path) -> None:
    if not (folder / "upper").is_dir():
        data_dir.discard(folder / "work")
        _make_at_once(data_dir, folder / "upper", 0o755)
    if not (folder / "work").is_dir():
        _make_at_once(data_dir, folder / "work", 0o700)


def _make_at_once(data_dir: DataDir, path: Path, mode: int) -> None:
    """Create a folder with its owner and mode atomically. A folder with the wrong owner would keep the box from
    starting."""
    made = path.with_name(f".{path.name}")
    data_dir.discard(made)
    data_dir.make_folder(made, mode)
    made.rename(path)


def changed(data_dir: DataDir, record: BoxRecord) -> bool:
    """Returns whether a box has written anything since its last layer."""
    with os.scandir(data_dir.box(record.id) / "upper") as entries:
        return any(True for _ in entries)


def freeze_top(data_dir: DataDir, record: BoxRecord) -> BoxRecord:
    """Make the upper folder of a box its topmost layer. This is a rename, so it takes the same time for any size.

    The box is sealed: no process, in this box or another, can write to that folder.
    """
    folder = data_dir.box(record.id)
    layer: str = new_id("l")
    record = updated(record, freezing=layer)
    data_dir.write(record)
    (data_dir.layers / layer).mkdir(mode=0o711)
    (data_dir.layers / layer).chmod(0o711)
    (folder / "upper").rename(data_dir.layers / layer / "files")
    return recover(data_dir, record)


def _new_layer(data_dir: DataDir, fill: Callable[[Path], None]) -> str:
    """Create a layer in a temporary folder and rename it."""
    layer: str = new_id("l")
    with unfinished_layer(data_dir) as made:
        fill(made / "files")
        made.rename(data_dir.layers / layer)
    return layer


@contextlib.contextmanager
def unfinished_layer(data_dir: DataDir) -> Iterator[Path]:
    """Yields a folder for a new layer, locked so that a sweep ignores it. It is removed unless it is renamed."""
    made = data_dir.layers / f".{new_id('l')}"
    with data_dir.layers_kept():
        made.mkdir(mode=0o711)
        made.chmod(0o711)
        descriptor = os.open(made, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    try:
        yield made
    finally:
        moved = data_dir.discard(made)
        os.close(descriptor)
        if moved is not None:
            remove_tree(moved)


def own(data_dir: DataDir, record: BoxRecord) -> list[Path]:
    """Returns the folders of the layers that a box has added."""
    return [data_dir.layers / layer for layer in record.layers[record.began :]]


def merge(data_dir: DataDir, record: BoxRecord, deepest: int) -> BoxRecord:
    """Merge layers: the box's own, or all if it started with many. Makes hard links, not copies. Blocks."""
    spared = record.began if record.began < deepest else 1
    above = list(record.layers[spared:])
    merged = _new_layer(data_dir, lambda files: _merge(data_dir, above, files, keep_marks=True))
    layers = (*record.layers[:spared], merged)
    return updated(record, layers=layers, began=min(record.began, len(layers)))


def merge_into(data_dir: DataDir, layers: Sequence[str], target: Path) -> None:
    """Merge layers, lowest first, into one folder. Deletion marks are kept. Blocks."""
    _merge(data_dir, list(layers), target, keep_marks=True)


def _merge(data_dir: DataDir, layers: list[str], target: Path, *, keep_marks: bool) -> None:
    data_dir.make_folder(target)
    for layer in layers:
        _lay_over(data_dir, data_dir.layers / layer / "files", target, keep_marks=keep_marks)


def _lay_over(data_dir: DataDir, source: Path, target: Path, *, keep_marks: bool) -> None:
    with os.scandir(source) as entries:
        found = list(entries)  # so that the folder is closed before going deeper
    for entry in found:
        status = entry.stat(follow_symlinks=False)
        place = target / entry.name
        folder = stat.S_ISDIR(status.st_mode)
        deleted = stat.S_ISCHR(status.st_mode) and status.st_rdev == 0
        opaque = folder and _is_opaque(entry.path)
        there = os.path.lexists(place)
        if there and not (folder and not opaque and place.is_dir() and not place.is_symlink()):
            if place.is_dir() and not place.is_symlink():
                remove_tree(place)
            else:
                place.unlink()
            there = False
        if folder:
            if not there:
                place.mkdir()
                if opaque and keep_marks:
                    os.setxattr(place, _OPAQUE, b"y")
            _lay_over(data_dir, Path(entry.path), place, keep_marks=keep_marks)
            place.chmod(stat.S_IMODE(status.st_mode))
            if os.geteuid() == 0:
                os.chown(place, status.st_uid, status.st_gid)
            os.utime(place, ns=(status.st_atime_ns, status.st_mtime_ns))
        elif keep_marks or not deleted:
            os.link(entry.path, place, follow_symlinks=False)


def _is_opaque(path: str) -> bool:
    try:
        return os.getxattr(path, _OPAQUE, follow_symlinks=False) == b"y"
    except OSError:
        return False


# --- snapshots --------------------------------------------------------------------------------------------------------


def write_snapshot(
    data_dir: DataDir, record: BoxRecord, layers: tuple[str, ...], labels: Mapping[str, str]
) -> Snapshot:
    parent = record.head or record.snapshot
    known = _layers_of(data_dir, parent)
    size = sum(measure(data_dir.layers / layer) for layer in layers if layer not in OWN_LAYERS and layer not in known)
    snapshot = Snapshot(
        new_id("s"), "local", KIND, Holding.REFERENCE, record.id, parent, size, now_ms(), {**record.labels, **labels}
    )
    write_whole(data_dir.snapshots / f"{snapshot.id}.json", Manifest(snapshot, layers, record.image).to_json())
    return snapshot


def _layers_of(data_dir: DataDir, id: str | None) -> tuple[str, ...]:
    if id is None:
        return ()
    try:
        return read_manifest(data_dir, id).layers
    except (SnapshotNotFound, WrongSnapshot):
        return ()


def forget_snapshot(data_dir: DataDir, id: str) -> None:
    """Layers that only this snapshot referred to stay until `collect`."""
    read_manifest(data_dir, id)
    (data_dir.snapshots / f"{id}.json").unlink(missing_ok=True)


def collect(data_dir: DataDir) -> list[Path] | None:
    """Move layers that no box and no snapshot refers to into the trash. Returns their new paths. Blocks.

    Returns None if an operation is about to refer to a layer: try again.
    """
    with data_dir.layers_alone() as alone:
        if not alone:
            return None
        for path in (
            *data_dir.snapshots.glob(".*"),
            *data_dir.images.glob(".*"),
        ):  # writing one keeps the layers locked
            _unlink(str(path))
        needed = set(OWN_LAYERS)
        for manifest in manifests(data_dir):
            needed.update(manifest.layers)
        for id in data_dir.ids():
            needed.update(_needed_by(data_dir, id))
        for named in image_documents(data_dir):
            needed.update(named.get("layers", ()))
        with os.scandir(data_dir.layers) as entries:
            unneeded = [Path(entry.path) for entry in entries if entry.name not in needed]
        return [
            moved
            for path in unneeded
            if (not path.name.startswith(".") or _abandoned(path)) and (moved := data_dir.discard(path)) is not None
        ]


def _needed_by(data_dir: DataDir, id: str) -> Iterator[str]:
    """Reads from disk whatever state the box is in. Keeping too many layers costs space; removing one too many costs a
    box."""
    try:
        document = json.loads((data_dir.box(id) / "box.json").read_bytes())
    except (OSError, ValueError):
        return
    yield from document.get("layers", ())
    if document.get("freezing"):
        yield document["freezing"]


def image_documents(data_dir: DataDir) -> Iterator[dict[str, Any]]:
    """Yields the document of each image. Skips those that cannot be read."""
    for path in sorted(data_dir.images.glob("*.json")):
        with contextlib.suppress(OSError, ValueError):
            document = json.loads(path.read_bytes())
            if isinstance(document, dict):
                yield document


def _abandoned(path: Path) -> bool:
    """Returns whether the process that was creating this layer has died."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)


# --- by value ---------------------------------------------------------------------------------------------------------


def export(data_dir: DataDir, id: str, out: BinaryIO) -> None:
    """Write a snapshot with all of its files. Blocks."""
    manifest = read_manifest(data_dir, id)
    header = json.dumps(Manifest(manifest.snapshot, (), manifest.image).to_json()).encode()
    out.write(_MAGIC + header + b"\n")
    flat = data_dir.trash / f"{_EXPORT}{new_id('x')}"
    with data_dir.making_in(data_dir.trash):
        try:
            with data_dir.layers_kept():
                above = [layer for layer in manifest.layers if layer not in (BASE, IMAGE_BASE)]
                _merge(data_dir, above, flat, keep_marks=False)
            tree.pack(str(flat), out)
        except BrokenPipeError:
            raise
        except (OSError, RecursionError) as error:  # folders without permissions, or deeper than we can walk
            raise FileProblem(f"snapshot {id} cannot be exported: {error}") from None
        finally:
            remove_tree(flat)


def import_(data_dir: DataDir, source: BinaryIO) -> Snapshot:
    """Read what `export` wrote. The data is untrusted: unpacking never follows a link. Blocks."""
    if source.read(len(_MAGIC)) != _MAGIC:
        raise WrongSnapshot("this is not an exported snapshot", hint="export one: holdfast box snapshots --export ID")
    line = source.readline(_HEADER_LIMIT)
    try:
        header = Manifest.from_json(json.loads(line))
        exported = header.snapshot
    except (ValueError, KeyError, TypeError, AttributeError):
        raise WrongSnapshot("the exported snapshot has no readable manifest") from None
    if exported.kind != KIND:
        raise WrongSnapshot(f"this is a snapshot of kind {exported.kind}; local boxes are restored from {KIND}")

    def fill(files: Path) -> None:
        data_dir.make_folder(files)
        try:
            tree.unpack(source, str(files), links="anywhere")
        except tree.BadArchive as error:
            raise WrongSnapshot(f"the exported snapshot cannot be unpacked: {error}") from None
        _give_all(data_dir, files)

    with data_dir.layers_kept():
        layer = _new_layer(data_dir, fill)
        size = measure(data_dir.layers / layer)
        labels = exported.labels if isinstance(exported.labels, dict) else {}
        snapshot = Snapshot(
            new_id("s"), "local", KIND, Holding.VALUE, str(exported.box)[:64], None, size, now_ms(), dict(labels)
        )
        base = BASE if header.image is None else IMAGE_BASE
        write_whole(
            data_dir.snapshots / f"{snapshot.id}.json", Manifest(snapshot, (base, layer), header.image).to_json()
        )
    return snapshot


def _give_all(data_dir: DataDir, folder: Path) -> None:
    data_dir.give(folder)
    for parent, folders, files in os.walk(folder):
        for name in (*folders, *files):
            data_dir.give(Path(parent) / name)


def clear_trash(data_dir: DataDir, seconds: float) -> Emptied:
    """Delete what is in the trash, and leftovers of interrupted exports. Blocks."""
    with data_dir.alone_in(data_dir.trash) as alone, os.scandir(data_dir.trash) as entries:
        doomed = [Path(entry.path) for entry in entries if alone or not entry.name.startswith(_EXPORT)]
        return data_dir.empty(doomed, seconds)


def _unlink(path: str) -> None:
    with contextlib.suppress(OSError):
        Path(path).unlink()
