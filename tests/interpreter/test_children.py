"""Children of an interpreter: their boxes, how many there may be, and what is kept of them."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from holdfast.api.box.box import Box
from holdfast.api.box.spec import BoxSpec, VolumeMount
from holdfast.api.errors.boxes import BoxError, ProviderRefused, Unsupported
from holdfast.api.errors.interpreters import InvalidInterpreter, TooManyBoxes, TooManyChildren
from holdfast.interpreter.bridge.children import (
    BoxSlot,
    BoxSlots,
    ChildLimits,
    Children,
    Origin,
    Parent,
    child_mount,
    child_spec,
    refusal,
)
from holdfast.interpreter.client_host import ClientHost
from holdfast.interpreter.host import AcquiredBox
from holdfast.interpreter.kernel.kernel import Kernel
from holdfast.interpreter.workspace.volumes import FOLDERS, MEMORY, mount, with_volume

pytestmark = pytest.mark.anyio


# --- how many ---


async def turns() -> None:
    """Until everybody who can go on has."""
    for _ in range(20):
        await asyncio.sleep(0)


async def test_who_comes_first_gets_a_slot_first_and_who_goes_away_holds_up_nobody() -> None:
    slots = BoxSlots(2, 60.0)
    first, second = await slots.take(), await slots.take()
    got: list[int] = []

    async def come(number: int) -> BoxSlot:
        slot = await slots.take()
        got.append(number)
        return slot

    waiting = [asyncio.create_task(come(number)) for number in range(4)]
    await turns()
    assert (slots.held, slots.waiting, got) == (2, 4, [])
    waiting[1].cancel()
    await asyncio.gather(waiting[1], return_exceptions=True)
    first.release()
    first.release()
    await turns()
    assert got == [0], "one place, one guest, however often it is given back"
    second.release()
    (await waiting[0]).release()
    await turns()
    assert got == [0, 2, 3]
    for task in waiting[2:]:
        (await task).release()
    assert (slots.held, slots.waiting) == (0, 0)


async def test_one_that_is_given_up_at_the_moment_it_comes_is_not_lost() -> None:
    slots = BoxSlots(1, 60.0)
    held = await slots.take()
    task = asyncio.create_task(slots.take())
    await turns()
    held.release()  # the turn is given
    task.cancel()  # and not taken
    await asyncio.gather(task, return_exceptions=True)
    assert task.cancelled()
    assert slots.held == 0
    (await slots.take()).release()


async def test_patience_ends_with_an_error_that_says_what_to_do() -> None:
    slots = BoxSlots(1, 0.01)
    held = await slots.take()
    with pytest.raises(TooManyBoxes, match=r"none became free within 0.01 s") as raised:
        await slots.take()
    assert raised.value.hint is not None
    assert slots.waiting == 0
    held.release()
    (await slots.take()).release()


async def test_who_would_wait_for_ever_is_told_at_once() -> None:
    slots = BoxSlots(2, 3600.0)
    one, two = await slots.take(), await slots.take()
    below_one = asyncio.create_task(slots.take(one))
    await turns()
    with pytest.raises(TooManyBoxes, match="all 2 boxes of children wait for children of their own"):
        await slots.take(two)
    two.release()  # it does without
    granted = await below_one
    assert one.waiting == two.waiting == 0
    granted.release()
    one.release()
    assert slots.held == 0


@pytest.mark.parametrize(
    ("depth", "children", "limits", "told"),
    [
        (0, 0, ChildLimits(), None),
        (1, 7, ChildLimits(), None),
        (2, 0, ChildLimits(), "level 2 of 2"),
        (0, 0, ChildLimits(depth=0), "level 0 of 0"),
        (0, 8, ChildLimits(), "8 children already"),
        (0, 0, ChildLimits(breadth=0), "0 children already"),
    ],
)
def test_depth_and_breadth_are_limited(depth: int, children: int, limits: ChildLimits, told: str | None) -> None:
    refused = refusal(depth, children, limits)
    assert (refused is None) == (told is None)
    if refused is not None and told is not None:
        assert told in refused.message
        assert refused.hint


def test_limits_that_cannot_be_are_refused() -> None:
    for wrong in ({"boxes": 0}, {"depth": -1}, {"breadth": -1}, {"patience": float("nan")}):
        with pytest.raises(InvalidInterpreter):
            ChildLimits(**wrong)


def test_a_child_has_its_own_part_of_what_its_parent_has_of_the_volume() -> None:
    spec = with_volume(BoxSpec(volumes=(VolumeMount("cache", "/cache"),)), "team")
    child = child_spec(spec, "i-1")
    assert child.volumes == (VolumeMount("cache", "/cache"), mount("team", "children/i-1"))
    assert child_spec(child, "i-2").volumes[1] == mount("team", "children/i-1/children/i-2")
    assert child_mount(mount("team", "part"), "i-3") == mount("team", "part/children/i-3")
    assert child_spec(BoxSpec(), "i-4").volumes == ()


# --- their boxes ---


async def keys(host: ClientHost) -> set[str | None]:
    return {each.key async for each in host.client.boxes.list()}


async def test_without_a_volume_a_child_is_a_fork_of_its_parent_and_a_context_of_its_own(
    host: ClientHost, spec: BoxSpec
) -> None:
    parent = (await host.acquire("p1", spec)).box
    kernels = await Kernel.start(parent)
    context = await kernels.context()
    await context.execute("open('data.txt', 'w').write('of the parent'); x = 1")
    children = Children(host)
    root = Parent("i-root", parent)
    async with await children.build_child(root) as child:
        assert (child.origin, child.depth, child.box.id != parent.id) == (Origin.FORK, 1, True)
        own = await Kernel.start(child.box)
        there = await own.context()
        assert (await there.execute("open('data.txt').read(), 'x' in globals()")).value == ("of the parent", False)
        await there.execute("open('data.txt', 'w').write('of the child')")
        await own.end()
        assert (root.children, children.slots.held) == (1, 1)
        assert f"interpreter/{child.id}" in await keys(host)
    await child.close()
    assert (root.children, children.slots.held) == (0, 0)
    assert f"interpreter/{child.id}" not in await keys(host)
    assert (await context.execute("open('data.txt').read(), x")).value == ("of the parent", 1), "it went on meanwhile"
    await kernels.end()
    await host.delete(parent)


async def test_with_a_volume_each_has_its_own_part_and_the_parent_sees_all(host: ClientHost, spec: BoxSpec) -> None:
    await host.ensure_volume("team", spec.provider)
    parent = (await host.acquire("p2", with_volume(spec, "team"))).box
    await parent.files.write(f"{MEMORY}/memory/plan.txt", b"secret of the parent")
    children = Children(host)
    root = Parent("i-root", parent)
    first, second = await asyncio.gather(children.build_child(root), children.build_child(root))
    assert first.origin is second.origin is Origin.VOLUME
    for child in (first, second):
        there = {each.name for each in await child.box.files.list(MEMORY)}
        assert there == set(FOLDERS), "nothing of the parent's, nothing of the other's"
        await child.box.files.write(f"{MEMORY}/artifacts/found.txt", child.id.encode())
    grandchild = await children.build_child(first)
    assert grandchild.depth == 2
    await grandchild.box.files.write(f"{MEMORY}/buffers/x", b"deep")
    for child in (first, second):
        assert await parent.files.read(f"{MEMORY}/children/{child.id}/artifacts/found.txt") == child.id.encode()
    assert await first.box.files.read(f"{MEMORY}/children/{grandchild.id}/buffers/x") == b"deep"
    with pytest.raises(TooManyChildren):
        await children.build_child(grandchild)
    for child in (grandchild, first, second):
        await child.close()
    assert await parent.files.read(f"{MEMORY}/children/{first.id}/artifacts/found.txt") == first.id.encode()
    await host.delete(parent)


class Unforking(ClientHost):
    """Of a provider that cannot fork."""

    why: BoxError = Unsupported("no forks here")

    async def fork(self, box: Box, key: str, *, idle_seconds: int | None = None) -> Box:
        raise self.why


@pytest.mark.parametrize("why", [Unsupported("no forks here"), ProviderRefused("forks are switched off")])
async def test_where_there_are_no_forks_it_is_clean(
    host: ClientHost, spec: BoxSpec, why: BoxError, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Unforking, "why", why)
    parent = (await host.acquire("p3", spec)).box
    await parent.files.write("here", b"1")
    child = await Children(Unforking(host.client, home=host.home)).build_child(Parent("i-root", parent))
    assert child.origin is Origin.CLEAN
    assert not await child.box.files.exists("here")
    await child.close()
    await host.delete(parent)


async def test_one_more_than_may_be_waits_until_another_is_done(host: ClientHost, spec: BoxSpec) -> None:
    parent = (await host.acquire("p4", spec)).box
    children = Children(host, ChildLimits(boxes=1, breadth=3))
    root = Parent("i-root", parent)
    first = await children.build_child(root)
    second = asyncio.create_task(children.build_child(root))
    third = asyncio.create_task(children.build_child(root))
    await turns()
    assert (second.done(), children.slots.waiting) == (False, 2)
    with pytest.raises(TooManyChildren, match="3 children already"):
        await children.build_child(root)
    third.cancel()
    await asyncio.gather(third, return_exceptions=True)
    assert (root.children, children.slots.waiting) == (2, 1)
    with pytest.raises(TooManyBoxes, match="wait for children of their own"):
        await children.build_child(first)
    await first.close()
    await (await second).close()
    assert (root.children, children.slots.held) == (0, 0)
    await host.delete(parent)


class Slow(ClientHost):
    """Whose boxes come when they are let."""

    def prepare(self) -> None:
        self.began, self.go_on = asyncio.Event(), asyncio.Event()

    async def fork(self, box: Box, key: str, *, idle_seconds: int | None = None) -> Box:
        made = await super().fork(box, key, idle_seconds=idle_seconds)
        self.began.set()
        await self.go_on.wait()
        return made

    async def acquire(self, key: str, spec: BoxSpec, *, fresh: bool = False) -> AcquiredBox:
        raise AssertionError(key)


async def test_one_that_is_given_up_while_its_box_is_made_leaves_none(host: ClientHost, spec: BoxSpec) -> None:
    parent = (await host.acquire("p5", spec)).box
    slow = Slow(host.client, home=host.home)
    slow.prepare()
    children, root = Children(slow), Parent("i-root", parent)
    before = await keys(host)
    building = asyncio.create_task(children.build_child(root))
    await slow.began.wait()
    assert len(await keys(host)) == len(before) + 1
    building.cancel()
    await turns()
    assert not building.done(), "it sees to the box first"
    slow.go_on.set()
    await asyncio.gather(building, return_exceptions=True)
    assert building.cancelled()
    assert await keys(host) == before
    assert (root.children, children.slots.held) == (0, 0)
    await host.delete(parent)


async def test_what_comes_of_a_child_is_on_the_thread_and_whole_on_the_volume(host: ClientHost, spec: BoxSpec) -> None:
    await host.ensure_volume("kept", spec.provider)
    parent = (await host.acquire("p6", with_volume(spec, "kept"))).box
    record = await host.record(None, title="Children", labels={})
    children = Children(host)
    child = await children.build_child(Parent("i-root", parent))
    result = {"answer": 42, "long": "x" * 20_000, "when": (1, 2)}
    await child.close()
    path = await children.keep_result(child, record, result=result, seconds=1.5)
    assert path == f"{MEMORY}/artifacts/children/{child.id}.json"
    document = json.loads(await parent.files.read(path))
    assert document["result"]["long"] == "x" * 20_000
    again = await children.build_child(Parent("i-root", parent))
    failed = await children.keep_result(again, record, error=ValueError("no answer"), seconds=2.0)
    unkept = await children.keep_result(again, record, result=object(), seconds=3.0)
    assert (failed is not None, unkept) == (True, None)
    await again.close()
    noted: list[Any] = [each["payload"] async for each in record.entries(["interpreter.*"])]
    assert [(each["id"], each["status"], each["parent"], each["depth"]) for each in noted] == [
        (child.id, "ok", "i-root", 1), (again.id, "failed", "i-root", 1), (again.id, "ok", "i-root", 1),
    ]  # fmt: skip
    assert noted[0]["path"] == path
    assert noted[0]["result"]["answer"] == 42
    assert "characters more" in noted[0]["result"]["long"]
    assert noted[1]["error"] == {"kind": "ValueError", "message": "no answer"}
    assert "cannot be sent" in noted[2]["unkept"]
    await host.delete(parent)
