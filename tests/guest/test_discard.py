"""Output that nobody wants any more is read to its end, and only so much of it at once."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest

from holdfast.guest.init import discard


class Loop:
    """The part of process 1 that watches descriptors."""

    def __init__(self) -> None:
        self.watched: dict[int, Callable[[int], None]] = {}

    def watch(self, descriptor: int, events: int, react: Callable[[int], None]) -> None:
        self.watched[descriptor] = react

    def unwatch(self, descriptor: int) -> None:
        del self.watched[descriptor]

    def take(self, *pipes: int) -> None:
        discard.take(list(pipes), self.watch, self.unwatch)


@pytest.fixture
def loop() -> Iterator[Loop]:
    loop = Loop()
    yield loop
    for pipe in loop.watched:
        os.close(pipe)
    discard._open.clear()


def is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


def test_a_pipe_is_read_to_its_end_and_closed(loop: Loop) -> None:
    reader, writer = os.pipe()
    loop.take(reader)
    os.write(writer, b"a line that nobody reads\n")
    loop.watched[reader](0)
    loop.watched[reader](0)  # nothing more yet
    assert is_open(reader)
    os.close(writer)
    loop.watched[reader](0)
    assert not is_open(reader)
    assert (loop.watched, discard._open) == ({}, set())


def test_more_pipes_than_are_read_at_once_are_closed(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(discard, "_MOST", 1)
    (first, one), (second, other) = os.pipe(), os.pipe()
    loop.take(first, second)
    assert (is_open(first), is_open(second)) == (True, False)
    for each in (one, other):
        os.close(each)
