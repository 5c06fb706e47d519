from __future__ import annotations

import pytest

from holdfast.api.box.network import Network, NetworkPolicy
from holdfast.api.environments import Gap, GapKind
from holdfast.api.errors.environments import EnvironmentIncomplete, EnvironmentNotAllowed
from holdfast.api.errors.secrets import SecretMissing
from holdfast.api.model.budgets import Budget
from holdfast.api.run.runs import NewRun, RunBox
from holdfast.environments.parsing import parse_environment
from holdfast.server.environments import given_by, merged, network_with, refuse_gaps

TEXT = """\
agent = "claude"
models = ["a", "b"]
image = "python:3.13"
checkpoints = "off"
egress = ["default"]
[limits]
cpu = 2
memory = "4G"
timeout = "2h"
[budget]
cost = 2.5
"""


def test_the_environment_gives_what_the_request_leaves_open() -> None:
    new = merged(parse_environment(TEXT), NewRun(prompt="x"))
    assert (new.agent, new.model, new.fallbacks, new.timeout) == ("claude", "a", ("b",), 7200)
    assert new.checkpoints == "off"
    assert new.budget == Budget(cost=2.5)
    assert new.box == RunBox(
        image="python:3.13", cpu=2.0, memory=4 << 30, network=NetworkPolicy(Network.ALLOW, ("default",))
    )


def test_every_field_of_the_request_wins() -> None:
    box = RunBox(provider="docker", image="mine", cpu=1.0, memory=1 << 30, network=NetworkPolicy())
    asked = NewRun(prompt="x", agent="pi", model="c", timeout=5, checkpoints="every", box=box, budget=Budget(cost=1))
    assert merged(parse_environment(TEXT), asked) == asked


def test_no_environment_field_leaves_the_request_to_the_defaults() -> None:
    assert merged(parse_environment(""), NewRun(prompt="x")).box == RunBox()


@pytest.mark.parametrize(
    ("policy", "secrets", "becomes"),
    [
        (None, {}, None),
        # A secret opens its own host: without rules, mode allow would mean the default list.
        (None, {"A": ("a.test:443",)}, NetworkPolicy(Network.ALLOW, ("a.test:443",), secrets=("A",))),
        (NetworkPolicy(), {"A": ()}, NetworkPolicy(secrets=("A",))),
        (
            NetworkPolicy(Network.ALLOW, ("b.test",)),
            {"A": ("a.test:443",)},
            NetworkPolicy(Network.ALLOW, ("b.test",), secrets=("A",)),
        ),
        (
            NetworkPolicy(Network.ALLOW, ("b.test",), secrets=("A:push",)),
            {"A": ("a.test:443",)},
            NetworkPolicy(Network.ALLOW, ("b.test",), secrets=("A:push",)),
        ),
        (NetworkPolicy(Network.OPEN), {"A": ("a.test:443",)}, NetworkPolicy(Network.OPEN, secrets=("A",))),
    ],
)
def test_secrets_open_their_own_hosts_and_nothing_else(
    policy: NetworkPolicy | None, secrets: dict[str, tuple[str, ...]], becomes: NetworkPolicy | None
) -> None:
    assert network_with(policy, secrets) == becomes


def test_what_a_request_gives_is_known_by_field() -> None:
    given = given_by(NewRun(prompt="x", agent="pi", box=RunBox(network=NetworkPolicy())))
    assert (given.agent, given.model, given.network, given.image) == (True, False, True, False)


def gap(kind: GapKind, name: str, *, required: bool = True) -> Gap:
    return Gap(kind=kind, name=name, message=f"no {name}", next_step=f"get {name}", required=required)


def test_gaps_that_are_not_required_are_no_reason_to_refuse() -> None:
    refuse_gaps("web@1", (gap(GapKind.SECRET, "A", required=False),))


def test_the_refusal_names_everything_that_is_missing() -> None:
    secrets = (gap(GapKind.SECRET, "A"), gap(GapKind.SECRET, "B"))
    with pytest.raises(SecretMissing, match="A, B"):
        refuse_gaps("web@1", secrets)
    with pytest.raises(EnvironmentIncomplete, match=r"no A; no B; no m") as caught:
        refuse_gaps("web@1", (*secrets, gap(GapKind.MODEL, "m")))
    assert caught.value.hint == "get A"
    with pytest.raises(EnvironmentNotAllowed, match=r"asks for: secret A"):
        refuse_gaps("holdfast.toml", (*secrets, gap(GapKind.CONSENT, "secret A")))
