"""Everything on this machine that belongs to the local boxes of one home, and what of it nothing refers to.

Reads the disk, /proc and the control groups, and asks no code of the provider for its opinion.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from holdfast.api.errors.boxes import BoxError
from holdfast.boxes.labels import POOL
from holdfast.providers.host.disk.data_dir import PREPARED, SEALED, DataDir
from holdfast.providers.host.guest_client import PAUSED, GuestClient, is_guest, monitor_name
from holdfast.providers.host.launcher_client import stage_for

_OF_A_BOX: Final = {"box.json", "upper", "work", "guest.sock", "processes", "start.log", PAUSED, SEALED}
_OF_A_PROCESS: Final = {"process.json", "stdout", "stderr", "exit"}
_OF_THE_DATA_DIR: Final = {"boxes", "layers", "snapshots", "volumes", "runtime", "trash", "user", "images"}
_NEW_SECONDS: Final = 120.0
_BASES: Final = frozenset({"base-2", "image-base-2", "image-etc-1", "image-apt-1"})
"""Layers that are there from the start."""
_UNSURE: Final = "?"
_CGROUPS: Final = Path("/sys/fs/cgroup")
_PROBE: Final = re.compile(r"holdfast-probe-([0-9]+)-[0-9]+")


@dataclass(frozen=True, slots=True)
class Inventory:
    """What there is, by name."""

    alive: frozenset[str]
    """Boxes whose guest listens."""
    boxes: dict[str, set[str]]
    """Folders, with the names in them."""
    records: dict[str, set[str]]
    """Boxes that have a record, with the layers that it refers to."""
    pool: frozenset[str]
    """Boxes that are nobody's yet."""
    processes_kept: dict[str, set[str]]
    """By box and process, what is kept of it. Left out are new ones, which somebody may be starting."""
    layers: set[str]
    snapshots: dict[str, set[str]]
    """Files, with the layers that they refer to."""
    volumes: dict[str, set[str]]
    runtime: set[str]
    trash: set[str]
    data_dir: set[str]
    groups: dict[str, set[str]]
    """Control groups: boxes, with the hierarchies they have one in."""
    empty_parents: set[str]
    """Control groups of the home in which there is no box."""
    probes: set[str]
    frozen: set[str]
    processes: dict[int, str]
    """That run, with what is known of them."""


def take_inventory(data_dir: DataDir) -> Inventory:
    boxes = {name: _names(data_dir.boxes / name) for name in _names(data_dir.boxes)}
    snapshots = {name: _layers_in(data_dir.snapshots / name) for name in _names(data_dir.snapshots)}
    groups: dict[str, set[str]] = {}
    empty: set[str] = set()
    frozen: set[str] = set()
    for folder in _group_folders(data_dir):
        inside = {name for name in _names(folder) if (folder / name).is_dir()}
        if not inside:
            empty.add(str(folder))
        for name in inside:
            groups.setdefault(name, set()).add(str(folder))
            for file, word in (("freezer.state", "FROZEN"), ("cgroup.freeze", "1")):
                with contextlib.suppress(OSError):
                    if (folder / name / file).read_text().strip() == word:
                        frozen.add(name)
    return Inventory(
        alive=frozenset(name for name in boxes if GuestClient(name, data_dir.boxes / name).alive()),
        boxes=boxes,
        records={name: _layers_in(data_dir.boxes / name / "box.json") for name in boxes if "box.json" in boxes[name]},
        pool=frozenset(name for name in boxes if _is_in_pool(data_dir.boxes / name / "box.json")),
        processes_kept={
            f"{box}/{name}": _names(data_dir.boxes / box / "processes" / name)
            for box in boxes
            for name in _names(data_dir.boxes / box / "processes")
            if _is_old(data_dir.boxes / box / "processes" / name)
        },
        layers=_names(data_dir.layers),
        snapshots=snapshots,
        volumes={name: _names(data_dir.volumes / name) for name in _names(data_dir.volumes)},
        runtime=_names(data_dir.runtime),
        trash=_names(data_dir.trash),
        data_dir=_names(data_dir.path),
        groups=groups,
        empty_parents=empty,
        probes=set(_dead_probes()),
        frozen=frozen,
        processes=dict(_processes(data_dir)),
    )


