"""The interpreter: a persistent Python in a box, with callbacks to this process, and a thread that tells what happened.

    async with Interpreter(template="data", model="main") as py:
        await py.execute("import pandas as pd; df = pd.read_csv('context/sales.csv')")
        answer = await py.execute("SUBMIT(total=df.amount.sum())")

What the code does wrong is a result. What keeps it from running at all raises.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from holdfast.api.box.box import Box
from holdfast.api.box.spec import BoxSpec
from holdfast.api.errors.boxes import BoxError
from holdfast.api.errors.interpreters import (
    InterpreterError,
    InvalidInterpreter,
    InvalidSubmission,
    KernelLost,
    KernelUnreachable,
)
from holdfast.api.ids import new_id
from holdfast.api.limits import OUTPUT_LIMIT
from holdfast.interpreter.bridge.bridge import Bridge, Delegate, Turn
from holdfast.interpreter.bridge.budget import Budget, Limits
from holdfast.interpreter.bridge.children import ALONE_SECONDS, ChildLimits, Children, Parent, collected
from holdfast.interpreter.bridge.submit_fields import Given as GivenField
from holdfast.interpreter.bridge.submit_fields import OutputField, check
from holdfast.interpreter.bridge.tools import Tool, ToolSignature
from holdfast.interpreter.events import Building, Events
from holdfast.interpreter.host import Host
from holdfast.interpreter.kernel import state
from holdfast.interpreter.kernel.context import Context, ContextReset
from holdfast.interpreter.kernel.execution import Printed
from holdfast.interpreter.kernel.kernel import Kernels
from holdfast.interpreter.kernel.outcomes import entry_of, read_value, with_images, with_outcome
from holdfast.interpreter.kernel.start import LABEL, open_kernel
from holdfast.interpreter.kernel.state import Checkpoint, State
from holdfast.interpreter.lazy_record import LazyRecord
from holdfast.interpreter.lineage import BranchOf, ChildOf, Lineage
from holdfast.interpreter.record import ENDED, EXECUTION, STARTED, STATE, WORKSPACE
from holdfast.interpreter.results import Artifact, CodeError, Execution, Saved
from holdfast.interpreter.tracing import trace_execution
from holdfast.interpreter.validation import (
    Restore,
    check_count,
    check_execution_id,
    check_id,
    check_memory,
    check_restore,
    check_timeout,
    ship_variables,
)
from holdfast.interpreter.workspace.volume_sessions import Sessions
from holdfast.interpreter.workspace.volumes import volume_name
from holdfast.interpreter.workspace.workspace import Kind, Transition, Workspace, WorkspaceConfig

EXECUTION_SECONDS: Final = 900.0
_CODE_NOTED: Final = 100_000
RESULT_LOST: Final = "ResultLost"
"""The kind of error of an execution whose end nobody saw."""
_Run = Callable[[Context, Turn, Mapping[str, str]], Awaitable[Execution]]
_NAMES_NOTED: Final = 200


class Interpreter:
    """Owns its box, unless it was given an id: then the box, and what it has in memory, is found again by that."""

    def __init__(
        self,
        *,
        id: str | None = None,
        template: str | None = None,
        model: str | None = None,
        host: Host | None = None,
        spec: BoxSpec | None = None,
        tools: Mapping[str, Tool] | Sequence[Tool] | None = None,
        output_fields: Sequence[GivenField] | Mapping[str, Any] | None = None,
        limits: Limits | None = None,
        budget: Budget | None = None,
        timeout: float | None = EXECUTION_SECONDS,
        output_limit: int = OUTPUT_LIMIT,
        memory: int | None = None,
        python: Sequence[str] | None = None,
        repo_url: str | Path | None = None,
        ref: str | None = None,
        context_paths: Sequence[str | Path] | None = None,
        volume: str | None = None,
        workspace: str | None = None,
        user: str = "default",
        tenant: str = "default",
        thread: str | None = None,
        delegate: Delegate | None = None,
        depth: int = 0,
        iterations: int | None = None,
        keep: bool | None = None,
        roots: Sequence[Path] | None = None,
        begun: Sequence[str] = (),
        durable: bool = False,
        restore: Restore | None = None,
        lineage: Lineage | None = None,
    ) -> None:
        """`template` is what the box is made of; `model` is what `llm_query` asks (`NAME` or `NAME/MODEL`). `host` is
        where boxes, the thread and models come from: the server of this machine, where nothing is said. `memory`
        bounds each context, in bytes. `keep`: the box outlives this; it does where an id was given. `workspace` names
        what several work on: its volume is theirs together, and each `user` has sessions on it. `begun` are executions
        that an earlier process began: each is to be resumed. `durable`: nothing runs before its beginning is on disk.
        `restore="fork"`: a live fork is made before each execution; where code has to be killed, or kills its process,
        what it had in memory before is there again. `lineage` is for interpreters that another one makes.
        """
        if budget is not None and limits is not None:
            raise InvalidInterpreter("a budget has its limits", hint="give limits or a budget, not both")
        self.id: str = new_id("i") if id is None else check_id(id)
        self.template = template
        self.model = model
        self.timeout: float | None = check_timeout(timeout)
        self.output_limit: int = check_count("the output limit", output_limit) or 0
        self._restore = check_restore(restore)
        check_count("the depth", depth)
        check_count("the number of iterations", iterations)
        self.keep: bool = id is not None if keep is None else keep
        self.events = Events()
        self._host = host
        self._owns_host = host is None
        self._spec = spec or BoxSpec()
        if not self.keep:
            self._spec = collected(self._spec)
        self._memory = check_memory(memory)
        self._python = python
        if workspace is not None and volume is None:
            volume = volume_name(tenant, workspace)
        self._sessions = Sessions(workspace or "default", user)
        self._wanted = WorkspaceConfig(repo_url, ref, context_paths, volume)
        self._roots = roots
        self._begun = tuple(begun)
        self._durable = durable
        self._budget = budget or Budget(limits)
        self._lineage = lineage
        above = None if lineage is None else lineage.parent
        branch = lineage if isinstance(lineage, BranchOf) else None
        self._record: LazyRecord = LazyRecord(self.id, thread) if branch is None else branch.parent._record
        self._bridge = Bridge(
            budget=self._budget,
            complete=self._complete,
            model=model,
            delegate=delegate,
            tools=tools,
            output_fields=output_fields,
            record=self._record,
            depth=depth,
            iterations=iterations,
        )
        self._workspace: Workspace | None = None if branch is None else branch.parent._workspace
        self._kernels: Kernels | None = None if branch is None else branch.parent._kernels
        self._context: Context | None = None if branch is None else branch.context
        self._transition: Transition | None = None if branch is None else branch.parent._transition
        self._below: list[Interpreter] = []
        """Its branches and children: they end with it."""
        self._children: Children | None = None
        """Of the whole tree."""
        self._as_parent: Parent | None = None
        if isinstance(lineage, ChildOf):
            self._children = lineage.children
            self._workspace = self._workspace_in(lineage.child.host, lineage.child.spec, lineage.child.box)
        if branch is not None:
            branch.context.handler = self._bridge.handle
        self._submitted: Mapping[str, Any] | None = None
        self._starting = asyncio.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None if above is None else above._loop
        """The one that it was started in, and lives in."""
        self._closed = False
        self._executions = 0
        self._made_at = time.monotonic()

    # --- what it is ---

    @property
    def tools(self) -> dict[str, Tool]:
        """Functions that code in the box can call. May be changed between executions."""
        return self._bridge.tools

    @property
    def tool_signatures(self) -> tuple[ToolSignature, ...]:
        """What a model is to be told of all that it can call."""
        return self._bridge.signatures()

    @property
    def output_fields(self) -> tuple[OutputField, ...]:
        """What SUBMIT takes."""
        return self._bridge.output_fields

    @output_fields.setter
    def output_fields(self, given: Sequence[GivenField] | Mapping[str, Any] | None) -> None:
        self._bridge.output_fields = given

    @property
    def budget(self) -> Budget:
        return self._budget

    @property
    def box(self) -> Box:
        """Raises where it is not started."""
        if self._workspace is None or self._workspace.box is None:
            raise InvalidInterpreter("this interpreter is not started", hint="await its start(), or use `async with`")
        return self._workspace.box

    @property
    def thread(self) -> str:
        """The id of its thread."""
        return self._record.thread

    @property
    def is_branch(self) -> bool:
        """It was forked off another, and ends with that."""
        return isinstance(self._lineage, BranchOf)

    @property
    def is_executing(self) -> bool:
        """Code of it runs now."""
        return self._context is not None and self._context.is_running

    def runtime_metadata(self) -> dict[str, Any]:
        """Where it runs, on what, and what it has used so far."""
        box = self._workspace.box if self._workspace is not None else None
        transition, spent = self._transition, self._budget.spent
        return {
            "id": self.id,
            "thread": self.thread,
            "started": self._context is not None,
            "template": self.template,
            "model": self.model,
            "box": None if box is None else box.id,
            "provider": self._spec.provider,
            "image": self._spec.image,
            "volume": None if self._workspace is None else self._workspace.config.volume,
            "workspace": self._sessions.workspace,
            "user": self._sessions.user,
            "session_revision": self._sessions.revision,
            "workdir": self._spec.workdir,
            "context": None if self._context is None else self._context.id,
            "python": None if self._context is None else self._context.python,
            "transition": None if transition is None else {"kind": transition.kind.value, "reason": transition.reason},
            "executions": self._executions,
            "calls": spent.calls,
            "tokens": spent.tokens,
            "cost": spent.cost,
        }

    # --- from start to end ---

    async def start(self) -> Self:
        """Have a box with a Python in it. Starting one that is started does nothing."""
        self._check_loop()
        async with self._starting:
            if self._closed:
                raise InvalidInterpreter("this interpreter is shut down", hint="make a new one; with its id it goes on")
            if self._context is None:
                await self._open(self._wanted)
        return self

    async def shutdown(self, *, delete: bool | None = None) -> None:
        """Let go of everything, its branches and children first. The box is deleted unless it is to be kept. Doing it
        twice is fine."""
        self._check_loop()
        async with self._starting:
            if self._closed:
                return
            self._closed = True
            if self._lineage is not None:
                self._lineage.parent._release(self)
            await asyncio.gather(*(each.shutdown() for each in list(self._below)), return_exceptions=True)
            await self._bridge.close()
            if self.is_branch:
                await self._end_branch()
                return
            gone = not self.keep if delete is None else delete
            if self._kernels is not None:
                await self._kernels.close()
            if self._record.is_open:
                self._note({"type": ENDED, "id": self.id, "deleted": gone})
            try:
                await self._let_go(delete=gone)
            finally:
                self._context, self._kernels = None, None
                self.events.close()
                if self._host is not None and self._owns_host:
                    await self._host.close()

    def _check_loop(self) -> None:
        """What it has open belongs to the event loop that it was started in."""
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = loop
        elif self._loop is not loop:
            raise InvalidInterpreter(
                f"interpreter {self.id} belongs to another event loop, the one that it was started in",
                hint="use it within one asyncio.run, or use SyncInterpreter, which needs none",
            )

    async def _let_go(self, *, delete: bool) -> None:
        workspace, self._workspace = self._workspace, None
        box = workspace.box if workspace is not None else None
        try:
            # A child that lost its box has another one by now.
            of_child = False
            if isinstance(self._lineage, ChildOf):
                of_child = box is self._lineage.child.box
                await self._end_child(self._lineage)
            if box is not None and delete and not of_child and self._host is not None:
                await self._host.delete(box)
        finally:
            if workspace is not None:
                with suppress(BoxError):
                    await workspace.close()
            await self._record.flush()

    async def __aenter__(self) -> Self:
        try:
            return await self.start()
        except BaseException:
            await self.shutdown()
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.shutdown()

    async def _open(self, wanted: WorkspaceConfig) -> Transition:
        host = await self._ready_host()
        if self.model is not None and not self._record.is_open:
            await host.check_model(self.model)
        # Neither waits for the other: a box takes as long as a thread.
        opening = asyncio.create_task(self._open_box(host, wanted))
        preparing = asyncio.create_task(Kernels.prepare())
        try:
            await self._record.open(host)
            transition = self._transition = await opening
            await preparing
        finally:
            opening.cancel()
            preparing.cancel()
            await asyncio.wait([opening, preparing])
        self._note({"type": WORKSPACE, "transition": transition.kind.value, "reason": transition.reason,
                    "changed": list(transition.changed)})  # fmt: skip
        if self._context is None:
            await self._start_kernel(transition)
        return transition

    async def _open_box(self, host: Host, wanted: WorkspaceConfig) -> Transition:
        if self._workspace is None:
            spec = self._spec
            if self.template is not None:
                building = Building(self.events, self.template)
                spec = replace(spec, image=await host.image_of(self.template, spec.provider, building))
            self._spec = spec.with_labels({LABEL: self.id})
            self._workspace = self._workspace_in(host, self._spec)
        return await self._workspace.configure(wanted)

    def _workspace_in(self, host: Host, spec: BoxSpec, box: Box | None = None) -> Workspace:
        return Workspace(host, f"interpreter/{self.id}", spec, self._set_up, self._roots, box=box)

    async def _ready_host(self) -> Host:
        if self._host is None:
            from holdfast.interpreter.client_host import ClientHost

            self._host = await ClientHost.default()
        return self._host

    async def _set_up(self, box: Box) -> None:
        """What runs in the box finds the workspace, however that was changed. Its memory stays."""
        if self._context is not None and self._kernels is not None and self._kernels.box.id == box.id:
            with suppress(KernelLost, KernelUnreachable):
                await self._context.configure(cwd=self._spec.workdir)
                return
        self._context, self._kernels = None, None

    # --- its kernel ---

    async def _start_kernel(self, transition: Transition) -> None:
        opened = await open_kernel(
            self.box,
            self._bridge.handle,
            is_new=transition.kind not in (Kind.RESUMED, Kind.REUSED),
            keep=self.keep,
            python=self._python,
            memory=self._memory,
            alone=self._alone,
            begun=self._begun,
        )
        self._kernels, self._context = opened.kernels, opened.context
        self._note(
            {
                "type": STARTED,
                "id": self.id,
                "box": self.box.id,
                "provider": self._spec.provider,
                "image": self._spec.image,
                "python": self._context.python,
                "memory_kept": opened.is_found,
                "process": self._kernels.process,
                "model": self.model,
            }
        )

    @property
    def _alone(self) -> float | None:
        return None if self.keep else ALONE_SECONDS

    # --- executing ---

    async def execute(
        self,
        code: str,
        variables: Mapping[str, Any] | None = None,
        *,
        timeout: float | None = None,
        on_output: Printed | None = None,
        id: str | None = None,
    ) -> Execution:
        """Run code to its end. `variables` become globals before. `timeout` (seconds) counts while the code computes,
        not while this process works for it; `on_output` is given what is printed as it comes.

        What the code does wrong, a kill included, is in the result. Raises `InvalidInterpreter` for what cannot be, and
        `KernelUnreachable` where nobody can say.
        """
        id = f"x-{secrets.token_hex(8)}" if id is None else check_execution_id(id)
        timeout = self.timeout if timeout is None else check_timeout(timeout)
        tools = self._bridge.names()
        given = ship_variables(variables, {each.name for each in tools})
        await self.start()
        self._note({"type": EXECUTION, "id": id, "code": code[:_CODE_NOTED], "variables": sorted(variables or ()),
                    "timeout": timeout})  # fmt: skip
        if self._durable:
            await self.flush()

        async def run(context: Context, turn: Turn, env: Mapping[str, str]) -> Execution:
            done = await context.execute(
                code,
                given=given,
                timeout=timeout,
                on_output=self.events.listening(id, on_output),
                id=id,
                limit=self.output_limit,
                env=env,
                tools=tools,
                restore=self._restore is not None,
            )
            # As it was checked here: what the box says of it is anybody's.
            return replace(done, submitted=turn.submitted)

        return await self._attend(id, code, run)

    async def resume(
        self, id: str, code: str = "", *, timeout: float | None = None, on_output: Printed | None = None
    ) -> Execution:
        """What comes of an execution that an earlier process began, and that was named by `begun`: its Python keeps the
        result until somebody has it. Where it cannot be had any more, the result says so."""
        await self.start()

        async def run(context: Context, turn: Turn, env: Mapping[str, str]) -> Execution:
            done = await context.resume(
                id,
                timeout=self.timeout if timeout is None else timeout,
                on_output=self.events.listening(id, on_output),
                limit=self.output_limit,
                tools=self._bridge.names(),
            )
            if done is None:
                told = "nobody knows what came of it: the process that began it is gone, and its result with it"
                return Execution(id, error=CodeError(RESULT_LOST, told, told))
            return replace(done, submitted=turn.submitted or self._checked(done.submitted))

        return await self._attend(id, code, run)

    def _checked(self, submitted: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
        """What an earlier process took, as far as this one would take it."""
        with suppress(InvalidSubmission):
            return None if submitted is None else check(self.output_fields, submitted)
        return None

    async def _attend(self, id: str, code: str, run: _Run) -> Execution:
        context, record = self._context, self._record
        assert context is not None
        # The turn is in the trace: so is what its calls do.
        with trace_execution(id, thread=record.thread, box=self.box.id, context=context.id) as trace:
            async with self._bridge.turn(id) as turn:
                try:
                    done = await run(context, turn, trace.environment)
                except ContextReset as reset:
                    done = replace(await self._lost(id, reset), submitted=turn.submitted)
                except KernelLost as lost:
                    done = await self._begin_anew(replace(await self._lost(id, lost), submitted=turn.submitted))
                else:
                    done = await self._begin_anew(done) if done.state_lost else done
                trace.ended(done)
        self._executions += 1
        self._submitted = done.submitted or self._submitted
        done = await with_images(self.box.files, done)
        self._note(entry_of(done, code[:_CODE_NOTED]))
        return done

    async def interrupt(self, *, grace: float | None = None) -> None:
        """KeyboardInterrupt in the code that runs, if any does. Code that goes on for `grace` seconds more is killed:
        its result says so, and what it had in memory is lost, or restored."""
        self._check_loop()
        if self._context is not None:
            await self._context.interrupt(grace=grace)

    async def reset(self) -> None:
        """Empty its memory: a new Python in the same box. Files, tools and the thread stay. Code that runs is ended."""
        self._check_loop()
        async with self._starting:
            if self._closed:
                raise InvalidInterpreter("this interpreter is shut down", hint="make a new one")
            if self._context is None:
                return
            self._note({"type": STATE, "what": "reset"})
            try:
                await self._context.reset()
            except (KernelLost, KernelUnreachable):
                await self._find_context()

    async def _lost(self, id: str, lost: KernelLost) -> Execution:
        why = lost.message
        with suppress(BoxError):
            if self._workspace is not None and (await self.box.activity()).out_of_memory:
                why = f"{why} (the box ran out of memory)"
        return Execution(id, error=CodeError("KernelKilled", why, why), state_lost=True)

    async def _begin_anew(self, done: Execution) -> Execution:
        """A new context in the place of the lost one: in the same box, or in whatever box there is then. From its
        restore point where it has one; the result says which."""
        assert done.error is not None
        assert self._context is not None
        try:
            await self._context.restart()
        except (KernelLost, KernelUnreachable):
            await self._find_context()
        restored = self._context is not None and bool(self._context.restored)
        self._note({"type": STATE, "what": "restored" if restored else "lost", "execution": done.id,
                    "reason": done.error.message})  # fmt: skip
        return with_outcome(done, restored=restored)

    async def _find_context(self) -> None:
        self._context, self._kernels = None, None
        if not self.is_branch:
            await self._open(WorkspaceConfig())

    async def read_artifact(self, artifact: Artifact) -> bytes:
        """All of it."""
        return artifact.data if artifact.data is not None else await self.box.files.read(artifact.path)

    async def read_value(self, execution: Execution) -> Any:
        """The value of an execution, also where it was too large to come along. Raises `InvalidInterpreter`."""
        return await read_value(self.box.files if execution.value_missing is not None else None, execution)

    # --- workspace ---

    async def configure_workspace(
        self,
        repo_url: str | Path | None = None,
        ref: str | None = None,
        context_paths: Sequence[str | Path] | None = None,
        volume: str | None = None,
        force_new: bool = False,
    ) -> Transition:
        """Change what it works on, in place: what is in memory stays, unless the box has to be another one."""
        wanted = WorkspaceConfig(repo_url, ref, context_paths, volume, force_new)
        async with self._starting:
            if self._closed:
                raise InvalidInterpreter("this interpreter is shut down", hint="make a new one")
            before = self._context
            transition = await self._open(wanted if before is not None else wanted.over(self._wanted))
            if before is not None and self._context is not before:
                self._note({"type": STATE, "what": "lost", "reason": transition.reason})
            return transition

    # --- state ---

    async def export_state(self) -> State:
        """What it has in memory, as bytes, for another interpreter or another day. What could not be saved is named."""
        exported = await state.export_state(await self._ready_context())
        self._note_state("exported", exported.checkpoint.names, exported.checkpoint.unsaved)
        return exported

    async def import_state(self, exported: State | bytes) -> Saved:
        """Replace all that it has in memory, never merge. Says what of it could not be loaded, with why."""
        data = exported.data if isinstance(exported, State) else exported
        loaded = await state.import_state(await self._ready_context(), data)
        self._note_state("imported", loaded.names, loaded.unsaved)
        return loaded

    async def save_state(self, path: str) -> Checkpoint:
        """The same to a file of the box: on the volume (`/home/box/memory/…`) it outlives the box."""
        saved = await state.save(await self._ready_context(), path)
        self._note_state("saved", saved.names, saved.unsaved, path=path)
        return saved

    async def load_state(self, path: str) -> Saved:
        """Replace all that it has in memory by what `save_state` wrote."""
        loaded = await state.load(await self._ready_context(), path)
        self._note_state("loaded", loaded.names, loaded.unsaved, path=path)
        return loaded

    async def save_session(self, session: str | None = None) -> Checkpoint:
        """Save memory and what this works on to the volume, as a session: for another box, another day.

        Raises `ManifestConflict` where somebody else has saved it since it was loaded or saved here.
        """
        session = session or self.id
        context = await self._ready_context()
        config = self._workspace.config if self._workspace is not None else self._wanted
        about = {"interpreter": self.id, "thread": self.thread, "ref": config.ref,
                 "repository": None if config.repo_url is None else str(config.repo_url)}  # fmt: skip
        saved = await self._sessions.save(context, session, about)
        self._note_state("saved", saved.names, saved.unsaved, session=session)
        return saved

    async def load_session(self, session: str | None = None) -> Saved:
        """Replace all that it has in memory by what a session has. Says what of it could not be loaded, with why."""
        session = session or self.id
        _, loaded = await self._sessions.load(await self._ready_context(), session)
        self._note_state("loaded", loaded.names, loaded.unsaved, session=session)
        return loaded

    async def serve_notebook(self, tool: str) -> None:
        """Have what notebooks have, `display` first. What is shown goes to that tool."""
        await (await self._ready_context()).serve_notebook(tool)

    async def _ready_context(self) -> Context:
        await self.start()
        assert self._context is not None
        return self._context

    def _note_state(self, what: str, names: Sequence[str], unsaved: Mapping[str, str], **more: str) -> None:
        named = dict(list(unsaved.items())[:_NAMES_NOTED])
        told = {"type": STATE, "what": what, "names": list(names[:_NAMES_NOTED]), "unsaved": named, **more}
        self._note({**told, "count": len(names), "unsaved_count": len(unsaved)})

    # --- children ---

    async def build_child(
        self,
        *,
        tools: Mapping[str, Tool] | Sequence[Tool] | None = None,
        output_fields: Sequence[GivenField] | Mapping[str, Any] | None = None,
        delegate: Delegate | None = None,
        iterations: int | None = None,
    ) -> Interpreter:
        """A child with a box and a context of its own, one level below, on the same budget. Its box has a part of the
        volume of this one's; without a volume, it begins as a fork of it; else it is clean.

        Waits while the tree has as many boxes as it may. What it submitted last is kept by this one when it is shut
        down. Raises `TooManyChildren`, `TooManyBoxes`.
        """
        await self.start()
        host = await self._ready_host()
        if self._children is None:
            limits = self._budget.limits
            self._children = Children(host, ChildLimits(depth=limits.depth, breadth=limits.delegates))
        if self._as_parent is None:
            own = self._lineage.child if isinstance(self._lineage, ChildOf) else None
            self._as_parent = own or Parent(self.id, self.box, self._bridge.depth)
        child = await self._children.build_child(self._as_parent)
        made = self._make_below(
            ChildOf(self, child, self._children),
            id=child.id,
            host=host,
            spec=child.spec,
            tools=tools,
            output_fields=output_fields,
            memory=self._memory,
            python=self._python,
            delegate=delegate,
            depth=child.depth,
            iterations=iterations,
            keep=False,
            roots=self._roots,
        )
        self._note({"type": STATE, "what": "child", "child": child.id, "box": child.box.id,
                    "origin": child.origin.value})  # fmt: skip
        try:
            await made.start()
            if self._closed:
                raise InvalidInterpreter(f"interpreter {self.id} was shut down", hint="make children before that")
            return made
        except BaseException:
            await made.shutdown()
            raise

    async def _end_child(self, of: ChildOf) -> None:
        try:
            seconds = time.monotonic() - self._made_at
            await of.children.keep(of.child, of.parent._record, result=self._submitted, seconds=seconds)
        finally:
            await of.child.close()

    def _release(self, below: Interpreter) -> None:
        """A branch or child is shut down by itself."""
        if below in self._below:
            self._below.remove(below)

    # --- branches ---

    async def fork(self, count: int = 1) -> list[Interpreter]:
        """Branches in the same box that begin with all that this one has in memory, and share it until it changes.

        Threads and open event loops do not go along. Each is shut down by itself; all end with this one.
        """
        await self.start()
        assert self._context is not None
        if not 1 <= count <= 64:
            raise InvalidInterpreter(f"{count} branches", hint="1 to 64 at a time")
        contexts = await self._context.fork(count)
        self._note({"type": STATE, "what": "forked", "contexts": [each.id for each in contexts]})
        return [
            self._make_below(
                BranchOf(self, context),
                id=self.id,
                host=self._host,
                spec=self._spec,
                tools=self.tools,
                output_fields=list(self.output_fields),
                delegate=self._bridge.delegate,
                depth=self._bridge.depth,
                iterations=self._bridge.iterations,
            )
            for context in contexts
        ]

    def _make_below(self, lineage: Lineage, **own: Any) -> Interpreter:
        made = Interpreter(
            template=self.template,
            model=self.model,
            budget=self._budget,
            timeout=self.timeout,
            output_limit=self.output_limit,
            restore=self._restore,
            lineage=lineage,
            **own,
        )
        self._below.append(made)
        return made

    async def _end_branch(self) -> None:
        context, self._context = self._context, None
        self._workspace, self._kernels = None, None
        self.events.close()
        if context is not None:
            with suppress(InterpreterError):
                await context.kill()
            await context.close()

    # --- the rest ---

    async def flush(self) -> None:
        """Until all that happened is on the thread, on disk."""
        await self._record.flush()

    async def history(self) -> AsyncIterator[Mapping[str, Any]]:
        """The entries of its thread."""
        await self.start()
        await self._record.flush()
        async for entry in self._record.entries():
            yield entry

    def _note(self, payload: Mapping[str, Any]) -> None:
        self._record.note(payload)
        self.events.tell(payload)

    async def _complete(self, model: str | None, messages: Sequence[Mapping[str, str]], *, timeout: float) -> Any:
        return await (await self._ready_host()).complete(model, messages, timeout=timeout)
