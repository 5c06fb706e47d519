"""What a thread says of its runs is the fold of its entries, whoever wrote them."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.api.run.info import CancelKind, RunStatus, Stage
from holdfast.api.session.sessions import PromptMode
from holdfast.api.thread.entries import Entry
from holdfast.api.thread.threads import ThreadStatus
from holdfast.storage.sqlite.streams import SqliteStreams
from holdfast.storage.sqlite.thread_rows import SqliteThreadRows
from holdfast.threads import lineage, run_events, session_events
from holdfast.threads.access.seals import Seals
from holdfast.threads.checkpoints import Files, ForkOf
from holdfast.threads.entries import keyed
from holdfast.threads.projection import Projection
from holdfast.threads.rows import RunFilter, ThreadRow, fold
from holdfast.threads.run_events import Run, ThreadRuns, Waiting
from holdfast.threads.service import Threads
from holdfast.threads.store import AppendRequest, ForkPoint, StreamConfig

SEALS = Seals(b"of these tests")


def sealed(thread: str, entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """As the server writes them. What JSON cannot say is left as it is."""

    def seal(each: dict[str, Any]) -> dict[str, Any]:
        try:
            return SEALS.seal(thread, Entry.from_json(each)).to_json()
        except ValueError:
            return each

    return [seal(each) for each in entries]


def entry(id: str, ts: int, **payload: Any) -> dict[str, Any]:
    return {"id": id, "ts": ts, "payload": payload}


def started(run: str = "r-1", epoch: int = 1, ts: int = 10, **more: Any) -> dict[str, Any]:
    payload = run_events.started(
        run=run,
        epoch=epoch,
        agent="pi",
        model="m/x",
        provider="local",
        prompts=more.pop("prompts", ("e-1",)),
        resumes=None,
        options=more.pop("options", {}),
    )
    return entry(run_events.start_id(run), ts, **payload)


def finished(run: str = "r-1", status: Any = "completed", **more: Any) -> dict[str, Any]:
    return entry(
        f"end-{run}", 99, **{"type": run_events.FINISHED, "run": run, "status": status, "by": "runner", **more}
    )


STORY: list[dict[str, Any]] = [
    entry("e-1", 9, type="chat", role="user", text="do it"),
    started(),
    entry(
        "e-2",
        11,
        **run_events.box_found(run="r-1", box="b-1", provider="local", how="created", files="workspace", ms=3),
    ),
    entry("e-3", 12, **run_events.provisioned(run="r-1", agent="pi", version="1.0", ms=4, session="new")),
    entry("e-4", 13, **run_events.runner_started(run="r-1", epoch=2, process="p-1")),
    entry("e-5", 14, **run_events.heartbeat("r-1")),
    entry("r-1-1", 1, type="pi.session", session="s-1"),
    entry("r-1-2", 1, type="pi.delta", message="m", text="hel"),
    entry("r-1-3", 1, type="pi.assistant", message="m", text="hello"),
    entry("e-6", 15, type="chat", role="user", text="and this", queued=True),
    entry("e-7", 16, **run_events.cancel_requested("r-1", CancelKind.INTERRUPT, None)),
    finished(status="cancelled", usage={"input": 3, "cost": "much"}, exit_code=0),
]


def row_of(entries: list[dict[str, Any]]) -> ThreadRow:
    return fold(ThreadRow("t", 1), sealed("t", entries), SEALS)


def latest(row: ThreadRow) -> Run:
    assert row.runs.latest is not None
    return row.runs.latest


def test_a_run_is_told_step_by_step() -> None:
    stages = [latest(row_of(STORY[:end])).stage for end in range(2, 10)]
    assert stages == [
        Stage.CLAIM,
        Stage.BOX,
        Stage.PROVISION,
        Stage.RUNNER,
        Stage.AGENT,
        Stage.AGENT,
        Stage.EVENT,
        Stage.EVENT,
    ]
    row = row_of(STORY)
    run = latest(row)
    assert (run.status, run.box, run.process, run.version, run.session) == (
        RunStatus.CANCELLED,
        "b-1",
        "p-1",
        "1.0",
        "new",
    )
    assert (run.cancel, run.exit_code, run.usage, run.last_sign) == (CancelKind.INTERRUPT, 0, {"input": 3}, 14)
    assert row.status is ThreadStatus.CANCELLED
    assert row.runs.waiting == (Waiting("e-6"),)
    assert row.runs.epoch == 2
    assert row.runs.sessions["pi"].session == "s-1"
    assert not row.runs.sessions["pi"].whole  # who was cut off may not have written down what it said


def test_the_next_run_takes_the_prompts_that_wait() -> None:
    row = row_of([*STORY, started("r-2", 3, 100, prompts=("e-6",))])
    assert (row.runs.waiting, row.runs.count, row.status) == ((), 2, ThreadStatus.RUNNING)
    assert latest(row).run == "r-2"
    assert row.runs.sessions["pi"].session == "s-1"
    assert not row.runs.sessions["pi"].whole
    for by, whole in (("runner", True), ("reconciler", False)):
        ended = fold(row, sealed("t", [finished("r-2", by=by)]), SEALS)
        assert ended.runs.sessions["pi"].whole is whole


@pytest.mark.parametrize(
    ("status", "shown"),
    [("completed", "completed"), ("failed", "failed"), ("cancelled", "cancelled"), ("orphaned", "failed")],
)
def test_the_row_follows_the_run(status: str, shown: str) -> None:
    error = {"code": "x", "message": "why", "hint": "do", "more": 1}
    row = row_of([started(), finished(status=status, error=error)])
    assert row.status.value == shown
    assert latest(row).error == {"code": "x", "message": "why", "hint": "do"}


def test_only_what_fits_is_applied() -> None:
    row = row_of(
        [
            started(),
            started("r-2", 5),  # while another lives
            finished("r-2"),
            entry("other", 1, type=run_events.FINISHED, run="r-1", status="completed"),  # not under the id of its end
            finished(status="wonderful"),
            finished(status=["completed"]),
            entry("e", 1, type=run_events.HEARTBEAT, run="r-2"),
            entry("e", 1, type=run_events.RUNNER, run="r-1", epoch=10**15, process=["p"]),
            entry("e", 1, type=run_events.BOX, run="r-1", box={"b": 1}),
            entry("e", 1, type="signal.run.unheard_of", run="r-1"),
            entry("e", 1, type="pi.session", session=7),
            entry("e", 1, type="pierre.session", session="s"),
        ]
    )
    run = latest(row)
    assert (run.run, run.status, run.epoch, run.process, run.box) == ("r-1", RunStatus.RUNNING, 1, None, None)
    assert row.runs.epoch == 1
    assert row.runs.sessions["pi"].session is None


def result(run: str) -> dict[str, Any]:
    return entry(f"child-result-{run}", 12, type="chat", role="user", text="a result", queued=True)


def test_the_prompts_of_a_run_that_was_never_started_wait_for_one_more() -> None:
    told = [result("r-7"), result("r-8"), started(prompts=("child-result-r-7", "child-result-r-8"))]
    lost = finished(status="orphaned", by="reconciler", again=True)
    begin = [entry("e-1", 9, type="chat", role="user", text="do it"), started(run="r-0"), finished(run="r-0")]
    row = row_of([*begin, *told, lost, result("r-9")])
    assert (latest(row).again, latest(row).repeats) == (True, False)
    assert [each.chat for each in row.runs.waiting] == ["child-result-r-7", "child-result-r-8", "child-result-r-9"]
    assert row.runs.is_unsettled
    repeated = started(run="r-2", prompts=tuple(each.chat for each in row.runs.waiting))
    row = row_of([*begin, *told, lost, result("r-9"), repeated])
    assert (latest(row).again, latest(row).repeats, row.runs.waiting) == (False, True, ())
    assert ThreadRuns.from_json(row.runs.to_json()) == row.runs


def test_a_runner_cannot_have_its_run_repeated() -> None:
    told = [started(), finished(status="failed", by="runner", again=True)]
    row = row_of(told)
    assert (latest(row).again, row.runs.waiting) == (False, ())


def test_only_so_many_prompts_wait() -> None:
    chats = [entry(f"e-{n}", n, type="chat", text="x", queued=True) for n in range(300)]
    assert len(row_of(chats).runs.waiting) == run_events.MAX_WAITING


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
_TYPES = st.sampled_from(
    [
        "chat",
        "pi.session",
        "pi.delta",
        "pi.x",
        *(
            run_events.PREFIX + name
            for name in ("started", "box", "provisioned", "runner", "heartbeat", "cancel_requested", "finished", "x")
        ),
    ]
)
_FIELDS = st.dictionaries(
    st.sampled_from(
        [
            "run",
            "epoch",
            "agent",
            "model",
            "provider",
            "prompts",
            "options",
            "box",
            "process",
            "status",
            "error",
            "usage",
            "by",
            "text",
            "queued",
            "exit_code",
        ]
    ),
    _VALUES | st.sampled_from(["r-1", "pi", "completed"]),
    max_size=8,
)


@given(
    st.lists(
        st.tuples(st.sampled_from(["start-r-1", "end-r-1", "e"]), st.integers(0, 2**53 - 1), _TYPES, _FIELDS),
        max_size=12,
    ),
    st.integers(0, 12),
)
def test_hostile_entries_break_nothing_and_folding_in_parts_is_folding_the_whole(
    told: list[tuple[str, int, str, dict[str, Any]]], cut: int
) -> None:
    entries = [entry(id, ts, **{**fields, "type": kind}) for id, ts, kind, fields in [*told]]
    entries = [started(), *entries]
    whole = row_of(entries)
    entries = sealed("t", entries)
    assert fold(fold(ThreadRow("t", 1), entries[:cut], SEALS), entries[cut:], SEALS) == whole
    assert ThreadRuns.from_json(whole.runs.to_json()) == whole.runs


@given(
    st.lists(
        st.tuples(st.sampled_from(["start-r-1", "end-r-1", "e"]), st.integers(0, 2**53 - 1), _TYPES, _FIELDS),
        max_size=8,
    ),
    st.lists(st.sampled_from(STORY), max_size=12),
    st.sampled_from(["t", "t-source-of-t", None]),
)
def test_what_a_fork_inherits_is_what_it_would_read(
    told: list[tuple[str, int, str, dict[str, Any]]], story: list[dict[str, Any]], written_for: str | None
) -> None:
    """Whoever wrote the entries, and for which thread. The row is the same as if all were folded."""
    hostile = [entry(id, ts, **{**fields, "type": kind}) for id, ts, kind, fields in told]
    others = [started("r-0"), finished("r-0"), *hostile]
    entries = [*(others if written_for is None else sealed(written_for, others)), *sealed("t", [*STORY, *story])]
    source, new = ThreadRow("t", 1), ThreadRow("t-fork", 2, created_at=5)
    for number, each in enumerate(entries, 1):
        source = fold(source, [each], SEALS)
        if each["payload"]["type"] == run_events.FINISHED and source.can_be_marked:
            assert new.inherit(source.marked(0).marks[0]) == fold(new, entries[:number], SEALS)


def test_a_fork_of_a_session_inherits_what_it_would_read_and_is_no_session() -> None:
    options = {"workspace": "f" * 64, "source": {"repository": "https://example.com/a"}}
    made = session_events.created(agent="pi", model="m/x", options=options, parent=None, by=None)
    queued = entry("e-1", 9, **session_events.prompted("do it", PromptMode.FOLLOWUP, 0))
    more = entry("e-9", 20, **session_events.prompted("and this", PromptMode.FOLLOWUP, 0))
    entries = sealed("t", [entry("session-1", 1, **made), queued, *STORY[1:], more])
    source, new = ThreadRow("t", 1), ThreadRow("t-fork", 2, created_at=5)
    assert fold(source, entries, SEALS).runs.session is not None
    at_end = fold(source, entries[:-1], SEALS)
    assert at_end.can_be_marked
    inherited = new.inherit(at_end.marked(0).marks[0])
    assert inherited == fold(new, entries[:-1], SEALS)
    assert (inherited.runs.session, inherited.runs.workspace) == (None, "f" * 64)
    assert not fold(inherited, entries[-1:], SEALS).runs.waiting
    forged = [entry("session-1", 1, **made), *entries[1:]]
    assert fold(new, forged, SEALS).runs.workspace is None


def folded(thread: str, entries: list[dict[str, Any]]) -> ThreadRow:
    return fold(ThreadRow(thread, 1), entries, SEALS)


OPEN = {"spec": {"network": {"mode": "open"}}, "workspace": "f" * 64}


def test_what_has_no_seal_is_shown_as_a_run_and_nothing_of_it_is_believed() -> None:
    row = folded("t", [started(options=OPEN), *STORY[2:]])
    run = latest(row)
    assert (run.run, run.box, run.status) == ("r-1", "b-1", RunStatus.CANCELLED)
    assert not run.is_ours
    assert not run.is_proven
    assert (row.runs.workspace, row.runs.waiting) == (None, ())
    ended = folded("t", [started(), *STORY[2:9], finished(by="runner")])
    assert not ended.runs.sessions["pi"].whole


FORGED = (
    entry("x-1", 20, **run_events.box_found(run="r-1", box="b-2", provider="local", how="live", files="kept", ms=1)),
    entry("x-2", 20, **run_events.runner_started(run="r-1", epoch=9, process="p-9")),
    entry("x-3", 20, **run_events.heartbeat("r-1")),
    entry("x-4", 20, **run_events.cancel_requested("r-1", CancelKind.CANCEL, None)),
    entry("x-5", 20, **run_events.provisioned(run="r-1", agent="pi", version="9", ms=4, session="continued")),
    entry("x-6", 20, type="chat", role="user", text="launch me", queued=True, interrupt=True),
    finished(),
    started("r-2", 9, options=OPEN),
)


@pytest.mark.parametrize("forged", FORGED, ids=lambda each: str(each["payload"]["type"]))
def test_nothing_that_others_write_changes_a_run_of_ours(forged: dict[str, Any]) -> None:
    before = folded("t", sealed("t", STORY[:5]))
    stolen = sealed("t-another", [forged])
    for entries in ([forged], stolen):
        assert fold(before, entries, SEALS).runs == before.runs


def test_a_claim_after_the_end_that_others_write_is_no_reason_to_act() -> None:
    row = fold(row_of(STORY), [started("r-2", 9, options=OPEN, prompts=("e-6",))], SEALS)
    assert not latest(row).is_proven
    assert row.runs.workspace is None


def test_a_fork_believes_what_was_launched_before_it_and_owns_none_of_it() -> None:
    told = sealed("t", [started(options=OPEN), *STORY[2:10]])
    row = folded("t-fork", told)
    run = latest(row)
    assert run.live
    assert run.is_proven
    assert not run.is_ours
    assert (row.runs.workspace, row.runs.waiting) == ("f" * 64, ())
    assert row.touched == {}  # its own thread tells of it
    ended = fold(row, sealed("t-fork", [finished(status="orphaned", by="reconciler")]), SEALS)
    assert latest(ended).status is RunStatus.ORPHANED


def test_what_an_older_server_kept_of_a_thread_is_not_believed() -> None:
    kept = row_of([started(options=OPEN), *STORY[2:9], finished(), STORY[9]]).runs.to_json()
    del kept["fold"], kept["latest"]["origin"]
    found = ThreadRuns.from_json(kept)
    assert found.latest is not None
    assert not found.latest.is_proven
    assert (found.waiting, found.workspace, found.sessions["pi"].whole) == ((), None, False)


class Opened:
    """A store with its rows, opened and closed as a server does."""

    def __init__(self, path: Path) -> None:
        self.path = path

    async def __aenter__(self) -> Opened:
        self.store = await SqliteStreams.open(self.path)
        self.projection = Projection(self.store, SqliteThreadRows(self.store), SEALS)
        await self.projection.start()
        self.threads = Threads(self.store, self.projection)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.projection.close()
        await self.store.close()

    async def tell(self, thread: str, entries: list[dict[str, Any]]) -> None:
        ready = tuple(keyed(Entry.from_json(each)) for each in sealed(thread, entries))
        await self.store.append(f"threads/{thread}", AppendRequest(keyed=ready))


@pytest.mark.anyio
async def test_runs_are_found_by_their_ids_and_lists_are_rebuilt_from_the_streams(tmp_path: Path) -> None:
    path = tmp_path / "holdfast.db"
    async with Opened(path) as opened:
        one = (await opened.threads.create(title="one")).id
        two = (await opened.threads.create(title="two")).id
        await opened.tell(one, STORY)
        await opened.tell(two, [started("r-2", 1), entry("e-9", 20, type="chat", text="later", queued=True)])
        found = await opened.projection.run("r-1")
        assert found is not None
        assert (found.thread, found.run.status) == (one, RunStatus.CANCELLED)
        assert [row.run.run for row in await opened.projection.runs(RunFilter())] == ["r-2", "r-1"]
        assert [row.run.run for row in await opened.projection.runs(RunFilter(status=RunStatus.RUNNING))] == ["r-2"]
        assert [row.run.run for row in await opened.projection.runs(RunFilter(after="r-2"))] == ["r-1"]
        assert sorted(await opened.projection.unsettled()) == sorted([one, two])  # prompts wait on the first
        before = await opened.threads.get(one)
    # As another version would have left its caches.
    connection = sqlite3.connect(path)
    connection.execute("DROP TABLE threads_cache")
    connection.execute("CREATE TABLE threads_cache (id TEXT PRIMARY KEY, something TEXT)")
    connection.execute("DELETE FROM runs_cache")
    connection.commit()
    connection.close()
    async with Opened(path) as opened:
        assert await opened.threads.get(one) == before
        found = await opened.projection.run("r-1")
        assert found is not None
        assert found.run == before.runs.latest
        await opened.threads.delete(two)
        assert await opened.projection.run("r-2") is None


def forked(thread: str, source: str, offset: int) -> list[dict[str, Any]]:
    payload = lineage.forked(ForkOf(source, 1, offset), Files("s-1", "local"))
    return [entry(f"forked-{thread}", 200, **payload)]


@pytest.mark.anyio
async def test_the_row_of_a_fork_begins_with_that_of_its_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long the source is. If the rows are made again from the streams, they are the same."""
    path = tmp_path / "holdfast.db"
    async with Opened(path) as opened:
        parent = (await opened.threads.create()).id
        source = (await opened.threads.create(title="source", labels={"a": "b"}, parent=parent)).id
        for number in range(1, 4):
            words = [entry(f"w-{number}-{each}", 50, type="pi.x", text="x" * 5000) for each in range(30)]
            await opened.tell(source, [started(f"r-{number}", number), *words, finished(f"r-{number}")])
        end = (await opened.threads.get(source)).folded
        await opened.tell(source, [entry("later", 99, type="chat", text="later", queued=True)])
        await opened.threads.get(source)
        read, positions = opened.store.read, []

        async def noted(path: str, position: int, size: int) -> Any:
            positions.append(position)
            return await read(path, position, size)

        monkeypatch.setattr(opened.store, "read", noted)

        async def fork(name: str, above: str, offset: int, *, by_hand: bool = False) -> ThreadRow:
            own = sealed(name, [] if by_hand else forked(name, above, offset))
            config = StreamConfig(content_type="application/json", fork=ForkPoint(f"threads/{above}", offset, 0))
            ready = tuple(keyed(Entry.from_json(each)) for each in own)
            await opened.store.create(f"threads/{name}", config, keyed=ready)
            return await opened.threads.get(name)

        rows = {"t-a": await fork("t-a", source, end), "t-b": await fork("t-b", "t-a", end)}
        await opened.tell("t-a", [started("r-4", 4), finished("r-4")])
        rows["t-a"] = await opened.threads.get("t-a")
        rows["t-c"] = await fork("t-c", "t-a", rows["t-a"].folded)
        assert min(positions) == end  # nothing before was read
        # Without an entry of its own that it is a fork, it has the parent of the first one: that takes a whole read.
        rows["t-d"] = await fork("t-d", "t-a", rows["t-a"].folded, by_hand=True)
        assert min(positions) == 0
        assert [latest(rows[name]).run for name in rows] == ["r-4", "r-3", "r-4", "r-4"]
        assert [row.title for row in rows.values()] == ["source"] * 4
        assert [row.parent for row in rows.values()] == [None, None, None, parent]
    connection = sqlite3.connect(path)
    connection.execute("DROP TABLE row_marks_cache")
    connection.commit()
    connection.close()
    async with Opened(path) as opened:
        for name, row in rows.items():
            assert await opened.threads.get(name) == row


