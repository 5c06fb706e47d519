"""Tests of a file run in one process, and long ones first."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.suite.schedule import add_groups, pieces, rank

CHECKOUT = Path(__file__).parents[2]
SUITE = """
import os
from pathlib import Path
import pytest

@pytest.mark.parametrize("number", range({count}))
def test_it(number):
    with open("{name}", "a") as file:
        file.write(f"{{os.environ['PYTEST_XDIST_WORKER']}}\\n")
"""
CONFTEST = """
from tests.conftest import pytest_xdist_make_scheduler
"""


def test_a_file_is_one_piece_and_a_large_one_several_in_order() -> None:
    small = [f"tests/a.py::test[{number}]" for number in range(10)]
    large = [f"tests/b.py::test[{number}]" for number in range(60)]
    found = pieces([*small, *large])
    assert len({found[test] for test in small}) == 1
    assert [found[test] for test in large] == sorted(found[test] for test in large)
    assert len({found[test] for test in large}) == 3
    assert not {found[test] for test in small} & {found[test] for test in large}


def test_a_slow_file_is_given_out_in_smaller_pieces() -> None:
    assert len(set(pieces(f"tests/runs/test_faults.py::test[{number}]" for number in range(24)).values())) == 3


def test_tests_of_a_group_are_one_piece_however_many_they_are() -> None:
    found = pieces([f"tests/a{number}.py::test[a@b]@page" for number in range(100)])
    assert set(found.values()) == {"page"}
    assert set(pieces(["tests/a.py::test[a@b]"]).values()) == {"tests/a.py 0"}


def test_groups_come_first_then_slow_files_then_the_others_as_they_were_collected() -> None:
    quick, slow, small, large = (
        {"tests/api/test_ids.py::a": False},
        {"tests/runs/test_faults.py::a": False},
        {"tests/api/test_ids.py::b@one": False},
        {"tests/api/test_ids.py::c@two": False, "tests/api/test_ids.py::d@two": False},
    )
    assert sorted([quick, slow, small, large], key=rank) == [large, small, slow, quick]


def test_tests_of_one_daemon_or_cloud_are_a_group_unless_they_have_another() -> None:
    items = [Item(docker=True), Item("docker", docker=True), Item("modal"), Item("modal", group="own"), Item("local")]
    add_groups(cast(Any, items))
    assert [each.group for each in items] == ["docker", "docker", "interpreters at modal", "own", None]


class Item:
    """What `add_groups` reads of a test."""

    def __init__(self, place: str | None = None, *, docker: bool = False, group: str | None = None) -> None:
        self.callspec = SimpleNamespace(params={} if place is None else {"place": place})
        self.marks = [pytest.mark.docker] * docker + [pytest.mark.xdist_group(group)] * (group is not None)

    @property
    def group(self) -> Any:
        found = self.get_closest_marker("xdist_group")
        return None if found is None else found.args[0]

    def get_closest_marker(self, name: str) -> Any:
        return next((each for each in self.marks if each.name == name), None)

    def add_marker(self, mark: Any) -> None:
        self.marks.append(mark)


@pytest.mark.slow  # two processes of pytest
def test_all_tests_run_once_and_those_of_a_file_in_one_process(tmp_path: Path) -> None:
    counts = {"test_a.py": 5, "test_b.py": 23, "test_c.py": 60, "test_d.py": 1}
    for name, count in counts.items():
        (tmp_path / name).write_text(SUITE.format(name=f"{name}.log", count=count))
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-n",
            "2",
            "--dist",
            "loadgroup",
            "-p",
            "no:cacheprovider",
            "-p",
            "no:schemathesis",
        ],
        cwd=tmp_path,
        env={"PYTHONPATH": str(CHECKOUT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    ran = {name: (tmp_path / f"{name}.log").read_text().split() for name in counts}
    assert {name: len(workers) for name, workers in ran.items()} == counts
    assert all(len(set(workers)) == 1 for name, workers in ran.items() if name != "test_c.py")
