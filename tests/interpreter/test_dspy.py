"""dspy's own modules, with their code in real boxes of a real server. The language models are scripted."""

from __future__ import annotations

import contextvars
import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of what it imports
    import dspy
    from dspy.primitives.code_interpreter import CodeExecutionError, CodeInterpreterError, FinalOutput
    from dspy.utils import DummyLM
    from dspy.utils.callback import BaseCallback

from tests.installed_packages import packages_of

from holdfast import SyncClient
from holdfast.interpreter.bridge.budget import Limits
from holdfast.interpreter.dspy import Boxes, BoxInterpreter
from holdfast.interpreter.interpreter import Interpreter
from holdfast.testing.server import ServerProcess

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.xdist_group("interpreter-dspy"),
]


OLDEST = "3.3.0"
needs_facade = pytest.mark.skipif(
    find_spec("dspy.primitives.facade") is None, reason="`import dspy` in the sandbox came with dspy 3.4"
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("dspy") / "home") as server, pytest.MonkeyPatch.context() as patch:
        patch.delenv("HOLDFAST_URL", raising=False)
        patch.setenv("HOLDFAST_HOME", str(server.home))
        yield server
        with SyncClient(server.url, api_key=server.api_key) as client:
            assert [each.id for each in client.boxes.list()] == [], "every box is given back"


@pytest.fixture(scope="module")
def shared(server: ServerProcess) -> Iterator[BoxInterpreter]:
    with BoxInterpreter() as interpreter:
        yield interpreter


@pytest.fixture
def py(shared: BoxInterpreter) -> BoxInterpreter:
    shared.tools.clear()
    shared.output_fields = None
    return shared


def script(*code: str) -> DummyLM:
    """A model that writes these pieces of code, one after the other."""
    return DummyLM([{"reasoning": "So it goes.", "code": f"```python\n{each}\n```"} for each in code])


def outputs(prediction: Any) -> list[str]:
    return [step["output"] for step in prediction.trajectory]


# --- as dspy's protocol has it ---


def test_it_is_an_interpreter_that_keeps_its_state(py: BoxInterpreter) -> None:
    assert isinstance(py, dspy.CodeInterpreter)
    py.start()
    assert py.execute("x = 20") is None
    assert py.execute("x + y", {"y": 1}) == 21
    assert py.execute("print('said')") == "said"
    assert py.execute("print('said'); [x, y]") == [20, 1]
    assert py.execute("object.__name__, {1}") == ("object", {1})
    assert str(py.execute("object()")).startswith("<object object")
    assert py.execute("import asyncio\nawait asyncio.sleep(0, 'awaited')") == "awaited"


def test_errors_of_the_code_are_told_and_leave_the_state(py: BoxInterpreter) -> None:
    py.execute("kept = 1")
    with pytest.raises(CodeExecutionError, match=r"(?s)before.*line 2.*ZeroDivisionError: division by zero"):
        py.execute("print('before')\n1 / 0")
    with pytest.raises(SyntaxError, match="was never closed"):
        py.execute("print(")
    assert py.execute("kept") == 1


def test_a_model_is_shown_what_was_printed_and_the_value(py: BoxInterpreter) -> None:
    py.output_fields = [{"name": "answer", "type": "str"}]
    assert py.execute("print('printed')\n['value']") == "printed\n['value']"


@pytest.mark.parametrize(
    ("fields", "code", "given"),
    [
        (None, "SUBMIT(5)", {"output": 5}),
        (
            [{"name": "total", "type": "int"}, {"name": "why"}],
            "SUBMIT(5, why='because')",
            {"total": 5, "why": "because"},
        ),
        ([{"name": "answer", "type": "str"}], "SUBMIT(answer=42)", {"answer": 42}),  # which dspy converts
        ([{"name": "answer"}], """SUBMIT(answer='{"a": 1}')""", {"answer": '{"a": 1}'}),
    ],
)
def test_submit_ends_with_the_fields(py: BoxInterpreter, fields: Any, code: str, given: dict[str, Any]) -> None:
    py.output_fields = fields
    assert py.execute(f"{code}\nprint('never')") == FinalOutput(given)


def test_a_wrong_field_is_named(py: BoxInterpreter) -> None:
    py.output_fields = [{"name": "total"}]
    with pytest.raises(CodeExecutionError, match="totel"):
        py.execute("SUBMIT(totel=1)")


def test_tools_are_read_at_each_execution(py: BoxInterpreter) -> None:
    seen = contextvars.ContextVar("seen", default="nothing")

    async def later(*, value: Any) -> Any:
        return {"later": value}

    def look() -> str:
        return seen.get()

    py.tools.update(double=lambda x: 2 * x, later=later)
    assert py.execute("double(4), double(x='ab'), later(value=[1, None])") == (8, "abab", {"later": [1, None]})
    py.tools["look"] = look
    del py.tools["later"]
    token = seen.set("the caller's")
    try:
        assert py.execute("look()") == "the caller's"
    finally:
        seen.reset(token)
    with pytest.raises(CodeExecutionError, match="NameError: name 'later'"):
        py.execute("later(value=1)")


