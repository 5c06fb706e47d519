"""Whether boxes on this machine run, and how they are started, stopped and paused."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from threading import Lock
from typing import Final

from holdfast.api.box.box import BoxInfo, Power
from holdfast.api.errors.boxes import (
    BoxError,
    BoxGone,
    BoxNotFound,
    BoxStopped,
    BoxUnreachable,
    InvalidSpec,
)
from holdfast.boxes.capabilities import Capability, require
from holdfast.boxes.provider import check_known_id
from holdfast.boxes.shielded import to_the_end
from holdfast.providers.guest_protocol import GuestRefused
from holdfast.providers.host.disk.data_dir import BoxRecord
from holdfast.providers.host.guest_client import (
    PAUSED,
    GuestClient,
    has_ended,
    is_ending,
    is_guest,
    peer_handle,
    peer_of,
)
from holdfast.providers.host.sandbox import Sandbox

_START_SECONDS: Final = 30.0
_GRACE_MS: Final = 1500
_MOST: Final = 1024


class BoxPower:
    """Owned by the provider, which closes it. Closing stops no box."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox
        self._data_dir = sandbox.data_dir
        self._starts = asyncio.Semaphore(2 * (os.cpu_count() or 1) + 2)
        self._live_guests = LiveGuests()

    def close(self) -> None:
        self._live_guests.close()

    # --- finding ---

    def record(self, id: str) -> BoxRecord:
        """Returns the record of a box that is completely created. Raises `BoxNotFound` or `BoxGone`."""
        check_known_id(id, self._sandbox.provider)
        if not self._data_dir.whole(id):
            raise BoxNotFound(f"there is no {self._sandbox.provider} box {id}")
        return self._data_dir.read(id)

    @contextlib.asynccontextmanager
    async def exclusive(self, id: str) -> AsyncIterator[BoxRecord]:
        """Lock a box and yield its record. Raises `BoxGone` if it does not exist."""
        try:
            self.record(id)
            async with self._data_dir.locked(id):
                yield self.record(id)
        except BoxNotFound:
            raise BoxGone(f"box {id} is gone") from None

    def describe(self, record: BoxRecord) -> BoxInfo:
        return BoxInfo(
            record.id,
            self._sandbox.provider,
            record.spec,
            record.labels,
            self.of_guest(self._sandbox.guest(record.id)),
            record.created_at,
            record.snapshot,
        )

    def get(self, id: str) -> Power:
        """Raises `BoxGone`."""
        try:
            return self.describe(self.record(id)).power
        except BoxNotFound:
            raise BoxGone(f"box {id} is gone") from None

    def of_guest(self, guest: GuestClient) -> Power:
        if self._sandbox.gates.is_closed(guest.box):
            return Power.RUNNING  # it is only restarted, and requests wait for that
        if not self._is_alive(guest):
            return Power.STOPPED
        return Power.PAUSED if guest.paused else Power.RUNNING

    def _is_alive(self, guest: GuestClient) -> bool:
        if self._live_guests.knows(guest.box):
            return True
        try:
            with guest.connect() as connection:
                self._live_guests.add(guest.box, connection)
        except (BoxStopped, BoxGone):
            return False
        except BoxError:
            return True  # a guest is there, but it is overloaded or not reachable for us
        return True

    async def is_up(self, guest: GuestClient) -> bool:
        """Whether a box runs. If its guest was killed, ends the rest of its processes first and returns False."""
        if guest.alive():
            return True
        await to_the_end(self._sandbox.end(guest))
        return False

    # --- starting ---

    async def start(self, id: str) -> None:
        require(self._sandbox.provider, self._sandbox.capabilities, Capability.STOP)
        async with self.exclusive(id) as record:
            guest = self._sandbox.guest(id)
            if not await self.is_up(guest):
                self._mark(id).unlink(missing_ok=True)  # of a box that ended while it was paused
                await self.bring_up(self._sandbox.recover(record))
            elif guest.paused:
                await to_the_end(self._resume(guest))
                await self._sandbox.open_egress(guest, record)

    async def bring_up(self, record: BoxRecord) -> None:
        """Start a locked box that does not run. If that fails, nothing of it keeps running."""
        try:
            await self._bring_up(record)
        except BaseException:
            await to_the_end(self._sandbox.end(self._sandbox.guest(record.id)))
            raise

    async def _bring_up(self, record: BoxRecord) -> None:
        """Start the guest and wait until it answers. More starts at once would make each slower, and none faster."""
        sandbox = self._sandbox
        async with self._starts:
            guest = sandbox.guest(record.id, record.created_at)
            sandbox.forget_seal(record.id)
            # The kernel takes longer to move a process into a group than to start one, so that happens concurrently.
            confining = asyncio.ensure_future(sandbox.confine(record, await sandbox.launch(record)))
            try:
                request = {"op": "ping", "workdir": sandbox.workdir(self.describe(record))}
                await guest.ask(request, seconds=_START_SECONDS)
                await confining
                pid = guest.pid()
                if pid is None:
                    raise BoxStopped(f"box {record.id} stopped right after its start")
                await sandbox.confine(record, pid)
                await sandbox.open_egress(guest, record)
            except GuestRefused as refused:
                raise InvalidSpec(f"box {record.id} cannot work in {record.spec.workdir}: {refused}") from None
            except (BoxStopped, BoxUnreachable):
                raise sandbox.start_error(record.id) from None
            finally:
                await asyncio.wait([confining])  # so that cleaning up after a failed start finds every process
                if not confining.cancelled():
                    confining.exception()

    # --- stopping ---

    async def stop(self, id: str) -> None:
        require(self._sandbox.provider, self._sandbox.capabilities, Capability.STOP)
        async with self.exclusive(id):
            await to_the_end(self._stop(id))

    async def _stop(self, id: str) -> None:
        guest = self._sandbox.guest(id)
        await self._resume(guest)
        with contextlib.suppress(BoxStopped, BoxUnreachable, GuestRefused):
            await guest.ask({"op": "shut_down", "grace": _GRACE_MS}, seconds=_GRACE_MS / 1000 + 1)
            await guest.ask({"op": "kill_all", "number": signal.SIGKILL.value}, seconds=_GRACE_MS / 1000)
            await self._sandbox.seal(guest)
        await self._sandbox.end(guest)
        self._sandbox.release(id)

    async def end(self, id: str) -> None:
        """End a locked box that is about to be deleted."""
        await self._sandbox.end(self._sandbox.guest(id))
        self._live_guests.forget(id)
        self._sandbox.release(id)

    # --- pausing ---

    async def pause(self, id: str) -> None:
        require(self._sandbox.provider, self._sandbox.capabilities, Capability.PAUSE)
        async with self.exclusive(id):
            guest = self._sandbox.guest(id)
            if not await self.is_up(guest):
                raise BoxStopped(f"box {id} is stopped", hint="there is nothing to pause")
            if not guest.paused:
                await to_the_end(self._pause(guest))

    async def _pause(self, guest: GuestClient) -> None:
        # Marked first: a frozen box without a mark was left behind by a process that died while it copied files.
        self._mark(guest.box).touch()
        try:
            await self._sandbox.freeze(guest.box)
        except BaseException:
            await self._resume(guest)
            raise

    async def _resume(self, guest: GuestClient) -> None:
        if guest.paused:
            await self._sandbox.thaw(guest.box)
            self._mark(guest.box).unlink(missing_ok=True)

    def _mark(self, id: str) -> Path:
        return self._data_dir.box(id) / PAUSED


