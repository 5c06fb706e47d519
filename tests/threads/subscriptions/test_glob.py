"""Patterns: what they match, and that matching is never slow."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.threads.subscriptions.errors import InvalidSubscription
from holdfast.threads.subscriptions.glob import Glob


@pytest.mark.parametrize(
    ("pattern", "path", "matches"),
    [
        ("events/a", "events/a", True),
        ("events/a", "events/b", False),
        ("events/a", "events/a/b", False),
        ("/events/a/", "events/a", True),
        ("events/*", "events/a", True),
        ("events/*", "events", False),
        ("events/*", "events/a/b", False),
        ("*/a", "x/a", True),
        ("*", "a", True),
        ("*", "a/b", False),
        ("**", "a", True),
        ("**", "a/b/c", True),
        ("events/**", "events", True),
        ("events/**", "events/a/b", True),
        ("events/**", "eventsx/a", False),
        ("**/log", "log", True),
        ("**/log", "a/b/log", True),
        ("**/log", "a/log/b", False),
        ("a/**/z", "a/z", True),
        ("a/**/z", "a/b/c/z", True),
        ("a/**/z", "a/b/c", False),
        ("a/**/b/*/c", "a/b/b/x/c", True),
        ("a/%2A", "a/*", True),
        ("a/%2a", "a/b", False),
        ("a/%2A%2A", "a/**", True),
        ("a/%2A%2A", "a/b/c", False),
        ("a.c/*", "abc/d", False),
    ],
)
def test_a_pattern_matches_whole_segments(pattern: str, path: str, matches: bool) -> None:
    assert Glob.parse(pattern).matches(path) is matches


@pytest.mark.parametrize("pattern", ["", "/", "a//b", "t-*", "a/b*", "***", "a\nb", "a/" * 600])
def test_a_pattern_that_could_not_work_is_refused(pattern: str) -> None:
    with pytest.raises(InvalidSubscription):
        Glob.parse(pattern)


SEGMENT = st.sampled_from(["a", "b"])


def matches_slowly(pattern: list[str], path: list[str]) -> bool:
    if not pattern:
        return not path
    if pattern[0] == "**":
        return any(matches_slowly(pattern[1:], path[skip:]) for skip in range(len(path) + 1))
    return bool(path) and pattern[0] in ("*", path[0]) and matches_slowly(pattern[1:], path[1:])


@given(
    st.lists(st.one_of(SEGMENT, st.sampled_from(["*", "**"])), min_size=1, max_size=6),
    st.lists(SEGMENT, min_size=1, max_size=7),
)
def test_matching_is_what_the_definition_says(pattern: list[str], path: list[str]) -> None:
    glob = Glob.parse("/".join(pattern))
    matches = glob.matches("/".join(path))
    assert matches is matches_slowly(pattern, path)
    assert not matches or "/".join(path).startswith(glob.prefix)


def test_the_worst_pattern_is_answered_at_once() -> None:
    glob = Glob.parse("/".join(["**", "a"] * 100 + ["b"]))
    begun = time.process_time()
    assert not glob.matches("/".join(["a"] * 500))
    assert time.process_time() - begun < 5.0
