"""Boxes that stay open between requests. A page is dozens of them, and opening a box takes longer than most."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from typing import Final

from holdfast.api.box.box import Box
from holdfast.gateway.sessions import SessionView

_LINGER_SECONDS: Final = 5.0

Open = Callable[[SessionView], AbstractAsyncContextManager[Box]]


class _Opened:
    """One open box. A task of its own opens and closes it."""

    def __init__(self, session: SessionView, open: Open) -> None:
        self.users = 0
        self.closing: asyncio.TimerHandle | None = None
        self._unused = asyncio.Event()
        self.ready: asyncio.Future[Box] = asyncio.get_running_loop().create_future()
        self.task = asyncio.create_task(self._hold(session, open), name=f"open box {session.box}")

    async def _hold(self, session: SessionView, open: Open) -> None:
        try:
            async with open(session) as box:
                if not self.ready.done():
                    self.ready.set_result(box)
                await self._unused.wait()
        except BaseException as error:
            if self.ready.done():
                raise
            if isinstance(error, asyncio.CancelledError):
                self.ready.cancel()
                raise
            self.ready.set_exception(error)
            self.ready.exception()  # also if everybody has left meanwhile

    def release(self) -> None:
        """Close it. Nobody uses it any more."""
        if self.closing is not None:
            self.closing.cancel()
        self._unused.set()


class OpenBoxes:
    """Opens the boxes of sessions, once for all requests that need them, and closes them some time after the last."""

    def __init__(self, open: Open, *, linger_seconds: float = _LINGER_SECONDS) -> None:
        self._open = open
        self._linger = linger_seconds
        self._opened: dict[str, _Opened] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    @contextlib.asynccontextmanager
    async def open(self, session: SessionView) -> AsyncIterator[Box]:
        """The box of a session, which has one. An error of the box makes the next request open it again."""
        assert session.box is not None
        opened = self._opened.get(session.box)
        if opened is None:
            opened = self._opened[session.box] = _Opened(session, self._open)
            self._tasks.add(opened.task)
            opened.task.add_done_callback(self._tasks.discard)
        if opened.closing is not None:
            opened.closing.cancel()
            opened.closing = None
        opened.users += 1
        try:
            # Others wait for it, too.
            yield opened.ready.result() if opened.ready.done() else await asyncio.shield(opened.ready)
        except BaseException as error:
            if isinstance(error, Exception):
                self._forget(session.box, opened)
            raise
        finally:
            opened.users -= 1
            if not opened.users:
                self._let_go(session.box, opened)

    async def close(self) -> None:
        for opened in self._opened.values():
            opened.release()
        self._opened.clear()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _forget(self, box: str, opened: _Opened) -> None:
        if self._opened.get(box) is opened:
            del self._opened[box]

    def _let_go(self, box: str, opened: _Opened) -> None:
        if self._opened.get(box) is not opened:
            opened.release()
            return
        opened.closing = asyncio.get_running_loop().call_later(self._linger, self._expire, box, opened)

    def _expire(self, box: str, opened: _Opened) -> None:
        self._forget(box, opened)
        opened.release()
