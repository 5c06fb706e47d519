"""Configurations of containers for boxes, and parsing of what the daemon reports about them. Mostly plain values."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from holdfast.api.box.box import Power
from holdfast.providers.docker.engine import Engine, EngineProblem
from holdfast.providers.docker.objects import MAKER, BoxRecord, Kind, Maker, Names
from holdfast.providers.docker.runtime import EMPTY_IMAGE, PLACE, Runtime
from holdfast.providers.stream import RUN

OWN_PLACES: Final = (PLACE, RUN, "/proc", "/sys", "/dev")
_GUEST_PROCESSES: Final = 4
"""In addition to those of the box: the guest, its bridges, and a child that answers for it."""
_GUEST_MEMORY: Final = 24 << 20
_DEFAULT_PROCESSES: Final = 4096
_DEFAULT_SHARE: Final = 0.8
"""The share of the machine's memory that a box without a limit may use."""
_TAKEN_AWAY: Final = ("NET_RAW", "MKNOD", "AUDIT_WRITE")
_MASK: Final = 63


@dataclass(frozen=True, slots=True)
class ContainerUsage:
    memory: int | None = None
    cpu_seconds: float | None = None
    out_of_memory: int | None = None


def configure(
    record: BoxRecord,
    image: str,
    labels: Mapping[str, str],
    runtime: Runtime,
    mounts: Sequence[Mapping[str, Any]],
    workdir: str,
    oci_runtime: str | None,
) -> dict[str, Any]:
    """Returns the request for a box's container. It never starts by itself."""
    spec = record.spec
    host: dict[str, Any] = {
        "NetworkMode": "none",
        "LogConfig": {"Type": "none"},
        "RestartPolicy": {"Name": "no"},
        "SecurityOpt": ["no-new-privileges"],
        "CapDrop": list(_TAKEN_AWAY),
        "IpcMode": "private",
        "PidsLimit": (spec.pids or _DEFAULT_PROCESSES) + _GUEST_PROCESSES,
        "Mounts": [
            runtime.mount,
            *mounts,
            *(
                {"Type": "bind", "Source": each.source, "Target": each.path, "ReadOnly": each.read_only}
                for each in spec.mounts
            ),
        ],
    }
    if oci_runtime is not None:
        host["Runtime"] = oci_runtime
    if spec.cpu is not None:
        host["NanoCpus"] = int(spec.cpu * 1_000_000_000)
    if spec.memory is not None:
        host["Memory"] = host["MemorySwap"] = spec.memory + _GUEST_MEMORY
    if spec.disk is not None:
        host["StorageOpt"] = {"size": str(spec.disk)}
    return {
        "Image": image,
        "Hostname": record.id[:_MASK].rstrip("-"),
        "User": "0:0",
        "WorkingDir": workdir,
        "Entrypoint": runtime.first(record.id, RUN),
        "Cmd": [],
        "Labels": dict(labels),
        "OpenStdin": True, "StdinOnce": True, "Tty": False,
        "AttachStdin": True, "AttachStdout": True, "AttachStderr": True,
        "StopSignal": "SIGKILL",
        "Healthcheck": {"Test": ["NONE"]},
        "HostConfig": host,
    }  # fmt: skip


def power_of(state: str) -> Power | None:
    """Returns None if the container is not a complete box: never started, or being removed."""
    return {
        "running": Power.RUNNING,
        "restarting": Power.RUNNING,
        "paused": Power.PAUSED,
        "exited": Power.STOPPED,
    }.get(state)


async def size_of(engine: Engine, name: str) -> int:
    """Returns the bytes that a container has written, or 0 if it does not exist."""
    try:
        return int((await engine.container(name, size=True)).get("SizeRw") or 0)
    except EngineProblem:
        return 0


_MEMORY: Final = ("/sys/fs/cgroup/memory.current", "/sys/fs/cgroup/memory/memory.usage_in_bytes")
_CACHE: Final = ("/sys/fs/cgroup/memory.stat", "/sys/fs/cgroup/memory/memory.stat")
_CPU: Final = ("/sys/fs/cgroup/cpu.stat", "/sys/fs/cgroup/cpuacct/cpuacct.usage")
_ENDED: Final = ("/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control")
ACCOUNTS: Final = (*_MEMORY, *_CACHE, *_CPU, *_ENDED)
"""Files in which a box sees what it uses, with control groups of version 2 and 1."""


def read_accounts(found: Mapping[str, bytes]) -> ContainerUsage | None:
    """Parses these files. Returns None if they are missing or invalid, since a box can put anything there."""
    try:
        memory = int(next(found[path] for path in _MEMORY if found[path]))
        cache = _named(found, _CACHE, "total_inactive_file") or _named(found, _CACHE, "inactive_file") or 0
        microseconds = _named(found, _CPU, "usage_usec")
        seconds = int(found[_CPU[1]]) / 1_000_000_000 if microseconds is None else microseconds / 1_000_000
        return ContainerUsage(max(0, memory - cache), seconds, _named(found, _ENDED, "oom_kill"))
    except (StopIteration, ValueError):
        return None


def _named(found: Mapping[str, bytes], paths: Sequence[str], name: str) -> int | None:
    """Returns the number after a name in lines of these files."""
    for path in paths:
        for line in found[path].splitlines():
            words = line.split()
            if len(words) == 2 and words[0] == name.encode():
                return int(words[1])
    return None


async def usage_of(engine: Engine, name: str) -> ContainerUsage:
    try:
        stats = await engine.ask("GET", f"containers/{name}/stats", params={"stream": 0, "one-shot": 1})
    except EngineProblem:
        return ContainerUsage()
    memory = stats.get("memory_stats") or {}
    used, details = memory.get("usage"), memory.get("stats") or {}
    cache = details.get("total_inactive_file", details.get("inactive_file", 0))
    nanoseconds = ((stats.get("cpu_stats") or {}).get("cpu_usage") or {}).get("total_usage")
    return ContainerUsage(
        None if used is None else max(0, int(used) - int(cache)),
        None if nanoseconds is None else int(nanoseconds) / 1_000_000_000,
        int(memory["failcnt"]) if "failcnt" in memory else None,
    )


async def limits_disk(engine: Engine, names: Names, info: Mapping[str, Any]) -> bool:
    """Returns whether the daemon's storage supports a limit per container. Only trying tells, since it depends on its
    mounts."""
    below = {str(each[0]): str(each[1]) for each in info.get("DriverStatus") or () if len(each) == 2}
    if info.get("Driver") not in ("btrfs", "zfs") and below.get("Backing Filesystem") != "xfs":
        return False
    name = names.helper(secrets.token_hex(8))
    config = {
        "Image": EMPTY_IMAGE, "Cmd": ["nothing"], "Labels": names.labels(Kind.HELPER, **{MAKER: str(Maker.this())}),
        "HostConfig": {"StorageOpt": {"size": "64m"}, "NetworkMode": "none"},
    }  # fmt: skip
    try:
        await engine.create_container(name, config)
    except EngineProblem:
        return False
    with contextlib.suppress(EngineProblem):
        await engine.remove_container(name)
    return True
