"""Outbox: what a context said is given out under a claim, and again when that has run out."""

from __future__ import annotations

import itertools
from typing import Any

from holdfast.guest.kernel.outbox import MOST_CALLS, Outbox


def leases(seconds: float = 10.0) -> Outbox:
    numbers = itertools.count(1)
    return Outbox(seconds, lambda: f"claim-{next(numbers)}")


def out(text: str) -> tuple[dict[str, Any], bytes]:
    return {"t": "out", "e": "x-1"}, text.encode()


def call(id: str, execution: str = "x-1") -> tuple[dict[str, Any], bytes]:
    return {"t": "call", "id": id, "e": execution}, f"call {id}".encode()


def test_messages_are_given_out_in_order_and_no_more_until_they_are_confirmed() -> None:
    kept = leases()
    kept.add(*out("a"))
    kept.add(*out("b"))
    assert kept.take(0, 100) == ("claim-1", [b"a", b"b"])
    kept.add(*out("c"))
    assert kept.take(0, 100) is None
    assert not kept.confirm("claim-9", 0)
    assert kept.take(0, 100) is None
    assert kept.confirm("claim-1", 0)
    assert not kept.confirm("claim-1", 0)
    assert kept.take(0, 100) == ("claim-2", [b"c"])
    assert kept.confirm("claim-2", 0)
    assert (kept.size, kept.is_empty) == (0, True)


def test_what_was_not_confirmed_in_time_is_given_out_again_in_its_place() -> None:
    kept = leases(10)
    kept.add(*out("a"))
    assert kept.take(0, 100) == ("claim-1", [b"a"])
    kept.add(*out("b"))
    assert kept.take(9.9, 100) is None
    assert kept.next_end() == 10
    assert kept.take(10, 100) == ("claim-2", [b"a", b"b"])
    assert not kept.confirm("claim-1", 11)
    assert kept.confirm("claim-2", 11)


def test_a_call_stays_claimed_until_it_is_answered_and_only_its_claim_answers_it() -> None:
    kept = leases(10)
    kept.add(*call("c"))
    assert kept.take(0, 100) == ("claim-1", [b"call c"])
    assert not kept.answer("c", "claim-0", 12)
    kept.confirm("claim-1", 1)
    assert kept.renew("c", "claim-1", 9)
    assert kept.take(15, 100) is None  # renewed until 19
    assert not kept.answer("c", "claim-0", 12)
    assert not kept.answer("d", "claim-1", 12)
    assert kept.answer("c", "claim-1", 12)
    assert not kept.answer("c", "claim-1", 12)


def test_who_answers_has_what_came_with_the_call() -> None:
    kept = leases(10)
    kept.add(*out("a"))
    kept.add(*call("c"))
    kept.take(0, 100)
    assert kept.answer("c", "claim-1", 1)
    assert kept.is_empty


def test_a_call_whose_lease_has_run_out_is_reissued_and_the_old_claim_is_stale() -> None:
    kept = leases(10)
    kept.add(*call("c"))
    kept.take(0, 100)
    kept.confirm("claim-1", 1)
    assert kept.take(11, 100) == ("claim-2", [b"call c"])
    assert not kept.renew("c", "claim-1", 11)
    kept.confirm("claim-2", 12)
    assert not kept.answer("c", "claim-1", 12)
    assert kept.answer("c", "claim-2", 12)


def test_a_duplicate_call_is_refused_whatever_became_of_the_first() -> None:
    kept = leases()
    assert kept.add(*call("c")) is None
    assert kept.add(*call("c")) == "again"
    kept.take(0, 100)
    assert kept.add(*call("c")) == "again"
    kept.confirm("claim-1", 0)
    assert kept.add(*call("c")) == "again"
    kept.answer("c", "claim-1", 12)
    assert kept.add(*call("c")) == "again"
    assert kept.is_empty


def test_calls_are_bounded() -> None:
    kept = leases()
    for number in range(MOST_CALLS):
        assert kept.add(*call(f"c-{number}")) is None
    assert kept.add(*call("more")) == "full"
    kept.take(0, 50)
    assert kept.add(*call("more")) == "full"
    kept.confirm("claim-1", 0)
    assert kept.add(*call("more")) == "full"
    assert kept.answer("c-0", "claim-1", 12)
    assert kept.add(*call("more")) is None


def test_a_claim_is_bounded_but_for_a_message_that_is_larger_alone() -> None:
    kept = leases()
    for text in ("x" * 60, "y" * 30, "z" * 30):
        kept.add(*out(text))
    assert kept.take(0, 50) == ("claim-1", [b"x" * 60])
    kept.confirm("claim-1", 0)
    assert kept.take(0, 50) == ("claim-2", [b"y" * 30])


def test_calls_of_an_execution_that_is_over_or_that_were_cancelled_are_nobodys() -> None:
    kept = leases(10)
    kept.add(*call("c-1"))
    kept.add(*call("c-2"))
    kept.add(*call("c-3", "x-2"))
    kept.add({"t": "cancel", "id": "c-1"}, b"cancel")
    kept.add({"t": "done", "id": "x-1"}, b"done")
    kept.take(0, 1000)
    kept.confirm("claim-1", 0)
    assert not kept.answer("c-1", "claim-1", 12)
    assert not kept.answer("c-2", "claim-1", 12)
    assert kept.answer("c-3", "claim-1", 12)
    assert kept.take(100, 1000) is None


def test_output_that_nobody_confirmed_is_there_for_the_next_host() -> None:
    kept = leases()
    kept.add(*out("a"))
    kept.take(0, 100)
    kept.add(*call("c"))
    kept.add(*out("b"))
    assert [said.message for said in kept.printed()] == [b"a", b"b"]
