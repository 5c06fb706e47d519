"""Everything that code in a box can call on its host: a model, children, the caller's tools, and SUBMIT.

Calls are not trusted. Each is bounded, its arguments are checked by type, it runs within a time limit and a budget, and
it is noted on the thread of the interpreter.
"""

from __future__ import annotations

import asyncio
import contextvars
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from holdfast.api.errors.interpreters import (
    BudgetExceeded,
    CallFailed,
    CallRefused,
    InterpreterError,
    InvalidInterpreter,
)
from holdfast.guest.kernel import value_codec
from holdfast.interpreter.bridge.annotations import name_of
from holdfast.interpreter.bridge.batches import BatchFailed, all_or_nothing
from holdfast.interpreter.bridge.budget import Budget
from holdfast.interpreter.bridge.calls import Call, Submission, ToolName
from holdfast.interpreter.bridge.submit_fields import OutputField, OutputFieldLike, check_submission, parse_fields
from holdfast.interpreter.bridge.tools import BoundTool, Parameter, Threads, Tool, ToolSignature
from holdfast.interpreter.host import Completion, Record
from holdfast.interpreter.record import show
from holdfast.interpreter.tracing import CallTrace, trace_call
from holdfast.time_limit import time_limit

SUBMIT: Final = "SUBMIT"
LLM_AT_ONCE: Final = 8
CHILDREN_AT_ONCE: Final = 4
_AT_ONCE: Final = 32
"""The number of calls that run at the same time; others wait."""
_MOST_CALLS: Final = 10_000
"""Calls of one execution."""
_MOST_TURNS: Final = 512
_ENDED: Final = 1024
_LONGEST_ID: Final = 128
_LARGEST_RESULT: Final = 16 << 20
_MOST_VALUES: Final = 1_000_000
_DEEPEST: Final = 64
_LONGEST_MESSAGE: Final = 8_000
_NOTES_PENDING: Final = 256
_PLAIN_ERRORS: Final = (NotImplementedError, PermissionError, RuntimeError, TimeoutError, TypeError, ValueError)
"""Errors whose message needs no class name."""
_KEPT_BACK: Final = (StopIteration, StopAsyncIteration, BaseExceptionGroup)
"""Built-in errors that would have another meaning in the box."""


class Complete(Protocol):
    """Asks a model. `Host.complete` is one."""

    def __call__(
        self, model: str | None, messages: Sequence[Mapping[str, str]], *, timeout: float
    ) -> Awaitable[Completion]: ...


@dataclass(frozen=True, slots=True)
class Delegation:
    """The task of a child."""

    query: str
    context: Any
    """Any value that can be sent to a box."""
    depth: int
    """The depth of the child: 1 for a child of the root."""
    iterations: int
    """The number of executions that it may use."""
    seconds: float
    """The time after which it is cancelled."""
    budget: Budget
    """The budget of the whole tree."""
    call: str
    """The id of the call, followed by a number if the call delegates several tasks."""
    execution: str


Delegate = Callable[[Delegation], Awaitable[Any]]
"""Runs a child and returns its answer. If it is cancelled, it must clean up."""


@dataclass(slots=True)
class Turn:
    """One execution, as its calls see it."""

    execution: str
    context: contextvars.Context
    """The context variables of the caller of the execution, which its tools see."""
    delegates: int = 0
    submitted: Mapping[str, Any] | None = None
    """The latest valid submission."""
    calls: int = 0
    """The number of calls so far."""
    underway: set[asyncio.Task[Any]] = field(default_factory=set)
    """The running calls."""


@dataclass(slots=True)
class _ActiveCall:
    """A running call, with its usage so far."""

    call: Call
    turn: Turn
    usage: dict[str, Any] = field(default_factory=dict)

    def add_usage(self, completion: Completion, cost: float | None) -> None:
        usage = self.usage
        usage["calls"] = usage.get("calls", 0) + 1
        usage["input_tokens"] = usage.get("input_tokens", 0) + completion.input_tokens
        usage["output_tokens"] = usage.get("output_tokens", 0) + completion.output_tokens
        usage["model"] = completion.model
        if cost is not None:
            usage["cost"] = usage.get("cost", 0.0) + cost


_ACTIVE_CALL: contextvars.ContextVar[_ActiveCall] = contextvars.ContextVar("holdfast_active_call")


