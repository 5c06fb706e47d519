"""The bridge: what code in a box can ask of its host, carried out within its limits, and noted."""

from __future__ import annotations

import asyncio
import contextvars
import itertools
import threading
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from pydantic import BaseModel

from holdfast.api.errors.interpreters import (
    BudgetExceeded,
    CallFailed,
    CallRefused,
    InvalidInterpreter,
    InvalidSubmission,
)
from holdfast.guest.kernel import value_codec
from holdfast.interpreter.bridge import bridge as bridges
from holdfast.interpreter.bridge.bridge import Bridge, Delegation
from holdfast.interpreter.bridge.budget import Budget, Limits
from holdfast.interpreter.bridge.calls import Call, Submission
from holdfast.interpreter.host import Completion

pytestmark = pytest.mark.anyio

ids = itertools.count()


@dataclass
class Notes:
    """A thread in memory."""

    thread: str = "t-1"
    payloads: list[dict[str, Any]] = field(default_factory=list)
    flushed: int = 0

    def note(self, payload: Mapping[str, Any]) -> None:
        self.payloads.append(dict(payload))

    async def flush(self) -> None:
        self.flushed = len(self.payloads)

    async def entries(self, types: Sequence[str] = ()) -> AsyncIterator[Mapping[str, Any]]:
        for payload in self.payloads:
            yield {"id": "e", "ts": 0, "payload": payload}


class Model:
    """Answers with the prompt in capitals, and counts who asks at once."""

    def __init__(self) -> None:
        self.prompts: list[str] = []
        self.running = 0
        self.most = 0
        self.hold: asyncio.Event | None = None
        self.fail_on = ""
        self.cancelled = 0
        self.busy = asyncio.Event()
        """Eight have asked at once."""

    async def __call__(self, model: str | None, messages: Sequence[Mapping[str, str]], *, timeout: float) -> Completion:
        prompt = messages[0]["content"]
        self.prompts.append(prompt)
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            await asyncio.sleep(0)
            if self.running == 8:
                self.busy.set()
            if self.hold is not None:
                await self.hold.wait()
            if self.fail_on and self.fail_on in prompt:
                raise ConnectionError("the provider has trouble")
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.running -= 1
        return Completion(prompt.upper(), "mine/m", 10, 2, 0.5)


def call(name: str, *args: Any, id: str | None = None, execution: str = "x-1", **kwargs: Any) -> Call:
    return Call(id or f"c-{next(ids)}", name, args, kwargs, execution)


@pytest.fixture
def notes() -> Notes:
    return Notes()


@pytest.fixture
def model() -> Model:
    return Model()


# --- tools ----------------------------------------------------------------------------------------------------------


async def test_a_tool_is_called_with_what_the_box_gives_and_noted(notes: Notes) -> None:
    def add(a: int, b: int = 1) -> int:
        return a + b

    bridge = Bridge(tools=[add], record=notes)
    assert await bridge.handle(call("add", "2", b=3, id="c-x")) == 5
    [entry] = notes.payloads
    assert entry.pop("seconds") >= 0
    assert entry == {
        "type": "interpreter.call",
        "id": "c-x",
        "execution": "x-1",
        "name": "add",
        "arguments": {"args": ["2"], "kwargs": {"b": 3}},
        "status": "ok",
        "result": 5,
    }


async def test_a_call_that_nobody_waits_for_any_more_is_cancelled_and_noted(notes: Notes) -> None:
    began, ended = asyncio.Event(), []

    async def slow() -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(1)

    bridge = Bridge(tools=[slow], record=notes)
    waiting = asyncio.create_task(bridge.handle(call("slow")))
    await began.wait()
    waiting.cancel()
    await asyncio.wait({waiting})
    assert ended
    assert notes.payloads[0]["status"] == "cancelled"


@pytest.mark.parametrize(
    ("raised", "kind", "message"),
    [
        (ValueError("no such city"), ValueError, "no such city"),
        (KeyError("k"), KeyError, "^'k'$"),
        (OSError(2, "No such file"), FileNotFoundError, r"^\[Errno 2\] No such file"),
        (ZeroDivisionError(), ZeroDivisionError, "^$"),
        (PermissionError("not yours"), PermissionError, "not yours"),
        (UnicodeDecodeError("utf-8", b"", 0, 1, "why"), UnicodeDecodeError, "'utf-8'"),
        (TimeoutError("the site is slow"), TimeoutError, "fail: the site is slow"),
        (CallRefused("not now", hint="tomorrow"), CallRefused, "not now: tomorrow"),
    ],
)
async def test_a_failed_tool_says_what_the_model_needs(
    notes: Notes, raised: Exception, kind: type[Exception], message: str
) -> None:
    def fail() -> None:
        raise raised

    bridge = Bridge(tools=[fail], record=notes)
    with pytest.raises(kind, match=message) as caught:
        await bridge.handle(call("fail"))
    assert type(caught.value) is kind
    assert caught.value.__cause__ is None
    assert notes.payloads[0]["status"] in ("failed", "timed_out", "refused")
    assert notes.payloads[0]["error"].removeprefix(f"{kind.__name__}: ").removeprefix(kind.__name__) == str(
        caught.value
    )


