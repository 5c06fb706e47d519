"""Messages for values that pydantic refused: none of its words reaches a user."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, Final, Literal

import pytest
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic_core._pydantic_core import list_all_errors

from holdfast.api.problems import describe_problem, describe_problems

FOREIGN: Final = ("input should", "value error", "assertion failed", "extra inputs", "field required", "a valid ")


@pytest.mark.parametrize("kind", list_all_errors(), ids=lambda kind: str(kind["type"]))
@pytest.mark.parametrize("with_context", [True, False])
def test_no_kind_of_error_is_told_in_the_words_of_pydantic(kind: dict[str, Any], with_context: bool) -> None:
    message = kind["example_message_python"].replace("Value error, None", "Value error, it is odd")
    problem = {"type": kind["type"], "msg": message, "input": 1, "loc": ("field",)}
    if with_context:
        problem["ctx"] = kind["example_context"]
    said = describe_problem(problem)
    assert said
    assert not [words for words in FOREIGN if words in said.lower()], said


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


@dataclass
class Paint:
    __pydantic_config__ = ConfigDict(extra="forbid")

    count: Annotated[int, Field(ge=1, le=9)] = 1
    colour: Colour = Colour.RED
    finish: Literal["matt", "gloss"] = "matt"
    names: Annotated[list[str], Field(max_length=2)] | None = None
    is_dry: bool = False


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"count": 0}, "must be at least 1"),
        ({"count": 10}, "must be at most 9"),
        ({"count": "many"}, "must be an integer"),
        ({"count": 1.5}, "must be an integer"),
        ({"colour": "green"}, "must be 'red' or 'blue'"),
        ({"finish": "rough"}, "must be 'matt' or 'gloss'"),
        ({"names": ["a", "b", "c"]}, "must have at most 2 items, not 3"),
        ({"is_dry": "perhaps"}, "must be true or false"),
        ({"size": 1}, "is not known here"),
        ([], "must be an object"),
    ],
)
def test_a_refused_value_is_told_plainly(given: object, said: str) -> None:
    with pytest.raises(ValidationError) as refused:
        TypeAdapter(Paint).validate_python(given)
    assert describe_problem(refused.value.errors()[0]) == said


def test_what_a_caller_sent_is_shortened() -> None:
    """A name that nobody knows may be a megabyte, and a list of what is allowed long."""
    allowed: Any = Literal[tuple(f"choice-{number}" for number in range(1000))]
    for value in ({"x" * 1_000_000: 1}, {"colour": "y" * 1_000_000}, {"count": {"z" * 1_000_000: 1}}):
        with pytest.raises(ValidationError) as refused:
            TypeAdapter(Paint).validate_python(value)
        assert len(describe_problems(refused.value.errors())) < 1000
    with pytest.raises(ValidationError) as refused:
        TypeAdapter(allowed).validate_python("none of them")
    said = describe_problems(refused.value.errors())
    assert said.startswith("the body: must be 'choice-0'")
    assert len(said) < 1000
