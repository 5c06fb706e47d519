"""The warm pool: how large it is, what it hands out, and what becomes of what nobody takes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from holdfast.api.box.box import Box, Liveness
from holdfast.api.box.network import Network, NetworkPolicy
from holdfast.api.box.records import BoxState, Owner
from holdfast.api.box.spec import BoxSpec, HostMount, Lifetime, VolumeMount
from holdfast.api.errors.boxes import BoxError, BoxUnreachable, CreateFailed, ImageNotFound
from holdfast.api.images import Image, ImageConfig
from holdfast.boxes.capabilities import Capability
from holdfast.boxes.images import ImageStore
from holdfast.boxes.labels import KEY, NODE, POOL, SPEC, TENANT
from holdfast.boxes.provider import Provider
from holdfast.boxes.rows import BoxFilter
from holdfast.boxes.service.boxes import Boxes
from holdfast.boxes.service.creation import Creation
from holdfast.boxes.service.pool_rules import (
    Demand,
    PoolDemand,
    PoolSettings,
    allot,
    can_be_pooled,
    furnishing_of,
    made_ahead,
)
from holdfast.storage.sqlite.boxes import SqliteBoxes
from holdfast.testing.clock import ManualClock
from holdfast.testing.dummy import CAPABILITIES, DummyProvider

pytestmark = pytest.mark.anyio

SPEC_A = BoxSpec(provider="dummy")
SPEC_B = BoxSpec(provider="dummy", env={"B": "b"})
MINUTE = 60_000
Serve = Callable[..., Boxes]


@pytest.fixture
async def serve(rows: SqliteBoxes, provider: DummyProvider, clock: ManualClock) -> AsyncIterator[Serve]:
    """A service with a pool; its end is the test's, or ours. One that crashed leaves everything as it is."""
    made: list[Boxes] = []

    def serve(count: int = 10, **settings: object) -> Boxes:
        given = PoolSettings(boxes=count, **{"quiet_seconds": 0.0, "memory": lambda: 1.0, **settings})  # type: ignore[arg-type]
        boxes = Boxes(rows, {"dummy": provider}, node="here", clock=clock.now, pool=given)
        made.append(boxes)
        return boxes

    yield serve
    for boxes in made:
        await boxes.close()


async def fill(boxes: Boxes, spec: BoxSpec, count: int) -> None:
    await boxes.pool.keep(spec, count)
    await settle(boxes)


async def settle(boxes: Boxes) -> None:
    async with asyncio.timeout(240):
        await boxes.pool.settled()


async def ahead(provider: Provider) -> list[str]:
    return [info.id for info in await provider.find() if POOL in info.labels]


async def crash(boxes: Boxes, clock: ManualClock) -> None:
    """The process is gone, and its leases have expired; what it made is there."""
    if boxes.pool._worker is not None:
        boxes.pool._worker.cancel()
        await asyncio.gather(boxes.pool._worker, return_exceptions=True)
    for pooled in boxes.pool._pooled.values():
        pooled.ready.clear()
    await boxes.one_shots.close()
    await boxes.leases.close()
    clock.advance(MINUTE)


# --- how large it is ---


def test_past_demand_counts_half_after_each_half_life() -> None:
    demand = Demand().taken(0, 60).taken(0, 60)
    assert [round(demand.now(minutes * MINUTE, 60), 2) for minutes in range(4)] == [2.0, 1.0, 0.5, 0.25]


