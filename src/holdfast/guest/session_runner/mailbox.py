"""What the threads of a runner tell its main thread, and timers. All state belongs to the main thread."""

from __future__ import annotations

from queue import Empty, SimpleQueue
from time import monotonic

from holdfast.guest.runner.event_loop import Timer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

_LONGEST = 3600.0


class Mailbox:
    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self.clock = clock
        # Not a `Queue`: a signal may come in the middle of any operation, and its handler puts something too.
        self._queue: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._timers: list[Timer] = []
        self._stopped = False

    def put(self, react: Callable[[], None]) -> None:
        """Have this called in the main thread, soon. From any thread."""
        self._queue.put(react)

    def after(self, seconds: float, react: Callable[[], None]) -> Timer:
        timer = Timer(self.clock() + max(0.0, seconds), react)
        self._timers.append(timer)
        return timer

    def cancel(self, timer: Timer | None) -> None:
        if timer is not None and timer in self._timers:
            self._timers.remove(timer)

    def stop(self) -> None:
        self._stopped = True

    def run(self, on_error: Callable[[Exception], None]) -> None:
        """Run until `stop`. Errors are passed to `on_error`."""
        while not self._stopped:
            now = self.clock()
            soonest = min([timer.when for timer in self._timers], default=now + _LONGEST)
            todo: list[Callable[[], None]] = []
            try:
                todo.append(self._queue.get(timeout=max(0.0, min(_LONGEST, soonest - now))))
            except Empty:
                pass
            for timer in [each for each in self._timers if each.when <= self.clock()]:
                self._timers.remove(timer)
                todo.append(timer.react)
            for react in todo:
                try:
                    react()
                except Exception as error:
                    on_error(error)
