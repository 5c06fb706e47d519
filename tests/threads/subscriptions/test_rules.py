"""The decisions, by table."""

from __future__ import annotations

from dataclasses import replace

import pytest

from holdfast.threads.protocol.offsets import format_offset_text
from holdfast.threads.subscriptions import rules
from holdfast.threads.subscriptions.errors import (
    AlreadyClaimed,
    Fenced,
    InvalidAck,
    InvalidSubscription,
    NoPendingWork,
    SubscriptionError,
    SubscriptionExists,
)
from holdfast.threads.subscriptions.links import Links
from holdfast.threads.subscriptions.records import (
    BEFORE_FIRST,
    Ack,
    Kind,
    Link,
    Phase,
    Status,
    Subscription,
    SubscriptionConfig,
    Wake,
    WakeReport,
    dump_subscription,
    load_subscription,
)

NOW = 1_800_000_000_000
PULL = SubscriptionConfig(Kind.PULL_WAKE, "events/*", (), None, "wakes", 5_000, None)
HOOK = SubscriptionConfig(Kind.WEBHOOK, "events/*", ("a", "b"), "https://hooks.example.com/", None, 5_000, "mine")
WAKE = Wake("w_1", "events/a", {"events/a": 30})
LINKS = {"events/a": Link(10, glob=True), "events/b": Link(20, glob=True)}
TAILS = {"events/a": 30, "events/b": 20}


def pull(wake: Wake | None = None, generation: int = 1) -> Subscription:
    return Subscription("s", PULL, NOW, generation=generation, wake=wake)


def hook(wake: Wake | None = None, generation: int = 1) -> Subscription:
    return Subscription("s", HOOK, NOW, generation=generation, wake=wake)


CLAIMED = replace(WAKE, announced=True, holder="one", lease_until=NOW + 5_000)


@pytest.mark.parametrize("subscription", [pull(), pull(CLAIMED), hook(WAKE), replace(hook(WAKE), attempts=2)])
def test_what_is_written_down_is_read_the_same(subscription: Subscription) -> None:
    assert load_subscription(dump_subscription(subscription)) == subscription


@pytest.mark.parametrize(
    ("subscription", "phase"),
    [
        (pull(), Phase.IDLE),
        (pull(WAKE), Phase.ANNOUNCING),
        (pull(replace(WAKE, announced=True)), Phase.WAITING),
        (pull(CLAIMED), Phase.LEASED),
        (hook(replace(WAKE, announced=True, lease_until=NOW)), Phase.LEASED),
    ],
)
def test_a_subscription_stands_in_one_phase(subscription: Subscription, phase: Phase) -> None:
    assert subscription.phase is phase


def test_only_the_same_subscription_is_confirmed() -> None:
    rules.check_same(pull(), PULL)
    for other in (replace(PULL, pattern="x/*"), replace(PULL, lease_ttl_ms=6_000), replace(PULL, streams=("a",)), HOOK):
        with pytest.raises(SubscriptionExists):
            rules.check_same(pull(), other)


def test_a_wake_counts_the_generation_up_and_remembers_what_it_announces() -> None:
    woken = rules.begin_wake(pull(generation=7), "w_8", [("events/a", 30), ("events/b", 21)])
    assert woken.generation == 8
    assert woken.wake == Wake("w_8", "events/a", {"events/a": 30, "events/b": 21})


@pytest.mark.parametrize(
    ("subscription", "pending", "refusal"),
    [
        (hook(WAKE), [("events/a", 30)], InvalidSubscription),
        (pull(CLAIMED), [("events/a", 30)], AlreadyClaimed),
        (pull(), [], NoPendingWork),
        (pull(replace(WAKE, announced=True)), [], NoPendingWork),
    ],
)
def test_a_claim_is_refused(
    subscription: Subscription, pending: list[tuple[str, int]], refusal: type[SubscriptionError]
) -> None:
    with pytest.raises(refusal):
        rules.claim(subscription, "two", "w_2", pending, NOW)


def test_a_claim_takes_the_open_wake_or_opens_one() -> None:
    taken = rules.claim(pull(replace(WAKE, announced=True)), "one", "w_2", [("events/a", 30)], NOW)
    assert taken == pull(CLAIMED)
    opened = rules.claim(pull(), "one", "w_2", [("events/a", 30)], NOW)
    assert opened.generation == 2
    assert opened.wake == replace(CLAIMED, id="w_2")


@pytest.mark.parametrize(
    ("subscription", "token_generation", "report"),
    [
        (pull(), 1, WakeReport("w_1", 1)),
        (pull(CLAIMED), 0, WakeReport("w_1", 1)),
        (pull(CLAIMED), 1, WakeReport("w_1", 2)),
        (pull(CLAIMED), 1, WakeReport("w_0", 1)),
        (pull(CLAIMED), 1, WakeReport(None, 1)),
        (pull(CLAIMED), 1, WakeReport("w_1", None)),
        (pull(WAKE), 1, WakeReport("w_1", 1)),
    ],
    ids=["no wake", "old token", "other generation", "other wake", "no wake id", "no generation", "not claimed"],
)
def test_whoever_does_not_hold_the_wake_is_fenced(
    subscription: Subscription, token_generation: int, report: WakeReport
) -> None:
    with pytest.raises(Fenced):
        rules.report(subscription, token_generation, report, LINKS, TAILS, NOW)
    with pytest.raises(Fenced):
        rules.release(subscription, token_generation, report)


def report_of(*acks: tuple[str, str], done: bool = False) -> WakeReport:
    return WakeReport("w_1", 1, tuple(Ack(*each) for each in acks), done)


