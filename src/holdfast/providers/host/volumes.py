"""Named volumes on disk, and host folders: what else a box can mount, opened so that nothing leads astray."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from holdfast.boxes.errors import InvalidSpec, ProviderRefused, VolumeExists, VolumeInUse, VolumeNotFound
from holdfast.boxes.provider import Volume
from holdfast.boxes.spec import BoxSpec, HostMount, VolumeMount, check_name
from holdfast.providers.host.ground import Ground, remove_tree, write_whole
from holdfast.threads.ids import new_id, now_ms

MOST: Final = 32
"""Mounts of one box."""
_FOLDER: Final = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def create(ground: Ground, name: str) -> Volume:
    check_name(name, "volume")
    with ground.making_in(ground.volumes):
        return _create(ground, name)


def _create(ground: Ground, name: str) -> Volume:
    made = ground.volumes / f".{name}.{new_id('x')}"
    made.mkdir(mode=0o711)
    made.chmod(0o711)
    ground.make_folder(made / "files")
    volume = Volume(name, now_ms())
    write_whole(made / "volume.json", {"name": name, "createdAt": volume.created_at})
    if (ground.volumes / name).exists():
        remove_tree(made)
        raise VolumeExists(f"there is a volume {name} already")
    try:
        made.rename(ground.volumes / name)
    except OSError:
        remove_tree(made)
        raise VolumeExists(f"there is a volume {name} already") from None
    return volume


def all_volumes(ground: Ground) -> list[Volume]:
    found = []
    for entry in os.scandir(ground.volumes):
        if not entry.name.startswith("."):
            try:
                told = json.loads((Path(entry.path) / "volume.json").read_bytes())
                found.append(Volume(told["name"], told["createdAt"]))
            except (OSError, ValueError, KeyError):
                continue
    return sorted(found, key=lambda volume: volume.name)


def delete(ground: Ground, name: str) -> Path | None:
    """Move a volume into the trash. Returns where it is now. Blocks."""
    check_name(name, "volume")
    if not _is_there(ground, name):
        raise VolumeNotFound(f"there is no volume {name}")
    for record in ground.all_records():  # what is being created mounts it in a moment
        if any(mount.volume == name for mount in record.spec.volumes):
            raise VolumeInUse(f"box {record.id} mounts volume {name}", hint=f"delete the box first: {record.id}")
    return ground.discard(ground.volumes / name)


def _is_there(ground: Ground, name: str) -> bool:
    return (ground.volumes / name / "volume.json").exists()


def require(ground: Ground, name: str) -> None:
    if not _is_there(ground, name):
        raise VolumeNotFound(f"there is no volume {name}", hint=f"make it: holdfast volume create {name}")


def check(ground: Ground, spec: BoxSpec, private: Path) -> None:
    """Refuse mounts that cannot be, or must not be, before anything is made."""
    for volume in spec.volumes:
        require(ground, volume.volume)
    for mount in spec.mounts:
        _resolved(mount, private)


def _resolved(mount: HostMount, private: Path) -> Path:
    """Where it really is, now. A box that has mounted what is above it may put a link there at any time."""
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
    """What is to be mounted: a path that nobody can move, and steps below it that somebody could."""

    root: str
    parts: tuple[str, ...]
    path: str
    read_only: bool

    def place(self, number: int) -> str:
        """What the launcher calls it, where it makes it reachable first."""
        return f"folder{number}" if Path(self.root, *self.parts).is_dir() else f"file{number}"


def sources(ground: Ground, spec: BoxSpec, private: Path) -> list[Source]:
    """Everything that a box mounts. Sub-paths of volumes are made where they are missing."""
    found = []
    for volume in spec.volumes:
        os.close(_open_volume(ground, volume))
        root = str(ground.volumes / volume.volume / "files")
        parts = tuple(volume.subpath.split("/")) if volume.subpath else ()
        found.append(Source(root, parts, volume.path, volume.read_only))
    for mount in spec.mounts:
        found.append(Source("/", _resolved(mount, private).parts[1:], mount.path, mount.read_only))
    if len(found) > MOST:
        raise InvalidSpec(f"{len(found)} mounts are too many: at most {MOST}")
    return found


def _open_volume(ground: Ground, mount: VolumeMount) -> int:
    """Step by step: boxes write to volumes, and one may have put a link where the sub-path goes."""
    require(ground, mount.volume)
    descriptor = os.open(ground.volumes / mount.volume / "files", _FOLDER)
    for part in mount.subpath.split("/") if mount.subpath else ():
        try:
            descriptor = _step(ground, descriptor, part)
        except OSError as error:
            raise InvalidSpec(
                f"{mount.subpath} of volume {mount.volume} cannot be mounted: {part}: {error.strerror}"
            ) from None
    return descriptor


def _step(ground: Ground, folder: int, name: str) -> int:
    try:
        try:
            return os.open(name, _FOLDER, dir_fd=folder)
        except FileNotFoundError:
            os.mkdir(name, 0o755, dir_fd=folder)
            made = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
            if os.geteuid() == 0:
                os.fchown(made, ground.uid, ground.gid)
            os.close(made)
            return os.open(name, _FOLDER, dir_fd=folder)
    finally:
        os.close(folder)


def check_places(ground: Ground, layers: Sequence[str], upper: Path, paths: Sequence[str]) -> None:
    """Refuse to mount onto a path on which the box has put a link: the way there would lead out of it."""
    folders = _folders(ground, layers, upper)
    for path in paths:
        for walked, kind in _steps(folders, path):
            if stat.S_ISLNK(kind):
                raise ProviderRefused(
                    f"{path} cannot be mounted: /{walked} is a link in this box",
                    hint="remove the link, or mount at another path",
                )


def has_place(ground: Ground, layers: Sequence[str], upper: Path, path: str) -> bool:
    """Whether a folder can be mounted at a path: the box has put nothing but folders there."""
    return all(stat.S_ISDIR(kind) for _, kind in _steps(_folders(ground, layers, upper), path))


def _folders(ground: Ground, layers: Sequence[str], upper: Path) -> list[str]:
    return [str(upper), *(f"{ground.layers}/{layer}/files" for layer in reversed(layers))]


def _steps(folders: Sequence[str], path: str) -> Iterator[tuple[str, int]]:
    """What an overlay shows on the way to a path, as far as there is anything."""
    walked = ""
    for part in path.strip("/").split("/"):
        walked = f"{walked}/{part}" if walked else part
        kind = _topmost(folders, walked)
        if kind is None:
            return
        yield walked, kind


def _topmost(folders: Sequence[str], path: str) -> int | None:
    """What an overlay shows at a path: the uppermost layer that has it decides. None where nothing is."""
    for folder in folders:
        try:
            status = os.lstat(f"{folder}/{path}")
        except (FileNotFoundError, NotADirectoryError):
            continue
        deleted = stat.S_ISCHR(status.st_mode) and status.st_rdev == 0
        return None if deleted else status.st_mode
    return None