@pytest.mark.anyio
async def test_history_leaves_out_text_that_came_in_pieces(tmp_path: Path) -> None:
    async with Opened(tmp_path / "holdfast.db") as opened:
        id = (await opened.threads.create()).id
        await opened.tell(id, STORY)
        for live, shown in ((True, 1), (False, 0)):
            page = await opened.threads.entries(id, types=(), since=0, limit=100, live=live)
            assert sum(each["payload"]["type"] == "pi.delta" for each in page.entries) == shown


@pytest.mark.anyio
@pytest.mark.parametrize("limit", range(1, 9))
async def test_who_joins_in_the_middle_of_a_message_gets_its_beginning(tmp_path: Path, limit: int) -> None:
    """Also where pages end anywhere in it."""
    under_way = [
        entry("p-1", 1, type="pi.delta", message="o", text="from "),
        entry("p-2", 1, **run_events.heartbeat("r-2")),
        entry("p-3", 1, type="pi.delta", message="o", text="the "),
        entry("p-4", 1, type="chat", role="user", text="and this"),
        entry("p-5", 1, type="pi.delta", message="o", text="start"),
        entry("p-6", 1, **run_events.heartbeat("r-2")),
    ]
    async with Opened(tmp_path / "holdfast.db") as opened:
        id = (await opened.threads.create()).id
        await opened.tell(id, [*STORY, started("r-2", 2), *under_way])
        found: list[dict[str, Any]] = []
        since = 0
        while True:
            page = await opened.threads.entries(id, types=(), since=since, limit=limit, live=False, unfinished=True)
            found += page.entries
            assert page.up_to_date or page.position > since
            since = page.position
            if page.up_to_date:
                break
        plain = await opened.threads.entries(id, types=(), since=0, limit=100, live=False)
        assert [each for each in found if not each["payload"]["type"].endswith(".delta")] == plain.entries
        assert [each["id"] for each in found][-6:] == [each["id"] for each in under_way]


