"""Where the token comes from, and what is said where there is none."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from holdfast.api.errors.boxes import BoxError, CannotIsolate
from holdfast.providers.check_result import CheckStatus
from holdfast.providers.modal import ModalProvider
from holdfast.providers.modal.checks import judge_modal
from holdfast.providers.modal.descriptor import MODAL
from holdfast.providers.unavailable import AbsentProvider


def make(home: Path, **settings: Any) -> Any:
    return MODAL.make(home, None, MODAL.values(settings))


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "home", lambda: tmp_path / "user")


def test_a_token_that_is_given_makes_a_provider(tmp_path: Path) -> None:
    assert isinstance(make(tmp_path, modal_token_id="ak-1", modal_token_secret="as-1"), ModalProvider)


def test_half_a_token_and_ports_that_are_none_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CannotIsolate, match="half"):
        make(tmp_path, modal_token_id="ak-1")
    with pytest.raises(CannotIsolate, match="no ports"):
        make(tmp_path, modal_token_id="ak-1", modal_token_secret="as-1", modal_ports="80,http")


def test_without_a_token_there_is_no_such_provider_and_that_is_no_failure(tmp_path: Path) -> None:
    absent = make(tmp_path)
    assert isinstance(absent, AbsentProvider)
    with pytest.raises(BoxError) as caught:
        absent.check_usable()
    assert caught.value.hint is not None
    assert "modal token new" in caught.value.hint


@pytest.mark.parametrize(
    ("installed", "configured", "status"),
    [
        (True, True, CheckStatus.OK),
        (True, False, CheckStatus.LIMITED),
        (False, False, CheckStatus.MISSING),
        (False, True, CheckStatus.MISSING),
    ],
)
def test_the_doctor_says_what_is_missing(installed: bool, configured: bool, status: CheckStatus) -> None:
    finding = judge_modal(installed, configured)
    assert finding.status is status
    assert status is CheckStatus.OK or finding.next_step


def test_the_descriptor_is_read_without_the_sdk() -> None:
    script = (
        "import sys; sys.modules['modal'] = None; from holdfast.providers.modal.descriptor import MODAL;"
        "assert 'grpclib' not in sys.modules; print(MODAL.name)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=240, check=False)
    assert done.stdout == "modal\n", done.stderr
