"""One budget for a whole tree of recursion."""

from __future__ import annotations

import threading

import pytest

from holdfast.api.errors.interpreters import BudgetExceeded, InvalidInterpreter
from holdfast.interpreter.bridge.budget import Budget, Limits, Price, Spent, decide


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_the_defaults_are_those_that_users_are_told() -> None:
    limits = Limits()
    assert (limits.calls, limits.call_seconds, limits.depth, limits.iterations, limits.delegates) == (50, 60, 2, 30, 8)
    assert (limits.tokens, limits.cost, limits.seconds) == (None, None, None)


@pytest.mark.parametrize(
    ("limits", "spent", "seconds", "calls", "why"),
    [
        (Limits(), Spent(calls=49), 0, 1, None),
        (Limits(), Spent(calls=50), 0, 1, "0 of 50 model calls are left, too few for this call: continue"),
        (Limits(), Spent(calls=40), 0, 10, None),
        (Limits(), Spent(calls=40), 0, 11, "too few for these 11 calls: ask fewer at once, or continue"),
        (Limits(calls=None), Spent(calls=10**6), 0, 10**6, None),
        (Limits(tokens=100), Spent(tokens=99), 0, 1, None),
        (Limits(tokens=100), Spent(tokens=100), 0, 1, "all 100 tokens are spent"),
        (Limits(cost=0.5), Spent(cost=0.49), 0, 1, None),
        (Limits(cost=0.5), Spent(cost=0.5), 0, 1, r"all \$0.5 are spent"),
        (Limits(cost=0.5), Spent(unpriced=1), 0, 1, "the cost of a call of this model is unknown"),
        (Limits(), Spent(unpriced=1), 0, 1, None),
        (Limits(seconds=10), Spent(), 9.9, 1, None),
        (Limits(seconds=10), Spent(), 10, 1, "the time limit of 10 s is over"),
        (Limits(calls=0), Spent(), 0, 1, "0 of 0 model calls"),
    ],
)
def test_whether_calls_may_be_made(limits: Limits, spent: Spent, seconds: float, calls: int, why: str | None) -> None:
    said = decide(limits, spent, seconds, calls)
    if why is None:
        assert said is None
    else:
        with pytest.raises(BudgetExceeded, match=why):
            raise BudgetExceeded(said or "it may")


def test_a_claim_takes_all_or_nothing_and_what_was_not_used_comes_back() -> None:
    budget = Budget(Limits(calls=10))
    budget.claim(8)
    with pytest.raises(BudgetExceeded):
        budget.claim(3)
    assert budget.spent.calls == 8
    budget.give_back(6)
    budget.claim(8)
    assert budget.spent.calls == 10


def test_tokens_and_cost_add_up_and_a_price_stands_in_for_what_nobody_said() -> None:
    budget = Budget(Limits(cost=1.0, price=Price(input=2.0, output=10.0)))
    assert budget.spend(100_000, 10_000, None) == pytest.approx(0.3)
    assert budget.spend(1, 1, 0.25) == 0.25
    assert budget.spent.tokens == 110_002
    assert budget.spent.cost == pytest.approx(0.55)
    assert budget.spent.unpriced == 0
    assert Budget().spend(5, 5, None) is None


def test_time_is_that_of_the_whole_tree() -> None:
    clock = Clock()
    budget = Budget(Limits(seconds=100), clock=clock)
    assert budget.time_for(60) == 60
    clock.now += 70
    assert budget.time_for(60) == 30
    budget.check_time()
    clock.now += 40
    assert budget.seconds_left == 0
    with pytest.raises(BudgetExceeded, match="100 s"):
        budget.check_time()
    with pytest.raises(BudgetExceeded, match="100 s"):
        budget.claim()


def test_no_call_is_counted_twice_or_lost_between_threads() -> None:
    budget = Budget(Limits(calls=500))
    refused = []

    def spend() -> None:
        for _ in range(200):
            try:
                budget.claim()
                budget.spend(1, 0, 0.5)
            except BudgetExceeded:
                refused.append(1)

    threads = [threading.Thread(target=spend) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (budget.spent.calls, budget.spent.tokens, budget.spent.cost, len(refused)) == (500, 500, 250.0, 300)


@pytest.mark.parametrize("wrong", [{"calls": -1}, {"cost": float("nan")}, {"call_seconds": 0}, {"depth": -1}])
def test_limits_that_make_no_sense_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(InvalidInterpreter, match=next(iter(wrong))):
        Limits(**wrong)  # type: ignore[arg-type]