@pytest.mark.parametrize(
    ("demands", "settings", "allotted"),
    [
        ({"a": PoolDemand(1.0)}, PoolSettings(boxes=10), {"a": 0}),  # asked for once
        ({"a": PoolDemand(1.9)}, PoolSettings(boxes=10), {"a": 2}),
        ({"a": PoolDemand(30.0)}, PoolSettings(boxes=10), {"a": 10}),
        ({"a": PoolDemand(30.0)}, PoolSettings(boxes=10, per_spec=4), {"a": 4}),
        ({"a": PoolDemand(5.0), "b": PoolDemand(7.0)}, PoolSettings(boxes=10), {"a": 5, "b": 5}),
        ({"a": PoolDemand(30.0), "b": PoolDemand(29.0)}, PoolSettings(boxes=8), {"a": 4, "b": 4}),  # no spec takes all
        ({"a": PoolDemand(30.0), "b": PoolDemand(1.9)}, PoolSettings(boxes=8), {"a": 6, "b": 2}),
        (
            {"a": PoolDemand(9.0), "b": PoolDemand(8.0), "c": PoolDemand(7.0)},
            PoolSettings(boxes=2),
            {"a": 1, "b": 1, "c": 0},
        ),
        ({"a": PoolDemand(0.5, warm=True), "b": PoolDemand(0.2, warm=True)}, PoolSettings(boxes=10), {"a": 1, "b": 0}),
        ({"a": PoolDemand(0.0, kept=3), "b": PoolDemand(9.0)}, PoolSettings(boxes=10), {"a": 3, "b": 7}),
        ({"a": PoolDemand(9.0, kept=3)}, PoolSettings(boxes=0), {"a": 0}),
    ],
)
def test_boxes_are_allotted_by_demand_within_bounds(
    demands: dict[str, PoolDemand], settings: PoolSettings, allotted: dict[str, int]
) -> None:
    assert allot(demands, settings) == allotted


def test_what_is_found_when_a_box_is_made_keeps_it_out_of_the_pool() -> None:
    can = {Capability.POOL}
    assert can_be_pooled(SPEC_A, can)
    assert not can_be_pooled(SPEC_A, set())
    assert can_be_pooled(replace(SPEC_A, volumes=(VolumeMount("v", "/mnt/v"),)), can)
    assert not can_be_pooled(replace(SPEC_A, volumes=(VolumeMount("v", "/mnt/v", subpath="inner"),)), can)
    assert not can_be_pooled(replace(SPEC_A, mounts=(HostMount("/srv", "/mnt/v"),)), can)


def test_a_box_made_ahead_knows_nothing_of_who_asked_for_its_like() -> None:
    theirs = replace(
        SPEC_A,
        labels={"who": "they"},
        lifetime=Lifetime.ONE_SHOT,
        idle_seconds=7,
        network=NetworkPolicy(Network.ALLOW, ("example.org",)),
    )
    live = {Capability.NETWORK_LIVE, Capability.NETWORK_NONE}
    assert made_ahead(theirs, live) == SPEC_A
    assert made_ahead(theirs, set()) == replace(SPEC_A, network=theirs.network)
    assert made_ahead(theirs, live).hash == theirs.hash


async def test_a_spec_that_was_asked_for_once_is_not_pooled_and_one_asked_for_twice_is(
    serve: Serve, provider: DummyProvider
) -> None:
    boxes = serve()
    await boxes.create(SPEC_A)
    await boxes.create(SPEC_B)
    async with asyncio.timeout(240):
        await boxes.pool.settled()
    assert await ahead(provider) == []
    await boxes.create(SPEC_A)
    async with asyncio.timeout(240):
        await boxes.pool.settled()
    assert len(await ahead(provider)) == 2
    assert boxes.pool.statistics().misses == 3


async def test_what_nobody_asks_for_any_more_is_removed(
    serve: Serve, provider: DummyProvider, clock: ManualClock
) -> None:
    boxes = serve()
    for _ in range(4):
        await boxes.create(SPEC_A)
    async with asyncio.timeout(240):
        await boxes.pool.settled()
    assert len(await ahead(provider)) == 4
    clock.advance(MINUTE)
    await settle(boxes)
    assert len(await ahead(provider)) == 2
    clock.advance(10 * MINUTE)
    await settle(boxes)
    assert await ahead(provider) == []
    assert boxes.pool.statistics().size == 0


async def test_no_box_is_made_ahead_where_memory_is_short_and_all_go_where_it_is_very_short(
    serve: Serve, provider: DummyProvider
) -> None:
    free = 1.0
    boxes = serve(memory=lambda: free)
    await fill(boxes, SPEC_A, 3)
    free = 0.06
    await boxes.create(SPEC_A)
    await fill(boxes, SPEC_A, 3)
    assert len(await ahead(provider)) == 2
    free = 0.04
    await settle(boxes)
    assert await ahead(provider) == []


async def test_none_is_made_ahead_while_somebody_waits_for_a_box(serve: Serve, provider: DummyProvider) -> None:
    boxes = serve(quiet_seconds=0.01)
    waiting, going_on = asyncio.Event(), asyncio.Event()

    async def hold() -> None:
        provider.at.pop("create.half")
        waiting.set()
        await going_on.wait()

    provider.at["create.half"] = hold
    making = asyncio.ensure_future(boxes.create(SPEC_B))
    await waiting.wait()
    await boxes.pool.keep(SPEC_A, 1)
    for _ in range(20):
        await asyncio.sleep(0.001)
    assert provider.calls["create"] == 1
    going_on.set()
    await making
    await fill(boxes, SPEC_A, 1)
    assert provider.calls["create"] == 2


