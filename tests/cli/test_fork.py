"""`holdfast fork`, `rewind`, `compare` and `thread turns`, as people type them: a real agent in real boxes."""

from __future__ import annotations

import json

import pytest
from tests.cli.test_run import World, thread_in, world  # noqa: F401 - a fixture

from holdfast.testing.model import FOR_EVER, bash, text

pytestmark = [pytest.mark.xdist_group("runs of the command line"), pytest.mark.agent, pytest.mark.box]


@pytest.fixture(scope="module")
def thread(world: World) -> str:  # noqa: F811
    """Two turns, each with a file that only the shell knows of."""
    world.model.script([bash("echo 1 > state"), text("One.")])
    code, out, err = world.begin("First.", "--empty")
    assert code == 0, err
    thread = thread_in(out)
    world.model.script([bash("echo 2 > state; echo more > second"), text("Two.")])
    code, out, err = world.run("resume", thread, "Second.")
    assert code == 0, out + err
    return thread


def state(world: World, thread: str) -> str:  # noqa: F811
    code, out, err = world.run("box", "exec", f"thread/{thread}", "--", "sh", "-c", "cat state; ls")
    assert code == 0, err
    return out


def test_a_fork_goes_on_from_an_earlier_turn_and_both_are_compared(world: World, thread: str) -> None:  # noqa: F811
    code, out, err = world.run("thread", "turns", thread)
    assert code == 0, err
    assert [line.split()[:3] for line in out.splitlines()[1:3]] == [["1", "pi", "completed"], ["2", "pi", "completed"]]
    assert f"holdfast fork {thread}@2" in err

    world.model.script([bash("cat state; echo other > branch"), text("Otherwise.")])
    code, out, err = world.run("fork", f"{thread}@1", "--with", "Do it otherwise.")
    assert code == 0, out + err
    assert "    Otherwise." in out.splitlines()
    forked = thread_in(out)
    assert forked != thread
    assert out.count(forked) == 2, "the thread and its page, and no more"
    assert state(world, forked) == "1\nbranch\nstate\n"
    assert state(world, thread) == "2\nsecond\nstate\n"

    code, out, err = world.run("compare", thread, forked, "--test", "test -e second")
    assert code == 0, err
    assert f"turn 1 of {thread}" in out
    assert "passed" in out
    assert "failed with 1" in out
    assert "second" in out
    assert "branch" in out

    code, out, err = world.run("thread", "tree", thread)
    assert code == 0, err
    assert forked in out


def test_branches_start_side_by_side_with_another_prompt(world: World, thread: str) -> None:  # noqa: F811
    world.model.script([text("A branch.", times=FOR_EVER)])
    code, out, err = world.run("fork", f"{thread}@1", "--with", "Try it.", "--agent", "pi", "--times", "3", "--json")
    assert code == 0, out + err
    made = [each["thread"] for each in json.loads(out)["forks"]]
    assert len(set(made)) == 3
    for each in made:
        code, out, err = world.run("thread", "wait", each)
        assert code == 0, out + err
        assert state(world, each) == "1\nstate\n"
    code, out, err = world.run("thread", "tree", thread)
    assert all(each in out for each in made)


def test_a_thread_is_rewound_and_that_is_undone(world: World, thread: str) -> None:  # noqa: F811
    code, out, err = world.run("rewind", f"{thread}@1")
    assert code == 0, err
    assert "to the end of turn 1" in out
    assert f"holdfast rewind {thread} --undo" in err
    assert state(world, thread) == "1\nstate\n"
    code, out, err = world.run("thread", "turns", thread)
    assert code == 0, err
    assert "rewound" in out.splitlines()[2]
    assert f"holdfast fork {thread}@1" in err, "not the turn that was rewound"
    code, out, err = world.run("rewind", thread, "--undo", "--json")
    assert code == 0, err
    assert json.loads(out)["turn"] == 2
    assert state(world, thread) == "2\nsecond\nstate\n"


def test_what_cannot_be_forked_says_what_to_do(world: World, thread: str) -> None:  # noqa: F811
    code, _, err = world.run("fork", f"{thread}@9")
    assert code != 0
    assert "turn 9" in err
    assert "holdfast thread turns" in err
    code, _, err = world.run("fork", f"{thread}@")
    assert code == 2
    assert "names no turn" in err
    code, _, err = world.run("fork", thread, "--agent", "codex")
    assert code == 2
    assert "need a prompt" in err
