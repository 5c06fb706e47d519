"""Streams while commits fail: what was acknowledged is there once, and what failed is not, in every order of events.

The writer's thread is not started. The test commits and settles by hand, so that everything can happen in between:
deletions and new streams in their place, forks, filings, and a crash.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Final
from unittest import mock

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

from holdfast.api.errors import Gone, NotFound, Refused
from holdfast.storage.sqlite.schema import connect, prepare
from holdfast.storage.sqlite.streams import SqliteStreams
from holdfast.storage.sqlite.streams.writer import Operation, Settled, Writer
from holdfast.testing.store_suites.streams import read_all
from holdfast.threads.store import AppendRequest, ChangeFeed, ForkPoint, Producer, StreamConfig

EXAMPLES: Final = 2000 if os.environ.get("HOLDFAST_TEST_ALL") else 30
STEPS: Final = 40
TEXT: Final = StreamConfig(content_type="text/plain")
PATHS: Final = ("a", "b", "c")
LARGE: Final = 300_000
"""More than the space that a full disk has left in these tests."""

paths = st.sampled_from(PATHS)
pieces = st.sampled_from([b"", b"x", b"\n", b"y" * 300])
faults = st.lists(st.sampled_from([None, None, "busy", "full", "interrupted", "early"]), max_size=4)


@dataclass
class Life:
    """One stream, from its creation to its deletion, by what the store acknowledged."""

    path: str
    prefix: bytes
    created: bool | None = None
    """None until it is known."""
    deleted: bool = False
    deletions: int = 0
    """How many are under way."""
    source: int | None = None
    appends: list[Append] = field(default_factory=list)

    @property
    def is_alive(self) -> bool:
        return self.created is True and not self.deleted

    def content(self) -> bytes:
        return self.prefix + b"".join(each.data for each in self.appends if each.done is True)

    def at_most(self) -> bytes:
        """With what may have been written and is not acknowledged yet."""
        return self.content() + b"".join(each.data for each in self.appends if each.done is None)


@dataclass
class Append:
    data: bytes
    producer: Producer | None
    done: bool | None = None


class FailingCommits(RuleBasedStateMachine):
    empty: ClassVar[Path]
    """A database without streams, to copy: creating one takes longer than all the rest."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.folder = Path(tempfile.mkdtemp(prefix="holdfast-commits-"))
        self.path = self.folder / "db"
        shutil.copy(self.empty, self.path)
        self.store = self.opened(self.path)
        self.lives: dict[int, Life] = {}
        self.waiting: list[Operation] = []
        """Handed over, and not committed."""
        self.unsettled: list[Settled] = []
        self.tasks: list[asyncio.Task[Any]] = []
        self.number = 0

    def opened(self, path: Path) -> SqliteStreams:
        async def open_it() -> SqliteStreams:
            return SqliteStreams(path, tenant="default", clock=lambda: 0, changes=ChangeFeed())

        store = self.loop.run_until_complete(open_it())
        connection = store._writer._connection
        connection.execute("PRAGMA synchronous = OFF")
        connection.execute("PRAGMA busy_timeout = 0")
        return store

    def close(self, store: SqliteStreams) -> None:
        self.loop.run_until_complete(self.loop.run_in_executor(None, store._reader.close))
        store._writer._connection.close()
        store._lookup.close()

    def teardown(self) -> None:
        try:
            self.come_to_rest()
            self.check_everything()
        finally:
            for task in self.tasks:
                task.cancel()
            self.turn()
            self.close(self.store)
            self.loop.run_until_complete(self.loop.shutdown_default_executor())
            self.loop.close()
            shutil.rmtree(self.folder)

    def turn(self) -> None:
        for _ in range(3):
            self.loop.run_until_complete(asyncio.sleep(0))
        while not self.store._writer._queue.empty():
            self.waiting += self.store._writer._queue.get() or []

    def start(self, work: Awaitable[Any], done: Callable[[bool], None]) -> None:
        async def wait() -> None:
            try:
                await work
            except Refused:
                done(False)
            else:
                done(True)

        self.tasks.append(self.loop.create_task(wait()))
        self.turn()

    def submitted(self, call: Callable[[], None]) -> Operation | None:
        """Returns the operation that a call submits, if it does."""
        before = len(self.waiting)
        call()
        self.turn()
        return self.waiting[before] if len(self.waiting) > before else None

    # What clients do

    @rule(path=paths, data=pieces, source=st.none() | paths)
    def create(self, path: str, data: bytes, source: str | None) -> None:
        config, prefix = TEXT, b""
        known = self.store._records.get(source) if source is not None else None
        if source is not None and known is not None:
            if known.id not in self.lives or source == path:
                return
            config = StreamConfig(fork=ForkPoint(source, None, 0))
            origin = self.lives[known.id]
            prefix = origin.content() if origin.created else b""
        life = Life(path, prefix + data, source=known.id if config.fork and known else None)

        def done(succeeded: bool) -> None:
            life.created = succeeded

        operation = self.submitted(lambda: self.start(self.store.create(path, config, data), done))
        if operation is not None and operation.record is not None and operation.record.id not in self.lives:
            self.lives[operation.record.id] = life

    @rule(path=paths, data=pieces, by_producer=st.booleans(), large=st.booleans())
    def append(self, path: str, data: bytes, by_producer: bool, large: bool) -> None:
        self.number += 1
        data = b"%d," % self.number + data + b"z" * (LARGE if large else 0)
        producer = Producer(f"p{self.number}", 0, 0) if by_producer else None
        try:
            acknowledgement = self.store.append(path, AppendRequest(data, producer=producer))
        except Refused:
            return
        record = self.store._records[path]
        append = Append(data, producer)
        self.lives[record.id].appends.append(append)
        acknowledgement.then(lambda appended, error: setattr(append, "done", error is None))
        self.turn()

    @rule(path=paths)
    def delete(self, path: str) -> None:
        record = self.store._records.get(path)
        if record is None or record.soft_deleted:
            return
        life = self.lives[record.id]
        life.deletions += 1

        def done(succeeded: bool) -> None:
            life.deletions -= 1
            life.deleted |= succeeded

        self.start(self.store.delete(path), done)

    # What the store does

    @precondition(lambda self: self.store._filing is None and self.store._unfiled)
    @rule()
    def begin_filing(self) -> None:
        self.store._begin_filing()
        self.turn()

    @precondition(lambda self: self.waiting)
    @rule(count=st.integers(1, 6), plan=faults)
    def commit(self, count: int, plan: list[str | None]) -> None:
        group, self.waiting = self.waiting[:count], self.waiting[count:]
        with failing(self.store._writer, self.path, plan):
            self.unsettled.append(self.store._writer._commit(group))

    @precondition(lambda self: self.unsettled)
    @rule()
    def settle(self) -> None:
        self.store._settled(self.unsettled.pop(0))
        self.turn()

    @precondition(lambda self: self.store._purger._next_step() is not None)
    @rule()
    def purge(self) -> None:
        if (step := self.store._purger._next_step()) is not None:
            self.start(self.store._write(step, frees_space=True), lambda _: None)

    # What must be true

    @rule()
    def crash(self) -> None:
        """The files as they are now have everything that was acknowledged, for a server that is started on them."""
        with tempfile.TemporaryDirectory(prefix="holdfast-crashed-") as folder:
            for file in (self.path, self.path.with_name("db-wal")):
                if file.exists():
                    shutil.copy(file, folder)
            store = self.opened(Path(folder) / "db")
            try:
                for id, life in self.lives.items():
                    if not life.is_alive or life.deletions:
                        continue
                    info = self.loop.run_until_complete(store.head(life.path))
                    assert info.id == id
                    content = self.read(store, life.path)
                    assert content.startswith(life.content())
                    assert life.at_most().startswith(content)
            finally:
                self.close(store)

    def come_to_rest(self) -> None:
        """Commit and settle everything, and file it in the end."""
        self.turn()
        for last in (False, True):
            while self.waiting or self.unsettled:
                if self.unsettled:
                    self.settle()
                else:
                    self.unsettled.append(self.store._writer._commit(self.waiting))
                    self.waiting = []
            if not last:
                self.store._begin_filing().add_done_callback(lambda future: future.result())
                self.turn()
        assert not self.store._unfiled

    def check_everything(self) -> None:
        for path in PATHS:
            alive = [(id, life) for id, life in self.lives.items() if life.path == path and life.is_alive]
            assert len(alive) <= 1
            if not alive:
                self.check_gone(path)
                continue
            ((id, life),) = alive
            assert self.loop.run_until_complete(self.store.head(path)).id == id
            assert self.read(self.store, path) == life.content()
            for append in life.appends:
                if append.producer is not None and append.done:
                    request = AppendRequest(append.data, producer=append.producer)
                    assert self.store.append(path, request)._appended.duplicate  # type: ignore[union-attr]
        with closing(sqlite3.connect(self.path)) as connection:
            assert connection.execute("SELECT count(*) FROM journal").fetchone() == (0,)
            orphans = (
                "SELECT stream FROM chunks WHERE stream NOT IN (SELECT id FROM streams UNION SELECT stream FROM purges)"
            )
            assert connection.execute(orphans).fetchall() == []

    def check_gone(self, path: str) -> None:
        with pytest.raises(NotFound) as caught:
            self.loop.run_until_complete(self.store.head(path))
        if isinstance(caught.value, Gone):
            kept = {life.source for life in self.lives.values() if life.is_alive}
            while more := {self.lives[id].source for id in kept if id is not None} - kept:
                kept |= more
            assert any(id in kept for id, life in self.lives.items() if life.path == path), f"{path} is never freed"

    def read(self, store: SqliteStreams, path: str) -> bytes:
        return self.loop.run_until_complete(read_all(store, path, limit=1_000_000))


