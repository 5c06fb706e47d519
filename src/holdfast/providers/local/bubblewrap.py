"""Builds the command line of bubblewrap. Pure functions: paths and numbers in, arguments out.

A box sees its own files as `/`, the machine's programs and libraries mounted read-only, a generated /etc, and its own
/proc, /dev and /run. Every mount point is a top-level folder or was checked to contain no link, because a box can
change its folders and must not redirect a mount of a later start.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from holdfast.providers.portable_python import PYTHON

HOME: Final = "/home/box"
USER: Final = "box"
UID: Final = 1000
"""The user inside. Outside it is the user of the server, or if that is root, a separate user."""
GUEST: Final = "/.holdfast"
TOOLS: Final = "/opt/holdfast"
"""Programs that this machine provides for its boxes, such as coding agents. More may appear while a box runs."""
FIRST_DESCRIPTOR: Final = 4
"""The listener is 3. Descriptors that are passed on follow."""
SKELETON: Final = (
    ("usr", 0o755), ("etc", 0o755), ("bin", 0o755), ("sbin", 0o755), ("lib", 0o755), ("lib32", 0o755),
    ("lib64", 0o755), ("libx32", 0o755), ("proc", 0o755), ("dev", 0o755), ("run", 0o755), ("sys", 0o755),
    (GUEST[1:], 0o755), (PYTHON[1:], 0o755), ("tmp", 0o1777), ("var", 0o755), ("var/tmp", 0o1777), ("var/lib", 0o755),
    ("var/cache", 0o755), ("var/log", 0o755), ("home", 0o755), ("home/box", 0o755), ("home/box/.local", 0o755),
    ("home/box/.local/bin", 0o755), ("workspace", 0o755), ("opt", 0o755), (TOOLS[1:], 0o755), ("srv", 0o755),
    ("mnt", 0o755), ("root", 0o755),
)  # fmt: skip
"""The folders that a box starts with: the lowest layer of every box."""
ROOT_CAPABILITIES: Final = ("CAP_DAC_OVERRIDE", "CAP_SYS_CHROOT")
"""What the root user of an image may do in its user namespace: write to its own files whatever their mode, and change
its root, as package managers do. Neither reaches files of other users or files outside of the box."""
IMAGE_SKELETON: Final = (
    ("proc", 0o755), ("dev", 0o755), ("run", 0o755), ("sys", 0o755), (GUEST[1:], 0o755), (PYTHON[1:], 0o755),
    ("tmp", 0o1777), ("etc", 0o755), ("root", 0o700), ("workspace", 0o755), ("opt", 0o755), (TOOLS[1:], 0o755),
)  # fmt: skip
"""The same for boxes with an image: below the image, so that every mount point exists."""
MASKED: Final = (
    "acpi", "asound", "interrupts", "kcore", "key-users", "keys", "latency_stats", "sched_debug", "scsi", "timer_list",
    "timer_stats",
)  # fmt: skip
"""Files in /proc that describe the machine. Those that only root can read need no mask: each is a mount, which takes
time."""
_SHARED_MEMORY: Final = 64 * 1024 * 1024
_RUN_SIZE: Final = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Machine:
    """The parts of this machine that a box sees."""

    programs: tuple[tuple[str, str], ...]
    """Folders with programs and libraries, and their paths in the box: /usr, /bin, …"""
    masked_files: tuple[str, ...]
    masked_folders: tuple[str, ...]
    etc: str
    guest: str
    python: str
    """Path of the interpreter in the box."""
    python_prefix: str | None = None
    """Its installation, unless that is among the programs."""
    sys: str | None = None
    """The part of /sys that programs see."""


@dataclass(frozen=True, slots=True)
class Files:
    """The files of a box."""

    layers: tuple[str, ...]
    """Lowest first."""
    upper: str
    work: str


@dataclass(frozen=True, slots=True)
class Mount:
    """A folder or file of the machine and its mount point. The launcher opens it and checks its path."""

    source: str | int
    """A path, or a descriptor."""
    path: str
    read_only: bool


@dataclass(frozen=True, slots=True)
class ImageMachine:
    """What a box with an image sees of this machine: only the guest and its Python."""

    masked_files: tuple[str, ...]
    masked_folders: tuple[str, ...]
    guest: str
    python: str
    """A folder with a self-contained interpreter."""
    command: tuple[str, ...]
    """The command that starts it in the box."""
    uid: int
    gid: int
    sys: str | None = None
    """The part of /sys that programs see."""


def arguments(
    machine: Machine,
    files: Files,
    hostname: str,
    mounts: Sequence[Mount] = (),
    seccomp: int | None = None,
    processes: int | None = None,
    workdir: str | None = None,
) -> list[str]:
    """Returns all arguments after `bwrap`. The guest makes the `workdir`, if there is none."""
    made = _own_namespaces(UID, UID, hostname)
    made += _overlay(files)
    for source, target in machine.programs:
        made += ["--ro-bind", source, target]
    made += ["--ro-bind", machine.etc, "/etc", "--ro-bind", machine.guest, GUEST]
    if machine.python_prefix is not None:
        made += ["--ro-bind", machine.python_prefix, PYTHON]
    made += _kernel_folders(machine)
    made += _ending(mounts, seccomp, [machine.python], processes, workdir)
    return made


def image_arguments(
    machine: ImageMachine,
    files: Files,
    hostname: str,
    mounts: Sequence[Mount] = (),
    seccomp: int | None = None,
    processes: int | None = None,
    workdir: str | None = None,
) -> list[str]:
    """The same for a box with an image."""
    made = _own_namespaces(machine.uid, machine.gid, hostname)
    if machine.uid == 0:
        for capability in ROOT_CAPABILITIES:
            made += ["--cap-add", capability]
    # So that process 1 does not read a locale from the image.
    made += ["--setenv", "LC_ALL", "C"]
    made += _overlay(files)
    made += ["--ro-bind", machine.guest, GUEST, "--ro-bind", machine.python, PYTHON]
    made += _kernel_folders(machine)
    made += ["--perms", "1777", "--dir", "/run/lock"]
    made += _ending(mounts, seccomp, machine.command, processes, workdir)
    return made


def _own_namespaces(uid: int, gid: int, hostname: str) -> list[str]:
    return [
        "--unshare-user", "--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try",
        "--uid", str(uid), "--gid", str(gid), "--hostname", hostname, "--cap-drop", "ALL", "--as-pid-1", "--clearenv",
    ]  # fmt: skip


def _overlay(files: Files) -> list[str]:
    made = []
    for layer in files.layers:
        made += ["--overlay-src", layer]
    return [*made, "--overlay", files.upper, files.work, "/"]


def _kernel_folders(machine: Machine | ImageMachine) -> list[str]:
    made = ["--proc", "/proc"]
    if machine.sys is not None:
        made += ["--ro-bind", machine.sys, "/sys"]
    for name in machine.masked_files:
        made += ["--ro-bind", "/dev/null", f"/proc/{name}"]
    for name in machine.masked_folders:
        made += ["--tmpfs", f"/proc/{name}", "--remount-ro", f"/proc/{name}"]
    made += ["--dev", "/dev", "--perms", "1777", "--size", str(_SHARED_MEMORY), "--tmpfs", "/dev/shm"]
    return [*made, "--remount-ro", "/dev", "--size", str(_RUN_SIZE), "--tmpfs", "/run"]


def _ending(
    mounts: Sequence[Mount],
    seccomp: int | None,
    interpreter: Sequence[str],
    processes: int | None,
    workdir: str | None,
) -> list[str]:
    made = []
    for mount in mounts:
        option = "--ro-bind" if mount.read_only else "--bind"
        made += [option if isinstance(mount.source, str) else f"{option}-fd", str(mount.source), mount.path]
    if seccomp is not None:
        made += ["--seccomp", str(seccomp)]
    made += ["--", *interpreter, "-I", "-S", "-B", "-X", "utf8", f"{GUEST}/init.pyc"]
    shared = [f"shared={mount.path}" for mount in mounts if not mount.read_only]
    if shared and workdir is not None:
        made.append(f"workdir={workdir}")  # it has to be there when folders are told apart from the shared ones
    made += shared
    return [*made, f"processes={processes}"] if processes is not None else made
