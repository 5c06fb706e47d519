"""The interpreter: a persistent Python in a box, with callbacks to this process and a thread that records it.

    async with Interpreter(template="data", model="main") as py:
        await py.execute("import pandas as pd; df = pd.read_csv('context/sales.csv')")
        answer = await py.execute("SUBMIT(total=df.amount.sum())")

An error of the code is a result. An error that keeps the code from running raises.
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
from holdfast.api.box.records import Preview
from holdfast.api.box.spec import BoxSpec
from holdfast.api.errors.boxes import BoxError, BoxStopped
from holdfast.api.errors.interpreters import InvalidInterpreter, InvalidSubmission, KernelLost, KernelUnreachable
from holdfast.api.ids import new_id
from holdfast.api.limits import OUTPUT_LIMIT
from holdfast.interpreter.bridge.bridge import Bridge, Delegate, Turn
from holdfast.interpreter.bridge.budget import Budget, Limits
from holdfast.interpreter.bridge.children import ChildLimits, Children, Parent, ephemeral_spec
from holdfast.interpreter.bridge.submit_fields import OutputField, OutputFieldLike, check_submission
from holdfast.interpreter.bridge.tools import Tool, ToolSignature
from holdfast.interpreter.events import Events
from holdfast.interpreter.execution import (
    Artifact,
    CodeError,
    Execution,
    OutputCallback,
    attach_images,
    encode_variables,
    read_value,
    to_entry,
    with_memory_outcome,
)
from holdfast.interpreter.host import Host
from holdfast.interpreter.kernel import state
from holdfast.interpreter.kernel.context import Context, ContextReset, SavedNames
from holdfast.interpreter.kernel.kernel import Kernel
from holdfast.interpreter.kernel.state import Checkpoint, State
from holdfast.interpreter.lineage import BranchOf, ChildOf, Lineage
from holdfast.interpreter.record import ENDED, EXECUTION, STARTED, STATE, WORKSPACE, LazyRecord
from holdfast.interpreter.runtime import Runtime
from holdfast.interpreter.tracing import trace_execution, trace_start
from holdfast.interpreter.validation import (
    Restore,
    check_count,
    check_execution_id,
    check_id,
    check_memory,
    check_restore,
    check_timeout,
)
from holdfast.interpreter.workspace.volume_sessions import Sessions
from holdfast.interpreter.workspace.volumes import volume_name
from holdfast.interpreter.workspace.workspace import Transition, WorkspaceConfig

EXECUTION_SECONDS: Final = 900.0
_CODE_NOTED: Final = 100_000
RESULT_LOST: Final = "ResultLost"
"""The kind of the error of an execution whose result is lost."""
_Run = Callable[[Context, Turn, Mapping[str, str]], Awaitable[Execution]]
_NAMES_NOTED: Final = 200
_DEFAULT_WORKSPACE: Final = "default"


class Interpreter:
    """Owns its box. One that was created with an id keeps its box: another process finds box and memory by the id."""

    def __init__(
        self,
        *,
        id: str | None = None,
        template: str | None = None,
        model: str | None = None,
        host: Host | None = None,
        provider: str | None = None,
        spec: BoxSpec | None = None,
        tools: Mapping[str, Tool] | Sequence[Tool] | None = None,
        output_fields: Sequence[OutputFieldLike] | Mapping[str, Any] | None = None,
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
        user: str | None = None,
        tenant: str | None = None,
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
        """`template` is the image of the box; `model` answers `llm_query` (`NAME` or `NAME/MODEL`). `host` provides
        boxes, the thread and models; the default is the server of this machine. `provider` creates the box, instead of
        the one that `spec` names. `memory` limits each context, in bytes. `keep`: the box outlives this object; the
        default is true if an `id` is given. `workspace` names a volume of the `tenant` that several users share; each
        `user` has sessions on it. Tenant and user default to those of the credential that the host uses. `begun` are
        executions that an earlier process began, to be resumed. `durable`: code runs only after its start is on disk.
        `restore="fork"`: each execution starts with a live fork; if the code has to be killed, or kills its process,
        the memory before it is restored. `lineage` is for interpreters that another one makes.
        """
        if budget is not None and limits is not None:
            raise InvalidInterpreter("a budget has limits of its own", hint="give limits or a budget, not both")
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
        if workspace is not None:
            volume_name(tenant or "default", workspace)  # refuse an invalid name now
        self._workspace, self._tenant, self._user = workspace, tenant, user
        self._sessions: Sessions | None = None
        """Known once it is known who the caller is."""
        self._wanted = WorkspaceConfig(repo_url, ref, context_paths, volume)
        self._durable = durable
        self._budget = budget or Budget(limits)
        self._lineage = lineage
        branch = lineage if isinstance(lineage, BranchOf) else None
        child = lineage if isinstance(lineage, ChildOf) else None
        self._record: LazyRecord = LazyRecord(self.id, thread) if branch is None else branch.record
        spec = spec or BoxSpec()
        spec = spec if provider is None else replace(spec, provider=provider)
        self._runtime: Runtime = (
            branch.runtime
            if branch is not None
            else Runtime(
                self.id,
                host,
                spec if self.keep else ephemeral_spec(spec),
                self.events,
                template=template,
                keep=self.keep,
                python=python,
                memory=check_memory(memory),
                roots=roots,
                begun=tuple(begun),
                first_box=None if child is None else child.child.box,
            )
        )
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
        self._descendants: list[Interpreter] = []
        """Its branches and children, which end with it."""
        self._children: Children | None = None if child is None else child.children
        """The children of the whole tree."""
        self._as_parent: Parent | None = None if child is None else child.child
        self._submitted: Mapping[str, Any] | None = None
        self._starting = asyncio.Lock()
        self._closed = False
        self._executions = 0
        self._made_at = time.monotonic()

    # --- properties ---

    @property
    def tools(self) -> dict[str, Tool]:
        """Functions that code in the box can call. They may be changed between executions."""
        return self._bridge.tools

    @property
    def tool_signatures(self) -> tuple[ToolSignature, ...]:
        """The functions that code can call, described for a model."""
        return self._bridge.signatures()

    @property
    def output_fields(self) -> tuple[OutputField, ...]:
        """The arguments of SUBMIT."""
        return self._bridge.output_fields

    @output_fields.setter
    def output_fields(self, fields: Sequence[OutputFieldLike] | Mapping[str, Any] | None) -> None:
        self._bridge.output_fields = fields

    @property
    def budget(self) -> Budget:
        return self._budget

    @property
    def box(self) -> Box:
        """Raises `InvalidInterpreter` before the start."""
        return self._runtime.box

    @property
    def thread(self) -> str:
        """The id of its thread."""
        return self._record.thread

    @property
    def is_branch(self) -> bool:
        """Whether it was forked from another interpreter, and ends with that."""
        return isinstance(self._lineage, BranchOf)

    @property
    def is_executing(self) -> bool:
        """Whether it runs code now."""
        return self._runtime.context is not None and self._runtime.context.is_running

    def runtime_metadata(self) -> dict[str, Any]:
        """Where it runs, and what it has used so far."""
        runtime, spent = self._runtime, self._budget.spent
        transition, context, workspace = runtime.transition, runtime.context, runtime.workspace
        return {
            "id": self.id,
            "thread": self.thread,
            "started": context is not None,
            "template": self.template,
            "model": self.model,
            "box": runtime.box_id,
            "provider": runtime.spec.provider,
            "image": runtime.spec.image,
            "volume": None if workspace is None else workspace.config.volume,
            "workspace": self._workspace or _DEFAULT_WORKSPACE,
            "user": self._user if self._sessions is None else self._sessions.user,
            "session_revision": 0 if self._sessions is None else self._sessions.revision,
            "workdir": runtime.spec.workdir,
            "context": None if context is None else context.id,
            "python": None if context is None else context.python,
            "transition": None if transition is None else {"kind": transition.kind.value, "reason": transition.reason},
            "executions": self._executions,
            "calls": spent.calls,
            "tokens": spent.tokens,
            "cost": spent.cost,
        }

    # --- start and shutdown ---

    async def start(self) -> Self:
        """Open the box and start Python in it. Does nothing if it is started."""
        self._runtime.check_loop()
        async with self._starting:
            if self._closed:
                raise InvalidInterpreter(
                    "this interpreter is shut down", hint="create a new one; with the same id it continues"
                )
            if self._runtime.context is None:
                await self._find_volume()
                await self._open(self._wanted)
        return self

    async def shutdown(self, *, delete: bool | None = None) -> None:
        """Close branches and children, then everything else. Deletes the box unless it is to be kept. Calling it twice
        does nothing."""
        self._runtime.check_loop()
        async with self._starting:
            if self._closed:
                return
            self._closed = True
            await asyncio.gather(*(each.shutdown() for each in self._descendants), return_exceptions=True)
            await self._bridge.close()
            if self.is_branch:
                self.events.close()
                await self._runtime.end_branch()
                return
            delete = not self.keep if delete is None else delete
            await self._runtime.close_kernel()
            if self._record.is_open:
                self._note({"type": ENDED, "id": self.id, "deleted": delete})
            try:
                await self._release_box(delete=delete)
            finally:
                self.events.close()
                await self._runtime.close()

    async def _release_box(self, *, delete: bool) -> None:
        try:
            if isinstance(self._lineage, ChildOf):
                # It deletes the box of the child. A child that lost that box has another one by now.
                delete = delete and self._runtime.box_id != self._lineage.child.box.id
                await self._end_child(self._lineage)
        finally:
            try:
                await self._runtime.release_box(delete=delete)
            finally:
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
        if self._runtime.context is not None:
            return await self._open_parts(wanted)
        with trace_start(self.id, depth=self._bridge.depth) as trace:
            transition = await self._open_parts(wanted)
            trace.finish(self.box.id, transition.kind.value)
            return transition

    async def _open_parts(self, wanted: WorkspaceConfig) -> Transition:
        runtime = self._runtime
        host = await runtime.host()
        if self.model is not None and not self._record.is_open:
            await host.check_model(self.model)
        # At the same time: opening a thread takes as long as opening a box.
        opening = asyncio.create_task(runtime.open_box(wanted))
        preparing = asyncio.create_task(Kernel.prepare())
        try:
            await self._record.open(host)
            transition = await opening
            await preparing
        finally:
            opening.cancel()
            preparing.cancel()
            await asyncio.wait([opening, preparing])
        self._note({"type": WORKSPACE, "transition": transition.kind.value, "reason": transition.reason,
                    "changed": list(transition.changed)})  # fmt: skip
        if runtime.context is None:
            try:
                opened = await runtime.open_kernel()
            except BoxStopped:  # since it was looked at: that took a while
                transition = await runtime.reacquire_box()
                opened = await runtime.open_kernel()
            self._note(
                {
                    "type": STARTED,
                    "id": self.id,
                    "box": runtime.box.id,
                    "provider": runtime.spec.provider,
                    "image": runtime.spec.image,
                    "python": opened.context.python,
                    "memory_kept": opened.is_found,
                    "process": opened.kernel.process,
                    "model": self.model,
                }
            )
        return transition

    # --- executing ---

    async def execute(
        self,
        code: str,
        variables: Mapping[str, Any] | None = None,
        *,
        timeout: float | None = None,
        on_output: OutputCallback | None = None,
        id: str | None = None,
    ) -> Execution:
        """Run code to its end. `variables` become globals first. `timeout` (seconds) counts while the code computes,
        not while it waits for this process. `on_output` is called with output as it arrives.

        Errors of the code are in the result, also if it was killed. Raises `InvalidInterpreter` for invalid arguments,
        and `KernelUnreachable` if the result cannot be known.
        """
        id = f"x-{secrets.token_hex(8)}" if id is None else check_execution_id(id)
        timeout = self.timeout if timeout is None else check_timeout(timeout)
        tools = self._bridge.names()
        encoded = encode_variables(variables, {each.name for each in tools})
        await self.start()
        self._note({"type": EXECUTION, "id": id, "code": code[:_CODE_NOTED], "variables": sorted(variables or ()),
                    "timeout": timeout})  # fmt: skip
        if self._durable:
            await self.flush()

        async def run(context: Context, turn: Turn, env: Mapping[str, str]) -> Execution:
            done = await context.execute(
                code,
                encoded_variables=encoded,
                timeout=timeout,
                on_output=self.events.output_callback(id, on_output),
                id=id,
                limit=self.output_limit,
                env=env,
                tools=tools,
                handler=self._bridge.handle,
                restore=self._restore is not None,
            )
            # The submission that was checked here: the box is not trusted.
            return replace(done, submitted=turn.submitted)

        return await self._run(id, code, run)

    async def resume(
        self, id: str, code: str = "", *, timeout: float | None = None, on_output: OutputCallback | None = None
    ) -> Execution:
        """Return the result of an execution that an earlier process began, and that `begun` named. Python in the box
        keeps the result until it is read. If it is lost, the returned result says so."""
        await self.start()

        async def run(context: Context, turn: Turn, env: Mapping[str, str]) -> Execution:
            done = await context.resume(
                id,
                timeout=self.timeout if timeout is None else timeout,
                on_output=self.events.output_callback(id, on_output),
                limit=self.output_limit,
                tools=self._bridge.names(),
                handler=self._bridge.handle,
            )
            if done is None:
                message = "the result is lost, because the process that ran this code has ended"
                return Execution(id, error=CodeError(RESULT_LOST, message, message))
            return replace(done, submitted=turn.submitted or self._checked(done.submitted))

        return await self._run(id, code, run)

    def _checked(self, submitted: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
        """A submission that an earlier process accepted, if this one accepts it too."""
        with suppress(InvalidSubmission):
            return None if submitted is None else check_submission(self.output_fields, submitted)
        return None

    async def _run(self, id: str, code: str, run: _Run) -> Execution:
        context, record = self._runtime.context, self._record
        assert context is not None
        # The trace is outermost, so that it includes the calls of the turn.
        with trace_execution(
            id,
            interpreter=self.id,
            thread=record.thread,
            box=self.box.id,
            context=context.id,
            depth=self._bridge.depth,
        ) as trace:
            async with self._bridge.turn(id) as turn:
                try:
                    done = await run(context, turn, trace.environment)
                except ContextReset as reset:
                    done = replace(await self._killed(id, reset), submitted=turn.submitted)
                except KernelLost as lost:
                    done = await self._replace_context(replace(await self._killed(id, lost), submitted=turn.submitted))
                else:
                    done = await self._replace_context(done) if done.state_lost else done
                trace.finish(done)
        self._executions += 1
        self._submitted = done.submitted or self._submitted
        done = await attach_images(self.box.files, done)
        self._note(to_entry(done, code[:_CODE_NOTED]))
        return done

    async def interrupt(self, *, grace: float | None = None) -> None:
        """Raise KeyboardInterrupt in the running code, if there is any. With `grace`, code that does not end within
        this many seconds is killed: the result says so, and the memory is lost or restored."""
        self._runtime.check_loop()
        if self._runtime.context is not None:
            await self._runtime.context.interrupt(grace=grace)

    async def reset(self) -> None:
        """Start Python again with an empty memory, in the same box. Files, tools and the thread stay. Running code is
        ended."""
        self._runtime.check_loop()
        async with self._starting:
            if self._closed:
                raise InvalidInterpreter("this interpreter is shut down", hint="create a new one")
            if self._runtime.context is None:
                return
            self._note({"type": STATE, "what": "reset"})
            try:
                await self._runtime.context.reset()
            except (KernelLost, KernelUnreachable):
                await self._reopen_context()

    async def _killed(self, id: str, lost: KernelLost) -> Execution:
        message = lost.message
        with suppress(BoxError):
            if self._runtime.workspace is not None and (await self.box.activity()).out_of_memory:
                message = f"{message} (the box ran out of memory)"
        return Execution(id, error=CodeError("KernelKilled", message, message), state_lost=True)

    async def _replace_context(self, done: Execution) -> Execution:
        """Start a new context in place of the lost one, from its restore point if there is one. If the box is gone, the
        context is in a new box. Returns the result with the outcome added."""
        assert done.error is not None
        assert self._runtime.context is not None
        try:
            await self._runtime.context.restart()
        except (KernelLost, KernelUnreachable):
            await self._reopen_context()
        context = self._runtime.context
        restored = context is not None and bool(context.restored)
        self._note({"type": STATE, "what": "restored" if restored else "lost", "execution": done.id,
                    "reason": done.error.message})  # fmt: skip
        return with_memory_outcome(done, restored=restored)

    async def _reopen_context(self) -> None:
        self._runtime.drop_context()
        if not self.is_branch:
            await self._open(WorkspaceConfig())

    async def read_artifact(self, artifact: Artifact) -> bytes:
        """Return the whole content of an artifact."""
        return artifact.data if artifact.data is not None else await self.box.files.read(artifact.path)

    async def read_value(self, execution: Execution) -> Any:
        """Return the value of an execution, also if it was too large for the result. Raises `InvalidInterpreter`."""
        return await read_value(self.box.files if execution.value_missing is not None else None, execution)

    async def preview(self, port: int) -> Preview:
        """Return the URL at which a browser reaches a port that code in the box listens on."""
        await self.start()
        return await self.box.preview(port)

    # --- workspace ---

    async def configure_workspace(
        self,
        repo_url: str | Path | None = None,
        ref: str | None = None,
        context_paths: Sequence[str | Path] | None = None,
        volume: str | None = None,
        force_new: bool = False,
    ) -> Transition:
        """Change the workspace in place. The memory stays, unless the change requires another box."""
        wanted = WorkspaceConfig(repo_url, ref, context_paths, volume, force_new)
        async with self._starting:
            if self._closed:
                raise InvalidInterpreter("this interpreter is shut down", hint="create a new one")
            before = self._runtime.context
            if volume is None:
                await self._find_volume()
            transition = await self._open(wanted if before is not None else wanted.over(self._wanted))
            if before is not None and self._runtime.context is not before:
                self._note({"type": STATE, "what": "lost", "reason": transition.reason})
            return transition

    # --- state ---

    async def export_state(self) -> State:
        """Return the memory as bytes, for another interpreter or for later. Lists what could not be saved."""
        exported = await state.export_state(await self._ready_context())
        self._note_state("exported", exported.checkpoint.names, exported.checkpoint.unsaved)
        return exported

    async def import_state(self, exported: State | bytes) -> SavedNames:
        """Replace the whole memory with an exported state. Returns what was loaded and what was not."""
        data = exported.data if isinstance(exported, State) else exported
        loaded = await state.import_state(await self._ready_context(), data)
        self._note_state("imported", loaded.names, loaded.unsaved)
        return loaded

    async def save_state(self, path: str) -> Checkpoint:
        """Save the memory to a file in the box. A file on the volume (`/home/box/memory/…`) outlives the box."""
        saved = await state.save(await self._ready_context(), path)
        self._note_state("saved", saved.names, saved.unsaved, path=path)
        return saved

    async def load_state(self, path: str) -> SavedNames:
        """Replace the whole memory with what `save_state` wrote."""
        loaded = await state.load(await self._ready_context(), path)
        self._note_state("loaded", loaded.names, loaded.unsaved, path=path)
        return loaded

    async def save_session(self, session: str | None = None) -> Checkpoint:
        """Save the memory and the workspace configuration to the volume, as a session that another box can load.

        Raises `ManifestConflict` if another process has saved the session since it was loaded or saved here.
        """
        session = session or self.id
        context = await self._ready_context()
        config = self._runtime.workspace.config if self._runtime.workspace is not None else self._wanted
        about = {"interpreter": self.id, "thread": self.thread, "ref": config.ref,
                 "repository": None if config.repo_url is None else str(config.repo_url)}  # fmt: skip
        saved = await (await self._own_sessions()).save(context, session, about)
        self._note_state("saved", saved.names, saved.unsaved, session=session)
        return saved

    async def load_session(self, session: str | None = None) -> SavedNames:
        """Replace the whole memory with that of a session. Returns what was loaded and what was not."""
        session = session or self.id
        _, loaded = await (await self._own_sessions()).load(await self._ready_context(), session)
        self._note_state("loaded", loaded.names, loaded.unsaved, session=session)
        return loaded

    async def _own_sessions(self) -> Sessions:
        if self._sessions is None:
            user = self._user if self._user is not None else (await (await self._runtime.host()).caller()).user
            self._sessions = Sessions(self._workspace or _DEFAULT_WORKSPACE, user)
        return self._sessions

    async def _find_volume(self) -> None:
        """Determine the volume of the workspace, which depends on the tenant of the caller."""
        if self._workspace is not None and self._wanted.volume is None:
            if self._tenant is None:
                self._tenant = (await (await self._runtime.host()).caller()).tenant
            self._wanted = replace(self._wanted, volume=volume_name(self._tenant, self._workspace))

    async def serve_notebook(self, tool: str) -> None:
        """Define what notebooks expect, such as `display`. Values are shown by calling `tool`."""
        await (await self._ready_context()).serve_notebook(tool)

    async def _ready_context(self) -> Context:
        await self.start()
        assert self._runtime.context is not None
        return self._runtime.context

    def _note_state(self, what: str, names: Sequence[str], unsaved: Mapping[str, str], **more: str) -> None:
        reasons = dict(list(unsaved.items())[:_NAMES_NOTED])
        entry = {"type": STATE, "what": what, "names": list(names[:_NAMES_NOTED]), "unsaved": reasons, **more}
        self._note({**entry, "count": len(names), "unsaved_count": len(unsaved)})

    # --- children ---

    async def build_child(
        self,
        *,
        tools: Mapping[str, Tool] | Sequence[Tool] | None = None,
        output_fields: Sequence[OutputFieldLike] | Mapping[str, Any] | None = None,
        delegate: Delegate | None = None,
        iterations: int | None = None,
    ) -> Interpreter:
        """Create a child with a box and a context of its own, one level below, on the same budget. Its box has a folder
        of the parent's volume. Without a volume it is a fork of the parent's box, or else a clean box.

        Waits while the tree has as many boxes as allowed. When the child is shut down, its last submission is recorded
        by the parent. Raises `TooManyChildren`, `TooManyBoxes`.
        """
        await self.start()
        runtime = self._runtime
        if self._children is None:
            limits = self._budget.limits
            child_limits = ChildLimits(depth=limits.depth, breadth=limits.delegates)
            self._children = Children(await runtime.host(), child_limits)
        if self._as_parent is None:
            self._as_parent = Parent(self.id, self.box, self._bridge.depth)
        child = await self._children.build_child(self._as_parent)
        made = self._make_descendant(
            ChildOf(child, self._children, self._record),
            id=child.id,
            host=child.host,
            spec=child.spec,
            tools=tools,
            output_fields=output_fields,
            memory=runtime.memory,
            python=runtime.python,
            delegate=delegate,
            depth=child.depth,
            iterations=iterations,
            keep=False,
            roots=runtime.roots,
        )
        self._note({"type": STATE, "what": "child", "child": child.id, "box": child.box.id,
                    "origin": child.origin.value})  # fmt: skip
        try:
            await made.start()
            if self._closed:
                raise InvalidInterpreter(f"interpreter {self.id} was shut down", hint="create children before that")
            return made
        except BaseException:
            await made.shutdown()
            raise

    async def _end_child(self, lineage: ChildOf) -> None:
        try:
            seconds = time.monotonic() - self._made_at
            await lineage.children.keep_result(lineage.child, lineage.record, result=self._submitted, seconds=seconds)
        finally:
            await lineage.child.close()

    # --- branches ---

    async def fork(self, count: int = 1) -> list[Interpreter]:
        """Create branches in the same box. They start with the memory of this one, which they share until it changes.

        Threads and open event loops are not copied. Each branch can be shut down alone; all end with this one.
        """
        context = await self._ready_context()
        if not 1 <= count <= 64:
            raise InvalidInterpreter(f"{count} branches cannot be created", hint="give 1 to 64")
        contexts = await context.fork(count)
        self._note({"type": STATE, "what": "forked", "contexts": [each.id for each in contexts]})
        return [
            self._make_descendant(
                BranchOf(self._runtime.branch(context), self._record),
                id=self.id,
                tools=self.tools,
                output_fields=list(self.output_fields),
                delegate=self._bridge.delegate,
                depth=self._bridge.depth,
                iterations=self._bridge.iterations,
            )
            for context in contexts
        ]

    def _make_descendant(self, lineage: Lineage, **own: Any) -> Interpreter:
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
        self._descendants = [each for each in self._descendants if not each._closed] + [made]
        return made

    # --- the thread ---

    async def flush(self) -> None:
        """Wait until everything that happened is on the thread, on disk."""
        await self._record.flush()

    async def history(self) -> AsyncIterator[Mapping[str, Any]]:
        """The entries of the thread."""
        await self.start()
        await self._record.flush()
        async for entry in self._record.entries():
            yield entry

    def _note(self, payload: Mapping[str, Any]) -> None:
        self._record.note(payload)
        self.events.publish(payload)

    async def _complete(self, model: str | None, messages: Sequence[Mapping[str, str]], *, timeout: float) -> Any:
        return await (await self._runtime.host()).complete(model, messages, timeout=timeout)
