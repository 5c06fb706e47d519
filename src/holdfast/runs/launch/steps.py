"""The steps of a launch, from the claim to a running runner: box, workspace, agent, session, runner.

Every step is written on the thread. A step that fails raises, and the caller ends the run with the error.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol

from holdfast.api.box.box import Box, Liveness
from holdfast.api.box.network import Network, NetworkPolicy
from holdfast.api.box.process import Process
from holdfast.api.box.records import BoxState, Owner
from holdfast.api.box.spec import BoxSpec
from holdfast.api.environments import EnvironmentUse
from holdfast.api.errors.boxes import (
    BoxConflict,
    BoxError,
    BoxGone,
    BoxStopped,
    BoxUnreachable,
    SnapshotNotFound,
    Unsupported,
)
from holdfast.api.errors.runs import RunOver
from holdfast.api.run.tasks import TOOLS
from holdfast.api.thread.entries import Entry
from holdfast.api.tools.catalogue import tools_of
from holdfast.boxes.capabilities import Capability
from holdfast.boxes.labels import BASE, BASE_LOST, KEY, MOVED_FROM, TENANT
from holdfast.boxes.network_policy import GUEST_API_URL
from holdfast.boxes.rows import BoxRow
from holdfast.boxes.service.acquire_rules import Acquired, BaseFiles, How
from holdfast.boxes.service.boxes import Boxes
from holdfast.boxes.workspace_copy import NOTES, home_of, is_noted
from holdfast.harnesses.harness import AbortByLine, Command, Harness, ModelAccess, Place, Rebuilt, Task
from holdfast.harnesses.placement import Agents, Placed
from holdfast.harnesses.runner_archive import boot_argv, stdin_of
from holdfast.harnesses.tool_server import tool_access, tool_files
from holdfast.runs.errors import LaunchFailed
from holdfast.runs.launch.context_files import context_hint
from holdfast.runs.launch.handover import HandOver, Transcript, room_for_transcript
from holdfast.runs.launch.hosted import CONNECT_SECONDS, AgentHub, is_hosted, prompt_fields, session_of, spawn_runner
from holdfast.runs.launch.plan import LaunchPlan, Options, key_of
from holdfast.runs.launch.services import start_services
from holdfast.runs.launch.sessions import FilesHow, SessionHow, SessionTranscript, context_note, plan_session
from holdfast.runs.run_log import RunLog
from holdfast.runs.workspace.store import Workspaces
from holdfast.threads.access.credentials import Access, RunScope
from holdfast.threads.checkpoints import Base
from holdfast.threads.run_events import (
    DELTA,
    FINISHED,
    STARTED,
    ThreadRuns,
    box_found,
    conversation_of,
    environment_used,
    installing,
    provisioned,
    runner_started,
    services_ready,
    setup_run,
)
from holdfast.time_limit import time_limit

log = logging.getLogger(__name__)

RUN_SECONDS: Final = 3 * 24 * 3600
"""A guard against runaway runs. By default, a run has no timeout."""
BEAT_SECONDS: Final = 5
_GRACE_SECONDS: Final = 5
_BOX_SECONDS: Final = 900.0
_GIT_IDENTITY: Final = b"[user]\n\tname = Holdfast agent\n\temail = agent@holdfast.invalid\n"
_BOX_TRIES: Final = 4
_SETUP_TRIES: Final = 3
_BOX_PAUSE: Final = 0.3
_STEP_SECONDS: Final = 300.0
_INSTALL_SECONDS: Final = 2400.0
_FEED_SECONDS: Final = 30.0
_AT_ONCE: Final = 8
_REMEMBERED: Final = 10_000
_NO_RUN: Final = ""
"""In place of a run: a thread gets its box before it has one."""


@dataclass(frozen=True, slots=True)
class Launch:
    """A run that has claimed its thread."""

    thread: str
    run: str
    epoch: int
    options: Options
    prompt: str
    before: ThreadRuns
    """The thread's runs before the claim."""
    began: int
    """The time of the claim, in ticks."""
    base: Base | None = None
    """The files that the box has to start from."""
    attachments: tuple[dict[str, Any], ...] = ()
    """Files and images of its prompts."""
    channel: str = ""
    """Of a session: the channel of its prompts, which have a conversation of their own."""

    @property
    def is_fork(self) -> bool:
        """Whether it starts with the files of another box: until the thread has had a box."""
        last = self.before.latest
        return self.options.forks is not None and (last is None or last.box is None)


@dataclass(frozen=True, slots=True)
class LaunchBox:
    """The box of a launch, and what is in it."""

    box: Box
    files: FilesHow
    changed: bool
    """Whether the thread's last run was in another box."""
    home: str
    guest_api: str
    ready: int
    """The time when it was ready, in ticks."""


