"""Named volumes and host folders that boxes mount. They are opened so that no link leads elsewhere."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from holdfast.api.box.snapshots import Volume
from holdfast.api.box.spec import BoxSpec, HostMount, VolumeMount, check_name
from holdfast.api.errors.boxes import InvalidSpec, ProviderRefused, VolumeExists, VolumeInUse, VolumeNotFound
from holdfast.api.ids import new_id, now_ms
from holdfast.providers.host.disk.data_dir import DataDir, remove_tree, write_whole

MOST: Final = 32
"""Mounts of one box."""
_FOLDER: Final = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def create(data_dir: DataDir, name: str) -> Volume:
    check_name(name, "volume")
    with data_dir.making_in(data_dir.volumes):
        return _create(data_dir, name)


def _create(data_dir: DataDir, name: str) -> Volume:
    made = data_dir.volumes / f".{name}.{new_id('x')}"
    made.mkdir(mode=0o711)
    made.chmod(0o711)
    data_dir.make_folder(made / "files")
    volume = Volume(name, now_ms())
    write_whole(made / "volume.json", {"name": name, "createdAt": volume.created_at})
    if (data_dir.volumes / name).exists():
        remove_tree(made)
        raise VolumeExists(f"there is a volume {name} already")
    try:
        made.rename(data_dir.volumes / name)
    except OSError:
        remove_tree(made)
        raise VolumeExists(f"there is a volume {name} already") from None
    return volume


def all_volumes(data_dir: DataDir) -> list[Volume]:
    found = []
    for entry in os.scandir(data_dir.volumes):
        if not entry.name.startswith("."):
            try:
                document = json.loads((Path(entry.path) / "volume.json").read_bytes())
                found.append(Volume(document["name"], document["createdAt"]))
            except (OSError, ValueError, KeyError):
                continue
    return sorted(found, key=lambda volume: volume.name)


def delete(data_dir: DataDir, name: str) -> Path | None:
    """Move a volume into the trash. Returns where it is now. Blocks."""
    check_name(name, "volume")
    if not _is_there(data_dir, name):
        raise VolumeNotFound(f"there is no volume {name}")
    for record in data_dir.all_records():  # including boxes being created, which mount it soon
        if any(mount.volume == name for mount in record.spec.volumes):
            raise VolumeInUse(f"box {record.id} mounts volume {name}", hint=f"delete the box first: {record.id}")
    return data_dir.discard(data_dir.volumes / name)


def _is_there(data_dir: DataDir, name: str) -> bool:
    return (data_dir.volumes / name / "volume.json").exists()


def require(data_dir: DataDir, name: str) -> None:
    if not _is_there(data_dir, name):
        raise VolumeNotFound(f"there is no volume {name}", hint=f"make it: holdfast volume create {name}")


def check(data_dir: DataDir, spec: BoxSpec, private: Path) -> None:
    """Raises an error for mounts that are not possible or not allowed, before anything is created."""
    for volume in spec.volumes:
        require(data_dir, volume.volume)
    for mount in spec.mounts:
        _resolved(mount, private)


def _resolved(mount: HostMount, private: Path) -> Path:
    """Returns the real path at this moment. A box that mounts a parent of it may put a link there at any time."""
    source = Path(mount.source)
    if not source.exists():
        raise InvalidSpec(f"{mount.source} cannot be mounted: it is not there")
    whole = source.resolve()
    for forbidden in (private.resolve(), Path("/proc"), Path("/sys"), Path("/dev")):
        if whole.is_relative_to(forbidden) or forbidden.is_relative_to(whole):
            raise ProviderRefused(
                f"{mount.source} cannot be mounted: {forbidden} is never seen by a box",
                hint="mount a folder that holds only what the box is meant to see",
            )
    return whole


@dataclass(frozen=True, slots=True)
class Source:
    """What is mounted: a path that no box can replace, and parts below it that one could."""

    root: str
    parts: tuple[str, ...]
    path: str
    read_only: bool

    def place(self, number: int) -> str:
        """Returns the name under which the launcher makes it reachable."""
        return f"folder{number}" if Path(self.root, *self.parts).is_dir() else f"file{number}"


def sources(data_dir: DataDir, spec: BoxSpec, private: Path) -> list[Source]:
    """Returns everything that a box mounts. Creates missing sub-paths of volumes."""
    found = []
    for volume in spec.volumes:
        os.close(_open_volume(data_dir, volume))
        root = str(data_dir.volumes / volume.volume / "files")
        parts = tuple(volume.subpath.split("/")) if volume.subpath else ()
        found.append(Source(root, parts, volume.path, volume.read_only))
    for mount in spec.mounts:
        found.append(Source("/", _resolved(mount, private).parts[1:], mount.path, mount.read_only))
    if len(found) > MOST:
        raise InvalidSpec(f"{len(found)} mounts are too many: at most {MOST}")
    return found


def _open_volume(data_dir: DataDir, mount: VolumeMount) -> int:
    """Open a sub-path step by step: boxes write to volumes and may have put a link there."""
    require(data_dir, mount.volume)
    descriptor = os.open(data_dir.volumes / mount.volume / "files", _FOLDER)
    for part in mount.subpath.split("/") if mount.subpath else ():
        try:
            descriptor = _step(data_dir, descriptor, part)
        except OSError as error:
            raise InvalidSpec(
                f"{mount.subpath} of volume {mount.volume} cannot be mounted: {part}: {error.strerror}"
            ) from None
    return descriptor


def _step(data_dir: DataDir, folder: int, name: str) -> int:
    try:
        try:
            return os.open(name, _FOLDER, dir_fd=folder)
        except FileNotFoundError:
            os.mkdir(name, 0o755, dir_fd=folder)
            made = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
            if os.geteuid() == 0:
                os.fchown(made, data_dir.uid, data_dir.gid)
            os.close(made)
            return os.open(name, _FOLDER, dir_fd=folder)
    finally:
        os.close(folder)


def check_places(data_dir: DataDir, layers: Sequence[str], upper: Path, paths: Sequence[str]) -> None:
    """Raises an error if the box has put a link on one of these paths, since mounting there would leave the box."""
    folders = _folders(data_dir, layers, upper)
    for path in paths:
        for walked, kind in _steps(folders, path):
            if stat.S_ISLNK(kind):
                raise ProviderRefused(
                    f"{path} cannot be mounted: /{walked} is a link in this box",
                    hint="remove the link, or mount at another path",
                )


def has_place(data_dir: DataDir, layers: Sequence[str], upper: Path, path: str) -> bool:
    """Returns whether a folder can be mounted at a path: the box has only folders there."""
    return all(stat.S_ISDIR(kind) for _, kind in _steps(_folders(data_dir, layers, upper), path))


def _folders(data_dir: DataDir, layers: Sequence[str], upper: Path) -> list[str]:
    return [str(upper), *(f"{data_dir.layers}/{layer}/files" for layer in reversed(layers))]


def _steps(folders: Sequence[str], path: str) -> Iterator[tuple[str, int]]:
    """Yields what an overlay shows along a path, as far as it exists."""
    walked = ""
    for part in path.strip("/").split("/"):
        walked = f"{walked}/{part}" if walked else part
        kind = _topmost(folders, walked)
        if kind is None:
            return
        yield walked, kind


def _topmost(folders: Sequence[str], path: str) -> int | None:
    """Returns the mode of what an overlay shows at a path: that of the topmost layer that has it, or None."""
    for folder in folders:
        try:
            status = os.lstat(f"{folder}/{path}")
        except (FileNotFoundError, NotADirectoryError):
            continue
        deleted = stat.S_ISCHR(status.st_mode) and status.st_rdev == 0
        return None if deleted else status.st_mode
    return None
