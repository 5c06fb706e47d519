"""The checks of `holdfast doctor` for boxes at Docker, based on the output of Docker's command line."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator

from holdfast.providers.check_result import CheckResult, CheckStatus
from holdfast.providers.probes import output_of, version_of


def examine() -> Iterator[CheckResult]:
    version = version_of("docker", "version", "-f", "{{.Server.Version}}")
    yield judge_docker(shutil.which("docker") is not None, version)
    if version is not None:
        yield judge_docker_disk(output_of(["docker", "info", "-f", "{{.Driver}} {{.DriverStatus}}"]))


def judge_docker(installed: bool, server_version: str | None) -> CheckResult:
    purpose = "boxes of the provider docker"
    if server_version is not None:
        return CheckResult("docker", CheckStatus.OK, server_version, purpose)
    if installed:
        next_step = "start its service, and add yourself to the group docker"
        return CheckResult(
            "docker", CheckStatus.LIMITED, "installed, but its service does not answer", purpose, next_step
        )
    return CheckResult(
        "docker", CheckStatus.MISSING, "not on the PATH", purpose, "only if you want such boxes: install docker"
    )


def judge_docker_disk(storage: str | None) -> CheckResult:
    """`storage` is the daemon's driver and its details: `overlay2 [[Backing Filesystem extfs] …]`."""
    driver = (storage or "").partition(" ")[0].strip()
    below = re.search(r"\[Backing Filesystem (\w+)\]", storage or "")
    named = f"{driver or 'its storage'}{f' on {below[1]}' if below else ''}"
    if driver in ("btrfs", "zfs") or (below is not None and below[1] == "xfs"):
        detail = f"no limit unless you give one; {named} keeps one, if it is set up for quotas"
        next_step = "give boxes of docker a limit: --disk SIZE"
    else:
        detail = f"no limit, and {named} cannot keep one: a box can fill the daemon's disk"
        next_step = "put the daemon's data on xfs with project quotas, btrfs or zfs; then give boxes --disk SIZE"
    return CheckResult("disk at docker", CheckStatus.LIMITED, detail, "keep one box from filling the disk", next_step)