def _is_in_pool(record: Path) -> bool:
    try:
        return POOL in json.loads(record.read_bytes())["labels"]
    except (OSError, ValueError, KeyError, TypeError):
        return False


def leftovers(there: Inventory) -> list[str]:
    """What nothing refers to, or is only half there. Empty where all is well."""
    wrong = []
    for name, inside in there.boxes.items():
        if name not in there.records:
            wrong.append(f"box {name} has no record")
        usual = _OF_A_BOX | {PREPARED} if name in there.pool else _OF_A_BOX
        wrong += [f"box {name} has {each} in its folder" for each in inside - usual]
        if name in there.alive and not {"upper", "work"} <= inside:
            wrong.append(f"box {name} runs without its files")
        if name in there.alive and SEALED in inside:
            wrong.append(f"box {name} runs and cannot write")
    for name, inside in there.processes_kept.items():
        if inside != _OF_A_PROCESS:
            wrong.append(f"process {name} is half there: {sorted(inside)}")
    needed = _BASES.union(*there.records.values(), *there.snapshots.values())
    wrong += [f"layer {name} is referred to by nothing" for name in there.layers - needed]
    wrong += [f"layer {name} is missing" for name in needed - there.layers - _being_frozen(there)]
    wrong += [f"{name} is no snapshot" for name in there.snapshots if name.startswith(".")]
    for name, inside in there.volumes.items():
        if name.startswith(".") or inside != {"volume.json", "files"}:
            wrong.append(f"volume {name} is half there: {sorted(inside)}")
    wrong += [f"{name} is left in runtime" for name in there.runtime if name.startswith(".")]
    wrong += [f"{name} is left in the trash" for name in there.trash]
    wrong += [f"{name} is left in the provider's folder" for name in there.data_dir - _OF_THE_DATA_DIR]
    for name, folders in there.groups.items():
        if name not in there.alive:
            wrong.append(f"control groups are left of {name}, which does not run: {sorted(folders)}")
    wrong += [f"control group {name} is left" for name in there.empty_parents | there.probes]
    paused = {name for name, inside in there.boxes.items() if PAUSED in inside and name in there.alive}
    wrong += [f"box {name} is frozen" for name in there.frozen - paused]
    wrong += [f"box {name} is paused, and runs" for name in (paused - there.frozen) & there.groups.keys()]
    for pid, about in there.processes.items():
        if not any(f"box {name}," in about for name in there.alive):
            wrong.append(f"process {pid} is left: {about}")
    return wrong


def _being_frozen(there: Inventory) -> set[str]:
    """A record may name a layer that was about to be made: its next start sees to that."""
    marked = {layer for layers in there.records.values() for layer in layers if layer.startswith(_UNSURE)}
    return marked | {layer[len(_UNSURE) :] for layer in marked}


def _names(folder: Path) -> set[str]:
    try:
        return set(os.listdir(folder))  # noqa: PTH208
    except (FileNotFoundError, NotADirectoryError):
        return set()


def _is_old(path: Path) -> bool:
    try:
        return path.stat().st_mtime < time.time() - _NEW_SECONDS
    except FileNotFoundError:
        return False


def _layers_in(path: Path) -> set[str]:
    try:
        document = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return set()
    found = set(document.get("layers", ()))
    if document.get("freezing"):
        found |= {document["freezing"], f"{_UNSURE}{document['freezing']}"}
    return found


# --- control groups ---------------------------------------------------------------------------------------------------


def _group_folders(data_dir: DataDir) -> Iterator[Path]:
    name = _group_of(data_dir)
    for above in _group_roots():
        # Root's groups are closed to others, who then have none there.
        with contextlib.suppress(PermissionError):
            if (above / "holdfast" / name).is_dir():
                yield above / "holdfast" / name


def _group_of(data_dir: DataDir) -> str:
    about = data_dir.path.stat()
    return f"{about.st_dev:x}-{about.st_ino:x}"


def _group_roots(folder: Path = _CGROUPS, depth: int = 3) -> Iterator[Path]:
    """Where groups can be, from the top down: groups come and go while we look."""
    yield folder
    with contextlib.suppress(OSError):
        inside = [path for path in folder.iterdir() if not path.name.startswith("holdfast") and path.is_dir()]
        for path in inside if depth else ():
            yield from _group_roots(path, depth - 1)


