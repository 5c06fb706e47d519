"""Enforces limits on memory, CPU and processes of a box: with control groups (v1 or v2) if they are writable, else with
rlimits, which are weaker and apply to each process separately.

Synchronous and quick to import: uses only small modules of the standard library.
"""

# Importing pathlib would take longer than everything done here:
# ruff: noqa: PTH102, PTH106, PTH112, PTH120, PTH208

from __future__ import annotations

import errno
import os
import resource
import time
from typing import Final, NamedTuple

CGROUP_V1: Final = "cgroup-v1"
CGROUP_V2: Final = "cgroup-v2"
RLIMITS: Final = "rlimits"

CONTROLLERS: Final = ("cpu", "memory", "pids", "freezer")
_COUNTED_APART: Final = "cpuacct"
"""Version 1 may count CPU time in another hierarchy than the one that limits it."""

_FOLDER: Final = "holdfast"
_OWN_LEAF: Final = "holdfast-server"
_PROBE: Final = "holdfast-probe-"
_HEADROOM: Final = 4
"""Processes of the sandbox itself, which the limit of a box does not include."""
_PERIOD: Final = 100_000
"""Microseconds over which CPU time is allotted."""
_LEAST_QUOTA: Final = 1_000
_FREEZE_SECONDS: Final = 30.0
"""A process that waits for a busy disk cannot be frozen until the disk answers."""
_FREEZE_PATIENCE: Final = 0.05
_KILL_SECONDS: Final = 5.0
_REMOVE_SECONDS: Final = 2.0
_PROBE_SECONDS: Final = 5.0
_STALE_NS: Final = 60 * 1_000_000_000
"""An older probe was interrupted."""
_PAUSE: Final = 0.002
_ATTEMPTS: Final = 10
_KILL: Final = 9

_SHARED_OUT: Final = ("cpu", "memory", "pids")
"""The controllers that version 2 gives to a group only if its parent enables them for its children."""
_DELEGATE: Final = (
    "run the server as a systemd service with Delegate=yes (and KillMode=process, so that boxes outlive it)"
)


class LimitBackend(NamedTuple):
    """What limits boxes on this machine. `LimitBackend(**backend._asdict())` restores it from JSON."""

    kind: str
    roots: dict[str, str]
    """By controller: the folder below which groups are created. Version 2 has one for all."""
    lacking: dict[str, str]
    """By controller: why it is missing."""

    def enforces(self, controller: str) -> bool:
        return controller in self.roots

    @property
    def why(self) -> str | None:
        """Returns why some limits are missing, and what to do. None if all are enforced."""
        return "; ".join(dict.fromkeys(self.lacking.values())) or None


class GroupUsage(NamedTuple):
    """What a box uses now. A field is None if it is not measured."""

    memory: int | None = None
    """Bytes that the kernel cannot simply drop."""
    cpu_seconds: float | None = None
    pids: int | None = None
    oom_kills: int | None = None


# --- what there is ---------------------------------------------------------------------------------------------------


class Hierarchy(NamedTuple):
    """A mounted tree of control groups."""

    version: int
    controllers: tuple[str, ...]
    mount_point: str
    own: str
    """The folder of this process, or the mount point if that is not visible."""


def detect() -> LimitBackend:
    """Tests the machine by creating a group and moving a process into it."""
    trees = hierarchies(_read("/proc/self/mountinfo"), _read("/proc/self/cgroup"))
    unified = next((tree for tree in trees if tree.version == 2), None)
    if unified is not None and "memory" in _read(f"{unified.mount_point}/cgroup.controllers").split():
        return _detect_v2(unified)
    if any(tree.version == 1 and "memory" in tree.controllers for tree in trees):
        return _detect_v1(trees)
    return _only_rlimits("no control groups with memory are mounted: mount cgroup2 on /sys/fs/cgroup")


