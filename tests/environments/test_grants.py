"""What a file from a repository may decide by itself, as docs/environments.md says it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from holdfast.environments.grants import RIGHTS, Given, Right, asks_of
from holdfast.environments.parsing import FIELDS, parse_environment

DOCS = Path(__file__).parents[2] / "docs" / "environments.md"

SAMPLES = {
    "name": 'name = "x"',
    "image": 'image = "evil/image"',
    "setup": 'setup = ["rm -rf /"]',
    "inputs": 'setup = ["x"]\ninputs = ["a"]',
    "agent": 'agent = "acp:evil"',
    "test": 'test = "evil"',
    "services": '[services]\nevil = "evil"',
    "repositories": 'repositories = ["https://git.example.com/their/private.git"]',
    "budget": "[budget]\ncost = 1",
    "checkpoints": 'checkpoints = "off"',
    "limits": '[limits]\ncpu = 4\nmemory = "8G"\ndisk = "32G"\npids = 4096\ntimeout = "1h"',
    "provider": 'provider = "process"',
    "models": 'models = ["expensive"]',
    "secrets": 'secrets = ["GITHUB_TOKEN"]',
    "optional_secrets": 'optional_secrets = ["GITHUB_TOKEN"]',
    "egress": 'egress = ["evil.example.com"]',
}


def test_every_field_has_its_right() -> None:
    assert set(RIGHTS) == set(FIELDS) == set(SAMPLES)


@pytest.mark.parametrize("field", FIELDS)
def test_a_file_asks_for_exactly_what_the_table_says(field: str) -> None:
    asks = asks_of(parse_environment(SAMPLES[field]), Given())
    assert bool(asks) == (RIGHTS[field] is Right.ASKS), asks


@pytest.mark.parametrize("text", ["cpu = 4.1", 'memory = "9G"', 'disk = "33G"', "pids = 4097"])
def test_a_file_asks_for_limits_above_the_bound(text: str) -> None:
    name = text.split()[0]
    environment = parse_environment(f"[limits]\n{text}")
    [ask] = asks_of(environment, Given())
    assert ask.startswith(name)
    assert asks_of(environment, Given(**{name: True})) == ()


@pytest.mark.parametrize(
    ("policy", "asks"),
    [
        ("every", False),
        ("every keep=10 size=500M seconds=20", False),
        ("every keep=11", True),
        ("every size=2G", True),
        ("every total=20G", True),
        ("every seconds=600", True),
        ("every days=31", True),
    ],
)
def test_a_file_asks_for_checkpoints_above_the_bound(policy: str, asks: bool) -> None:
    environment = parse_environment(f'checkpoints = "{policy}"')
    assert asks_of(environment, Given()) == ((f"checkpoints {policy}",) if asks else ())
    assert asks_of(environment, Given(checkpoints=True)) == ()


def test_what_the_user_gives_need_not_be_asked_for() -> None:
    text = 'provider = "docker"\nmodels = ["m"]\negress = ["default"]\nsecrets = ["S"]'
    environment = parse_environment(text)
    assert len(asks_of(environment, Given())) == 4
    assert asks_of(environment, Given(provider=True, model=True, network=True)) == ("secret S",)


def test_a_file_asks_for_an_image_only_if_it_would_be_pulled() -> None:
    environment = parse_environment('image = "evil.example.com/image"')
    assert asks_of(environment, Given(provider=True)) == ()
    [ask] = asks_of(environment, Given(provider=True), pulls=True)
    assert ask == "image evil.example.com/image, if it has to be pulled"
    assert asks_of(environment, Given(image=True), pulls=True) == ()


def test_no_network_need_not_be_asked_for() -> None:
    assert asks_of(parse_environment("egress = []"), Given()) == ()


def test_secrets_are_asked_for_whatever_the_user_gives() -> None:
    everything = Given(**dict.fromkeys(Given.__slots__, True))
    assert asks_of(parse_environment('secrets = ["S"]\noptional_secrets = ["T"]'), everything) == (
        "secret S",
        "secret T, if there is one",
    )


def test_the_table_of_the_docs_is_the_table_of_the_code() -> None:
    rows = re.findall(r"^\| `(\w+)` \|.*\| (free|bounded|asks) \|", DOCS.read_text(), re.MULTILINE)
    assert {name: Right(right) for name, right in rows} == RIGHTS
