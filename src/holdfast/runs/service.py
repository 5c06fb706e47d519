"""The service of runs: launches, steers, cancels, resumes and shows them.

All state of a run is on its thread. If a server is killed, the next one reconciles its runs.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any, Final

from holdfast.api.errors import Conflict, InvalidRequest, NotFound
from holdfast.api.errors.runs import NoFiles, NothingToResume, RunNotFound, ThreadBusy, TooManyWaiting
from holdfast.api.run.imports import EXPORTED_THREAD, MOST_UPLOADED, Imported, NewImport
from holdfast.api.run.info import CancelKind
from holdfast.api.run.runs import Changes, Diagnosis, Launched, Steered
from holdfast.api.run.tasks import DelegationLimits
from holdfast.boxes.rows import BoxRow
from holdfast.boxes.service.boxes import Boxes
from holdfast.runs.background import BackgroundTasks
from holdfast.runs.blocked_egress import MOST_TEXT, BlockedEgress, find_blocked, still_away
from holdfast.runs.cancel_request import CancelRequests
from holdfast.runs.cancellation import Cancellation
from holdfast.runs.checkpoint.checkpoints import Checkpoints
from holdfast.runs.checkpoint.collection import Collection
from holdfast.runs.checkpoint.comparison import Comparisons
from holdfast.runs.checkpoint.forks import Fork, Forks
from holdfast.runs.checkpoint.rewinds import Rewinds
from holdfast.runs.checkpoint.turns import Turns
from holdfast.runs.delegate.agent_tools import AgentTools
from holdfast.runs.delegate.delegations import Delegations
from holdfast.runs.delegate.reports import TaskReports
from holdfast.runs.delegate.rules import title_of
from holdfast.runs.delegate.tree import Trees
from holdfast.runs.diagnosis import diagnose
from holdfast.runs.errors import is_session, thread_busy
from holdfast.runs.launch.launches import GO_ON, Launches
from holdfast.runs.launch.plan import (
    LaunchPlan,
    LaunchPlanner,
    Options,
    Prompt,
    check_prompt,
    check_workspace,
    environment_of,
    key_of,
    next_options,
    session_options,
    spec_of,
)
from holdfast.runs.launch.steps import Launcher
from holdfast.runs.live_runs import LiveRuns
from holdfast.runs.reconcile.probe import RunnerProbe
from holdfast.runs.reconcile.reconciler import Reconciler
from holdfast.runs.reconcile.rules import Thresholds
from holdfast.runs.reconcile.run_end import RunEnds
from holdfast.runs.reconcile.sweep import SWEEP_SECONDS, DueThreads, RunSweep
from holdfast.runs.run_log import RunLog
from holdfast.runs.session_import import import_session
from holdfast.runs.thread_import import import_thread
from holdfast.runs.workspace.diff import Compared, compare
from holdfast.runs.workspace.store import Workspaces
from holdfast.threads.model_events import BUDGET, FAILOVER
from holdfast.threads.projection import Projection
from holdfast.threads.protocol.surface import THREADS
from holdfast.threads.rows import RunFilter, RunRow, ThreadRow
from holdfast.threads.run_events import FINISHED, MAX_WAITING, Run, ThreadRuns
from holdfast.threads.service import Threads
from holdfast.threads.store import StreamStore
from holdfast.time_limit import time_limit

_EVIDENCE: Final = 50
"""Results of tools that a diagnosis looks at, the latest ones."""
_STOP_SECONDS: Final = 5.0
_RECENT: Final = 20
"""Runs among which that of a repeated request is looked for."""

Admit = Callable[[Callable[[], Awaitable[int]]], Awaitable[None]]
"""Raises if there may not be another run. Gets what counts those that have not ended."""


async def _admit_all(count: Callable[[], Awaitable[int]]) -> None:
    """There may be any number of runs."""


class Runs:
    """Owns its launches and its sweep from `start` to `close`, but not the boxes or the store. Runs outlive it."""

    def __init__(
        self,
        store: StreamStore,
        threads: Threads,
        projection: Projection,
        boxes: Boxes,
        planner: LaunchPlanner,
        launcher: Launcher,
        run_log: RunLog,
        workspaces: Workspaces,
        *,
        ticks: Callable[[], int],
        thresholds: Thresholds | None = None,
        sweep_seconds: float = SWEEP_SECONDS,
        delegation_limits: DelegationLimits | None = None,
        admit: Admit = _admit_all,
    ) -> None:
        """`ticks` returns the milliseconds of a monotonic clock. `admit` raises if there may not be another run."""
        self._admit = admit
        self._store = store
        self._threads = threads
        self._projection = projection
        self._boxes = boxes
        self._planner = planner
        self._log = run_log
        self.workspaces = workspaces
        self._thresholds = thresholds or Thresholds()
        self._sweep_seconds = sweep_seconds
        self.tasks = BackgroundTasks()
        self.probe = RunnerProbe(boxes)
        due = DueThreads()
        self._collection = Collection(run_log, projection, boxes, self.tasks)
        self.checkpoints = Checkpoints(
            run_log, boxes, self.tasks, ticks=ticks, on_taken=self._collection.after_checkpoint
        )
        self.turns = Turns(run_log, projection, boxes)
        live = LiveRuns(run_log, projection, self.probe)
        self.ends = RunEnds(run_log, live)
        self.launches = Launches(
            run_log,
            planner,
            launcher,
            live,
            self.ends,
            self.tasks,
            on_over=due.add,
            ticks=ticks,
            before_claim=self.checkpoints.settle,
        )
        trees = Trees(threads, projection)
        requests = CancelRequests(run_log, self.probe, self.launches, self.tasks)
        self._reconciler = Reconciler(
            run_log,
            boxes,
            self.probe,
            self.launches,
            self.ends,
            self.tasks,
            ticks=ticks,
            thresholds=self._thresholds,
            delegated=TaskReports(run_log, projection, trees, requests),
        )
        self._sweep = RunSweep(
            store,
            projection,
            self._reconciler,
            live,
            due,
            self.tasks,
            seconds=sweep_seconds,
            on_end=self.checkpoints.begin,
            on_delete=self._collection.after_deletion,
        )
        self._launcher = launcher
        self.forks = Forks(store, run_log, threads, boxes, self.checkpoints, self.turns, planner, launcher, ticks=ticks)
        self.rewinds = Rewinds(
            run_log,
            boxes,
            self.checkpoints,
            self.turns,
            planner,
            launcher,
            reconcile=self._reconciler.reconcile,
            open_tasks=trees.open_tasks_of,
        )
        self.comparisons = Comparisons(
            run_log, boxes, self.checkpoints, self.turns, self.rewinds, planner, projection, workspaces, ticks=ticks
        )
        self.cancellation = Cancellation(run_log, boxes, requests, self.ends, self._reconciler, self._sweep, self.tasks)
        self.reconcile = self._reconciler.reconcile
        self.sweep = self._sweep.sweep
        self.silence = self._reconciler.silence
        self.collect = self._collection.sweep
        self.delegations = Delegations(
            store,
            run_log,
            projection,
            trees,
            boxes,
            planner,
            self.cancellation,
            self.reconcile,
            limits=delegation_limits or DelegationLimits(),
        )
        self.call_tool = AgentTools(self.delegations, run_log).call
        self.beat, self.limit, self.lives, self.current = live.beat, live.limit, live.lives, live.current
        self.report_model_error, self.model_terms = live.report_model_error, live.model_terms

    async def start(self) -> None:
        """Reconcile the runs that earlier servers left, and start the sweep."""
        await self._sweep.start()
        self._collection.start()

    async def close(self) -> None:
        """Runs with a runner continue. Launches in progress end as failed."""
        self.launches.stop()
        self._sweep.stop()
        await self.tasks.close(_STOP_SECONDS)
        self._reconciler.close()

    # --- launching ---

    async def launch(
        self,
        prompt: Prompt,
        options: Options,
        *,
        thread: str | None = None,
        new_thread: str | None = None,
        title: str | None = None,
        labels: dict[str, str] | None = None,
    ) -> Launched:
        """Start a run on an existing or a new thread. Returns when its prompt is on disk."""
        check_prompt(prompt.text)
        if thread is None or await self._same(thread, prompt) is None:
            await self._admit(self._count_going)
        plan = await self._plan(options, thread)
        if options.workspace is not None:
            self.workspaces.check(options.workspace)
        if thread is None:
            title = title or title_of(prompt.text)
            try:
                thread = (await self._threads.create(id=new_thread, title=title, labels=labels)).id
            except Conflict:
                if new_thread is None or prompt.id is None:
                    raise
                thread = new_thread  # a retry of this request; or the thread of another, which is then busy
        if (same := await self._same(thread, prompt)) is not None:
            return same
        row = await self.reconcile(thread, force=True)
        _refuse_session(row)
        check_workspace(row.runs, plan.options)
        return await self.launches.claim(thread, prompt, plan.options, plan)

    async def check(self, options: Options, *, thread: str | None = None) -> Options:
        """Returns the options that a launch would use, with full names. Raises the errors of a launch."""
        return (await self._plan(options, thread)).options

    async def _plan(self, options: Options, thread: str | None) -> LaunchPlan:
        if options.spec is None:
            runs = ThreadRuns() if thread is None else await self._log.runs(thread)
            box = None if thread is None else await self._planner.box_of(thread)
            base = None if thread is None else (await self._log.row(thread)).lineage.base
            options = replace(options, spec=spec_of(runs, box, base))
        plan = self._planner.plan(options)
        if thread is not None:
            await self._planner.check_move(thread, plan.options)
        return plan

    # --- for the sessions, whose queue launches their runs ---

    async def prepare_box(self, thread: str) -> str:
        """Give the thread of a session its box: the one it had, awake and with fresh secrets, or a new one. Returns its
        id.
        """
        row = await self._log.row(thread)
        options = session_options(row.runs, await self._planner.box_of(thread), row.lineage.base)
        return await self._launcher.prepare(thread, self._planner.fit(options), row.runs, row.lineage.base)

    def is_hosted(self, agent: str) -> bool:
        """Returns whether an agent has a server that stays in the box of a session. Raises `UnknownAgent`."""
        return self._planner.agents.find(agent).hosted

    async def launch_queued(self, thread: str, prompts: Sequence[str]) -> Launched | None:
        """Launch a run for prompts of a session. Returns None if they wait no longer. What is wrong with the options
        ends the run, and with it the prompts.
        """
        row = await self._log.row(thread)
        options = session_options(row.runs, await self._planner.box_of(thread), row.lineage.base)
        return await self.launches.launch_queued(thread, prompts, options)

    async def import_session(self, wanted: NewImport) -> Imported:
        """Create a thread with a session that an agent wrote on another machine, or with an exported thread."""
        if wanted.workspace is not None:
            self.workspaces.check(wanted.workspace)
        if (wanted.session is None) == (wanted.upload is None):
            raise InvalidRequest("an import needs a session, or the digest of one that was uploaded")
        if wanted.upload is not None:
            session = await self.workspaces.read_whole(wanted.upload, most=MOST_UPLOADED)
        else:
            session = (wanted.session or "").encode("utf-8", "replace")
        take = import_thread if wanted.agent == EXPORTED_THREAD else import_session
        return await take(self._log, self._threads, self._planner.agents, wanted, session)

    async def _count_going(self) -> int:
        """Returns how many runs have not ended."""
        return len(await self._projection.unsettled())

    async def _same(self, thread: str, prompt: Prompt) -> Launched | None:
        """Returns the run that an earlier request with the same prompt has launched."""
        if prompt.id is None:
            return None
        latest = (await self._log.runs(thread)).latest
        if latest is None:
            return None
        if prompt.id in latest.prompts:
            return Launched(thread, latest.run, prompt.id)
        before = await self._projection.runs(RunFilter(thread=thread, limit=_RECENT))
        same = next((each.run for each in before if prompt.id in each.run.prompts), None)
        return None if same is None else Launched(thread, same.run, prompt.id)

    async def resume(
        self,
        thread: str,
        prompt: Prompt | None = None,
        *,
        agent: str | None = None,
        model: str | None = None,
        change: Callable[[Options], Options] = lambda options: options,
        names_image: bool = False,
    ) -> Launched:
        """Launch the next run of a thread, with the options of its last run or changed ones. `names_image` says that
        the caller has named the image of the box.
        """
        if prompt is not None:
            check_prompt(prompt.text)
            if (same := await self._same(thread, prompt)) is not None:
                return same
        await self._admit(self._count_going)
        row = await self.reconcile(thread, force=True)
        _refuse_session(row)
        if row.runs.latest is None and (agent is None or prompt is None):
            raise NothingToResume(f"thread {thread} has had no run", hint=_begin(thread))
        if row.runs.latest is not None and not row.runs.latest.is_proven and agent is None:
            raise NothingToResume(
                f"this server cannot prove that it launched the last run of thread {thread}",
                hint=f"name the agent: holdfast resume {thread} --agent NAME",
            )
        if row.runs.live is not None:
            raise thread_busy(thread, row.runs.live.run)
        box = await self._planner.box_of(thread)
        before = next_options(row.runs, agent, model, box, row.lineage.base)
        plan = self._planner.plan(change(before))
        check_workspace(row.runs, plan.options)
        if not names_image:
            await self._planner.check_image(before.box, plan.options.box)
        await self._planner.check_move(thread, plan.options)
        if prompt is None and not row.runs.waiting:
            prompt = Prompt(GO_ON)
        return await self.launches.claim(thread, prompt, plan.options, plan)

    async def fork(
        self,
        thread: str,
        at: str | None,
        prompt: Prompt | None = None,
        *,
        new_id: str | None = None,
        title: str | None = None,
        agent: str | None = None,
        model: str | None = None,
        fallbacks: tuple[str, ...] = (),
    ) -> tuple[Fork, Launched | None]:
        """Fork a thread at a turn or an entry, and launch a run there if there is a prompt for it."""

        def change(options: Options) -> Options:
            return replace(options, fallbacks=fallbacks or options.fallbacks)

        if prompt is not None:
            check_prompt(prompt.text)
        if prompt is not None and (new_id is None or not await self.forks.is_made(thread, at, new_id)):
            runs = await self._log.runs(thread)
            if runs.latest is not None and (agent is not None or model is not None or fallbacks):
                self._planner.plan(change(next_options(runs, agent, model)))  # refused before anything is made
        fork = await self.forks.fork(thread, at, id=new_id, title=title)
        if prompt is None:
            return fork, None
        return fork, await self.resume(fork.row.id, prompt, agent=agent, model=model, change=change)

    async def steer(self, thread: str, prompt: Prompt, *, interrupt: bool = False) -> Steered:
        """Send a prompt to a thread. It waits for the end of a live run, or interrupts it."""
        check_prompt(prompt.text)
        if (same := await self._same(thread, prompt)) is not None:
            return Steered(thread, same.run, same.prompt, "launched")
        row = await self.reconcile(thread, force=True)
        _refuse_session(row)
        run = row.runs.live
        if run is None:
            try:
                launched = await self.resume(thread, prompt)
                return Steered(thread, launched.run, launched.prompt, "launched")
            except ThreadBusy:  # another request was quicker
                run = (await self._log.runs(thread)).live
                if run is None:
                    raise
        if len(row.runs.waiting) >= MAX_WAITING:
            raise TooManyWaiting(
                f"{MAX_WAITING} prompts are already waiting on thread {thread}", hint="wait until the run has ended"
            )
        payload: dict[str, Any] = {"type": "chat", "role": "user", "text": prompt.text, "queued": True}
        if interrupt:
            payload["interrupt"] = True
        chat = self._log.entry(payload, id=prompt.id, author=prompt.author)
        await self._log.append(thread, chat)
        if interrupt:
            await self.cancellation.request(thread, run, CancelKind.INTERRUPT, prompt.author)
        return Steered(thread, run.run, chat.id, "interrupting" if interrupt else "queued")

    async def cancel(self, id: str, *, by: str | None = None) -> RunRow:
        """Cancel a run, or the latest run of a thread, and the tasks below it. A run that has ended stays as it is."""
        found = await self.get(id)
        if found.run.live:
            await self.cancellation.request(found.thread, found.run, CancelKind.CANCEL, by)
        await self.delegations.cancel_below(found.thread, by=by)
        return await self.get(found.run.run)

    async def forget(self, thread: str) -> None:
        """End the run of a thread that is about to be deleted, and its tasks, and delete its box."""
        await self.delegations.cancel_below(thread)
        await self.cancellation.forget(thread)

    async def settle_box(self, row: BoxRow) -> None:
        """Wait until the latest turn that worked in a box is saved. Until then, the box is in use."""
        thread = row.owner.thread
        if thread is not None and row.key == key_of(thread):
            with suppress(NotFound):  # the thread was deleted
                await self.checkpoints.settle(thread)

    # --- reading ---

    async def get(self, id: str) -> RunRow:
        """Returns a run by its id, or the latest run of a thread. Raises `RunNotFound`."""
        if id.startswith("r-"):
            found = await self._projection.run(id)
            if found is None:
                raise RunNotFound(f"there is no run {id}", hint="holdfast thread list shows all threads")
            if found.run.live:
                row = await self.reconcile(found.thread)
                latest = row.runs.latest
                if latest is not None and latest.run == id:
                    return RunRow(found.thread, latest)
                return await self._projection.run(id) or found
            return found
        row = await self.reconcile(id)
        if row.runs.latest is None:
            raise RunNotFound(f"thread {id} has had no run", hint=_begin(id))
        return RunRow(id, row.runs.latest)

    async def thread_of(self, id: str) -> str | None:
        """Returns the thread of a run, or None if there is no such run."""
        found = await self._projection.run(id)
        return None if found is None else found.thread

    async def list(self, wanted: RunFilter) -> list[RunRow]:
        """Returns runs, the newest first."""
        return await self._projection.runs(wanted)

    async def wait(self, thread: str, run: str) -> Run:
        """Returns the run once it has ended."""
        changed = asyncio.Event()
        stop = self._store.watch(THREADS + thread, lambda change: changed.set())
        try:
            while True:
                changed.clear()
                found = await self.get(run)
                if not found.run.live:
                    return found.run
                with suppress(TimeoutError):
                    async with time_limit(self._sweep_seconds):
                        await changed.wait()
        finally:
            stop()

    async def diagnose(self, id: str) -> Diagnosis:
        """Returns how far a run, or the latest run of a thread, has come, and what is wrong with it."""
        thread = (await self.get(id)).thread if id.startswith("r-") else id
        runs = (await self.reconcile(thread, force=True)).runs
        if id.startswith("r-") and (runs.latest is None or runs.latest.run != id):
            runs = replace(runs, latest=(await self.get(id)).run)
        run = runs.latest
        look = None if run is None or not run.live else await self.probe.look(run)
        limits = () if run is None or run.box is None else await self.probe.limits(run.box)
        blocked, signals = (None, ()) if run is None else await self._find_evidence(thread, run)
        return diagnose(
            thread,
            runs,
            launching=self.launches.is_launching(thread),
            silence=None if run is None else self._reconciler.silence(thread, run.run),
            look=look,
            limits=limits,
            blocked=blocked,
            signals=tuple(signals),
            thresholds=self._thresholds,
        )

    async def _find_evidence(self, thread: str, run: Run) -> tuple[BlockedEgress | None, Sequence[dict[str, Any]]]:
        """Look for a blocked network in what the run's tools and its runner have said last, and for what happened to
        its models.
        """
        texts: deque[str] = deque(maxlen=_EVIDENCE)
        signals: deque[dict[str, Any]] = deque(maxlen=_EVIDENCE)
        async for entry in self._log.entries(thread, run.since):
            payload = entry.get("payload") or {}
            if str(payload.get("type", "")).endswith(".tool"):
                texts.append(str(payload.get("result", ""))[-MOST_TEXT:])
            elif payload.get("type") in (FAILOVER, BUDGET) and payload.get("run") == run.run:
                signals.append(payload)
            elif payload.get("type") == FINISHED and payload.get("run") == run.run:
                break
        texts.append(str((run.error or {}).get("message", "")))
        if run.live or run.ended_by != "runner":  # a runner that posted the end has reached us
            texts.append(still_away(await self.probe.last_words(run)))
        return find_blocked(texts), signals

    @asynccontextmanager
    async def compared(self, id: str) -> AsyncIterator[Compared]:
        """Yields a comparison of a thread's workspace with its first state. Wakes the box."""
        thread = (await self.get(id)).thread
        await self.rewinds.finish(thread)
        thread_row = await self._log.row(thread)
        runs = thread_row.runs
        row = await self._planner.box_of(thread)  # not that of its latest run, which may have none yet
        box_id = None if row is None else row.id
        if row is None and thread_row.lineage.base is None and runs.latest is not None and runs.latest.is_ours:
            box_id = runs.latest.box
        if box_id is None:
            raise _no_files(thread, runs)
        base = None
        if runs.workspace is not None:
            self.workspaces.check(runs.workspace)
            base = self.workspaces.path(runs.workspace)
        with self._boxes.using(box_id):
            async with (
                await self._boxes.open(box_id) as box,
                compare(base, box.files.download_tar(box.spec.workdir)) as compared,
            ):
                yield compared

    async def about_changes(self, id: str) -> dict[str, Any]:
        """Returns what is known about the changes of a thread beside the files: where they began."""
        thread = (await self.get(id)).thread
        runs = await self._log.runs(thread)
        use = None if runs.latest is None else environment_of(runs.latest)
        beside = [] if use is None else [each.path for each in use.repositories]
        return {"version": 1, "thread": thread, "source": runs.source, "repositories": beside}

    async def changes(self, id: str) -> Changes:
        """Returns what changed in the workspace of a thread, for people."""
        async with self.compared(id) as compared:
            return await compared.summary()


def _refuse_session(row: ThreadRow) -> None:
    if row.runs.session is not None:
        raise is_session(row.id)


def _no_files(thread: str, runs: ThreadRuns) -> NoFiles:
    if runs.live is not None:
        return NoFiles(f"thread {thread} has no box yet", hint="wait until its run has one")
    return NoFiles(
        f"thread {thread} has no box, so there are no files to compare, and no run is in progress",
        hint=f'the next run makes one: holdfast resume {thread} "…"',
    )


def _begin(thread: str) -> str:
    return f'begin with a prompt and an agent: holdfast resume {thread} "…" --agent NAME'
