"""A type on the wire is read and written by a client as FastAPI reads and writes it, without pydantic."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import subprocess
import sys
from dataclasses import dataclass, field, is_dataclass
from enum import StrEnum
from typing import Annotated, Any

import pytest
from pydantic import TypeAdapter, ValidationError

import holdfast.api
from holdfast.api.document import Document, Limits


class Colour(StrEnum):
    RED = "red"


@dataclass(frozen=True, slots=True, kw_only=True)
class Part(Document):
    part_name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Whole(Document):
    first_part: Part
    colour: Colour = Colour.RED
    parts: tuple[Part, ...] = ()
    by_colour: dict[Colour, Part] = field(default_factory=dict)
    count: Annotated[int, Limits(ge=1, strict=True)] | None = None


WHOLE = Whole(
    first_part=Part(part_name="a"), parts=(Part(part_name="b"),), by_colour={Colour.RED: Part(part_name="c")}, count=2
)
AS_JSON = {
    "firstPart": {"partName": "a"},
    "colour": "red",
    "parts": [{"partName": "b"}],
    "byColour": {"red": {"partName": "c"}},
    "count": 2,
}


def test_a_document_is_written_and_read_as_pydantic_does_it() -> None:
    adapter = TypeAdapter(Whole)
    assert WHOLE.to_json() == adapter.dump_python(WHOLE, mode="json", by_alias=True) == AS_JSON
    assert Whole.from_json(AS_JSON) == adapter.validate_python(AS_JSON) == WHOLE


def test_a_request_says_only_what_differs_from_its_defaults() -> None:
    assert Whole(first_part=Part(part_name="a")).to_request() == {"firstPart": {"partName": "a"}}


def test_a_client_takes_what_a_newer_server_adds_and_misses_what_is_required() -> None:
    assert Whole.from_json({**AS_JSON, "new": 1}) == WHOLE
    assert Whole.from_json({"firstPart": {"partName": "a"}}).parts == ()
    with pytest.raises(LookupError):
        Whole.from_json({"colour": "red"})


@pytest.mark.parametrize("wrong", [{"count": 0}, {"count": "2"}, {"colour": "blue"}, {"new": 1}])
def test_a_server_refuses_what_is_outside_of_the_limits(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        TypeAdapter(Whole).validate_python({**AS_JSON, **wrong})


MODULES = [each.name for each in pkgutil.walk_packages(holdfast.api.__path__, "holdfast.api.")]


def documents() -> list[type[Document]]:
    members = [
        each for name in MODULES for _, each in inspect.getmembers(importlib.import_module(name), inspect.isclass)
    ]
    found = {each for each in members if issubclass(each, Document) and each is not Document}
    return sorted(found, key=lambda each: each.__name__)


@pytest.mark.parametrize("kind", documents(), ids=lambda kind: kind.__name__)
def test_every_type_on_the_wire_is_a_frozen_dataclass_that_pydantic_understands(kind: Any) -> None:
    assert is_dataclass(kind)
    assert vars(kind)["__dataclass_params__"].frozen
    assert "__dict__" not in dir(kind)
    assert TypeAdapter(kind).json_schema(by_alias=True)


@pytest.mark.parametrize("module", ["holdfast.client", "holdfast.cli", *MODULES])
def test_neither_client_nor_command_line_load_pydantic(module: str) -> None:
    code = f"import sys, {module}; print([name for name in ('pydantic', 'fastapi') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
