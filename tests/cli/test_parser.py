"""The quick parser: what it accepts means the same to Typer, and what it does not accept is left to Typer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import typer
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.cli.commands import COMMANDS, Group, load
from holdfast.cli.parsing.parameters import Option, Parameter, Signature, signature_of
from holdfast.cli.parsing.parser import parse
from holdfast.cli.parsing.typer_app import class_of, for_typer


def places(commands: Any = COMMANDS) -> Iterator[str]:
    for found in commands.values():
        if isinstance(found, Group):
            yield from places(found.commands)
        else:
            yield found


PLACES = list(places())


def told_by_typer(place: str, words: list[str]) -> dict[str, Any] | None:
    """What the command would be called with, or None for a mistake or a request for help."""
    called: list[dict[str, Any]] = []
    command = load(place)

    def record(**values: Any) -> None:
        called.append(values)

    app = typer.Typer(rich_markup_mode=None, add_completion=False)
    app.command(cls=class_of(command))(for_typer(command, record))
    try:
        typer.main.get_command(app).main(args=words, prog_name="x", standalone_mode=False)
    except typer.TyperException:
        return None
    return called[0] if called else None


def told_here(place: str, words: list[str]) -> dict[str, Any] | None:
    signature = signature_of(load(place))
    values = parse(signature, words, {})
    return None if values is None else with_defaults(signature, signature.arguments(values))


def with_defaults(signature: Signature, arguments: dict[str, Any]) -> dict[str, Any]:
    """The command's own defaults, which Typer passes and we leave out."""
    plain = {each.name: each.default for each in signature.parameters if each.group is None}
    return plain | arguments


WORDS = [
    "x",
    "t-1",
    "-",
    "",
    "b-1:/tmp",
    "3",
    "0.5",
    "10m",
    "running",
    "allow",
    "read",
    "-n",
    "--",
    "-5",
    "a=b",
    "--no-such",
]


def line_of(place: str) -> st.SearchStrategy[list[str]]:
    """Command lines of a command: its options with and without values, and other words, in any order."""
    signature = signature_of(load(place))
    names = [name for each in signature.parameters for name in names_of(each)]
    word = st.sampled_from(WORDS)
    piece = word.map(lambda text: [text])
    if names:
        name = st.sampled_from(names)
        piece |= name.map(lambda text: [text])
        piece |= st.tuples(name, word).map(list)
        piece |= st.tuples(name, word).map(lambda pair: [f"{pair[0]}={pair[1]}"])
    return st.lists(piece, max_size=5).map(lambda pieces: [text for each in pieces for text in each])


def names_of(parameter: Parameter) -> list[str]:
    if not isinstance(parameter.declaration, Option):
        return []
    names = parameter.declaration.names or (f"--{parameter.name.replace('_', '-')}",)
    return [part for name in names for part in name.split("/")]


@pytest.mark.parametrize("place", PLACES)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_what_is_accepted_means_the_same_to_typer(place: str, data: st.DataObject) -> None:
    words = data.draw(line_of(place))
    here = told_here(place, words)
    if here is not None:
        assert here == told_by_typer(place, words)


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("box.exec:exec_", ["k", "--", "true"]),
        ("box.exec:exec_", ["--cwd", "/tmp", "k", "--env", "A=b", "ls", "-l", "--json"]),
        ("box.exec:exec_", ["-n", "k", "true"]),
        ("box.commands:list_", ["--state", "running", "--state=paused", "-n", "3", "--json"]),
        ("box.commands:create", ["--key", "k", "--memory", "2G", "--cpu", "0.5", "--network", "open", "--home", "/h"]),
        ("thread.commands:append", ["t-1", "hello", "--type", "note"]),
        ("thread.commands:append", ["t-1", "-"]),
        ("server.up:up", ["--port", "0", "--no-auth"]),
    ],
)
def test_usual_lines_are_read_without_typer(place: str, words: list[str]) -> None:
    here = told_here(place, words)
    assert here is not None
    assert here == told_by_typer(place, words)


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("box.commands:list_", ["--help"]),
        ("box.commands:list_", ["--limit", "0"]),
        ("box.commands:list_", ["--limit", "many"]),
        ("box.commands:list_", ["--limit"]),
        ("box.commands:list_", ["--all=yes"]),
        ("box.commands:list_", ["extra"]),
        ("box.commands:list_", ["--state", "asleep"]),
        ("box.exec:exec_", ["k"]),
        ("thread.commands:show", []),
    ],
)
def test_mistakes_and_help_are_left_to_typer(place: str, words: list[str]) -> None:
    assert told_here(place, words) is None


def test_a_variable_that_typer_would_read_is_left_to_typer() -> None:
    signature = signature_of(load("server.up:up"))
    assert parse(signature, [], {}) is not None
    assert parse(signature, [], {"HOLDFAST_ALLOW_PRIVATE": "10.0.0.1"}) is None
