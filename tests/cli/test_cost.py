"""`holdfast cost`, `holdfast budget` and `holdfast model price`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.cli.conftest import Cli

from holdfast.api.model.budgets import Cost
from holdfast.cli.model.cost import describe_spent
from holdfast.cli.run.options import make_budget, split_models


def test_a_price_is_unknown_until_it_is_set(cli: Cli) -> None:
    unknown = cli("model", "price", "mine/qwen3")
    assert unknown.exit == 0, unknown.err
    assert "unknown" in unknown.out
    assert "holdfast model price mine/qwen3 --input DOLLARS" in unknown.out
    made = cli("model", "price", "mine/qwen3", "--input", "0", "--output", "0.5", "--json")
    assert made.json()["prices"] == [
        {
            "model": "mine/qwen3",
            "price": {
                "input": 0,
                "output": 0.5,
                "cacheRead": None,
                "cacheWrite": None,
                "cacheWrite1h": None,
                "above": None,
            },
            "isOwn": True,
        }
    ]
    listed = cli("model", "price")
    assert "mine/qwen3" in listed.out
    assert "anthropic/claude-sonnet-5" in listed.out
    assert cli("model", "price", "mine/qwen3", "--remove").exit == 0
    assert "unknown" in cli("model", "price", "mine/qwen3").out


def test_many_prices_come_from_a_file(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "prices.json"
    file.write_text(
        json.dumps({"mine/a": {"input": 1, "output": 2, "cache_read": 0.1}, "mine/b/c": {"input": 3, "output": 4}})
    )
    made = cli("model", "price", "--file", str(file), "--json").json()["prices"]
    assert [(each["model"], each["price"]["cacheRead"]) for each in made] == [("mine/a", 0.1), ("mine/b/c", None)]
    for model in ("mine/a", "mine/b/c"):
        assert cli("model", "price", model, "--remove").exit == 0
    file.write_text("[1]")
    refused = cli("model", "price", "--file", str(file))
    assert refused.exit == 2
    assert "has no prices" in refused.err


@pytest.mark.parametrize(
    "words",
    [
        ("model", "price", "--input", "1", "--output", "1"),
        ("model", "price", "mine/x", "--input", "1"),
        ("model", "price", "mine", "--input", "1", "--output", "1"),
        ("model", "price", "--remove"),
        ("cost", "--tree"),
        ("budget", "set", "--cost", "1"),
        ("budget", "set", "t-1", "--day", "--cost", "1"),
        ("budget", "set", "--day"),
    ],
)
def test_what_does_not_go_together_is_refused_before_anything_is_asked(cli: Cli, words: tuple[str, ...]) -> None:
    refused = cli(*words)
    assert refused.exit == 2
    assert "holdfast" in refused.err


def test_a_budget_is_set_listed_and_removed(cli: Cli) -> None:
    thread = cli("thread", "new", "budgets", "--json").json()["id"]
    made = cli("budget", "set", thread, "--tree", "--cost", "20")
    assert made.exit == 0, made.err
    assert "$20.00" in made.out
    assert cli("budget", "set", "--day", "--tokens", "5000000").exit == 0
    listed = cli("budget", "list")
    assert f"tree {thread}" in listed.out
    assert "5,000,000 tokens" in listed.out
    assert cli("budget", "remove", thread, "--tree").exit == 0
    assert cli("budget", "remove", "--day").exit == 0
    assert "no budgets" in cli("budget", "list").out
    assert cli("budget", "remove", "--day").exit == 3
    assert "no calls" in cli("cost", thread, "--tree", "--since", "1d").out
    assert cli("cost", thread, "--json").json()["total"]["calls"] == 0


@pytest.mark.parametrize(
    ("cost", "shown"),
    [
        (Cost(calls=2, cost=1.5), "$1.50"),
        (Cost(calls=2, cost=1.5, unpriced=1), "at least $1.50"),
        (Cost(calls=2, unpriced=2), "unknown"),
        (Cost(calls=2, cost=0, unpriced=1), "unknown"),
        (Cost(calls=2, cost=0), "$0.00"),
        (Cost(), "–"),
        (None, "–"),
    ],
)
def test_an_unknown_cost_is_never_shown_as_nothing(cost: Cost | None, shown: str) -> None:
    found = describe_spent(cost)
    assert (found if isinstance(found, str) else found.text) == shown


@pytest.mark.parametrize(
    ("given", "first", "others"),
    [(None, None, ()), ("a", "a", ()), ("a,b/c, d", "a", ("b/c", "d")), (",", None, ())],
)
def test_several_models_are_a_chain(given: str | None, first: str | None, others: tuple[str, ...]) -> None:
    assert split_models(given) == (first, others)
    assert make_budget(None, None) is None
