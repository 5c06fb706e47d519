"""`holdfast doctor`: judgements by table, and the whole of it on the machine at hand."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest
from tests.cli.conftest import Cli

from holdfast.cli.exits import Exit
from holdfast.cli.machine import (
    Cgroups,
    Finding,
    Word,
    judge_bubblewrap,
    judge_cgroups,
    judge_descriptors,
    judge_docker,
    judge_fsync,
    judge_git,
    judge_namespaces,
    judge_node,
    judge_overlay,
    judge_python,
    judge_space,
    judge_sqlite,
)

ALL = frozenset({"unshare", "mount", "overlay"})
CONTROLLERS = frozenset({"cpu", "memory", "pids", "io"})


@pytest.mark.parametrize(
    ("finding", "word"),
    [
        (judge_python((3, 11, 0)), Word.OK),
        (judge_python((3, 10, 9)), Word.MISSING),
        (judge_sqlite((3, 40, 1)), Word.OK),
        (judge_sqlite((3, 31, 0)), Word.MISSING),
        (judge_space(Path("/home"), 20 * 1024**3), Word.OK),
        (judge_space(Path("/home"), 1024), Word.LIMITED),
        (judge_fsync(0.0002), Word.OK),
        (judge_fsync(0.05), Word.LIMITED),
        (judge_descriptors(65536, 65536), Word.OK),
        (judge_descriptors(resource.RLIM_INFINITY, resource.RLIM_INFINITY), Word.OK),
        (judge_descriptors(1024, resource.RLIM_INFINITY), Word.LIMITED),
        (judge_namespaces(ALL, restricted=False), Word.OK),
        (judge_namespaces(ALL, restricted=True), Word.OK),
        (judge_namespaces(frozenset({"unshare"}), restricted=True), Word.LIMITED),
        (judge_namespaces(frozenset({"unshare"}), restricted=False), Word.LIMITED),
        (judge_namespaces(frozenset(), restricted=False), Word.MISSING),
        (judge_bubblewrap("0.11.0"), Word.OK),
        (judge_bubblewrap(None), Word.MISSING),
        (judge_overlay(ALL, known=True, root=False), Word.OK),
        (judge_overlay(frozenset({"unshare", "mount"}), known=True, root=True), Word.LIMITED),
        (judge_overlay(frozenset(), known=False, root=False), Word.MISSING),
        (judge_cgroups(Cgroups(2, CONTROLLERS, writable=True)), Word.OK),
        (judge_cgroups(Cgroups(1, CONTROLLERS, writable=True)), Word.OK),
        (judge_cgroups(Cgroups(2, CONTROLLERS, writable=False)), Word.LIMITED),
        (judge_cgroups(Cgroups(2, frozenset({"cpu"}), writable=True)), Word.LIMITED),
        (judge_cgroups(Cgroups(None)), Word.MISSING),
        (judge_node("24.1.0", wheel=False), Word.OK),
        (judge_node("18.0.0", wheel=True), Word.OK),
        (judge_node("18.0.0", wheel=False), Word.LIMITED),
        (judge_node(None, wheel=False), Word.MISSING),
        (judge_docker(installed=True, server_version="29.0"), Word.OK),
        (judge_docker(installed=True, server_version=None), Word.LIMITED),
        (judge_docker(installed=False, server_version=None), Word.MISSING),
        (judge_git("2.39.5"), Word.OK),
        (judge_git(None), Word.MISSING),
    ],
)
def test_each_finding_is_judged_and_what_is_not_ok_says_what_to_do(finding: Finding, word: Word) -> None:
    assert finding.word is word
    assert finding.detail
    assert finding.purpose
    assert (finding.next_step is None) == (word is Word.OK)


def test_ubuntus_restriction_is_called_by_its_name() -> None:
    finding = judge_namespaces(frozenset({"unshare"}), restricted=True)
    assert "AppArmor" in finding.detail
    assert "apparmor_restrict_unprivileged_userns" in str(finding.next_step)


def test_this_machine_is_examined(bare_cli: Cli, tmp_path: Path) -> None:
    told = bare_cli("doctor", "--home", str(tmp_path / "new" / "home"), "--json").json()
    assert told["ok"] is True
    by_name = {finding["name"]: finding for finding in told["findings"]}
    assert list(by_name) == [
        "python",
        "sqlite",
        "data folder",
        "fsync",
        "open files",
        "user namespaces",
        "bubblewrap",
        "overlayfs",
        "cgroups",
        "node",
        "docker",
        "git",
    ]
    assert by_name["python"]["word"] == "ok"
    assert str(tmp_path) in by_name["data folder"]["detail"]
    assert by_name["fsync"]["detail"].endswith("ms") or "slow" in by_name["fsync"]["detail"]
    assert list(tmp_path.iterdir()) == [tmp_path / "stdin"]
    shown = bare_cli("doctor", "--home", str(tmp_path)).out
    assert "✓ ok       python" in shown
    assert "The server can run here." in shown


def test_a_folder_that_cannot_be_written_fails(bare_cli: Cli) -> None:
    outcome = bare_cli("doctor", "--home", "/proc/nowhere")
    assert outcome.exit == Exit.FAILURE
    assert "✗ missing  data folder" in outcome.out
    assert "--home DIR" in outcome.out
