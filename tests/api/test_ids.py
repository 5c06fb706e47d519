"""Ids sort in the order of their making, however quickly they are made, and are never made twice."""

from __future__ import annotations

import os
import threading

import pytest

from holdfast.api import ids
from holdfast.api.ids import new_entry_id, new_id


@pytest.fixture
def standing_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    moment = ids.now_ms()
    monkeypatch.setattr(ids, "now_ms", lambda: moment)


@pytest.mark.usefixtures("standing_clock")
def test_ids_of_one_millisecond_sort_in_the_order_of_their_making() -> None:
    made = [new_id("b") for _ in range(1000)]
    assert made == sorted(set(made))
    entries = [new_entry_id() for _ in range(1000)]
    assert entries == sorted(set(entries))


def test_ids_go_on_where_the_numbers_of_a_millisecond_are_used_up() -> None:
    sequence = ids._Sequence(1)
    made = [sequence.next(7) for _ in range(100)]
    assert made == sorted(set(made))


@pytest.mark.usefixtures("standing_clock")
def test_ids_are_made_once_by_threads_at_the_same_time() -> None:
    made: list[str] = []
    threads = [threading.Thread(target=lambda: made.extend([new_id("b") for _ in range(500)])) for _ in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert len(set(made)) == len(made) == 4000


@pytest.mark.usefixtures("standing_clock")
def test_a_forked_process_does_not_count_on_where_its_parent_does() -> None:
    new_entry_id()
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(write, new_entry_id().encode())
        finally:
            os._exit(0)
    os.close(write)
    os.waitpid(child, 0)
    with os.fdopen(read) as told:
        assert told.read() != new_entry_id()
