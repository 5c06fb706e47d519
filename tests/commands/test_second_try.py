"""What `bin/test` does about tests that fail: those that pass alone are reported as unsteady."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[2]
ENVIRONMENT = """
private=$checkout/.holdfast
mkdir -p "$private"
use_environment() { environment=$checkout/environment; }
use_node_modules() { :; }
use_agents() { :; }
seconds_since() { echo 0 s; }
"""
MACHINE = """
install_missing_packages() { :; }
explain_skipped() { :; }
make_folder_in_memory() { return 1; }
"""
# Stands for pytest: the first run fails as many tests as there are names, later ones as it is told.
PYTEST = """#!%s
import os, pathlib, sys
if "pytest" not in sys.argv:
    sys.exit()
folder = pathlib.Path(__file__).parents[2]
names = (folder / "fail").read_text().splitlines()
if "--numprocesses" in sys.argv:
    print("how it failed among the others" if names else "all passed")
    print("the last line")
    pathlib.Path(os.environ["HOLDFAST_TEST_FAILURES"]).write_text("".join(f"{name}\\n" for name in names))
    sys.exit(1 if names else 0)
(folder / "again").write_text("\\n".join(each for each in sys.argv if "::" in each))
print("how it failed alone")
sys.exit((folder / "broken").exists())
"""


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A checkout whose tests fail as its files say."""
    clone = tmp_path / "clone"
    programs = clone / "environment" / "bin"
    programs.mkdir(parents=True)
    (clone / "bin" / "lib").mkdir(parents=True)
    shutil.copy(CHECKOUT / "bin" / "test", clone / "bin" / "test")
    (clone / "bin" / "lib" / "environment.bash").write_text(ENVIRONMENT)
    (clone / "bin" / "lib" / "machine.bash").write_text(MACHINE)
    (programs / "python").write_text(PYTEST % sys.executable)
    for name in ("ruff", "lint-imports"):
        (programs / name).write_text("#!/bin/sh\n")
    for program in programs.iterdir():
        program.chmod(0o755)
    return clone


def run(clone: Path, *arguments: str, fail: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    (clone / "fail").write_text("\n".join(fail))
    command = [str(clone / "bin" / "test"), *arguments]
    return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=240, check=False)


def test_a_test_that_passes_alone_is_named_with_how_it_failed(clone: Path) -> None:
    done = run(clone, fail=("a.py::test_a[x y]", "b.py::test_b"))
    assert done.returncode == 0, done.stdout
    assert (clone / "again").read_text() == "a.py::test_a[x y]\nb.py::test_b"
    assert "  unsteady     a.py::test_a[x y]\n  unsteady     b.py::test_b\n" in done.stdout
    assert "how it failed among the others" in done.stdout
    assert "  next         find out why" in done.stdout


def test_a_test_that_fails_alone_too_has_failed(clone: Path) -> None:
    (clone / "broken").touch()
    done = run(clone, fail=("a.py::test_a",))
    assert done.returncode == 1
    assert "how it failed alone" in done.stdout
    assert "  failed       pytest\n" in done.stdout
    assert "unsteady" not in done.stdout


def test_many_failures_are_no_coincidence(clone: Path) -> None:
    done = run(clone, fail=tuple(f"a.py::test_{number}" for number in range(11)))
    assert done.returncode == 1
    assert not (clone / "again").exists()


@pytest.mark.parametrize("option", ["--strict", "--quick"])
def test_who_is_strict_gives_no_second_try(clone: Path, option: str) -> None:
    done = run(clone, option, fail=("a.py::test_a",))
    assert done.returncode == 1
    assert not (clone / "again").exists()
    assert "how it failed among the others" in done.stdout


def test_a_green_run_says_nothing_of_it(clone: Path) -> None:
    done = run(clone, fail=())
    assert done.returncode == 0
    assert "how it failed" not in done.stdout
    assert "unsteady" not in done.stdout
