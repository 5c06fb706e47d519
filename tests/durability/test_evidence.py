"""The judgement of a fault trial finds every kind of loss, and nothing where all is well."""

from __future__ import annotations

import pytest
from tests.durability.evidence import Acknowledgement, Delivery, Ledger, compare, judge

ONE = Delivery("ann", 0, (b"ann 0",))
BATCH = Delivery("ann", 1, (b"ann 1", b"ann 2"))
OTHER = Delivery("bob", 0, (b"bob 0",))
LOST = Delivery("ann", 2, (b"ann 3", b"ann 4"))


def ledger() -> Ledger:
    acknowledged = {
        ONE: Acknowledgement("005", 1),
        BATCH: Acknowledgement("015", 1),
        OTHER: Acknowledgement(None, 2),
    }
    return Ledger([ONE, OTHER, BATCH, LOST], acknowledged)


@pytest.mark.parametrize(
    "stored",
    [
        [b"ann 0", b"ann 1", b"ann 2", b"bob 0"],
        [b"bob 0", b"ann 0", b"ann 1", b"ann 2"],
        [b"ann 0", b"bob 0", b"ann 1", b"ann 2", b"ann 3", b"ann 4"],
    ],
    ids=["as written", "writers in another order", "with the one of unknown fate"],
)
def test_a_stream_that_kept_its_word_has_no_problems(stored: list[bytes]) -> None:
    assert judge(ledger(), stored) == []


@pytest.mark.parametrize(
    ("stored", "problem"),
    [
        ([b"ann 0", b"ann 1", b"ann 2"], "bob, delivery 0 (life 2 of the server) was acknowledged and is missing"),
        ([b"ann 0", b"ann 0", b"ann 1", b"ann 2", b"bob 0"], "ann, message 0.0 (2 times) is there more than once"),
        ([b"ann 0", b"ann 1", b"bob 0"], "ann, delivery 1: 1 of 2 messages is there in part"),
        (
            [b"ann 0", b"ann 1", b"bob 0", b"ann 2"],
            "ann, delivery 1: its messages do not stand together is there in part",
        ),
        ([b"ann 0", b"ann 1", b"ann 2", b"bob 0", b"ann 3"], "ann, delivery 2: 1 of 2 messages is there in part"),
        (
            [b"ann 1", b"ann 2", b"ann 0", b"bob 0"],
            "ann, message 0.0 comes after 1.1 is out of its writer's order",
        ),
        ([b"ann 1", b"ann 2", b"ann 0", b"bob 0"], "has an offset that does not fit its place"),
        ([b"ann 0", b"ann 1", b"ann 2", b"bob 0", b"ann"], "'ann' was never sent as it stands"),
    ],
)
def test_what_went_wrong_is_told(stored: list[bytes], problem: str) -> None:
    assert any(problem in told for told in judge(ledger(), stored))


def test_many_problems_of_one_kind_are_counted_rather_than_listed() -> None:
    told = judge(ledger(), [b"ann 0", b"ann 1", b"ann 2", b"bob 0", *(b"torn %d" % n for n in range(100))])
    assert len(told) < 12
    assert "and 92 more" in told[-1]


@pytest.mark.parametrize(
    ("seen", "told"),
    [
        ([b"a", b"b"], []),
        ([b"a"], ["the reader saw 1 messages, where the stream has 2"]),
        ([b"b", b"a"], ["the reader saw 'b' as message 0, where the stream has 'a'"]),
    ],
)
def test_a_reader_is_compared_with_the_stream(seen: list[bytes], told: list[str]) -> None:
    assert compare("the reader", seen, [b"a", b"b"]) == told
