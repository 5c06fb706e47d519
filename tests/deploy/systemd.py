"""A systemd of a test: the real one, as process 1 of namespaces of its own, with the units of the test and no others.

It sees this machine's programs through an overlay, so nothing that it writes reaches the machine. It has no network but
loopback, and its control groups are below one of the test.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

import pytest

SYSTEMD: Final = Path("/usr/lib/systemd/systemd")
_SECONDS: Final = 300
_TARGETS: Final = ("sysinit", "basic", "network-online", "shutdown")
"""Targets that units refer to. Here they are empty: those of the machine would set the machine up."""
_EMPTY: Final = (
    "run", "tmp", "var/tmp", "var/log", "var/lib/holdfast", "opt", "etc/systemd/system",
    "usr/lib/systemd/system", "usr/lib/systemd/system-generators",
)  # fmt: skip
_BOOT: Final = """
set -eu
mount --make-rprivate /
mount -t tmpfs none "$FOLDER/overlay"
mkdir "$FOLDER/overlay/upper" "$FOLDER/overlay/work" "$FOLDER/overlay/root" "$FOLDER/overlay/shown"
for path in $SHOWN; do
    mkdir -p "$FOLDER/overlay/shown$path"
    mount --bind "$path" "$FOLDER/overlay/shown$path"
done
cd "$FOLDER/overlay/root"
mount -t overlay none -o "lowerdir=/,upperdir=$FOLDER/overlay/upper,workdir=$FOLDER/overlay/work" .
cd "$FOLDER/overlay/root"
mount -t proc none proc
mount -t sysfs none sys
mount --rbind /dev dev
mount -t tmpfs none dev/shm
mount -t tmpfs none sys/fs/cgroup
mount -t cgroup2 none sys/fs/cgroup
for path in $EMPTY; do
    mkdir -p "$path"
    mount -t tmpfs -o mode=755 none "$path"
done
chmod 1777 tmp var/tmp
for path in $SHOWN; do
    mkdir -p ".$path"
    mount --bind "$FOLDER/overlay/shown$path" ".$path"
    above=.$(dirname "$path")
    while [ "$above" != . ]; do
        chmod a+x "$above"
        above=$(dirname "$above")
    done
done
cp "$FOLDER"/units/* etc/systemd/system/
mkdir opt/holdfast opt/holdfast/bin opt/test
cp "$FOLDER/holdfast" opt/holdfast/bin/holdfast
cp "$FOLDER/script" opt/test/script
touch opt/test/output
mount --bind "$FOLDER/output" opt/test/output
mkdir -p mnt/machine
touch "$FOLDER/booting"
pivot_root . mnt/machine
umount --lazy /mnt/machine
exec env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin container=other "$SYSTEMD" --system --unit=test.service \
    --log-target=console --show-status=no
"""
_TEST_UNIT: Final = """
[Service]
Type=oneshot
WorkingDirectory={checkout}
ExecStart=/bin/bash /opt/test/script
ExecStopPost=/usr/bin/systemctl --force --force exit
StandardOutput=file:/opt/test/output
StandardError=append:/opt/test/output
"""


def run_under_systemd(folder: Path, script: str) -> str:
    """Boot a systemd, run the script as root in it, and return what it printed.

    The script begins in the checkout, whose command is /opt/holdfast/bin/holdfast. It may add users and units. Skips
    the test where the machine cannot do this.
    """
    checkout = Path(__file__).parents[2]
    groups = _cgroup2()
    if os.geteuid() != 0 or not SYSTEMD.exists() or groups is None or shutil.which("unshare") is None:
        pytest.skip("a systemd of its own needs root, systemd and control groups of version 2")
    (folder / "units").mkdir()
    (folder / "overlay").mkdir()
    for target in _TARGETS:
        (folder / "units" / f"{target}.target").write_text("[Unit]\n")
    (folder / "units" / "test.service").write_text(_TEST_UNIT.format(checkout=checkout))
    (folder / "script").write_text(script)
    (folder / "output").touch()
    (folder / "boot").write_text(_BOOT)
    program = folder / "holdfast"
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -P -m holdfast "$@"\n')
    program.chmod(0o755)
    shown = dict.fromkeys([checkout, Path(sys.prefix), Path(sys.base_prefix)])
    group = groups / f"holdfast-test-{os.getpid()}-{time.monotonic_ns()}"
    group.mkdir()
    command = ["unshare", "--kill-child=KILL", "--pid", "--mount", "--cgroup", "--uts", "--ipc", "--net", "--fork"]
    entering = f'echo $$ > {shlex.quote(str(group))}/cgroup.procs; exec "$@"'
    try:
        done = subprocess.run(
            ["/bin/sh", "-c", entering, "sh", *command, "/bin/sh", str(folder / "boot")],
            env={
                "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
                "FOLDER": str(folder),
                "SYSTEMD": str(SYSTEMD),
                "SHOWN": " ".join(str(each) for each in shown if not each.is_relative_to("/usr")),
                "EMPTY": " ".join(_EMPTY),
            },
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=False,
        )
    finally:
        _remove(group)
    if not (folder / "booting").exists():  # such as in a container, whose root may not mount
        pytest.skip(f"no systemd of its own here: {done.stderr.strip()[-300:]}")
    output = (folder / "output").read_text()
    sys.stdout.write(f"{done.stdout}{done.stderr}{output}")  # pytest shows it if the test fails
    return output


def _cgroup2() -> Path | None:
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        if after.startswith("cgroup2 ") and os.access(before.split()[4], os.W_OK):
            return Path(before.split()[4])
    return None


def _remove(group: Path) -> None:
    """End what is in a control group, and remove it. Its processes have ended with their process 1 as a rule."""
    deadline = time.monotonic() + 240
    while True:
        try:
            for folder, _, _ in os.walk(group, topdown=False):
                Path(folder).rmdir()
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
            for left in group.rglob("cgroup.procs"):
                for pid in left.read_text().split():
                    os.kill(int(pid), signal.SIGKILL)
            time.sleep(0.05)