async def test_a_spec_that_cannot_be_made_does_not_keep_others_out(serve: Serve, provider: DummyProvider) -> None:
    boxes = serve()
    provider.fail_next("create", CreateFailed("no"))
    pooled = await boxes.pool._pooled_of(SPEC_B, provider)
    assert pooled is not None
    pooled.demand = Demand(5.0, boxes.clock())
    with pytest.raises(CreateFailed):
        await boxes.pool._make_one(pooled)
    assert boxes.pool._most_needy() is None
    await fill(boxes, SPEC_A, 2)
    assert len(await ahead(provider)) == 2


# --- what it hands out ---


async def test_a_box_of_the_pool_is_a_box_like_any_other(
    serve: Serve, provider: DummyProvider, clock: ManualClock
) -> None:
    boxes = serve()
    await fill(boxes, SPEC_A, 1)
    (id,) = await ahead(provider)
    clock.advance(5 * MINUTE)
    theirs = replace(SPEC_A, labels={"mine": "yes"}, lifetime=Lifetime.EPHEMERAL, idle_seconds=90)
    row = await boxes.create(theirs, owner=Owner(thread="t-1"))
    assert row.id == id
    assert (row.state, row.spec, row.created_at, row.holder) == (BoxState.RUNNING, theirs, clock.now(), None)
    assert await boxes.get(id) == row
    info = (await provider.find({TENANT: "default"}))[0]
    assert info.labels == row.labels
    assert info.labels == {
        "mine": "yes", TENANT: "default", NODE: "here", SPEC: SPEC_A.hash, "holdfast.owner.thread": "t-1"
    }  # fmt: skip
    assert (info.spec, info.created_at) == (theirs, row.created_at)
    async with await boxes.open(id) as box:
        assert (await box.exec(["echo", "works"])).stdout == b"works\n"
    assert (boxes.pool.statistics().hits, boxes.pool.statistics().misses) == (1, 0)
    await boxes.delete(id)
    assert await provider.probe(id) is Liveness.GONE


async def test_acquire_takes_from_the_pool_and_explicit_ids_and_restores_do_not(
    serve: Serve, provider: DummyProvider
) -> None:
    boxes = serve()
    await fill(boxes, SPEC_A, 1)
    (id,) = await ahead(provider)
    named = await boxes.create(SPEC_A, id="b-mine")
    restored = await boxes.restore((await boxes.snapshot(named.id)).id)
    assert await ahead(provider) == [id]
    acquired = await boxes.acquire("key", SPEC_A)
    assert acquired.row.id == id != restored.id
    assert (await provider.find({KEY: "key"}))[0].id == id


async def test_a_hundred_who_ask_at_once_get_a_hundred_boxes(serve: Serve, provider: DummyProvider) -> None:
    boxes = serve(100)
    await fill(boxes, SPEC_A, 100)
    made = await asyncio.gather(*(boxes.create(SPEC_A) for _ in range(100)))
    assert len({row.id for row in made}) == 100
    assert boxes.pool.statistics().hits == 100
    page = await boxes.list(BoxFilter(limit=1000))
    assert {row.id for row in page.rows} == {row.id for row in made}


async def test_a_box_is_not_given_out_twice_where_two_processes_know_of_it(
    serve: Serve, provider: DummyProvider
) -> None:
    first, second = serve(), serve()
    await fill(first, SPEC_A, 3)
    pooled = await second.pool._pooled_of(SPEC_A, provider)
    assert pooled is not None
    pooled.ready.extend(await ahead(provider))
    made = await asyncio.gather(*(boxes.create(SPEC_A) for boxes in (first, second) for _ in range(3)))
    assert len({row.id for row in made}) == 6
    assert {row.id for row in made} <= {info.id for info in await provider.find()}


async def test_a_box_that_died_in_the_pool_is_removed_and_another_is_given(
    serve: Serve, provider: DummyProvider
) -> None:
    boxes = serve()
    await fill(boxes, SPEC_A, 2)
    dead, alive = await ahead(provider)
    async with await provider.attach(dead) as box:
        await box.stop()
    assert (await boxes.create(SPEC_A)).id == alive
    assert await provider.probe(dead) is Liveness.GONE


