"""The interpreter for code without an event loop, or inside one that it must not block on: scripts and notebooks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from holdfast.interpreter.bridge.bridge import Delegate
from holdfast.interpreter.bridge.budget import Budget
from holdfast.interpreter.bridge.submit_fields import Given as GivenField
from holdfast.interpreter.bridge.submit_fields import OutputField
from holdfast.interpreter.bridge.tools import Tool, ToolSignature
from holdfast.interpreter.interpreter import Interpreter
from holdfast.interpreter.kernel.execution import Printed
from holdfast.interpreter.kernel.state import Checkpoint, State
from holdfast.interpreter.results import Artifact, Execution, Saved
from holdfast.interpreter.workspace.workspace import Transition
from holdfast.loop_thread import LoopThread, at_the_end


class SyncInterpreter:
    """`Interpreter` on an event loop of its own. Takes what that takes; each method waits for its end."""

    def __init__(self, **options: Any) -> None:
        self._loop = LoopThread()
        self._interpreter = self._loop.run(_make(options))
        self._above: SyncInterpreter | None = None
        """Whose branch or child it is: that lives as long as this does."""
        self._forgotten = at_the_end(self, self._loop, self._interpreter.shutdown)

    @classmethod
    def _of(cls, above: SyncInterpreter, interpreter: Interpreter) -> Self:
        made = cls.__new__(cls)
        made._loop = above._loop
        made._interpreter = interpreter
        made._above = above
        return made

    @property
    def id(self) -> str:
        return self._interpreter.id

    @property
    def thread(self) -> str:
        return self._interpreter.thread

    @property
    def tools(self) -> dict[str, Tool]:
        return self._interpreter.tools

    @property
    def tool_signatures(self) -> tuple[ToolSignature, ...]:
        return self._interpreter.tool_signatures

    @property
    def output_fields(self) -> tuple[OutputField, ...]:
        return self._interpreter.output_fields

    @output_fields.setter
    def output_fields(self, given: Sequence[GivenField] | Mapping[str, Any] | None) -> None:
        self._interpreter.output_fields = given

    @property
    def budget(self) -> Budget:
        return self._interpreter.budget

    def runtime_metadata(self) -> dict[str, Any]:
        return self._interpreter.runtime_metadata()

    def start(self) -> Self:
        self._loop.run(self._interpreter.start())
        return self

    def shutdown(self, *, delete: bool | None = None) -> None:
        """Doing it twice is fine. A program that ends without it, or drops this, has it done all the same."""
        try:
            self._loop.run(self._interpreter.shutdown(delete=delete))
        except RuntimeError:
            if not self._loop.closed:
                raise
        finally:
            if self._above is None:
                self._forgotten.detach()
                self._loop.close()

    def execute(
        self,
        code: str,
        variables: Mapping[str, Any] | None = None,
        *,
        timeout: float | None = None,
        on_output: Printed | None = None,
        id: str | None = None,
    ) -> Execution:
        """`on_output` is called on the interpreter's own thread. Interrupted (Ctrl-C), the code is interrupted too."""
        work = self._interpreter.execute(code, variables, timeout=timeout, on_output=on_output, id=id)
        return self._loop.run(work)

    def resume(
        self, id: str, code: str = "", *, timeout: float | None = None, on_output: Printed | None = None
    ) -> Execution:
        return self._loop.run(self._interpreter.resume(id, code, timeout=timeout, on_output=on_output))

    def interrupt(self, *, grace: float | None = None) -> None:
        self._loop.run(self._interpreter.interrupt(grace=grace))

    def reset(self) -> None:
        """Empty its memory: a new Python in the same box."""
        self._loop.run(self._interpreter.reset())

    def read_value(self, execution: Execution) -> Any:
        """The value of an execution, also where it was too large to come along."""
        return self._loop.run(self._interpreter.read_value(execution))

    def configure_workspace(
        self,
        repo_url: str | Path | None = None,
        ref: str | None = None,
        context_paths: Sequence[str | Path] | None = None,
        volume: str | None = None,
        force_new: bool = False,
    ) -> Transition:
        work = self._interpreter.configure_workspace(repo_url, ref, context_paths, volume, force_new)
        return self._loop.run(work)

    def export_state(self) -> State:
        """What it has in memory, as bytes."""
        return self._loop.run(self._interpreter.export_state())

    def import_state(self, exported: State | bytes) -> Saved:
        """Replace all that it has in memory, never merge."""
        return self._loop.run(self._interpreter.import_state(exported))

    def save_state(self, path: str) -> Checkpoint:
        return self._loop.run(self._interpreter.save_state(path))

    def save_session(self, session: str | None = None) -> Checkpoint:
        return self._loop.run(self._interpreter.save_session(session))

    def load_session(self, session: str | None = None) -> Saved:
        return self._loop.run(self._interpreter.load_session(session))

    def load_state(self, path: str) -> Saved:
        return self._loop.run(self._interpreter.load_state(path))

    def build_child(
        self,
        *,
        tools: Mapping[str, Tool] | Sequence[Tool] | None = None,
        output_fields: Sequence[GivenField] | Mapping[str, Any] | None = None,
        delegate: Delegate | None = None,
        iterations: int | None = None,
    ) -> SyncInterpreter:
        work = self._interpreter.build_child(
            tools=tools, output_fields=output_fields, delegate=delegate, iterations=iterations
        )
        return self._of(self, self._loop.run(work))

    def fork(self, count: int = 1) -> list[SyncInterpreter]:
        return [self._of(self, each) for each in self._loop.run(self._interpreter.fork(count))]

    def read_artifact(self, artifact: Artifact) -> bytes:
        return self._loop.run(self._interpreter.read_artifact(artifact))

    def serve_notebook(self, tool: str) -> None:
        self._loop.run(self._interpreter.serve_notebook(tool))

    def flush(self) -> None:
        self._loop.run(self._interpreter.flush())

    def history(self) -> Iterator[Mapping[str, Any]]:
        async def gather() -> list[Mapping[str, Any]]:
            return [entry async for entry in self._interpreter.history()]

        return iter(self._loop.run(gather()))

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.shutdown()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shutdown()


async def _make(options: dict[str, Any]) -> Interpreter:
    return Interpreter(**options)
