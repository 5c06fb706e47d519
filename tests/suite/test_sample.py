"""A whole run takes a part of the large suites, chosen by its seed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.suite.sample import SAMPLING

CHECKOUT = Path(__file__).parents[2]
SUITE = """
import pytest
from tests.suite import sample

@pytest.mark.sampled
@pytest.mark.parametrize("number", range(30))
def test_many(number): ...

@pytest.mark.sampled(share=0.1)
@pytest.mark.parametrize("number", range(20))
def test_more(number): ...

def test_one(): ...
"""
CONFTEST = """
from tests.suite import sample

def pytest_configure(config):
    config.addinivalue_line("markers", "sampled: a third of them in a whole run")

def pytest_collection_modifyitems(config, items):
    sample.apply(config, items)
"""


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    (tmp_path / "test_it.py").write_text(SUITE)
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    return tmp_path


def names(suite: Path, seed: str, sampling: str = "1") -> list[str]:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--collect-only", "-p", "no:cacheprovider", "-p", "no:schemathesis"],
        cwd=suite,
        env={"PYTHONPATH": str(CHECKOUT), "HOLDFAST_TEST_SEED": seed, SAMPLING: sampling},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return [line for line in done.stdout.splitlines() if "::" in line]


def test_a_third_is_chosen_by_the_seed_or_what_the_mark_says_and_other_tests_all_run(suite: Path) -> None:
    chosen = names(suite, "1")
    assert sum("test_many" in name for name in chosen) == 10
    assert sum("test_more" in name for name in chosen) == 2
    assert len(chosen) == 13
    assert chosen[-1].endswith("test_one")
    assert names(suite, "1") == chosen
    assert names(suite, "2") != chosen


def test_all_run_where_nothing_is_sampled(suite: Path) -> None:
    assert len(names(suite, "1", sampling="")) == 51