async def test_wrong_arguments_are_told_and_the_tool_is_not_called() -> None:
    def look(at: int) -> None:
        raise AssertionError

    with pytest.raises(TypeError, match=r"look: at must be int, not 'x' \(str\)"):
        await Bridge(tools=[look]).handle(call("look", "x"))


async def test_a_tool_that_takes_too_long_is_ended(notes: Notes) -> None:
    async def slow() -> None:
        await asyncio.Event().wait()

    hold = threading.Event()

    def blocking() -> None:
        hold.wait(20)

    bridge = Bridge(tools=[slow, blocking], record=notes, budget=Budget(Limits(call_seconds=0.05)))
    for name in ("slow", "blocking"):
        with pytest.raises(TimeoutError, match=rf"{name} took longer than 0\.05 s"):
            await bridge.handle(call(name))
    hold.set()
    assert [entry["status"] for entry in notes.payloads] == ["timed_out", "timed_out"]
    bridge.timeouts["slow"] = 0.01
    with pytest.raises(TimeoutError, match=r"0\.01 s"):
        await bridge.handle(call("slow"))


async def test_a_tool_sees_the_context_of_who_asked_for_the_execution() -> None:
    variable = contextvars.ContextVar("variable", default="nobody")

    def who() -> str:
        return variable.get()

    async def who_else() -> str:
        return variable.get()

    bridge = Bridge(tools=[who, who_else])
    elsewhere = contextvars.copy_context()

    async def handled(name: str) -> Any:
        return await asyncio.create_task(bridge.handle(call(name)), context=elsewhere)

    variable.set("the caller")
    async with bridge.turn("x-1"):
        assert [await handled("who"), await handled("who_else")] == ["the caller", "the caller"]


async def test_tools_may_change_between_calls_and_bring_their_own_llm_query(model: Model) -> None:
    bridge = Bridge(complete=model)
    assert await bridge.handle(call("llm_query", "x")) == "X"
    bridge.tools["llm_query"] = lambda prompt: f"mine: {prompt}"
    assert await bridge.handle(call("llm_query", prompt="x")) == "mine: x"
    bridge.tools["llm_query"] = lambda prompt: f"other: {prompt}"
    assert await bridge.handle(call("llm_query", "x")) == "other: x"
    del bridge.tools["llm_query"]
    assert await bridge.handle(call("llm_query", "x")) == "X"


async def test_what_the_model_is_told_of_each(model: Model) -> None:
    async def child(delegation: Delegation) -> None: ...

    bridge = Bridge(complete=model, delegate=child, tools={"look": lambda at: at}, output_fields=["total: int"])
    assert [each.line for each in bridge.signatures()] == [
        "llm_query(prompt: str) -> str",
        "llm_query_batched(prompts: list[str]) -> list[str]",
        "sub_rlm(query: str, context=None, iterations: int | None = None)",
        "sub_rlm_batched(queries: list[str], contexts: list[Any] | None = None, iterations: int | None = None)"
        " -> list[Any]",
        "look(at)",
        "SUBMIT(total: int) -> None",
    ]
    assert bridge.names()[0].doc.startswith("llm_query(prompt: str) -> str\n\nAsk a language model")
    assert bridge.names() == bridge.names()
    assert [each.name for each in Bridge().names()] == ["SUBMIT"]
    with pytest.raises(InvalidInterpreter, match="a tool cannot be called SUBMIT"):
        Bridge(tools={"SUBMIT": lambda: 0}).names()


# --- results --------------------------------------------------------------------------------------------------------


class Report(BaseModel):
    title: str
    parts: list[int]


