"""What dspy promises of any interpreter and of the modules that use one, held in boxes. The models are scripted."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any, Literal

import pytest
from pydantic import BaseModel, field_serializer

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of what it imports
    import dspy
    from dspy.primitives.code_interpreter import CodeExecutionError, CodeInterpreterError
    from dspy.utils import DummyLM

from holdfast.interpreter.dspy import BoxInterpreter
from holdfast.testing.server import ServerProcess

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.xdist_group("interpreter-dspy"),
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("contract") / "home") as server, pytest.MonkeyPatch.context() as patch:
        patch.delenv("HOLDFAST_URL", raising=False)
        patch.setenv("HOLDFAST_HOME", str(server.home))
        yield server


@pytest.fixture(scope="module")
def shared(server: ServerProcess) -> Iterator[BoxInterpreter]:
    with BoxInterpreter() as interpreter:
        yield interpreter


@pytest.fixture
def py(shared: BoxInterpreter) -> BoxInterpreter:
    shared.tools.clear()
    shared.output_fields = None
    return shared


class Part(BaseModel):
    name: str
    size: int = 1


class Broken(BaseModel):
    value: int = 1

    @field_serializer("value")
    def refuse(self, value: int) -> int:
        raise ValueError("this cannot be written")


@pytest.mark.parametrize(
    "value", ["text", 'ünïcode \n \'quotes\' """', 5, 2.5, True, None, [1, [2, None]], {"a": {"b": [True]}}, (1, 2)]
)
def test_variables_come_back_as_they_went(py: BoxInterpreter, value: Any) -> None:
    assert py.execute("[v]", {"v": value}) == [value]


def test_models_of_pydantic_are_documents(py: BoxInterpreter) -> None:
    assert py.execute("p", {"p": Part(name="a")}) == {"name": "a", "size": 1}
    assert py.execute("p[0]['name'], q['x']['size']", {"p": [Part(name="b")], "q": {"x": Part(name="c", size=3)}}) == (
        "b",
        3,
    )


@pytest.mark.parametrize("value", [Broken(), [Broken()], object(), {1: object()}])
def test_a_variable_that_cannot_be_sent_is_an_error_of_the_contract(py: BoxInterpreter, value: Any) -> None:
    with pytest.raises(CodeInterpreterError, match="variable odd"):
        py.execute("1", {"odd": value})
    assert py.execute("1 + 1") == 2, "and the interpreter goes on"


def test_tools_take_defaults_and_names_and_give_what_json_has(py: BoxInterpreter) -> None:
    py.tools.update(add=lambda a, b=2: a + b, none=lambda: None, parts=lambda: [Part(name="x")])
    assert py.execute("add(1), add(1, 1), add(a=3, b=4), none(), parts()") == (
        3, 2, 7, None, [{"name": "x", "size": 1}],
    )  # fmt: skip
    py.execute("add = None")
    assert py.execute("add(5)") == 7, "bound again, as with dspy's own"


def test_errors_are_of_the_two_kinds_and_the_state_stays(py: BoxInterpreter) -> None:
    py.execute("kept = 1")
    with pytest.raises(SyntaxError):
        py.execute("def (:")
    with pytest.raises(CodeExecutionError, match="NameError"):
        py.execute("never_defined")
    assert py.execute("kept") == 1


def test_program_of_thought_mends_its_code_and_answers(server: ServerProcess) -> None:
    model = DummyLM(
        [
            {"reasoning": "first", "generated_code": "```python\nSUBMIT(answer=1/0)\n```"},
            {"reasoning": "mended", "generated_code": "```python\nSUBMIT(answer=1+1)\n```"},
            {"reasoning": "done", "answer": "2"},
        ]
    )
    with dspy.context(lm=model):
        program = dspy.ProgramOfThought("question -> answer", interpreter_factory=BoxInterpreter)
        assert program(question="What is 1+1?").answer == "2"


def test_rlm_takes_typed_answers_and_goes_on_after_a_wrong_one(server: ServerProcess) -> None:
    code = ["SUBMIT(kind='sour', total='many')", "x = 40", "SUBMIT(kind='sweet', total=x + 2)"]
    model = DummyLM([{"reasoning": "r", "code": f"```python\n{each}\n```"} for each in code])

    class Task(dspy.Signature):  # type: ignore[misc,unused-ignore]
        text: str = dspy.InputField()
        kind: Literal["sweet", "bitter"] = dspy.OutputField()
        total: int = dspy.OutputField()

    with dspy.context(lm=model):
        answer = dspy.RLM(Task, max_iters=5, interpreter_factory=BoxInterpreter)(text="apple")
    assert (answer.kind, answer.total) == ("sweet", 42)


def test_rlm_answers_with_what_it_has_when_its_turns_are_over(server: ServerProcess) -> None:
    steps = [{"reasoning": "r", "code": "```python\nprint('looking')\n```"}] * 2
    with dspy.context(lm=DummyLM([*steps, {"reasoning": "enough", "answer": "a guess"}])):
        answer = dspy.RLM("text -> answer", max_iters=2, interpreter_factory=BoxInterpreter)(text="x")
    assert answer.answer == "a guess"