def test_an_error_of_a_tool_is_one_of_the_code(py: BoxInterpreter) -> None:
    def refuse(what: str) -> None:
        raise LookupError(f"there is no {what}")

    py.tools["refuse"] = refuse
    with pytest.raises(CodeExecutionError, match="there is no spoon"):
        py.execute("refuse('spoon')")
    assert py.execute("try:\n    refuse('spoon')\nexcept LookupError as error:\n    print('caught', error)") is not None


def test_what_cannot_be_a_variable_is_refused(py: BoxInterpreter) -> None:
    py.tools["tool"] = lambda: None
    for wrong in ({"tool": 1}, {"SUBMIT": 1}, {"not a name": 1}, {"value": object()}):
        with pytest.raises(CodeInterpreterError):
            py.execute("1", wrong)
    assert py.execute("1 + 1") == 2


def test_a_long_text_is_sent_once_and_is_whole_each_time(py: BoxInterpreter, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[list[str]] = []
    execute = Interpreter.execute

    def listening(self: Interpreter, code: str, variables: Any = None, **more: Any) -> Any:
        sent.append(sorted(variables))
        return execute(self, code, variables, **more)

    monkeypatch.setattr(Interpreter, "execute", listening)
    given = {"long": "x" * 100_000, "short": "y"}
    assert py.execute("len(long + short)", given) == 100_001
    assert py.execute("part = long[:10]; len(long)", given) == 100_000
    assert py.execute("len(long)", {**given, "long": "z" * 70_000}) == 70_000
    with pytest.raises(SyntaxError):
        py.execute("long =", given)
    assert py.execute("long = long[:5]; len(long)", given) == 5
    assert py.execute("len(long)", given) == 100_000
    both, short = ["long", "short"], ["short"]
    assert sent == [both, short, both, both, both, both]


def test_a_killed_process_ends_the_interpreter(server: ServerProcess) -> None:
    interpreter = BoxInterpreter()
    with pytest.raises(CodeInterpreterError, match="memory") as killed:
        interpreter.execute("import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    assert not isinstance(killed.value, CodeExecutionError)
    with pytest.raises(CodeInterpreterError, match="ended"):
        interpreter.execute("1")
    interpreter.shutdown()
    interpreter.shutdown()


@pytest.mark.skipif(
    not hasattr(BaseCallback, "on_interpreter_tool_call_start"), reason="callbacks of interpreters came with dspy 3.3.1"
)
def test_callbacks_hear_of_executions_and_tools(py: BoxInterpreter) -> None:
    heard: list[str] = []

    class Listener(dspy.utils.callback.BaseCallback):  # type: ignore[misc]
        def on_interpreter_execute_start(self, call_id: str, instance: Any, inputs: dict[str, Any]) -> None:
            heard.append(inputs["code"])

        def on_interpreter_tool_call_start(self, call_id: str, instance: Any, inputs: dict[str, Any]) -> None:
            heard.append(inputs["tool_name"])

    py.tools["tool"] = lambda: 1
    py.callbacks.append(Listener())
    try:
        py.execute("tool()")
    finally:
        py.callbacks.clear()
    assert heard == ["tool()", "tool"]


# --- dspy.RLM ---


def test_rlm_explores_a_long_context_and_submits(server: ServerProcess) -> None:
    context = "\n".join(f"line {number}: {'needle' if number == 7_777 else 'hay'}" for number in range(10_000))
    lm = script(
        "lines = context.splitlines()\nprint(len(lines), len(context))",
        "found = [line for line in lines if 'needle' in line]\nfound[0]",
        "undefined_name",
        "said = llm_query_batched([f'What is {each}?' for each in found])\n"
        "SUBMIT(line=found[0].split(':')[0], said=said)",
    )
    asked: list[str] = []

    def sub(prompt: str) -> list[str]:
        asked.append(prompt)
        return ["a needle"]

    rlm = dspy.RLM("context, query -> line: str, said: list[str]", interpreter_factory=Boxes(), sub_lm=sub)
    with dspy.context(lm=lm):
        found = rlm(context=context, query="Where is the needle?")
    assert (found.line, found.said) == ("line 7777", ["a needle"])
    assert asked == ["What is line 7777: needle?"]
    first, second, third, _ = outputs(found)
    assert first == f"10000 {len(context)}"
    assert second == "line 7777: needle"
    assert third.startswith("[Error]")
    assert "NameError" in third


@pytest.mark.anyio
async def test_rlm_works_inside_a_running_loop(server: ServerProcess) -> None:
    rlm = dspy.RLM("context -> answer: int", interpreter_factory=BoxInterpreter)
    with dspy.context(lm=script("SUBMIT(answer=len(context))")):
        assert (await rlm.acall(context=[1, 2, 3])).answer == 3


@needs_facade
def test_sub_agents_of_the_sandbox_run_here(server: ServerProcess) -> None:
    """The facade of 3.4: `dspy` in the box is a stand-in whose predictors are the host's."""

    def shout(text: str) -> str:
        """Say it louder."""
        return text.upper()

    lm = script(
        "import dspy\n"
        "answer = dspy.Predict('question -> answer')(question='how?').answer\n"
        "print(answer, shout(answer))",
        "SUBMIT(answer=answer)",
    )
    rlm = dspy.RLM(
        "query -> answer", tools=[shout], interpreter_factory=Boxes(), sub_lm=DummyLM([{"answer": "so"}] * 3)
    )
    with dspy.context(lm=lm):
        found = rlm(query="?")
    assert outputs(found)[0] == "so SO"
    assert found.answer == "so"


@needs_facade
def test_an_rlm_in_an_rlm_has_a_box_of_its_own(server: ServerProcess) -> None:
    inner = [
        {"reasoning": "child", "code": "import os; open('/tmp/child', 'w').close()\nSUBMIT(answer=str(len(context)))"}
    ]
    lm = script(
        "import dspy, os\n"
        "told = dspy.RLM('context -> answer')(context='abc').answer\n"
        "SUBMIT(answer=told, apart=not os.path.exists('/tmp/child'))"
    )
    rlm = dspy.RLM("query -> answer, apart: bool", interpreter_factory=Boxes(), sub_lm=DummyLM(inner))
    with dspy.context(lm=lm):
        found = rlm(query="?")
    assert (found.answer, found.apart) == ("3", True)


@needs_facade
def test_no_rlm_goes_deeper_than_allowed(server: ServerProcess) -> None:
    factory = Boxes(limits=Limits(depth=0))
    lm = script("import dspy\ndspy.RLM('context -> answer')(context='abc')", "SUBMIT(answer='here')")
    rlm = dspy.RLM("query -> answer", interpreter_factory=factory, sub_lm=DummyLM([{"answer": "never"}]))
    with dspy.context(lm=lm):
        found = rlm(query="?")
    assert "level 0 of 0" in outputs(found)[0]
    assert found.answer == "here"


def test_sub_rlm_gives_a_task_to_a_child(server: ServerProcess) -> None:
    lm = script(
        "told = sub_rlm('How long is it?', 'x' * 1000)\nprint(told)",  # the parent
        "print(query)\nSUBMIT(answer=len(context))",  # its child
        "SUBMIT(answer=told)",
    )
    rlm = dspy.RLM("query -> answer: int", interpreter_factory=Boxes())
    with dspy.context(lm=lm):
        found = rlm(query="?")
    assert outputs(found)[0] == "1000"
    assert found.answer == 1000


def test_calls_of_models_are_of_one_budget(server: ServerProcess) -> None:
    factory = Boxes(limits=Limits(calls=2))
    lm = script(
        "print(llm_query('one'))",
        "llm_query_batched(['two', 'three'])",
        "SUBMIT(answer=llm_query('two'))",
    )
    rlm = dspy.RLM("query -> answer", interpreter_factory=factory, sub_lm=lambda prompt: [f"{prompt}!"])
    with dspy.context(lm=lm):
        found = rlm(query="?")
    assert outputs(found)[0] == "one!"
    assert "too few for these 2 calls" in outputs(found)[1]
    assert found.answer == "two!"


# --- its other modules ---


def test_flex_runs_its_module_in_a_box(server: ServerProcess) -> None:
    """3.4: what it executes gives a value, which has to come back whole, whatever was printed beside it."""
    flex = dspy.Flex("question -> answer", interpreter_factory=Boxes())
    lm = DummyLM([{"reasoning": "Short.", "answer": "yes" * 10_000}])
    with dspy.context(lm=lm):
        assert flex(question="?").answer == "yes" * 10_000


def twice(number: int) -> int:
    """Two times a number."""
    return 2 * number


def test_code_act_runs_its_code_in_a_box(server: ServerProcess) -> None:
    """With the source of its tools."""
    act = dspy.CodeAct("question -> answer", tools=[twice], max_iters=1, interpreter_factory=Boxes())
    lm = DummyLM(
        [
            {"reasoning": "So.", "generated_code": "```python\nprint(twice(21))\n```", "finished": True},
            {"reasoning": "So.", "answer": "42"},
        ]
    )
    with dspy.context(lm=lm):
        found = act(question="?")
    assert found.trajectory["code_output_0"] == '"42"'


# --- the oldest dspy that it works with ---


@pytest.mark.sampled
@pytest.mark.skipif(dspy.__version__ == OLDEST, reason="this is it")
def test_all_but_the_facade_works_with_the_oldest_dspy_too(tmp_path: Path) -> None:
    """This very file, with that dspy in the place of ours. All that it needs is here already."""
    whole = {name: value for name, value in os.environ.items() if name != "HOLDFAST_TEST_SAMPLE"}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n", "0", "-rs", "--basetemp", tmp_path / "inner", __file__],
        env={**whole, "PYTHONPATH": str(packages_of("oldest"))},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    skipped = [line for line in done.stdout.splitlines() if line.startswith("SKIPPED")]
    assert len(skipped) == 5, skipped
    assert all("came with dspy 3" in line or "this is it" in line for line in skipped), skipped
