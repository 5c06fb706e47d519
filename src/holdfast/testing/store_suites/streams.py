"""The contract of a stream store as tests. Its fixture `reopen` takes a clock, and returns the store opened again:

    class TestMyStreams(StreamSuite):
        @pytest.fixture
        def reopen(self, tmp_path):
            return lambda clock: MyStreams.open(tmp_path / "data", clock=clock)

The suite closes what it opens.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from holdfast.api.errors import Conflict, Gone, InvalidRequest, NotFound
from holdfast.api.errors.threads import Closed, ContentTypeMismatch, ProducerGap, SequenceConflict, StaleEpoch
from holdfast.testing.clock import ManualClock
from holdfast.threads.protocol.framing import SEPARATOR, frame_json
from holdfast.threads.store import (
    Appended,
    AppendRequest,
    Change,
    ForkPoint,
    Keyed,
    Producer,
    StreamConfig,
    StreamStore,
)

JSON = StreamConfig(content_type="application/json")
TEXT = StreamConfig(content_type="text/plain")


Reopen = Callable[[Callable[[], int]], Awaitable[StreamStore]]


async def read_all(store: StreamStore, path: str, start: int = 0, limit: int = 1024) -> bytes:
    """Read everything from a position, piece by piece."""
    pieces = []
    while True:
        piece = await store.read(path, start, limit)
        assert piece.start == start
        assert piece.end == start + len(piece.data)
        pieces.append(piece.data)
        if piece.up_to_date:
            return b"".join(pieces)
        assert piece.data, "a read that is not up to date must make progress"
        start = piece.end


async def append_many(store: StreamStore, path: str, request: AppendRequest) -> Appended:
    return await (await store.append_many(path, request))


@pytest.mark.anyio
class StreamSuite:
    """Subclass it and define a `reopen` fixture."""

    @pytest.fixture
    def clock(self) -> ManualClock:
        return ManualClock()

    @pytest.fixture
    async def store(self, reopen: Reopen, clock: ManualClock) -> AsyncIterator[StreamStore]:
        store = await reopen(clock.now)
        yield store
        await store.close()

    # Creating

    async def test_a_new_stream_is_empty_and_open(self, store: StreamStore) -> None:
        created = await store.create("a", TEXT)
        assert created.new
        assert (created.info.tail, created.info.closed, created.info.content_type) == (0, False, "text/plain")
        assert await read_all(store, "a") == b""

    async def test_creating_the_same_again_changes_nothing(self, store: StreamStore) -> None:
        await store.create("a", TEXT, b"one")
        again = await store.create("a", TEXT, b"two")
        assert not again.new
        assert await read_all(store, "a") == b"one"

    @pytest.mark.parametrize(
        "other",
        [
            JSON,
            StreamConfig(content_type="text/plain", ttl_seconds=60),
            StreamConfig(content_type="text/plain", expires_at=1_900_000_000_000),
            StreamConfig(content_type="text/plain", closed=True),
            StreamConfig(content_type="text/plain", fork=ForkPoint("b", None, 0)),
        ],
    )
    async def test_creating_another_in_its_place_is_a_conflict(self, store: StreamStore, other: StreamConfig) -> None:
        await store.create("b", TEXT)
        await store.create("a", TEXT)
        with pytest.raises(Conflict):
            await store.create("a", other)

    async def test_a_stream_can_be_created_closed(self, store: StreamStore) -> None:
        created = await store.create("a", StreamConfig(content_type="text/plain", closed=True), b"all")
        assert created.info.closed
        with pytest.raises(Closed):
            await store.append("a", AppendRequest(b"more"))

    async def test_what_does_not_exist_is_not_found(self, store: StreamStore) -> None:
        for attempt in (
            lambda: store.head("a"),
            lambda: store.touch("a"),
            lambda: store.read("a", 0, 10),
            lambda: store.delete("a"),
        ):
            with pytest.raises(NotFound):
                await attempt()
        with pytest.raises(NotFound):
            await store.append("a", AppendRequest(b"x"))

    # Appending and reading

    async def test_appends_are_read_in_order_and_from_any_position(self, store: StreamStore) -> None:
        await store.create("a", TEXT)
        tails = [(await store.append("a", AppendRequest(b"%03d" % number))).tail for number in range(50)]
        assert tails == [3 * (number + 1) for number in range(50)]
        assert await read_all(store, "a", limit=10) == b"".join(b"%03d" % number for number in range(50))
        assert await read_all(store, "a", start=tails[19]) == b"".join(b"%03d" % number for number in range(20, 50))

    async def test_concurrent_appends_all_land_whole(self, store: StreamStore) -> None:
        await store.create("a", JSON)
        await asyncio.gather(
            *(store.append("a", AppendRequest(frame_json(b'{"n":%d}' % number))) for number in range(500))
        )
        messages = (await read_all(store, "a", limit=4096)).split(SEPARATOR)[:-1]
        assert sorted(messages) == sorted(b'{"n":%d}' % number for number in range(500))

    @pytest.mark.parametrize("size", [60_000, 131_071, 131_072, 500_000])
    async def test_one_long_message_is_kept_like_any_other(self, reopen: Reopen, clock: ManualClock, size: int) -> None:
        long = frame_json(b'"%b"' % (b"x" * (size - 2)))
        store = await reopen(clock.now)
        await store.create("created", JSON, long)
        await store.create("appended", JSON)
        await store.append("appended", AppendRequest(long))
        await store.close()
        store = await reopen(clock.now)
        for path in ("created", "appended"):
            assert await read_all(store, path) == long
            assert (await store.append(path, AppendRequest(frame_json(b"1")))).tail == len(long) + len(frame_json(b"1"))
        await store.close()

    async def test_a_read_is_about_as_long_as_asked_for_however_long_an_append_was(self, store: StreamStore) -> None:
        await store.create("json", JSON, frame_json(b"[%b]" % b",".join([b"123456"] * 1000)))
        await store.append("json", AppendRequest(frame_json(b"[%b]" % b",".join([b"123456"] * 1000))))
        await store.create("text", TEXT, b"x" * 5000)
        await store.append("text", AppendRequest(b"y" * 5000))
        for path, longest in (("json", 107), ("text", 100)):
            position, sizes = 0, []
            while not (piece := await store.read(path, position, 100)).up_to_date:
                sizes.append(len(piece.data))
                position = piece.end
            assert 100 <= min(sizes) <= max(sizes) <= longest
        assert (await store.read("json", 0, 1)).data == b"123456,\n"
        assert await read_all(store, "json") == b"123456,\n" * 2000
        assert await read_all(store, "text") == b"x" * 5000 + b"y" * 5000

    async def test_a_short_read_of_a_fork_has_no_gap(self, store: StreamStore) -> None:
        await store.create("a", TEXT)
        for letter in (b"a", b"b", b"c"):
            await store.append("a", AppendRequest(letter * 10))
        await store.create("b", StreamConfig(fork=ForkPoint("a", None, 0)))
        await store.append("b", AppendRequest(b"d" * 10))
        assert await read_all(store, "b", limit=10) == b"".join(letter * 10 for letter in (b"a", b"b", b"c", b"d"))

    async def test_a_long_stream_reads_back_byte_for_byte(self, store: StreamStore) -> None:
        await store.create("a", TEXT)
        expected = []
        for number in range(1500):
            piece = b"%d;" % number * (1 + number % 7)
            expected.append(piece)
            await store.append("a", AppendRequest(piece))
        large = b"x" * 300_000
        await store.append("a", AppendRequest(large))
        await store.append("a", AppendRequest(b"end"))
        whole = b"".join([*expected, large, b"end"])
        assert await read_all(store, "a", limit=50_000) == whole
        for start in (1, 999, len(whole) // 2, len(whole) - 4, len(whole)):
            assert await read_all(store, "a", start=start, limit=50_000) == whole[start:]

    async def test_a_read_holds_whole_messages(self, store: StreamStore) -> None:
        await store.create("a", JSON)
        for number in range(600):
            await store.append("a", AppendRequest(frame_json(b'{"n":%d}' % number)))
        position = 0
        while True:
            piece = await store.read("a", position, 100)
            assert piece.data.endswith(SEPARATOR)
            position = piece.end
            if piece.up_to_date:
                break

    async def test_positions_that_were_never_given_out_are_refused(self, store: StreamStore) -> None:
        await store.create("a", JSON)
        await store.append("a", AppendRequest(frame_json(b'{"n":1}')))
        with pytest.raises(InvalidRequest):
            await store.read("a", 3, 100)
        with pytest.raises(InvalidRequest):
            await store.read("a", 10_000, 100)

    async def test_another_content_type_is_refused(self, store: StreamStore) -> None:
        await store.create("a", StreamConfig(content_type="text/plain; charset=utf-8"))
        with pytest.raises(ContentTypeMismatch):
            await store.append("a", AppendRequest(b"{}", content_type="application/json"))
        await store.append("a", AppendRequest(b"x", content_type="TEXT/plain"))

    async def test_stream_seq_must_increase_byte_wise(self, store: StreamStore) -> None:
        await store.create("a", TEXT)
        await store.append("a", AppendRequest(b"1", seq="09"))
        await store.append("a", AppendRequest(b"2", seq="10"))
        for seq in ("10", "09", "1"):
            with pytest.raises(SequenceConflict):
                await store.append("a", AppendRequest(b"3", seq=seq))
        assert await read_all(store, "a") == b"12"

    # Closing

    async def test_append_and_close_is_one_step(self, store: StreamStore) -> None:
        await store.create("a", TEXT)
        appended = await store.append("a", AppendRequest(b"last", close=True))
        assert (appended.tail, appended.closed) == (4, True)
        with pytest.raises(Closed):
            await store.append("a", AppendRequest(b"x"))
        piece = await store.read("a", 0, 100)
        assert (piece.data, piece.closed) == (b"last", True)

    async def test_closing_twice_is_fine(self, store: StreamStore) -> None:
        await store.create("a", TEXT)
        for _ in range(2):
            assert (await store.append("a", AppendRequest(close=True))).closed

    # Producers

    async def test_a_repeated_append_of_a_producer_is_taken_once(self, store: StreamStore) -> None:
        await store.create("a", TEXT)
        for _ in range(2):
            await store.append("a", AppendRequest(b"x", producer=Producer("p", 0, 0)))
        appended = await store.append("a", AppendRequest(b"x", producer=Producer("p", 0, 0)))
        assert appended.duplicate
        assert appended.producer == Producer("p", 0, 0)
        assert await read_all(store, "a") == b"x"

    async def test_a_repeat_in_flight_is_acknowledged_after_the_first_is_durable(self, store: StreamStore) -> None:
        await store.create("a", TEXT)
        first = asyncio.ensure_future(store.append("a", AppendRequest(b"x", producer=Producer("p", 0, 0))))
        second = asyncio.ensure_future(store.append("a", AppendRequest(b"x", producer=Producer("p", 0, 0))))
        await second
        assert first.done()
        assert (await store.head("a")).tail == 1

    async def test_a_gap_of_a_producer_is_refused_by_name(self, store: StreamStore) -> None:
        await store.create("a", TEXT)
        with pytest.raises(ProducerGap):
            await store.append("a", AppendRequest(b"x", producer=Producer("p", 0, 1)))
        await store.append("a", AppendRequest(b"x", producer=Producer("p", 0, 0)))
        with pytest.raises(ProducerGap):
            await store.append("a", AppendRequest(b"x", producer=Producer("p", 0, 2)))

    async def test_a_newer_epoch_fences_the_older(self, store: StreamStore) -> None:
        await store.create("a", TEXT)
        await store.append("a", AppendRequest(b"1", producer=Producer("p", 0, 0)))
        with pytest.raises(InvalidRequest):
            await store.append("a", AppendRequest(b"2", producer=Producer("p", 1, 5)))
        await store.append("a", AppendRequest(b"2", producer=Producer("p", 1, 0)))
        with pytest.raises(StaleEpoch):
            await store.append("a", AppendRequest(b"3", producer=Producer("p", 0, 1)))
        assert await read_all(store, "a") == b"12"

    async def test_a_refused_append_leaves_no_trace(self, store: StreamStore) -> None:
        await store.create("a", TEXT)
        await store.append("a", AppendRequest(b"1", seq="b", producer=Producer("p", 0, 0)))
        with pytest.raises(SequenceConflict):
            await store.append("a", AppendRequest(b"2", seq="a", producer=Producer("p", 0, 1)))
        await store.append("a", AppendRequest(b"2", seq="c", producer=Producer("p", 0, 1)))
        assert await read_all(store, "a") == b"12"

    async def test_the_closing_append_of_a_producer_can_be_repeated(self, store: StreamStore) -> None:
        await store.create("a", TEXT)
        for _ in range(2):
            appended = await store.append("a", AppendRequest(b"x", producer=Producer("p", 0, 0), close=True))
            assert appended.closed
        with pytest.raises(Closed):
            await store.append("a", AppendRequest(b"x", producer=Producer("p", 0, 1)))

    # Dedup keys

    async def test_a_message_whose_key_is_there_is_dropped(self, store: StreamStore) -> None:
        await store.create("a", JSON, keyed=(Keyed("k0", b"0,\n"),))
        await store.append("a", AppendRequest(keyed=(Keyed("k1", b"1,\n"), Keyed("k2", b"2,\n"), Keyed("k1", b"1,\n"))))
        both = [store.append("a", AppendRequest(keyed=(Keyed("k3", b"3,\n"),))) for _ in range(2)]
        await asyncio.gather(*both)
        repeated = await store.append("a", AppendRequest(keyed=(Keyed("k2", b"2,\n"), Keyed("k0", b"0,\n"))))
        assert repeated.duplicate
        assert await read_all(store, "a") == b"0,\n1,\n2,\n3,\n"

    async def test_a_message_of_the_creation_is_not_appended_again(self, store: StreamStore) -> None:
        for path, appends in (("a", 0), ("b", 3)):
            first = AppendRequest(keyed=(Keyed("k0", b"0,\n"), Keyed("k1", b"1,\n")))
            creating = asyncio.ensure_future(store.create(path, JSON, keyed=(Keyed("k0", b"0,\n"),)))
            await asyncio.sleep(0)
            early = [store.append(path, first) for _ in range(appends)]
            await asyncio.gather(creating, *early)
            await store.append(path, first)
            assert await read_all(store, path) == b"0,\n1,\n"

    async def test_a_fork_knows_the_keys_it_shares_and_only_those(self, store: StreamStore) -> None:
        await store.create("a", JSON, keyed=(Keyed("k0", b"0,\n"),))
        await store.create("b", StreamConfig(fork=ForkPoint("a", None, 0)))
        await store.append("a", AppendRequest(keyed=(Keyed("k1", b"1,\n"),)))
        await store.append("b", AppendRequest(keyed=(Keyed("k0", b"0,\n"), Keyed("k1", b"1,\n"))))
        assert await read_all(store, "b") == b"0,\n1,\n"

    async def test_many_messages_are_deduplicated_as_one_is(
        self, store: StreamStore, reopen: Reopen, clock: ManualClock
    ) -> None:
        await store.create("a", JSON, keyed=(Keyed("k05", b"05,\n"),))
        await store.append("a", AppendRequest(keyed=(Keyed("k03", b"03,\n"),)))
        await store.create("b", StreamConfig(fork=ForkPoint("a", None, 0)))
        await store.append("a", AppendRequest(keyed=(Keyed("k01", b"01,\n"),)))
        many = tuple(Keyed(f"k{number:02}", b"%02d,\n" % number) for number in (*range(10), 0, 9))
        both = await asyncio.gather(*(append_many(store, "b", AppendRequest(keyed=many)) for _ in range(2)))
        assert sorted(each.duplicate for each in both) == [False, True]
        expected = b"05,\n03,\n" + b"".join(b"%02d,\n" % number for number in (0, 1, 2, 4, 6, 7, 8, 9))
        assert await read_all(store, "b") == expected
        await store.close()
        again = await reopen(clock.now)
        assert (await append_many(again, "b", AppendRequest(keyed=many))).duplicate
        more = (Keyed("k045", b"45,\n"), *many, Keyed("k99", b"99,\n"))
        assert not (await append_many(again, "b", AppendRequest(keyed=more))).duplicate
        assert await read_all(again, "b") == expected + b"45,\n99,\n"
        assert (await append_many(again, "b", AppendRequest(b"1,\n"))).tail == len(expected) + 11
        await again.close()

    async def test_many_messages_of_a_producer_are_written_once(self, store: StreamStore) -> None:
        await store.create("a", JSON)
        many = AppendRequest(
            keyed=tuple(Keyed(str(number), b"1,\n", fresh=True) for number in range(3)), producer=Producer("p", 0, 0)
        )
        assert [(await append_many(store, "a", many)).duplicate for _ in range(2)] == [False, True]
        assert await read_all(store, "a") == b"1,\n1,\n1,\n"
        with pytest.raises(NotFound):
            await append_many(store, "nowhere", many)

    # Forks

    async def test_a_fork_shares_the_past_and_has_its_own_future(self, store: StreamStore) -> None:
        await store.create("a", TEXT, b"shared")
        fork = await store.create("b", StreamConfig(fork=ForkPoint("a", None, 0)), b"-b")
        assert (fork.info.content_type, fork.info.tail) == ("text/plain", 8)
        await store.append("a", AppendRequest(b"-a"))
        await store.append("b", AppendRequest(b"!"))
        assert await read_all(store, "a") == b"shared-a"
        assert await read_all(store, "b") == b"shared-b!"
        assert await read_all(store, "b", start=3, limit=2) == b"red-b!"

    async def test_forks_of_forks_read_through_every_ancestor(self, store: StreamStore) -> None:
        await store.create("f0", TEXT, b"000")
        for level in range(1, 6):
            await store.create(
                f"f{level}", StreamConfig(fork=ForkPoint(f"f{level - 1}", None, 0)), b"%d%d%d" % ((level,) * 3)
            )
        assert await read_all(store, "f5", limit=2) == b"000111222333444555"
        await store.create("early", StreamConfig(fork=ForkPoint("f5", 4, 0)), b"!")
        assert await read_all(store, "early") == b"0001!"

    async def test_a_fork_begins_where_it_was_told(self, store: StreamStore) -> None:
        await store.create("a", JSON)
        await store.append("a", AppendRequest(frame_json(b"[1,22,333]")))
        await store.create("b", StreamConfig(fork=ForkPoint("a", 0, 2)))
        assert await read_all(store, "b") == b"1,\n22,\n"
        for fork in (ForkPoint("a", 0, 4), ForkPoint("a", 1000, 0), ForkPoint("a", None, 1)):
            with pytest.raises(InvalidRequest):
                await store.create("c", StreamConfig(fork=fork))

    async def test_a_fork_inherits_no_producer_state_and_is_open(self, store: StreamStore) -> None:
        await store.create("a", TEXT)
        await store.append("a", AppendRequest(b"1", seq="z", producer=Producer("p", 3, 0), close=True))
        await store.create("b", StreamConfig(fork=ForkPoint("a", None, 0)))
        await store.append("b", AppendRequest(b"2", seq="a", producer=Producer("p", 0, 0)))
        assert await read_all(store, "b") == b"12"

    async def test_what_cannot_be_forked_is_refused_by_name(self, store: StreamStore) -> None:
        await store.create("a", TEXT)
        with pytest.raises(NotFound):
            await store.create("b", StreamConfig(fork=ForkPoint("none", None, 0)))
        with pytest.raises(Conflict):
            await store.create("b", StreamConfig(content_type="application/json", fork=ForkPoint("a", None, 0)))

    # Deleting

    async def test_a_deleted_stream_is_gone_and_its_path_free(self, store: StreamStore) -> None:
        await store.create("a", TEXT, b"old")
        first = (await store.head("a")).id
        await store.delete("a")
        with pytest.raises(NotFound):
            await store.head("a")
        created = await store.create("a", TEXT, b"new")
        assert created.info.id != first
        assert await read_all(store, "a") == b"new"

    async def test_a_deleted_source_lives_on_in_its_forks_alone(self, store: StreamStore) -> None:
        await store.create("a", TEXT, b"shared")
        await store.create("b", StreamConfig(fork=ForkPoint("a", None, 0)))
        await store.create("c", StreamConfig(fork=ForkPoint("b", None, 0)))
        await store.delete("a")
        await store.delete("b")
        for path in ("a", "b"):
            with pytest.raises(Gone):
                await store.head(path)
            with pytest.raises(Conflict):
                await store.create(path, TEXT)
            with pytest.raises(Conflict):
                await store.create("d", StreamConfig(fork=ForkPoint(path, None, 0)))
        assert await read_all(store, "c") == b"shared"
        await store.delete("c")
        for path in ("a", "b", "c"):
            assert (await store.create(path, TEXT)).new

    async def test_list_paths_shows_what_is_alive(self, store: StreamStore) -> None:
        for path in ("x/1", "x/2", "y"):
            await store.create(path, TEXT)
        await store.delete("x/2")
        assert await store.list_paths() == ["x/1", "y"]
        assert await store.list_paths("x/") == ["x/1"]

    # Expiry

    async def test_a_ttl_slides_with_reads_and_writes_but_not_with_a_look(
        self, store: StreamStore, clock: ManualClock
    ) -> None:
        await store.create("a", StreamConfig(content_type="text/plain", ttl_seconds=10))
        for access in (
            lambda: store.append("a", AppendRequest(b"x")),
            lambda: store.read("a", 0, 10),
            lambda: store.touch("a"),
            lambda: store.append("a", AppendRequest(close=True)),
        ):
            clock.advance(8_000)
            await access()
        clock.advance(8_000)
        await store.head("a")
        clock.advance(3_000)
        with pytest.raises(NotFound):
            await store.head("a")
        assert (await store.create("a", TEXT)).new

    async def test_an_expiry_does_not_slide(self, store: StreamStore, clock: ManualClock) -> None:
        await store.create("a", StreamConfig(content_type="text/plain", expires_at=clock.now() + 5000))
        clock.advance(4_000)
        await store.append("a", AppendRequest(b"x"))
        clock.advance(2_000)
        with pytest.raises(NotFound):
            await store.append("a", AppendRequest(b"x"))

    async def test_a_fork_inherits_an_expiry_unless_it_has_its_own(
        self, store: StreamStore, clock: ManualClock
    ) -> None:
        await store.create("a", StreamConfig(content_type="text/plain", ttl_seconds=10), b"x")
        await store.create("b", StreamConfig(fork=ForkPoint("a", None, 0)))
        await store.create("c", StreamConfig(ttl_seconds=100, fork=ForkPoint("a", None, 0)))
        clock.advance(11_000)
        with pytest.raises((NotFound, Gone)):
            await store.head("a")
        with pytest.raises(NotFound):
            await store.head("b")
        assert await read_all(store, "c") == b"x"

    # Watching

    async def test_a_watcher_sees_every_change_in_order(self, store: StreamStore) -> None:
        await store.create("a", TEXT)
        changes: list[Change] = []
        unwatch = store.watch("a", changes.append)
        await asyncio.gather(*(store.append("a", AppendRequest(b"%d" % number)) for number in range(10)))
        await store.append("a", AppendRequest(b"!", close=True))
        unwatch()
        assert b"".join(change.data or b"" for change in changes) == b"0123456789!"
        assert [change.start for change in changes[1:]] == [change.end for change in changes[:-1]]
        assert changes[-1].closed

    async def test_a_watcher_is_told_of_the_end(self, store: StreamStore) -> None:
        await store.create("a", TEXT)
        changes: list[Change] = []
        store.watch("a", changes.append)
        await store.delete("a")
        assert [change.deleted for change in changes] == [True]

    async def test_what_a_watcher_saw_can_be_read(self, store: StreamStore) -> None:
        await store.create("a", TEXT)
        seen: asyncio.Future[Change] = asyncio.get_running_loop().create_future()
        store.watch("a", seen.set_result)
        await store.append("a", AppendRequest(b"x"))
        change = await seen
        assert (await store.read("a", change.start, 10)).data == b"x"

    async def test_an_observer_sees_every_stream(self, store: StreamStore) -> None:
        changes: list[Change] = []
        stop = store.observe(changes.append)
        await store.create("a", TEXT, b"1")
        await store.create("b", TEXT)
        await store.append("b", AppendRequest(b"2"))
        await store.delete("a")
        stop()
        await store.append("b", AppendRequest(b"3"))
        assert [(change.path, change.data, change.deleted) for change in changes] == [
            ("a", b"1", False),
            ("b", b"", False),
            ("b", b"2", False),
            ("a", b"", True),
        ]

    async def test_callers_that_go_away_leave_nothing_half_done(self, store: StreamStore) -> None:
        changes: list[Change] = []
        store.observe(changes.append)
        creating = asyncio.ensure_future(store.create("a", TEXT, b"x"))
        await asyncio.sleep(0)
        creating.cancel()
        await asyncio.gather(creating, return_exceptions=True)
        await store.create("b", TEXT)  # written after the creation
        there = "a" in await store.list_paths()
        assert [change.path for change in changes] == (["a", "b"] if there else ["b"])
        deleting = asyncio.ensure_future(store.delete("b"))
        await asyncio.sleep(0)
        deleting.cancel()
        await asyncio.gather(deleting, return_exceptions=True)
        await store.create("c", TEXT)
        assert ("b" in await store.list_paths()) != any(change.deleted for change in changes)

    # Restarts

    async def test_everything_survives_a_restart(self, reopen: Reopen, clock: ManualClock) -> None:
        store = await reopen(clock.now)
        await store.create("a", JSON, keyed=(Keyed("k", b"0,\n"),))
        for number in range(700):
            await store.append(
                "a", AppendRequest(frame_json(b"%d" % number), seq=f"{number:05d}", producer=Producer("p", 2, number))
            )
        await store.create("b", StreamConfig(fork=ForkPoint("a", None, 0), ttl_seconds=100), b"1,\n")
        await store.create("c", TEXT)
        await store.append("c", AppendRequest(b"x", producer=Producer("q", 0, 0), close=True))
        whole = await read_all(store, "b", limit=100_000)
        clock.advance(60_000)
        await store.touch("b")
        await store.delete("a")
        await store.close()

        store = await reopen(clock.now)
        clock.advance(60_000)
        assert await read_all(store, "b", limit=100_000) == whole
        with pytest.raises(Gone):
            await store.head("a")
        assert (await store.append("c", AppendRequest(b"x", producer=Producer("q", 0, 0), close=True))).duplicate
        assert (await store.append("b", AppendRequest(keyed=(Keyed("k", b"0,\n"),)))).duplicate
        await store.delete("b")
        await store.create("a", TEXT)
        await store.close()

    async def test_producers_and_sequences_survive_a_restart(self, reopen: Reopen, clock: ManualClock) -> None:
        store = await reopen(clock.now)
        await store.create("a", TEXT)
        await store.append("a", AppendRequest(b"1", seq="m", producer=Producer("p", 1, 0)))
        await store.close()
        store = await reopen(clock.now)
        assert (await store.append("a", AppendRequest(b"1", seq="m", producer=Producer("p", 1, 0)))).duplicate
        with pytest.raises(StaleEpoch):
            await store.append("a", AppendRequest(b"2", producer=Producer("p", 0, 1)))
        with pytest.raises(SequenceConflict):
            await store.append("a", AppendRequest(b"2", seq="m"))
        assert (await store.append("a", AppendRequest(b"2", seq="n", producer=Producer("p", 1, 1)))).tail == 2
        await store.close()
