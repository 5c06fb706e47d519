"""Children of an interpreter: their boxes, a limit on the number of boxes, and the record of their results.

One `Children` serves a whole tree: its root and all descendants share it, as they share a budget. This module creates
and deletes boxes; it does not run code in them.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import StrEnum
from types import TracebackType
from typing import Any, Final, Self

from holdfast.api.box.box import Box
from holdfast.api.box.spec import BoxSpec, Lifetime, VolumeMount
from holdfast.api.errors.boxes import BoxError, ProviderRefused, Unsupported
from holdfast.api.errors.interpreters import InvalidInterpreter, TooManyBoxes, TooManyChildren
from holdfast.api.ids import new_id
from holdfast.guest.kernel import value_codec
from holdfast.interpreter.host import Host, Record
from holdfast.interpreter.record import show
from holdfast.interpreter.workspace.volumes import MEMORY, make_folders, volume_of, with_volume
from holdfast.time_limit import time_limit

CHILD: Final = "interpreter.child"
ORPHAN_SECONDS: Final = 900
"""If the process of an interpreter was killed, its kernel ends after this time, and its box after as long again. This
does not apply to boxes that are kept."""
_FOLDER: Final = "children"
_LARGEST_RESULT: Final = 64 << 20
_LONGEST_MESSAGE: Final = 8_000


@dataclass(frozen=True, slots=True)
class ChildLimits:
    """What a tree may have at the same time."""

    boxes: int = 8
    """Boxes of children, in the whole tree. Requests for more wait."""
    patience: float = 300.0
    """Seconds that a request waits for a box."""
    depth: int = 2
    """Levels of children below the root."""
    breadth: int = 8
    """Children of one parent."""

    def __post_init__(self) -> None:
        if self.boxes < 1 or self.depth < 0 or self.breadth < 0 or not self.patience >= 0:
            raise InvalidInterpreter(f"these limits are invalid: {self}", hint="boxes is 1 or more, others 0 or more")


class Origin(StrEnum):
    """What the box of a child starts with."""

    VOLUME = "volume"
    """Only a folder of its own on the parent's volume."""
    FORK = "fork"
    """All files of the parent's box."""
    CLEAN = "clean"


# --- the number of boxes ---


class BoxSlot:
    """The right to one box. Releasing it twice does nothing."""

    __slots__ = ("_slots", "waiting")

    def __init__(self, slots: BoxSlots) -> None:
        self._slots = slots
        self.waiting = 0
        """The number of children of its owner that wait for a slot."""

    def release(self) -> None:
        self._slots._release(self)


class BoxSlots:
    """Limits the number of boxes. Requests are served in order; a cancelled one leaves the queue."""

    def __init__(self, most: int, patience: float) -> None:
        self._most = most
        self._patience = patience
        self._held: set[BoxSlot] = set()
        self._queue: deque[asyncio.Future[BoxSlot]] = deque()

    @property
    def held(self) -> int:
        return len(self._held)

    @property
    def waiting(self) -> int:
        return len(self._queue)

    async def take(self, parent: BoxSlot | None = None) -> BoxSlot:
        """Wait for a slot. `parent` is the slot of the parent, which stays held. Raises `TooManyBoxes` after the
        patience, or at once if all holders wait for a slot themselves, which would never end."""
        if len(self._held) < self._most and not self._queue:
            return self._hold()
        if parent is not None:
            parent.waiting += 1
        turn: asyncio.Future[BoxSlot] = asyncio.get_running_loop().create_future()
        self._queue.append(turn)
        try:
            if all(each.waiting for each in self._held):
                raise TooManyBoxes(
                    f"all {self._most} boxes of children wait for children of their own",
                    hint="allow more boxes, fewer levels, or fewer concurrent children",
                )
            async with time_limit(self._patience):
                return await turn
        except TimeoutError:
            self._leave(turn)
            raise TooManyBoxes(
                f"all {self._most} boxes of children are in use, and none became free within {self._patience:g} s",
                hint="allow more boxes, more patience, or fewer concurrent children",
            ) from None
        except BaseException:
            self._leave(turn)
            raise
        finally:
            if parent is not None:
                parent.waiting -= 1

    def _hold(self) -> BoxSlot:
        slot = BoxSlot(self)
        self._held.add(slot)
        return slot

    def _leave(self, turn: asyncio.Future[BoxSlot]) -> None:
        if turn.done() and not turn.cancelled():
            turn.result().release()  # it arrived at the same moment
        else:
            turn.cancel()
            with contextlib.suppress(ValueError):
                self._queue.remove(turn)

    def _release(self, slot: BoxSlot) -> None:
        if slot not in self._held:
            return
        self._held.remove(slot)
        while self._queue and len(self._held) < self._most:
            turn = self._queue.popleft()
            if not turn.done():
                turn.set_result(self._hold())


