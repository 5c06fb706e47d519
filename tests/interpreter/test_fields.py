"""Output fields: types by name or in Python, and errors that say which field is wrong."""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from typing import Any, Literal, Optional, Union

import pytest

from holdfast.api.errors.interpreters import InvalidInterpreter, InvalidSubmission
from holdfast.interpreter.bridge.annotations import name_of, type_of
from holdfast.interpreter.bridge.submit_fields import OutputField, check_submission, parse_fields, usage


@dataclass
class Point:
    x: int
    y: int


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("str", str),
        ("int", int),
        ("float", float),
        ("bool", bool),
        ("Any", Any),
        ("list", list),
        ("list[str]", list[str]),
        ("List[str]", list[str]),
        ("typing.List[int]", list[int]),
        ("dict[str, list[int]]", dict[str, list[int]]),
        ("tuple[int, ...]", tuple[int, ...]),
        ("str | None", Optional[str]),  # noqa: UP045
        ("Optional[int]", Optional[int]),  # noqa: UP045
        ("Union[int, str]", Union[int, str]),  # noqa: UP007
        ("Literal['yes', 'no']", Literal["yes", "no"]),
        ("typing.Literal['yes', 1]", Literal["yes", 1]),
        ("date", datetime.date),
        ("datetime.datetime", datetime.datetime),
    ],
)
def test_a_type_is_known_by_its_name(name: str, kind: Any) -> None:
    assert type_of(name) == kind
    assert type_of(kind) == kind


@pytest.mark.parametrize(
    "name",
    [
        *("", "strr", "__import__('os')", "list[", "os.system", "list[str", "lambda: 0", "str()", "[" * 500),
        *("x" * 5000, "Literal[print(1)]", "int[str]", "1 | 2", "-" * 900 + "1"),
    ],
)
def test_what_is_no_type_is_refused_and_never_run(name: str) -> None:
    with pytest.raises(InvalidInterpreter, match="is not a known type"):
        type_of(name)


def test_types_are_told_as_models_read_them() -> None:
    told = [name_of(each) for each in (list[str], int | None, Literal["a", 2], dict[str, list[Point]], Any, Point)]
    assert told == [
        "list[str]",
        "int | None",
        "Literal['a', 2]",
        "dict[str, list[{x: int, y: int}]]",
        "Any",
        "{x: int, y: int}",
    ]


def test_fields_are_given_as_dspy_does_or_as_is_short() -> None:
    wanted = (OutputField("total", int), OutputField("names", list[str]), OutputField("rest"))
    dspy = [{"name": "total", "type": "int"}, {"name": "names", "type": "list[str]"}, {"name": "rest"}]
    assert parse_fields(dspy) == wanted
    assert parse_fields({"total": int, "names": "list[str]", "rest": Any}) == wanted
    assert parse_fields(["total: int", "names: list[str]", "rest"]) == wanted
    assert parse_fields(wanted) == wanted
    assert parse_fields(None) == ()
    assert usage(wanted) == "SUBMIT(total: int, names: list[str], rest)"


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ([{"type": "int"}], "is not an output field"),
        ([{"name": "a b"}], "'a b' cannot name"),
        ([{"name": "class"}], "'class' cannot name"),
        ([{"name": 5}], "'5' cannot name"),
        ([{"name": "a", "type": "strr"}], "output field a: 'strr' is not a known type"),
        (["a", "a"], "a twice"),
        ([f"a{n}" for n in range(300)], "300 fields"),
        (["a" * 200], "at most 128"),
    ],
)
def test_fields_that_make_no_sense_are_refused(given: Any, why: str) -> None:
    with pytest.raises(InvalidInterpreter, match=why):
        parse_fields(given)


FIELDS = parse_fields({"total": int, "names": list[str], "answer": str})


def test_what_is_right_is_converted() -> None:
    given = {"total": "5", "names": ("a", "b"), "answer": "x"}
    assert check_submission(FIELDS, given) == {"total": 5, "names": ["a", "b"], "answer": "x"}
    assert check_submission(FIELDS, {"answer": "x"}, [7.0, []]) == {"total": 7, "names": [], "answer": "x"}
    assert check_submission(parse_fields({"at": Point}), {"at": {"x": 1, "y": 2}}) == {"at": Point(1, 2)}


@pytest.mark.parametrize("text", ['{"a": 1}', "[1, 2]", "5", "null", "true", '"quoted"'])
def test_a_string_that_looks_like_json_stays_a_string(text: str) -> None:
    assert check_submission(parse_fields({"answer": str}), {"answer": text}) == {"answer": text}
    assert check_submission(parse_fields(["answer"]), {"answer": text}) == {"answer": text}
    assert check_submission((), {"answer": text}) == {"answer": text}


def test_and_is_no_list_either() -> None:
    with pytest.raises(InvalidSubmission, match=r"names must be list\[str\], not '\[\"a\"\]' \(str\)"):
        check_submission(parse_fields({"names": list[str]}), {"names": '["a"]'})


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"total": "many", "names": [], "answer": ""}, r"^total must be int, not 'many' \(str\)$"),
        ({"total": 1.5, "names": [], "answer": ""}, r"^total must be int, not 1.5 \(float\)$"),
        ({"total": 1, "names": [1, "a"], "answer": ""}, r"names\[0\]: must be a string, not 1 \(int\)$"),
        ({"total": 1, "names": []}, "^answer: str is missing$"),
        ({"total": 1, "names": [], "answr": "x"}, "answer: str is missing; 'answr' is not a field: did you mean"),
        ({}, r"^total: int is missing; names: list\[str\] is missing; answer: str is missing$"),
        ({"total": None, "names": {}, "answer": 5}, "total must be int, not None; names .* not a dict; answer "),
        ({"total": 10**30, "names": {}, "answer": ""}, "names must be"),
    ],
)
def test_an_error_says_which_field_is_wrong(values: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidSubmission, match=why) as caught:
        check_submission(FIELDS, values)
    assert caught.value.hint == "call SUBMIT(total: int, names: list[str], answer: str)"


def test_values_without_a_name_go_by_the_order_of_the_fields() -> None:
    assert check_submission(FIELDS, {}, [1, ["a"], "x"]) == {"total": 1, "names": ["a"], "answer": "x"}
    with pytest.raises(InvalidSubmission, match="4 values for 3 fields"):
        check_submission(FIELDS, {}, [1, [], "x", 2])
    with pytest.raises(InvalidSubmission, match="total was passed twice"):
        check_submission(FIELDS, {"total": 1}, [1])


def test_without_fields_anything_goes_but_nothing() -> None:
    assert check_submission((), {}, ["x"]) == {"output": "x"}
    assert check_submission((), {"a": 1, "b": [2]}) == {"a": 1, "b": [2]}
    with pytest.raises(InvalidSubmission, match="needs a value"):
        check_submission((), {})
    with pytest.raises(InvalidSubmission, match="one value, or named values"):
        check_submission((), {}, [1, 2])


def test_a_million_wrong_values_are_told_in_a_line() -> None:
    with pytest.raises(InvalidSubmission) as caught:
        check_submission(parse_fields({"names": list[str]}), {"names": [1] * 1_000_000})
    assert str(caught.value) == "names must be list[str]: 1000000 of its values are wrong"


def test_a_flood_of_unknown_fields_is_told_in_part() -> None:
    with pytest.raises(InvalidSubmission) as caught:
        check_submission(FIELDS, {f"{'x' * 1000}{n}": n for n in range(1000)})
    assert len(str(caught.value)) < 5000
