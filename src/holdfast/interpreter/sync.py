"""The interpreter for code without `await`: scripts and notebooks.

Written by `bin/generate`: change the async classes instead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from holdfast.api.box.sync import SyncBox
from holdfast.api.limits import OUTPUT_LIMIT
from holdfast.interpreter.interpreter import EXECUTION_SECONDS, Interpreter
from holdfast.sync_twin import SyncHandle, SyncIterator, SyncOwner

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path
    from typing import Any

    from holdfast.api.box.records import Preview
    from holdfast.api.box.spec import BoxSpec
    from holdfast.interpreter.bridge.bridge import Delegate
    from holdfast.interpreter.bridge.budget import Budget, Limits
    from holdfast.interpreter.bridge.submit_fields import OutputField, OutputFieldLike
    from holdfast.interpreter.bridge.tools import Tool, ToolSignature
    from holdfast.interpreter.events import Events
    from holdfast.interpreter.execution import Artifact, Execution, OutputCallback
    from holdfast.interpreter.host import Host
    from holdfast.interpreter.kernel.context import SavedNames
    from holdfast.interpreter.kernel.state import Checkpoint, State
    from holdfast.interpreter.lineage import Lineage
    from holdfast.interpreter.validation import Restore
    from holdfast.interpreter.workspace.workspace import Transition


class SyncInterpreter(SyncOwner):
    """`Interpreter` for code without `await`."""

    _async: Interpreter

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
        self._own(
            lambda: Interpreter(
                id=id,
                template=template,
                model=model,
                host=host,
                provider=provider,
                spec=spec,
                tools=tools,
                output_fields=output_fields,
                limits=limits,
                budget=budget,
                timeout=timeout,
                output_limit=output_limit,
                memory=memory,
                python=python,
                repo_url=repo_url,
                ref=ref,
                context_paths=context_paths,
                volume=volume,
                workspace=workspace,
                user=user,
                tenant=tenant,
                thread=thread,
                delegate=delegate,
                depth=depth,
                iterations=iterations,
                keep=keep,
                roots=roots,
                begun=begun,
                durable=durable,
                restore=restore,
                lineage=lineage,
            )
        )
        self._end_when_dropped(self._async.shutdown)

    @property
    def id(self) -> str:
        return self._async.id

    @property
    def template(self) -> str | None:
        return self._async.template

    @property
    def model(self) -> str | None:
        return self._async.model

    @property
    def timeout(self) -> float | None:
        return self._async.timeout

    @property
    def output_limit(self) -> int:
        return self._async.output_limit

    @property
    def keep(self) -> bool:
        return self._async.keep

    @property
    def events(self) -> SyncEvents:
        return SyncEvents._wrap(self._async.events, self)

    @property
    def tools(self) -> dict[str, Tool]:
        """Functions that code in the box can call. They may be changed between executions."""
        return self._async.tools

    @property
    def tool_signatures(self) -> tuple[ToolSignature, ...]:
        """The functions that code can call, described for a model."""
        return self._async.tool_signatures

    @property
    def output_fields(self) -> tuple[OutputField, ...]:
        """The arguments of SUBMIT."""
        return self._async.output_fields

    @output_fields.setter
    def output_fields(self, fields: Sequence[OutputFieldLike] | Mapping[str, Any] | None) -> None:
        self._async.output_fields = fields

    @property
    def budget(self) -> Budget:
        return self._async.budget

    @property
    def box(self) -> SyncBox:
        """Raises `InvalidInterpreter` before the start."""
        return SyncBox._wrap(self._async.box, self)

    @property
    def thread(self) -> str:
        """The id of its thread."""
        return self._async.thread

    @property
    def is_branch(self) -> bool:
        """Whether it was forked from another interpreter, and ends with that."""
        return self._async.is_branch

    @property
    def is_executing(self) -> bool:
        """Whether it runs code now."""
        return self._async.is_executing

    def runtime_metadata(self) -> dict[str, Any]:
        """Where it runs, and what it has used so far."""
        return self._async.runtime_metadata()

    def start(self) -> Self:
        """Open the box and start Python in it. Does nothing if it is started."""
        self._loop.run(self._async.start())
        return self

    def shutdown(self, *, delete: bool | None = None) -> None:
        """Close branches and children, then everything else. Deletes the box unless it is to be kept. Calling it twice
        does nothing.
        """
        self._end(lambda: self._async.shutdown(delete=delete))

    def execute(
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
        return self._loop.run(self._async.execute(code, variables, timeout=timeout, on_output=on_output, id=id))

    def resume(
        self, id: str, code: str = "", *, timeout: float | None = None, on_output: OutputCallback | None = None
    ) -> Execution:
        """Return the result of an execution that an earlier process began, and that `begun` named. Python in the box
        keeps the result until it is read. If it is lost, the returned result says so.
        """
        return self._loop.run(self._async.resume(id, code, timeout=timeout, on_output=on_output))

    def interrupt(self, *, grace: float | None = None) -> None:
        """Raise KeyboardInterrupt in the running code, if there is any. With `grace`, code that does not end within
        this many seconds is killed: the result says so, and the memory is lost or restored.
        """
        self._loop.run(self._async.interrupt(grace=grace))

    def reset(self) -> None:
        """Start Python again with an empty memory, in the same box. Files, tools and the thread stay. Running code is
        ended.
        """
        self._loop.run(self._async.reset())

    def read_artifact(self, artifact: Artifact) -> bytes:
        """Return the whole content of an artifact."""
        return self._loop.run(self._async.read_artifact(artifact))

    def read_value(self, execution: Execution) -> Any:
        """Return the value of an execution, also if it was too large for the result. Raises `InvalidInterpreter`."""
        return self._loop.run(self._async.read_value(execution))

    def preview(self, port: int) -> Preview:
        """Return the URL at which a browser reaches a port that code in the box listens on."""
        return self._loop.run(self._async.preview(port))

    def configure_workspace(
        self,
        repo_url: str | Path | None = None,
        ref: str | None = None,
        context_paths: Sequence[str | Path] | None = None,
        volume: str | None = None,
        force_new: bool = False,
    ) -> Transition:
        """Change the workspace in place. The memory stays, unless the change requires another box."""
        return self._loop.run(self._async.configure_workspace(repo_url, ref, context_paths, volume, force_new))

    def export_state(self) -> State:
        """Return the memory as bytes, for another interpreter or for later. Lists what could not be saved."""
        return self._loop.run(self._async.export_state())

    def import_state(self, exported: State | bytes) -> SavedNames:
        """Replace the whole memory with an exported state. Returns what was loaded and what was not."""
        return self._loop.run(self._async.import_state(exported))

    def save_state(self, path: str) -> Checkpoint:
        """Save the memory to a file in the box. A file on the volume (`/home/box/memory/…`) outlives the box."""
        return self._loop.run(self._async.save_state(path))

    def load_state(self, path: str) -> SavedNames:
        """Replace the whole memory with what `save_state` wrote."""
        return self._loop.run(self._async.load_state(path))

    def save_session(self, session: str | None = None) -> Checkpoint:
        """Save the memory and the workspace configuration to the volume, as a session that another box can load.

        Raises `ManifestConflict` if another process has saved the session since it was loaded or saved here.
        """
        return self._loop.run(self._async.save_session(session))

    def load_session(self, session: str | None = None) -> SavedNames:
        """Replace the whole memory with that of a session. Returns what was loaded and what was not."""
        return self._loop.run(self._async.load_session(session))

    def serve_notebook(self, tool: str) -> None:
        """Define what notebooks expect, such as `display`. Values are shown by calling `tool`."""
        self._loop.run(self._async.serve_notebook(tool))

    def build_child(
        self,
        *,
        tools: Mapping[str, Tool] | Sequence[Tool] | None = None,
        output_fields: Sequence[OutputFieldLike] | Mapping[str, Any] | None = None,
        delegate: Delegate | None = None,
        iterations: int | None = None,
    ) -> SyncInterpreter:
        """Create a child with a box and a context of its own, one level below, on the same budget. Its box has a folder
        of the parent's volume. Without a volume it is a fork of the parent's box, or else a clean box.

        Waits while the tree has as many boxes as allowed. When the child is shut down, its last submission is recorded
        by the parent. Raises `TooManyChildren`, `TooManyBoxes`.
        """
        return SyncInterpreter._wrap(
            self._loop.run(
                self._async.build_child(
                    tools=tools, output_fields=output_fields, delegate=delegate, iterations=iterations
                )
            ),
            self,
        )

    def fork(self, count: int = 1) -> list[SyncInterpreter]:
        """Create branches in the same box. They start with the memory of this one, which they share until it changes.

        Threads and open event loops are not copied. Each branch can be shut down alone; all end with this one.
        """
        return [SyncInterpreter._wrap(each, self) for each in self._loop.run(self._async.fork(count))]

    def flush(self) -> None:
        """Wait until everything that happened is on the thread, on disk."""
        self._loop.run(self._async.flush())

    def history(self) -> SyncIterator[Mapping[str, Any]]:
        """The entries of the thread."""
        return SyncIterator._wrap(self._async.history(), self)

    def __enter__(self) -> Self:
        self._enter(self._async.__aenter__())
        return self

    def _leave(self) -> None:
        self.shutdown()


class SyncEvents(SyncHandle):
    """`Events` for code without `await`."""

    _async: Events

    def follow(self) -> SyncIterator[Mapping[str, Any]]:
        """Yield events from now on, until the interpreter is shut down."""
        return SyncIterator._wrap(self._async.follow(), self)
