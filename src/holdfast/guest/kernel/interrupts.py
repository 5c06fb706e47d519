"""An interrupt of the host: raised in the user's code, and never in the middle of ours."""

import _signal  # type: ignore[import-not-found]
import _thread


class Interrupts:
    """As a context manager, around what must not be torn: an interrupt waits for its end. For the main thread; others
    are never interrupted."""

    def __init__(self) -> None:
        self._main = _thread.get_ident()
        self._depth = 0
        self._struck = False
        self.armed = False
        """The user's code runs."""

    def install(self) -> None:
        _signal.signal(_signal.SIGINT, self._strike)

    def _strike(self, number: int, frame: object) -> None:
        if not self.armed:
            return
        if self._depth:
            self._struck = True
            return
        raise KeyboardInterrupt

    def arm(self) -> None:
        self._struck = False
        self.armed = True

    def disarm(self) -> None:
        self.armed = False
        self._struck = False

    def __enter__(self) -> None:
        if _thread.get_ident() == self._main:
            self._depth += 1

    def __exit__(self, *_: object) -> None:
        if _thread.get_ident() == self._main:
            self._depth -= 1
            if self._struck and self.armed and not self._depth:
                self._struck = False
                raise KeyboardInterrupt