@pytest.mark.anyio
async def test_who_joins_gets_no_piece_of_a_message_that_is_whole_or_was_cut_off(tmp_path: Path) -> None:
    cut_off = [*STORY[:7], entry("r-1-2", 1, type="pi.delta", message="m", text="cut"), STORY[-1]]
    for story in (STORY, cut_off):
        async with Opened(tmp_path / f"{len(story)}.db") as opened:
            id = (await opened.threads.create()).id
            await opened.tell(id, story)
            page = await opened.threads.entries(id, types=(), since=0, limit=100, live=False, unfinished=True)
            assert not any(each["payload"]["type"].endswith(".delta") for each in page.entries)


@pytest.mark.anyio
async def test_a_claim_that_cannot_be_proven_takes_no_run_from_its_thread(tmp_path: Path) -> None:
    async with Opened(tmp_path / "holdfast.db") as opened:
        mine, theirs = [(await opened.threads.create(id=id)).id for id in ("t-mine", "t-theirs")]
        await opened.tell(theirs, STORY[:4])
        forged = tuple(keyed(Entry.from_json(each)) for each in (started(), STORY[2]))
        await opened.store.append(f"threads/{mine}", AppendRequest(keyed=forged))
        found = await opened.projection.run("r-1")
        assert found is not None
        assert (found.thread, found.run.is_ours) == (theirs, True)
