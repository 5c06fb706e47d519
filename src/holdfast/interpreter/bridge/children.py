"""Children of an interpreter: each has a box of its own, as many at once as may be, and what comes of them is kept.

`Children` is one for a whole tree: its root and all below share it, as they share a budget. What runs in a child's box
is for others: here it is made, given out, and taken away.
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
from holdfast.api.errors.boxes import BoxError, Unsupported
from holdfast.api.errors.interpreters import InvalidInterpreter, TooManyBoxes, TooManyChildren
from holdfast.api.ids import new_id
from holdfast.guest.kernel import value_codec
from holdfast.interpreter.display_values import show
from holdfast.interpreter.host import Host, Record
from holdfast.interpreter.workspace.volumes import MEMORY, make_folders, volume_of, with_volume
from holdfast.time_limit import time_limit

CHILD: Final = "interpreter.child"
ALONE_SECONDS: Final = 900
"""Whose process was killed ends after so long, and its box after as long again, unless it was to be kept."""
_FOLDER: Final = "children"
_LARGEST_RESULT: Final = 64 << 20
_LONGEST_MESSAGE: Final = 8_000


@dataclass(frozen=True, slots=True)
class ChildLimits:
    """What a tree may have at once."""

    boxes: int = 8
    """Of children, in the whole tree. Who wants one more waits."""
    patience: float = 300.0
    """Seconds that one waits for a box at most."""
    depth: int = 2
    """Levels of children below the root."""
    breadth: int = 8
    """Children that one parent has at once."""

    def __post_init__(self) -> None:
        if self.boxes < 1 or self.depth < 0 or self.breadth < 0 or not self.patience >= 0:
            raise InvalidInterpreter(f"limits of children that cannot be: {self}", hint="boxes=1 or more, others 0")


class Origin(StrEnum):
    """What a child's box begins with."""

    VOLUME = "volume"
    """Nothing but its own folder of the parent's volume."""
    FORK = "fork"
    """All files of the parent's box."""
    CLEAN = "clean"


# --- as many boxes as may be ---


class Berth:
    """The right to one box. Giving it back twice is fine."""

    __slots__ = ("_berths", "waiting")

    def __init__(self, berths: Berths) -> None:
        self._berths = berths
        self.waiting = 0
        """Children of whoever has this that wait for a berth."""

    def give_back(self) -> None:
        self._berths._take_back(self)


class Berths:
    """So many boxes at once. Who comes first gets one first, and who goes away holds up nobody."""

    def __init__(self, most: int, patience: float) -> None:
        self._most = most
        self._patience = patience
        self._held: set[Berth] = set()
        self._queue: deque[asyncio.Future[Berth]] = deque()

    @property
    def held(self) -> int:
        return len(self._held)

    @property
    def waiting(self) -> int:
        return len(self._queue)

    async def take(self, above: Berth | None = None) -> Berth:
        """`above` is that of the parent, which keeps it meanwhile. Raises `TooManyBoxes`: after the patience, or at
        once where all who have a berth wait for another one, and so would for ever."""
        if len(self._held) < self._most and not self._queue:
            return self._give()
        if above is not None:
            above.waiting += 1
        turn: asyncio.Future[Berth] = asyncio.get_running_loop().create_future()
        self._queue.append(turn)
        try:
            if all(each.waiting for each in self._held):
                raise TooManyBoxes(
                    f"all {self._most} boxes of children wait for children of their own",
                    hint="allow more boxes, fewer levels, or fewer children at once",
                )
            async with time_limit(self._patience):
                return await turn
        except TimeoutError:
            self._leave(turn)
            raise TooManyBoxes(
                f"there are {self._most} boxes of children, and none became free within {self._patience:g} s",
                hint="allow more boxes, more patience, or fewer children at once",
            ) from None
        except BaseException:
            self._leave(turn)
            raise
        finally:
            if above is not None:
                above.waiting -= 1

    def _give(self) -> Berth:
        berth = Berth(self)
        self._held.add(berth)
        return berth

    def _leave(self, turn: asyncio.Future[Berth]) -> None:
        if turn.done() and not turn.cancelled():
            turn.result().give_back()  # it came at the same moment
        else:
            turn.cancel()
            with contextlib.suppress(ValueError):
                self._queue.remove(turn)

    def _take_back(self, berth: Berth) -> None:
        if berth not in self._held:
            return
        self._held.remove(berth)
        while self._queue and len(self._held) < self._most:
            turn = self._queue.popleft()
            if not turn.done():
                turn.set_result(self._give())


# --- decisions ---


def child_mount(parent: VolumeMount, child: str) -> VolumeMount:
    """A child's own folder in what its parent has of the volume, where the parent finds it, too."""
    return replace(parent, subpath="/".join(part for part in (parent.subpath, _FOLDER, child) if part))


def collected(spec: BoxSpec) -> BoxSpec:
    """The spec of a box that goes with its interpreter: where that cannot delete it, the server does once it is idle.

    What was asked for by name stays.
    """
    if spec.lifetime is not Lifetime.SHARED or spec.on_idle is not None:
        return spec
    idle = ALONE_SECONDS if spec.idle_seconds is None else spec.idle_seconds
    return replace(spec, lifetime=Lifetime.EPHEMERAL, idle_seconds=idle)


