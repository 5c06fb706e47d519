"""A smoke test of the whole path: a box, a clone, a kernel, two executions that prove its state, and the clean-up.

A failure is a result. Its category says which part has to be fixed.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from holdfast.api.box.box import Box
from holdfast.api.box.network import Network, NetworkPolicy
from holdfast.api.box.spec import BoxSpec, Lifetime
from holdfast.api.errors import HoldfastError
from holdfast.api.errors.boxes import BoxError, CannotIsolate, ImageNotFound, InvalidSpec, Unsupported
from holdfast.api.errors.interpreters import CompletionFailed, InterpreterError, InvalidInterpreter
from holdfast.api.runtime_tests import Category, PhaseProblem
from holdfast.interpreter.execution import Execution
from holdfast.interpreter.host import Host
from holdfast.interpreter.kernel.kernel import Kernel
from holdfast.interpreter.kernel.start import start_kernel
from holdfast.interpreter.smoke_report import Phase, Report
from holdfast.interpreter.workspace.repositories import Remote, check_ref, locate
from holdfast.interpreter.workspace.workspace import Workspace, WorkspaceConfig
from holdfast.time_limit import time_limit_at

SECONDS: Final = 300.0
_EXECUTE_SECONDS: Final = 60.0
_QUESTION: Final = "Answer with the one word: ready"
_SHOWN: Final = 500
_SPEC: Final = BoxSpec(lifetime=Lifetime.EPHEMERAL, idle_seconds=900)


class _Failed(Exception):
    """A step failed with this problem."""

    def __init__(self, problem: PhaseProblem) -> None:
        super().__init__(problem.message)
        self.problem = problem


_OF_PHASE: Final = {"clone": Category.REPOSITORY, "driver": Category.DRIVER, "model": Category.MODEL}


def problem_of(error: BaseException, phase: str) -> PhaseProblem:
    """Describe an error of a phase, with its category."""
    if isinstance(error, _Failed):
        return error.problem
    code = str(getattr(error, "code", type(error).__name__))
    message = (str(getattr(error, "message", "")) or str(error) or type(error).__name__)[:_SHOWN]
    hint = getattr(error, "hint", None)
    return PhaseProblem(_category(error, phase), code, message, hint)


def _category(error: BaseException, phase: str) -> Category:
    if isinstance(error, TimeoutError):
        return Category.TIMEOUT
    if isinstance(error, InvalidInterpreter | InvalidSpec | Unsupported | CannotIsolate | ImageNotFound):
        return Category.CONFIG
    if isinstance(error, CompletionFailed):
        return Category.MODEL
    if getattr(error, "code", "") == "no_server":
        return Category.SERVER
    if isinstance(error, BoxError) and phase not in _OF_PHASE:
        return Category.BOX
    if isinstance(error, InterpreterError | BoxError):
        return _OF_PHASE.get(phase, Category.EXECUTION)
    return Category.SERVER if isinstance(error, HoldfastError) else Category.INTERNAL


@dataclass(slots=True)
class _Steps:
    """Runs phases, one after the other, within the time limit."""

    deadline: float
    phases: list[Phase] = field(default_factory=list)
    details: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return all(each.ok for each in self.phases)

    @asynccontextmanager
    async def phase(self, name: str, *, seconds: float | None = None) -> AsyncIterator[None]:
        """An error inside ends the phase and becomes its problem. Cancellation propagates."""
        self.details.clear()
        began = time.monotonic()
        problem = None
        try:
            async with time_limit_at(asyncio.get_running_loop().time() + (seconds or self._left())):
                yield
        except TimeoutError as error:
            message = str(error) or f"it did not end within {time.monotonic() - began:.0f} s"
            problem = PhaseProblem(Category.TIMEOUT, "timeout", message, None)
        except Exception as error:  # a failure is a result here
            problem = problem_of(error, name)
        self.phases.append(Phase(name, time.monotonic() - began, "; ".join(self.details)[:_SHOWN], problem))

    def _left(self) -> float:
        return max(0.0, self.deadline - time.monotonic())


async def smoke(
    open_host: Callable[[], Awaitable[Host]],
    *,
    repo: str | None = None,
    ref: str | None = None,
    spec: BoxSpec | None = None,
    roots: Sequence[Path] | None = None,
    timeout: float = SECONDS,
) -> Report:
    """Run all phases once, in a box of its own, which is always deleted at the end.

    If the repository is at a URL and the spec has no network policy, the box may reach that one host. `roots` are the
    folders of this machine that may contain the repository; None allows all.
    """
    steps = _Steps(time.monotonic() + timeout)
    host: Host | None = None
    wanted = spec or _SPEC
    async with steps.phase("config"):
        wanted = _with_network(wanted, repo, roots)
        check_ref(ref)
        if ref is not None and repo is None:
            raise InvalidInterpreter("a ref needs a repository", hint="give --repo, too")
        host = await open_host()
        steps.details.append(f"provider {wanted.provider}, image {wanted.image or 'default'}")
    if host is not None:
        try:
            workspace = Workspace(host, f"smoke-{secrets.token_hex(8)}", wanted, roots=roots)
            await _test_box(workspace, repo, ref, steps)
        finally:
            await host.close()
    return Report(tuple(steps.phases))


async def _test_box(workspace: Workspace, repo: str | None, ref: str | None, steps: _Steps) -> None:
    kernel: Kernel | None = None
    try:
        async with steps.phase("box"):
            made = await workspace.configure(WorkspaceConfig())
            assert workspace.box is not None
            steps.details.append(f"{workspace.box.id} {made.kind}")
        if steps.ok and repo is not None:
            async with steps.phase("clone"):
                cloned = await workspace.configure(WorkspaceConfig(repo_url=repo, ref=ref))
                steps.details += cloned.changed
        box = workspace.box
        if steps.ok and box is not None:
            async with steps.phase("driver"):
                kernel = await start_kernel(box)
                context = await kernel.context()
                steps.details.append(f"Python {context.python}")
            if steps.ok and kernel is not None:
                await _prove_state(kernel, steps)
    finally:
        async with steps.phase("cleanup", seconds=60.0):
            if kernel is not None:
                await kernel.close()
            await _clean_up(workspace, steps)


async def _prove_state(kernel: Kernel, steps: _Steps) -> None:
    token = secrets.token_hex(8)
    context = await kernel.context()
    async with steps.phase("execute"):
        done = await context.execute(
            "import os\nkept = {'token': token, 'pid': os.getpid()}\nlen(os.listdir('.'))",
            variables={"token": token},
            timeout=_EXECUTE_SECONDS,
        )
        _expect_ok(done)
        steps.details.append(f"{done.value} files in the workspace")
    if not steps.ok:
        return
    async with steps.phase("state"):
        done = await context.execute("[kept['token'], kept['pid'] == os.getpid()]", timeout=_EXECUTE_SECONDS)
        _expect_ok(done)
        if done.value != [token, True]:
            message = f"the second execution found {str(done.value)[:_SHOWN]} instead of what the first one left"
            raise _Failed(PhaseProblem(Category.STATE, "state_lost", message, None))
        steps.details.append("state kept")


def _expect_ok(done: Execution) -> None:
    if done.error is not None:
        kind, message = done.error.kind, done.error.message
        category = Category.STATE if kind == "NameError" else Category.EXECUTION
        raise _Failed(PhaseProblem(category, "code_error", f"{kind}: {message}"[:_SHOWN], None))


async def _clean_up(workspace: Workspace, steps: _Steps) -> None:
    box: Box | None = workspace.box
    if box is None:
        steps.details.append("no box was created")
        return
    await workspace.close()
    await workspace.host.delete(box)
    steps.details.append(f"{box.id} deleted")


def _with_network(spec: BoxSpec, repo: str | None, roots: Sequence[Path] | None) -> BoxSpec:
    """Let the box reach the host of the repository, if the spec has no network policy."""
    if repo is None:
        return spec
    found = locate(repo, roots)
    if not isinstance(found, Remote) or spec.network != NetworkPolicy():
        return spec
    parts = urlsplit(found.url)
    host = parts.hostname or ""
    rule = f"[{host}]" if ":" in host else host
    rule += f":{parts.port}" if parts.port else ""
    return replace(spec, network=NetworkPolicy(Network.ALLOW, (rule,)))


async def smoke_model(host: Host, model: str | None, *, timeout: float = 60.0) -> Report:
    """Ask a model one small question, as an interpreter does."""
    steps = _Steps(time.monotonic() + timeout + 5.0)
    async with steps.phase("model"):
        answer = await host.complete(model, [{"role": "user", "content": _QUESTION}], timeout=timeout)
        steps.details.append(f"{answer.model} answered {answer.text.strip()[:80]!r}")
    return Report(tuple(steps.phases))
