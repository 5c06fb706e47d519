"""What tests leave open is found between folders, by name, and fails no other test."""

from __future__ import annotations

import gc
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.suite import garbage


class Leaver:
    """A socket that only the garbage collector closes."""

    def __init__(self) -> None:
        self.socket = socket.socket()
        self.itself = self


def test_what_was_left_open_is_told_once() -> None:
    gc.collect()
    Leaver()
    [found] = garbage.collect()
    assert found.startswith("unclosed <socket.socket")
    assert garbage.collect() == []


@pytest.mark.parametrize(("following", "told"), [("tests/a/test_two.py", 0), ("tests/b/test_one.py", 1), (None, 1)])
def test_it_is_told_of_the_folder_whose_tests_are_over(following: str | None, told: int) -> None:
    def item(path: str) -> Any:
        return SimpleNamespace(
            path=Path("/checkout", path), config=SimpleNamespace(rootpath=Path("/checkout")), user_properties=[]
        )

    gc.collect()
    Leaver()
    last = item("tests/a/test_one.py")
    garbage.collect_after(last, None if following is None else item(following))
    assert [name for name, _ in last.user_properties] == [garbage.PROPERTY] * told
    printed = garbage.lines([cast("object", last), cast("object", last)])
    assert all(line.startswith("tests/a: unclosed <socket.socket") for line in printed)
    assert len(printed) == told
    garbage.collect()


def test_garbage_that_is_old_is_left_to_the_end_of_a_folder() -> None:
    assert gc.isenabled()
    assert gc.get_threshold()[2] > 100_000
    assert gc.get_freeze_count() > 10_000