# --- decisions ---


def child_mount(parent: VolumeMount, child: str) -> VolumeMount:
    """The folder of a child on the volume, inside the folder of its parent."""
    return replace(parent, subpath="/".join(part for part in (parent.subpath, _FOLDER, child) if part))


def ephemeral_spec(spec: BoxSpec) -> BoxSpec:
    """The spec of a box that ends with its interpreter. If that cannot delete it, the server does when it is idle.

    A lifetime that the caller chose is not changed.
    """
    if spec.lifetime is not Lifetime.SHARED or spec.on_idle is not None:
        return spec
    idle = ORPHAN_SECONDS if spec.idle_seconds is None else spec.idle_seconds
    return replace(spec, lifetime=Lifetime.EPHEMERAL, idle_seconds=idle)


def child_spec(parent: BoxSpec, child: str) -> BoxSpec:
    """The spec of the parent with the folder of the child on the volume. Without its parent a child cannot be found
    again, so its box is always ephemeral."""
    parent = replace(parent, lifetime=Lifetime.EPHEMERAL, idle_seconds=ORPHAN_SECONDS)
    mounted = volume_of(parent.volumes)
    if mounted is not None:
        own = child_mount(mounted, child)
        parent = with_volume(parent, own.volume, own.subpath)
    return parent.with_labels({"child": child})


# --- children ---


@dataclass(slots=True, eq=False)
class Parent:
    """An interpreter that has children: the root of a tree, or a child."""

    id: str
    box: Box
    depth: int = 0
    slot: BoxSlot | None = None
    children: int = 0
    """The number of children that exist or are being created."""


