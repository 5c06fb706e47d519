"""Launches in progress: a thread is claimed for a run, and the rest happens in the background.

If a launch fails, its run ends with the error, which is then on the thread.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from holdfast.api.errors import Refused
from holdfast.api.errors.boxes import BoxError
from holdfast.api.errors.runs import InvalidRun, RunOver, ThreadBusy
from holdfast.api.ids import new_entry_id, new_id
from holdfast.api.run.info import RunStatus
from holdfast.api.run.runs import Launched
from holdfast.api.session.sessions import SessionState
from holdfast.api.thread.entries import Entry
from holdfast.runs.background import BackgroundTasks
from holdfast.runs.errors import is_session, thread_busy
from holdfast.runs.launch.launch import Launch
from holdfast.runs.launch.plan import LaunchPlan, LaunchPlanner, Options, Prompt, next_options
from holdfast.runs.launch.steps import Launcher
from holdfast.runs.live_runs import LiveRuns
from holdfast.runs.reconcile.rules import End, should_repeat, timed_out
from holdfast.runs.reconcile.run_end import RunEnds
from holdfast.runs.run_log import RunLog
from holdfast.threads.run_events import ThreadRuns, start_id, started
from holdfast.threads.session_events import ATTACHMENTS
from holdfast.time_limit import time_limit

log = logging.getLogger(__name__)

GO_ON: Final = "Go on."
_LAUNCH_SECONDS: Final = 3600.0
_STOP_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True)
class _Underway:
    run: str
    task: asyncio.Task[None]


class _Pending(NamedTuple):
    """A prompt that is on the thread."""

    chat: str
    since: int
    """A position on the thread shortly before it."""


def _channel_of(runs: ThreadRuns, pending: Sequence[_Pending]) -> str:
    """Returns the channel of prompts of a session, which all have the same one."""
    chats = {each.chat for each in pending}
    queued = () if runs.session is None else runs.session.queued
    return next((each.channel for each in queued if each.id in chats), "")


class _NothingWaiting(Exception):
    """Another process has launched the waiting prompts."""


class Launches:
    """The launches of this server. `tasks` owns their tasks."""

    def __init__(
        self,
        log: RunLog,
        planner: LaunchPlanner,
        launcher: Launcher,
        live: LiveRuns,
        ends: RunEnds,
        tasks: BackgroundTasks,
        *,
        on_over: Callable[[str], None],
        ticks: Callable[[], int],
        before_claim: Callable[[str], Awaitable[None]],
    ) -> None:
        """`on_over` is called with the thread when a launch has ended, even if it failed. `before_claim` returns when
        what belongs to the end of the thread's last run is done.
        """
        self._log = log
        self._planner = planner
        self._launcher = launcher
        self._live = live
        self._ends = ends
        self._tasks = tasks
        self._on_over = on_over
        self._before_claim = before_claim
        self._ticks = ticks
        self._underway: dict[str, _Underway] = {}
        """By thread."""
        self._claiming: Counter[str] = Counter()
        """Threads that are being claimed."""
        self._stopped = False

    def stop(self) -> None:
        """Launch no more waiting prompts."""
        self._stopped = True

    def is_launching(self, thread: str) -> bool:
        return thread in self._claiming or thread in self._underway

    async def wait(self, thread: str) -> None:
        """Wait for the end of a launch in progress on a thread."""
        if (underway := self._underway.get(thread)) is not None:
            await asyncio.wait((underway.task,))

    async def cancel(self, thread: str, run: str) -> bool:
        """Cancel the launch of a run. Returns False if it is not in progress."""
        underway = self._underway.get(thread)
        if underway is None or underway.run != run:
            return False
        underway.task.cancel()
        await asyncio.wait((underway.task,), timeout=_STOP_SECONDS)
        return True

    async def launch_waiting(self, thread: str, runs: ThreadRuns) -> bool:
        """Launch a run for the waiting prompts. Returns whether the thread should be read again."""
        if self._stopped:
            return False
        try:
            box = await self._planner.box_of(thread)
            base = (await self._log.row(thread)).lineage.base
            options = next_options(runs, None, None, box, base)
            if runs.latest is not None:  # a task that cannot be started ends with the reason
                options = self._planner.fit(options)
            await self.claim(thread, None, options)
        except _NothingWaiting:
            return False
        except ThreadBusy:
            return True
        except (InvalidRun, BoxError) as error:
            log.warning("cannot launch the waiting prompts of thread %s: %s", thread, error)
            return False
        return True

    async def claim(
        self, thread: str, prompt: Prompt | None, options: Options, plan: LaunchPlan | None = None
    ) -> Launched:
        """Claim the thread for a new run with its prompt and the waiting ones, and start the launch.

        Without a plan, one is made in the background, where an error ends the run. Raises `ThreadBusy`, and `IsSession`
        if only the queue of the thread may launch runs.
        """
        chat = None
        if prompt is not None:
            chat = self._log.entry(
                {"type": "chat", "role": "user", "text": prompt.text},
                id=prompt.id or new_entry_id(),
                author=prompt.author,
            )

        def choose(runs: ThreadRuns) -> list[_Pending]:
            if runs.session is not None:
                raise is_session(thread)
            if chat is None and not runs.waiting:
                raise _NothingWaiting
            return []

        return await self._claim(thread, chat, choose, options, plan)

    async def launch_queued(self, thread: str, prompts: Sequence[str], options: Options) -> Launched | None:
        """Launch a run for these prompts of a session, and for what waits on its thread. Returns None if another
        process was faster, or the session is not running any more.
        """

        def choose(runs: ThreadRuns) -> list[_Pending]:
            session = runs.session
            if session is None or session.state is not SessionState.RUNNING:
                raise _NothingWaiting
            queued = {each.id: each for each in session.queued}
            if not all(each in queued for each in prompts) or not (prompts or runs.waiting):
                raise _NothingWaiting
            return [_Pending(each, queued[each].since) for each in prompts]

        if self._stopped:
            return None
        try:
            return await self._claim(thread, None, choose, options, None)
        except (_NothingWaiting, ThreadBusy):
            return None

    async def _claim(
        self,
        thread: str,
        chat: Entry | None,
        choose: Callable[[ThreadRuns], list[_Pending]],
        options: Options,
        plan: LaunchPlan | None,
    ) -> Launched:
        """`choose` returns further prompts that are on the thread, or raises if there is nothing to launch."""
        run = new_id("r")
        before = ThreadRuns()
        pending: list[_Pending] = []
        channel = ""

        def compose(epoch: int, runs: ThreadRuns) -> list[Entry]:
            nonlocal before, pending, channel
            before = runs
            if runs.live is not None:
                raise thread_busy(thread, runs.live.run)
            pending = choose(runs)
            channel = _channel_of(runs, pending)
            if not channel:  # what waits on the thread, such as the result of a task, is for the usual conversation
                pending = [*(_Pending(each.chat, each.since) for each in runs.waiting), *pending]
            prompts = tuple(each.chat for each in pending)
            claim = started(
                run=run,
                epoch=epoch,
                agent=options.agent,
                model=options.model or "",
                provider=options.box.provider,
                prompts=prompts if chat is None else (*prompts, chat.id),
                resumes=runs.latest.run if runs.latest is not None else None,
                options=options.to_json(),
                channel=channel,
            )
            entries = [] if chat is None else [chat]
            return [*entries, self._log.entry(claim, id=start_id(run))]

        self._claiming[thread] += 1
        try:
            await self._before_claim(thread)
            epoch = await self._log.claim(thread, compose)
            base = (await self._log.row(thread)).lineage.base
            own = None if chat is None else str(chat.payload["text"])
            text, attachments = await self._prompt_contents(thread, pending, own)
            launch = Launch(thread, run, epoch, options, text, before, self._ticks(), base, attachments, channel)
            task = self._tasks.start(self._carry_out(launch, plan), name=f"launch {run}")
            self._underway[thread] = _Underway(run, task)
        finally:
            self._claiming[thread] -= 1
            if not self._claiming[thread]:
                del self._claiming[thread]
        return Launched(thread, run, pending[-1].chat if chat is None else chat.id)

    async def _prompt_contents(
        self, thread: str, pending: Sequence[_Pending], own: str | None
    ) -> tuple[str, tuple[dict[str, Any], ...]]:
        """Returns the waiting prompts and the new one, and what is attached to them."""
        texts: dict[str, str] = {}
        attachments: list[dict[str, Any]] = []
        if pending:
            wanted = {each.chat for each in pending}
            async for entry in self._log.entries(thread, min(each.since for each in pending)):
                if entry["id"] in wanted:
                    texts[entry["id"]] = str(entry["payload"].get("text", ""))
                    attachments += entry["payload"].get(ATTACHMENTS) or ()
                    if len(texts) == len(wanted):
                        break
        parts = [texts[each.chat] for each in pending if each.chat in texts]
        return "\n\n".join([*parts, own] if own is not None else parts) or GO_ON, tuple(attachments)

    async def _carry_out(self, launch: Launch, plan: LaunchPlan | None) -> None:
        thread, run, timeout = launch.thread, launch.run, launch.options.timeout
        limit = time_limit(min(_LAUNCH_SECONDS, timeout or _LAUNCH_SECONDS))
        try:
            async with limit:
                epoch = await self._launcher.carry_out(launch, plan or self._planner.plan(launch.options))
            self._live.remember(thread, run, epoch)
        except asyncio.CancelledError:
            await asyncio.shield(self._end_cancelled(thread, run))
            raise
        except RunOver as over:
            log.info("the launch of run %s was stopped: %s", run, over)
        except Exception as error:
            timed = timeout is not None and limit.expired()
            if not isinstance(getattr(error, "code", None), str) and not timed:
                log.exception("the launch of run %s failed", run)
            try:
                await self._ends.post(thread, run, timed_out(timeout) if timed else _end_of(error), by="launch")
            except Refused as trouble:
                log.warning("the launch of run %s failed, and its end cannot be written yet: %s", run, trouble)
        finally:
            underway = self._underway.get(thread)
            if underway is not None and underway.run == run:
                del self._underway[thread]
            self._on_over(thread)

    async def _end_cancelled(self, thread: str, run: str) -> None:
        latest = (await self._log.runs(thread)).latest
        if latest is not None and latest.run == run and latest.cancel is not None:
            end = End(RunStatus.CANCELLED, "cancelled", "it was cancelled before its agent was started")
        else:
            again = latest is not None and latest.run == run and should_repeat(latest)
            end = End(
                RunStatus.FAILED,
                "server_stopped",
                f"the server stopped before its agent was started{': it is launched again' if again else ''}",
                None if again else "holdfast resume THREAD",
                again=again,
            )
        await self._ends.post(thread, run, end, by="launch")


def _end_of(error: Exception) -> End:
    code = getattr(error, "code", None)
    message = getattr(error, "message", None) or str(error) or type(error).__name__
    return End(RunStatus.FAILED, code or "launch_failed", message, getattr(error, "hint", None))
