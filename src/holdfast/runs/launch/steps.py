"""The steps of a launch, from the claim to a running runner: box, workspace, agent, session, runner.

Every step is written on the thread. A step that fails raises, and the caller ends the run with the error.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, Final

from holdfast.api.box.box import Box
from holdfast.api.box.process import Process
from holdfast.api.errors.boxes import (
    BoxError,
)
from holdfast.api.errors.runs import RunOver
from holdfast.api.run.tasks import TOOLS
from holdfast.api.thread.entries import Entry
from holdfast.api.tools.catalogue import tools_of
from holdfast.boxes.network_policy import GUEST_API_URL
from holdfast.boxes.service.boxes import Boxes
from holdfast.harnesses.harness import AbortByLine, Command, Harness, ModelAccess, Place, Rebuilt, Task
from holdfast.harnesses.placement import Agents, Placed
from holdfast.harnesses.runner_archive import boot_argv, stdin_of
from holdfast.harnesses.tool_server import tool_access, tool_files
from holdfast.runs.errors import LaunchFailed
from holdfast.runs.launch.attachments import attached_files, with_attachments
from holdfast.runs.launch.box import LaunchBoxes, RunSetups
from holdfast.runs.launch.context_files import context_hint
from holdfast.runs.launch.handover import HandOver, Transcript, room_for_transcript
from holdfast.runs.launch.hosted import (
    CONNECT_SECONDS,
    HostedRunners,
    is_hosted,
    prompt_fields,
    session_of,
    spawn_runner,
)
from holdfast.runs.launch.launch import NO_RUN, Launch, LaunchBox, report
from holdfast.runs.launch.plan import LaunchPlan, Options
from holdfast.runs.launch.services import start_services
from holdfast.runs.launch.sessions import SessionHow, SessionTranscript, context_note, plan_session
from holdfast.runs.run_log import RunLog
from holdfast.runs.workspace.store import Workspaces
from holdfast.threads.access.credentials import Access, RunScope
from holdfast.threads.checkpoints import Base
from holdfast.threads.run_events import (
    DELTA,
    FINISHED,
    STARTED,
    ThreadRuns,
    conversation_of,
    installing,
    provisioned,
    runner_started,
    services_ready,
)
from holdfast.time_limit import time_limit

log = logging.getLogger(__name__)

RUN_SECONDS: Final = 3 * 24 * 3600
"""A guard against runaway runs. By default, a run has no timeout."""
BEAT_SECONDS: Final = 5
_GRACE_SECONDS: Final = 5
_STEP_SECONDS: Final = 300.0
_INSTALL_SECONDS: Final = 2400.0
_FEED_SECONDS: Final = 30.0
_AT_ONCE: Final = 8


class Launcher:
    """Carries out launches. Keeps no state of a run."""

    def __init__(
        self,
        *,
        log: RunLog,
        boxes: Boxes,
        workspaces: Workspaces,
        agents: Agents,
        access: Access,
        ticks: Callable[[], int],
        network_ready: Callable[[], Awaitable[None]],
        setups: RunSetups | None = None,
        runners: HostedRunners | None = None,
    ) -> None:
        """Agents with a server get the prompts of sessions over `runners`."""
        self._log = log
        self._boxes = boxes
        self._agents = agents
        self._access = access
        self._ticks = ticks
        self._runners = runners
        self._launch_boxes = LaunchBoxes(
            log, boxes, workspaces, ticks=ticks, network_ready=network_ready, setups=setups
        )
        self.start_from = self._launch_boxes.start_from

    async def carry_out(self, launch: Launch, plan: LaunchPlan) -> int:
        """Take all steps. Returns the epoch of the runner once it has received its code."""
        async with self._launch_boxes.prepared(launch) as prepared:
            return await self._start(launch, plan, prepared)

    async def prepare(self, thread: str, options: Options, before: ThreadRuns, base: Base | None) -> str:
        """Give a thread its box without a run: acquire it, and unpack the workspace if it is new. Returns its id."""
        launch = Launch(thread, NO_RUN, 0, options, "", before, self._ticks(), base)
        async with self._launch_boxes.prepared(launch) as prepared:
            return prepared.box.id

    # --- the agent ---

    async def _start(self, launch: Launch, plan: LaunchPlan, prepared: LaunchBox) -> int:
        box, harness = prepared.box, plan.harness
        await self._start_services(launch, box)
        async with time_limit(_INSTALL_SECONDS):
            placed, python = await asyncio.gather(
                self._agents.ensure(
                    box, harness, lambda what, ms: self._append(launch, installing(run=launch.run, what=what, ms=ms))
                ),
                box.python(),
            )
        if self._runners is not None and is_hosted(launch.before, harness, prepared.guest_api):
            return await self._start_hosted(launch, plan, prepared, placed, python, self._runners)
        if launch.options.asks:
            raise LaunchFailed(
                "cannot_ask",
                f"{harness.title} cannot ask for permissions in this box, and may do nothing without them",
                "create a session without --ask, or at a provider whose boxes are on this machine",
            )
        # The runner takes a moment to start and then waits for its code, so we configure the agent meanwhile.
        booting = asyncio.create_task(box.spawn(boot_argv(python), cwd=box.spec.workdir, stdin=True, tree=True))
        try:
            command, token = await self._provision(launch, plan, prepared, placed, python)
            return await self._hand_over(launch, plan, prepared, command, token, await booting)
        except BaseException:
            await asyncio.shield(_end(booting))
            raise

    async def _start_hosted(
        self,
        launch: Launch,
        plan: LaunchPlan,
        prepared: LaunchBox,
        placed: Placed,
        python: tuple[str, ...],
        runners: HostedRunners,
    ) -> int:
        """Send the prompt to the runner of the session, which is started if there is none."""
        box, harness, thread = prepared.box, plan.harness, launch.thread
        runner = runners.connected(thread, box.id)
        known = session_of(runner, launch.before, launch.channel)
        # These tokens are for all runs of the session: the guest API asks which of them is alive.
        issue = partial(self._access.issue_run, thread, "", 0, box.id)
        token = issue(RunScope.MODEL, model=str(plan.model)).token
        state = f"{prepared.home}/.holdfast/threads/{thread}/{harness.name}"
        files = _tool_files(launch, prepared, state, issue(RunScope.DELEGATE).token)
        task = self._task(launch, plan, prepared, placed, python, token, state, bool(files))
        if known is not None:
            how, task = SessionHow.CONTINUED, replace(task, session=known)
        else:
            how, task, _ = await self._session(launch, harness, prepared, task, files)
        await self._report_provisioned(launch, harness, placed, prepared, how)
        if runner is None:
            process = await spawn_runner(
                box,
                python,
                harness,
                task,
                thread=thread,
                url=prepared.guest_api,
                token=issue(RunScope.HUB, agent=harness.name).token,
                state=f"{prepared.home}/.holdfast/sessions/{thread}",
            )
            try:
                runner = await runners.wait(thread, box.id, process.id, CONNECT_SECONDS)
            except BaseException:
                await asyncio.shield(_kill(process))
                raise
        runners.expect(launch.run)
        try:
            epoch = await self._claim_runner(launch, runner.process)
            timeout = self._timeout(launch).get("timeout_left")
            fields = prompt_fields(
                run=launch.run,
                epoch=epoch,
                thread=thread,
                harness=harness,
                task=task,
                attachments=launch.attachments,
                channel=launch.channel,
                timeout=timeout,
            )
            await runners.prompt(runner, launch.run, fields)
        except BaseException:
            runners.forget(launch.run)
            raise
        return epoch

    async def _start_services(self, launch: Launch, box: Box) -> None:
        use = launch.options.environment
        if use is None or not use.services:
            return
        began = self._ticks()
        async with self._boxes.leases.turn(f"services/{box.id}"):  # threads can share a box
            started = await start_services(box, use.services)
        await self._append(launch, services_ready(run=launch.run, services=started, ms=self._ticks() - began))

    async def _provision(
        self, launch: Launch, plan: LaunchPlan, prepared: LaunchBox, placed: Placed, python: tuple[str, ...]
    ) -> tuple[Command, str]:
        """Write the agent's configuration and session. Returns its command, and the runner's token."""
        box, harness, model = prepared.box, plan.harness, plan.model
        # Both tokens are valid only in this box, in the epoch that the runner is about to take.
        by_url = prepared.guest_api != GUEST_API_URL
        issue = partial(
            self._access.issue_run,
            launch.thread,
            launch.run,
            launch.epoch + 1,
            box.id,
            by_url=by_url,
        )
        runner_token = issue(RunScope.RUNNER, agent=harness.name).token
        model_token = issue(RunScope.MODEL, model=str(model)).token
        state = f"{prepared.home}/.holdfast/threads/{launch.thread}/{harness.name}"
        files = _tool_files(launch, prepared, state, issue(RunScope.DELEGATE).token)
        task = self._task(launch, plan, prepared, placed, python, model_token, state, bool(files))
        attached = attached_files(launch.attachments, prepared.home, launch.run)
        task = replace(task, prompt=with_attachments(task.prompt, launch.attachments, tuple(attached)))
        files.update(attached)
        how, task, command = await self._session(launch, harness, prepared, task, files)
        await self._report_provisioned(launch, harness, placed, prepared, how)
        return command, runner_token

    def _task(
        self,
        launch: Launch,
        plan: LaunchPlan,
        prepared: LaunchBox,
        placed: Placed,
        python: tuple[str, ...],
        token: str,
        state: str,
        has_tools: bool,
    ) -> Task:
        model = plan.model
        return Task(
            prompt=launch.prompt,
            place=Place(
                workspace=prepared.box.spec.workdir,
                state=state,
                program=placed.program,
                node=placed.node,
                python=python,
            ),
            model=ModelAccess(
                api=plan.api,
                url=f"{prepared.guest_api}/model",
                token=token,
                model=model.model,
                context_window=model.context_window,
                max_tokens=model.max_tokens,
            ),
            tools=tool_access(state, python) if has_tools else None,
            asks=launch.options.asks,
        )

    async def _report_provisioned(
        self, launch: Launch, harness: Harness, placed: Placed, prepared: LaunchBox, how: SessionHow
    ) -> None:
        await self._append(
            launch,
            provisioned(
                run=launch.run,
                agent=harness.agent,
                version=placed.version,
                ms=self._ticks() - prepared.ready,
                session=how.value,
            ),
        )

    async def _session(
        self, launch: Launch, harness: Harness, prepared: LaunchBox, task: Task, files: dict[str, bytes]
    ) -> tuple[SessionHow, Task, Command]:
        """Write the agent's files, including its session, and the given ones. Returns how the session was made, and the
        agent's command.
        """
        plan = plan_session(launch.before, harness.agent, prepared.box.id, launch.channel)
        if prepared.changed and plan.how is SessionHow.CONTINUED:
            plan = replace(plan, how=SessionHow.REBUILT, session=None)
        how, session = plan.how, plan.session
        commands: tuple[tuple[str, ...], ...] = ()
        if how is SessionHow.REBUILT:
            rebuilt = await rebuild(self._log, launch.thread, launch.run, harness, task, launch.channel)
            if rebuilt is None:
                how = SessionHow.HANDED_OVER if plan.others else SessionHow.NEW
            else:
                session, commands = rebuilt.session, rebuilt.commands
                files.update(rebuilt.files)
        transcript = f"{prepared.home}/.holdfast/threads/{launch.thread}/transcript.txt"
        handover = await self._handover(launch, harness.agent, task.model, transcript) if plan.others else None
        handed_over = None if handover is None else handover.text
        context = context_note(
            launch.before,
            prepared.files,
            prepared.changed or plan.moved,
            handed_over,
            how,
            context_hint(launch.options) if how is not SessionHow.CONTINUED else None,
            launch.channel,
        )
        if handover is not None and handover.file is not None:
            files[transcript] = handover.file.encode("utf-8", "replace")
        task = replace(task, session=session, prompt=harness.prompt(task, context))
        files.update(harness.files(task))
        await self._write(prepared.box, files)
        command = harness.command(task)
        for argv in commands:
            done = await prepared.box.exec(argv, env=command.env, cwd=task.place.workspace, timeout=_STEP_SECONDS)
            if not done.ok:
                raise LaunchFailed(
                    "session_not_loaded",
                    f"{harness.title} did not load its session: {done.stderr.decode(errors='replace')[-500:]}",
                )
        return how, task, command

    async def _handover(self, launch: Launch, agent: str, model: ModelAccess, path: str) -> HandOver | None:
        """Returns what was said and done on the thread since this agent last worked there."""
        last = launch.before.sessions.get(conversation_of(agent, launch.channel))
        room = room_for_transcript(model.context_window, model.max_tokens)

        def make(thread: Iterable[dict[str, Any]]) -> HandOver | None:
            transcript = Transcript()
            for entry in thread:
                payload = entry["payload"]
                if payload["type"] == STARTED and payload.get("run") == launch.run:
                    break
                if last is not None and payload["type"] == FINISHED and payload.get("run") == last.run:
                    transcript = Transcript()
                    continue
                if not payload["type"].endswith(DELTA):
                    transcript.take(entry)
            # The prompt of this run was appended right before its claim.
            transcript.drop_last_prompts()
            return transcript.hand_over(room, path)

        return await self._log.make_of(launch.thread, make)

    async def _write(self, box: Box, files: Mapping[str, bytes]) -> None:
        room = asyncio.Semaphore(_AT_ONCE)

        async def write(path: str, data: bytes) -> None:
            async with room:
                await box.files.write(path, data, mode=0o600)

        async with time_limit(_STEP_SECONDS):
            done = await asyncio.gather(*(write(*each) for each in files.items()), return_exceptions=True)
        for each in done:
            if isinstance(each, BaseException):
                raise each

    # --- the runner ---

    async def _hand_over(
        self, launch: Launch, plan: LaunchPlan, prepared: LaunchBox, command: Command, token: str, process: Process
    ) -> int:
        """Take the next epoch for the runner, and only then send it its code and token."""
        epoch = await self._claim_runner(launch, process.id)
        config = {
            "run": launch.run,
            "thread": launch.thread,
            "agent": plan.harness.name,
            "model": str(plan.model).partition("/")[0],
            "epoch": epoch,
            "url": prepared.guest_api,
            "token": token,
            "argv": list(command.argv),
            "env": dict(command.env),
            "cwd": prepared.box.spec.workdir,
            "stdin": command.stdin,
            "reader": plan.harness.name,
            "abort": _abort(command),
            "state": f"{prepared.home}/.holdfast/runs/{launch.run}",
            "limits": {"seconds": RUN_SECONDS, "grace": _GRACE_SECONDS, **self._timeout(launch)},
            "beat": BEAT_SECONDS,
            **({"driver": plan.harness.name} if command.driver else {}),
        }
        async with time_limit(_FEED_SECONDS):
            await process.write(stdin_of(plan.harness.archive(), config))
            await process.close_stdin()
        return epoch

    async def _claim_runner(self, launch: Launch, process: str) -> int:
        """Take the next epoch for a runner. Returns it."""

        def claimed(epoch: int, runs: ThreadRuns) -> list[Entry]:
            run = runs.live
            if run is None or run.run != launch.run or epoch != launch.epoch + 1:
                raise RunOver(f"run {launch.run} was taken over while it was launched")
            return [self._log.entry(runner_started(run=launch.run, epoch=epoch, process=process))]

        return await self._log.claim(launch.thread, claimed)

    def _timeout(self, launch: Launch) -> dict[str, float]:
        """Returns the limits for the runner, which enforces the timeout even if the server is gone."""
        timeout = launch.options.timeout
        if timeout is None:
            return {}
        return {"timeout": timeout, "timeout_left": max(1.0, timeout - (self._ticks() - launch.began) / 1000)}

    async def _append(self, launch: Launch, payload: dict[str, Any]) -> None:
        await report(self._log, launch, payload)


async def rebuild(
    log: RunLog, thread: str, run: str, harness: Harness, task: Task, channel: str = ""
) -> Rebuilt | None:
    """Rebuild the session of an agent from the entries of a thread before a run. Returns None if there are none."""
    transcript = SessionTranscript(harness.name, without=run, channel=channel)
    return await log.make_of(
        thread, lambda entries: harness.rebuild((each for entry in entries for each in transcript.take(entry)), task)
    )


def _tool_files(launch: Launch, prepared: LaunchBox, state: str, token: str) -> dict[str, bytes]:
    """Returns the files of the tools that the agent gets, or none."""
    tools = (*(TOOLS if launch.options.delegates else ()), *tools_of(launch.options.tools))
    return tool_files(state, prepared.guest_api, token, tools) if tools else {}


async def _end(booting: asyncio.Task[Process]) -> None:
    """Kill a runner that will not get its code."""
    with suppress(BoxError, asyncio.CancelledError):
        await (await booting).kill()


async def _kill(process: Process) -> None:
    with suppress(BoxError):
        await process.kill()


def _abort(command: Command) -> dict[str, Any]:
    if isinstance(command.abort, AbortByLine):
        return {"stdin": command.abort.line}
    return {"signal": command.abort.number}
