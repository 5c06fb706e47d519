"""One thread that waits for descriptors, timers and signals at once."""

from __future__ import annotations

import os
import select
import signal
from time import monotonic

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

READ = select.EPOLLIN
WRITE = select.EPOLLOUT
_LONGEST = 3600.0


class Timer:
    """A callback to run once at a time."""

    __slots__ = ("react", "when")

    def __init__(self, when: float, react: Callable[[], None]) -> None:
        self.when = when
        self.react = react


class Loop:
    """Owns its epoll and its wake-up pipe. The owner of a watched descriptor closes it, after `unwatch`."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self.clock = clock
        self._epoll = select.epoll()
        self._watched: dict[int, Callable[[int], None]] = {}
        self._timers: list[Timer] = []
        self._signals: dict[int, Callable[[], None]] = {}
        self._stopped = False
        self._woken, self._wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self.watch(self._woken, READ, self._on_signal)
        signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)

    def watch(self, descriptor: int, events: int, react: Callable[[int], None]) -> None:
        if descriptor in self._watched:
            self._epoll.modify(descriptor, events)
        else:
            self._epoll.register(descriptor, events)
        self._watched[descriptor] = react

    def unwatch(self, descriptor: int) -> None:
        if self._watched.pop(descriptor, None) is not None:
            self._epoll.unregister(descriptor)

    def after(self, seconds: float, react: Callable[[], None]) -> Timer:
        timer = Timer(self.clock() + max(0.0, seconds), react)
        self._timers.append(timer)
        return timer

    def cancel(self, timer: Timer | None) -> None:
        if timer is not None and timer in self._timers:
            self._timers.remove(timer)

    def on_signal(self, number: int, react: Callable[[], None]) -> None:
        self._signals[number] = react
        signal.signal(number, lambda _number, _frame: None)

    def stop(self) -> None:
        self._stopped = True

    def run(self, on_error: Callable[[BaseException], None]) -> None:
        """Run until `stop`. Errors are passed to `on_error`, and the loop continues."""
        while not self._stopped:
            for descriptor, events in self._epoll.poll(self._patience()):
                react = self._watched.get(descriptor)
                if react is not None:
                    try:
                        react(events)
                    except Exception as error:
                        on_error(error)
            try:
                self._ring()
            except Exception as error:
                on_error(error)

    def _patience(self) -> float:
        if not self._timers:
            return _LONGEST
        soonest = min([timer.when for timer in self._timers])
        return min(_LONGEST, max(0.0, soonest - self.clock()))

    def _ring(self) -> None:
        if self._timers:
            now = self.clock()
            for timer in [each for each in self._timers if each.when <= now]:
                if timer in self._timers:  # an earlier timer may have cancelled it
                    self._timers.remove(timer)
                    timer.react()

    def _on_signal(self, events: int) -> None:
        for number in set(os.read(self._woken, 4096)):
            react = self._signals.get(number)
            if react is not None:
                react()
