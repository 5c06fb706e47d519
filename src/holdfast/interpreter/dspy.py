"""Code of dspy in boxes: `dspy.RLM(..., interpreter_factory=BoxInterpreter)`, or `Boxes(template="data")` instead.

dspy expects sync interpreters. Ours are async, so they run on an event loop in a thread of their own. Tools, models and
sub-agents of dspy run in the caller's process, with the caller's `dspy.context`. An interpreter that they create is a
child of the calling one, and shares its budget.

Works with dspy 3.3 and later, and with every module that takes an `interpreter_factory`: RLM, Flex, CodeAct,
ProgramOfThought.
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
from holdfast.interpreter.bridge.bridge import Delegate, Delegation
from holdfast.interpreter.bridge.budget import Budget, Limits
from holdfast.interpreter.bridge.rebinding import ANYTHING, bound_names
from holdfast.interpreter.client_host import ClientHost
from holdfast.interpreter.execution import CodeError, Execution
from holdfast.interpreter.host import Host
from holdfast.interpreter.interpreter import Interpreter
from holdfast.loop_thread import LoopThread, finalize

try:
    from dspy.primitives.facade import SHIM_SETUP as _SHIM  # reads all names, and changes only its own
except ImportError:  # before 3.4
    _SHIM = None

INSTRUCTIONS: Final = (
    "Code runs as Python in a sandbox of its own: a persistent process on Linux with the standard library, files and"
    " subprocesses. Variables, imports and functions stay for this session; await works at the top level. The value of"
    " the last expression is shown, and so is what is printed. Host tools and SUBMIT are global functions; their"
    " arguments are copied. sub_rlm(query, context) gives a task to a child with a sandbox of its own and returns its"
    " answer; sub_rlm_batched(queries, contexts) does so for several at once."
)
"""The description, for the model, of where its code runs."""

CALL_SECONDS: Final = 900.0
"""The time limit of one tool call. Tools of dspy run whole agents, and its models have limits of their own."""

LONG: Final = 64_000
"""A text of this many characters is sent only once."""

SIGNATURE: Final = "context, query -> answer"
"""The signature of a child of `sub_rlm`."""

_CURRENT: contextvars.ContextVar[BoxInterpreter] = contextvars.ContextVar("holdfast_dspy")
"""The interpreter whose code called what runs now."""


class Boxes:
    """An `interpreter_factory` that creates each interpreter with these options of `Interpreter`."""

    def __init__(self, *, instructions: str = "", signature: str | type = SIGNATURE, **options: Any) -> None:
        """`instructions` are added to the description for the model, such as the libraries of a template. `signature`
        is the one of children of `sub_rlm`, with the inputs `context` and `query`, and one output."""
        self.execution_instructions = f"{INSTRUCTIONS} {instructions}".strip()
        self.signature = signature
        self.options = options

    def __call__(self) -> BoxInterpreter:
        return BoxInterpreter(
            signature=self.signature, execution_instructions=self.execution_instructions, **self.options
        )


class _Session:
    """The interpreter and the host that a `BoxInterpreter` has open. A finalizer closes it if the owner does not."""

    def __init__(self) -> None:
        self.interpreter: Interpreter | None = None
        self._host: Host | None = None
        """The host, if it was created here."""

    @property
    def is_open(self) -> bool:
        return self.interpreter is not None or self._host is not None

    async def start(self, options: dict[str, Any]) -> None:
        host = options.get("host") or ClientHost.default
        if callable(host):
            made = host()
            options["host"] = self._host = await made if inspect.isawaitable(made) else made
        if options.keys().isdisjoint(("limits", "budget")):
            # dspy limits calls itself. Limits of the caller apply to the whole tree.
            options["limits"] = Limits(calls=None, call_seconds=CALL_SECONDS)
        interpreter = Interpreter(**options)
        try:
            self.interpreter = await interpreter.start()
        except BaseException:
            await interpreter.shutdown()
            raise

    async def start_child(self, parent: Interpreter, delegate: Delegate) -> None:
        self.interpreter = await parent.build_child(delegate=delegate)

    async def close(self) -> None:
        interpreter, self.interpreter = self.interpreter, None
        if interpreter is not None:
            await interpreter.shutdown()
        if self._host is not None:
            await self._host.close()


class BoxInterpreter:
    """A `dspy.CodeInterpreter`. Starts with its first execution; `shutdown` deletes its box."""

    execution_instructions = INSTRUCTIONS

    def __init__(
        self,
        tools: Mapping[str, Callable[..., Any]] | None = None,
        output_fields: Sequence[Mapping[str, Any]] | None = None,
        *,
        callbacks: Sequence[Any] = (),
        signature: str | type = SIGNATURE,
        timeout: float | None = None,
        execution_instructions: str = INSTRUCTIONS,
        stopped: threading.Event | None = None,
        **options: Any,
    ) -> None:
        """`timeout` limits the seconds that an execution computes. After `stopped` is set, it does not start. `options`
        are those of `Interpreter`; `host` may be a function that returns one, because a host belongs to an event loop,
        and each interpreter has a loop of its own."""
        self.tools: dict[str, Callable[..., Any]] = dict(tools or {})
        """May be changed at any time. An execution uses the tools that are here when it begins."""
        self.output_fields: list[dict[str, Any]] | None = (
            None if output_fields is None else [dict(each) for each in output_fields]
        )
        self.callbacks = list(callbacks)
        self.execution_instructions = execution_instructions
        self._signature = signature
        self._timeout = timeout
        self._options = options
        self._parent = _CURRENT.get(None)
        self._root: BoxInterpreter = self if self._parent is None else self._parent._root
        self._depth: int = 0 if self._parent is None else self._parent._depth + 1
        self._loop: LoopThread = LoopThread() if self._parent is None else self._parent._loop
        self._wrapped: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {}
        """Each tool with its wrapper, by name."""
        self._sent: dict[str, Any] = {}
        """Variables as the box has them, unless its code changed them."""
        self._bound: set[str] = set()
        """Names that the code so far may have changed."""
        self._busy = threading.Lock()
        self._session = _Session()
        if self._parent is None:
            self._finalizer = finalize(self, self._loop, self._session.close)
        self._ended = False
        self._stopped = stopped or threading.Event()

    @property
    def interpreter(self) -> Interpreter:
        """The Holdfast interpreter, after the start."""
        if self._session.interpreter is None:
            raise CodeInterpreterError("the interpreter has not started: call start()")
        return self._session.interpreter

    @with_callbacks
    def start(self) -> None:
        if self._ended or self._stopped.is_set():
            raise CodeInterpreterError("the interpreter has ended: create a new one")
        if self._session.interpreter is None:
            try:
                self._loop.run(self._start())
            except HoldfastError as error:
                self._end()
                raise CodeInterpreterError(_with_hint(error)) from error

    async def _start(self) -> None:
        if self._parent is None:
            await self._session.start({"delegate": self._delegate, **self._options})
        else:
            self._check_depth(self._parent)
            await self._session.start_child(self._parent.interpreter, self._delegate)

    def _check_depth(self, parent: BoxInterpreter) -> None:
        budget = parent.interpreter.budget
        if self._depth > budget.limits.depth:
            raise CallRefused(
                f"level {parent._depth} of {budget.limits.depth} may have no children",
                hint="do the task here, or give the factory limits=Limits(depth=...)",
            )

    @with_callbacks
    def execute(self, code: str, variables: Mapping[str, Any] | None = None) -> Any:
        """Returns what interpreters of dspy return: a `FinalOutput`, the value of the last expression, the output, or
        None. With output fields the reader is a model, which gets the output and the value.

        Raises `CodeExecutionError` and `SyntaxError` for errors of the code. Any other `CodeInterpreterError` ends the
        interpreter.
        """
        if not self._busy.acquire(blocking=False):
            raise CodeInterpreterError("the interpreter already runs code: only one execution at a time is allowed")
        token = _CURRENT.set(self)  # for interpreters that tools of this code create
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
            raise CodeInterpreterError(f"code must be a string, not {type(code).__name__}")
        if wrong := [name for name in variables if not _is_name(name) or name in self.tools or name == "SUBMIT"]:
            raise CodeInterpreterError(f"these variable names are invalid or reserved: {', '.join(map(repr, wrong))}")
        try:
            tools = self._wrap_tools()
            interpreter.tools.clear()
            interpreter.tools.update(tools)
            # dspy checks types itself: it knows them in full, and converts what it can.
            interpreter.output_fields = [field["name"] for field in self.output_fields or ()]
            new = {name: _to_json(name, value) for name, value in variables.items() if not self._is_sent(name, value)}
            sent, self._sent = self._sent, {}  # restored below if the execution succeeds
            done = self._loop.run(interpreter.execute(code, variables=new, timeout=self._timeout))
        except InvalidInterpreter as error:  # nothing ran
            raise CodeInterpreterError(_with_hint(error)) from error
        except HoldfastError as error:
            self._end()
            raise CodeInterpreterError(_with_hint(error)) from error
        if done.error is None or not done.error.syntax:
            self._sent = sent | {name: variables[name] for name in new}
            if code != _SHIM:
                self._bound |= bound_names(code)
        return done

    def _is_sent(self, name: str, value: Any) -> bool:
        """dspy passes all inputs to each execution. A long text that the code cannot have changed is not sent again."""
        if type(value) not in (str, bytes) or len(value) < LONG or self._bound & {name, ANYTHING}:
            return False
        return self._sent.get(name) is value

    def _show(self, execution: Execution) -> Any:
        if execution.state_lost:
            self._end()
            raise CodeInterpreterError(_error_text(execution))
        if execution.error is not None:
            if execution.error.syntax:
                raise SyntaxError(_traceback(execution.error))
            raise CodeExecutionError(_error_text(execution))
        if execution.submitted is not None:
            return FinalOutput(dict(execution.submitted))
        if self.output_fields is None:
            return _value(execution) if execution.value_text is not None else (_printed(execution) or None)
        parts = [_printed(execution), *([str(_value(execution))] if execution.value_text is not None else [])]
        return "\n".join(part for part in parts if part) or None

    @with_callbacks
    def shutdown(self) -> None:
        """Delete the box. Calling it twice does nothing."""
        if not self._ended:
            self._end()

    def _end(self) -> None:
        self._ended = True
        try:
            if self._session.is_open:
                self._loop.run(self._session.close())
        finally:
            if self._parent is None:
                self._finalizer.detach()
                self._loop.close()

    async def abort(self) -> None:
        """Shut down from the event loop, while another thread executes. That thread fails at its next step."""
        if self._session.interpreter is not None:
            await self._session.interpreter.shutdown()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shutdown()

    # --- calls of code in the box ---

    @with_callbacks
    def invoke_tool(self, tool_name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Call a tool as interpreters of dspy do, so that its callbacks are notified."""
        tool = self.tools.get(tool_name)
        if tool is None:
            raise CodeInterpreterError(f"the host has no {tool_name}")
        args, kwargs = _by_name(tool, args, kwargs)
        self.interpreter.budget.claim(_model_calls(tool_name, kwargs))
        with self._metered():
            result = tool(*args, **kwargs)
            return asyncio.run(_await(result)) if inspect.isawaitable(result) else result

    def _wrap_tools(self) -> dict[str, Callable[..., Any]]:
        """The tools for the bridge. A function is wrapped only once, so that its definition does not change."""
        known = {name: self._wrapped.get(name) for name in self.tools}
        self._wrapped = {
            name: pair if (pair := known[name]) is not None and pair[0] is tool else (tool, self._wrap(name, tool))
            for name, tool in self.tools.items()
        }
        return {name: wrapped for name, (_, wrapped) in self._wrapped.items()}

    def _wrap(self, name: str, tool: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:  # in a thread of the bridge
            return _plain(self.invoke_tool(name, list(args), kwargs))

        # Without annotations, because dspy converts arguments itself.
        try:
            signature = inspect.signature(tool)
            bare = [each.replace(annotation=inspect.Parameter.empty) for each in signature.parameters.values()]
            call.__signature__ = signature.replace(parameters=bare)  # type: ignore[attr-defined]
        except (TypeError, ValueError):
            pass  # a C function: any arguments are passed on
        call.__name__, call.__doc__ = name, inspect.getdoc(tool)
        return call

    def _metered(self) -> AbstractContextManager[Any]:
        """Charge the usage of dspy's models to our budget, once."""
        outer = dspy.settings.usage_tracker
        tracker = outer if isinstance(outer, _BudgetTracker) else _BudgetTracker(self.interpreter.budget, outer)
        return dspy.context(usage_tracker=tracker)  # type: ignore[no-any-return,unused-ignore]

    async def _delegate(self, delegation: Delegation) -> Any:
        """Run a child of `sub_rlm`: an RLM with a child of this interpreter."""
        factory = _ChildFactory(self)

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
            await factory.stop()
            working.add_done_callback(_ignore_error)
            raise
        except Exception as error:
            raise RuntimeError(f"the child failed: {type(error).__name__}: {error}") from error


class _ChildFactory:
    """The `interpreter_factory` of one child. `stop` ends all interpreters that it created."""

    def __init__(self, parent: BoxInterpreter) -> None:
        self.execution_instructions = parent.execution_instructions
        self._parent = parent
        self._made: list[BoxInterpreter] = []
        self._stopped = threading.Event()

    def __call__(self) -> BoxInterpreter:
        made = BoxInterpreter(signature=self._parent._signature, timeout=self._parent._timeout, stopped=self._stopped)
        self._made.append(made)
        return made

    async def stop(self) -> None:
        self._stopped.set()
        for each in self._made:
            await each.abort()


async def _in_thread(work: Callable[[], Any]) -> Any:
    """Run in a daemon thread, with the context variables of the caller."""
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
        with contextlib.suppress(RuntimeError):  # the loop is closed, so nothing waits for the result
            loop.call_soon_threadsafe(settle, result, error)

    threading.Thread(target=run, name="holdfast-child", daemon=True).start()
    return await done


def _ignore_error(task: asyncio.Future[Any]) -> None:
    if not task.cancelled():
        task.exception()  # it was stopped, so an error is expected


class _BudgetTracker(UsageTracker):  # type: ignore[misc,unused-ignore]
    """Charges the usage of dspy's models to our budget, and passes it on to the tracker that was there before."""

    def __init__(self, budget: Budget, outer: Any) -> None:
        super().__init__()
        self._budget = budget
        self._outer = outer

    def add_usage(self, lm: str, usage_entry: Mapping[str, Any]) -> None:
        inputs, outputs = (usage_entry.get(name) for name in ("prompt_tokens", "completion_tokens"))
        self._budget.spend(int(inputs or 0), int(outputs or 0), None)
        if self._outer is not None:
            self._outer.add_usage(lm, usage_entry)


def _model_calls(tool: str, arguments: Mapping[str, Any]) -> int:
    """How many calls of a model a tool is known to make."""
    if tool == "llm_query_batched":
        prompts = arguments.get("prompts")
        return len(prompts) if isinstance(prompts, list | tuple) else 0
    return 1 if tool in ("llm_query", "__dspy_call__") else 0


# --- conversions ---


def _is_name(name: Any) -> bool:
    return isinstance(name, str) and name.isidentifier() and not keyword.iskeyword(name) and name != "__builtins__"


def _by_name(
    tool: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[list[Any], dict[str, Any]]:
    """Turn positional arguments into keywords, because tools of dspy take nothing else."""
    if not args:
        return [], dict(kwargs)
    try:
        signature = inspect.signature(tool)
        bound = signature.bind(*args, **kwargs)
    except (TypeError, ValueError):
        return list(args), dict(kwargs)  # the tool itself will raise
    kinds = {name: signature.parameters[name].kind for name in bound.arguments}
    if any(kind in (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.VAR_POSITIONAL) for kind in kinds.values()):
        return list(bound.args), dict(bound.kwargs)
    named: dict[str, Any] = {}
    for name, value in bound.arguments.items():
        named |= value if kinds[name] is inspect.Parameter.VAR_KEYWORD else {name: value}
    return [], named


async def _await(awaitable: Any) -> Any:
    return await awaitable


def _plain(value: Any) -> Any:
    """Replace pydantic models, which types of dspy are too, by JSON documents."""
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if type(value) is list or type(value) is tuple:
        return type(value)(_plain(each) for each in value)
    if type(value) is dict:
        return {key: _plain(each) for key, each in value.items()}
    return value


def _to_json(name: str, value: Any) -> Any:
    try:
        return _plain(value)
    except Exception as error:  # raised by the code of a model
        raise InvalidInterpreter(f"variable {name} cannot be sent to the box: {error}") from error


def _value(execution: Execution) -> Any:
    return execution.value_text if execution.value is None else execution.value


def _printed(execution: Execution) -> str:
    parts = (execution.stdout.rstrip("\n"), execution.stderr.rstrip("\n"))
    return "\n".join(part for part in parts if part)


def _error_text(execution: Execution) -> str:
    error = execution.error
    message = "its process ended, and its memory is lost" if error is None else _traceback(error)
    return "\n".join(part for part in (_printed(execution), message) if part)


def _traceback(error: CodeError) -> str:
    return error.traceback.strip() or f"{error.kind}: {error.message}"


def _with_hint(error: Exception) -> str:
    hint = getattr(error, "hint", None)
    return f"{error}: {hint}" if hint else str(error)
