"""A digest stands for exactly the changes that somebody looked at."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.repositories.changed import Tree, changed, tar_of

from holdfast.cli.errors import CommandError
from holdfast.cli.exits import Exit
from holdfast.cli.run.changes.apply import check_accepted
from holdfast.repositories.changes import digest_of
from holdfast.runs.workspace.git_trees import GitTrees

PATHS = st.binary(min_size=1, max_size=8)
VERSIONS = st.none() | st.sampled_from(["100644 aa", "100755 aa", "100644 bb", "120000 aa"])
CHANGES = st.dictionaries(PATHS, st.tuples(VERSIONS, VERSIONS), max_size=4)


def digest(before: Tree, after: Tree) -> tuple[str, str]:
    """What the server says, and what a client calculates."""
    with tempfile.TemporaryDirectory() as folder:
        trees = GitTrees(Path(folder))
        trees.load(tar_of(before), tar_of(after))
        told = trees.digest()
    with tempfile.TemporaryDirectory() as folder:
        return told, changed(Path(folder) / "c", before, after).digest


@given(CHANGES, CHANGES)
@settings(max_examples=300)
def test_other_changes_have_another_digest(
    one: dict[bytes, tuple[str | None, str | None]], other: dict[bytes, tuple[str | None, str | None]]
) -> None:
    first, second = (digest_of((path, *versions) for path, versions in each.items()) for each in (one, other))
    assert (first == second) is (one == other)


def test_the_order_of_changes_does_not_matter() -> None:
    changes = [(b"a", None, "100644 aa"), (b"b", "100644 bb", None), (b"c", "100644 aa", "100755 aa")]
    assert digest_of(changes) == digest_of(reversed(changes))


def test_server_and_client_agree_and_every_difference_counts() -> None:
    before: Tree = {"a.txt": "1\n", "b.txt": "1\n", "run": ("x", "1\n"), "link": ("link", "a.txt")}
    afters: list[Tree] = [
        {**before, "a.txt": "2\n"},
        {**before, "a.txt": "3\n"},
        {**before, "b.txt": "2\n"},
        {**before, "a.txt": ("x", "1\n")},
        {**before, "a.txt": ("link", "1\n")},
        {**before, "link": ("link", "b.txt")},
        {**before, "new\nname \udcff": "1\n"},
        {**before, ".vscode/tasks.json": "{}"},
        {path: content for path, content in before.items() if path != "a.txt"},
        before,
    ]
    found = [digest(before, after) for after in afters]
    assert all(told == calculated for told, calculated in found)
    assert len({told for told, _ in found}) == len(afters)


def test_what_was_accepted_is_not_something_else(tmp_path: Path) -> None:
    seen = changed(tmp_path / "seen", {}, {"a.txt": "fine\n"})
    now = changed(tmp_path / "now", {}, {"a.txt": "fine\n", ".envrc": "id\n"})
    check_accepted(seen, seen.digest)
    check_accepted(now, None)
    for accepted in (seen.digest, "", now.digest[:-1], now.digest.upper() + "x"):
        with pytest.raises(CommandError, match="other changes than those you accepted") as caught:
            check_accepted(now, accepted)
        assert caught.value.exit is Exit.CONFLICT