def hierarchies(mounts: str, membership: str) -> list[Hierarchy]:
    """Returns the trees in /proc/self/mountinfo, with the position of this process from /proc/self/cgroup."""
    places: dict[str, str] = {}
    for line in membership.splitlines():
        _, names, path = line.split(":", 2)
        for name in names.split(","):
            places[name] = path
    trees = []
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        if after.split(" ", 1)[0] not in ("cgroup", "cgroup2"):
            continue
        kind, _, options = after.split(" ", 2)
        root, mount_point = before.split()[3], before.split()[4].replace("\\040", " ")
        controllers = tuple(option for option in options.split(",") if option in places and option)
        place = places.get(controllers[0] if controllers else "", "/")
        # If there is a cgroup namespace between this process and the mount, the path contains dots and is meaningless
        # here.
        inside = (place == root or place.startswith(root.rstrip("/") + "/")) and ".." not in place
        below = place[len(root.rstrip("/")) :].strip("/") if inside else ""
        own = f"{mount_point}/{below}".rstrip("/")
        trees.append(Hierarchy(2 if kind == "cgroup2" else 1, controllers, mount_point, own))
    return trees


def _only_rlimits(why: str) -> LimitBackend:
    return LimitBackend(RLIMITS, {}, dict.fromkeys(CONTROLLERS, why))


def _places(tree: Hierarchy) -> list[str]:
    """Returns where groups could be created, from the top down. Higher groups outlive the session of this process
    longer."""
    places, folder = [], tree.own
    while len(folder) > len(tree.mount_point):
        places.append(folder)
        folder = os.path.dirname(folder)
    places.append(tree.mount_point)
    return places[::-1]


def _detect_v1(trees: list[Hierarchy]) -> LimitBackend:
    roots: dict[str, str] = {}
    lacking: dict[str, str] = {}
    for controller in (*CONTROLLERS, _COUNTED_APART):
        tree = next((tree for tree in trees if tree.version == 1 and controller in tree.controllers), None)
        why = f"without {controller}" if tree is None else "that this user cannot write: run the server as root"
        for place in [] if tree is None else _places(tree):
            if os.path.isdir(place) and _can_hold(place) is None:
                roots[controller] = place
                break
        else:
            if controller in CONTROLLERS:
                lacking[controller] = f"control groups v1 {why}"
    if not roots.keys() & set(CONTROLLERS):
        return LimitBackend(RLIMITS, {}, lacking)
    return LimitBackend(CGROUP_V1, roots, lacking)


def _detect_v2(tree: Hierarchy) -> LimitBackend:
    why = f"control group v2 {tree.own} cannot be written by this user: {_DELEGATE}"
    for place in _places(tree):
        if not os.access(place, os.W_OK) or _is_read_only(place):
            continue
        try:
            lacking = _open_for_children(place, tree.own)
        except OSError as error:
            if error.errno == errno.EBUSY:
                why = f"control group v2 {place} holds processes, so that it can have no limited groups: {_DELEGATE}"
            continue
        if (refusal := _can_hold(place)) is not None:
            why = f"control group v2 {place} does not take our processes ({refusal}): {_DELEGATE}"
            continue
        if "memory" in lacking and "pids" in lacking:
            why = lacking["memory"]
            continue
        return LimitBackend(CGROUP_V2, {each: place for each in CONTROLLERS if each not in lacking}, lacking)
    return _only_rlimits(why)


def _open_for_children(place: str, own: str) -> dict[str, str]:
    """Enable the available controllers for child groups. Returns those that cannot be enabled, and why."""
    try:
        return _enable(place)
    except OSError as error:
        if error.errno != errno.EBUSY or place != own or not _is_delegated(place):
            raise
    # A group that enables controllers for its children may hold no processes itself. This one is ours, so we move down.
    leaf = f"{place}/{_OWN_LEAF}"
    _make_folder(leaf)
    for pid in _read(f"{place}/cgroup.procs").split():
        try:
            _write(f"{leaf}/cgroup.procs", pid)
        except OSError as error:
            if error.errno != errno.ESRCH:
                raise
    return _enable(place)


