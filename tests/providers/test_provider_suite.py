"""The conformance kit itself: it takes one fixture to run, and a provider that breaks the contract fails it."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from holdfast.testing.provider_suite import ProviderSuite

SOUND_AND_BROKEN = """
import pytest
from holdfast.api.box.box import Liveness
from holdfast.boxes.capabilities import Capability
from holdfast.testing.dummy import CAPABILITIES, DummyProvider
from holdfast.testing.provider_suite import ProviderSuite


class OneFixture(ProviderSuite):
    kind = DummyProvider

    @pytest.fixture
    async def provider(self, tmp_path):
        async with self.kind(tmp_path / "data_dir") as provider:
            yield provider


class TestSound(OneFixture):
    pass


class TestIgnoresLabels(OneFixture):
    class kind(DummyProvider):
        async def find(self, labels=None):
            return await super().find()


class TestThinksEverythingLives(OneFixture):
    class kind(DummyProvider):
        async def probe(self, id):
            return Liveness.LIVE


class TestClaimsTooMuch(OneFixture):
    class kind(DummyProvider):
        def __init__(self, folder):
            super().__init__(folder, name="boastful", capabilities=CAPABILITIES | {Capability.PTY})


class TestClaimsTooLittle(OneFixture):
    class kind(DummyProvider):
        def __init__(self, folder):
            super().__init__(folder, name="modest", capabilities=CAPABILITIES - {Capability.EXPORT})

        async def export_snapshot(self, id):
            yield b""


class TestSweepsTooMuch(OneFixture):
    class kind(DummyProvider):
        async def sweep(self, keep=None):
            return await super().sweep(keep or ())


class TestFreesNothing(OneFixture):
    class kind(DummyProvider):
        async def delete_snapshot(self, id):
            return 0
"""
CHOSEN = " or ".join(
    (
        "test_exec_gives_both_streams",
        "test_boxes_are_found_by_labels",
        "test_a_box_that_never_was",
        "test_a_terminal_is_one",
        "test_what_a_provider_does_not_claim",
        "test_a_sweep_touches_no_box",
        "test_what_a_snapshot_held",
        "test_boxes_are_found_again",
    )
)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("kit")
    (folder / "test_kit.py").write_text(SOUND_AND_BROKEN)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:xdist", "-p", "no:cacheprovider", "-q", "-rfs", "--tb=no",
         "--basetemp", folder / "base", "--rootdir", folder, "-k", CHOSEN, folder],
        cwd=folder, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert "passed" in done.stdout, done.stdout + done.stderr
    return done.stdout


def test_a_provider_that_breaks_the_contract_fails_by_the_test_that_says_so(report: str) -> None:
    failed = set(re.findall(r"^FAILED \S+::(\w+)::(\w+)", report, re.MULTILINE))
    assert failed == {
        ("TestIgnoresLabels", "test_boxes_are_found_by_labels_the_oldest_first"),
        ("TestThinksEverythingLives", "test_a_box_that_never_was_is_not_found"),
        ("TestClaimsTooMuch", "test_a_terminal_is_one_for_all_three_streams"),
        ("TestClaimsTooLittle", "test_what_a_provider_does_not_claim_is_refused_by_name"),
        ("TestSweepsTooMuch", "test_a_sweep_touches_no_box_that_lives"),
        ("TestFreesNothing", "test_what_a_snapshot_held_is_freed_when_the_last_one_lets_go"),
    }


def test_an_account_of_what_was_tried_and_left_out_is_printed(report: str) -> None:
    assert re.search(r"^provider dummy: \d+ tests of 11 capabilities; must refuse: .*isolation", report, re.M)
    assert "tests skipped: pty is not claimed" in report


def test_restarts_are_left_out_without_a_way_to_reopen(report: str) -> None:
    assert "fixture `reopen` is not defined" in report


def test_no_test_of_the_suite_hides_another() -> None:
    names = Counter(name for part in ProviderSuite.__mro__ for name in vars(part) if name.startswith("test_"))
    assert [name for name, count in names.items() if count > 1] == []
    assert len(names) > 150


def test_every_part_of_the_suite_has_its_time_limit() -> None:
    tests = [getattr(ProviderSuite, name) for name in dir(ProviderSuite) if name.startswith("test_")]
    assert all(inspect.unwrap(test) is not test for test in tests)
    assert all(Path(inspect.getfile(inspect.unwrap(test))).parent.name == "provider_suite" for test in tests)
