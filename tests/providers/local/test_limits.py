"""Limits: the real control groups of this machine where they can be written, rlimits in real processes, and what is
decided without effects by table."""

from __future__ import annotations

import errno
import json
import os
import resource
import secrets
import select
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.machine import BACKEND, needs_groups

from holdfast.providers.host import limits
from holdfast.providers.host.limits import (
    CGROUP_V1,
    CGROUP_V2,
    RLIMITS,
    BoxGroup,
    GroupUsage,
    Hierarchy,
    LimitBackend,
    create,
    detect,
    hierarchies,
    list_groups,
    rlimits_for,
    settings_for,
)

MEGABYTE = 1024 * 1024
UNIFIED = next(
    (
        tree.mount_point
        for tree in hierarchies(Path("/proc/self/mountinfo").read_text(), Path("/proc/self/cgroup").read_text())
        if tree.version == 2 and os.access(tree.mount_point, os.W_OK)
    ),
    None,
)

needs_unified = pytest.mark.skipif(UNIFIED is None, reason="no writable control groups of version 2 here")


def backends() -> list[object]:
    """What limits boxes here, and what there is of version 2 beside it: its freezer and its way to kill."""
    beside = LimitBackend(CGROUP_V2, {"freezer": UNIFIED or ""}, {})
    return [
        pytest.param(BACKEND, marks=needs_groups, id=BACKEND.kind),
        pytest.param(beside, marks=needs_unified, id="v2"),
    ]


each_backend = pytest.mark.parametrize("backend", backends())


@contextmanager
def box_group(
    backend: LimitBackend, *, cpu: float | None = None, memory: int | None = None, pids: int | None = None
) -> Iterator[BoxGroup]:
    group = create(backend, f"test-{secrets.token_hex(4)}", "box-1", cpu, memory, pids)
    try:
        yield group
    finally:
        assert group.kill()
        assert group.remove()