@contextmanager
def failing(writer: Writer, path: Path, plan: list[str | None]) -> Iterator[None]:
    """Let the tries to commit fail in these ways, one after the other. None lets one succeed."""
    left = list(plan)
    try_commit = writer._try_commit
    connection = writer._connection

    def try_with_fault(operations: list[Operation]) -> Refused | None:
        fault = left.pop(0) if left else None
        if fault == "busy":
            with closing(sqlite3.connect(path, isolation_level=None)) as other:
                other.execute("BEGIN IMMEDIATE")
                return try_commit(operations)
        if fault == "full":
            (pages,) = connection.execute("PRAGMA page_count").fetchone()
            connection.execute(f"PRAGMA max_page_count = {pages}")
            try:
                return try_commit(operations)
            finally:
                connection.execute("PRAGMA max_page_count = 1000000000")
        if fault in ("interrupted", "early"):
            steps = iter(range(1000))
            limit = 3 if fault == "early" else 12
            connection.set_progress_handler(lambda: next(steps, 0) >= limit, 10)
            try:
                return try_commit(operations)
            finally:
                connection.set_progress_handler(None, 0)
        return try_commit(operations)

    with mock.patch.object(writer, "_try_commit", try_with_fault):
        yield


@pytest.fixture(autouse=True)
def quiet_and_empty(tmp_path: Path) -> Iterator[None]:
    FailingCommits.empty = tmp_path / "empty"
    with closing(connect(FailingCommits.empty)) as connection:
        prepare(connection)
    logger = logging.getLogger("holdfast")
    level = logger.level
    logger.setLevel(logging.CRITICAL)  # of what fails on purpose
    yield
    logger.setLevel(level)


