"""The gateway of this server: which sessions there are, and how it is opened.

A session is a thread with a box. So every thread whose box is there can be opened in a browser, whoever started it.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from holdfast.api.box.box import Box
from holdfast.api.errors import NotFound
from holdfast.api.errors.boxes import BoxNotFound
from holdfast.api.session.sessions import SessionStep
from holdfast.boxes.service.boxes import Boxes
from holdfast.change_limit import ChangeLimit
from holdfast.gateway.access import GatewayAccess
from holdfast.gateway.app import Gateway
from holdfast.gateway.credentials.cookies import Cookies
from holdfast.gateway.credentials.issuers import Issuers
from holdfast.gateway.credentials.tokens import cookie_key
from holdfast.gateway.hosts import SessionHosts
from holdfast.gateway.internal_api import InternalApi, InternalRoute
from holdfast.gateway.open_boxes import OpenBoxes
from holdfast.gateway.proxy.kept_connections import KeptConnections
from holdfast.gateway.proxy.relay import Relay
from holdfast.gateway.records import Records
from holdfast.gateway.sessions import ProgramView, SessionView
from holdfast.gateway.terminal.terminals import Terminals
from holdfast.gateway.tunnel.registry import TunnelRegistry
from holdfast.gateway.visitors import Visitors
from holdfast.runs.launch.plan import key_of
from holdfast.threads.access.credentials import Access
from holdfast.threads.rows import ThreadRow
from holdfast.threads.service import Threads

if TYPE_CHECKING:
    from holdfast.storage import Storage
    from holdfast.threads.access.seals import Seals

_THREAD_KEY: Final = key_of("")
_FRESH_SECONDS: Final = 1.0
"""A page is dozens of requests, which need not look up the same box dozens of times."""
_MOST_FOUND: Final = 1024


class ThreadSessions:
    """`Sessions` over threads and their boxes: the id of a session is that of its thread."""

    def __init__(
        self,
        threads: Threads,
        boxes: Boxes,
        programs: Callable[[ThreadRow], Awaitable[Sequence[SessionStep]]],
        ticks: Callable[[], float] = time.monotonic,
    ) -> None:
        """`programs` returns those of the workstation of a session."""
        self._threads = threads
        self._boxes = boxes
        self._programs = programs
        self._ticks = ticks
        self._found: dict[str, tuple[SessionView, float]] = {}
        """Sessions with a box, and until when they need not be looked up again."""

    async def find(self, id: str) -> SessionView | None:
        found = self._found.get(id)
        if found is not None and self._ticks() < found[1]:
            return found[0]
        session = await self._look_up(id)
        if len(self._found) >= _MOST_FOUND:
            self._found.clear()
        self._found.pop(id, None)
        if session is not None and session.box is not None:
            self._found[id] = (session, self._ticks() + _FRESH_SECONDS)
        return session

    async def _look_up(self, id: str) -> SessionView | None:
        try:
            row = await self._threads.get(id)
        except NotFound:
            return None
        box = await self._boxes.of_key(key_of(id))
        session = row.runs.session  # of a thread that is no session, its box says what it does
        if box is None:
            return SessionView(id, id, "without a box" if session is None else session.state.value)
        return SessionView(id, id, box.state.value if session is None else session.state.value, box.id)

    async def programs(self, session: SessionView) -> list[ProgramView]:
        try:
            row = await self._threads.get(session.thread)
        except NotFound:
            return []
        if row.runs.session is None:
            return []
        return [
            ProgramView(each.name, each.title, each.state.value, each.detail, each.path)
            for each in await self._programs(row)
        ]

    @contextlib.asynccontextmanager
    async def open_box(self, session: SessionView) -> AsyncIterator[Box]:
        assert session.box is not None
        with self._boxes.working(session.box):
            async with await self._boxes.open(session.box) as box:
                yield box

    async def of_box(self, box: str) -> SessionView | None:
        try:
            row = await self._boxes.get(box)
        except BoxNotFound:
            return None
        if row.key is None or not row.key.startswith(_THREAD_KEY):
            return None
        return await self.find(row.key.removeprefix(_THREAD_KEY))


@dataclass(frozen=True, slots=True)
class SessionGateway:
    """The gateway and what belongs to it."""

    app: Gateway
    tunnels: TunnelRegistry
    internal_api: InternalApi

    @classmethod
    @contextlib.asynccontextmanager
    async def open(
        cls,
        storage: Storage,
        threads: Threads,
        seals: Seals,
        boxes: Boxes,
        programs: Callable[[ThreadRow], Awaitable[Sequence[SessionStep]]],
        hosts: SessionHosts,
        relay: Relay,
        secret: bytes,
        clock: Callable[[], int],
        callers: Access,
        routes: Sequence[InternalRoute] = (),
    ) -> AsyncIterator[SessionGateway]:
        """`secret` is what the keys of sessions are derived from. `callers` knows who may issue links. `routes` are
        those of other parts, for the internal API."""
        sessions = ThreadSessions(threads, boxes, programs)
        records = Records(storage.streams, seals, clock)
        cookies = Cookies(storage.gateway_cookies, clock, cookie_key(secret))
        visitors = Visitors()
        access = GatewayAccess(secret, records, cookies, visitors, Issuers(callers.role_of, clock), clock)
        callers.on_review.append(access.review_issuers)
        tunnels = TunnelRegistry(records, hosts, visitors, ChangeLimit(clock))
        open_boxes = OpenBoxes(sessions.open_box)
        kept = KeptConnections()
        app = Gateway(sessions, access, hosts, Terminals(), relay, open_boxes, kept)
        sweep = asyncio.create_task(cookies.keep(), name="sweep of cookies")
        try:
            yield cls(app, tunnels, InternalApi(sessions, (*tunnels.internal_routes(), *routes)))
        finally:
            callers.on_review.remove(access.review_issuers)
            sweep.cancel()
            await asyncio.gather(sweep, return_exceptions=True)
            await kept.close()
            await open_boxes.close()