@dataclass(slots=True, eq=False)
class Child(Parent):
    """A child and its box. Closing it deletes the box and releases its slot."""

    of: Parent = field(kw_only=True)
    host: Host = field(kw_only=True)
    spec: BoxSpec = field(kw_only=True)
    origin: Origin = field(kw_only=True)
    _closed: bool = field(default=False, kw_only=True)

    async def close(self) -> None:
        """Closing twice does nothing. Raises if the box could not be deleted; the slot is released anyway."""
        if self._closed:
            return
        self._closed = True
        try:
            await _remove(self.host, self.box)
        finally:
            _release(self.of, self.slot)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class Children:
    """The children of one tree."""

    def __init__(
        self, host: Host, limits: ChildLimits | None = None, *, make_id: Callable[[], str] = lambda: new_id("i")
    ) -> None:
        self.limits = limits or ChildLimits()
        self.slots = BoxSlots(self.limits.boxes, self.limits.patience)
        self._host = host
        self._make_id = make_id

    async def build_child(self, of: Parent) -> Child:
        """Create the box of a child. It has a folder of the parent's volume; without a volume it is a fork of the
        parent's box, or a clean box if the provider cannot fork.

        Waits for a slot. Raises `TooManyChildren`, `TooManyBoxes`, and errors of creating a box. If it is cancelled, no
        box remains.
        """
        refused = refusal(of.depth, of.children, self.limits)
        if refused is not None:
            raise refused
        of.children += 1
        slot = None
        try:
            slot = await self.slots.take(of.slot)
            return await self._make(of, self._make_id(), slot)
        except BaseException:
            _release(of, slot)
            raise

    async def _make(self, of: Parent, id: str, slot: BoxSlot) -> Child:
        spec = child_spec(of.box.spec, id)
        # The request is carried out even if the caller is cancelled, so its result is always awaited.
        making = asyncio.ensure_future(self._box(of.box, spec, f"interpreter/{id}"))
        try:
            box, origin = await asyncio.shield(making)
        except asyncio.CancelledError:
            await asyncio.wait({making})
            if not making.cancelled() and making.exception() is None:
                await _remove(self._host, making.result()[0])
            raise
        return Child(id, box, of.depth + 1, slot, of=of, host=self._host, spec=spec, origin=origin)

    async def _box(self, parent: Box, spec: BoxSpec, key: str) -> tuple[Box, Origin]:
        if volume_of(spec.volumes) is None:
            with contextlib.suppress(Unsupported, ProviderRefused):  # a cloud may have them switched off
                return await self._host.fork(parent, key, idle_seconds=ORPHAN_SECONDS), Origin.FORK
            return (await self._host.acquire(key, spec, fresh=True)).box, Origin.CLEAN
        box = (await self._host.acquire(key, spec, fresh=True)).box
        try:
            await make_folders(box)
        except BaseException:
            await _remove(self._host, box)
            raise
        return box, Origin.VOLUME

    async def keep_result(
        self, child: Child, record: Record, *, result: Any = None, error: BaseException | None = None, seconds: float
    ) -> str | None:
        """Record the result of a child on the thread of its parent and, if there is a volume, as a file among the
        artifacts. Returns the path of the file in the parent's box. The child may be closed already."""
        payload: dict[str, Any] = {
            "type": CHILD,
            "id": child.id,
            "parent": child.of.id,
            "depth": child.depth,
            "box": child.box.id,
            "origin": child.origin.value,
            "status": "ok" if error is None else "failed",
            "seconds": round(seconds, 3),
        }
        if error is None:
            payload["result"] = show(result)
        else:
            payload["error"] = {"kind": type(error).__name__, "message": str(error)[:_LONGEST_MESSAGE]}
        path = None
        if volume_of(child.of.box.spec.volumes) is not None:
            path = f"{MEMORY}/artifacts/{_FOLDER}/{child.id}.json"
            kept = {**payload, "result": result} if error is None else payload
            try:
                await child.of.box.files.write(path, _document(kept))
            except (
                BoxError,
                value_codec.Unshippable,
            ) as problem:  # the thread still has the result
                payload["unkept"], path = str(problem)[:_LONGEST_MESSAGE], None
            else:
                payload["path"] = path
        record.note(payload)
        await record.flush()
        return path


def refusal(depth: int, children: int, limits: ChildLimits) -> TooManyChildren | None:
    """The reason why a parent may not have one more child, or None."""
    if depth >= limits.depth:
        return TooManyChildren(
            f"level {depth} of {limits.depth} may have no children", hint="do the task in this interpreter"
        )
    if children >= limits.breadth:
        return TooManyChildren(
            f"there are {children} children already, and at most {limits.breadth} are allowed",
            hint="wait until one of them has ended",
        )
    return None


def _document(payload: dict[str, Any]) -> bytes:
    document = value_codec.dump(payload)
    if len(document) > _LARGEST_RESULT:
        raise value_codec.Unshippable(f"it has {len(document):,} bytes, and at most {_LARGEST_RESULT:,} are kept")
    return document


def _release(of: Parent, slot: BoxSlot | None) -> None:
    of.children -= 1
    if slot is not None:
        slot.release()


async def _remove(host: Host, box: Box) -> None:
    try:
        await host.delete(box)
    finally:
        await box.close()