def child_spec(parent: BoxSpec, child: str) -> BoxSpec:
    """Of the same kind of machine as the parent's, with the child's part of the volume. Nobody finds it again when its
    parent is gone, so it is reaped then, also where the parent's is kept."""
    parent = replace(parent, lifetime=Lifetime.EPHEMERAL, idle_seconds=ALONE_SECONDS)
    mounted = volume_of(parent.volumes)
    if mounted is not None:
        own = child_mount(mounted, child)
        parent = with_volume(parent, own.volume, own.subpath)
    return parent.with_labels({"child": child})


# --- children ---


@dataclass(slots=True, eq=False)
class Parent:
    """Whoever has children: the root of a tree, or a child."""

    id: str
    box: Box
    depth: int = 0
    berth: Berth | None = None
    children: int = 0
    """That there are now, or are being made."""


@dataclass(slots=True, eq=False)
class Child(Parent):
    """A child's box. Closing it deletes the box, and lets the next one have its place."""

    of: Parent = field(kw_only=True)
    host: Host = field(kw_only=True)
    spec: BoxSpec = field(kw_only=True)
    origin: Origin = field(kw_only=True)
    _closed: bool = field(default=False, kw_only=True)

    async def close(self) -> None:
        """Twice is fine. Raises where the box could not be deleted; its place is free all the same."""
        if self._closed:
            return
        self._closed = True
        try:
            await _remove(self.host, self.box)
        finally:
            _leave(self.of, self.berth)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class Children:
    """Those of one tree."""

    def __init__(
        self, host: Host, limits: ChildLimits | None = None, *, make_id: Callable[[], str] = lambda: new_id("i")
    ) -> None:
        self.limits = limits or ChildLimits()
        self.berths = Berths(self.limits.boxes, self.limits.patience)
        self._host = host
        self._make_id = make_id

    async def build_child(self, of: Parent) -> Child:
        """A box for a child: with its own part of the parent's volume, where that has one; else as a fork of the
        parent's box; else clean, where its provider cannot fork.

        Waits for its turn. Raises `TooManyChildren`, `TooManyBoxes`, and what a box raises that cannot be made.
        Cancelled, it leaves nothing behind.
        """
        refused = refuse(of.depth, of.children, self.limits)
        if refused is not None:
            raise refused
        of.children += 1
        berth = None
        try:
            berth = await self.berths.take(of.berth)
            return await self._make(of, self._make_id(), berth)
        except BaseException:
            _leave(of, berth)
            raise

    async def _make(self, of: Parent, id: str, berth: Berth) -> Child:
        spec = child_spec(of.box.spec, id)
        # A request that was sent is carried out, whoever waits for it: so what comes of it is waited for.
        making = asyncio.ensure_future(self._box(of.box, spec, f"interpreter/{id}"))
        try:
            box, origin = await asyncio.shield(making)
        except asyncio.CancelledError:
            await asyncio.wait({making})
            if not making.cancelled() and making.exception() is None:
                await _remove(self._host, making.result()[0])
            raise
        return Child(id, box, of.depth + 1, berth, of=of, host=self._host, spec=spec, origin=origin)

    async def _box(self, parent: Box, spec: BoxSpec, key: str) -> tuple[Box, Origin]:
        if volume_of(spec.volumes) is None:
            with contextlib.suppress(Unsupported):
                return await self._host.fork(parent, key, idle_seconds=ALONE_SECONDS), Origin.FORK
            return (await self._host.acquire(key, spec, fresh=True)).box, Origin.CLEAN
        box = (await self._host.acquire(key, spec, fresh=True)).box
        try:
            await make_folders(box)
        except BaseException:
            await _remove(self._host, box)
            raise
        return box, Origin.VOLUME

    async def keep(
        self, child: Child, record: Record, *, result: Any = None, error: BaseException | None = None, seconds: float
    ) -> str | None:
        """What came of a child: on the thread of its parent, and where that has a volume whole under its artifacts.
        Says where in the parent's box. The child may be closed already."""
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
            except (BoxError, value_codec.Unshippable) as problem:  # the thread has it, and says what is missing
                payload["unkept"], path = str(problem)[:_LONGEST_MESSAGE], None
            else:
                payload["path"] = path
        record.note(payload)
        await record.flush()
        return path


def refuse(depth: int, children: int, limits: ChildLimits) -> TooManyChildren | None:
    """Why a parent may not have one more."""
    if depth >= limits.depth:
        return TooManyChildren(f"this is level {depth} of {limits.depth}: no children below it", hint="do it here")
    if children >= limits.breadth:
        return TooManyChildren(
            f"there are {children} children already, and {limits.breadth} at most at once",
            hint="wait until one of them is done",
        )
    return None


def _document(payload: dict[str, Any]) -> bytes:
    document = value_codec.dump(payload)
    if len(document) > _LARGEST_RESULT:
        raise value_codec.Unshippable(f"it has {len(document):,} bytes, and {_LARGEST_RESULT:,} at most are kept")
    return document


def _leave(of: Parent, berth: Berth | None) -> None:
    of.children -= 1
    if berth is not None:
        berth.give_back()


async def _remove(host: Host, box: Box) -> None:
    try:
        await host.delete(box)
    finally:
        await box.close()
