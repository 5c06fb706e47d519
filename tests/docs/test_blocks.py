"""Every code block of the README and docs/ is executed or checked by a test, or is listed here with the reason why not.

Who checks what: `python` runs in test_docs.py, and in docs/extending in test_extending.py; the console blocks of the
README and of the first tutorial run in test_docs.py; commands of Holdfast in all shell blocks are looked up in
test_commands.py. Here, all shell blocks are read by bash, and data by its parser.
"""

from __future__ import annotations

import json
import re
import subprocess
import tomllib
from collections import Counter
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[2]
GENERATED = CHECKOUT / "docs/reference"
PAGES = sorted(
    [*CHECKOUT.glob("*.md"), *(path for path in (CHECKOUT / "docs").rglob("*.md") if GENERATED not in path.parents)]
)
BLOCK = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
BLOCKS = [
    pytest.param(language, code, id=f"{page.relative_to(CHECKOUT)}-{number}")
    for page in PAGES
    for number, (language, code) in enumerate(BLOCK.findall(page.read_text()), 1)
]
UNCHECKED = {
    "text": (17, "diagrams, output, and lines of a file that a guide inserts: there is nothing to execute"),
    "nginx": (1, "a part of a file of a program that we do not require"),
}
"""Kinds of blocks that no test reads: how many there are, and why. A new one has to be counted here."""


def commands_of(code: str) -> str:
    """Return the commands of a console block, without what they print."""
    return "\n".join(line[2:] for line in code.splitlines() if line.startswith("$ "))


def shell_mistake(code: str) -> str:
    done = subprocess.run(["bash", "-n"], input=code, capture_output=True, text=True, timeout=240, check=False)
    return done.stderr


@pytest.mark.parametrize(("language", "code"), BLOCKS)
def test_a_block_can_be_read_by_what_it_is_for(language: str, code: str) -> None:
    match language:
        case "sh" | "bash":
            assert shell_mistake(code) == ""
        case "console":
            assert commands_of(code), "a console block has commands, after `$ `"
            assert shell_mistake(commands_of(code)) == ""
        case "toml":
            assert tomllib.loads(code)
        case "json":
            assert json.loads(code) is not None
        case "python":
            compile(code, "block", "exec", dont_inherit=True)
        case _:
            assert language in UNCHECKED, "give the block a language that a test reads"


def test_the_blocks_that_no_test_reads_are_counted() -> None:
    found = Counter(each.values[0] for each in BLOCKS)
    assert {name: found[name] for name in UNCHECKED} == {name: number for name, (number, _) in UNCHECKED.items()}
    assert found["python"] > 40
    assert found["sh"] > 60


def test_a_mistake_in_a_block_is_found() -> None:
    assert "syntax error" in shell_mistake("if true; then")
    assert commands_of("$ echo a\nb\n$ echo c") == "echo a\necho c"
