"""Words of other tools are answered with the command of ours that does the same."""

from __future__ import annotations

import pytest
from tests.cli.conftest import Cli

from holdfast.cli.commands import COMMANDS, Group, find
from holdfast.cli.exits import Exit
from holdfast.cli.other_words import AT_THE_TOP, ours_for


@pytest.mark.parametrize(
    ("line", "ours"),
    [
        ("box ls", "holdfast box list"),
        ("box rm tour", "holdfast box delete"),
        ("image rmi x", "holdfast image remove"),
        ("thread remove t-1", "holdfast thread delete"),
        ("key rm k-1", "holdfast key revoke"),
        ("env create", "holdfast env new"),
        ("box run tour ls", "holdfast box exec"),
        ("session ps", "holdfast session list"),
        ("interpreter template rm x", "holdfast interpreter template remove"),
        ("webhook get x", "holdfast webhook show"),
        ("boxes", "holdfast box list"),
        ("secrets", "holdfast secret list"),
        ("shell tour", "holdfast box shell BOX"),
    ],
)
def test_a_word_of_another_tool_has_a_command_of_ours(line: str, ours: str) -> None:
    assert ours_for(line.split()) == (ours,)


@pytest.mark.parametrize("line", ["thred", "box lits", "", "box", "box list", "run fix", "thread entries", "session"])
def test_commands_of_ours_and_mistakes_have_none(line: str) -> None:
    assert ours_for(line.split()) == ()


@pytest.mark.parametrize("word", AT_THE_TOP)
def test_every_answer_is_a_command_and_no_word_of_ours_is_in_the_table(word: str) -> None:
    assert word not in COMMANDS
    for answer in AT_THE_TOP[word]:
        program, *words = answer.split()
        assert program == "holdfast"
        if words[0].startswith("--"):
            continue
        found, named = find(words)
        assert isinstance(found, str), answer
        assert all(each == "--" or each.isupper() for each in words[len(named) :]), answer


def test_every_group_that_has_a_list_understands_ls_and_its_plural() -> None:
    groups = {name: each for name, each in COMMANDS.items() if isinstance(each, Group) and "list" in each.commands}
    assert len(groups) > 15
    for name in groups:
        assert ours_for([name, "ls"]) == (f"holdfast {name} list",)
        assert ours_for([f"{name}es" if name == "box" else f"{name}s"]) == (f"holdfast {name} list",)


def test_the_command_line_says_so(bare_cli: Cli) -> None:
    outcome = bare_cli("ps")
    assert (outcome.exit, outcome.out) == (Exit.USAGE, "")
    assert "No such command 'ps'." in outcome.err
    assert "holdfast box list or " in outcome.err
    assert "Did you mean" not in outcome.err
