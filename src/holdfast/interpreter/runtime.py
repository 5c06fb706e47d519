"""Where an interpreter runs: its host, its box, the kernel in the box, and the context that executes the code."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from holdfast.api.box.box import Box
from holdfast.api.box.spec import BoxSpec
from holdfast.api.errors.boxes import BoxError
from holdfast.api.errors.interpreters import InterpreterError, InvalidInterpreter, KernelLost, KernelUnreachable
from holdfast.interpreter.bridge.children import ORPHAN_SECONDS
from holdfast.interpreter.events import Events, TemplateProgress
from holdfast.interpreter.host import Host
from holdfast.interpreter.kernel.context import Context
from holdfast.interpreter.kernel.kernel import Kernel
from holdfast.interpreter.kernel.start import LABEL, OpenKernel, open_kernel
from holdfast.interpreter.workspace.workspace import Kind, Transition, Workspace, WorkspaceConfig


@dataclass(slots=True, eq=False)
class Runtime:
    """Opens its parts on demand, and closes what it opened. A branch shares everything but the context."""

    interpreter: str
    given_host: Host | None
    """None: the server of this machine, which the runtime then owns."""
    spec: BoxSpec
    events: Events
    template: str | None = None
    keep: bool = False
    """The box and the kernel outlive this process."""
    python: Sequence[str] | None = None
    memory: int | None = None
    roots: Sequence[Path] | None = None
    begun: Sequence[str] = ()
    """Executions of an earlier process, to be resumed."""
    first_box: Box | None = None
    """A box that was made for it already."""
    workspace: Workspace | None = None
    kernel: Kernel | None = None
    context: Context | None = None
    transition: Transition | None = None
    _own_host: Host | None = None
    _loop: asyncio.AbstractEventLoop | None = None

    def branch(self, context: Context) -> Runtime:
        """The runtime of a branch, which has this context."""
        return replace(self, context=context, given_host=self._host, _own_host=None)

    @property
    def box(self) -> Box:
        """Raises `InvalidInterpreter` before the start."""
        if self.workspace is None or self.workspace.box is None:
            raise InvalidInterpreter("this interpreter is not started", hint="await its start(), or use `async with`")
        return self.workspace.box

    @property
    def box_id(self) -> str | None:
        return None if self.workspace is None or self.workspace.box is None else self.workspace.box.id

    @property
    def _host(self) -> Host | None:
        return self.given_host or self._own_host

    def check_loop(self) -> None:
        """Connections belong to the event loop that they were opened in."""
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = loop
        elif self._loop is not loop:
            raise InvalidInterpreter(
                f"interpreter {self.interpreter} belongs to another event loop, in which it was started",
                hint="use it within one asyncio.run, or use SyncInterpreter, which needs none",
            )

    async def host(self) -> Host:
        if self._host is not None:
            return self._host
        from holdfast.interpreter.client_host import ClientHost

        self._own_host = await ClientHost.default()
        return self._own_host

    async def open_box(self, wanted: WorkspaceConfig) -> Transition:
        host = await self.host()
        if self.workspace is None:
            if self.first_box is None:
                if self.template is not None:
                    progress = TemplateProgress(self.events, self.template)
                    image = await host.image_of(self.template, self.spec.provider, progress)
                    self.spec = replace(self.spec, image=image)
                self.spec = self.spec.with_labels({LABEL: self.interpreter})
            key = f"interpreter/{self.interpreter}"
            self.workspace = Workspace(host, key, self.spec, self._workspace_changed, self.roots, box=self.first_box)
        self.transition = await self.workspace.configure(wanted)
        return self.transition

    async def reacquire_box(self) -> Transition:
        """Open the box again, whatever is known of it. One that is being stopped is started after that."""
        assert self.workspace is not None
        await self.workspace.close()
        return await self.open_box(WorkspaceConfig())

    async def _workspace_changed(self, box: Box) -> None:
        """The context keeps its memory and moves to the workspace, unless the box is another one."""
        if self.context is not None and self.kernel is not None and self.kernel.box.id == box.id:
            with suppress(KernelLost, KernelUnreachable):
                await self.context.configure(cwd=self.spec.workdir)
                return
        self.drop_context()

    async def open_kernel(self) -> OpenKernel:
        """Find or start the kernel of the box, after `open_box`."""
        assert self.transition is not None
        opened = await open_kernel(
            self.box,
            is_new=self.transition.kind not in (Kind.RESUMED, Kind.REUSED),
            keep=self.keep,
            python=self.python,
            memory=self.memory,
            orphan_seconds=None if self.keep else ORPHAN_SECONDS,
            begun=self.begun,
        )
        self.kernel, self.context = opened.kernel, opened.context
        return opened

    def drop_context(self) -> None:
        self.context, self.kernel = None, None

    # --- the end ---

    async def close_kernel(self) -> None:
        if self.kernel is not None:
            await self.kernel.close()

    async def release_box(self, *, delete: bool) -> None:
        workspace, self.workspace = self.workspace, None
        if workspace is None:
            return
        try:
            if delete and workspace.box is not None and self._host is not None:
                await self._host.delete(workspace.box)
        finally:
            with suppress(BoxError):
                await workspace.close()

    async def end_branch(self) -> None:
        context, self.context = self.context, None
        self.workspace, self.kernel = None, None
        if context is not None:
            with suppress(InterpreterError):
                await context.kill()
            await context.close()

    async def close(self) -> None:
        self.drop_context()
        if self._own_host is not None:
            await self._own_host.close()