@contextmanager
def member(group: BoxGroup, script: str) -> Iterator[subprocess.Popen[str]]:
    """A Python process that was put into the group before it ran the script."""
    command = [sys.executable, "-I", "-S", "-c", f"import os, sys\nsys.stdin.readline()\n{script}"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        group.join(process.pid)
        tell(process, "go")
        yield process
    finally:
        process.kill()
        for stream in (process.stdin, process.stdout):
            assert stream is not None
            stream.close()
        process.wait(240)


def tell(process: subprocess.Popen[str], line: str) -> None:
    assert process.stdin is not None
    process.stdin.write(f"{line}\n")
    process.stdin.flush()


def hear(process: subprocess.Popen[str], seconds: float = 10.0) -> str | None:
    """The next line; None if there is none in time."""
    assert process.stdout is not None
    ready, _, _ = select.select([process.stdout], [], [], seconds)
    return process.stdout.readline().strip() if ready else None


# --- in real groups --------------------------------------------------------------------------------------------------


@needs_groups
def test_who_eats_more_memory_than_allowed_is_killed_and_the_first_process_lives() -> None:
    with box_group(BACKEND, memory=64 * MEGABYTE) as group, member(group, EATER) as process:
        assert hear(process, 30) == "child ended by signal 9"
        tell(process, "are you there?")
        assert hear(process) == "still here"
        assert (group.usage().oom_kills or 0) >= 1


EATER = """
child = os.fork()
if child == 0:
    with open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")
    eaten = [bytearray(b"x" * 1024 * 1024) for _ in range(200)]
    os._exit(0)
print(f"child ended by signal {-os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}", flush=True)
sys.stdin.readline()
print("still here", flush=True)
sys.stdin.readline()
"""


@needs_groups
def test_processes_without_end_come_to_an_end() -> None:
    script = """
children = 0
try:
    while True:
        if os.fork() == 0:
            sys.stdin.readline()
            os._exit(0)
        children += 1
except OSError as error:
    print(children, error.errno, flush=True)
sys.stdin.readline()
"""
    with box_group(BACKEND, pids=10) as group, member(group, script) as process:
        children, reason = map(int, (hear(process) or "").split())
        assert 10 <= children + 1 <= 14
        assert reason == errno.EAGAIN
        assert group.usage().pids == children + 1


@needs_groups
def test_the_processor_is_shared_out() -> None:
    script = """
import time
end = time.monotonic() + 0.5
while time.monotonic() < end:
    pass
print(time.process_time(), flush=True)
sys.stdin.readline()
"""
    with box_group(BACKEND, cpu=0.2) as group, member(group, script) as process:
        assert float(hear(process) or "") < 0.3
        assert 0 < (group.usage().cpu_seconds or 0) < 0.4


@needs_groups
def test_usage_is_told() -> None:
    script = "kept = bytearray(b'x' * 50 * 1024 * 1024)\nprint('ready', flush=True)\nsys.stdin.readline()"
    with box_group(BACKEND, memory=200 * MEGABYTE) as group:
        assert (group.usage().pids, group.usage().oom_kills) == (0, 0)
        with member(group, script) as process:
            assert hear(process) == "ready"
            usage = group.usage()
            assert usage.memory is not None
            assert usage.cpu_seconds is not None
            # What it had before it was put into the group is counted elsewhere.
            assert 50 * MEGABYTE <= usage.memory < 200 * MEGABYTE
            assert usage.cpu_seconds > 0
            assert usage.pids == 1


@each_backend
def test_the_frozen_do_nothing_until_they_are_thawed(backend: LimitBackend) -> None:
    echo = "for line in sys.stdin:\n    print(line, end='', flush=True)"
    with box_group(backend) as group, member(group, echo) as process:
        assert group.can_freeze
        tell(process, "before")
        assert hear(process) == "before"
        group.freeze()
        tell(process, "frozen")
        assert hear(process, 0.1) is None
        group.thaw()
        assert hear(process) == "frozen"


@each_backend
def test_kill_ends_all_even_the_frozen_and_those_that_fork_on(backend: LimitBackend) -> None:
    script = """
for _ in range(3):
    if os.fork() == 0:
        while True:
            if os.fork() != 0:
                os._exit(0)
print("forking", flush=True)
sys.stdin.readline()
"""
    with box_group(backend) as group, member(group, script) as process:
        assert hear(process) == "forking"
        group.freeze()
        assert group.processes()
        assert group.kill()
        assert group.processes() == set()
        assert process.wait(240) == -9


@each_backend
def test_removed_groups_leave_nothing_and_their_boxes_are_no_longer_listed(backend: LimitBackend) -> None:
    home = f"test-{secrets.token_hex(4)}"
    first = create(backend, home, "box-1", None, None, None)
    create(backend, home, "box-2", None, None, None)
    assert list_groups(backend, home) == ["box-1", "box-2"]
    assert first.exists
    with member(first, "sys.stdin.readline()"):
        assert first.kill()
        assert first.remove()
    assert not first.exists
    assert first.remove(), "once more is fine"
    assert list_groups(backend, home) == ["box-2"]
    assert BoxGroup(backend, home, "box-2").remove(), "by anybody who knows the name"
    assert list_groups(backend, home) == []
    assert not any(Path(root, "holdfast", home).exists() for root in backend.roots.values())


@needs_groups
def test_a_half_made_group_is_listed_so_that_it_can_be_removed() -> None:
    home = f"test-{secrets.token_hex(4)}"
    half = BoxGroup(BACKEND, home, "half")
    folder = Path(half.folders["memory"])
    folder.mkdir(parents=True)
    assert list_groups(BACKEND, home) == ["half"]
    assert half.remove()
    assert not folder.parent.exists()


@each_backend
def test_somebody_inside_keeps_a_group_from_being_removed(
    backend: LimitBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "_REMOVE_SECONDS", 0.01)
    with box_group(backend) as group, member(group, "sys.stdin.readline()"):
        assert group.remove() is False
        assert group.exists


@needs_groups
def test_detection_leaves_no_group_behind() -> None:
    assert detect() == BACKEND
    assert [found for root in BACKEND.roots.values() for found in Path(root).glob(f"*probe-{os.getpid()}-*")] == []
    assert LimitBackend(**BACKEND._asdict()) == BACKEND


@contextmanager
def group_with_a_controller(root: Path, controller: str) -> Iterator[BoxGroup]:
    """A group of version 2 whose children could be given a controller."""
    limits._write(f"{root}/cgroup.subtree_control", f"+{controller}")
    group = BoxGroup(LimitBackend(CGROUP_V2, {"freezer": str(root)}, {}), f"test-{secrets.token_hex(4)}", "box-1")
    folder = root / f"holdfast-test-{secrets.token_hex(4)}"
    folder.mkdir()
    group.folders["freezer"] = str(folder)
    try:
        yield group
    finally:
        for below in folder.glob("*/"):
            below.rmdir()
        folder.rmdir()
        limits._write(f"{root}/cgroup.subtree_control", f"-{controller}")


@needs_unified
def test_a_group_given_to_the_server_is_opened_for_limited_groups_by_moving_down(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    root = Path(UNIFIED or "")
    controllers = (root / "cgroup.controllers").read_text().split()
    if not controllers or controllers[0] in (root / "cgroup.subtree_control").read_text().split():
        pytest.skip("version 2 has no controller here that nobody uses")
    monkeypatch.setattr(limits, "_SHARED_OUT", controllers[:1])
    with group_with_a_controller(root, controllers[0]) as group, member(group, "sys.stdin.readline()") as process:
        folder = group.folders["freezer"]
        with pytest.raises(OSError, match="busy"):
            limits._open_for_children(folder, folder)
        os.setxattr(folder, "user.delegate", b"1")  # as systemd does for Delegate=yes
        assert limits._open_for_children(folder, folder) == {}
        assert Path(folder, "cgroup.subtree_control").read_text().split() == controllers[:1]
        assert Path(folder, "holdfast-server", "cgroup.procs").read_text().split() == [str(process.pid)]
        tell(process, "end")
        assert process.wait(240) == 0


# --- decided without effects -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "wanted"),
    [
        (
            CGROUP_V1,
            {
                "cpu": [("cpu.cfs_period_us", "100000", True), ("cpu.cfs_quota_us", "150000", True)],
                "memory": [
                    ("memory.limit_in_bytes", "1000000", True),
                    ("memory.memsw.limit_in_bytes", "1000000", False),
                    ("memory.swappiness", "0", False),
                ],
                "pids": [("pids.max", "24", True)],
            },
        ),
        (
            CGROUP_V2,
            {
                "cpu": [("cpu.max", "150000 100000", True)],
                "memory": [("memory.max", "1000000", True), ("memory.swap.max", "0", False)],
                "pids": [("pids.max", "24", True)],
            },
        ),
    ],
)
def test_limits_are_written_in_the_words_of_each_version(
    kind: str, wanted: dict[str, list[tuple[str, str, bool]]]
) -> None:
    assert settings_for(kind, 1.5, 1_000_000, 20) == wanted


def test_what_is_not_limited_is_open() -> None:
    assert settings_for(CGROUP_V2, None, None, None) == {"cpu": [], "memory": [], "pids": [("pids.max", "max", False)]}


def test_a_sliver_of_a_processor_is_what_the_kernel_takes_at_least() -> None:
    assert settings_for(CGROUP_V2, 0.001, None, None)["cpu"] == [("cpu.max", "1000 100000", True)]


def test_version_2_writes_the_limits_of_a_box_into_its_group(tmp_path: Path) -> None:
    """On plain files, for machines whose controllers are all of version 1."""
    folder = tmp_path / "holdfast" / "home" / "box"
    folder.mkdir(parents=True)
    names = ("cpu.max", "memory.max", "memory.swap.max", "pids.max", "memory.current", "memory.stat", "memory.events")
    for name in names:
        (folder / name).touch()
    backend = LimitBackend(CGROUP_V2, dict.fromkeys(limits.CONTROLLERS, str(tmp_path)), {})
    group = create(backend, "home", "box", 0.5, 64 * MEGABYTE, 100)
    written = {name: (folder / name).read_text() for name in names[:4]}
    assert written == {
        "cpu.max": "50000 100000",
        "memory.max": str(64 * MEGABYTE),
        "memory.swap.max": "0",
        "pids.max": "104",
    }
    (folder / "memory.current").write_text("5000\n")
    (folder / "memory.stat").write_text("anon 3000\ninactive_file 1500\n")
    (folder / "memory.events").write_text("low 0\noom 3\noom_kill 2\n")
    assert group.usage() == GroupUsage(memory=3500, cpu_seconds=None, pids=None, oom_kills=2)


def test_without_control_groups_a_group_is_nothing_and_says_so() -> None:
    group = create(LimitBackend(RLIMITS, {}, {"memory": "none"}), "home", "box", 1.0, 64 * MEGABYTE, 10)
    group.join(1)
    assert not group.can_freeze
    assert not group.exists
    assert group.usage() == GroupUsage()
    assert group.kill()
    assert group.remove()
    with pytest.raises(OSError, match="by signal"):
        group.freeze()


@pytest.mark.parametrize("name", ["", "..", ".", "a/b", ".hidden"])
def test_names_that_lead_elsewhere_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="name of a control group"):
        BoxGroup(BACKEND, "home", name)
    with pytest.raises(ValueError, match="name of a control group"):
        BoxGroup(BACKEND, name, "box")


