"""Every command that the README and docs/ show exists, with the options that it is shown with."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer

from holdfast.cli.parsing.typer_app import build

CHECKOUT = Path(__file__).parents[2]
PAGES = sorted([CHECKOUT / "README.md", *(CHECKOUT / "docs").glob("*.md"), *(CHECKOUT / "docs/tutorials").glob("*.md")])
BLOCK = re.compile(r"^```(?:sh|console)\n(.*?)^```", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"(?:^|[|(&;]|\$ )\s*(?:bin/)?holdfast ((?:'[^']*'|\"[^\"]*\"|[^|&;)#'\"])*)")


def shown_commands(page: Path) -> list[str]:
    """Command lines in code blocks, without what is piped into them, or out of them."""
    lines = "\n".join(BLOCK.findall(page.read_text())).replace("\\\n", " ").splitlines()
    return [found.strip() for line in lines for found in COMMAND.findall(line)]


def unknown_words(line: str, root: Any) -> list[str]:
    """Words that the command line would refuse: a command or an option that is not there."""
    words = shlex.split(line, posix=True)
    words = [word for word, before in zip(words, ["", *words], strict=False) if not {word, before} & {"<", ">"}]
    command, unknown = root, []
    while words and getattr(command, "commands", None) and not words[0].startswith("-"):
        name = words.pop(0)
        if name not in command.commands:
            return [name]
        command = command.commands[name]
    known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    for word in words:
        if word == "--":
            break
        if word.startswith("-") and word != "-" and word.partition("=")[0] not in known | {"--help", "-h"}:
            unknown.append(word)
    return unknown


CASES = [
    pytest.param(line, id=f"{page.name}: {line[:60]}") for page in PAGES for line in dict.fromkeys(shown_commands(page))
]


@pytest.fixture(scope="module")
def root() -> Any:
    return typer.main.get_command(build([]))


@pytest.mark.parametrize("line", CASES)
def test_a_command_that_is_shown_can_be_typed(line: str, root: Any) -> None:
    assert unknown_words(line, root) == []


def test_what_is_not_there_is_found(root: Any) -> None:
    assert unknown_words("tread list", root) == ["tread"]
    assert unknown_words('run "x" --agent pi --nonsense', root) == ["--nonsense"]
    assert unknown_words("box exec b-1 -- ls --nonsense", root) == []
    assert len(CASES) > 60