def _enable(place: str) -> dict[str, str]:
    there = _read(f"{place}/cgroup.controllers").split()
    enabled = _read(f"{place}/cgroup.subtree_control").split()
    lacking = {}
    for controller in _SHARED_OUT:
        if controller in enabled:
            continue
        if controller not in there:
            lacking[controller] = f"control group v2 {place} has no controller {controller}: delegate it to the server"
            continue
        _write(f"{place}/cgroup.subtree_control", f"+{controller}")
    return lacking


def _is_delegated(place: str) -> bool:
    """Returns whether systemd delegates this group to us."""
    for name in ("user.delegate", "trusted.delegate"):
        try:
            if os.getxattr(place, name) == b"1":
                return True
        except OSError:
            continue
    return False


def _can_hold(place: str) -> str | None:
    """Returns None if a group can be created here and a process put into it, otherwise the kernel's error."""
    probe = f"{place}/{_PROBE}{os.getpid()}-{time.monotonic_ns()}"
    try:
        os.mkdir(probe)
    except OSError as error:
        return os.strerror(error.errno or 0)
    try:
        # A shell moves itself, because forking this process, which may have threads, is unsafe.
        script = 'echo 0 > "$1/cgroup.procs"'
        pid = os.posix_spawn("/bin/sh", ["sh", "-c", script, "sh", probe], {}, file_actions=_SILENT)
        return None if _wait(pid) == 0 else "a process could not be moved there"
    except OSError as error:
        return os.strerror(error.errno or 0)
    finally:
        _remove_folder(probe)


_SILENT: Final = [(os.POSIX_SPAWN_OPEN, number, "/dev/null", os.O_RDWR, 0) for number in (0, 1, 2)]


def _wait(pid: int) -> int:
    deadline = time.monotonic() + _PROBE_SECONDS
    while time.monotonic() < deadline:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended == pid:
            return os.waitstatus_to_exitcode(status)
        time.sleep(_PAUSE)
    os.kill(pid, _KILL)
    os.waitpid(pid, 0)
    return -_KILL


# --- a box's group ---------------------------------------------------------------------------------------------------


