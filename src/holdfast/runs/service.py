"""All runs of one tenant on one store: launched, watched, steered, cancelled, gone on with, and ended exactly once.

Nothing of a run is kept here that is not on its thread: a server that is killed loses nothing but its place in the
work, and the next one settles it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager, asynccontextmanager, suppress
from contextvars import Context
from dataclasses import dataclass, replace
from typing import Any, Final
from weakref import WeakValueDictionary

from holdfast.boxes.capabilities import Capability
from holdfast.boxes.errors import BoxError
from holdfast.boxes.service.boxes import Boxes
from holdfast.boxes.spec import BoxSpec, OnIdle
from holdfast.runs.diagnosis import Diagnosis, diagnose
from holdfast.runs.errors import (
    InvalidRun,
    NoFiles,
    NothingToResume,
    RunNotFound,
    RunOver,
    ThreadBusy,
    TooManyWaiting,
    thread_busy,
)
from holdfast.runs.launch import Launch, Launcher, key_of
from holdfast.runs.model_errors import ModelTrouble
from holdfast.runs.probe import KILL, TERMINATE, RunnerProbe
from holdfast.runs.reconcile import (
    End,
    Known,
    LaunchWaiting,
    Look,
    LookAtBox,
    Nothing,
    Thresholds,
    decide,
    is_due,
    limit_error,
    timed_out,
)
from holdfast.runs.request import Options, Prompt, check_prompt, default_spec, options_of, timeout_in
from holdfast.runs.run_end import finish
from holdfast.runs.run_log import RunLog
from holdfast.runs.workspace_diff import Changes, Compared, compare
from holdfast.runs.workspace_store import Workspaces
from holdfast.threads.entries import Entry
from holdfast.threads.errors import StreamConflict, StreamError, StreamNotFound
from holdfast.threads.ids import new_entry_id, new_id
from holdfast.threads.projection import Projection
from holdfast.threads.rows import RunFilter, RunRow, ThreadRow
from holdfast.threads.run_events import (
    MAX_WAITING,
    CancelKind,
    Run,
    RunStatus,
    Stage,
    ThreadRuns,
    cancel_requested,
    heartbeat,
    start_id,
    started,
)
from holdfast.threads.service import Threads
from holdfast.threads.store import StreamStore
from holdfast.threads.streams import Change
from holdfast.threads.surface import THREADS
from holdfast.time_limit import time_limit, time_limit_at

log = logging.getLogger(__name__)

SWEEP_SECONDS: Final = 5.0
_LAUNCH_SECONDS: Final = 3600.0
_STEPS: Final = 8
_LONGEST_TITLE: Final = 80
_STOP_SECONDS: Final = 5.0
GO_ON: Final = "Go on."


@dataclass(frozen=True, slots=True)
class Launched:
    thread: str
    run: str
    prompt: str
    """Id of the chat that asked for it."""


@dataclass(frozen=True, slots=True)
class Steered:
    thread: str
    run: str
    """The run that goes on, or the one that was launched."""
    prompt: str
    how: str
    """queued, interrupting or launched."""


@dataclass(slots=True)
class _Heard:
    """When this server last heard of a run."""

    run: str
    signs: int
    at: int
    cancelled_at: int | None = None


@dataclass(frozen=True, slots=True)
class _AtWork:
    run: str
    task: asyncio.Task[None]


class _NotDue(Exception):
    """Somebody else launched what waited."""


class Runs:
    """Owns its launches and its sweep, from `start` to `close`; neither the boxes nor the store. Runs outlive it."""

    def __init__(
        self,
        store: StreamStore,
        threads: Threads,
        projection: Projection,
        boxes: Boxes,
        launching: Launcher,
        run_log: RunLog,
        workspaces: Workspaces,
        *,
        ticks: Callable[[], int],
        thresholds: Thresholds | None = None,
        sweep_seconds: float = SWEEP_SECONDS,
    ) -> None:
        """`ticks` are milliseconds of a clock that only goes forward."""
        self._store = store
        self._threads = threads
        self._projection = projection
        self.boxes = boxes
        self._launching = launching
        self.log = run_log
        self.workspaces = workspaces
        self._ticks = ticks
        self._thresholds = thresholds or Thresholds()
        self._sweep_seconds = sweep_seconds
        self.looking = RunnerProbe(boxes)
        self.report_model_error = ModelTrouble(run_log).tell
        self._heard: dict[str, _Heard] = {}
        """By thread."""
        self._at_work: dict[str, _AtWork] = {}
        """Launches, by thread."""
        self._claiming: Counter[str] = Counter()
        """Threads that are being claimed for one."""
        self._live: dict[str, tuple[str, int]] = {}
        """Threads and epochs of runners that this server knows to be in charge, by run."""
        self._held: dict[str, tuple[str, AbstractContextManager[None]]] = {}
        """Boxes that are not idle while a run is in them, by thread."""
        self._alone: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._due: set[str] = set()
        """Threads to look at soon."""
        self._wake = asyncio.Event()
        self._sweeper: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._stop_observing: Callable[[], None] | None = None
        self._closing = False

    # --- from start to end ---

    async def start(self) -> None:
        """Take up what earlier servers left, and keep watch."""
        self._stop_observing = self._store.observe(self._on_change)
        self._due.update(await self._projection.unsettled())
        self._wake.set()
        self._sweeper = asyncio.create_task(self._keep_sweeping(), name="run sweep")

    async def close(self) -> None:
        """End what this service does by itself. Runs whose runner lives go on; launches are ended as failed."""
        self._closing = True
        if self._stop_observing is not None:
            self._stop_observing()
        tasks = [each.task for each in self._at_work.values()] + list(self._tasks)
        if self._sweeper is not None:
            tasks.append(self._sweeper)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=_STOP_SECONDS)
        for _, held in self._held.values():
            held.__exit__(None, None, None)
        self._held.clear()

    def _on_change(self, change: Change) -> None:
        if not change.path.startswith(THREADS):
            return
        thread = change.path[len(THREADS) :]
        data = change.data
        if change.deleted:
            self._let_go(thread)
            self._live = {run: known for run, known in self._live.items() if known[0] != thread}
        elif b"signal.run.finished" in data or b'"queued"' in data:
            self._due.add(thread)
            self._wake.set()
            for run, (where, _) in list(self._live.items()):
                if where == thread:
                    del self._live[run]  # whether it really ended is on the thread

    async def _keep_sweeping(self) -> None:
        loop = asyncio.get_running_loop()
        swept = loop.time()
        while True:
            with suppress(TimeoutError):
                async with time_limit_at(swept + self._sweep_seconds):
                    await self._wake.wait()
            hurried, self._due = self._due, set()
            self._wake.clear()
            try:
                for thread in hurried:
                    self._own(self._reconcile_quietly(thread))
                if loop.time() >= swept + self._sweep_seconds:
                    swept = loop.time()
                    for thread in set(await self._projection.unsettled()) - hurried:
                        lock = self._alone.get(thread)
                        if lock is None or not lock.locked():  # else somebody is at it, and slow boxes do not pile up
                            self._own(self._reconcile_quietly(thread))
                            await asyncio.sleep(0)
            except Exception as error:  # the store is full or locked: the next sweep may do better
                log.warning("runs could not be looked after, the sweep will try again: %s", error)

    async def sweep(self) -> None:
        """Look after all runs now."""
        for thread in await self._projection.unsettled():
            await self._reconcile_quietly(thread)

    async def _reconcile_quietly(self, thread: str) -> None:
        try:
            await self.reconcile(thread)
        except StreamNotFound:
            self._let_go(thread)
        except (StreamError, BoxError) as error:
            log.warning("the run of thread %s could not be looked after: %s", thread, error)
        except Exception:
            log.exception("the run of thread %s could not be looked after", thread)

    def _own(self, work: Any) -> None:
        task = asyncio.create_task(work, context=Context())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

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
        """Begin a run, on a thread that is there or on a new one, and return once its prompt is on disk."""
        check_prompt(prompt.text)
        if options.spec is None:
            options = replace(options, spec=await self._spec_of(thread))
        harness, choice, _ = self._launching.resolve(options)
        options = replace(options, agent=harness.agent, model=str(choice))
        if options.workspace is not None:
            self.workspaces.check(options.workspace)
        options = self._fitting(options)
        if thread is None:
            title = title or _title(prompt.text)
            try:
                thread = (await self._threads.create(id=new_thread, title=title, labels=labels)).id
            except StreamConflict:
                if new_thread is None or prompt.id is None:
                    raise
                thread = new_thread  # asked for before, and the answer was lost; or somebody else's, and then busy
        if (same := await self._same(thread, prompt)) is not None:
            return same
        row = await self.reconcile(thread, force=True)
        _check_workspace(row.runs, options)
        return await self._claim(thread, prompt, options)

    async def check(self, options: Options, *, thread: str | None = None) -> Options:
        """What a launch would use: the agent and the model by name. Raises what a launch would be refused with."""
        if options.spec is None:
            options = replace(options, spec=await self._spec_of(thread))
        harness, choice, _ = self._launching.resolve(options)
        return self._fitting(replace(options, agent=harness.agent, model=str(choice)))

    async def _spec_of(self, thread: str | None) -> BoxSpec:
        """What the box of a thread was last asked to be: another would take its place, and its files with it."""
        latest = None if thread is None else (await self.log.runs(thread)).latest
        if latest is None or not latest.is_proven:
            return default_spec()
        return options_of("", None, latest.options, None).box

    async def _same(self, thread: str, prompt: Prompt) -> Launched | None:
        """The run that this very prompt has launched already."""
        if prompt.id is None:
            return None
        latest = (await self.log.runs(thread)).latest
        if latest is None or prompt.id not in latest.prompts:
            return None
        return Launched(thread, latest.run, prompt.id)

    def _fitting(self, options: Options) -> Options:
        """Options that the provider can fulfil; raises where it cannot, before anything is made."""
        spec = options.box
        can = self.boxes.provider(spec.provider).capabilities
        if spec.on_idle is OnIdle.HIBERNATE and not {Capability.STOP, Capability.SNAPSHOTS} <= can:
            spec = replace(spec, on_idle=OnIdle.KEEP)
        self.boxes.creation.check(spec)
        return replace(options, spec=spec)

    async def _claim(self, thread: str, prompt: Prompt | None, options: Options) -> Launched:
        """Take the thread for a new run, with its prompt, and with those that wait."""
        run = new_id("r")
        chat = None
        if prompt is not None:
            chat = self.log.entry(
                {"type": "chat", "role": "user", "text": prompt.text},
                id=prompt.id or new_entry_id(),
                author=prompt.author,
            )
        before = ThreadRuns()

        def compose(epoch: int, runs: ThreadRuns) -> list[Entry]:
            nonlocal before
            before = runs
            if runs.live is not None:
                raise thread_busy(thread, runs.live.run)
            if chat is None and not runs.waiting:
                raise _NotDue
            prompts = tuple(each.chat for each in runs.waiting)
            claim = started(
                run=run,
                epoch=epoch,
                agent=options.agent,
                model=options.model or "",
                provider=options.box.provider,
                prompts=prompts if chat is None else (*prompts, chat.id),
                resumes=runs.latest.run if runs.latest is not None else None,
                options=options.to_json(),
            )
            entries = [] if chat is None else [chat]
            return [*entries, self.log.entry(claim, id=start_id(run))]

        self._claiming[thread] += 1
        try:
            epoch = await self.log.claim(thread, compose)
            text = await self._prompt_text(thread, before, None if prompt is None else prompt.text)
            launch = Launch(thread, run, epoch, options, text, before, self._ticks())
            # In a context of its own: what it opens outlives the request that it began with.
            task = asyncio.create_task(self._carry_out(launch), name=f"launch {run}", context=Context())
            self._at_work[thread] = _AtWork(run, task)
        finally:
            self._claiming[thread] -= 1
            if not self._claiming[thread]:
                del self._claiming[thread]
        return Launched(thread, run, before.waiting[-1].chat if chat is None else chat.id)

    async def _prompt_text(self, thread: str, before: ThreadRuns, own: str | None) -> str:
        """What its agent is asked: what waited, and what is new."""
        pending = before.waiting
        texts: dict[str, str] = {}
        if pending:
            wanted = {each.chat for each in pending}
            async for entry in self.log.entries(thread, min(each.since for each in pending)):
                if entry["id"] in wanted:
                    texts[entry["id"]] = str(entry["payload"].get("text", ""))
                    if len(texts) == len(wanted):
                        break
        parts = [texts[each.chat] for each in pending if each.chat in texts]
        return "\n\n".join([*parts, own] if own is not None else parts) or GO_ON

    async def _carry_out(self, launch: Launch) -> None:
        """The rest of a launch, in the background. However it fails, the thread says so."""
        thread, run, timeout = launch.thread, launch.run, launch.options.timeout
        limit = time_limit(min(_LAUNCH_SECONDS, timeout or _LAUNCH_SECONDS))
        try:
            async with limit:
                epoch = await self._launching.carry_out(launch)
            self._live[run] = (thread, epoch)
        except asyncio.CancelledError:
            runs = await asyncio.shield(self.log.runs(thread))
            cancel = runs.latest.cancel if runs.latest is not None and runs.latest.run == run else None
            if cancel is not None:
                end = End(RunStatus.CANCELLED, "cancelled", "it was cancelled before its agent was started")
            else:
                end = End(
                    RunStatus.FAILED,
                    "server_stopped",
                    "the server stopped before its agent was started",
                    "holdfast resume THREAD",
                )
            await asyncio.shield(self.finish(thread, run, end, by="launch"))
            raise
        except RunOver as over:
            log.info("the launch of run %s was given up: %s", run, over)
        except Exception as error:
            code = getattr(error, "code", None)
            if not isinstance(code, str) and not (limit.expired() and timeout):
                log.exception("the launch of run %s failed", run)
            message = getattr(error, "message", None) or str(error) or type(error).__name__
            end = End(RunStatus.FAILED, code or "launch_failed", message, getattr(error, "hint", None))
            if limit.expired() and timeout is not None:
                end = timed_out(timeout)
            try:
                await self.finish(thread, run, end, by="launch")
            except StreamError as trouble:
                log.warning("run %s failed to launch, and its end could not be written yet: %s", run, trouble)
        finally:
            at_work = self._at_work.get(thread)
            if at_work is not None and at_work.run == run:
                del self._at_work[thread]
            self._due.add(thread)
            self._wake.set()

    # --- going on ---

    async def resume(
        self,
        thread: str,
        prompt: Prompt | None = None,
        *,
        agent: str | None = None,
        model: str | None = None,
        change: Callable[[Options], Options] = lambda options: options,
    ) -> Launched:
        """Go on with a thread, as its last run was launched or otherwise."""
        if prompt is not None:
            check_prompt(prompt.text)
            if (same := await self._same(thread, prompt)) is not None:
                return same
        row = await self.reconcile(thread, force=True)
        if row.runs.latest is None and (agent is None or prompt is None):
            raise NothingToResume(f"thread {thread} has had no run", hint=_begin(thread))
        if row.runs.latest is not None and not row.runs.latest.is_proven and agent is None:
            raise NothingToResume(
                f"it cannot be shown that this server launched the last run of thread {thread}",
                hint=f"name the agent: holdfast resume {thread} --agent NAME",
            )
        if row.runs.live is not None:
            raise thread_busy(thread, row.runs.live.run)
        options = change(_next_options(row.runs, agent, model))
        harness, choice, _ = self._launching.resolve(options)
        options = self._fitting(replace(options, agent=harness.agent, model=str(choice)))
        _check_workspace(row.runs, options)
        if prompt is None and not row.runs.waiting:
            prompt = Prompt(GO_ON)
        return await self._claim(thread, prompt, options)

    async def steer(self, thread: str, prompt: Prompt, *, interrupt: bool = False) -> Steered:
        """A prompt for a thread whose run may be going on: it waits for its end, or brings that about."""
        check_prompt(prompt.text)
        if (same := await self._same(thread, prompt)) is not None:
            return Steered(thread, same.run, same.prompt, "launched")
        row = await self.reconcile(thread, force=True)
        run = row.runs.live
        if run is None:
            try:
                launched = await self.resume(thread, prompt)
                return Steered(thread, launched.run, launched.prompt, "launched")
            except ThreadBusy:  # somebody was quicker
                run = (await self.log.runs(thread)).live
                if run is None:
                    raise
        if len(row.runs.waiting) >= MAX_WAITING:
            raise TooManyWaiting(
                f"{MAX_WAITING} prompts wait on thread {thread} already", hint="wait until the run has ended"
            )
        payload: dict[str, Any] = {"type": "chat", "role": "user", "text": prompt.text, "queued": True}
        if interrupt:
            payload["interrupt"] = True
        chat = self.log.entry(payload, id=prompt.id, author=prompt.author)
        await self.log.append(thread, chat)
        if interrupt:
            await self._request_cancel(thread, run, CancelKind.INTERRUPT, prompt.author)
        return Steered(thread, run.run, chat.id, "interrupting" if interrupt else "queued")

    # --- cancelling ---

    async def cancel(self, id: str, *, by: str | None = None) -> RunRow:
        """End a run, or the latest of a thread. One that has ended stays as it is."""
        found = await self.get(id)
        if found.run.live:
            await self._request_cancel(found.thread, found.run, CancelKind.CANCEL, by)
        return await self.get(found.run.run)

    async def _request_cancel(self, thread: str, run: Run, kind: CancelKind, by: str | None) -> None:
        if run.cancel is None or (kind is CancelKind.CANCEL and run.cancel is not kind):
            entry = self.log.entry(cancel_requested(run.run, kind, by), id=f"{kind}-{run.run}")
            await self.log.append(thread, entry)
        at_work = self._at_work.get(thread)
        if at_work is not None and at_work.run == run.run:
            at_work.task.cancel()
            await asyncio.wait((at_work.task,), timeout=_STOP_SECONDS)
            return
        run = (await self.log.runs(thread)).live or run
        if run.live and run.reached(Stage.RUNNER):
            self._own(self.looking.signal(run, TERMINATE))
        elif run.live:
            await self._reconcile_quietly(thread)

    async def forget(self, thread: str) -> None:
        """A thread is to be deleted: end its run, and delete the box that was made for it."""
        run = (await self.log.runs(thread)).live
        if run is not None:
            await self._request_cancel(thread, run, CancelKind.CANCEL, None)
            gone = End(RunStatus.CANCELLED, "thread_deleted", "its thread was deleted")
            await self.finish(thread, run.run, gone, by="reconciler")
        self._let_go(thread)
        row = await self.boxes.rows.of_key(self.boxes.tenant, key_of(thread))
        if row is not None:
            self._own(self._delete_box(row.id))

    async def _delete_box(self, box: str) -> None:
        try:
            await self.boxes.delete(box)
        except BoxError as error:
            log.warning("box %s of a thread that was deleted is still there: %s", box, error)

    # --- looking ---

    async def get(self, id: str) -> RunRow:
        """A run by its id, or the latest of a thread, as it stands. Raises `RunNotFound`."""
        if id.startswith("r-"):
            found = await self._projection.run(id)
            if found is None:
                raise RunNotFound(f"there is no run {id}", hint="holdfast thread list shows what there is")
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
        """The thread of a run. None where there is no such run."""
        found = await self._projection.run(id)
        return None if found is None else found.thread

    async def list(self, wanted: RunFilter) -> list[RunRow]:
        """The newest first."""
        return await self._projection.runs(wanted)

    async def wait(self, thread: str, run: str) -> Run:
        """The run, once it has ended."""
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

    async def run(self, prompt: Prompt, options: Options, **where: Any) -> RunRow:
        """Launch, and wait for the end."""
        launched = await self.launch(prompt, options, **where)
        return RunRow(launched.thread, await self.wait(launched.thread, launched.run))

    async def diagnose(self, id: str) -> Diagnosis:
        """How far the latest run of a thread came, or this run, and what is wrong with it."""
        thread = (await self.get(id)).thread if id.startswith("r-") else id
        runs = (await self.reconcile(thread, force=True)).runs
        if id.startswith("r-") and (runs.latest is None or runs.latest.run != id):
            runs = replace(runs, latest=(await self.get(id)).run)
        run = runs.latest
        look = None if run is None or not run.live else await self.looking.look(run)
        limits = () if run is None or run.box is None else await self.looking.limits(run.box)
        return diagnose(
            thread,
            runs,
            launching=self.is_launching(thread),
            silence=None if run is None else self.silence(thread, run.run),
            look=look,
            limits=limits,
            thresholds=self._thresholds,
        )

    @asynccontextmanager
    async def compared(self, id: str) -> AsyncIterator[Compared]:
        """The workspace of a thread now, against what it began with. Wakes its box."""
        thread = (await self.get(id)).thread
        runs = await self.log.runs(thread)
        box_id = runs.latest.box if runs.latest is not None else None
        if box_id is None or not (runs.latest is not None and runs.latest.is_ours):
            raise NoFiles(f"thread {thread} has no box yet", hint="wait until its run has one")
        base = None
        if runs.workspace is not None:
            self.workspaces.check(runs.workspace)
            base = self.workspaces.path(runs.workspace)
        with self.boxes.using(box_id):
            async with (
                await self.boxes.open(box_id) as box,
                compare(base, box.files.download_tar(box.spec.workdir)) as compared,
            ):
                yield compared

    async def changes(self, id: str) -> Changes:
        """What changed in the workspace of a thread, for people."""
        async with self.compared(id) as compared:
            return await compared.summary()

    # --- for the door ---

    async def beat(self, run: str, epoch: int) -> str | None:
        """The runner lives: write that down. Says how it is to end, if so. Raises `RunOver`."""
        thread, live = await self._living(run, epoch)
        await self.log.append(thread, self.log.entry(heartbeat(run)))
        self._live[run] = (thread, epoch)
        return None if live.cancel is None else live.cancel.value

    async def limit(self, run: str, epoch: int) -> dict[str, str] | None:
        """The error of a run whose agent was killed, where its box ran into a limit. Raises `RunOver`."""
        thread, live = await self._living(run, epoch)
        hits = () if live.box is None else await self.looking.limits(live.box)
        return next((limit_error(hit, thread) for hit in hits), None)

    async def _living(self, run: str, epoch: int) -> tuple[str, Run]:
        """The thread of a run, and the run, if it is the thread's run now, in that epoch."""
        known = self._live.get(run)
        if known is None:
            row = await self._projection.run(run)
            if row is None:
                raise RunNotFound(f"there is no run {run}")
            thread = row.thread
        else:
            thread = known[0]
        live = (await self.log.runs(thread)).live
        if live is None or not live.is_ours or live.run != run or live.epoch != epoch:
            raise RunOver(f"run {run} is over, or another runner's")
        return thread, live

    async def lives(self, thread: str, run: str, epoch: int) -> bool:
        """Whether it is the thread's run now, in that epoch."""
        if self._live.get(run) == (thread, epoch):
            return True
        live = (await self.log.runs(thread)).live
        return live is not None and live.is_ours and live.run == run and live.epoch == epoch

    # --- reconciling ---

    async def reconcile(self, thread: str, *, force: bool = False) -> ThreadRow:
        """The thread as it stands, once everything was done that its run is due. `force` asks the box at once."""
        row = await self.log.row(thread)
        if row.runs.live is None and not is_due(row.runs):
            self._let_go(thread)
            return row
        lock = self._alone.get(thread)
        if lock is None:
            lock = self._alone[thread] = asyncio.Lock()
        async with lock:
            return await self._reconcile(thread, force)

    async def _reconcile(self, thread: str, force: bool) -> ThreadRow:
        thresholds = replace(self._thresholds, look=0) if force else self._thresholds
        look: Look | None = None
        for _ in range(_STEPS):
            # Before the thread is read: a launch that ends meanwhile has left its mark on it, but not on what was read.
            launching = self.is_launching(thread)
            row = await self.log.row(thread)
            runs = row.runs
            self._hold(thread, runs.live)
            known = self._known(thread, runs, look, launching or self.is_launching(thread))
            match decide(runs, known, thresholds):
                case Nothing():
                    return row
                case LookAtBox():
                    assert runs.live is not None
                    look = await self.looking.look(runs.live)
                case End() as end:
                    assert runs.live is not None
                    if await self.finish(thread, runs.live.run, end, by="reconciler"):
                        await self._clean_up(runs.live, look)
                case LaunchWaiting():
                    if self._closing or not await self._launch_waiting(thread, runs):
                        return row
        return await self.log.row(thread)

    def _known(self, thread: str, runs: ThreadRuns, look: Look | None, launching: bool) -> Known:
        now = self._ticks()
        run = runs.live
        if run is None:
            self._heard.pop(thread, None)
            return Known(now, now)
        heard = self._heard.get(thread)
        if heard is None or heard.run != run.run:
            heard = self._heard[thread] = _Heard(run.run, run.signs, now)
        elif heard.signs != run.signs:
            heard.signs, heard.at = run.signs, now
        if run.cancel is not None and heard.cancelled_at is None:
            heard.cancelled_at = now
        timeout = timeout_in(run.options)
        late = timeout is not None and self.log.clock() - run.started_at - timeout * 1000 >= self._thresholds.soft
        return Known(now, heard.at, heard.cancelled_at, launching, look, late)

    def silence(self, thread: str, run: str) -> int | None:
        """Milliseconds since this server heard of a run."""
        heard = self._heard.get(thread)
        return None if heard is None or heard.run != run else self._ticks() - heard.at

    def is_launching(self, thread: str) -> bool:
        return thread in self._claiming or thread in self._at_work

    def _hold(self, thread: str, run: Run | None) -> None:
        """A box with a run in it is not idle, however long its agent thinks."""
        held = self._held.get(thread)
        wanted = None if run is None or not run.is_ours else run.box
        if held is not None and held[0] != wanted:
            del self._held[thread]
            held[1].__exit__(None, None, None)
            held = None
        if held is None and wanted is not None:
            using = self.boxes.using(wanted)
            using.__enter__()
            self._held[thread] = (wanted, using)
            self._own(self.looking.open_door(wanted))

    def _let_go(self, thread: str) -> None:
        self._heard.pop(thread, None)
        if self._held:
            self._hold(thread, None)

    async def _clean_up(self, run: Run, look: Look | None) -> None:
        """What a run that was given up may have left in its box."""
        if look is None or not look.is_over:
            await self.looking.signal(run, KILL)

    async def _launch_waiting(self, thread: str, runs: ThreadRuns) -> bool:
        """Whether there is something to look at again."""
        try:
            options = self._fitting(_next_options(runs, None, None))
            await self._claim(thread, None, options)
        except _NotDue:
            return False
        except ThreadBusy:
            return True
        except (InvalidRun, BoxError) as error:
            log.warning("prompts wait on thread %s and cannot be launched: %s", thread, error)
            return False
        return True

    # --- ending ---

    async def finish(self, thread: str, run: str, end: End, *, by: str) -> bool:
        """Post the end of a run. False where it had ended already, or somebody else is ending it."""
        done = await finish(self.log, thread, run, end, by=by)
        self._live.pop(run, None)
        return done


def _next_options(runs: ThreadRuns, agent: str | None, model: str | None) -> Options:
    """As the last run was launched, unless told otherwise. What others may have written of it is not followed."""
    last = runs.latest
    if last is None or not last.is_proven:
        assert agent is not None
        return Options(agent, model, default_spec())
    # Another agent may speak other models: it gets the one there is, unless one is named.
    kept = last.model or None
    return options_of(agent or last.agent, model or kept, last.options, runs.workspace)


def _begin(thread: str) -> str:
    return f'begin with a prompt and an agent: holdfast resume {thread} "…" --agent NAME'


def _check_workspace(runs: ThreadRuns, options: Options) -> None:
    if options.workspace is not None and runs.count and options.workspace != runs.workspace:
        raise InvalidRun(
            "the thread has its workspace already", hint="leave it out, or launch a run on a thread of its own"
        )


def _title(prompt: str) -> str:
    line = next((line.strip() for line in prompt.splitlines() if line.strip()), prompt.strip())
    return line if len(line) <= _LONGEST_TITLE else f"{line[: _LONGEST_TITLE - 1]}…"
