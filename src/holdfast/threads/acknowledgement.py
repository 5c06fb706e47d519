"""The result of an append that is being written to disk."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from typing import Any

from holdfast.api.errors import Refused
from holdfast.threads.streams import Appended

Callback = Callable[[Appended | None, Refused | None], object]
"""Called with the result, or with the error."""


class Acknowledgement:
    """Await it, or register a callback with `then`.

    A callback runs in the same step of the event loop that settles the append, before the readers of the stream are
    notified. A future would wake its waiter only after all readers have been written to.
    """

    __slots__ = ("_appended", "_callbacks", "_error")

    def __init__(self) -> None:
        self._appended: Appended | None = None
        self._error: Refused | None = None
        self._callbacks: list[Callback] = []

    @classmethod
    def given(cls, appended: Appended) -> Acknowledgement:
        """Returns an acknowledgement that is already settled."""
        acknowledgement = cls()
        acknowledgement._appended = appended
        return acknowledgement

    def then(self, callback: Callback) -> None:
        """Call `callback` once the append is settled, or immediately if it already is."""
        if self._appended is None and self._error is None:
            self._callbacks.append(callback)
        else:
            callback(self._appended, self._error)

    def settle(self, appended: Appended | None, error: Refused | None) -> None:
        """Called by the store, exactly once."""
        self._appended, self._error = appended, error
        for callback in self._callbacks:
            callback(appended, error)

    def __await__(self) -> Generator[Any, None, Appended]:
        future: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()

        def wake(appended: Appended | None, error: Refused | None) -> None:
            if future.done():
                return  # the waiter was cancelled
            if error is not None:
                future.set_exception(error)
            elif appended is not None:
                future.set_result(appended)

        self.then(wake)
        return (yield from future)