def _dead_probes() -> Iterator[str]:
    for above in _group_roots():
        for name in _names(above):
            match = _PROBE.fullmatch(name)
            if match is not None and _is_old(above / name) and not Path("/proc", match[1]).exists():
                yield str(above / name)


# --- processes --------------------------------------------------------------------------------------------------------


def _processes(data_dir: DataDir) -> Iterator[tuple[int, str]]:
    """All that have to do with the home, but for us and what we started ourselves."""
    group = f"/holdfast/{_group_of(data_dir)}/"
    for pid in _all_pids():
        folder = Path("/proc", str(pid))
        try:
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
            groups = (folder / "cgroup").read_text()
            mounts = _mounts(folder)
            ours = "launcher.py" in command and _is_ours(pid)
        except (OSError, ValueError):
            continue
        if pid == os.getpid() or ours:
            continue
        mounted = _box_mounted(mounts, data_dir)
        in_group = next((line.partition(group)[2].split("/")[0] for line in groups.splitlines() if group in line), None)
        named = re.match(r"holdfast-box (\S+)", command)
        ours = named is not None and any(f"{root}/boxes/{named[1]}/upper" in command for root in _roots(data_dir))
        box = mounted or in_group or (named[1] if named and ours else None)
        if box is not None:
            yield pid, f"box {box}, {command[:80]}"
        elif str(data_dir.path) in command or (str(stage_for(data_dir.path)) in mounts and command):
            yield pid, f"no box, {command[:200]}"


def _is_ours(pid: int) -> bool:
    """Whether we started a launcher, or it is the child that a launcher of ours keeps for the next box."""
    parent = _parent(pid)
    return os.getpid() in (parent, _parent(parent))


def _parent(pid: int) -> int:
    return int(Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()[1]) if pid else 0


def _all_pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]  # noqa: PTH208


def _mounts(process: Path) -> str:
    try:
        return (process / "mountinfo").read_text()
    except OSError:
        return ""


def _box_mounted(mounts: str, data_dir: DataDir) -> str | None:
    for line in mounts.splitlines():
        if "upperdir=" in line:
            upper = line.partition("upperdir=")[2].split(",")[0].split()[0]
            for root in _roots(data_dir):
                if f"{root}/boxes/" in upper:  # it may begin with the old root of whoever mounted it
                    return upper.partition(f"{root}/boxes/")[2].split("/")[0]
    return None


def _of_home(home: Path) -> DataDir:
    return DataDir(home.absolute() / "local", 0, 0)


def guests_of(home: Path) -> list[tuple[int, str]]:
    """The first processes of boxes, with the boxes' ids."""
    data_dir = _of_home(home)
    found = []
    for name in _names(data_dir.boxes):
        # Those of ordinary users do not let themselves be looked at; the kernel tells who listens on a socket.
        with contextlib.suppress(BoxError, OSError):
            pid = GuestClient(name, data_dir.boxes / name).pid()
            if pid and is_guest(pid):
                found.append((pid, name))
    return found


def _command(pid: int) -> bytes:
    return Path("/proc", str(pid), "cmdline").read_bytes()


def monitors_of(home: Path) -> list[tuple[int, str]]:
    """Bubblewrap's own processes: outside, named after the box. Other homes may have boxes of the same names."""
    data_dir = _of_home(home)
    found = []
    for pid in _all_pids():
        with contextlib.suppress(OSError):
            command, *arguments = _command(pid).split(b"\0")
            name = command.decode("utf-8", "replace").removeprefix(monitor_name(""))
            uppers = [f"{root}/boxes/{name}/upper".encode() for root in _roots(data_dir)]
            if command == monitor_name(name).encode() and any(upper in arguments for upper in uppers):
                found.append((pid, name))
    return found


def _roots(data_dir: DataDir) -> tuple[str, str]:
    """The folder of the boxes as we see it, and as the launcher of a root server does."""
    return str(data_dir.path), f"{stage_for(data_dir.path)}/local"


def launchers_of(home: Path) -> list[tuple[int, str]]:
    data_dir = _of_home(home)
    found = []
    for pid in _all_pids():
        with contextlib.suppress(OSError):
            command = _command(pid).decode("utf-8", "replace")
            if "launcher.py" in command and str(data_dir.path) in command:
                found.append((pid, ""))
    return found
