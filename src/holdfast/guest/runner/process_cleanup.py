"""Ends everything that the runner has started: asks first, then kills, until no process is left."""

from __future__ import annotations

import os

from holdfast.guest.init import process_tree

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.guest.runner.event_loop import Loop

_LOOK = 0.02
_HOPELESS = 30.0
"""Seconds after which unkillable processes are given up: the kernel holds them, and the run has to end."""


class ProcessCleanup:
    """Starts at once; `then` is called when no process is left. `hurry` skips the grace period."""

    def __init__(self, loop: Loop, grace: float, then: Callable[[], None]) -> None:
        self._loop = loop
        self._then = then
        self._kill_at = loop.clock() + grace
        self._asked: set[int] = set()
        self._done = False
        self._look()

    def hurry(self) -> None:
        self._kill_at = min(self._kill_at, self._loop.clock())

    def look_now(self) -> None:
        """A child has exited, which may have been the last one."""
        if not self._done and not process_tree.find_descendants(os.getpid()):
            self._finish()

    def _look(self) -> None:
        if self._done:
            return
        left = process_tree.find_descendants(os.getpid())
        now = self._loop.clock()
        if not left or now >= self._kill_at + _HOPELESS:
            self._finish()
            return
        if now >= self._kill_at:
            process_tree.send_to(left, process_tree.SIGKILL)
        else:
            new = [each for each in left if each not in self._asked]
            self._asked.update(new)
            process_tree.send_to(new, process_tree.SIGTERM)
            process_tree.send_to(new, 18)  # SIGCONT: a stopped process could not react
        self._loop.after(_LOOK, self._look)

    def _finish(self) -> None:
        self._done = True
        self._then()
