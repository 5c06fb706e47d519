"""Whatever happens to boxes, in whatever order: one box per key, nothing forgotten, nothing left behind."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from tests.boxes.conftest import SPEC

from holdfast.api.box.box import Liveness, Power
from holdfast.api.box.records import BoxState
from holdfast.api.box.spec import Lifetime, OnIdle
from holdfast.api.errors.boxes import BoxConflict, BoxError, BoxGone, BoxUnreachable, NoSpace, WrongSnapshot
from holdfast.boxes.lifecycle import SETTLED
from holdfast.boxes.rows import BoxFilter, BoxRow
from holdfast.boxes.service.boxes import Boxes
from holdfast.loop_thread import LoopThread
from holdfast.storage.sqlite.boxes import SqliteBoxes
from holdfast.testing.clock import ManualClock
from holdfast.testing.dummy import DummyProvider

T = TypeVar("T")

SPECS = {
    "plain": SPEC,
    "changed": replace(SPEC, env={"A": "1"}),
    "ephemeral": replace(SPEC, lifetime=Lifetime.EPHEMERAL, idle_seconds=30),
    "hibernating": replace(SPEC, on_idle=OnIdle.HIBERNATE, idle_seconds=30),
    "one-shot": replace(SPEC, lifetime=Lifetime.ONE_SHOT, idle_seconds=30),
}
CHANGES = ["stop", "start_box", "delete", "snapshot", "fork", "hibernate", "open"]
ERRORS = [NoSpace, BoxUnreachable, BoxGone, BoxConflict, WrongSnapshot]
POINTS = ["create", "create.half", "create.made", "remove", "remove.half", "stop", "start", "attach", "restore", "find"]
NUMBERS = st.integers(0, 9)


class Life(RuleBasedStateMachine):
    """Two services on one store, and somebody who breaks things."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.clock = ManualClock()
        self.loop = LoopThread()
        self.provider = DummyProvider(self.folder / "dummy", clock=self.clock.now)
        self.run(self.provider.open())
        self.rows = [SqliteBoxes(self.folder / "data.db") for _ in range(2)]
        self.services = [self.service(rows) for rows in self.rows]
        self.dead: dict[str, BoxRow] = {}

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run(work)

    def service(self, rows: SqliteBoxes) -> Boxes:
        return Boxes(rows, {"dummy": self.provider}, node="here", clock=self.clock.now)

    def all_rows(self) -> list[BoxRow]:
        return list(self.run(self.services[0].list(BoxFilter(live_only=False, limit=1000))).rows)

    def some(self, number: int) -> str | None:
        rows = [row for row in self.all_rows() if row.live]
        return rows[number % len(rows)].id if rows else None

    def attempt(self, work: Coroutine[Any, Any, T]) -> T | None:
        """What fails, fails with an error of ours."""
        try:
            return self.run(work)
        except BoxError:
            return None

    @rule(who=st.integers(0, 1), key=st.sampled_from("ab"), spec=st.sampled_from(sorted(SPECS)))
    def acquire(self, who: int, key: str, spec: str) -> None:
        acquired = self.attempt(self.services[who].acquire(key, SPECS[spec], timeout=10))
        if acquired is not None:
            assert acquired.row.state is BoxState.RUNNING
            assert acquired.row.spec == SPECS[spec]

    @rule(who=st.integers(0, 1), number=NUMBERS, what=st.sampled_from(CHANGES))
    def change(self, who: int, number: int, what: str) -> None:
        if (id := self.some(number)) is not None:
            self.attempt(getattr(self.services[who], what)(id))

    @rule(number=NUMBERS)
    def lose(self, number: int) -> None:
        """The provider loses a box."""
        if (id := self.some(number)) is not None:
            self.attempt(self.provider.remove(id))

    @rule(number=NUMBERS)
    def stop_behind_our_back(self, number: int) -> None:
        async def stop(id: str) -> None:
            async with await self.provider.attach(id) as box:
                await box.stop()

        if (id := self.some(number)) is not None:
            self.attempt(stop(id))

    @rule(number=NUMBERS)
    def cut_off(self, number: int) -> None:
        if (id := self.some(number)) is not None:
            self.provider.liveness[id] = Liveness.UNKNOWN

    @rule()
    def reconnect(self) -> None:
        self.provider.liveness.clear()

    @rule(point=st.sampled_from(POINTS), error=st.sampled_from(ERRORS))
    def break_next(self, point: str, error: type[BoxError]) -> None:
        self.provider.fail_next(point, error("made to order"))

    @rule(seconds=st.integers(0, 100))
    def pass_time(self, seconds: int) -> None:
        self.clock.advance(seconds * 1000)

    @rule(who=st.integers(0, 1))
    def sweep(self, who: int) -> None:
        self.run(self.services[who].sweep())

    @rule(who=st.integers(0, 1))
    def prune(self, who: int) -> None:
        self.run(self.services[who].prune())

    @rule(who=st.integers(0, 1))
    def restart(self, who: int) -> None:
        self.run(self.services[who].close())
        self.services[who] = self.service(self.rows[who])

    @invariant()
    def a_key_has_one_box(self) -> None:
        keys = [row.key for row in self.all_rows() if row.live and row.key and row.lifetime is not Lifetime.ONE_SHOT]
        assert len(keys) == len(set(keys))

    @invariant()
    def the_dead_stay_as_they_are(self) -> None:
        now = {row.id: row for row in self.all_rows() if row.tombstone}
        assert {id: now[id] for id in self.dead} == self.dead
        self.dead = now

    def teardown(self) -> None:
        try:
            self.settle()
        finally:
            for service, rows in zip(self.services, self.rows, strict=True):
                self.run(service.close())
                self.run(rows.close())
            self.loop.close()
            shutil.rmtree(self.folder)

    def settle(self) -> None:
        """Once nothing breaks any more, a sweep makes the store and the provider agree."""
        self.provider.liveness.clear()
        self.provider.heal()
        self.clock.advance(1000_000)
        for service in self.services * 2:
            self.run(service.sweep())
        live = {row.id: row for row in self.all_rows() if row.live}
        there = {info.id: info for info in self.run(self.provider.find())}
        # One that sleeps may have lost its files: its snapshot brings it back.
        assert {id for id, row in live.items() if row.state is not BoxState.HIBERNATED} <= there.keys() <= live.keys()
        for id, row in live.items():
            assert row.state in SETTLED
            if id not in there:
                self.run(self.services[0].open(id))
                there[id] = next(info for info in self.run(self.provider.find()) if info.id == id)
                row = self.run(self.services[0].get(id))
            assert (row.state is BoxState.RUNNING) == (there[id].power is Power.RUNNING)
            assert row.lifetime is Lifetime.SHARED


TestLife = Life.TestCase
TestLife.settings = settings(
    max_examples=25, stateful_step_count=25, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
