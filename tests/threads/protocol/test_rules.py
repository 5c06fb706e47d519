"""The protocol's decisions, by table."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from holdfast.api.errors import Conflict, InvalidRequest, Refused
from holdfast.api.errors.threads import Closed, ContentTypeMismatch, ProducerGap, SequenceConflict, StaleEpoch
from holdfast.threads.protocol.rules import (
    ACCEPT,
    Accept,
    Duplicate,
    ExistingStream,
    check_same,
    deadline_of,
    decide_append,
)
from holdfast.threads.store import AppendRequest, ForkPoint, Producer, StreamConfig


@dataclass
class State:
    path: str = "a"
    media_type: str = "application/json"
    tail: int = 7
    closed: bool = False
    closed_by: Producer | None = None
    last_seq: str | None = None


P = Producer
DATA = b"1,\n"


@pytest.mark.parametrize(
    ("state", "known", "request_", "expected"),
    [
        # plain appends
        (State(), None, AppendRequest(DATA, "application/json"), ACCEPT),
        (State(), None, AppendRequest(DATA, "Application/JSON; charset=utf-8"), ACCEPT),
        (State(), None, AppendRequest(DATA, "text/plain"), ContentTypeMismatch),
        (State(), None, AppendRequest(DATA, None), ACCEPT),
        # Stream-Seq is compared byte by byte
        (State(last_seq="2"), None, AppendRequest(DATA, seq="10"), SequenceConflict),
        (State(last_seq="09"), None, AppendRequest(DATA, seq="10"), ACCEPT),
        (State(last_seq="a"), None, AppendRequest(DATA, seq="B"), SequenceConflict),
        (State(last_seq="a"), None, AppendRequest(DATA), ACCEPT),
        # producers
        (State(), None, AppendRequest(DATA, producer=P("p", 0, 0)), ACCEPT),
        (State(), None, AppendRequest(DATA, producer=P("p", 7, 0)), ACCEPT),
        (State(), None, AppendRequest(DATA, producer=P("p", 0, 1)), ProducerGap),
        (State(), (0, 4), AppendRequest(DATA, producer=P("p", 0, 5)), ACCEPT),
        (State(), (0, 4), AppendRequest(DATA, producer=P("p", 0, 6)), ProducerGap),
        (State(), (0, 4), AppendRequest(DATA, producer=P("p", 0, 4)), Duplicate(P("p", 0, 4), closed=False)),
        (State(), (0, 4), AppendRequest(DATA, producer=P("p", 0, 1)), Duplicate(P("p", 0, 4), closed=False)),
        (State(), (3, 4), AppendRequest(DATA, producer=P("p", 2, 5)), StaleEpoch),
        (State(), (3, 4), AppendRequest(DATA, producer=P("p", 4, 0)), ACCEPT),
        (State(), (3, 4), AppendRequest(DATA, producer=P("p", 4, 1)), InvalidRequest),
        # a retry deduplicates before its Stream-Seq is looked at
        (
            State(last_seq="b"),
            (0, 4),
            AppendRequest(DATA, seq="b", producer=P("p", 0, 4)),
            Duplicate(P("p", 0, 4), False),
        ),
        # closed comes before everything
        (State(closed=True), None, AppendRequest(DATA, "text/plain"), Closed),
        (State(closed=True), None, AppendRequest(close=True), Duplicate(None, closed=True)),
        (State(closed=True), None, AppendRequest(DATA, close=True), Closed),
        (
            State(closed=True, closed_by=P("p", 0, 4)),
            (0, 4),
            AppendRequest(DATA, producer=P("p", 0, 4)),
            Duplicate(P("p", 0, 4), closed=True),
        ),
        (State(closed=True, closed_by=P("p", 0, 4)), (0, 4), AppendRequest(DATA, producer=P("p", 0, 3)), Closed),
        (State(closed=True), None, AppendRequest(close=True, producer=P("p", 0, 0)), Closed),
    ],
)
def test_an_append_is_judged(
    state: State,
    known: tuple[int, int] | None,
    request_: AppendRequest,
    expected: Accept | Duplicate | type[Refused],
) -> None:
    if isinstance(expected, type):
        with pytest.raises(expected):
            decide_append(state, request_, lambda _: known)
    else:
        assert decide_append(state, request_, lambda _: known) == expected


FORK = ForkPoint("source", 30, 2)


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        (StreamConfig("text/plain"), StreamConfig("TEXT/PLAIN; charset=utf-8"), True),
        (StreamConfig("text/plain"), StreamConfig("text/html"), False),
        (StreamConfig("text/plain", ttl_seconds=5), StreamConfig("text/plain", ttl_seconds=5), True),
        (StreamConfig("text/plain", ttl_seconds=5), StreamConfig("text/plain"), False),
        (StreamConfig("text/plain", expires_at=5), StreamConfig("text/plain", expires_at=6), False),
        (StreamConfig("text/plain", fork=FORK), StreamConfig(fork=FORK), True),
        (StreamConfig("text/plain", fork=FORK), StreamConfig(fork=replace(FORK, offset=None)), True),
        (StreamConfig("text/plain", fork=FORK), StreamConfig(fork=replace(FORK, offset=31)), False),
        (StreamConfig("text/plain", fork=FORK), StreamConfig(fork=replace(FORK, sub_offset=0)), False),
        (StreamConfig("text/plain", fork=FORK), StreamConfig("text/plain"), False),
    ],
)
def test_two_requests_make_one_stream_when_they_ask_for_the_same(
    first: StreamConfig, second: StreamConfig, same: bool
) -> None:
    existing = ExistingStream("a", "text/plain", closed=False, config=first)
    if same:
        check_same(existing, second)
    else:
        with pytest.raises(Conflict):
            check_same(existing, second)


def test_closing_is_part_of_what_a_stream_is() -> None:
    closed = ExistingStream("a", "text/plain", closed=True, config=StreamConfig("text/plain"))
    check_same(closed, StreamConfig("text/plain", closed=True))
    with pytest.raises(Conflict):
        check_same(closed, StreamConfig("text/plain"))


@pytest.mark.parametrize(
    ("ttl", "expires_at", "deadline"), [(None, None, None), (5, None, 6000), (None, 1234, 1234), (0, None, 1000)]
)
def test_a_ttl_counts_from_the_last_access(ttl: int | None, expires_at: int | None, deadline: int | None) -> None:
    assert deadline_of(ttl, expires_at, last_access=1000) == deadline