class Bridge:
    """Answers the calls of one interpreter by `handle`. `tools` may be changed between executions."""

    def __init__(
        self,
        *,
        budget: Budget | None = None,
        complete: Complete | None = None,
        model: str | None = None,
        delegate: Delegate | None = None,
        tools: Mapping[str, Tool] | Sequence[Tool] | None = None,
        output_fields: Sequence[OutputFieldLike] | Mapping[str, Any] | None = None,
        record: Record | None = None,
        depth: int = 0,
        iterations: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Without `complete` there is no `llm_query`, and without `delegate` no `sub_rlm`. `iterations` limits the
        turns of a child; the root has no limit. A child shares the `budget` of its parent and has its own `depth`."""
        self.budget = budget or Budget()
        self.model = model
        self.tools: dict[str, Tool] = tools_by_name(tools)
        self.timeouts: dict[str, float] = {}
        """Time limits of tools, by name. Other tools have the limit of the budget."""
        self.record = record
        self.depth = depth
        self.iterations = iterations
        self.turns = 0
        """The number of turns so far."""
        self._complete = complete
        self.delegate = delegate
        self._fields = parse_fields(output_fields)
        self._clock = clock
        self._bound: dict[str, BoundTool] = {}
        self._turns: OrderedDict[str, Turn] = OrderedDict()
        self._ended: OrderedDict[str, None] = OrderedDict()
        self._slots = asyncio.Semaphore(_AT_ONCE)
        self._asking = asyncio.Semaphore(LLM_AT_ONCE)
        self._delegating = asyncio.Semaphore(CHILDREN_AT_ONCE)
        self._threads = Threads(_AT_ONCE)
        self._noted = 0

    # --- functions ---

    @property
    def output_fields(self) -> tuple[OutputField, ...]:
        return self._fields

    @output_fields.setter
    def output_fields(self, fields: Sequence[OutputFieldLike] | Mapping[str, Any] | None) -> None:
        self._fields = parse_fields(fields)

    def signatures(self) -> tuple[ToolSignature, ...]:
        """The signatures of all functions, at present. Raises `InvalidInterpreter` for an invalid tool."""
        functions = self._functions()
        return (*(self._bind(name, function).signature for name, function in functions.items()), self._submit())

    def names(self) -> tuple[ToolName, ...]:
        """The functions as a context defines them."""
        return tuple(ToolName(each.name, each.text) for each in self.signatures())

    def _functions(self) -> dict[str, Tool]:
        own: dict[str, Tool] = {}
        if self._complete is not None:
            own |= {"llm_query": self.llm_query, "llm_query_batched": self.llm_query_batched}
        if self.delegate is not None:
            own |= {"sub_rlm": self.sub_rlm, "sub_rlm_batched": self.sub_rlm_batched}
        if SUBMIT in self.tools:
            raise InvalidInterpreter(f"a tool cannot be called {SUBMIT}", hint="give this tool another name")
        return own | self.tools  # a tool called `llm_query` replaces ours

    def _bind(self, name: str, function: Tool) -> BoundTool:
        bound = self._bound.get(name)
        if bound is None or bound.function != function:
            bound = self._bound[name] = BoundTool(function, name)
        return bound

    def _submit(self) -> ToolSignature:
        parameters = tuple(Parameter(each.name, name_of(each.type)) for each in self._fields)
        doc = "Submit the final answer and end this execution. Nothing after it runs."
        return ToolSignature(SUBMIT, parameters or (Parameter("output", "Any"),), doc, "None")

    # --- turns ---

    @asynccontextmanager
    async def turn(self, execution: str) -> AsyncIterator[Turn]:
        """The context of one execution. At its end, running calls are cancelled and awaited.

        Raises `BudgetExceeded` if all iterations are used, or the time is over.
        """
        if self.iterations is not None and self.turns >= self.iterations:
            raise BudgetExceeded(f"all {self.iterations} iterations are used", hint="answer with what you have")
        self.budget.check_time()
        self.turns += 1
        turn = self._begin(execution)
        try:
            yield turn
        finally:
            await self._end(execution)

    def _begin(self, execution: str) -> Turn:
        turn = self._turns[execution] = Turn(execution, contextvars.copy_context())
        while len(self._turns) > _MOST_TURNS:
            oldest = next(iter(self._turns))
            for task in self._turns.pop(oldest).underway:
                task.cancel()
        return turn

    async def _end(self, execution: str) -> None:
        turn = self._turns.pop(execution, None)
        self._ended[execution] = None
        while len(self._ended) > _ENDED:
            self._ended.popitem(last=False)
        if turn is None:
            return
        tasks = list(turn.underway)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def close(self) -> None:
        """Cancel running calls. Closing twice does nothing."""
        for execution in list(self._turns):
            await self._end(execution)

    # --- calls ---

    async def handle(self, call: Call) -> Any:
        """Carry out a call. `kernel.host_calls` answers repeated calls, so they do not arrive here.

        Errors are raised in the box, with a message for the code there.
        """
        if not call.id or len(call.id) > _LONGEST_ID or not isinstance(call.name, str) or len(call.name) > _LONGEST_ID:
            raise CallRefused("a call needs an id and a name")
        if call.execution in self._ended:
            raise CallRefused(f"{call.name} was called by an execution that has ended")
        turn = self._turns.get(call.execution) or self._begin(call.execution)
        if turn.calls >= _MOST_CALLS:
            raise CallRefused(f"this execution has made all of its {_MOST_CALLS} calls", hint="do more with each call")
        turn.calls += 1
        # With the context variables of the caller of the execution, not of the task that reads the connection.
        task = asyncio.create_task(
            self._carry_out(_ActiveCall(call, turn)), name=call.name, context=turn.context.copy()
        )
        turn.underway.add(task)
        task.add_done_callback(turn.underway.discard)
        return await task

    async def _carry_out(self, called: _ActiveCall) -> Any:
        call = called.call
        with trace_call(call.id, call.name, call.execution) as traced:
            return await self._carry_out_traced(called, traced)

    async def _carry_out_traced(self, called: _ActiveCall, traced: CallTrace) -> Any:
        began = self._clock()
        _ACTIVE_CALL.set(called)
        status, result, message = "cancelled", None, ""
        try:
            async with self._slots:
                result = await self._perform(called)
            status = "ok"
            return result
        except Exception as error:
            status, raised = _error_for_box(error)
            message = _message_of(raised)
            raise raised from None
        finally:
            traced.finish(status, usage=called.usage, message=message)
            await self._note(called, status, result, message, self._clock() - began)

    async def _perform(self, called: _ActiveCall) -> Any:
        call = called.call
        _check_bounds(call.args, call.kwargs)
        if call.name == SUBMIT:
            values = check_submission(self._fields, call.kwargs, call.args)
            called.turn.submitted = values
            return Submission(_sendable(SUBMIT, values))
        function = self._functions().get(call.name)
        if function is None:
            raise CallRefused(
                f"the host has no {call.name}", hint=f"it has {', '.join((*self._functions(), SUBMIT))[:1000]}"
            )
        tool = self._bind(call.name, function)
        bound = tool.bind(call.args, call.kwargs)
        if call.name in self.tools:
            seconds = self.timeouts.get(call.name, self.budget.limits.call_seconds)
            result = await self._within(seconds, call.name, lambda _: tool.call(bound, self._threads))
        else:
            result = await tool.call(bound, self._threads)  # these limit their time themselves
        return _sendable(call.name, result)

    async def _within(self, seconds: float, what: str, work: Callable[[float], Awaitable[Any]]) -> Any:
        limit = self.budget.time_for(seconds)
        timer = time_limit(limit)
        try:
            async with timer:
                return await work(limit)
        except TimeoutError as error:
            if not timer.expired():
                raise TimeoutError(f"{what}: {str(error) or 'it took too long'}") from None
            self.budget.check_time()
            raise TimeoutError(f"{what} took longer than {limit:g} s") from None

    async def _note(self, called: _ActiveCall, status: str, result: Any, message: str, seconds: float) -> None:
        if self.record is None:
            return
        call = called.call
        entry: dict[str, Any] = {
            "type": "interpreter.call",
            "id": call.id,
            "execution": call.execution,
            "name": show(call.name),
            "arguments": show({"args": call.args, "kwargs": call.kwargs}),
            "status": status,
            "seconds": round(seconds, 6),
        }
        if status == "ok":
            entry["result"] = show(result.values if isinstance(result, Submission) else result)
        if message:
            entry["error"] = show(message)
        if called.usage:
            entry["usage"] = called.usage
        self.record.note(entry)
        self._noted += 1
        if self._noted >= _NOTES_PENDING and status != "cancelled":  # a box must not call faster than the disk writes
            self._noted = 0
            await self.record.flush()

    # --- the model ---

    async def llm_query(self, prompt: str) -> str:
        """Ask a language model and return its answer as text. It sees only the prompt."""
        _check_prompt(prompt, "the prompt")
        self.budget.claim()
        return await self._ask(prompt)

    async def llm_query_batched(self, prompts: list[str]) -> list[str]:
        """Ask a language model many prompts at once. Returns the answers in the order of the prompts, all or none."""
        for number, prompt in enumerate(prompts, 1):
            _check_prompt(prompt, f"prompt {number} of {len(prompts)}")
        self.budget.claim(len(prompts))
        begun = 0

        async def ask(prompt: str) -> str:
            nonlocal begun
            begun += 1
            return await self._ask(prompt)

        try:
            return await all_or_nothing(prompts, ask, at_once=LLM_AT_ONCE)
        except BatchFailed as failed:
            raise _batch_error("prompt", failed) from None
        finally:
            self.budget.give_back(len(prompts) - begun)

    async def _ask(self, prompt: str) -> str:
        complete, called = self._complete, _ACTIVE_CALL.get()
        assert complete is not None
        messages = [{"role": "user", "content": prompt}]
        async with self._asking:
            completion: Completion = await self._within(
                self.budget.limits.call_seconds,
                "the model",
                lambda limit: complete(self.model, messages, timeout=limit),
            )
        cost = self.budget.spend(completion.input_tokens, completion.output_tokens, completion.cost)
        called.add_usage(completion, cost)
        return completion.text

    # --- children ---

    async def sub_rlm(self, query: str, context: Any = None, iterations: int | None = None) -> Any:
        """Give a task to a child with a Python of its own, and return its answer. The child sees only the query and the
        context."""
        [delegation] = self._delegations([query], [context], iterations)
        return await self._run_child(delegation)

    async def sub_rlm_batched(
        self, queries: list[str], contexts: list[Any] | None = None, iterations: int | None = None
    ) -> list[Any]:
        """Give tasks to children that work at once. Returns the answers in the order of the queries, all or none."""
        if contexts is not None and len(contexts) != len(queries):
            raise ValueError(f"sub_rlm_batched: {len(queries)} queries need as many contexts, not {len(contexts)}")
        delegations = self._delegations(queries, contexts or [None] * len(queries), iterations)
        try:
            return await all_or_nothing(delegations, self._run_child, at_once=CHILDREN_AT_ONCE)
        except BatchFailed as failed:
            raise _batch_error("child", failed) from None

    def _delegations(self, queries: Sequence[str], contexts: Sequence[Any], iterations: int | None) -> list[Delegation]:
        limits, called = self.budget.limits, _ACTIVE_CALL.get()
        turn = called.turn
        for number, query in enumerate(queries, 1):
            _check_prompt(query, "the query" if len(queries) == 1 else f"query {number} of {len(queries)}")
        if self.depth >= limits.depth:
            raise CallRefused(f"level {self.depth} of {limits.depth} may have no children", hint="do the task here")
        if turn.delegates + len(queries) > limits.delegates:
            left = limits.delegates - turn.delegates
            raise CallRefused(
                f"an execution may have {limits.delegates} children: {left} are left, {len(queries)} were requested",
                hint="request the rest in another execution, or use llm_query_batched",
            )
        if iterations is not None and not 1 <= iterations <= limits.iterations:
            raise CallRefused(f"a child has 1 to {limits.iterations} iterations, not {iterations}")
        self.budget.claim(0)
        turn.delegates += len(queries)
        id = called.call.id
        return [
            Delegation(
                query=query,
                context=context,
                depth=self.depth + 1,
                iterations=limits.iterations if iterations is None else iterations,
                seconds=self.budget.time_for(limits.child_seconds),
                budget=self.budget,
                call=id if len(queries) == 1 else f"{id}-{number}",
                execution=turn.execution,
            )
            for number, (query, context) in enumerate(zip(queries, contexts, strict=True), 1)
        ]

    async def _run_child(self, delegation: Delegation) -> Any:
        delegate = self.delegate
        assert delegate is not None
        async with self._delegating:
            return await self._within(self.budget.limits.child_seconds, "the child", lambda _: delegate(delegation))


def tools_by_name(tools: Mapping[str, Tool] | Sequence[Tool] | None) -> dict[str, Tool]:
    """Return tools by name, from a mapping or from functions. Raises `InvalidInterpreter`."""
    if tools is None:
        return {}
    if isinstance(tools, Mapping):
        return dict(tools)
    named: dict[str, Tool] = {}
    for function in tools:
        name = ToolSignature.of(function).name
        if name in named:
            raise InvalidInterpreter(f"two tools are called {name}", hint="give tools={'name': function}")
        named[name] = function
    return named


# --- arguments, results and errors ---


def _check_bounds(args: Any, kwargs: Any) -> None:
    """Refuse arguments that are too deep or too many, before anything else reads them."""
    if not isinstance(args, tuple | list) or not isinstance(kwargs, Mapping):
        raise CallRefused("the arguments of a call must be a list and a dictionary")
    if not all(isinstance(key, str) for key in kwargs):
        raise CallRefused("the names of arguments must be strings")
    level: list[Any] = [args, kwargs]
    count = depth = 0
    while level:
        count += len(level)
        depth += 1
        if depth > _DEEPEST or count > _MOST_VALUES:
            raise CallRefused(
                f"the arguments of a call may have at most {_MOST_VALUES} values, nested {_DEEPEST} deep",
                hint="pass an array, a table or a text, or write a file",
            )
        below: list[Any] = []
        for each in level:
            if isinstance(each, Mapping):
                below.extend(each.values())
            elif isinstance(each, list | tuple | set | frozenset):
                below.extend(each)
            if len(below) > _MOST_VALUES:
                break  # refused in the next round
        level = below


def _sendable(name: str, result: Any) -> Any:
    """Return the result. Raises `CallFailed` if it cannot be sent to a box, or is too large."""
    try:
        size = len(value_codec.dump(result))
    except value_codec.Unshippable as error:
        raise CallFailed(f"{name} returned something that cannot be sent to a box: {error}") from None
    if size > _LARGEST_RESULT:
        raise CallFailed(
            f"{name} returned {size} bytes, and at most {_LARGEST_RESULT} can be sent to a box", hint="request less"
        )
    return result


def _check_prompt(prompt: str, what: str) -> None:
    if not prompt.strip():
        raise ValueError(f"{what} is empty")


def _batch_error(what: str, failed: BatchFailed) -> Exception:
    _, raised = _error_for_box(failed.error)
    message = f"{what} {failed.index + 1} of {failed.count}: {_message_of(raised)}; the whole batch failed"
    return TimeoutError(message) if isinstance(raised, TimeoutError) else CallFailed(message)


def _error_for_box(error: Exception) -> tuple[str, Exception]:
    """Return the status of a failed call, and the error to raise in the box."""
    message = str(error)
    hint = getattr(error, "hint", None)
    if isinstance(hint, str) and hint:
        message = f"{message}: {hint}"
    message = message[:_LONGEST_MESSAGE]
    if isinstance(error, TimeoutError):
        return "timed_out", TimeoutError(message)
    if isinstance(error, InterpreterError):
        return ("failed" if isinstance(error, CallFailed) else "refused"), type(error)(message)
    described = f"{type(error).__name__}: {message}" if message else type(error).__name__
    base = builtin_base(error)
    if base is None:
        return "failed", CallFailed(described)
    if base is type(error):
        return "failed", error if not hint else base(message)
    try:
        return "failed", base(described)
    except TypeError:  # a few built-in errors take other arguments
        return "failed", CallFailed(described)


def _message_of(error: Exception) -> str:
    """The message, with the class if it is needed: `KeyError: 'tea'`."""
    if isinstance(error, InterpreterError) or type(error) in _PLAIN_ERRORS:
        return str(error)
    return f"{type(error).__name__}: {error}".removesuffix(": ")


def builtin_base(error: Exception) -> type[Exception] | None:
    """The built-in class of an error, as which code in a box can catch it. None if that is only `Exception`, or has
    another meaning there."""
    if isinstance(error, _KEPT_BACK):
        return None
    found = next(kind for kind in type(error).__mro__ if kind.__module__ == "builtins")
    return found if issubclass(found, Exception) and found is not Exception else None