class BoxGroup:
    """The groups of one box, one for each controller. Keeps nothing open, so any process can create this object."""

    __slots__ = ("_parents", "backend", "folders")

    def __init__(self, backend: LimitBackend, home_name: str, box_id: str) -> None:
        for name in (home_name, box_id):
            if not name or "/" in name or name.startswith("."):
                raise ValueError(f"{name!r} cannot be the name of a control group")
        self.backend = backend
        self._parents = {root: f"{root}/{_FOLDER}/{home_name}" for root in dict.fromkeys(backend.roots.values())}
        self.folders = {
            controller: f"{self._parents[root]}/{box_id}" for controller, root in backend.roots.items()
        }  # fmt: skip

    @property
    def exists(self) -> bool:
        return any(os.path.isdir(folder) for folder in self._distinct())

    @property
    def entrances(self) -> list[str]:
        """Returns the files to which a process writes 0 to join the groups."""
        return [f"{folder}/cgroup.procs" for folder in self._distinct()]

    @property
    def can_freeze(self) -> bool:
        return "freezer" in self.folders

    @property
    def condemned(self) -> bool:
        """Whether ending the box has begun. Its processes may be alive, but can start no others."""
        return "pids" in self.folders and _read(f"{self.folders['pids']}/pids.max").strip() == "0"

    @property
    def held(self) -> bool:
        """Whether the box is frozen or being frozen."""
        if not self.can_freeze:
            return False
        if self.backend.kind == CGROUP_V2:
            return _read(f"{self.folders['freezer']}/cgroup.freeze").strip() == "1"
        return _read(f"{self.folders['freezer']}/freezer.state").strip() in ("FREEZING", "FROZEN")

    def join(self, pid: int) -> None:
        """Put a process under the limits. Processes that it starts later are included; earlier ones are not."""
        for entrance in self.entrances:
            _write(entrance, str(pid))

    def freeze(self) -> None:
        """Returns when no process of the box runs. Raises TimeoutError, with all thawed, if one cannot be frozen."""
        self._set_frozen(wanted=True)

    def thaw(self) -> None:
        self._set_frozen(wanted=False)

    def usage(self) -> GroupUsage:
        if self.backend.kind == CGROUP_V2:
            folder = next(iter(self.folders.values()))
            return GroupUsage(
                memory=_working_set(
                    _number(f"{folder}/memory.current"), _value(f"{folder}/memory.stat", "inactive_file")
                ),
                cpu_seconds=_seconds(_value(f"{folder}/cpu.stat", "usage_usec"), 1e6),
                pids=_number(f"{folder}/pids.current"),
                oom_kills=_value(f"{folder}/memory.events", "oom_kill"),
            )
        memory, pids = self.folders.get("memory", ""), self.folders.get("pids", "")
        counted = self.folders.get(_COUNTED_APART, "")
        return GroupUsage(
            memory=_working_set(
                _number(f"{memory}/memory.usage_in_bytes"), _value(f"{memory}/memory.stat", "total_inactive_file")
            ),
            cpu_seconds=_seconds(_number(f"{counted}/cpuacct.usage"), 1e9),
            pids=_number(f"{pids}/pids.current"),
            oom_kills=_value(f"{memory}/memory.oom_control", "oom_kill"),
        )

    def processes(self) -> set[int]:
        """Returns process ids as this process sees them. Processes in other namespaces may be missing."""
        seen: set[int] = set()
        for entrance in self.entrances:
            seen |= {int(word) for word in _read(entrance).split()}
        return seen - {0}

    def kill(self) -> bool:
        """Kill every process of the box, including those that fork meanwhile. Returns False if some do not end in
        time."""
        if self.backend.kind == CGROUP_V1 and self.can_freeze:
            self._write_if_there("freezer", "freezer.state", "THAWED")  # frozen processes cannot be killed
        self._write_if_there("pids", "pids.max", "0")
        self._write_if_there("freezer", "cgroup.kill", "1")
        deadline = time.monotonic() + _KILL_SECONDS
        while alive := self.processes():
            for pid in alive:
                try:
                    os.kill(pid, _KILL)
                except ProcessLookupError:
                    continue
            if time.monotonic() > deadline:
                return False
            time.sleep(_PAUSE)
        return True

    def remove(self) -> bool:
        """Remove the groups, after waiting briefly for killed processes. Returns False if a process is still in one."""
        deadline = time.monotonic() + _REMOVE_SECONDS
        left = list(self._distinct())
        while left := [folder for folder in left if not _remove_folder(folder)]:
            if time.monotonic() > deadline:
                return False
            time.sleep(_PAUSE)
        for parent in self._parents.values():
            # Only succeeds for the last box of this home. `create` creates them again.
            if _remove_folder(parent):
                _remove_folder(os.path.dirname(parent))
        return True

    def _distinct(self) -> dict[str, None]:
        return dict.fromkeys(self.folders.values())

    def _make(self, cpu: float | None, memory: int | None, pids: int | None) -> None:
        try:
            for folder in self._distinct():
                _make_folder(folder)
        except FileNotFoundError:
            # Only for the first box of this home: creating the parents every time would be most of the work.
            self._make_parents()
            for folder in self._distinct():
                _make_folder(folder)
        for controller, settings in settings_for(self.backend.kind, cpu, memory, pids).items():
            for name, value, needed in settings:
                self._set(controller, name, value, needed)

    def _make_parents(self) -> None:
        for parent in self._parents.values():
            for above in (os.path.dirname(parent), parent):
                _make_folder(above)
                if self.backend.kind == CGROUP_V2:
                    _enable(above)

    def _set(self, controller: str, name: str, value: str, needed: bool) -> None:
        folder = self.folders.get(controller)
        if folder is None:
            return
        try:
            _write(f"{folder}/{name}", value)
        except OSError:
            if needed:
                raise

    def _write_if_there(self, controller: str, name: str, value: str) -> None:
        self._set(controller, name, value, needed=False)

    def _set_frozen(self, *, wanted: bool) -> None:
        folder = self.folders.get("freezer")
        if folder is None:
            raise OSError(errno.ENOTSUP, "there is no freezer here; stop the processes by signal")
        deadline = time.monotonic() + _FREEZE_SECONDS
        while True:
            self._ask_freezer(folder, wanted=wanted)
            patience = min(time.monotonic() + _FREEZE_PATIENCE, deadline)
            while self._is_frozen(folder) is not wanted and time.monotonic() < patience:
                time.sleep(_PAUSE)
            if self._is_frozen(folder) is wanted:
                return
            if wanted:
                # Version 1 never freezes a process that waits for a frozen vfork child: let them run for a moment.
                self._ask_freezer(folder, wanted=False)
                time.sleep(_PAUSE)
            if time.monotonic() > deadline:
                raise TimeoutError(f"{folder} did not {'freeze' if wanted else 'thaw'}")

    def _ask_freezer(self, folder: str, *, wanted: bool) -> None:
        if self.backend.kind == CGROUP_V2:
            _write(f"{folder}/cgroup.freeze", "1" if wanted else "0")
        else:
            _write(f"{folder}/freezer.state", "FROZEN" if wanted else "THAWED")

    def _is_frozen(self, folder: str) -> bool:
        if self.backend.kind == CGROUP_V2:
            return _value(f"{folder}/cgroup.events", "frozen") == 1
        return _read(f"{folder}/freezer.state").strip() == "FROZEN"