@pytest.mark.parametrize(
    ("mounts", "membership", "wanted"),
    [
        pytest.param(
            "35 24 0:30 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate",
            "0::/user.slice/user-1000.slice/session-1.scope",
            [Hierarchy(2, (), "/sys/fs/cgroup", "/sys/fs/cgroup/user.slice/user-1000.slice/session-1.scope")],
            id="a desktop",
        ),
        pytest.param(
            "32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
            "33 31 0:30 / /sys/fs/cgroup/memory rw shared:9 - cgroup cgroup rw,memory\n"
            "34 31 0:31 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw",
            "3:memory:/a\n2:cpu,cpuacct:/\n0::/a",
            [
                Hierarchy(1, ("cpu", "cpuacct"), "/sys/fs/cgroup/cpu,cpuacct", "/sys/fs/cgroup/cpu,cpuacct"),
                Hierarchy(1, ("memory",), "/sys/fs/cgroup/memory", "/sys/fs/cgroup/memory/a"),
                Hierarchy(2, (), "/sys/fs/cgroup/unified", "/sys/fs/cgroup/unified/a"),
            ],
            id="both versions",
        ),
        pytest.param(
            "33 31 0:30 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory",
            "3:memory:/docker/abc",
            [Hierarchy(1, ("memory",), "/sys/fs/cgroup/memory", "/sys/fs/cgroup/memory")],
            id="a container of version 1",
        ),
        pytest.param(
            "33 31 0:30 /../.. /sys/fs/cgroup rw - cgroup2 cgroup rw",
            "0::/../../other",
            [Hierarchy(2, (), "/sys/fs/cgroup", "/sys/fs/cgroup")],
            id="seen through a namespace",
        ),
        pytest.param("21 1 8:1 / / rw - ext4 /dev/sda1 rw", "0::/", [], id="none mounted"),
    ],
)
def test_the_trees_of_control_groups_are_found(mounts: str, membership: str, wanted: list[Hierarchy]) -> None:
    assert hierarchies(mounts, membership) == wanted