class RunSetups(Protocol):
    """The setups of environments, for runs."""

    async def ensure(
        self, use: EnvironmentUse, spec: BoxSpec, workspace: Path | None, on_build: Callable[[], Awaitable[None]]
    ) -> tuple[str, bool]:
        """Returns the snapshot that a new box starts from, and whether it was built now. Calls `on_build` first if it
        has to be built."""
        ...


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
        hub: AgentHub | None = None,
    ) -> None:
        self._log = log
        self._boxes = boxes
        self._workspaces = workspaces
        self._agents = agents
        self._access = access
        self._ticks = ticks
        self._network_ready = network_ready
        self._setups = setups
        self.hub = hub
        """Set when there are sessions."""
        self._homes: OrderedDict[str, str] = OrderedDict()

    async def carry_out(self, launch: Launch, plan: LaunchPlan) -> int:
        """Take all steps. Returns the epoch of the runner once it has received its code."""
        async with self._prepared(launch) as prepared:
            return await self._start(launch, plan, prepared)

    async def prepare(self, thread: str, options: Options, before: ThreadRuns, base: Base | None) -> str:
        """Give a thread its box without a run: acquire it, and unpack the workspace if it is new. Returns its id."""
        launch = Launch(thread, _NO_RUN, 0, options, "", before, self._ticks(), base)
        async with self._prepared(launch) as prepared:
            return prepared.box.id

    @asynccontextmanager
    async def _prepared(self, launch: Launch) -> AsyncIterator[LaunchBox]:
        """Yields the box of a launch, which is in use until the end of the block."""
        began = self._ticks()
        await self._report_environment(launch)
        moved_from = await self._ready_for(launch)
        for left in reversed(range(_BOX_TRIES)):
            acquired = await self._acquire(launch)
            with self._boxes.using(acquired.row.id):
                try:
                    prepared = await self._open(launch, acquired, began, moved_from)
                except (BoxStopped, BoxGone, BoxUnreachable, BoxConflict):
                    if not left:
                        raise
                else:
                    async with prepared.box:
                        yield prepared
                    return
            # The box was about to end or to move: for example, the previous run was killed with everything in it.
            await asyncio.sleep(_BOX_PAUSE)
        raise AssertionError("the last try returns or raises")

    # --- the box ---

    async def _ready_for(self, launch: Launch) -> BoxRow | None:
        """Move the thread's box if this run wants another machine. Returns the old box if it was moved."""
        spec = launch.options.box
        if spec.network.mode is not Network.NONE:
            await self._network_ready()
        if launch.options.shares is not None:
            return None  # the box is another thread's, and stays as it is
        row = await self._boxes.of_key(key_of(launch.thread))
        if row is None:
            return None
        if launch.base is not None and row.labels.get(BASE) != launch.base.id:
            # Its files are not those of this conversation. What it has to start from may be of another machine than
            # this run wants, so that comes first.
            try:
                row = (await self.start_from(launch.thread, replace(spec, **_machine(launch.base)), launch.base)).row
            except SnapshotNotFound:
                return None  # the box is made without them, unless they are there and cannot be restored
        if not self._boxes.differs(row, spec):
            if launch.options.fresh:
                await self._retire(row)
            return None
        # Another provider is a choice: what else runs in the box is not ended for it.
        stops = Capability.STOP in self._boxes.provider(row.provider).capabilities
        try:
            moved = await self._boxes.move(row.id, lambda _: spec, stop=stops and row.provider == spec.provider)
        except BoxGone:
            return None
        return moved.source

    async def start_from(self, thread: str, spec: BoxSpec, base: Base) -> Acquired:
        """Returns the box of a thread that was forked or rewound. A box with other files is replaced."""
        if spec.network.mode is not Network.NONE:
            await self._network_ready()
        return await self._boxes.acquire(
            key_of(thread), spec, owner=Owner(thread=thread), timeout=_BOX_SECONDS, base=_base_files(base)
        )

    async def _report_environment(self, launch: Launch) -> None:
        use = launch.options.environment
        if use is not None:
            await self._append(
                launch,
                environment_used(run=launch.run, environment=use.reference, digest=use.digest, warnings=use.warnings),
            )

    async def _acquire(self, launch: Launch) -> Acquired:
        options, use = launch.options, launch.options.environment
        owner = Owner(thread=launch.thread, environment=None if use is None or use.is_file else use.group)
        key, spec = key_of(options.shares or launch.thread), options.box
        if options.shares is not None:
            row = await self._boxes.of_key(key)
            if row is None:
                raise LaunchFailed(
                    "box_gone",
                    f"the box of thread {options.shares}, which this thread shares, is gone",
                    f"continue that thread first: holdfast resume {options.shares}",
                )
            spec, owner = row.spec, row.owner
        elif launch.is_fork and await self._boxes.of_key(key) is None:
            assert options.forks is not None
            with suppress(BoxConflict):  # an earlier attempt has made it
                await self._boxes.fork(options.forks, owner=owner, key=key)
        base = None if options.shares is not None else _base_files(launch.base)
        for left in reversed(range(_SETUP_TRIES)):
            start = await self._set_up(launch, key, base)
            try:
                return await self._boxes.acquire(key, spec, owner=owner, timeout=_BOX_SECONDS, start=start, base=base)
            except SnapshotNotFound:
                if launch.base is not None and base is not None and base.required and await self._is_gone(launch.base):
                    base = replace(base, required=False)  # as for a thread whose box is gone
                elif start is None or not left:
                    raise  # otherwise, the setup was deleted meanwhile because there are newer ones
        raise AssertionError("the last try returns or raises")

    async def _is_gone(self, base: Base) -> bool:
        try:
            await self._boxes.find_snapshot(base.files.snapshot, base.files.provider)
        except SnapshotNotFound:
            return True
        return False

    async def _set_up(self, launch: Launch, key: str, base: BaseFiles | None) -> str | None:
        """Returns the snapshot with the setup of the environment, if a new box is needed."""
        use, spec = launch.options.environment, launch.options.box
        if use is None or not use.setup or self._setups is None or (base is not None and base.required):
            return None
        row = await self._boxes.of_key(key)
        if row is not None and (await self._boxes.look(row))[0] is not Liveness.GONE:
            return None
        own = {KEY: key, TENANT: self._boxes.tenant, **({} if base is None else {BASE: base.id})}
        if await self._boxes.provider(spec.provider).snapshots(own):
            return None  # the box had these files, and what came of them
        began = self._ticks()
        digest = launch.options.workspace or launch.before.workspace

        async def on_build() -> None:
            await self._append(launch, setup_run(run=launch.run, environment=use.reference, ms=None))

        workspace = None if digest is None else self._workspaces.path(digest)
        snapshot, built = await self._setups.ensure(use, spec, workspace, on_build)
        ms = self._ticks() - began
        await self._append(launch, setup_run(run=launch.run, environment=use.reference, ms=ms, built=built))
        return snapshot

    async def _retire(self, row: BoxRow) -> None:
        """Delete a box. If the provider has snapshots, the next box of its key starts from its files."""
        capabilities = self._boxes.provider(row.provider).capabilities
        with suppress(BoxGone, Unsupported):
            if Capability.STOP in capabilities and row.state is not BoxState.STOPPED:
                await self._boxes.stop(row.id)
            if Capability.SNAPSHOTS in capabilities:
                await self._boxes.snapshot(row.id)
        await self._boxes.delete(row.id)

    async def _open(self, launch: Launch, acquired: Acquired, began: int, moved_from: BoxRow | None) -> LaunchBox:
        """Open the box and prepare it. The caller closes it."""
        box = await self._boxes.open(acquired.row.id)
        try:
            return await self._prepare(launch, acquired, box, began, moved_from)
        except BaseException:
            await box.close()
            raise

    async def _prepare(
        self, launch: Launch, acquired: Acquired, box: Box, began: int, moved_from: BoxRow | None
    ) -> LaunchBox:
        """Unpack the workspace, and let the box reach the guest API."""
        last = launch.before.latest
        home, guest_api = await asyncio.gather(self._home(box), box.open_guest_api())
        note = f"{home}/{NOTES}/{launch.thread}"
        known = last is not None and last.box == box.id and last.session is not None
        files = _FILES[acquired.how]
        exact = _is_exact(launch, acquired.row)
        digest = launch.options.workspace or launch.before.workspace
        if not known and (acquired.how is How.CREATED or not await is_noted(box, home, launch.thread)):
            # An interrupted launch leaves no such note, so the workspace is unpacked again. A moved box has it.
            if launch.is_fork:
                await self._forget_sessions(box, home)
                files = FilesHow.FORK
            elif not _is_from_base(launch, acquired.row):
                files = await self._unpack(box, digest)
            await box.files.write(note, json.dumps({"workspace": digest}).encode())
        if not known:
            await self._identify(box, home)
        changed = last is not None and last.box is not None and last.box != box.id
        if changed and exact:
            files = FilesHow.CHECKPOINT
        how = "live" if acquired.how is How.RESUMED and acquired.why == "it was there" else _HOW[acquired.how]
        why = "" if how == "live" else acquired.why
        if moved_from is not None and acquired.row.labels.get(MOVED_FROM) == moved_from.id:
            how, why = "moved", f"moved from box {moved_from.id} of {moved_from.provider}"
        await self._append(
            launch,
            box_found(
                run=launch.run,
                box=box.id,
                provider=acquired.row.provider,
                how=how,
                files=files.value,
                ms=self._ticks() - began,
                why=why,
                isolation=self._isolation(acquired),
            ),
        )
        return LaunchBox(box, files, changed, home, guest_api, self._ticks())

    def _isolation(self, acquired: Acquired) -> str:
        row = acquired.row
        isolation, policy = self._boxes.provider(row.provider).isolation, row.spec.network
        return describe_isolation(isolation, policy, self._boxes.secrets.exposed(policy))

    async def _unpack(self, box: Box, digest: str | None) -> FilesHow:
        if digest is None:
            return FilesHow.EMPTY
        async with time_limit(_STEP_SECONDS):
            await box.files.upload_tar(self._workspaces.read(digest), box.spec.workdir)
        return FilesHow.WORKSPACE

    async def _forget_sessions(self, box: Box, home: str) -> None:
        """Delete what the agents of the copied box kept: their sessions and tokens are not those of this thread."""
        for folder in ("threads", "runs"):
            path = f"{home}/.holdfast/{folder}"
            if await box.files.exists(path):
                await box.files.delete(path, recursive=True)

    async def _identify(self, box: Box, home: str) -> None:
        """Give git a name and an address, so that the agent can commit. Settings of the repository take precedence."""
        configuration = f"{home}/.config/git/config"
        if not await box.files.exists(configuration):
            await box.files.write(configuration, _GIT_IDENTITY)

    async def _home(self, box: Box) -> str:
        home = self._homes.get(box.id)
        if home is None:
            home = await home_of(box)
            self._homes[box.id] = home
            while len(self._homes) > _REMEMBERED:
                self._homes.popitem(last=False)
        return home

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
        if self.hub is not None and is_hosted(launch.before, harness, prepared.guest_api):
            return await self._start_hosted(launch, plan, prepared, placed, python, self.hub)
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
        hub: AgentHub,
    ) -> int:
        """Send the prompt to the runner of the session, which is started if there is none."""
        box, harness, thread = prepared.box, plan.harness, launch.thread
        runner = hub.connected(thread, box.id)
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
                runner = await hub.wait(thread, box.id, process.id, CONNECT_SECONDS)
            except BaseException:
                await asyncio.shield(_kill(process))
                raise
        hub.expect(launch.run)
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
            await hub.prompt(runner, launch.run, fields)
        except BaseException:
            hub.forget(launch.run)
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
        if launch.run == _NO_RUN:
            return  # the caller reports
        await self._log.append(launch.thread, self._log.entry(payload))


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


