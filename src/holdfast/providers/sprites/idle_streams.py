"""Closes the streams of boxes in which nothing happens, so that their sprites can fall asleep."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from holdfast.api.errors.boxes import BoxError
from holdfast.providers.guest_protocol import GuestRefused, number_in, optional_number_in
from holdfast.providers.stream import StreamGuestClient

log = logging.getLogger(__name__)

IDLE_SECONDS: Final = 60.0
_CHECKS: Final = 4
"""Checks during the idle time."""


@dataclass(frozen=True, slots=True)
class Quiet:
    """A box whose stream was closed because nothing happened in it."""

    since: float
    """On the clock of this process."""
    activity: Mapping[str, Any]
    """Its last answer."""

    def activity_now(self) -> dict[str, Any]:
        """Returns its activity without asking it, which would wake it. Nothing happens in it while nobody asks."""
        passed = int((time.monotonic() - self.since) * 1000)
        return {**self.activity, "idle": number_in(self.activity, "idle") + passed}


class IdleStreams:
    """Watches the streams of a provider. `hang_up` closes one of them, unless it is in use again."""

    def __init__(
        self,
        guests: Callable[[], Mapping[str, StreamGuestClient]],
        hang_up: Callable[[str, Quiet], Awaitable[None]],
        idle_seconds: float = IDLE_SECONDS,
    ) -> None:
        self._guests = guests
        self._hang_up = hang_up
        self._idle_seconds = idle_seconds
        self._worked: dict[str, int | None] = {}
        """The processor time of each box when it was last looked at."""
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._watch())

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(self._idle_seconds / _CHECKS)
            guests = {id: guest for id, guest in self._guests().items() if guest.alive}
            self._worked = {id: worked for id, worked in self._worked.items() if id in guests}
            for id, guest in guests.items():
                try:
                    await self._check(id, guest)
                except (BoxError, GuestRefused) as error:
                    log.info("cannot tell whether box %s is idle: %s", id, error)

    async def _check(self, id: str, guest: StreamGuestClient) -> None:
        activity = await guest.ask({"op": "activity", "looks": True})
        worked = optional_number_in(activity, "cpu")
        unchanged = id in self._worked and self._worked[id] == worked
        self._worked[id] = worked
        if unchanged and is_quiet(activity, self._idle_seconds):
            await self._hang_up(id, Quiet(time.monotonic(), activity))


def is_quiet(activity: Mapping[str, Any], idle_seconds: float) -> bool:
    """Returns whether nothing runs in a box, listens or is connected, for so long."""
    busy = number_in(activity, "processes") or number_in(activity, "connections")
    listening = optional_number_in(activity, "listening") or 0
    return not busy and not listening and number_in(activity, "idle") >= idle_seconds * 1000