@pytest.mark.parametrize(
    "ack",
    [
        ("events/x", format_offset_text(1)),
        ("events/a", "-1"),
        ("events/a", "now"),
        ("events/a", "7"),
        ("events/a", format_offset_text(9)),
        ("events/a", format_offset_text(31)),
    ],
    ids=["unknown stream", "before first", "now", "not an offset", "goes back", "past the tail"],
)
def test_a_wrong_acknowledgement_refuses_the_whole_report(ack: tuple[str, str]) -> None:
    with pytest.raises(InvalidAck):
        rules.report(pull(CLAIMED), 1, report_of(("events/b", format_offset_text(20)), ack), LINKS, TAILS, NOW)


def test_a_report_acknowledges_and_extends_the_lease() -> None:
    outcome = rules.report(pull(CLAIMED), 1, report_of(("events/a", format_offset_text(25))), LINKS, TAILS, NOW + 1_000)
    assert outcome.links == {"events/a": Link(25, glob=True)}
    assert outcome.subscription == pull(replace(CLAIMED, lease_until=NOW + 6_000))


def test_acknowledging_a_stream_that_was_deleted_meanwhile_does_no_harm() -> None:
    outcome = rules.report(pull(CLAIMED), 1, report_of(("events/a", format_offset_text(25))), {}, {}, NOW)
    assert outcome.links == {}


def test_done_ends_the_wake_and_keeps_the_generation() -> None:
    assert rules.report(pull(CLAIMED), 1, report_of(done=True), LINKS, TAILS, NOW).subscription == pull()
    assert rules.release(pull(CLAIMED), 1, report_of()) == pull()


def test_a_report_before_the_answer_proves_that_the_webhook_arrived() -> None:
    outcome = rules.report(replace(hook(WAKE), attempts=1), 1, report_of(), LINKS, TAILS, NOW)
    assert outcome.subscription.phase is Phase.LEASED
    assert outcome.subscription.status is Status.ACTIVE


@pytest.mark.parametrize(
    ("wake", "has_pending", "after", "ends"),
    [
        (CLAIMED, True, 4_999, False),
        (CLAIMED, True, 5_000, True),
        (CLAIMED, False, 0, False),
        (WAKE, True, 999_999, False),
        (WAKE, False, 0, True),
        (replace(WAKE, announced=True), False, 0, True),
    ],
)
def test_a_wake_lapses_with_its_lease_or_when_nobody_has_it_and_nothing_pends(
    wake: Wake, has_pending: bool, after: int, ends: bool
) -> None:
    assert (rules.lapse(pull(wake), has_pending, NOW + after) == pull()) is ends


def test_an_accepted_webhook_starts_the_lease() -> None:
    outcome = rules.announced(hook(WAKE), 1, False, LINKS, NOW)
    assert outcome is not None
    assert outcome.subscription == hook(replace(WAKE, announced=True, lease_until=NOW + 5_000))


def test_a_webhook_that_is_done_acknowledges_what_it_was_told_of_and_never_goes_back() -> None:
    links = {"events/a": Link(BEFORE_FIRST, glob=True), "events/b": Link(99, glob=True)}
    wake = replace(WAKE, snapshot={"events/a": 30, "events/b": 20, "events/gone": 5})
    outcome = rules.announced(hook(wake), 1, True, links, NOW)
    assert outcome is not None
    assert outcome.links == {"events/a": Link(30, glob=True)}
    assert outcome.subscription == hook()


@pytest.mark.parametrize("subscription", [hook(), hook(WAKE, generation=2)])
def test_the_outcome_of_an_older_announcement_changes_nothing(subscription: Subscription) -> None:
    assert rules.announced(subscription, 1, True, LINKS, NOW) is None
    assert rules.announcement_failed(subscription, 1, "no", NOW, 0.5) is None


def test_an_announced_pull_wake_waits_without_a_lease() -> None:
    outcome = rules.announced(pull(WAKE), 1, False, LINKS, NOW)
    assert outcome is not None
    assert outcome.subscription.phase is Phase.WAITING


def test_a_failure_is_tried_again_later_and_shows() -> None:
    failed = rules.announcement_failed(hook(WAKE), 1, "it answered 500", NOW, 0.5)
    assert failed is not None
    assert (failed.status, failed.attempts, failed.next_attempt_at) == (Status.FAILED, 1, NOW + 1_000)
    assert failed.last_error == "it answered 500"


def test_retries_wait_1_to_60_seconds_twice_as_long_each_time() -> None:
    assert [rules.retry_delay(attempts, 0.5) for attempts in range(1, 10)] == [
        *(1_000, 2_000, 4_000, 8_000, 16_000, 32_000),
        *(60_000, 60_000, 60_000),
    ]
    for attempts in (1, 2, 5, 7, 10_000):
        low, high = rules.retry_delay(attempts, 0.0), rules.retry_delay(attempts, 1.0)
        assert 1_000 <= low < high <= 60_000


def test_streams_pend_in_the_order_in_which_they_began_to() -> None:
    links = Links({path: Link(0, glob=True) for path in "abc"})
    for path in "cab":
        assert links.advance(path, 5)
    links.set("c", Link(5, glob=True))
    links.advance("c", 6)
    assert links.pending(10) == [("a", 5), ("b", 5), ("c", 6)]
    assert links.pending(10, {"a": Link(5), "b": None, "c": Link(5)}) == [("c", 6)]
    assert [path for path, _ in links.pending_first(2)] == ["a", "b"]


def test_a_new_empty_stream_pends_and_a_stream_never_shrinks() -> None:
    links = Links({"new": Link(BEFORE_FIRST, glob=True), "named": Link(0, explicit=True)})
    assert links.advance("new", 0)
    assert not links.advance("named", 0)
    links.advance("named", 9)
    links.advance("named", 4)
    assert links.tail("named") == 9