def create(
    backend: LimitBackend, home_name: str, box_id: str, cpu: float | None, memory: int | None, pids: int | None
) -> BoxGroup:
    """Create the group of a box, with its limits and without processes. A failure leaves nothing behind."""
    group = BoxGroup(backend, home_name, box_id)
    for attempt in range(_ATTEMPTS):
        try:
            group._make(cpu, memory, pids)
            return group
        except OSError as error:
            group.remove()
            # The last other box of this home ended and removed the parent folder.
            if error.errno not in (errno.ENOENT, errno.ENODEV) or attempt == _ATTEMPTS - 1:
                raise
            time.sleep(_PAUSE)
    raise AssertionError("unreachable")


def home_name(folder: os.PathLike[str]) -> str:
    """Returns the name of the group above the boxes of a home. `folder` must exist.

    It stands for the folder itself, not for its path. Another container on this kernel may have a home at the same
    path. It sees our groups, but not our boxes, and would take them for leftovers.
    """
    about = os.stat(folder)  # noqa: PTH116
    return f"{about.st_dev:x}-{about.st_ino:x}"


def list_groups(backend: LimitBackend, home_name: str) -> list[str]:
    """Returns the boxes of a home that have a group, even an incomplete one."""
    found: set[str] = set()
    for root in set(backend.roots.values()):
        try:
            with os.scandir(f"{root}/{_FOLDER}/{home_name}") as entries:
                found |= {entry.name for entry in entries if entry.is_dir()}
        except FileNotFoundError:
            continue
    return sorted(found)


def clear_leftovers(backend: LimitBackend, home_name: str) -> None:
    """Remove empty groups: those above the boxes of a home without boxes, and leftovers of interrupted probes."""
    for root in set(backend.roots.values()):
        if _remove_folder(f"{root}/{_FOLDER}/{home_name}"):
            _remove_folder(f"{root}/{_FOLDER}")
        for name in os.listdir(root):
            # By age: the process that created it may be in another container, where it is not visible.
            made = name.rpartition("-")[2] if name.startswith(_PROBE) else ""
            if made.isdigit() and time.monotonic_ns() - int(made) > _STALE_NS:
                _remove_folder(f"{root}/{name}")