async def test_where_the_whole_pool_fails_a_box_is_made_the_slow_way(serve: Serve, provider: DummyProvider) -> None:
    boxes = serve()
    await fill(boxes, SPEC_A, 5)
    for _ in range(5):
        provider.fail_next("hand_over.done", BoxUnreachable("it hangs"))
    known = set(await ahead(provider))
    row = await boxes.create(SPEC_A)
    assert row.id not in known
    assert row.state is BoxState.RUNNING


async def test_a_create_that_is_cancelled_while_it_is_handed_a_box_leaves_nothing(
    serve: Serve, provider: DummyProvider
) -> None:
    boxes = serve()
    await fill(boxes, SPEC_A, 1)
    (id,) = await ahead(provider)
    reached, going_on = asyncio.Event(), asyncio.Event()

    async def hold() -> None:
        reached.set()
        await going_on.wait()

    provider.at["hand_over.done"] = hold
    creating = asyncio.ensure_future(boxes.create(SPEC_A))
    await reached.wait()
    creating.cancel()
    going_on.set()
    with pytest.raises(asyncio.CancelledError):
        await creating
    assert await provider.probe(id) is Liveness.GONE
    assert (await boxes.list(BoxFilter())).rows == ()


# --- what is out of date ---


class Shelf(ImageStore):
    """Images that are nothing but names."""

    def __init__(self, **digests: str) -> None:
        self.digests = digests

    async def list(self) -> list[Image]:
        raise NotImplementedError

    async def get(self, name: str) -> Image:
        try:
            return Image(name, self.digests[name], (), 0, 0)
        except KeyError:
            raise ImageNotFound(f"there is no image {name}") from None

    async def import_archive(self, name: str, archive: AsyncIterable[bytes]) -> Image:
        raise NotImplementedError

    async def from_snapshot(
        self, snapshot: str, name: str, *, config: ImageConfig | None = None, labels: Mapping[str, str] | None = None
    ) -> Image:
        raise NotImplementedError

    async def remove(self, name: str) -> int:
        raise NotImplementedError


async def test_boxes_of_an_image_that_was_replaced_are_never_handed_out(serve: Serve, provider: DummyProvider) -> None:
    provider.capabilities = CAPABILITIES | {Capability.IMAGES}
    provider.images = images = Shelf(mine="sha256:1")
    boxes = serve()
    spec = replace(SPEC_A, image="mine")
    await fill(boxes, spec, 2)
    old = await ahead(provider)
    images.digests["mine"] = "sha256:2"
    row = await boxes.create(spec)
    assert row.id not in old
    assert not set(old) & {info.id for info in await provider.find()}
    await fill(boxes, spec, 2)
    del images.digests["mine"]
    await settle(boxes)
    assert await ahead(provider) == []


async def test_a_volume_that_only_boxes_of_the_pool_mount_can_be_deleted(serve: Serve, provider: DummyProvider) -> None:
    boxes = serve()
    await boxes.create_volume("shared", "dummy")
    await fill(boxes, replace(SPEC_A, volumes=(VolumeMount("shared", "/mnt/shared"),)), 2)
    await boxes.delete_volume("shared", "dummy")
    assert await ahead(provider) == []


async def test_pruning_empties_the_pool_and_so_does_closing(serve: Serve, provider: DummyProvider) -> None:
    free = 1.0
    boxes = serve(memory=lambda: free)
    await fill(boxes, SPEC_A, 2)
    free = 0.0
    await boxes.prune()
    assert await ahead(provider) == []
    free = 1.0
    await fill(boxes, SPEC_A, 2)
    kept = await boxes.create(SPEC_A)
    await boxes.close()
    assert [info.id for info in await provider.find()] == [kept.id]


# --- what a dead process leaves ---


async def test_the_next_server_takes_up_the_pool_of_one_that_died(
    serve: Serve, provider: DummyProvider, clock: ManualClock
) -> None:
    first = serve()
    await fill(first, SPEC_A, 2)
    left = await ahead(provider)
    await crash(first, clock)
    second = serve()
    await second.sweep()
    assert await ahead(provider) == left
    assert second.pool.statistics().size == 2
    assert (await second.create(SPEC_A)).id == left[0]


