"""Marks follow from what tests use, and a test that starts more than it is marked for fails."""

from __future__ import annotations

import os
import subprocess
import sys
from fnmatch import fnmatchcase
from pathlib import Path
from types import ModuleType

import pytest
from tests.suite.needs import FILES, marks_of_module

from holdfast.providers.local import LocalProvider as Provider

CHECKOUT = Path(__file__).parents[2]
CONFTEST = """
import pytest
from tests.conftest import *
"""
TESTS = """
import subprocess, sys
from pathlib import Path
import pytest

MAKE = "import sys; from pathlib import Path; Path(sys.argv[1], 'local', 'boxes', 'b-1').mkdir(parents=True)"

@pytest.fixture
def browser(): ...

def test_here(tmp_path):
    (tmp_path / "local" / "boxes" / "b-1").mkdir(parents=True)

def test_below(tmp_path):
    subprocess.run([sys.executable, "-c", MAKE, str(tmp_path)], check=True)

@pytest.mark.box
def test_marked(tmp_path):
    subprocess.run([sys.executable, "-c", MAKE, str(tmp_path)], check=True)

def test_something_else(tmp_path):
    (tmp_path / "boxes").mkdir()

def test_page(browser): ...
"""


def run(folder: Path, *arguments: str) -> str:
    """Runs these tests with our conftest.py."""
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "test_it.py").write_text(TESTS)
    command = [sys.executable, "-P", "-m", "pytest", "-o", f"cache_dir={folder}/cache", "-p", "no:schemathesis", "-rA"]
    config = ["-c", str(CHECKOUT / "pyproject.toml"), "--rootdir", str(folder), *arguments, "test_it.py"]
    own = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "TEST_MARKS_"))}
    return subprocess.run([*command, *config], cwd=folder, env=own, capture_output=True, text=True, check=False).stdout


def test_a_test_that_starts_something_without_its_mark_fails_and_says_which(tmp_path: Path) -> None:
    told = run(tmp_path)
    assert "5 passed, 2 errors" in told
    for name in ("test_here", "test_below"):
        assert f"{name} started something that it is not marked for: add @pytest.mark.box" in told


def test_tests_are_selected_by_what_follows_from_their_fixtures(tmp_path: Path) -> None:
    assert "PASSED test_it.py::test_page\n1 passed, 4 deselected" in run(tmp_path, "-m", "browser")


def module(name: str, monkeypatch: pytest.MonkeyPatch, **members: object) -> ModuleType:
    made = ModuleType(name)
    vars(made).update(members)
    monkeypatch.setitem(sys.modules, name, made)
    return made


def test_a_name_marks_its_module_and_those_who_have_something_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert marks_of_module(module("tests.direct", monkeypatch, LocalProvider=Provider)) == {"box"}
    helper = module("tests.helper", monkeypatch, LocalProvider=Provider)

    def make() -> None: ...

    make.__module__ = helper.__name__
    assert marks_of_module(module("tests.by_a_helper", monkeypatch, make=make)) == {"box"}
    assert marks_of_module(module("tests.neither", monkeypatch, files=FILES)) == set()


@pytest.mark.parametrize("pattern", sorted({each for patterns in FILES.values() for each in patterns}))
def test_every_pattern_of_files_fits_one(pattern: str) -> None:
    files = (path.relative_to(CHECKOUT).as_posix() for path in (CHECKOUT / "tests").rglob("test_*.py"))
    assert any(fnmatchcase(file, pattern) for file in files)