@pytest.fixture
def hand() -> Iterator[FailingCommits]:
    """The steps, to be taken one by one. In the end everything is checked."""
    hand = FailingCommits()
    yield hand
    hand.teardown()


def commit_all(hand: FailingCommits) -> None:
    hand.commit(count=100, plan=[])
    hand.settle()


def test_a_stream_is_there_after_its_deletion_failed_although_another_was_created_in_its_place(
    hand: FailingCommits,
) -> None:
    hand.create(path="a", data=b"", source=None)
    hand.append(path="a", data=b"x", by_producer=True, large=False)
    commit_all(hand)
    hand.delete(path="a")
    hand.create(path="a", data=b"new", source=None)
    hand.commit(count=2, plan=["busy", "busy"])
    hand.settle()
    hand.append(path="a", data=b"x", by_producer=True, large=False)


def test_a_filing_behind_a_deletion_that_fails_keeps_what_the_stream_has(hand: FailingCommits) -> None:
    for path in ("a", "b"):
        hand.create(path=path, data=b"", source=None)
        hand.append(path=path, data=b"x", by_producer=False, large=False)
    commit_all(hand)
    hand.delete(path="a")
    hand.begin_filing()
    hand.commit(count=2, plan=["busy", "busy"])
    hand.settle()
    hand.crash()


def test_a_fork_of_a_stream_that_could_not_be_created_is_not_created_either(hand: FailingCommits) -> None:
    hand.create(path="a", data=b"", source=None)
    hand.create(path="b", data=b"", source="a")
    hand.commit(count=2, plan=["busy", "busy"])
    hand.settle()
    assert not any(life.is_alive for life in hand.lives.values())
    hand.crash()


def test_a_fork_whose_deletion_failed_has_what_its_deleted_source_had(hand: FailingCommits) -> None:
    hand.create(path="a", data=b"shared", source=None)
    commit_all(hand)
    hand.create(path="b", data=b"own", source="a")
    commit_all(hand)
    hand.delete(path="b")
    hand.delete(path="a")
    hand.commit(count=2, plan=["busy", "busy"])
    hand.settle()
    hand.crash()


def test_the_last_two_forks_of_a_deleted_stream_are_deleted_at_once_and_one_deletion_fails(
    hand: FailingCommits,
) -> None:
    hand.create(path="a", data=b"shared", source=None)
    commit_all(hand)
    for path in ("b", "c"):
        hand.create(path=path, data=b"own", source="a")
    commit_all(hand)
    hand.delete(path="a")
    commit_all(hand)
    hand.delete(path="b")
    hand.delete(path="c")
    hand.commit(count=2, plan=["busy", "busy"])
    hand.settle()
    hand.crash()


def test_a_deleted_stream_is_gone_when_its_last_fork_could_not_be_created(hand: FailingCommits) -> None:
    hand.create(path="a", data=b"", source=None)
    commit_all(hand)
    hand.create(path="b", data=b"", source="a")
    hand.delete(path="a")
    hand.commit(count=2, plan=["busy", "busy"])
    hand.settle()


@pytest.mark.slow
def test_what_is_acknowledged_is_kept_and_what_fails_is_not() -> None:
    run_state_machine_as_test(
        FailingCommits, settings=settings(max_examples=EXAMPLES, stateful_step_count=STEPS, database=None)
    )