async def test_a_server_without_a_pool_and_one_with_another_edition_remove_what_one_that_died_left(
    serve: Serve, provider: DummyProvider, clock: ManualClock
) -> None:
    for count, edition in ((0, ""), (10, "newer")):
        first = serve()
        provider.edition = ""
        await fill(first, SPEC_A, 2)
        await crash(first, clock)
        provider.edition = edition
        report = await serve(count).sweep()
        assert len(report.leftovers) == 2
        assert await provider.find() == []


async def test_a_server_that_ends_removes_what_one_that_died_left_and_no_sweep_has_seen(
    serve: Serve, provider: DummyProvider, clock: ManualClock
) -> None:
    first = serve()
    await fill(first, SPEC_A, 2)
    await crash(first, clock)
    second = serve()
    await second.join()
    await second.close()
    assert await provider.find() == []


async def test_a_server_that_ends_leaves_the_pool_of_one_that_lives(serve: Serve, provider: DummyProvider) -> None:
    first, second = serve(), serve()
    await fill(first, SPEC_A, 2)
    left = await ahead(provider)
    await second.join()
    await second.close()
    assert await ahead(provider) == left


async def test_the_pool_of_a_process_that_lives_is_left_alone(serve: Serve, provider: DummyProvider) -> None:
    first, second = serve(), serve()
    await fill(first, SPEC_A, 2)
    left = await ahead(provider)
    for boxes in (first, second, second):
        assert (await boxes.sweep()).leftovers == ()
    assert await ahead(provider) == left
    assert (first.pool.statistics().size, second.pool.statistics().size) == (2, 0)


async def test_a_box_that_was_handed_over_before_a_power_cut_is_its_rows(
    serve: Serve, provider: DummyProvider, clock: ManualClock, tmp_path: Path
) -> None:
    first = serve()
    await fill(first, SPEC_A, 1)
    (id,) = await ahead(provider)
    record = tmp_path / "dummy" / "boxes" / id / "box.json"
    before = record.read_bytes()
    row = await first.create(SPEC_A)
    record.write_bytes(before)
    await crash(first, clock)
    second = serve()
    await second.sweep()
    (info,) = [info for info in await provider.find() if info.id == id]
    assert info.labels == row.labels
    assert id not in await ahead(provider)
    assert (await second.get(id)).state is BoxState.RUNNING


async def test_a_box_that_was_handed_over_and_has_no_row_is_removed(
    serve: Serve, provider: DummyProvider, clock: ManualClock, rows: SqliteBoxes, monkeypatch: pytest.MonkeyPatch
) -> None:
    boxes = serve()
    await fill(boxes, SPEC_A, 1)
    (id,) = await ahead(provider)

    async def fails(_: object) -> None:
        raise BoxError("the disk is full")

    async def dies(*_: object) -> None:
        return None

    with monkeypatch.context() as patch:
        patch.setattr(rows, "insert", fails)
        patch.setattr(Creation, "undo", dies)
        with pytest.raises(BoxError, match="full"):
            await boxes.create(SPEC_A)
    assert await provider.probe(id) is Liveness.LIVE
    clock.advance(2 * MINUTE)
    await boxes.sweep()
    assert await provider.probe(id) is Liveness.GONE


# --- what is started ahead ---


async def test_what_is_started_ahead_is_for_those_who_want_it_alone(serve: Serve, provider: DummyProvider) -> None:
    furnished: list[str] = []

    async def furnish(box: Box) -> None:
        furnished.append(box.id)

    boxes = serve(furnishings={"kernel": furnish})
    wanting = replace(SPEC_A, labels={"kernel": "mine"})
    await fill(boxes, SPEC_A, 1)
    assert furnished == []
    await fill(boxes, wanting, 1)
    assert len(furnished) == 1
    plain, kernel = await boxes.create(SPEC_A), await boxes.create(wanting)
    assert plain.id not in furnished
    assert kernel.id == furnished[0]
    assert not [name for name in (await provider.find({"kernel": "mine"}))[0].labels if name.startswith(POOL)]


