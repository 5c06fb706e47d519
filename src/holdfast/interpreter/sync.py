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

    from holdfast.api.box.spec import BoxSpec
    from holdfast.interpreter.bridge.bridge import Delegate
    from holdfast.interpreter.bridge.budget import Budget, Limits
    from holdfast.interpreter.bridge.submit_fields import Given as GivenField
    from holdfast.interpreter.bridge.submit_fields import OutputField
    from holdfast.interpreter.bridge.tools import Tool, ToolSignature
    from holdfast.interpreter.events import Events
    from holdfast.interpreter.host import Host
    from holdfast.interpreter.kernel.execution import Printed
    from holdfast.interpreter.kernel.state import Checkpoint, State
    from holdfast.interpreter.lineage import Lineage
    from holdfast.interpreter.results import Artifact, Execution, Saved
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
        self._own(
            lambda: Interpreter(
                id=id,
                template=template,
                model=model,
                host=host,
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
        """Functions that code in the box can call. May be changed between executions."""
        return self._async.tools

    @property
    def tool_signatures(self) -> tuple[ToolSignature, ...]:
        """What a model is to be told of all that it can call."""
        return self._async.tool_signatures

    @property
    def output_fields(self) -> tuple[OutputField, ...]:
        """What SUBMIT takes."""
        return self._async.output_fields

    @output_fields.setter
    def output_fields(self, given: Sequence[GivenField] | Mapping[str, Any] | None) -> None:
        self._async.output_fields = given

    @property
    def budget(self) -> Budget:
        return self._async.budget

    @property
    def box(self) -> SyncBox:
        """Raises where it is not started."""
        return SyncBox._wrap(self._async.box, self)

    @property
    def thread(self) -> str:
        """The id of its thread."""
        return self._async.thread

    @property
    def is_branch(self) -> bool:
        """It was forked off another, and ends with that."""
        return self._async.is_branch

    @property
    def is_executing(self) -> bool:
        """Code of it runs now."""
        return self._async.is_executing

    def runtime_metadata(self) -> dict[str, Any]:
        """Where it runs, on what, and what it has used so far."""
        return self._async.runtime_metadata()

    def start(self) -> Self:
        """Have a box with a Python in it. Starting one that is started does nothing."""
        self._loop.run(self._async.start())
        return self

    def shutdown(self, *, delete: bool | None = None) -> None:
        """Let go of everything, its branches and children first. The box is deleted unless it is to be kept. Doing it
        twice is fine.
        """
        self._end(lambda: self._async.shutdown(delete=delete))

    def execute(
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
        return self._loop.run(self._async.execute(code, variables, timeout=timeout, on_output=on_output, id=id))

    def resume(
        self, id: str, code: str = "", *, timeout: float | None = None, on_output: Printed | None = None
    ) -> Execution:
        """What comes of an execution that an earlier process began, and that was named by `begun`: its Python keeps the
        result until somebody has it. Where it cannot be had any more, the result says so.
        """
        return self._loop.run(self._async.resume(id, code, timeout=timeout, on_output=on_output))

    def interrupt(self, *, grace: float | None = None) -> None:
        """KeyboardInterrupt in the code that runs, if any does. Code that goes on for `grace` seconds more is killed:
        its result says so, and what it had in memory is lost, or restored.
        """
        self._loop.run(self._async.interrupt(grace=grace))

    def reset(self) -> None:
        """Empty its memory: a new Python in the same box. Files, tools and the thread stay. Code that runs is ended."""
        self._loop.run(self._async.reset())

    def read_artifact(self, artifact: Artifact) -> bytes:
        """All of it."""
        return self._loop.run(self._async.read_artifact(artifact))

    def read_value(self, execution: Execution) -> Any:
        """The value of an execution, also where it was too large to come along. Raises `InvalidInterpreter`."""
        return self._loop.run(self._async.read_value(execution))

    def configure_workspace(
        self,
        repo_url: str | Path | None = None,
        ref: str | None = None,
        context_paths: Sequence[str | Path] | None = None,
        volume: str | None = None,
        force_new: bool = False,
    ) -> Transition:
        """Change what it works on, in place: what is in memory stays, unless the box has to be another one."""
        return self._loop.run(self._async.configure_workspace(repo_url, ref, context_paths, volume, force_new))

    def export_state(self) -> State:
        """What it has in memory, as bytes, for another interpreter or another day. What could not be saved is named."""
        return self._loop.run(self._async.export_state())

    def import_state(self, exported: State | bytes) -> Saved:
        """Replace all that it has in memory, never merge. Says what of it could not be loaded, with why."""
        return self._loop.run(self._async.import_state(exported))

    def save_state(self, path: str) -> Checkpoint:
        """The same to a file of the box: on the volume (`/home/box/memory/…`) it outlives the box."""
        return self._loop.run(self._async.save_state(path))

    def load_state(self, path: str) -> Saved:
        """Replace all that it has in memory by what `save_state` wrote."""
        return self._loop.run(self._async.load_state(path))

    def save_session(self, session: str | None = None) -> Checkpoint:
        """Save memory and what this works on to the volume, as a session: for another box, another day.

        Raises `ManifestConflict` where somebody else has saved it since it was loaded or saved here.
        """
        return self._loop.run(self._async.save_session(session))

    def load_session(self, session: str | None = None) -> Saved:
        """Replace all that it has in memory by what a session has. Says what of it could not be loaded, with why."""
        return self._loop.run(self._async.load_session(session))

    def serve_notebook(self, tool: str) -> None:
        """Have what notebooks have, `display` first. What is shown goes to that tool."""
        self._loop.run(self._async.serve_notebook(tool))

    def build_child(
        self,
        *,
        tools: Mapping[str, Tool] | Sequence[Tool] | None = None,
        output_fields: Sequence[GivenField] | Mapping[str, Any] | None = None,
        delegate: Delegate | None = None,
        iterations: int | None = None,
    ) -> SyncInterpreter:
        """A child with a box and a context of its own, one level below, on the same budget. Its box has a part of the
        volume of this one's; without a volume, it begins as a fork of it; else it is clean.

        Waits while the tree has as many boxes as it may. What it submitted last is kept by this one when it is shut
        down. Raises `TooManyChildren`, `TooManyBoxes`.
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
        """Branches in the same box that begin with all that this one has in memory, and share it until it changes.

        Threads and open event loops do not go along. Each is shut down by itself; all end with this one.
        """
        return [SyncInterpreter._wrap(each, self) for each in self._loop.run(self._async.fork(count))]

    def flush(self) -> None:
        """Until all that happened is on the thread, on disk."""
        self._loop.run(self._async.flush())

    def history(self) -> SyncIterator[Mapping[str, Any]]:
        """The entries of its thread."""
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
        """From now on, until the interpreter is shut down."""
        return SyncIterator._wrap(self._async.follow(), self)
