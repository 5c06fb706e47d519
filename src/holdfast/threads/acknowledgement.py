"""The answer to an append that is on its way to disk."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from typing import Any

from holdfast.threads.errors import StreamError
from holdfast.threads.streams import Appended

Callback = Callable[[Appended | None, StreamError | None], object]
"""Called with the answer, or with what went wrong."""


class Acknowledgement:
    """Await it, or be called back by `then` in the very step of the event loop in which the append is settled.

    That step also tells the readers of the stream. A future would wake its waiter only after all of them have been
    written to; a callback is called before.
    """

    __slots__ = ("_appended", "_callbacks", "_error")

    def __init__(self) -> None:
        self._appended: Appended | None = None
        self._error: StreamError | None = None
        self._callbacks: list[Callback] = []

    @classmethod
    def given(cls, appended: Appended) -> Acknowledgement:
        """One that needs no waiting."""
        acknowledgement = cls()
        acknowledgement._appended = appended
        return acknowledgement

    def then(self, callback: Callback) -> None:
        """Call this once it is settled: at once, where it is already."""
        if self._appended is None and self._error is None:
            self._callbacks.append(callback)
        else:
            callback(self._appended, self._error)

    def settle(self, appended: Appended | None, error: StreamError | None) -> None:
        """Called once, by the store."""
        self._appended, self._error = appended, error
        for callback in self._callbacks:
            callback(appended, error)

    def __await__(self) -> Generator[Any, None, Appended]:
        future: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()

        def wake(appended: Appended | None, error: StreamError | None) -> None:
            if future.done():
                return  # the waiter was cancelled
            if error is not None:
                future.set_exception(error)
            elif appended is not None:
                future.set_result(appended)

        self.then(wake)
        return (yield from future)
