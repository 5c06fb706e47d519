"""The data directory of a provider on this machine. Several processes may use it; each change is atomic.

    boxes/<id>/        box.json, upper/ and work/ of its overlay, guest.sock, processes/, start.log
    layers/<id>/files  frozen files, shared by boxes and snapshots; never written again
    snapshots/<id>.json
    images/<name>.json
    volumes/<name>/    volume.json, files/
    runtime/<hash>/    what is mounted into boxes: the guest, /etc, bubblewrap
    trash/             to be deleted, by the next sweep at the latest

A process locks (flock) the folder of a box while it changes the box. A marker in the folder names the unfinished
operation, so that a sweep after a crash can finish or undo it.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import errno
import fcntl
import json
import os
import stat
import struct
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from holdfast.api.box.spec import BoxSpec
from holdfast.api.errors.boxes import BoxConflict, BoxGone, BoxNotFound
from holdfast.api.ids import new_id
from holdfast.guest.init import search

CREATING: Final = "creating"
DELETING: Final = "deleting"
HELD: Final = "held"
"""In the folder of a box while its processes are stopped so that its files can be copied."""
SEALING: Final = "sealing"
"""While the root of a running box is made read-only, because the box is about to end."""
SEALED: Final = "sealed"
"""In the folder of a box that ended with its root read-only: a process that still has one of its files open cannot
write."""
PREPARED: Final = "next.json"
"""An empty file in the folder of a pooled box. The next record is written there and renamed. Creating a file would take
longer than everything else in a handover."""
_LOCK_SECONDS: Final = 60.0
_LONG_PATH: Final = 2048
_DEEPEST: Final = 200
_OPEN: Final = 0o500
"""The permissions that the owner of a folder needs to list it and to stat its entries."""
_MOST_OPENED: Final = 100
"""Nested folders without permissions that are opened at a time."""
FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_OPENAT2: Final = 437
"""The same number on every architecture. Needs Linux 5.6; a container may refuse it."""
_BENEATH_WITHOUT_LINKS: Final = 0x08 | 0x04 | 0x02
"""RESOLVE_BENEATH, RESOLVE_NO_SYMLINKS, RESOLVE_NO_MAGICLINKS."""
_libc: Final = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class BoxImage:
    """What a box or snapshot stores about its image, so that it works after the image is deleted."""

    name: str
    digest: str
    env: Mapping[str, str]
    workdir: str | None
    user: str | None
    """As written in the image."""
    uid: int
    gid: int
    home: str

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "digest": self.digest,
            "env": dict(self.env),
            "workdir": self.workdir,
            "user": self.user,
            "uid": self.uid,
            "gid": self.gid,
            "home": self.home,
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> BoxImage:
        """Raises `ValueError`, `KeyError` or `TypeError` for an invalid document: it may come from another machine."""
        workdir, user, home = document["workdir"], document["user"], document["home"]
        env = dict(document["env"])
        fits = (
            all(isinstance(name, str) and isinstance(value, str) for name, value in env.items())
            and not any("\0" in name + value or "=" in name or not name for name, value in env.items())
            and (workdir is None or (isinstance(workdir, str) and workdir.startswith("/") and "\0" not in workdir))
            and (user is None or isinstance(user, str))
            and isinstance(home, str)
            and home.startswith("/")
            and "\0" not in home
            and all(isinstance(each, int) and 0 <= each < 1 << 31 for each in (document["uid"], document["gid"]))
        )
        if not fits:
            raise ValueError("an image that cannot be")
        return cls(
            str(document["name"]), str(document["digest"]), env, workdir, user, document["uid"], document["gid"], home
        )


@dataclass(frozen=True, slots=True)
class BoxRecord:
    """The content of `box.json`."""

    id: str
    spec: BoxSpec
    labels: Mapping[str, str]
    created_at: int
    layers: tuple[str, ...] = ()
    """The layers of its overlay, lowest first."""
    snapshot: str | None = None
    """The snapshot that the box was created from."""
    head: str | None = None
    """The snapshot of its current top layer, which is the parent of the next one."""
    freezing: str | None = None
    """The layer that its upper folder is being renamed to. `recover` finishes or undoes an interrupted rename."""
    image: BoxImage | None = None
    """The image that the box was created from."""
    began: int = 0
    """How many of the lowest layers existed before the box. Those above are its own, and count as its disk use."""

    def to_json(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "spec": self.spec.to_json(),
            "labels": dict(self.labels),
            "createdAt": self.created_at,
            "layers": list(self.layers),
            "snapshot": self.snapshot,
            "head": self.head,
            "freezing": self.freezing,
            "image": None if self.image is None else self.image.to_json(),
            "began": self.began,
        }

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> BoxRecord:
        return cls(
            document["id"],
            BoxSpec.from_json(document["spec"]),
            document["labels"],
            document["createdAt"],
            tuple(document["layers"]),
            document["snapshot"],
            document["head"],
            document["freezing"],
            BoxImage.from_json(document["image"]) if document.get("image") else None,
            document.get("began", len(document["layers"])),
        )


@dataclass(frozen=True, slots=True)
class Emptied:
    """The result of emptying the trash."""

    freed: int
    """Bytes."""
    finished: bool
    """False if the time did not suffice."""


@dataclass(frozen=True, slots=True)
class DataDir:
    """The directory, and the user that boxes run as."""

    path: Path
    uid: int
    gid: int
    boxes: Path = field(init=False, repr=False, compare=False)
    _records: dict[str, tuple[tuple[int, int, int], BoxRecord]] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "boxes", self.path / "boxes")  # read very often

    @property
    def layers(self) -> Path:
        return self.path / "layers"

    @property
    def snapshots(self) -> Path:
        return self.path / "snapshots"

    @property
    def images(self) -> Path:
        return self.path / "images"

    @property
    def volumes(self) -> Path:
        return self.path / "volumes"

    @property
    def runtime(self) -> Path:
        return self.path / "runtime"

    @property
    def trash(self) -> Path:
        return self.path / "trash"

    def prepare(self) -> None:
        """Create the folders. Boxes may enter those that contain something of theirs, but cannot list any."""
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Other users of this machine must not enter: a box can leave programs there that run as the user that created
        # them.
        if os.geteuid() == 0:
            os.chown(self.path, 0, self.gid)
        self.path.chmod(0o710 if os.geteuid() == 0 else 0o700)
        for folder, mode in (
            (self.boxes, 0o711),
            (self.layers, 0o711),
            (self.volumes, 0o711),
            (self.runtime, 0o711),
            (self.snapshots, 0o700),
            (self.images, 0o700),
            (self.trash, 0o700),
        ):
            folder.mkdir(mode=0o700, exist_ok=True)
            folder.chmod(mode)

    def give(self, path: Path) -> None:
        """Make the box user the owner of a path."""
        if os.geteuid() == 0 and self.uid != 0:
            os.chown(path, self.uid, self.gid, follow_symlinks=False)

    def make_folder(self, path: Path, mode: int = 0o755) -> None:
        """Create a folder that the box user owns."""
        path.mkdir()
        path.chmod(mode)
        self.give(path)

    # --- boxes ---

    def box(self, id: str) -> Path:
        return self.boxes / id

    def ids(self) -> list[str]:
        """Returns the ids of all boxes, complete or not, oldest first."""
        return sorted(entry.name for entry in os.scandir(self.boxes))

    def read(self, id: str) -> BoxRecord:
        """Raises `BoxNotFound`."""
        path = f"{self.path}/boxes/{id}/box.json"  # called very often, so without path objects
        try:
            version = _version(os.stat(path))  # noqa: PTH116
            known = self._records.get(id)
            if known is not None and known[0] == version:
                return known[1]
            record = BoxRecord.from_json(json.loads(Path(path).read_bytes()))
        except FileNotFoundError:
            self._records.pop(id, None)
            raise BoxNotFound(f"there is no local box {id}") from None
        except (ValueError, KeyError, TypeError) as error:
            raise BoxGone(f"the record of box {id} cannot be read ({error}): delete the box") from None
        self._records[id] = (version, record)
        return record

    def write(self, record: BoxRecord) -> None:
        """The caller has locked the box."""
        folder = f"{self.path}/boxes/{record.id}"
        try:
            descriptor = os.open(f"{folder}/{PREPARED}", os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC)
        except FileNotFoundError:
            status = write_whole(self.box(record.id) / "box.json", record.to_json())
        else:
            try:
                _write_at_once(descriptor, record.to_json())
                status = os.fstat(descriptor)
            finally:
                os.close(descriptor)
            os.rename(f"{folder}/{PREPARED}", f"{folder}/box.json")  # noqa: PTH104
        self._records[record.id] = (_version(status), record)

    def whole(self, id: str) -> bool:
        """Returns whether the box is completely created and not being deleted."""
        folder = f"{self.path}/boxes/{id}"
        return not os.access(f"{folder}/{CREATING}", os.F_OK) and not os.access(f"{folder}/{DELETING}", os.F_OK)

    def records(self) -> list[BoxRecord]:
        """Returns the records of all complete boxes, oldest first."""
        return [record for record in self.all_records() if self.whole(record.id)]

    def all_records(self) -> list[BoxRecord]:
        """Returns the records of all boxes, including those being created or deleted, oldest first."""
        found = []
        for id in self.ids():
            with contextlib.suppress(BoxNotFound, BoxGone):
                found.append(self.read(id))
        return found

    def new_record(self, id: str, spec: BoxSpec, labels: Mapping[str, str], created_at: int) -> BoxRecord:
        return BoxRecord(id, spec, {**spec.labels, **labels}, created_at)

    # --- locks ---

    def try_lock(self, name: str) -> int | None:
        """Returns a descriptor that holds the lock until it is closed, or None if another task or process holds the
        lock."""
        try:
            descriptor = os.open(f"{self.path}/boxes/{name}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            raise BoxNotFound(f"there is no local box {name}") from None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return descriptor
        except BlockingIOError:
            os.close(descriptor)
            return None

    @contextlib.asynccontextmanager
    async def locked(self, id: str) -> AsyncIterator[None]:
        """Lock a box across tasks and processes. Raises `BoxConflict` if the lock stays taken."""
        deadline = asyncio.get_running_loop().time() + _LOCK_SECONDS
        pause = 0.001
        while (descriptor := self.try_lock(id)) is None:
            if asyncio.get_running_loop().time() > deadline:
                raise BoxConflict(f"another process has held box {id} for {_LOCK_SECONDS:.0f} s: try again later")
            await asyncio.sleep(pause)
            pause = min(pause * 2, 0.05)
        try:
            yield
        finally:
            os.close(descriptor)

    def layers_alone(self) -> AbstractContextManager[bool]:
        """For removing layers that nothing refers to. Yields False if an operation is about to refer to one: try again
        later."""
        return self.alone_in(self.layers)

    def layers_kept(self) -> AbstractContextManager[None]:
        """For starting to refer to layers: none is removed meanwhile. Waits only briefly, since removals are
        renames."""
        return self.making_in(self.layers)

    @contextlib.contextmanager
    def alone_in(self, folder: Path) -> Iterator[bool]:
        """For removing leftovers in a folder. Yields False if something is being created there: try again later."""
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
            else:
                yield True
        finally:
            os.close(descriptor)

    @contextlib.contextmanager
    def making_in(self, folder: Path) -> Iterator[None]:
        """For creating something in a folder that nothing refers to yet, so that it is not removed as a leftover."""
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH)
            yield
        finally:
            os.close(descriptor)

    # --- removal ---

    def tidy(self, folder: Path) -> None:
        """Discard what interrupted operations left in a folder: its name starts with a dot."""
        with self.alone_in(folder) as alone:
            for path in folder.glob(".*") if alone else ():
                self.discard(path)

    def discard(self, path: Path) -> Path | None:
        """Move a path into the trash. Returns its new path, or None if it did not exist."""
        self._records.pop(path.name, None)
        target = self.trash / f"{path.name}.{new_id('x')}"
        try:
            path.rename(target)
        except FileNotFoundError:
            return None
        return target

    def empty(self, paths: Iterable[Path], seconds: float) -> Emptied:
        """Delete paths in the trash for at most this many seconds, because a box can leave millions of files."""
        removal = search.Removal(time.monotonic() + seconds)
        finished = True
        for path in paths:
            try:
                removal.remove(str(path))
            except TimeoutError:
                finished = False
            except OSError:
                continue  # the next sweep tries again
        return Emptied(removal.freed, finished)


def _version(status: os.stat_result) -> tuple[int, int, int]:
    """Returns what changes when the file is replaced."""
    return status.st_ino, status.st_mtime_ns, status.st_size


def write_whole(path: Path, document: object) -> os.stat_result:
    """Write a file atomically: readers see the old file or the new one. Returns the status of the new file."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{new_id('x')}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        _write_at_once(descriptor, document)
        status = os.fstat(descriptor)
    finally:
        os.close(descriptor)
    temporary.replace(path)
    return status