async def test_results_have_a_form_that_travels() -> None:
    class Odd:
        pass

    given: Any = [Report(title="t", parts=[1]), {"a": (1, 2)}]
    bridge = Bridge(tools={"get": lambda: given})
    sent = value_codec.load(value_codec.dump(await bridge.handle(call("get"))))
    assert sent == [{"title": "t", "parts": [1]}, {"a": (1, 2)}]
    given = {"a": [Odd()]}
    with pytest.raises(CallFailed, match="get returned something that cannot be sent to a box: a Odd cannot be sent"):
        await bridge.handle(call("get"))
    given = []
    given.append(given)
    with pytest.raises(CallFailed, match="nested more than 64 deep"):
        await bridge.handle(call("get"))
    given = "x" * (17 << 20)
    with pytest.raises(CallFailed, match="get returned 17825794 bytes, and at most 16777216"):
        await bridge.handle(call("get"))


@pytest.mark.parametrize("text", ['{"a": 1}', "[1]", "null", "5", '"q"', "\ud800"])
async def test_a_string_that_looks_like_json_stays_a_string_both_ways(text: str, model: Model, notes: Notes) -> None:
    bridge = Bridge(tools={"same": lambda x: x}, complete=model, record=notes)
    assert await bridge.handle(call("same", text)) == text
    assert await bridge.handle(call("llm_query", text)) == text.upper()
    assert await bridge.handle(call("SUBMIT", text)) == Submission({"output": text})


async def test_long_arguments_and_results_are_cut_on_the_thread(notes: Notes) -> None:
    bridge = Bridge(tools={"same": lambda x, **more: x}, record=notes)
    value = {"text": "x" * 100_000, "numbers": list(range(100_000)), "raw": b"1" * 50}
    assert await bridge.handle(call("same", value, **{f"k{n}": "y" * 10_000 for n in range(50)})) == value
    assert len(str(notes.payloads[0])) < 40_000
    assert "characters more" in str(notes.payloads[0]["arguments"])


# --- the model ------------------------------------------------------------------------------------------------------


async def test_a_model_is_asked_and_what_it_takes_is_counted(model: Model, notes: Notes) -> None:
    budget = Budget()
    bridge = Bridge(complete=model, budget=budget, record=notes)
    assert await bridge.handle(call("llm_query", "hello")) == "HELLO"
    assert (budget.spent.calls, budget.spent.tokens, budget.spent.cost) == (1, 12, 0.5)
    usage = {"calls": 1, "input_tokens": 10, "output_tokens": 2, "model": "mine/m", "cost": 0.5}
    assert notes.payloads[0]["usage"] == usage


async def test_a_batch_is_ordered_and_bounded_even_beside_another(model: Model, notes: Notes) -> None:
    bridge = Bridge(complete=model, record=notes)
    one, two = await asyncio.gather(
        *(bridge.handle(call("llm_query_batched", [f"{name}{n}" for n in range(20)])) for name in "ab")
    )
    assert one == [f"A{n}" for n in range(20)]
    assert two == [f"B{n}" for n in range(20)]
    assert model.most == 8
    assert notes.payloads[0]["usage"]["calls"] == 20


async def test_a_batch_that_the_budget_has_not_enough_for_asks_nothing(model: Model) -> None:
    bridge = Bridge(complete=model, budget=Budget(Limits(calls=10)))
    with pytest.raises(BudgetExceeded, match="10 of 10 model calls are left, too few for these 11 calls"):
        await bridge.handle(call("llm_query_batched", ["x"] * 11))
    assert model.prompts == []
    assert await bridge.handle(call("llm_query_batched", ["x"] * 10)) == ["X"] * 10
    with pytest.raises(BudgetExceeded, match="0 of 10 model calls are left"):
        await bridge.handle(call("llm_query", "x"))


async def test_a_batch_is_all_or_nothing_and_what_was_not_asked_is_given_back(model: Model, notes: Notes) -> None:
    bridge = Bridge(complete=model, record=notes)
    model.fail_on = "3"
    with pytest.raises(CallFailed, match=r"prompt 4 of 30: ConnectionError: the provider has trouble; the whole batch"):
        await bridge.handle(call("llm_query_batched", [f"{n}" for n in range(30)]))
    assert model.running == 0
    assert bridge.budget.spent.calls == len(model.prompts) < 30


async def test_a_batch_is_cancelled_together(model: Model) -> None:
    model.hold = asyncio.Event()
    bridge = Bridge(complete=model)
    asking = asyncio.create_task(bridge.handle(call("llm_query_batched", ["x"] * 20)))
    await model.busy.wait()
    asking.cancel()
    await asyncio.wait({asking})
    assert (model.running, model.cancelled) == (0, 8)