def _base_files(base: Base | None) -> BaseFiles | None:
    return None if base is None else BaseFiles(base.id, base.files.snapshot)


def _machine(base: Base) -> dict[str, Any]:
    return {"provider": base.files.provider, "image": base.files.image}


def _is_from_base(launch: Launch, row: BoxRow) -> bool:
    return launch.base is not None and row.labels.get(BASE) == launch.base.id and BASE_LOST not in row.labels


def _is_exact(launch: Launch, row: BoxRow) -> bool:
    """Returns whether the box has the files of the end of the last turn, because the thread was forked or rewound."""
    base, last = launch.base, launch.before.latest
    if base is None or last is None or last.run != base.run:
        return False
    return _is_from_base(launch, row) and row.snapshot == base.files.snapshot


_FILES: Final = {How.RESUMED: FilesHow.KEPT, How.RESTORED: FilesHow.SNAPSHOT, How.CREATED: FilesHow.EMPTY}
_HOW: Final = {How.RESUMED: "started", How.RESTORED: "restored", How.CREATED: "created"}


def _abort(command: Command) -> dict[str, Any]:
    if isinstance(command.abort, AbortByLine):
        return {"stdin": command.abort.line}
    return {"signal": command.abort.number}


def describe_isolation(isolation: str, policy: NetworkPolicy, exposed: Collection[str]) -> str:
    """Describes for people what separates a box from the rest. `exposed` are the secrets whose values are in it."""
    network = "no network" if policy.mode is Network.NONE else f"network {policy.mode}"
    outside = [use for use in policy.secrets if use.partition(":")[0] not in exposed]
    secrets = f"secrets outside of it: {', '.join(outside)}" if outside else ""
    loud = f"SECRETS IN THE BOX: {', '.join(exposed)}" if exposed else ""
    return ", ".join(filter(None, (isolation, network, secrets, loud)))
