"""The decisions about boxes, by table."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.boxes.conftest import SPEC

from holdfast.api.box.box import BoxInfo, Liveness, Metrics, Power
from holdfast.api.box.network import Network, NetworkPolicy
from holdfast.api.box.records import TOMBSTONES, BoxState
from holdfast.api.box.snapshots import Holding, Snapshot
from holdfast.api.box.spec import BoxSpec, Lifetime, OnIdle, VolumeMount
from holdfast.api.errors.boxes import BoxConflict, BoxDiffers, BoxUnreachable
from holdfast.boxes.labels import KEY, MOVED_FROM, MOVED_KEY, NODE
from holdfast.boxes.labels import SPEC as SPEC_LABEL
from holdfast.boxes.lifecycle import LIVE, PASSING, SETTLED, TRANSITIONS, move
from holdfast.boxes.rows import BoxRow
from holdfast.boxes.service.acquire_rules import (
    Create,
    Finish,
    Found,
    MarkGone,
    Replace,
    Restore,
    Resume,
    Start,
    changes,
    decide,
)
from holdfast.boxes.service.idle.idleness import Doing
from holdfast.boxes.service.reaper import (
    GRACE,
    STUCK,
    IdleAction,
    Use,
    drifted,
    is_abandoned,
    is_stuck,
    judge_unknown,
    to_prune,
    to_reap,
)
from holdfast.testing.store_suites.box_rows import NOW
from holdfast.testing.store_suites.box_rows import box_row as row

S = BoxState


def snapshot(of: BoxSpec = SPEC) -> Snapshot:
    return Snapshot("s-1", "dummy", "copy", Holding.VALUE, "b-0", None, 1, NOW, {KEY: "k", SPEC_LABEL: of.hash})


# The life of a box

MAY_FOLLOW = {
    S.CREATING: {S.RUNNING, S.DELETING, S.DELETED, S.GONE},
    S.RUNNING: {S.STOPPING, S.STOPPED, S.HIBERNATING, S.PAUSED, S.MOVING, S.DELETING, S.GONE},
    S.STOPPING: {S.STOPPED, S.RUNNING, S.PAUSED, S.DELETING, S.GONE},
    S.STOPPED: {S.STARTING, S.RUNNING, S.PAUSED, S.DELETING, S.GONE},
    S.STARTING: {S.RUNNING, S.STOPPED, S.PAUSED, S.DELETING, S.GONE},
    S.PAUSED: {S.WAKING, S.RUNNING, S.STOPPING, S.HIBERNATING, S.HIBERNATED, S.DELETING, S.GONE},
    S.HIBERNATING: {S.HIBERNATED, S.RUNNING, S.PAUSED, S.DELETING, S.GONE},
    S.HIBERNATED: {S.WAKING, S.RUNNING, S.STOPPED, S.PAUSED, S.DELETING, S.GONE},
    S.WAKING: {S.RUNNING, S.HIBERNATED, S.PAUSED, S.DELETING, S.GONE},
    S.MOVING: {S.RUNNING, S.STOPPING, S.STOPPED, S.PAUSED, S.DELETING, S.GONE},
    S.DELETING: {S.DELETED},
    S.DELETED: set(),
    S.GONE: set(),
}


@pytest.mark.parametrize("state", list(S))
@pytest.mark.parametrize("to", list(S))
def test_a_box_moves_as_the_table_says(state: BoxState, to: BoxState) -> None:
    if to in MAY_FOLLOW[state]:
        assert move(state, to) is to
    else:
        with pytest.raises(BoxConflict, match=f"{state} cannot become {to}"):
            move(state, to)


def test_every_state_is_live_or_dead_and_passes_or_is_settled() -> None:
    assert set(S) == LIVE | TOMBSTONES
    assert not LIVE & TOMBSTONES
    assert PASSING | SETTLED == LIVE
    assert set(TRANSITIONS) == set(S)


@given(st.lists(st.sampled_from(list(S))))
def test_whatever_happens_to_a_box_the_dead_stay_dead(demands: list[BoxState]) -> None:
    state, dead = S.CREATING, False
    for demand in demands:
        try:
            state = move(state, demand)
        except BoxConflict:
            continue
        assert not dead
        dead = state in TOMBSTONES


# Acquire

OTHER = replace(SPEC, env={"A": "1"})


@pytest.mark.parametrize(
    ("found", "decision"),
    [
        (Found(), Create()),
        (Found(snapshot=snapshot()), Restore(snapshot())),
        (Found(snapshot=snapshot(OTHER)), Create()),
        (Found(row(), liveness=Liveness.LIVE, power=Power.RUNNING), Resume(row())),
        (Found(row(S.STOPPED), liveness=Liveness.LIVE, power=Power.STOPPED), Start(row(S.STOPPED))),
        (Found(row(), liveness=Liveness.LIVE, power=Power.STOPPED), Start(row())),
        (Found(row(S.HIBERNATED), liveness=Liveness.LIVE, power=Power.STOPPED), Start(row(S.HIBERNATED))),
        (Found(row(S.PAUSED), liveness=Liveness.LIVE, power=Power.PAUSED), Start(row(S.PAUSED))),
        (Found(row(S.STOPPED), liveness=Liveness.LIVE, power=Power.RUNNING), Resume(row(S.STOPPED))),
        (Found(row(), liveness=Liveness.GONE, snapshot=snapshot()), MarkGone(row(), "dummy no longer has it")),
        (Found(row(spec=OTHER), liveness=Liveness.GONE), MarkGone(row(spec=OTHER), "dummy no longer has it")),
        (
            Found(row(spec=OTHER), liveness=Liveness.LIVE, power=Power.RUNNING, snapshot=snapshot()),
            Replace(row(spec=OTHER), ("env (A)",)),
        ),
        (Found(row(S.CREATING), abandoned=True), Finish(row(S.CREATING), "the process that was creating it died")),
        (Found(row(S.DELETING), abandoned=True), Finish(row(S.DELETING), "the process that was deleting it died")),
    ],
)
def test_what_is_found_decides_what_is_done(found: Found, decision: object) -> None:
    assert decide(found, SPEC) == decision


def test_a_box_of_another_spec_stays_where_it_is_not_to_be_replaced() -> None:
    found = Found(row(spec=OTHER), liveness=Liveness.LIVE, power=Power.RUNNING)
    with pytest.raises(BoxDiffers, match=r"env \(A\)"):
        decide(found, SPEC, replaces=False)
    same = Found(row(), liveness=Liveness.LIVE, power=Power.RUNNING)
    assert decide(same, SPEC, replaces=False) == Resume(row())
    assert decide(Found(), SPEC, replaces=False) == Create()


@pytest.mark.parametrize("state", [S.RUNNING, S.STOPPED, S.STOPPING, S.STARTING])
@pytest.mark.parametrize("wanted", [SPEC, OTHER])
def test_unknown_is_not_gone(state: BoxState, wanted: BoxSpec) -> None:
    with pytest.raises(BoxUnreachable):
        decide(Found(row(state), liveness=Liveness.UNKNOWN, snapshot=snapshot()), wanted)


@pytest.mark.parametrize("state", [S.CREATING, S.DELETING])
def test_what_somebody_is_at_is_left_to_them(state: BoxState) -> None:
    with pytest.raises(BoxConflict):
        decide(Found(row(state)), SPEC)


def test_a_one_shot_is_always_new() -> None:
    one_shot = replace(SPEC, lifetime=Lifetime.ONE_SHOT)
    assert decide(Found(row(), liveness=Liveness.LIVE, power=Power.RUNNING), one_shot) == Create()
    with pytest.raises(BoxConflict, match="cannot be acquired again"):
        decide(Found(row(spec=one_shot), liveness=Liveness.LIVE, power=Power.RUNNING), SPEC)


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        (replace(SPEC, labels={"a": "b"}, lifetime=Lifetime.EPHEMERAL, idle_seconds=3), ()),
        (replace(SPEC, memory=1 << 30, pids=9), ("memory default → 1073741824", "pids default → 9")),
        (replace(SPEC, env={"SECRET": "hush"}), ("env (SECRET)",)),
        (replace(SPEC, network=NetworkPolicy(Network.OPEN)), ()),
        (replace(SPEC, volumes=(VolumeMount("v", "/v"),)), ("volumes",)),
        (replace(SPEC, provider="local"), ("provider dummy → local",)),
    ],
)
def test_changes_are_named_without_secrets(wanted: BoxSpec, said: tuple[str, ...]) -> None:
    assert changes(SPEC, wanted) == said


# The reaper

EPHEMERAL = replace(SPEC, lifetime=Lifetime.EPHEMERAL, idle_seconds=60)
ONE_SHOT = replace(SPEC, lifetime=Lifetime.ONE_SHOT, idle_seconds=60)
HIBERNATING = replace(SPEC, on_idle=OnIdle.HIBERNATE, idle_seconds=60)
PAUSING = replace(SPEC, on_idle=OnIdle.PAUSE, idle_seconds=60)
QUIET = Use(Power.RUNNING, Doing.NOTHING, metrics=Metrics(0, 0, 1000))
SLEEPY = Use(Power.RUNNING, Doing.NOTHING, metrics=Metrics(1, 0, 0))
BUSY = Use(Power.RUNNING, Doing.WORK, metrics=Metrics(1, 0, 0))
OFF = Use(Power.STOPPED, Doing.UNKNOWN)
HELD = Use(Power.PAUSED, Doing.UNKNOWN)
LATER = NOW + 60_000


IDLE = IdleAction(OnIdle.DELETE, "idle for 60 s")


@pytest.mark.parametrize(
    ("the_row", "use", "now", "fate"),
    [
        (row(spec=EPHEMERAL), QUIET, LATER, IDLE),
        (row(spec=EPHEMERAL), QUIET, LATER - 1, None),
        (row(spec=EPHEMERAL), SLEEPY, LATER, IDLE),
        (row(spec=EPHEMERAL), replace(QUIET, last_work=NOW + 1), LATER, None),
        (row(spec=EPHEMERAL), BUSY, LATER, None),
        (row(spec=EPHEMERAL), Use(Power.RUNNING, Doing.UNKNOWN), LATER, None),
        (row(spec=EPHEMERAL), replace(QUIET, working=True), LATER, None),
        (row(S.STOPPED, EPHEMERAL), OFF, LATER, IDLE),
        (row(S.STOPPED, EPHEMERAL), OFF, LATER - 1, None),
        (row(S.HIBERNATED, EPHEMERAL), OFF, LATER, IDLE),
        (row(S.PAUSED, EPHEMERAL), HELD, LATER, IDLE),
        (row(spec=replace(EPHEMERAL, idle_seconds=None)), QUIET, LATER, None),
        (
            row(spec=replace(EPHEMERAL, idle_seconds=None)),
            QUIET,
            NOW + 900_000,
            IdleAction(OnIdle.DELETE, "idle for 900 s"),
        ),
        (row(spec=SPEC), QUIET, NOW * 2, None),
        (row(S.STOPPED, SPEC), OFF, NOW * 2, None),
        (row(spec=replace(SPEC, on_idle=OnIdle.DELETE, idle_seconds=60)), QUIET, LATER, IDLE),
        (row(spec=replace(EPHEMERAL, on_idle=OnIdle.KEEP)), QUIET, NOW * 2, None),
        (row(spec=HIBERNATING), QUIET, LATER, IdleAction(OnIdle.HIBERNATE, "idle for 60 s")),
        (row(spec=HIBERNATING), SLEEPY, LATER, IdleAction(OnIdle.HIBERNATE, "idle for 60 s")),
        (row(spec=HIBERNATING), BUSY, LATER, None),
        (row(S.PAUSED, HIBERNATING), HELD, LATER, IdleAction(OnIdle.HIBERNATE, "idle for 60 s")),
        (row(S.HIBERNATED, HIBERNATING), OFF, NOW * 2, None),
        (row(S.STOPPED, HIBERNATING), OFF, NOW * 2, None),
        (row(spec=PAUSING), QUIET, LATER, IdleAction(OnIdle.PAUSE, "idle for 60 s")),
        (row(S.PAUSED, PAUSING), HELD, NOW * 2, None),
        (
            row(spec=ONE_SHOT),
            replace(QUIET, worked=True),
            NOW,
            IdleAction(OnIdle.DELETE, "one-shot, and its work has ended"),
        ),
        (row(spec=ONE_SHOT), replace(SLEEPY, worked=True), NOW, None),
        (row(spec=ONE_SHOT), QUIET, NOW, None),
        (row(spec=ONE_SHOT), QUIET, LATER, IDLE),
        *((row(state, EPHEMERAL), QUIET, LATER, None) for state in PASSING | TOMBSTONES),
    ],
)
def test_what_becomes_of_the_idle(the_row: BoxRow, use: Use, now: int, fate: IdleAction | None) -> None:
    assert to_reap(the_row, use, now) == fate


@pytest.mark.parametrize(
    ("the_row", "use", "why"),
    [
        (row(spec=EPHEMERAL), QUIET, "idle"),
        (row(S.STOPPED, EPHEMERAL), OFF, "stopped"),
        (row(spec=EPHEMERAL), SLEEPY, None),
        (row(spec=EPHEMERAL), BUSY, None),
        (row(spec=EPHEMERAL), replace(QUIET, working=True), None),
        (row(S.STOPPED), OFF, None),
        (row(S.HIBERNATED, replace(EPHEMERAL, on_idle=OnIdle.HIBERNATE)), OFF, None),
        (row(spec=ONE_SHOT), QUIET, None),
    ],
)
def test_what_is_pruned(the_row: BoxRow, use: Use, why: str | None) -> None:
    assert to_prune(the_row, use, NOW) == (None if why is None else IdleAction(OnIdle.DELETE, why))


@pytest.mark.parametrize(
    ("the_row", "busy", "abandoned"),
    [
        (row(S.CREATING, holder="dead"), (), True),
        (row(S.CREATING, holder="alive"), (), False),
        (row(S.CREATING, holder="me"), ("b-1",), False),
        (row(S.CREATING, holder="me"), (), True),
        (row(S.DELETING, holder=None), (), True),
        (row(S.RUNNING, holder="dead"), (), False),
        (row(S.GONE, holder="dead"), (), False),
    ],
)
def test_who_died_at_their_work(the_row: BoxRow, busy: tuple[str, ...], abandoned: bool) -> None:
    assert is_abandoned(the_row, {"alive", "me"}, "me", busy) is abandoned
    assert is_stuck(the_row, {"alive", "me"}, "me", busy, NOW + STUCK) is abandoned
    soon = abandoned and the_row.holder == "me"
    assert is_stuck(the_row, {"alive", "me"}, "me", busy, NOW + STUCK - 1) is soon


@pytest.mark.parametrize(
    ("state", "power", "real"),
    [
        (S.RUNNING, Power.STOPPED, S.STOPPED),
        (S.STOPPED, Power.RUNNING, S.RUNNING),
        (S.RUNNING, Power.RUNNING, None),
        (S.STOPPING, Power.STOPPED, None),
        (S.RUNNING, Power.PAUSED, S.PAUSED),
        (S.PAUSED, Power.PAUSED, None),
        (S.PAUSED, Power.RUNNING, S.RUNNING),
        (S.PAUSED, Power.STOPPED, S.HIBERNATED),
        (S.HIBERNATED, Power.STOPPED, None),
        (S.HIBERNATED, Power.RUNNING, S.RUNNING),
    ],
)
def test_a_row_follows_what_is(state: BoxState, power: Power, real: BoxState | None) -> None:
    assert drifted(row(state), power) is real


def stranger(labels: dict[str, str], spec: BoxSpec = SPEC, created_at: int = NOW) -> BoxInfo:
    return BoxInfo("b-1", "dummy", spec, {NODE: "here", **labels}, Power.RUNNING, created_at)


@pytest.mark.parametrize(
    ("info", "known", "keys", "fate"),
    [
        (stranger({}), None, (), "no store knows it"),
        (stranger({}, created_at=NOW + 1), None, (), "left"),
        (stranger({}, created_at=NOW - 2), None, (), "adopted"),
        (stranger({NODE: "there"}), None, (), "left"),
        (stranger({KEY: "k"}), None, (), "adopted"),
        (stranger({KEY: "k"}), None, ("k",), "key k has another box"),
        (stranger({KEY: "k"}, ONE_SHOT), None, ("k",), "no store knows it"),
        (stranger({}), row(S.DELETED), (), "still there after it was deleted"),
        (stranger({}), row(S.GONE), (), "left"),
        (stranger({}), row(S.CREATING), (), "left"),
    ],
)
def test_the_fate_of_strangers(info: BoxInfo, known: BoxRow | None, keys: tuple[str, ...], fate: str) -> None:
    rows = {} if known is None else {known.id: known}
    judged = judge_unknown([info], rows, keys, node="here", since=NOW - 1, now=NOW + GRACE)
    assert judged.adopted == (((info, info.labels.get(KEY)),) if fate == "adopted" else ())
    assert judged.orphans == (() if fate in ("adopted", "left") else ((info, fate),))


@pytest.mark.parametrize(("present", "key"), [(("b-moved",), "k"), (("b-moved", "b-old"), None), (None, None)])
def test_a_moved_stranger_has_its_key_only_if_the_box_it_came_from_is_gone(
    present: tuple[str, ...] | None, key: str | None
) -> None:
    info = stranger({MOVED_FROM: "b-old", MOVED_KEY: "k"}, created_at=NOW - 2)
    judged = judge_unknown([info], {}, (), node="here", since=NOW - 1, now=NOW + GRACE, present=present)
    assert judged.adopted == ((info, key),)
