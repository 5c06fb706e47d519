"""The contract of a store of thread rows and run rows as tests. Rows are a cache of streams, so both are opened:

class TestMyThreadRows(ThreadRowSuite):
    @pytest.fixture
    def open_store(self, tmp_path):
        @asynccontextmanager
        async def open_store(tenant):
            async with MyStorage.open(tmp_path, tenant=tenant) as storage:
                yield storage.streams, storage.thread_rows
        return open_store
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any, Final

import pytest

from holdfast.api.run.info import CancelKind, RunStatus, Stage
from holdfast.api.session.sessions import PromptMode, PromptStatus, SessionState
from holdfast.api.thread.threads import ThreadStatus
from holdfast.testing.store_suites.opener import OTHER_TENANT, TENANT, OpenStore
from holdfast.threads.access.seals import Origin
from holdfast.threads.checkpoints import Base, Checkpoint, Files, ForkOf, Lineage, Undo
from holdfast.threads.model_events import ModelCall, Usage
from holdfast.threads.protocol.surface import THREADS
from holdfast.threads.rows import (
    RowFilter,
    RowStore,
    RunFilter,
    RunRow,
    Spending,
    SpendingFilter,
    SpendingKey,
    ThreadRow,
)
from holdfast.threads.run_events import AgentSession, Run, ThreadRuns, Waiting
from holdfast.threads.session_events import EndedPrompt, QueuedPrompt, Session
from holdfast.threads.store import AppendRequest, StreamConfig, StreamStore

DAY: Final = 24 * 3600 * 1000
TEXT: Final = StreamConfig(content_type="text/plain")

Opened = tuple[StreamStore, RowStore]


def run(id: str = "r-1", **fields: Any) -> Run:
    made = Run(id, 1, "pi", "model", "local", 5, origin=Origin.HERE)
    return replace(made, **fields)


def call(id: str, *, run: str = "r-1", model: str = "mine/a", at: int = 5, nanos: int | None) -> ModelCall:
    return ModelCall(id, run, model, at, 200, 1, Usage(1, 2, 3, 4, 5, 6), nanos, estimated=False)


def with_session(row: ThreadRow, state: SessionState, **fields: Any) -> ThreadRow:
    """Returns the row of a thread that is a session."""
    return replace(row, runs=ThreadRuns(session=Session(state, 1, 5, "pi", "m", **fields)))


def with_runs(row: ThreadRow, *runs: Run) -> ThreadRow:
    """Returns the row of a thread that has these runs, all of them new."""
    return replace(row, runs=ThreadRuns(1, len(runs), runs[-1]), touched={each.run: each for each in runs})


async def listed(store: RowStore, **wanted: Any) -> list[str]:
    return [row.id for row in await store.list_rows(RowFilter(**wanted))]


async def listed_runs(store: RowStore, **wanted: Any) -> list[str]:
    return [row.run.run for row in await store.list_runs(RunFilter(**wanted))]


async def row_of(streams: StreamStore, id: str) -> ThreadRow:
    """Returns a row that is as far as the stream of its thread."""
    info = await streams.head(THREADS + id)
    return ThreadRow(id, info.id, folded=info.tail)


@pytest.mark.anyio
class ThreadRowSuite:
    """Subclass it, and give it an `open_store` fixture."""

    @pytest.fixture
    async def opened(self, open_store: OpenStore[Opened]) -> AsyncIterator[Opened]:
        async with open_store(TENANT) as opened:
            yield opened

    @pytest.fixture
    def streams(self, opened: Opened) -> StreamStore:
        return opened[0]

    @pytest.fixture
    def store(self, opened: Opened) -> RowStore:
        return opened[1]

    # Threads

    async def test_a_row_comes_back_as_it_was(self, store: RowStore) -> None:
        latest = run(
            prompts=("e-1", "e-2"),
            options={"model": "ü", "deep": {"list": [1, None]}},
            stage=Stage.PROVISION,
            cancel=CancelKind.INTERRUPT,
            status=RunStatus.FAILED,
            error={"code": "timed_out"},
            turn=4,
            checkpoint=Checkpoint(90, 7, Files("s-1", "local", "img"), 12),
        )
        whole = ThreadRow(
            "t-1",
            7,
            99,
            "títle",
            ThreadStatus.FAILED,
            "t-0",
            {"team": "x", 'q"uote': ""},
            True,
            12,
            100,
            200,
            {"id": "e-9", "ts": 200, "type": "chat", "text": "bye"},
            ThreadRuns(
                3, 4, latest, (Waiting("e-3", True),), {"pi": AgentSession("r-1", "s", "b", True)}, "digest", ((5, 9),)
            ),
            Lineage(
                ForkOf("t-9", 2, 50), Base("rewound-w-1", Files("s-2", "local")), Undo(3, 70, Files("s-3", "local"))
            ),
        )
        bare = ThreadRow("t-2", 8)
        await store.save_rows([whole, bare], [])
        assert await store.get_row("t-1") == whole
        assert await store.get_row("t-2") == bare
        assert await store.get_row("t-3") is None

    async def test_marks_are_found_by_their_position_and_go_with_their_thread(self, store: RowStore) -> None:
        row = with_runs(ThreadRow("t-1", 7, 30, "títle", labels={"a": "b"}), run(status=RunStatus.COMPLETED))
        marked = replace(row.marked(20), title="later").marked(30)
        await store.save_rows([marked, ThreadRow("t-2", 8, 20)], [])
        assert await store.row_at("t-1", 7, 20) == replace(row, folded=20)
        assert await store.row_at("t-1", 7, 30) == replace(row, folded=30, title="later")
        for id, stream, position in (("t-1", 7, 25), ("t-1", 8, 20), ("t-2", 8, 20)):
            assert await store.row_at(id, stream, position) is None
        # Another thread with the same id, and the end of both.
        await store.save_rows([replace(row, stream=9, title="new").marked(40)], [])
        assert await store.row_at("t-1", 7, 20) is None
        assert await store.row_at("t-1", 9, 20) is None
        assert await store.row_at("t-1", 9, 40) == replace(row, stream=9, title="new", folded=40)
        await store.save_rows([], ["t-1"])
        assert await store.row_at("t-1", 9, 40) is None

    async def test_threads_are_found_by_what_they_were_forked_from(self, store: RowStore) -> None:
        fork = Lineage(ForkOf("t-1", 2, 50), Base("forked-t-2", Files("s-1", "local")))
        rewound = Lineage(None, Base("rewound-w-1", Files("s-2", "local")), Undo(3, 70, Files("s-3", "local")))
        await store.save_rows([ThreadRow("t-1", 1, lineage=rewound), ThreadRow("t-2", 2, lineage=fork)], [])
        assert await listed(store, fork_of="t-1") == ["t-2"]
        assert await listed(store, fork_of="t-2") == []
        assert await store.needed_snapshots() == {"s-1", "s-2", "s-3"}
        await store.save_rows([], ["t-1"])
        assert await store.needed_snapshots() == {"s-1"}

    async def test_a_row_is_replaced_whole(self, store: RowStore) -> None:
        await store.save_rows([ThreadRow("t-1", 1, title="a", labels={"a": "b"}), ThreadRow("t-2", 2)], [])
        await store.save_rows([ThreadRow("t-1", 1, 5, status=ThreadStatus.RUNNING)], [])
        assert await store.get_row("t-1") == ThreadRow("t-1", 1, 5, status=ThreadStatus.RUNNING)
        assert await store.get_row("t-2") == ThreadRow("t-2", 2)

    async def test_rows_are_listed_page_by_page_with_the_last_active_first(self, store: RowStore) -> None:
        rows = [ThreadRow(f"t-{number}", number, last_activity_at=number // 2) for number in range(5)]
        await store.save_rows(rows, [])
        assert await store.list_rows(RowFilter(limit=2)) == [rows[4], rows[3]]
        assert await listed(store, limit=2, after=(1, "t-3")) == ["t-2", "t-1"]
        assert await listed(store, limit=2, after=(0, "t-1")) == ["t-0"]
        assert await listed(store, limit=2, after=(0, "t-0")) == []

    async def test_a_search_finds_rows_that_have_all_its_words(self, store: RowStore) -> None:
        titles = ("Fix the flaky test", "Write docs", "100% of a_b!", None)
        rows = [ThreadRow(f"t-x{at}", at, title=title, last_activity_at=at) for at, title in enumerate(titles)]
        await store.save_rows(rows, [])
        for words, found in (
            (("TEST", "flaky"), ["t-x0"]),
            (("t-x3",), ["t-x3"]),
            (("0%",), ["t-x2"]),
            (("a_b!",), ["t-x2"]),
            (("%",), ["t-x2"]),
            (("_b",), ["t-x2"]),
            (("test", "docs"), []),
            (("'; --",), []),
        ):
            assert await listed(store, words=words) == found, words

    async def test_pages_are_whole_however_many_threads_are_archived_among_them(self, store: RowStore) -> None:
        rows = [ThreadRow(f"t-{at:03}", at, archived=at % 9 == 0 or 100 <= at < 160) for at in range(1, 301)]
        await store.save_rows([replace(row, last_activity_at=row.stream // 3) for row in rows], [])
        for archived in (False, True, None):
            expected = [row.id for row in reversed(rows) if archived in (None, row.archived)]
            for limit in (1, 7, 50, 200, 400):
                found: list[str] = []
                after: tuple[int, str] | None = None
                while page := await store.list_rows(RowFilter(archived=archived, limit=limit, after=after)):
                    assert len(page) == limit or len(found) + len(page) == len(expected)
                    found += [row.id for row in page]
                    after = (page[-1].last_activity_at, page[-1].id)
                assert found == expected, (archived, limit)

    async def test_a_list_has_what_fits_all_that_is_asked_for(self, store: RowStore) -> None:
        running = ThreadStatus.RUNNING
        await store.save_rows(
            [
                ThreadRow("t-1", 1, labels={"team": "x", 'q"uote': "1"}),
                ThreadRow("t-2", 2, parent="t-1", status=running, labels={"team": "y"}),
                ThreadRow("t-3", 3, parent="t-1", archived=True, labels={"team": "x"}),
            ],
            [],
        )
        assert await listed(store) == ["t-2", "t-1"]
        assert await listed(store, archived=True) == ["t-3"]
        assert await listed(store, archived=None) == ["t-3", "t-2", "t-1"]
        assert await listed(store, parent="t-1", archived=None) == ["t-3", "t-2"]
        assert await listed(store, status=running) == ["t-2"]
        assert await listed(store, labels=(("team", "x"),)) == ["t-1"]
        assert await listed(store, labels=(("team", None),)) == ["t-2", "t-1"]
        assert await listed(store, labels=(("team", None), ('q"uote', "1"))) == ["t-1"]
        assert await listed(store, labels=(("x", None),), archived=None) == []
        assert await listed(store, parent="t-1", status=running, labels=(("team", "x"),)) == []

    # Runs

    async def test_the_runs_that_a_row_touched_are_found_by_their_ids(self, store: RowStore) -> None:
        first, second = run("r-1", status=RunStatus.COMPLETED), run("r-2")
        await store.save_rows([with_runs(ThreadRow("t-1", 1), first, second)], [])
        await store.save_rows([ThreadRow("t-1", 1, 5)], [])  # touched none
        assert await store.get_run("r-1") == RunRow("t-1", first)
        assert await store.get_run("r-2") == RunRow("t-1", second)
        assert await store.get_run("r-3") is None
        ended = replace(second, status=RunStatus.FAILED, ended_at=9)
        await store.save_rows([with_runs(ThreadRow("t-1", 1), ended)], [])
        assert await store.get_run("r-2") == RunRow("t-1", ended)

    async def test_runs_are_listed_with_the_newest_first(self, store: RowStore) -> None:
        done = RunStatus.COMPLETED
        await store.save_rows(
            [
                with_runs(ThreadRow("t-1", 1), run("r-1", status=done), run("r-4", agent="codex")),
                with_runs(ThreadRow("t-2", 2), run("r-2", agent="codex", status=done), run("r-3")),
            ],
            [],
        )
        assert await listed_runs(store) == ["r-4", "r-3", "r-2", "r-1"]
        assert await listed_runs(store, limit=2, after="r-4") == ["r-3", "r-2"]
        assert await listed_runs(store, thread="t-1") == ["r-4", "r-1"]
        assert await listed_runs(store, status=done) == ["r-2", "r-1"]
        assert await listed_runs(store, agent="codex") == ["r-4", "r-2"]
        assert await listed_runs(store, agent="codex", status=done, thread="t-1") == []

    async def test_a_run_is_found_by_its_number_on_its_thread(self, store: RowStore) -> None:
        one = with_runs(ThreadRow("t-1", 1), run("r-1", turn=1), run("r-2", turn=2))
        await store.save_rows([one, with_runs(ThreadRow("t-2", 2), run("r-3", turn=1))], [])
        assert await listed_runs(store, thread="t-1", turn=1) == ["r-1"]
        assert await listed_runs(store, thread="t-1", turn=2) == ["r-2"]
        assert await listed_runs(store, thread="t-1", turn=3) == []
        assert await listed_runs(store, turn=1) == ["r-3", "r-1"]

    async def test_a_claim_that_cannot_be_proven_takes_no_run_from_its_thread(self, store: RowStore) -> None:
        claimed = run("r-1", origin=Origin.UNPROVEN)
        await store.save_rows([with_runs(ThreadRow("t-forged", 1), claimed)], [])
        assert await store.get_run("r-1") == RunRow("t-forged", claimed)
        await store.save_rows([with_runs(ThreadRow("t-true", 2), run("r-1"))], [])
        await store.save_rows([with_runs(ThreadRow("t-forged", 1), claimed)], [])
        assert await store.get_run("r-1") == RunRow("t-true", run("r-1"))
        unproven = run("r-1", origin=Origin.UNPROVEN, signs=3)
        await store.save_rows([with_runs(ThreadRow("t-true", 2), unproven)], [])
        assert await store.get_run("r-1") == RunRow("t-true", unproven)

    async def test_a_thread_that_is_gone_takes_its_runs_along(self, store: RowStore) -> None:
        await store.save_rows(
            [
                with_runs(ThreadRow("t-1", 1), run("r-1"), run("r-2")),
                with_runs(ThreadRow("t-2", 2), run("r-3")),
            ],
            [],
        )
        await store.save_rows([], ["t-1", "t-none"])
        assert await store.get_row("t-1") is None
        assert await store.get_run("r-1") is None
        assert (await listed(store), await listed_runs(store)) == (["t-2"], ["r-3"])

    async def test_threads_with_a_run_or_a_prompt_that_waits_are_unsettled(self, store: RowStore) -> None:
        ended = run(status=RunStatus.CANCELLED)
        await store.save_rows(
            [
                with_runs(ThreadRow("t-live", 1), run("r-1")),
                with_runs(ThreadRow("t-ended", 2), replace(ended, run="r-2")),
                ThreadRow("t-waiting", 3, runs=ThreadRuns(1, 1, ended, (Waiting("e-1"),))),
                ThreadRow("t-none", 4),
            ],
            [],
        )
        assert sorted(await store.unsettled_ids()) == ["t-live", "t-waiting"]
        await store.save_rows([with_runs(ThreadRow("t-live", 1), ended)], ["t-waiting"])
        assert await store.unsettled_ids() == []

    async def test_tenants_can_have_threads_and_runs_of_the_same_id(self, open_store: OpenStore[Opened]) -> None:
        async with open_store(TENANT) as (streams, store):
            await streams.create("threads/t-1", TEXT, b"one")
            await streams.create("threads/t-2", TEXT, b"one")
            mine = await row_of(streams, "t-1")
            await store.save_rows([with_runs(mine, run("r-1")), await row_of(streams, "t-2")], [])
        claimed = run("r-1", origin=Origin.UNPROVEN)
        async with open_store(OTHER_TENANT) as (_, store):
            assert await store.get_row("t-1") is None
            await store.save_rows([ThreadRow("t-1", 99), with_runs(ThreadRow("t-2", 98), claimed)], [])
            assert await store.get_run("r-1") == RunRow("t-2", claimed)
            assert sorted(await listed(store)) == ["t-1", "t-2"]
        async with open_store(TENANT) as (streams, store):
            assert await store.stale_ids() == []
            assert await store.get_run("r-1") == RunRow("t-1", run("r-1"))
            assert sorted(await listed(store)) == ["t-1", "t-2"]
        async with open_store(OTHER_TENANT) as (_, store):
            await store.save_rows([], ["t-1", "t-2"])
        async with open_store(TENANT) as (_, store):
            assert (sorted(await listed(store)), await listed_runs(store)) == (["t-1", "t-2"], ["r-1"])

    # What is behind its stream

    async def test_a_row_is_stale_until_it_is_as_far_as_its_stream(self, streams: StreamStore, store: RowStore) -> None:
        assert await store.stale_ids() == []
        await streams.create("threads/t-1", TEXT, b"one")
        await streams.create("other/t-2", TEXT, b"one")
        assert set(await store.stale_ids()) == {"t-1"}
        await store.save_rows([await row_of(streams, "t-1")], [])
        await streams.append("threads/t-1", AppendRequest(b"two"))
        assert set(await store.stale_ids()) == {"t-1"}

    async def test_after_a_restart_the_rows_that_are_behind_are_stale(self, open_store: OpenStore[Opened]) -> None:
        async with open_store(TENANT) as (streams, store):
            for id in ("t-current", "t-behind", "t-new", "t-replaced", "t-gone"):
                await streams.create(THREADS + id, TEXT, b"one")
            folded = ("t-current", "t-behind", "t-replaced", "t-gone")
            await store.save_rows([await row_of(streams, id) for id in folded], [])
            await streams.append("threads/t-behind", AppendRequest(b"two"))
            for id in ("t-replaced", "t-gone"):
                await streams.delete(THREADS + id)
            await streams.create("threads/t-replaced", TEXT)
        async with open_store(TENANT) as (streams, store):
            stale = set(await store.stale_ids())
            assert {"t-behind", "t-new", "t-replaced"} < stale
            assert "t-gone" in stale or await store.get_row("t-gone") is None
            current = await store.get_row("t-current")  # rows are a cache: they may be lost, but not unnoticed
            assert ("t-current" in stale) == (current is None)
            assert current in (None, await row_of(streams, "t-current"))

    # Calls of models

    async def test_calls_are_summed_by_what_is_asked_for(self, streams: StreamStore, store: RowStore) -> None:
        for id in ("t-1", "t-2", "t-3"):
            await streams.create(THREADS + id, TEXT)
        first = replace(
            await row_of(streams, "t-1"),
            calls=(call("e-1", nanos=5), call("e-2", run="r-2", model="mine/b", nanos=None)),
        )
        second = replace(await row_of(streams, "t-2"), parent="t-1", calls=(call("e-1", run="r-3", at=DAY, nanos=7),))
        third = replace(await row_of(streams, "t-3"), parent="t-2", calls=(call("e-9", run="r-4", nanos=100),))
        await store.save_rows([first, second, third], [])
        await store.save_rows([first], [])  # once more: nothing is counted twice

        async def sums(by: SpendingKey = "all", **wanted: Any) -> dict[str, tuple[int, int, int]]:
            found = await store.spending(SpendingFilter(**wanted), by)
            return {each.key: (each.calls, each.nanos, each.unpriced) for each in found}

        assert await sums() == {"": (4, 112, 1)}
        assert await sums(runs=("r-1",)) == {"": (1, 5, 0)}
        assert await sums(runs=()) == {"": (0, 0, 0)}
        assert await sums(threads=("t-1",)) == {"": (2, 5, 1)}
        assert await sums(tree="t-1") == {"": (4, 112, 1)}
        assert await sums(tree="t-2") == {"": (2, 107, 0)}
        assert await sums(since=DAY) == {"": (1, 7, 0)}
        assert await sums("thread") == {"t-3": (1, 100, 0), "t-2": (1, 7, 0), "t-1": (2, 5, 1)}
        assert await sums("thread", threads=("t-1", "t-unknown")) == {"t-1": (2, 5, 1)}
        assert await sums("thread", threads=("t-unknown",)) == {}
        assert await sums("model", tree="t-1") == {"mine/a": (3, 112, 0), "mine/b": (1, 0, 1)}
        assert await sums("run", threads=("t-1",)) == {"r-1": (1, 5, 0), "r-2": (1, 0, 1)}
        assert await sums("day") == {"1970-01-01": (3, 105, 1), "1970-01-02": (1, 7, 0)}
        [total] = await store.spending(SpendingFilter(runs=("r-1",)), "all")
        assert (total.input, total.output, total.cache_read, total.cache_write, total.reasoning) == (1, 2, 3, 4, 6)

    async def test_a_session_comes_back_with_its_queue(self, store: RowStore) -> None:
        queue = (
            QueuedPrompt("e-1", PromptMode.STEER, 5, 7, 9, "r-1", 2),
            QueuedPrompt("e-2", PromptMode.COLLECT, -1, 8),
        )
        ended = (EndedPrompt("e-0", PromptMode.FOLLOWUP, 0, 6, PromptStatus.CANCELLED),)
        row = with_session(
            ThreadRow("t-1", 1),
            SessionState.ERROR,
            options={"spec": {"provider": "local"}},
            parent="t-0",
            queue=queue,
            ended=ended,
            ended_count=4,
            error={"code": "c", "message": "ü"},
        )
        await store.save_rows([row], [])
        assert await store.get_row("t-1") == row

    async def test_sessions_are_found_by_their_states(self, store: RowStore) -> None:
        states = list(SessionState)
        rows = [
            with_session(ThreadRow(f"t-{number}", number, last_activity_at=number), state)
            for number, state in enumerate(states)
        ]
        await store.save_rows([*rows, ThreadRow("t-no-session", 99, last_activity_at=99)], [])
        for state, row in zip(states, rows, strict=True):
            assert await store.list_rows(RowFilter(session=(state,))) == [row]
        every = tuple(SessionState)
        assert await store.list_rows(RowFilter(session=every)) == rows[::-1]
        assert await store.list_rows(RowFilter(session=every, limit=2)) == [rows[-1], rows[-2]]
        assert await store.list_rows(RowFilter(session=())) == []
        assert len(await store.list_rows(RowFilter())) == len(rows) + 1
        await store.save_rows([], [row.id for row in rows])
        assert await store.list_rows(RowFilter(session=every)) == []

    async def test_sessions_that_may_need_something_are_found(self, store: RowStore) -> None:
        queue = (QueuedPrompt("e-1", PromptMode.FOLLOWUP, 0, 7),)
        rows = {
            "t-starts": with_session(ThreadRow("t-starts", 1), SessionState.INITIALIZING),
            "t-runs": with_session(ThreadRow("t-runs", 2), SessionState.RUNNING),
            "t-sleeps": with_session(ThreadRow("t-sleeps", 3), SessionState.HIBERNATED),
            "t-is-asked": with_session(ThreadRow("t-is-asked", 4), SessionState.HIBERNATED, queue=queue),
            "t-ends": with_session(ThreadRow("t-ends", 5), SessionState.TERMINATED),
            "t-ended": with_session(ThreadRow("t-ended", 6), SessionState.TERMINATED, released=True),
            "t-none": ThreadRow("t-none", 7),
        }
        await store.save_rows(list(rows.values()), [])
        assert set(await store.due_session_ids()) == {"t-starts", "t-runs", "t-is-asked", "t-ends"}
        await store.save_rows([with_session(rows["t-ends"], SessionState.TERMINATED, released=True)], ["t-starts"])
        assert set(await store.due_session_ids()) == {"t-runs", "t-is-asked"}

    async def test_sessions_belong_to_a_tenant(self, open_store: OpenStore[Opened]) -> None:
        async with open_store(TENANT) as (_, store):
            await store.save_rows([with_session(ThreadRow("t-1", 1), SessionState.RUNNING)], [])
        async with open_store(OTHER_TENANT) as (_, store):
            assert await store.list_rows(RowFilter(session=tuple(SessionState))) == []
            assert await store.due_session_ids() == []
            assert await store.get_row("t-1") is None

    async def test_calls_go_with_their_thread(self, streams: StreamStore, store: RowStore) -> None:
        await streams.create(THREADS + "t-1", TEXT)
        row = await row_of(streams, "t-1")
        await store.save_rows([replace(row, calls=(call("e-1", nanos=5),))], [])
        again = replace(row, stream=row.stream + 1, calls=(call("e-2", nanos=7),))
        await store.save_rows([again], [])  # another thread with the same id
        [total] = await store.spending(SpendingFilter(), "all")
        assert (total.calls, total.nanos) == (1, 7)
        await store.save_rows([], ["t-1"])
        assert await store.spending(SpendingFilter(), "all") == [Spending()]

    async def test_calls_belong_to_a_tenant(self, open_store: OpenStore[Opened]) -> None:
        async with open_store(TENANT) as (streams, store):
            await streams.create(THREADS + "t-1", TEXT)
            await store.save_rows([replace(await row_of(streams, "t-1"), calls=(call("e-1", nanos=5),))], [])
        async with open_store(OTHER_TENANT) as (_, store):
            assert await store.spending(SpendingFilter(tree="t-1"), "all") == [Spending()]

    async def test_a_tree_in_a_circle_is_summed_once(self, streams: StreamStore, store: RowStore) -> None:
        rows = []
        for id, parent in (("t-1", "t-2"), ("t-2", "t-1")):
            await streams.create(THREADS + id, TEXT)
            rows.append(replace(await row_of(streams, id), parent=parent, calls=(call("e-1", nanos=5),)))
        await store.save_rows(rows, [])
        [total] = await store.spending(SpendingFilter(tree="t-1"), "all")
        assert total.calls == 2
