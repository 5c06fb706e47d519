"""dspy's code in boxes: `dspy.RLM(..., interpreter_factory=BoxInterpreter)`, or `Boxes(template="data")` in its place.

dspy is sync and wants its interpreters so, ours are async: they run on an event loop of their own, in a thread. What
dspy does for code in a box (its tools, its models, the sub-agents of 3.4) runs in the caller's process, with the
caller's `dspy.context`. An interpreter that is made there is a child of the one that asks, and spends of its budget.

Works with dspy 3.3 and later, and with all that takes an `interpreter_factory`: RLM, Flex, CodeAct, ProgramOfThought.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import keyword
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, Final, Self

import dspy
from dspy.primitives.code_interpreter import CodeExecutionError, CodeInterpreterError, FinalOutput
from dspy.utils.callback import with_callbacks
from dspy.utils.usage_tracker import UsageTracker
from pydantic import BaseModel

from holdfast.api.errors.interpreters import CallRefused, InvalidInterpreter
from holdfast.client import HoldfastError
from holdfast.interpreter.bridge.bridge import Delegation
from holdfast.interpreter.bridge.budget import Budget, Limits
from holdfast.interpreter.bridge.rebinding import ANYTHING, bound_names
from holdfast.interpreter.client_host import ClientHost
from holdfast.interpreter.host import Host
from holdfast.interpreter.interpreter import Interpreter
from holdfast.interpreter.results import CodeError, Execution
from holdfast.loop_thread import LoopThread, finalize

try:
    from dspy.primitives.facade import SHIM_SETUP as _SHIM  # looks at all names, and changes none but its own
except ImportError:  # before 3.4
    _SHIM = None

INSTRUCTIONS: Final = (
    "Code runs as Python in a sandbox of its own: a persistent process on Linux with the standard library, files and"
    " subprocesses. Variables, imports and functions stay for this session; await works at the top level. The value of"
    " the last expression is shown, and so is what is printed. Host tools and SUBMIT are global functions; their"
    " arguments are copied. sub_rlm(query, context) gives a task to a child with a sandbox of its own and returns its"
    " answer; sub_rlm_batched(queries, contexts) does so for several at once."
)
"""What the model is told of the place where its code runs."""

CALL_SECONDS: Final = 900.0
"""For one call of a tool: dspy's run whole agents. Its models have limits of their own."""

LONG: Final = 64_000
"""Characters of a text that is sent once."""

SIGNATURE: Final = "context, query -> answer"
"""What a child of `sub_rlm` is asked."""

_CURRENT: contextvars.ContextVar[BoxInterpreter] = contextvars.ContextVar("holdfast_dspy")
"""The interpreter whose code asked for what runs now."""


class Boxes:
    """A factory of interpreters, each with these options of `Interpreter`: what `interpreter_factory` takes."""

    def __init__(self, *, instructions: str = "", signature: str | type = SIGNATURE, **options: Any) -> None:
        """`instructions`: what the model is told beside the usual, say which libraries a template has. `signature`:
        what children of `sub_rlm` are asked, with the inputs `context` and `query`, and one output."""
        self.execution_instructions = f"{INSTRUCTIONS} {instructions}".strip()
        self.signature = signature
        self.options = options

    def __call__(self) -> BoxInterpreter:
        made = BoxInterpreter(signature=self.signature, **self.options)
        made.execution_instructions = self.execution_instructions
        return made


class _Left:
    """What is to be ended of an interpreter that nobody shuts down."""

    def __init__(self) -> None:
        self.interpreter: Interpreter | None = None
        self.host: Host | None = None

    async def end(self) -> None:
        if self.interpreter is not None:
            await self.interpreter.shutdown()
        if self.host is not None:
            await self.host.close()