class LiveGuests:
    """Tracks which guests are alive by process descriptors, so that asking does not wake a guest. Thread-safe.

    A connection to the guest would also tell, but it wakes the guest each time. A process descriptor proves that the
    guest is alive. Without one, or after that process has ended, only a connection can tell: another process may have
    started the box again. Owns a descriptor for each known guest until `forget` or `close`.
    """

    def __init__(self) -> None:
        self._handles: dict[str, tuple[int, int]] = {}
        """By box: a process descriptor of its guest, and the process id."""
        self._lock = Lock()  # a descriptor that another thread closes could be reused while it is examined

    def knows(self, box: str) -> bool:
        """Returns whether the guest of this box is known to be alive. False means that only a connection can tell."""
        with self._lock:
            if box not in self._handles:
                return False
            handle, pid = self._handles[box]
            # In this order: the process id cannot be reused before the process has ended.
            ending = is_ending(pid)
            if not has_ended(handle):
                return not ending
            self._drop(box)
            return False

    def add(self, box: str, connection: socket.socket) -> None:
        """Remember the guest at the other end of a connection, if the kernel identifies it.

        While a box starts, the other end may be the process that starts the guest. It outlives the guest a little, so
        it is not remembered.
        """
        try:
            pid = peer_of(connection)
            if not is_guest(pid):
                return
            handle = peer_handle(connection)
        except OSError:
            return
        with self._lock:
            self._drop(box)
            while len(self._handles) >= _MOST:
                self._drop(next(iter(self._handles)))
            self._handles[box] = (handle, pid)

    def forget(self, box: str) -> None:
        with self._lock:
            self._drop(box)

    def _drop(self, box: str) -> None:
        known = self._handles.pop(box, None)
        if known is not None:
            os.close(known[0])

    def close(self) -> None:
        """Closing twice has no effect."""
        with self._lock:
            for box in list(self._handles):
                self._drop(box)