async def test_a_box_that_is_told_of_its_network_later_has_nothing_started_ahead() -> None:
    asked = replace(SPEC_A, labels={"kernel": ""}, network=NetworkPolicy(Network.OPEN))
    live = CAPABILITIES | {Capability.NETWORK_LIVE, Capability.NETWORK_NONE}
    assert furnishing_of(asked, live, ["kernel"]) is None
    assert furnishing_of(replace(asked, network=NetworkPolicy()), live, ["kernel"]) == "kernel"
    assert furnishing_of(asked, CAPABILITIES - {Capability.NETWORK_LIVE}, ["kernel"]) == "kernel"


async def test_a_box_in_which_nothing_can_be_started_is_given_out_as_it_is(
    serve: Serve, provider: DummyProvider, caplog: pytest.LogCaptureFixture
) -> None:
    async def furnish(box: Box) -> None:
        raise RuntimeError("no Python")

    boxes = serve(furnishings={"kernel": furnish})
    wanting = replace(SPEC_A, labels={"kernel": "mine"})
    await fill(boxes, wanting, 1)
    [id] = await ahead(provider)
    assert (await boxes.create(wanting)).id == id
    assert "no Python" in caplog.text


@pytest.mark.parametrize("known", [True, False])
async def test_a_furnished_box_of_a_process_that_died_is_taken_up_by_who_knows_what_is_in_it(
    serve: Serve, provider: DummyProvider, clock: ManualClock, known: bool
) -> None:
    async def furnish(box: Box) -> None:
        pass

    wanting = replace(SPEC_A, labels={"kernel": "mine"})
    first = serve(furnishings={"kernel": furnish})
    await fill(first, wanting, 1)
    [id] = await ahead(provider)
    await crash(first, clock)
    second = serve(furnishings={"kernel": furnish} if known else {})
    await second.sweep()
    assert (await second.create(SPEC_A)).id != id
    assert ((await second.create(wanting)).id == id) == known


# --- boxes that start from a snapshot ---


async def snapshot_of(boxes: Boxes, content: bytes) -> str:
    row = await boxes.create(SPEC_A, id=f"source-{content.decode()}")
    async with await boxes.open(row.id) as box:
        await box.files.write("made", content)
    return (await boxes.snapshot(row.id)).id


async def content_of(boxes: Boxes, id: str) -> bytes | None:
    async with await boxes.open(id) as box:
        return await box.files.read("made") if await box.files.exists("made") else None


async def acquire(boxes: Boxes, key: str, start: str | None) -> str:
    return (await boxes.acquire(key, SPEC_A, owner=Owner(), timeout=10, start=start)).row.id


async def test_boxes_that_start_from_a_snapshot_are_pooled_apart_from_all_others(
    serve: Serve, provider: DummyProvider
) -> None:
    boxes = serve()
    one, two = await snapshot_of(boxes, b"one"), await snapshot_of(boxes, b"two")
    for number, start in enumerate((one, one, two, two, None, None)):
        await acquire(boxes, f"first-{number}", start)
    await settle(boxes)
    ready = set(await ahead(provider))
    assert len(ready) == 6
    before = boxes.pool.statistics().hits
    for number, (start, content) in enumerate(((None, None), (two, b"two"), (one, b"one"))):
        id = await acquire(boxes, f"then-{number}", start)
        assert id in ready
        assert await content_of(boxes, id) == content
        assert (await boxes.get(id)).snapshot == start
    assert boxes.pool.statistics().hits == before + 3


async def test_the_pool_of_a_snapshot_that_is_gone_is_emptied(serve: Serve, provider: DummyProvider) -> None:
    boxes = serve()
    one = await snapshot_of(boxes, b"one")
    for number in range(2):
        await acquire(boxes, f"key-{number}", one)
    await settle(boxes)
    assert len(await ahead(provider)) == 2
    await provider.delete_snapshot(one)
    await settle(boxes)
    assert await ahead(provider) == []


async def test_what_a_dead_process_restored_ahead_is_taken_up_for_its_snapshot_alone(
    serve: Serve, provider: DummyProvider, clock: ManualClock
) -> None:
    first = serve()
    one = await snapshot_of(first, b"one")
    for number in range(2):
        await acquire(first, f"key-{number}", one)
    await settle(first)
    left = await ahead(provider)
    assert len(left) == 2
    await crash(first, clock)
    second = serve()
    await second.sweep()
    plain = await acquire(second, "plain", None)
    assert plain not in left
    assert await content_of(second, plain) is None
    restored = await acquire(second, "restored", one)
    assert restored in left
    assert await content_of(second, restored) == b"one"