# --- rlimits ---------------------------------------------------------------------------------------------------------


def test_rlimits_bind_what_they_can() -> None:
    assert rlimits_for(memory=1000, disk=5000) == [
        (resource.RLIMIT_CORE, 0, 0),
        (resource.RLIMIT_NOFILE, 65_536, 1_048_576),
        (resource.RLIMIT_DATA, 1000, 1000),
        (resource.RLIMIT_FSIZE, 5000, 5000),
    ]
    assert [kind for kind, _, _ in rlimits_for(None, None)] == [resource.RLIMIT_CORE, resource.RLIMIT_NOFILE]


def test_a_process_under_rlimits_gets_no_more(tmp_path: Path) -> None:
    script = """
import json, resource, sys
for kind, soft, hard in json.loads(sys.argv[2]):
    resource.setrlimit(kind, (soft, hard))
try:
    bytearray(100 * 1024 * 1024)
except MemoryError:
    print("memory")
try:
    with open(sys.argv[1], "wb", buffering=0) as file:
        file.write(b"x" * 1000)
        file.write(b"x")
except OSError as error:
    print(error.strerror)
"""
    wanted = [each for each in rlimits_for(memory=64 * MEGABYTE, disk=1000) if each[0] != resource.RLIMIT_NOFILE]
    command = [sys.executable, "-I", "-c", script, str(tmp_path / "file"), json.dumps(wanted)]
    said = subprocess.run(command, capture_output=True, text=True, timeout=240, check=True).stdout
    assert said.splitlines() == ["memory", "File too large"]
