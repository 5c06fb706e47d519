"""`holdfast doctor`: judgements by table, and the whole of it on the machine at hand."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest
from tests.cli.conftest import Cli

from holdfast.cli.exits import Exit
from holdfast.cli.server.machine import (
    judge_descriptors,
    judge_fsync,
    judge_git,
    judge_node,
    judge_python,
    judge_space,
    judge_sqlite,
)
from holdfast.providers.check_result import CheckResult, CheckStatus
from holdfast.providers.docker.checks import judge_docker, judge_docker_disk
from holdfast.providers.host.limits import CGROUP_V1, CGROUP_V2, CONTROLLERS, RLIMITS, LimitBackend
from holdfast.providers.local.checks import (
    judge_bubblewrap,
    judge_filter,
    judge_landlock,
    judge_limits,
    judge_overlay,
    judge_overlay_place,
    judge_sandbox,
    judge_users,
)
from holdfast.providers.local.machine import Bubblewrap, Facts, Trial

ROOTS = dict.fromkeys(CONTROLLERS, "/sys/fs/cgroup")
NODE = Path("/home/tools/node-24.19.0/bin/node")
WORKED = Trial(True)
UBUNTU = Facts(apparmor_restricts=True)


@pytest.mark.parametrize(
    ("finding", "status"),
    [
        (judge_python((3, 11, 0)), CheckStatus.OK),
        (judge_python((3, 10, 9)), CheckStatus.MISSING),
        (judge_sqlite((3, 40, 1)), CheckStatus.OK),
        (judge_sqlite((3, 31, 0)), CheckStatus.MISSING),
        (judge_space(Path("/home"), 20 * 1024**3), CheckStatus.OK),
        (judge_space(Path("/home"), 1024), CheckStatus.LIMITED),
        (judge_fsync(0.0002), CheckStatus.OK),
        (judge_fsync(0.05), CheckStatus.LIMITED),
        (judge_descriptors(65536, 65536), CheckStatus.OK),
        (judge_descriptors(resource.RLIM_INFINITY, resource.RLIM_INFINITY), CheckStatus.OK),
        (judge_descriptors(1024, resource.RLIM_INFINITY), CheckStatus.LIMITED),
        (judge_bubblewrap(Bubblewrap(Path("/usr/bin/bwrap"), (0, 11, 0))), CheckStatus.OK),
        (judge_bubblewrap(Bubblewrap(Path("/usr/bin/bwrap"), (0, 8, 0))), CheckStatus.MISSING),
        (judge_bubblewrap(None), CheckStatus.MISSING),
        (judge_filter("x86_64"), CheckStatus.OK),
        (judge_filter("riscv64"), CheckStatus.LIMITED),
        (judge_landlock(7), CheckStatus.OK),
        (judge_landlock(1), CheckStatus.LIMITED),
        (judge_landlock(0), CheckStatus.LIMITED),
        (judge_sandbox(WORKED, Facts()), CheckStatus.OK),
        (judge_sandbox(WORKED, UBUNTU), CheckStatus.OK),
        (judge_sandbox(Trial(False, "bwrap: setting up uid map: Permission denied"), UBUNTU), CheckStatus.MISSING),
        (judge_sandbox(Trial(False, ""), Facts()), CheckStatus.MISSING),
        (judge_overlay(WORKED, Facts()), CheckStatus.OK),
        (
            judge_overlay(Trial(False, "bwrap: Can't make overlay mount: Invalid argument"), Facts()),
            CheckStatus.MISSING,
        ),
        (judge_overlay_place(Path("/proc/nowhere"), "No such file or directory"), CheckStatus.MISSING),
        (judge_users(WORKED), CheckStatus.OK),
        (judge_users(None), CheckStatus.OK),
        (judge_users(Trial(False, "mount_setattr: Invalid argument")), CheckStatus.LIMITED),
        (judge_limits(LimitBackend(CGROUP_V2, ROOTS, {})), CheckStatus.OK),
        (judge_limits(LimitBackend(CGROUP_V1, ROOTS, {})), CheckStatus.OK),
        (
            judge_limits(LimitBackend(CGROUP_V2, {"pids": "/sys/fs/cgroup"}, {"memory": "no memory"})),
            CheckStatus.LIMITED,
        ),
        (judge_limits(LimitBackend(RLIMITS, {}, {"memory": "not writable: run it as root"})), CheckStatus.LIMITED),
        (judge_node(fetched=None, has_wheel=True, can_fetch=False), CheckStatus.OK),
        (judge_node(fetched=None, has_wheel=False, can_fetch=True), CheckStatus.OK),
        (judge_node(fetched=None, has_wheel=False, can_fetch=False), CheckStatus.MISSING),
        (judge_node(fetched=NODE, has_wheel=False, can_fetch=True), CheckStatus.OK),
        (judge_docker(installed=True, server_version="29.0"), CheckStatus.OK),
        (judge_docker(installed=True, server_version=None), CheckStatus.LIMITED),
        (judge_docker(installed=False, server_version=None), CheckStatus.MISSING),
        (judge_docker_disk("overlay2 [[Backing Filesystem extfs] [Supports d_type true]]\n"), CheckStatus.LIMITED),
        (judge_docker_disk("overlay2 [[Backing Filesystem xfs] [Supports d_type true]]\n"), CheckStatus.LIMITED),
        (judge_docker_disk("btrfs [[Btrfs ]]\n"), CheckStatus.LIMITED),
        (judge_docker_disk(None), CheckStatus.LIMITED),
        (judge_git("2.39.5"), CheckStatus.OK),
        (judge_git(None), CheckStatus.MISSING),
    ],
)
def test_each_finding_is_judged_and_what_is_not_ok_says_what_to_do(finding: CheckResult, status: CheckStatus) -> None:
    assert finding.status is status
    assert finding.detail
    assert finding.purpose
    assert (finding.next_step is None) == (status is CheckStatus.OK)


def test_boxes_of_docker_are_said_to_have_no_disk_limit_by_default() -> None:
    plain = judge_docker_disk("overlay2 [[Backing Filesystem extfs] [Supports d_type true]]\n")
    assert plain.detail == "no limit, and overlay2 on extfs cannot keep one: a box can fill the daemon's disk"
    able = judge_docker_disk("overlay2 [[Backing Filesystem xfs] [Supports d_type true]]\n")
    assert able.detail == "no limit unless you give one; overlay2 on xfs keeps one, if it is set up for quotas"
    assert "--disk SIZE" in str(able.next_step)


def test_ubuntus_restriction_is_called_by_its_name() -> None:
    finding = judge_sandbox(Trial(False, "bwrap: setting up uid map: Permission denied"), UBUNTU)
    assert "AppArmor" in finding.detail
    assert "apparmor_restrict_unprivileged_userns" in str(finding.next_step)


def test_the_limits_in_force_are_named_and_why_there_are_no_better_ones() -> None:
    groups = judge_limits(LimitBackend(CGROUP_V1, ROOTS, {}))
    assert groups.detail == "control groups v1 for cpu, memory, pids, freezer"
    weaker = judge_limits(LimitBackend(RLIMITS, {}, dict.fromkeys(CONTROLLERS, "not writable: run it as root")))
    assert weaker.detail.startswith("rlimits")
    assert weaker.next_step == "not writable: run it as root"


def test_this_machine_is_examined(bare_cli: Cli, tmp_path: Path) -> None:
    told = bare_cli("doctor", "--home", str(tmp_path / "new" / "home"), "--json").json()
    assert told["ok"] is True
    by_name = {finding["name"]: finding for finding in told["findings"]}
    expected = [
        "python", "sqlite", "data folder", "fsync", "open files", "disk of a box", "bubblewrap", "system calls",
        "shared volumes", "local boxes", "overlayfs", "users", "limits", "docker", "daytona", "sprites", "modal",
        "node", "git",
    ]  # fmt: skip
    if by_name["local boxes"]["word"] == "missing":
        expected.remove("overlayfs")
        expected.remove("users")
    assert list(by_name) == expected
    assert by_name["python"]["word"] == "ok"
    assert str(tmp_path) in by_name["data folder"]["detail"]
    assert by_name["fsync"]["detail"].endswith("ms") or "slow" in by_name["fsync"]["detail"]
    assert list(tmp_path.iterdir()) == [tmp_path / "stdin"]
    shown = bare_cli("doctor", "--home", str(tmp_path)).out
    assert "✓ ok       python" in shown
    assert "The server can run here." in shown


def test_a_node_that_was_fetched_is_named_and_not_promised(bare_cli: Cli, tmp_path: Path) -> None:
    node = tmp_path / "tools" / "node-24.19.0" / "bin" / "node"
    node.parent.mkdir(parents=True)
    node.touch()
    told = bare_cli("doctor", "--home", str(tmp_path), "--json").json()
    [finding] = [each for each in told["findings"] if each["name"] == "node"]
    assert finding["detail"] == f"24.19.0, at {node}"


def test_a_folder_that_cannot_be_written_fails(bare_cli: Cli) -> None:
    outcome = bare_cli("doctor", "--home", "/proc/nowhere")
    assert outcome.exit == Exit.FAILURE
    assert "✗ missing  data folder" in outcome.out
    assert "--home DIR" in outcome.out