async def test_a_model_that_says_nothing_is_given_up(model: Model, notes: Notes) -> None:
    model.hold = asyncio.Event()
    bridge = Bridge(complete=model, budget=Budget(Limits(call_seconds=0.05)), record=notes)
    with pytest.raises(TimeoutError, match=r"the model took longer than 0\.05 s"):
        await bridge.handle(call("llm_query", "x"))
    with pytest.raises(TimeoutError, match=r"prompt 1 of 2: the model took longer than 0\.05 s"):
        await bridge.handle(call("llm_query_batched", ["x", "y"]))


async def test_the_time_of_the_tree_ends_a_call_and_says_so(model: Model) -> None:
    model.hold = asyncio.Event()
    bridge = Bridge(complete=model, budget=Budget(Limits(seconds=0.05)))
    with pytest.raises(BudgetExceeded, match=r"the time limit of 0\.05 s is over"):
        await bridge.handle(call("llm_query", "x"))


@pytest.mark.parametrize("wrong", [("llm_query", ""), ("llm_query_batched", ["x", " "])])
async def test_an_empty_prompt_is_refused_before_it_counts(model: Model, wrong: tuple[str, Any]) -> None:
    bridge = Bridge(complete=model)
    with pytest.raises(ValueError, match="is empty"):
        await bridge.handle(call(*wrong))
    assert bridge.budget.spent.calls == 0


# --- children -------------------------------------------------------------------------------------------------------


async def test_children_are_asked_with_the_shared_budget_and_answer_in_order(model: Model) -> None:
    seen: list[Delegation] = []
    running = most = 0

    async def child(delegation: Delegation) -> Any:
        nonlocal running, most
        seen.append(delegation)
        running += 1
        most = max(most, running)
        inner = Bridge(budget=delegation.budget, depth=delegation.depth, complete=model)
        answer = await inner.handle(call("llm_query", delegation.query))
        running -= 1
        return {"answer": answer, "context": delegation.context}

    bridge = Bridge(delegate=child, complete=model)
    answer = await bridge.handle(call("sub_rlm", "one", {"a": 1}, iterations=5, id="c-one"))
    assert answer == {"answer": "ONE", "context": {"a": 1}}
    assert (seen[0].depth, seen[0].iterations, seen[0].seconds, seen[0].call) == (1, 5, 900, "c-one")
    asked = call("sub_rlm_batched", [f"q{n}" for n in range(7)], list(range(7)))
    answers = await bridge.handle(asked)
    assert answers == [{"answer": f"Q{n}", "context": n} for n in range(7)]
    assert [each.call for each in seen[1:]] == [f"{asked.id}-{n}" for n in range(1, 8)]
    assert most == 4
    assert bridge.budget.spent.calls == 8


async def test_children_are_bounded_over_all_calls_of_a_bridge() -> None:
    running = most = 0

    async def child(delegation: Delegation) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1

    bridge = Bridge(delegate=child)
    await asyncio.gather(*(bridge.handle(call("sub_rlm", "x")) for _ in range(8)))
    assert most == 4


async def test_depth_breadth_and_iterations_are_bounded_and_said_in_plain_words() -> None:
    async def child(delegation: Delegation) -> Any:
        return delegation.iterations

    bridge = Bridge(delegate=child)
    with pytest.raises(CallRefused, match="a child has 1 to 30 iterations, not 31"):
        await bridge.handle(call("sub_rlm", "x", iterations=31))
    with pytest.raises(CallRefused, match="may have 8 children: 8 are left, 9 were requested: request the rest"):
        await bridge.handle(call("sub_rlm_batched", ["x"] * 9))
    assert await bridge.handle(call("sub_rlm_batched", ["x"] * 8)) == [30] * 8
    with pytest.raises(CallRefused, match="0 are left, 1 were requested"):
        await bridge.handle(call("sub_rlm", "x"))
    assert await bridge.handle(call("sub_rlm", "x", execution="x-2")) == 30  # another turn
    deep = Bridge(delegate=child, depth=2)
    with pytest.raises(CallRefused, match="level 2 of 2 may have no children: do the task here"):
        await deep.handle(call("sub_rlm", "x"))
    with pytest.raises(ValueError, match="2 queries need as many contexts, not 1"):
        await bridge.handle(call("sub_rlm_batched", ["x", "y"], [1], execution="x-3"))


async def test_a_child_has_so_many_turns() -> None:
    bridge = Bridge(iterations=2)
    for number in range(2):
        async with bridge.turn(f"x-{number}"):
            pass
    with pytest.raises(BudgetExceeded, match="all 2 iterations are used"):
        async with bridge.turn("x-3"):
            raise AssertionError