def _write_at_once(descriptor: int, document: object) -> None:
    data = json.dumps(document).encode()
    if os.write(descriptor, data) < len(data):  # the file that replaces the old one must be complete
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def remove_tree(path: Path) -> int:
    """Remove a folder of a box, whatever its permissions and depth. Returns the bytes freed.

    Never follows links. What cannot be removed stays for the next sweep.
    """
    removal = search.Removal()
    with contextlib.suppress(OSError):
        removal.remove(str(path))
    return removal.freed


def measure(path: Path, least: int = 0) -> int:
    """Returns the bytes on disk of everything below a path. Hard links count once, and each name counts at least
    `least`."""
    try:
        root = os.open(path, FOLDER)
    except OSError:
        return 0
    try:
        return _Measuring(least).folder(root)
    finally:
        os.close(root)


class _Measuring:
    """Walks by paths from an open folder. Where folders are nested deeper than a path can be long, it opens another
    one."""

    def __init__(self, least: int) -> None:
        self._least = least
        self._seen: set[tuple[int, int]] = set()
        self._opened = 0
        """Folders without permissions that are open around the current one."""

    def folder(self, root: int, depth: int = 0) -> int:
        total = 0
        waiting = ["."]
        while waiting:
            name = waiting.pop()
            try:
                folder = open_beneath(root, name)
            except OSError:
                continue  # deleted, or replaced by a link
            try:
                if len(name) > _LONG_PATH and depth < _DEEPEST:
                    total += self.folder(folder, depth + 1)
                    continue
                with os.scandir(folder) as entries:
                    for entry in entries:
                        try:
                            status = entry.stat(follow_symlinks=False)
                        except OSError:
                            continue
                        is_folder = stat.S_ISDIR(status.st_mode)
                        if status.st_nlink > 1 and not is_folder:
                            if (status.st_dev, status.st_ino) in self._seen:
                                continue
                            self._seen.add((status.st_dev, status.st_ino))
                        total += max(status.st_blocks * 512, self._least)
                        if is_folder and _is_closed(status) and self._opened < _MOST_OPENED:
                            with contextlib.suppress(OSError):  # deleted, or replaced by a link
                                total += self._closed(folder, entry.name, depth)
                        elif is_folder:
                            if _is_closed(status):
                                # Too many are open around it already.
                                with contextlib.suppress(OSError), _opened(folder, entry.name, for_good=True):
                                    pass
                            waiting.append(f"{name}/{entry.name}")
            except OSError:
                continue
            finally:
                os.close(folder)
        return total

    def _closed(self, parent: int, name: str, depth: int) -> int:
        """Measure a folder without permissions, which is opened meanwhile."""
        with _opened(parent, name) as folder:
            self._opened += 1
            try:
                return self.folder(folder, depth)
            finally:
                self._opened -= 1