class BoxInterpreter:
    """A `dspy.CodeInterpreter`. Starts with its first execution; `shutdown` gives all of it back."""

    execution_instructions = INSTRUCTIONS

    def __init__(
        self,
        tools: Mapping[str, Callable[..., Any]] | None = None,
        output_fields: Sequence[Mapping[str, Any]] | None = None,
        *,
        callbacks: Sequence[Any] = (),
        signature: str | type = SIGNATURE,
        timeout: float | None = None,
        **options: Any,
    ) -> None:
        """`timeout`: seconds that an execution may compute. `options` are those of `Interpreter`; its `host` may be a
        function that gives one, for a host belongs to an event loop, and each interpreter has its own."""
        self.tools: dict[str, Callable[..., Any]] = dict(tools or {})
        """May be changed at any time: each execution has those that are here when it begins."""
        self.output_fields: list[dict[str, Any]] | None = (
            None if output_fields is None else [dict(each) for each in output_fields]
        )
        self.callbacks = list(callbacks)
        self._signature = signature
        self._timeout = timeout
        self._options = options
        self._parent = _CURRENT.get(None)
        self._root: BoxInterpreter = self if self._parent is None else self._parent._root
        self._depth: int = 0 if self._parent is None else self._parent._depth + 1
        self._loop: LoopThread = LoopThread() if self._parent is None else self._parent._loop
        self._host: Host | None = None
        """Of the root, where that has made it, and closes it."""
        self._interpreter: Interpreter | None = None
        self._known: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {}
        self._there: dict[str, Any] = {}
        """Variables as the box has them, unless its code changed them."""
        self._bound: set[str] = set()
        """Names that the code so far may have changed."""
        self._busy = threading.Lock()
        self._left = _Left()
        if self._parent is None:
            self._forgotten = finalize(self, self._loop, self._left.end)
        self._ended = False
        self._given_up = False

    @property
    def interpreter(self) -> Interpreter:
        """Ours, once it has started: its thread, its box, its state."""
        if self._interpreter is None:
            raise CodeInterpreterError("the interpreter has not started: call start()")
        return self._interpreter

    @with_callbacks
    def start(self) -> None:
        if self._ended or self._given_up:
            raise CodeInterpreterError("the interpreter has ended: make a new one")
        if self._interpreter is None:
            try:
                self._interpreter = self._left.interpreter = self._loop.run(self._start())
                self._left.host = self._host
            except HoldfastError as error:
                self._end()
                raise CodeInterpreterError(_told(error)) from error

    async def _start(self) -> Interpreter:
        options, parent = dict(self._options), self._parent
        if parent is None:
            host = options.get("host") or ClientHost.default
            if callable(host):
                made = host()
                options["host"] = self._host = await made if inspect.isawaitable(made) else made
            if options.keys().isdisjoint(("limits", "budget")):
                # dspy has a limit of calls itself. Who gives one to us has it for the whole tree.
                options["limits"] = Limits(calls=None, call_seconds=CALL_SECONDS)
        else:
            self._check_depth(parent)
            return await parent.interpreter.build_child(delegate=self._delegate)
        interpreter = Interpreter(delegate=self._delegate, **options)
        try:
            return await interpreter.start()
        except BaseException:
            await interpreter.shutdown()
            raise

    def _check_depth(self, parent: BoxInterpreter) -> None:
        budget = parent.interpreter.budget
        if self._depth > budget.limits.depth:
            raise CallRefused(
                f"this is level {parent._depth} of {budget.limits.depth}: no children below it",
                hint="do the task here, or give the factory limits=Limits(depth=...)",
            )

    @with_callbacks
    def execute(self, code: str, variables: Mapping[str, Any] | None = None) -> Any:
        """What dspy's own interpreters give: a `FinalOutput`, the value of the last expression, what was printed, or
        None. With output fields the reader is a model, and is shown all of that.

        Raises `CodeExecutionError` and `SyntaxError` for errors of the code. Any other `CodeInterpreterError` ends the
        interpreter.
        """
        if not self._busy.acquire(blocking=False):
            raise CodeInterpreterError("the interpreter runs code already: one execution at a time")
        token = _CURRENT.set(self)  # seen by whatever the code calls
        try:
            self.start()
            return self._show(self._run(code, variables or {}))
        finally:
            _CURRENT.reset(token)
            self._busy.release()

    __call__ = execute

    def _run(self, code: str, variables: Mapping[str, Any]) -> Execution:
        interpreter = self.interpreter
        if not isinstance(code, str):
            raise CodeInterpreterError(f"code is a {type(code).__name__}, not a text")
        if wrong := [name for name in variables if not _is_name(name) or name in self.tools or name == "SUBMIT"]:
            raise CodeInterpreterError(f"variables cannot be called {', '.join(map(repr, wrong))}")
        try:
            tools = self._wrapped()
            interpreter.tools.clear()
            interpreter.tools.update(tools)
            # Types are dspy's to check: it knows them in full, and takes what can be converted.
            interpreter.output_fields = [field["name"] for field in self.output_fields or ()]
            given = {name: _sent(name, value) for name, value in variables.items() if not self._is_there(name, value)}
            there, self._there = self._there, {}  # unless this goes well
            done = self._loop.run(interpreter.execute(code, variables=given, timeout=self._timeout))
        except InvalidInterpreter as error:  # nothing of it ran
            raise CodeInterpreterError(_told(error)) from error
        except HoldfastError as error:
            self._end()
            raise CodeInterpreterError(_told(error)) from error
        if done.error is None or not done.error.syntax:
            self._there = there | {name: variables[name] for name in given}
            if code != _SHIM:
                self._bound |= bound_names(code)
        return done

    def _is_there(self, name: str, value: Any) -> bool:
        """dspy gives all of its inputs with each piece of code. A long text that no code can have changed stays."""
        if type(value) not in (str, bytes) or len(value) < LONG or self._bound & {name, ANYTHING}:
            return False
        return self._there.get(name) is value

    def _show(self, execution: Execution) -> Any:
        if execution.state_lost:
            self._end()
            raise CodeInterpreterError(_error_text(execution))
        if execution.error is not None:
            if execution.error.syntax:
                raise SyntaxError(_without_head(execution.error))
            raise CodeExecutionError(_error_text(execution))
        if execution.submitted is not None:
            return FinalOutput(dict(execution.submitted))
        if self.output_fields is None:
            return _value(execution) if execution.value_text is not None else (_printed(execution) or None)
        parts = [_printed(execution), *([str(_value(execution))] if execution.value_text is not None else [])]
        return "\n".join(part for part in parts if part) or None

    @with_callbacks
    def shutdown(self) -> None:
        """Give the box back. Closing twice does nothing."""
        if not self._ended:
            self._end()

    def _end(self) -> None:
        self._ended = True
        interpreter, self._interpreter = self._interpreter, None
        try:
            if interpreter is not None:
                self._loop.run(interpreter.shutdown())
            if self._host is not None:
                self._loop.run(self._host.close())
        finally:
            if self._parent is None:
                self._forgotten.detach()
                self._loop.close()

    async def _give_up(self) -> None:
        """From the loop, while somebody else executes: without its interpreter that ends with its next step."""
        self._given_up = True
        if self._interpreter is not None:
            await self._interpreter.shutdown()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shutdown()

    # --- what code in the box calls ---

    @with_callbacks
    def invoke_tool(self, tool_name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Call a tool as dspy's interpreters do: its callbacks hear of it."""
        tool = self.tools.get(tool_name)
        if tool is None:
            raise CodeInterpreterError(f"the host has no {tool_name}")
        args, kwargs = _by_name(tool, args, kwargs)
        self.interpreter.budget.claim(_model_calls(tool_name, kwargs))
        with self._metered():
            result = tool(*args, **kwargs)
            return asyncio.run(_await(result)) if inspect.isawaitable(result) else result

    def _wrapped(self) -> dict[str, Callable[..., Any]]:
        """The tools as the bridge takes them. The same function is wrapped once, so that nothing is told anew."""
        known = {name: self._known.get(name) for name in self.tools}
        self._known = {
            name: pair if (pair := known[name]) is not None and pair[0] is tool else (tool, self._wrap(name, tool))
            for name, tool in self.tools.items()
        }
        return {name: wrapped for name, (_, wrapped) in self._known.items()}

    def _wrap(self, name: str, tool: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:  # in a thread of the bridge's
            return _plain(self.invoke_tool(name, list(args), kwargs))

        # Without its annotations: dspy converts arguments itself, where it wants that.
        try:
            signature = inspect.signature(tool)
            bare = [each.replace(annotation=inspect.Parameter.empty) for each in signature.parameters.values()]
            call.__signature__ = signature.replace(parameters=bare)  # type: ignore[attr-defined]
        except (TypeError, ValueError):
            pass  # of something in C: any arguments will do
        call.__name__, call.__doc__ = name, inspect.getdoc(tool)
        return call

    def _metered(self) -> AbstractContextManager[Any]:
        """What dspy's models use meanwhile is spent of our budget, once."""
        outer = dspy.settings.usage_tracker
        meter = outer if isinstance(outer, _Meter) else _Meter(self.interpreter.budget, outer)
        return dspy.context(usage_tracker=meter)  # type: ignore[no-any-return,unused-ignore]

    async def _delegate(self, delegation: Delegation) -> Any:
        """A child of `sub_rlm`: an RLM with a child of this interpreter."""
        factory = _Children(self)

        def work() -> Any:
            with self._metered():
                rlm = dspy.RLM(self._signature, max_iters=delegation.iterations, interpreter_factory=factory)
                answer = rlm(context=delegation.context, query=delegation.query)
            fields = {name: _plain(getattr(answer, name)) for name in rlm.signature.output_fields}
            return fields if len(fields) > 1 else next(iter(fields.values()))

        working = asyncio.ensure_future(_in_thread(work))
        try:
            return await asyncio.shield(working)
        except asyncio.CancelledError:
            await factory.give_up()
            working.add_done_callback(_look_at)
            raise
        except Exception as error:
            raise RuntimeError(f"the child failed: {type(error).__name__}: {error}") from error


class _Children:
    """The factory of one child's interpreters."""

    def __init__(self, parent: BoxInterpreter) -> None:
        self.execution_instructions = parent.execution_instructions
        self._parent = parent
        self._made: list[BoxInterpreter] = []
        self._given_up = False

    def __call__(self) -> BoxInterpreter:
        made = BoxInterpreter(signature=self._parent._signature, timeout=self._parent._timeout)
        made._given_up = self._given_up
        self._made.append(made)
        return made

    async def give_up(self) -> None:
        self._given_up = True
        for each in self._made:
            await each._give_up()


async def _in_thread(work: Callable[[], Any]) -> Any:
    """In a thread of its own, which keeps no program from ending, with the variables of the caller."""
    loop, context = asyncio.get_running_loop(), contextvars.copy_context()
    done: asyncio.Future[Any] = loop.create_future()

    def settle(result: Any, error: BaseException | None) -> None:
        if done.cancelled():
            return
        if error is None:
            done.set_result(result)
        else:
            done.set_exception(error if isinstance(error, Exception) else RuntimeError(repr(error)))

    def run() -> None:
        try:
            result, error = context.run(work), None
        except BaseException as raised:
            result, error = None, raised
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(settle, result, error)

    threading.Thread(target=run, name="holdfast-child", daemon=True).start()
    return await done


def _look_at(task: asyncio.Future[Any]) -> None:
    if not task.cancelled():
        task.exception()  # of somebody who was told to stop


class _Meter(UsageTracker):  # type: ignore[misc,unused-ignore]
    """Spends of our budget what dspy's models use, as they use it. Who counted before goes on to do so."""

    def __init__(self, budget: Budget, outer: Any) -> None:
        super().__init__()
        self._budget = budget
        self._outer = outer

    def add_usage(self, lm: str, usage_entry: Mapping[str, Any]) -> None:
        read, written = (usage_entry.get(name) for name in ("prompt_tokens", "completion_tokens"))
        self._budget.spend(int(read or 0), int(written or 0), None)
        if self._outer is not None:
            self._outer.add_usage(lm, usage_entry)


def _model_calls(tool: str, given: Mapping[str, Any]) -> int:
    """How many calls of a model it is known to make."""
    if tool == "llm_query_batched":
        prompts = given.get("prompts")
        return len(prompts) if isinstance(prompts, list | tuple) else 0
    return 1 if tool in ("llm_query", "__dspy_call__") else 0


# --- forms ---


def _is_name(name: Any) -> bool:
    return isinstance(name, str) and name.isidentifier() and not keyword.iskeyword(name) and name != "__builtins__"


def _by_name(
    tool: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[list[Any], dict[str, Any]]:
    """dspy calls tools by keyword, and so must we: what it makes of a function takes nothing else."""
    if not args:
        return [], dict(kwargs)
    try:
        signature = inspect.signature(tool)
        bound = signature.bind(*args, **kwargs)
    except (TypeError, ValueError):
        return list(args), dict(kwargs)  # it will say itself what is wrong
    given = list(bound.arguments)
    kinds = {name: signature.parameters[name].kind for name in given}
    if any(kind in (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.VAR_POSITIONAL) for kind in kinds.values()):
        return list(bound.args), dict(bound.kwargs)
    named: dict[str, Any] = {}
    for name in given:
        value = bound.arguments[name]
        named |= value if kinds[name] is inspect.Parameter.VAR_KEYWORD else {name: value}
    return [], named


async def _await(awaitable: Any) -> Any:
    return await awaitable


def _plain(value: Any) -> Any:
    """With models of pydantic, dspy's own types among them, as the documents that they are in JSON."""
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if type(value) is list or type(value) is tuple:
        return type(value)(_plain(each) for each in value)
    if type(value) is dict:
        return {key: _plain(each) for key, each in value.items()}
    return value


def _sent(name: str, value: Any) -> Any:
    try:
        return _plain(value)
    except Exception as error:  # of a model that cannot be written as a document
        raise InvalidInterpreter(f"variable {name} cannot be sent to the box: {error}") from error


def _value(execution: Execution) -> Any:
    return execution.value_text if execution.value is None else execution.value


def _printed(execution: Execution) -> str:
    parts = (execution.stdout.rstrip("\n"), execution.stderr.rstrip("\n"))
    return "\n".join(part for part in parts if part)


def _error_text(execution: Execution) -> str:
    error = execution.error
    told = "its process ended, and all that it had in memory" if error is None else _without_head(error)
    return "\n".join(part for part in (_printed(execution), told) if part)


def _without_head(error: CodeError) -> str:
    return error.traceback.strip() or f"{error.kind}: {error.message}"


def _told(error: Exception) -> str:
    hint = getattr(error, "hint", None)
    return f"{error}: {hint}" if hint else str(error)