def settings_for(
    kind: str, cpu: float | None, memory: int | None, pids: int | None
) -> dict[str, list[tuple[str, str, bool]]]:
    """By controller: what to write to which file, in order, and whether a box needs it."""
    settings: dict[str, list[tuple[str, str, bool]]] = {"cpu": [], "memory": [], "pids": []}
    if cpu is not None:
        quota = max(_LEAST_QUOTA, round(cpu * _PERIOD))
        if kind == CGROUP_V2:
            settings["cpu"] = [("cpu.max", f"{quota} {_PERIOD}", True)]
        else:
            settings["cpu"] = [("cpu.cfs_period_us", str(_PERIOD), True), ("cpu.cfs_quota_us", str(quota), True)]
    if memory is not None:
        # Swap must not circumvent the limit. Kernels that do not count swap get the closest setting, if any.
        if kind == CGROUP_V2:
            settings["memory"] = [("memory.max", str(memory), True), ("memory.swap.max", "0", False)]
        else:
            settings["memory"] = [
                ("memory.limit_in_bytes", str(memory), True),
                ("memory.memsw.limit_in_bytes", str(memory), False),
                ("memory.swappiness", "0", False),
            ]
    # Always written, so that a box that was killed can start processes again.
    settings["pids"] = [("pids.max", "max" if pids is None else str(pids + _HEADROOM), pids is not None)]
    return settings


# --- rlimits ---------------------------------------------------------------------------------------------------------

_OPEN_FILES: Final = (65_536, 1_048_576)


def rlimits_for(
    memory: int | None, disk: int | None, own_files: int = resource.RLIM_INFINITY
) -> list[tuple[int, int, int]]:
    """Returns resource, soft and hard limit for the process that becomes a box. Leave out what control groups enforce.

    For memory, limits DATA and not AS, because node and others reserve far more addresses than they use. For disk,
    limits only the size of each file. There is no rlimit for a share of the CPU.
    """
    limits = [(resource.RLIMIT_CORE, 0, 0), (resource.RLIMIT_NOFILE, *_open_files(own_files))]
    if memory is not None:
        limits.append((resource.RLIMIT_DATA, memory, memory))
    if disk is not None:
        limits.append((resource.RLIMIT_FSIZE, disk, disk))
    return limits


def _open_files(own: int) -> tuple[int, int]:
    """Returns fewer files than we may open.

    Descriptors in flight between boxes count for their user, which may be ours, and the kernel checks each sender
    against that sum. So even if boxes exhaust theirs, we can still send some.
    """
    soft, hard = _OPEN_FILES
    return (soft, hard) if own == resource.RLIM_INFINITY else (min(soft, own * 3 // 4), min(hard, own * 3 // 4))


def raise_own_limit() -> int:
    """Raise our limit of open files to the maximum, which is more than a box may send. Returns it."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


# --- files of control groups -----------------------------------------------------------------------------------------


def _read(path: str) -> str:
    """Returns an empty string if the file or its group does not exist."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        parts = []
        while part := os.read(descriptor, 65_536):
            parts.append(part)
        return b"".join(parts).decode()
    except OSError:
        return ""
    finally:
        os.close(descriptor)


def _write(path: str, value: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, value.encode())
    except OSError as error:
        raise OSError(error.errno, f"{error.strerror}: {value} to {path}") from None
    finally:
        os.close(descriptor)


def _make_folder(path: str) -> bool:
    """Returns whether the folder is new."""
    try:
        os.mkdir(path)
    except FileExistsError:
        return False
    return True


def _remove_folder(path: str) -> bool:
    try:
        os.rmdir(path)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def _is_read_only(path: str) -> bool:
    return bool(os.statvfs(path).f_flag & os.ST_RDONLY)


def _number(path: str) -> int | None:
    text = _read(path).strip()
    return int(text) if text.isdigit() else None


def _value(path: str, name: str) -> int | None:
    """Returns a value from a file that has a name and a number on each line."""
    for line in _read(path).splitlines():
        word, _, value = line.partition(" ")
        if word == name and value.isdigit():
            return int(value)
    return None


def _working_set(used: int | None, droppable: int | None) -> int | None:
    return None if used is None else max(0, used - (droppable or 0))


def _seconds(count: int | None, per_second: float) -> float | None:
    return None if count is None else count / per_second
