"""Every command that the README shows is executed by a test, of whatever part it belongs to.

`test_docs.py` executes the console blocks word for word, and `tests/cli/test_demo.py` the demo. The others need an own
model or project; `test_commands.py` parses them as they stand.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from holdfast.cli.commands import find

CHECKOUT = Path(__file__).parents[2]
README = (CHECKOUT / "README.md").read_text()
COMMANDS = sorted(
    {tuple(named) for words in re.findall(r"bin/holdfast ([a-z][a-z -]*)", README) if (named := find(words.split())[1])}
)


@cache
def texts_of_tests() -> str:
    folders = (path for path in (CHECKOUT / "tests").rglob("*.py") if (CHECKOUT / "tests/docs") not in path.parents)
    return "\n".join(path.read_text() for path in folders)


def test_the_readme_shows_commands() -> None:
    assert len(COMMANDS) > 15
    assert {("demo",), ("run",), ("box", "create"), ("model", "add")} <= set(COMMANDS)


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_a_test_executes_the_command(words: tuple[str, ...]) -> None:
    """As arguments, `cli("box", "create", …)`, or as a line."""
    as_arguments = r"[(\[]\s*(?:\*\w+, )?" + ", ".join(rf'"{word}"' for word in words)
    as_line = r"holdfast " + " ".join(words) + r"\b"
    assert re.search(rf"{as_arguments}|{as_line}", texts_of_tests()), "no test executes it"


def test_the_readme_is_short_and_in_the_order_of_a_newcomer() -> None:
    assert len(README.splitlines()) <= 240
    headings = re.findall(r"^## (.+)$", README, re.MULTILINE)
    wanted = ["Two commands", "What you see", "Your own model and project", "In production", "Documentation"]
    assert [each for each in headings if each in wanted] == wanted
