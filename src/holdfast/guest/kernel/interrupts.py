"""Interrupts by the host. They are raised in user code, never in the middle of ours."""

import _signal  # type: ignore[import-not-found]
import _thread


class Interrupts:
    """A context manager that delays interrupts until its end. Only the main thread is ever interrupted."""

    def __init__(self) -> None:
        self._main = _thread.get_ident()
        self._depth = 0
        self._pending = False
        self.armed = False
        """User code is running."""

    def install(self) -> None:
        _signal.signal(_signal.SIGINT, self._on_signal)

    def _on_signal(self, number: int, frame: object) -> None:
        if not self.armed:
            return
        if self._depth:
            self._pending = True
            return
        raise KeyboardInterrupt

    def arm(self) -> None:
        self._pending = False
        self.armed = True

    def disarm(self) -> None:
        self.armed = False
        self._pending = False

    def __enter__(self) -> None:
        if _thread.get_ident() == self._main:
            self._depth += 1

    def __exit__(self, *_: object) -> None:
        if _thread.get_ident() == self._main:
            self._depth -= 1
            if self._pending and self.armed and not self._depth:
                self._pending = False
                raise KeyboardInterrupt
