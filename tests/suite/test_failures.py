from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.suite import failures


def report(nodeid: str, failed: bool = True) -> Any:
    return SimpleNamespace(nodeid=nodeid, failed=failed)


def test_only_what_failed_is_named_and_each_test_once() -> None:
    told = [report("a.py::test_a"), report("a.py::test_b", failed=False), report("a.py::test_a"), SimpleNamespace()]
    assert failures.names(told) == ["a.py::test_a"]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("a.py::test_a@docker", "a.py::test_a"),
        ("a.py::test_a[x@y]", "a.py::test_a[x@y]"),
        ("a.py::test_a[x@y]@interpreters at modal", "a.py::test_a[x@y]"),
        ("a.py::test_a", "a.py::test_a"),
    ],
)
def test_a_name_has_no_group(name: str, expected: str) -> None:
    assert failures.without_group(name) == expected


@pytest.mark.slow
def test_what_is_written_can_be_run_again(tmp_path: Path) -> None:
    (tmp_path / "test_example.py").write_text(
        "import pytest\n"
        "@pytest.mark.xdist_group('some group')\n"
        "@pytest.mark.parametrize('value', ['a::b', 'x@y', 'fine'])\n"
        "def test_value(value): assert value == 'fine'\n"
    )
    (tmp_path / "conftest.py").write_text(
        "import os, pathlib\n"
        "from tests.suite import failures\n"
        "def pytest_terminal_summary(terminalreporter):\n"
        "    told = [each for all in terminalreporter.stats.values() for each in all]\n"
        "    failures.write(pathlib.Path(os.environ[failures.FILE]), told)\n"
    )
    found = tmp_path / "failed"

    def run(*arguments: str) -> str:
        command = [sys.executable, "-P", "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
        environment = {**os.environ, failures.FILE: str(found), "PYTHONPATH": str(Path(__file__).parents[2])}
        environment.pop("PYTEST_ADDOPTS", None)
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        return done.stdout

    assert "2 failed, 1 passed" in run("-n", "2", "--dist", "loadgroup")
    named = found.read_text().splitlines()
    assert sorted(named) == ["test_example.py::test_value[a::b]", "test_example.py::test_value[x@y]"]
    assert "2 failed" in (output := run(*named)), output
    assert "passed" not in output
