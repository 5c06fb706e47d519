"""Where the key comes from, what is said where there is none, and what a setting or a spec may name."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from daytona import Image

from holdfast.api.box.network import Network, NetworkPolicy
from holdfast.api.errors.boxes import BoxError, InvalidSpec, Unsupported
from holdfast.providers.check_result import CheckStatus
from holdfast.providers.daytona import Account, DaytonaProvider, checks, images, network
from holdfast.providers.daytona.descriptor import DAYTONA
from holdfast.providers.unavailable import AbsentProvider


def make(home: Path, **settings: Any) -> Any:
    return DAYTONA.make(home, None, DAYTONA.values(settings))


def test_a_key_makes_a_provider_and_is_not_shown(tmp_path: Path) -> None:
    assert isinstance(make(tmp_path, daytona_api_key="dtn_secret"), DaytonaProvider)
    assert "dtn_secret" not in repr(Account("dtn_secret"))


def test_without_a_key_there_is_no_such_provider_and_that_is_no_failure(tmp_path: Path) -> None:
    absent = make(tmp_path)
    assert isinstance(absent, AbsentProvider)
    with pytest.raises(BoxError) as caught:
        absent.check_usable()
    assert caught.value.hint is not None
    assert "holdfast provider add daytona" in caught.value.hint


@pytest.mark.parametrize(
    ("installed", "account", "answer", "status"),
    [
        (True, None, None, CheckStatus.MISSING),
        (False, Account("key"), 200, CheckStatus.LIMITED),
        (True, Account("key"), 200, CheckStatus.OK),
        (True, Account("key"), 401, CheckStatus.LIMITED),
        (True, Account("key"), 500, CheckStatus.LIMITED),
        (True, Account("key"), "connection refused", CheckStatus.LIMITED),
    ],
)
def test_the_doctor_says_what_is_missing(
    installed: bool, account: Account | None, answer: int | str | None, status: CheckStatus
) -> None:
    finding = checks.judge(installed, account, answer)
    assert finding.status is status
    assert status is CheckStatus.OK or finding.next_step


def test_the_descriptor_is_read_without_the_sdk() -> None:
    script = (
        "import sys; sys.modules['daytona'] = None; from holdfast.providers.daytona.descriptor import DAYTONA;"
        "assert 'aiohttp' not in sys.modules; print(DAYTONA.name)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=240, check=False)
    assert done.stdout == "daytona\n", done.stderr


# --- what a box begins with ---


def test_an_image_is_a_snapshot_or_an_image_of_a_registry() -> None:
    assert images.origin_of(None) == images.Origin()
    assert images.origin_of("snapshot:daytona-large") == images.Origin(snapshot="daytona-large")
    assert images.origin_of("python:3.12-slim") == images.Origin(image="python:3.12-slim")
    with pytest.raises(InvalidSpec):
        images.origin_of("snapshot:")


def test_a_spec_cannot_have_files_of_the_server_built(tmp_path: Path) -> None:
    dockerfile = tmp_path / "Dockerfile"
    dockerfile.write_text("FROM debian:13\nRUN true\n")
    with pytest.raises(InvalidSpec, match="cannot be the image of one box"):
        images.origin_of(f"dockerfile:{dockerfile}")
    built = images.default_origin(f"dockerfile:{dockerfile}").image
    assert isinstance(built, Image)
    assert "RUN true" in built.dockerfile()
    declared = Image.base("debian:13").env({"A": "1"})
    assert images.default_origin(declared).image is declared
    with pytest.raises(InvalidSpec, match="there is no Dockerfile"):
        images.default_origin(f"dockerfile:{tmp_path}/nothing")


# --- the network, as far as Daytona keeps it ---


@pytest.mark.parametrize(
    ("policy", "settings"),
    [
        (NetworkPolicy(Network.NONE), network.DaytonaNetwork(True)),
        (NetworkPolicy(Network.OPEN), network.DaytonaNetwork(False)),
        (
            NetworkPolicy(Network.ALLOW, ("example.org", "*.example.com", "203.0.113.7")),
            network.DaytonaNetwork(False, "203.0.113.7/32", "example.org,*.example.com"),
        ),
    ],
)
def test_a_policy_becomes_settings_of_daytona(policy: NetworkPolicy, settings: network.DaytonaNetwork) -> None:
    assert network.direct(policy) == settings


@pytest.mark.parametrize(
    ("policy", "named"),
    [
        (NetworkPolicy(Network.ALLOW), "the default list"),
        (NetworkPolicy(Network.ALLOW, ("example.org:8080",)), "ports"),
        (NetworkPolicy(Network.ALLOW, ("GET example.org",)), "methods"),
        (NetworkPolicy(Network.ALLOW, tuple(f"203.0.113.{n}" for n in range(11))), "more than 10 addresses"),
        (NetworkPolicy(Network.OPEN, bandwidth=1000), "bandwidth"),
        (NetworkPolicy(Network.OPEN, connections=10), "connections"),
    ],
)
def test_what_daytona_has_no_words_for_is_refused_by_name(policy: NetworkPolicy, named: str) -> None:
    with pytest.raises(Unsupported, match=named):
        network.direct(policy)
