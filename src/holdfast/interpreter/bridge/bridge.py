"""What code in a box can ask of its host, and nothing else: a model, children, the caller's tools, and SUBMIT.

Everything that comes is a stranger's. It is bounded, checked by the type of what it is for, carried out within a time
and a budget, and noted on the interpreter's thread.
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
from holdfast.interpreter.bridge.submit_fields import Given, OutputField, check, fields_of
from holdfast.interpreter.bridge.tools import BoundTool, Parameter, Threads, Tool, ToolSignature
from holdfast.interpreter.display_values import show
from holdfast.interpreter.host import Completion, Record
from holdfast.interpreter.tracing import CallTrace, trace_call
from holdfast.time_limit import time_limit

SUBMIT: Final = "SUBMIT"
LLM_AT_ONCE: Final = 8
CHILDREN_AT_ONCE: Final = 4
_AT_ONCE: Final = 32
"""Calls that are carried out at once; others wait."""
_MOST_CALLS: Final = 10_000
"""Of one execution."""
_MOST_TURNS: Final = 512
_ENDED: Final = 1024
_LONGEST_ID: Final = 128
_LARGEST_RESULT: Final = 16 << 20
_MOST_VALUES: Final = 1_000_000
_DEEPEST: Final = 64
_LONGEST_MESSAGE: Final = 8_000
_NOTES_PENDING: Final = 256
_TOLD_BY_TEXT: Final = (NotImplementedError, PermissionError, RuntimeError, TimeoutError, TypeError, ValueError)
_KEPT_BACK: Final = (StopIteration, StopAsyncIteration, BaseExceptionGroup)
"""Built-in errors that would mean something else in the box."""


class Complete(Protocol):
    """Asks a model: `Host.complete` is one."""

    def __call__(
        self, model: str | None, messages: Sequence[Mapping[str, str]], *, timeout: float
    ) -> Awaitable[Completion]: ...


@dataclass(frozen=True, slots=True)
class Delegation:
    """What a child is asked for."""

    query: str
    context: Any
    """What the parent gives it along: anything that travels."""
    depth: int
    """Its own: 1 for a child of the root."""
    iterations: int
    """Executions that it may take."""
    seconds: float
    """After which it is cancelled."""
    budget: Budget
    """That of the whole tree."""
    call: str
    """The call that asks; with its number behind it where that asks for several."""
    execution: str


Delegate = Callable[[Delegation], Awaitable[Any]]
"""Runs a child to its answer. Cancelled, it leaves nothing behind."""


@dataclass(slots=True)
class Turn:
    """One execution, as its calls see it."""

    execution: str
    context: contextvars.Context
    """Of who asked for the execution: its tools see those variables."""
    delegates: int = 0
    submitted: Mapping[str, Any] | None = None
    """What SUBMIT was last given, checked."""
    calls: int = 0
    """That it has made."""
    underway: set[asyncio.Task[Any]] = field(default_factory=set)
    """Those that are being carried out."""


@dataclass(slots=True)
class _Called:
    """A call under way, with what it has used so far."""

    call: Call
    turn: Turn
    usage: dict[str, Any] = field(default_factory=dict)

    def used(self, completion: Completion, cost: float | None) -> None:
        usage = self.usage
        usage["calls"] = usage.get("calls", 0) + 1
        usage["input_tokens"] = usage.get("input_tokens", 0) + completion.input_tokens
        usage["output_tokens"] = usage.get("output_tokens", 0) + completion.output_tokens
        usage["model"] = completion.model
        if cost is not None:
            usage["cost"] = usage.get("cost", 0.0) + cost


_CALLED: contextvars.ContextVar[_Called] = contextvars.ContextVar("holdfast_called")


class Bridge:
    """The host's side of one interpreter. `handle` is its handler; `tools` may be changed between executions."""

    def __init__(
        self,
        *,
        budget: Budget | None = None,
        complete: Complete | None = None,
        model: str | None = None,
        delegate: Delegate | None = None,
        tools: Mapping[str, Tool] | Sequence[Tool] | None = None,
        output_fields: Sequence[Given] | Mapping[str, Any] | None = None,
        record: Record | None = None,
        depth: int = 0,
        iterations: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`complete` and `delegate`: without them there is no `llm_query`, no `sub_rlm`. `iterations`: turns that it
        may have, for a child; the root has as many as it likes. A child gets the `budget` of its parent, and its own
        `depth`."""
        self.budget = budget or Budget()
        self.model = model
        self.tools: dict[str, Tool] = tools_of(tools)
        self.timeouts: dict[str, float] = {}
        """Seconds for the tools of these names, where they are not those of the budget."""
        self.record = record
        self.depth = depth
        self.iterations = iterations
        self.turns = 0
        """That it has had."""
        self._complete = complete
        self.delegate = delegate
        self._fields = fields_of(output_fields)
        self._clock = clock
        self._bound: dict[str, BoundTool] = {}
        self._turns: OrderedDict[str, Turn] = OrderedDict()
        self._ended: OrderedDict[str, None] = OrderedDict()
        self._slots = asyncio.Semaphore(_AT_ONCE)
        self._asking = asyncio.Semaphore(LLM_AT_ONCE)
        self._delegating = asyncio.Semaphore(CHILDREN_AT_ONCE)
        self._threads = Threads(_AT_ONCE)
        self._noted = 0

    # --- what there is ---

    @property
    def output_fields(self) -> tuple[OutputField, ...]:
        return self._fields

    @output_fields.setter
    def output_fields(self, given: Sequence[Given] | Mapping[str, Any] | None) -> None:
        self._fields = fields_of(given)

    def signatures(self) -> tuple[ToolSignature, ...]:
        """Of all that can be called, now. Raises `InvalidInterpreter` for a tool that cannot be one."""
        functions = self._functions()
        return (*(self._bind(name, function).signature for name, function in functions.items()), self._submit())

    def names(self) -> tuple[ToolName, ...]:
        """As a context takes them."""
        return tuple(ToolName(each.name, each.text) for each in self.signatures())

    def _functions(self) -> dict[str, Tool]:
        own: dict[str, Tool] = {}
        if self._complete is not None:
            own |= {"llm_query": self.llm_query, "llm_query_batched": self.llm_query_batched}
        if self.delegate is not None:
            own |= {"sub_rlm": self.sub_rlm, "sub_rlm_batched": self.sub_rlm_batched}
        given = dict(self.tools)
        if SUBMIT in given:
            raise InvalidInterpreter(f"{SUBMIT} is the way to end an execution", hint="give this tool another name")
        return own | given  # who brings an `llm_query` of their own means it

    def _bind(self, name: str, function: Tool) -> BoundTool:
        bound = self._bound.get(name)
        if bound is None or bound.function != function:
            bound = self._bound[name] = BoundTool(function, name)
        return bound

    def _submit(self) -> ToolSignature:
        parameters = tuple(Parameter(each.name, name_of(each.type)) for each in self._fields)
        doc = "Give the final answer and end this execution. Nothing after it runs."
        return ToolSignature(SUBMIT, parameters or (Parameter("output", "Any"),), doc, "None")

    # --- turns ---

    @asynccontextmanager
    async def turn(self, execution: str) -> AsyncIterator[Turn]:
        """Around an execution. What it asked for and is still under way is cancelled at the end, and waited for.

        Raises `BudgetExceeded` where it has had all of its iterations, or the time is over.
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
        """End what is under way. Closing twice is fine."""
        for execution in list(self._turns):
            await self._end(execution)

    # --- calls ---

    async def handle(self, call: Call) -> Any:
        """Carry a call out. A call that is repeated does not come here: `kernel.host_calls` answers it.

        What is raised is for the code in the box, and says what that needs to know.
        """
        if not call.id or len(call.id) > _LONGEST_ID or not isinstance(call.name, str) or len(call.name) > _LONGEST_ID:
            raise CallRefused("a call has an id and a name")
        if call.execution in self._ended:
            raise CallRefused(f"{call.name} was called by an execution that has ended")
        turn = self._turns.get(call.execution) or self._begin(call.execution)
        if turn.calls >= _MOST_CALLS:
            raise CallRefused(f"an execution may make {_MOST_CALLS} calls, and has: do more with each")
        turn.calls += 1
        # With the variables of who asked for the execution, not those of who reads the connection.
        task = asyncio.create_task(self._carry_out(_Called(call, turn)), name=call.name, context=turn.context.copy())
        turn.underway.add(task)
        task.add_done_callback(turn.underway.discard)
        return await task

    async def _carry_out(self, called: _Called) -> Any:
        call = called.call
        with trace_call(call.id, call.name, call.execution) as traced:
            return await self._carry_out_traced(called, traced)

    async def _carry_out_traced(self, called: _Called, traced: CallTrace) -> Any:
        began = self._clock()
        _CALLED.set(called)
        status, result, told = "cancelled", None, ""
        try:
            async with self._slots:
                result = await self._perform(called)
            status = "ok"
            return result
        except Exception as error:
            status, raised = _as_told(error)
            told = _text_of(raised)
            raise raised from None
        finally:
            traced.ended(status, usage=called.usage, told=told)
            await self._note(called, status, result, told, self._clock() - began)

    async def _perform(self, called: _Called) -> Any:
        call = called.call
        _check_bounds(call.args, call.kwargs)
        if call.name == SUBMIT:
            values = check(self._fields, call.kwargs, call.args)
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
            result = await tool.call(bound, self._threads)  # which look after their time themselves
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

    async def _note(self, called: _Called, status: str, result: Any, told: str, seconds: float) -> None:
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
        if told:
            entry["error"] = show(told)
        if called.usage:
            entry["usage"] = called.usage
        self.record.note(entry)
        self._noted += 1
        if self._noted >= _NOTES_PENDING and status != "cancelled":  # a box that calls faster than a disk writes waits
            self._noted = 0
            await self.record.flush()

    # --- the model ---

    async def llm_query(self, prompt: str) -> str:
        """Ask a language model and get its answer as a text. It sees the prompt and nothing else."""
        _check_prompt(prompt, "the prompt")
        self.budget.claim()
        return await self._ask(prompt)

    async def llm_query_batched(self, prompts: list[str]) -> list[str]:
        """Ask a language model many things at once. The answers come in the order of the prompts, all or none."""
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
            raise _of_batch("prompt", failed) from None
        finally:
            self.budget.give_back(len(prompts) - begun)

    async def _ask(self, prompt: str) -> str:
        complete, called = self._complete, _CALLED.get()
        assert complete is not None
        messages = [{"role": "user", "content": prompt}]
        async with self._asking:
            completion: Completion = await self._within(
                self.budget.limits.call_seconds,
                "the model",
                lambda limit: complete(self.model, messages, timeout=limit),
            )
        cost = self.budget.spend(completion.input_tokens, completion.output_tokens, completion.cost)
        called.used(completion, cost)
        return completion.text

    # --- children ---

    async def sub_rlm(self, query: str, context: Any = None, iterations: int | None = None) -> Any:
        """Give a task to a child that works on it with a Python of its own. It sees the query and the context only, and
        its answer comes back."""
        [delegation] = self._delegations([query], [context], iterations)
        return await self._run_child(delegation)

    async def sub_rlm_batched(
        self, queries: list[str], contexts: list[Any] | None = None, iterations: int | None = None
    ) -> list[Any]:
        """Give tasks to children that work at once. Their answers come in the order of the queries, all or none."""
        if contexts is not None and len(contexts) != len(queries):
            raise ValueError(f"sub_rlm_batched: {len(queries)} queries and {len(contexts)} contexts: give one for each")
        delegations = self._delegations(queries, contexts or [None] * len(queries), iterations)
        try:
            return await all_or_nothing(delegations, self._run_child, at_once=CHILDREN_AT_ONCE)
        except BatchFailed as failed:
            raise _of_batch("child", failed) from None

    def _delegations(self, queries: Sequence[str], contexts: Sequence[Any], iterations: int | None) -> list[Delegation]:
        limits, called = self.budget.limits, _CALLED.get()
        turn = called.turn
        for number, query in enumerate(queries, 1):
            _check_prompt(query, "the query" if len(queries) == 1 else f"query {number} of {len(queries)}")
        if self.depth >= limits.depth:
            raise CallRefused(
                f"this is level {self.depth} of {limits.depth}: no children below it", hint="do the task here"
            )
        if turn.delegates + len(queries) > limits.delegates:
            left = limits.delegates - turn.delegates
            raise CallRefused(
                f"an execution may ask for {limits.delegates} children; {left} are left, and {len(queries)} are wanted",
                hint="ask for the rest in another execution, or use llm_query_batched",
            )
        if iterations is not None and not 1 <= iterations <= limits.iterations:
            raise CallRefused(f"a child takes 1 to {limits.iterations} iterations, not {iterations}")
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


def tools_of(given: Mapping[str, Tool] | Sequence[Tool] | None) -> dict[str, Tool]:
    """By name: given so, or as functions that have one. Raises `InvalidInterpreter`."""
    if given is None:
        return {}
    if isinstance(given, Mapping):
        return dict(given)
    tools: dict[str, Tool] = {}
    for function in given:
        name = ToolSignature.of(function).name
        if name in tools:
            raise InvalidInterpreter(f"two tools are called {name}", hint="give tools={'name': function}")
        tools[name] = function
    return tools


# --- what comes in and what goes out ---


def _check_bounds(args: Any, kwargs: Any) -> None:
    """Nothing is done with arguments that are too deep, or too many, but to say so."""
    if not isinstance(args, tuple | list) or not isinstance(kwargs, Mapping):
        raise CallRefused("the arguments of a call are a list and a dictionary")
    if not all(isinstance(key, str) for key in kwargs):
        raise CallRefused("arguments are named by texts")
    level: list[Any] = [args, kwargs]
    count = depth = 0
    while level:
        count += len(level)
        depth += 1
        if depth > _DEEPEST or count > _MOST_VALUES:
            raise CallRefused(
                f"the arguments of a call have at most {_MOST_VALUES} values, {_DEEPEST} deep",
                hint="give them as an array, a table or a text, or write a file",
            )
        below: list[Any] = []
        for each in level:
            if isinstance(each, Mapping):
                below.extend(each.values())
            elif isinstance(each, list | tuple | set | frozenset):
                below.extend(each)
            if len(below) > _MOST_VALUES:
                break  # seen above
        level = below


def _sendable(name: str, result: Any) -> Any:
    """The result, which has a form that travels. Raises `CallFailed` for what has none, or is too large."""
    try:
        size = len(value_codec.dump(result))
    except value_codec.Unshippable as error:
        raise CallFailed(f"{name} gave something that cannot be sent to a box: {error}") from None
    if size > _LARGEST_RESULT:
        raise CallFailed(
            f"{name} gave {size} bytes, and at most {_LARGEST_RESULT} can be sent to a box", hint="ask for less"
        )
    return result


def _check_prompt(prompt: str, what: str) -> None:
    if not prompt.strip():
        raise ValueError(f"{what} is empty")


def _of_batch(what: str, failed: BatchFailed) -> Exception:
    _, raised = _as_told(failed.error)
    message = f"{what} {failed.index + 1} of {failed.count}: {_text_of(raised)}; none of the batch has a result"
    return TimeoutError(message) if isinstance(raised, TimeoutError) else CallFailed(message)


def _as_told(error: Exception) -> tuple[str, Exception]:
    """What became of a call, and the error that the box gets."""
    message = str(error)
    hint = getattr(error, "hint", None)
    if isinstance(hint, str) and hint:
        message = f"{message}: {hint}"
    message = message[:_LONGEST_MESSAGE]
    if isinstance(error, TimeoutError):
        return "timed_out", TimeoutError(message)
    if isinstance(error, InterpreterError):
        return ("failed" if isinstance(error, CallFailed) else "refused"), type(error)(message)
    told = f"{type(error).__name__}: {message}" if message else type(error).__name__
    base = built_in_of(error)
    if base is None:
        return "failed", CallFailed(told)
    if base is type(error):
        return "failed", error if not hint else base(message)
    try:
        return "failed", base(told)
    except TypeError:  # of the few that are made of something else than a text
        return "failed", CallFailed(told)


def _text_of(error: Exception) -> str:
    """With its class, where the text alone does not say what is wrong: `KeyError: 'tea'`."""
    if isinstance(error, InterpreterError) or type(error) in _TOLD_BY_TEXT:
        return str(error)
    return f"{type(error).__name__}: {error}".removesuffix(": ")


def built_in_of(error: Exception) -> type[Exception] | None:
    """The class of Python's own that an error of a tool is of, or comes from, and as which code in a box can catch it;
    None where that is no closer than `Exception`, or would mean something else there."""
    if isinstance(error, _KEPT_BACK):
        return None
    found = next(kind for kind in type(error).__mro__ if kind.__module__ == "builtins")
    return found if issubclass(found, Exception) and found is not Exception else None