@contextlib.contextmanager
def _opened(parent: int, name: str, *, for_good: bool = False) -> Iterator[int]:
    """Yields a descriptor of a folder without permissions, which its owner may open meanwhile.

    Follows no link. Restores the permissions of the same folder, even if another one has its name by then.
    """
    place = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    itself = f"/proc/self/fd/{place}"
    try:
        mode = stat.S_IMODE(os.fstat(place).st_mode)
        os.chmod(itself, mode | _OPEN)  # noqa: PTH101
        folder = os.open(itself, FOLDER & ~os.O_NOFOLLOW)
        try:
            yield folder
        finally:
            os.close(folder)
            if not for_good:
                os.chmod(itself, mode)  # noqa: PTH101
    finally:
        os.close(place)


def _is_closed(status: os.stat_result) -> bool:
    """Returns whether we own a folder but lack permissions. If the server is not root, boxes run as the same user."""
    return status.st_uid == os.geteuid() != 0 and stat.S_IMODE(status.st_mode) & _OPEN != _OPEN


def updated(record: BoxRecord, **changes: Any) -> BoxRecord:
    return replace(record, **changes)


def open_beneath(root: int, path: str) -> int:
    """Open a folder by its path from an open one. O_NOFOLLOW alone applies only to the last step of a path."""
    how = struct.pack("QQQ", FOLDER, 0, _BENEATH_WITHOUT_LINKS)
    descriptor = int(_libc.syscall(_OPENAT2, root, os.fsencode(path), how, len(how)))
    if descriptor >= 0:
        return descriptor
    number = ctypes.get_errno()
    if number in (errno.ENOSYS, errno.EPERM):
        return open_by_steps(root, path)
    raise OSError(number, os.strerror(number), path)


def open_by_steps(root: int, path: str) -> int:
    """The same for kernels without that call."""
    at = os.dup(root)
    for part in path.split("/"):
        if part == "..":
            os.close(at)
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), path)
        try:
            below = os.open(part or ".", FOLDER, dir_fd=at)
        finally:
            os.close(at)
        at = below
    return at