async def test_children_are_all_or_nothing() -> None:
    ended = []

    async def child(delegation: Delegation) -> Any:
        try:
            if delegation.query == "bad":
                raise RuntimeError("the box is gone")
            await asyncio.Event().wait()
        finally:
            ended.append(delegation.query)

    with pytest.raises(CallFailed, match="child 2 of 6: the box is gone; the whole batch failed"):
        await Bridge(delegate=child).handle(call("sub_rlm_batched", ["a", "bad", "c", "d", "e", "f"]))
    assert set(ended) <= {"a", "bad", "c", "d"}


# --- SUBMIT ---------------------------------------------------------------------------------------------------------


async def test_a_submission_is_checked_and_converted(notes: Notes) -> None:
    bridge = Bridge(output_fields=[{"name": "total", "type": "int"}, {"name": "why", "type": "str"}], record=notes)
    async with bridge.turn("x-1") as turn:
        with pytest.raises(InvalidSubmission, match=r"total must be int, not 'x' \(str\); why: str is missing: call"):
            await bridge.handle(call("SUBMIT", total="x"))
        assert turn.submitted is None
        assert await bridge.handle(call("SUBMIT", total="5", why="{}")) == Submission({"total": 5, "why": "{}"})
        assert turn.submitted == {"total": 5, "why": "{}"}
    assert [entry["status"] for entry in notes.payloads] == ["refused", "ok"]
    bridge.output_fields = ["answer"]
    assert await bridge.handle(call("SUBMIT", [1], execution="x-2")) == Submission({"answer": [1]})


# --- attacks --------------------------------------------------------------------------------------------------------


async def test_a_call_that_the_host_does_not_know_is_refused(notes: Notes) -> None:
    bridge = Bridge(tools={"look": lambda: 0}, record=notes)
    for name in ("os.system", "__class__", "handle", "tools", "_perform", "llm_query", "x" * 100):
        with pytest.raises(CallRefused, match=r"the host has no .*: it has look, SUBMIT"):
            await bridge.handle(call(name))
    assert {entry["status"] for entry in notes.payloads} == {"refused"}
    with pytest.raises(CallRefused):
        await bridge.handle(call("x" * 1000))
    with pytest.raises(CallRefused):
        await bridge.handle(call("look", id="c" * 1000))


async def test_a_call_after_its_execution_ended_is_refused_and_one_under_way_is_cancelled() -> None:
    began, ended = asyncio.Event(), []

    async def slow() -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(1)

    bridge = Bridge(tools=[slow])
    async with bridge.turn("x-1"):
        running = asyncio.create_task(bridge.handle(call("slow")))
        await began.wait()
    assert ended
    with pytest.raises(asyncio.CancelledError):
        await running
    with pytest.raises(CallRefused, match="slow was called by an execution that has ended"):
        await bridge.handle(call("slow"))


def nested(depth: int) -> Any:
    value: Any = 0
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    "value", [nested(100), nested(100_000), [[]] * 1_100_000, {"k": [0] * 1_100_000}, [[0] * 1000] * 1100]
)
async def test_arguments_that_are_too_deep_or_too_many_are_refused(value: Any, notes: Notes) -> None:
    bridge = Bridge(tools={"same": lambda x: x}, record=notes)
    with pytest.raises(CallRefused, match="at most 1000000 values, nested 64 deep"):
        await bridge.handle(call("same", value))
    assert len(str(notes.payloads[0])) < 40_000


@pytest.mark.parametrize(("args", "kwargs"), [("ab", {}), ((), [1]), (None, None), ((), {1: 2}), ({"a": 1}, {})])
async def test_arguments_that_are_none_are_refused(args: Any, kwargs: Any) -> None:
    with pytest.raises(CallRefused):
        await Bridge(tools={"same": lambda x: x}).handle(Call("c", "same", args, kwargs, "x"))


async def test_a_flood_is_bounded(monkeypatch: pytest.MonkeyPatch, notes: Notes) -> None:
    monkeypatch.setattr(bridges, "_MOST_CALLS", 600)
    running = most = 0

    async def work() -> int:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        return 1

    bridge = Bridge(tools=[work], record=notes)
    results = await asyncio.gather(*(bridge.handle(call("work")) for _ in range(700)), return_exceptions=True)
    assert results.count(1) == 600
    assert sum(isinstance(each, CallRefused) for each in results) == 100
    assert most == 32
    assert notes.flushed >= 512  # who calls so fast waits for the disk
