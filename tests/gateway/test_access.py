"""Rights that end while somebody uses them: what is taken away at the worst moment is still taken away."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from starlette.websockets import WebSocket, WebSocketState

from holdfast.api.access.tenants import TenantRole
from holdfast.api.box.box import Box
from holdfast.api.errors import Forbidden, HoldfastError, NotFound, Unauthorized
from holdfast.api.session.gateway import NewTunnel, Role
from holdfast.change_limit import ChangeLimit
from holdfast.gateway.access import TICKET_SECONDS, GatewayAccess
from holdfast.gateway.app import Gateway, _take_input
from holdfast.gateway.credentials.cookie_values import new_value
from holdfast.gateway.credentials.cookies import COOKIE, IDLE_SECONDS, CookieRow, Cookies
from holdfast.gateway.credentials.issuers import Issuers
from holdfast.gateway.credentials.tokens import digest
from holdfast.gateway.hosts import SessionHosts
from holdfast.gateway.open_boxes import OpenBoxes
from holdfast.gateway.proxy.kept_connections import KeptConnections
from holdfast.gateway.proxy.relay import Relay
from holdfast.gateway.records import Records
from holdfast.gateway.sessions import ProgramView, SessionView
from holdfast.gateway.terminal.terminals import Terminals
from holdfast.gateway.tunnel.registry import TunnelRegistry
from holdfast.gateway.visitors import Visitor, Visitors
from holdfast.storage.sqlite.access.gateway_cookies import SqliteCookies
from holdfast.storage.sqlite.database import Database
from holdfast.storage.sqlite.streams import SqliteStreams
from holdfast.threads.access.credentials import Issuer
from holdfast.threads.access.seals import Seals
from holdfast.threads.store import StreamConfig

pytestmark = pytest.mark.anyio

KEY = b"k" * 32
SESSION = SessionView("t-1", "t-1", "running")
APP = NewTunnel(name="app", port=3000)
Change = Callable[["World"], Awaitable[None]]


class SlowCookies(SqliteCookies):
    """Something else happens while it reads or writes."""

    meanwhile: Callable[[], Awaitable[None]] | None = None

    async def find(self, digest: str) -> CookieRow | None:
        found = await super().find(digest)
        await self._let_happen()
        return found

    async def renew(self, digest: str, expires_at: int) -> bool:
        renewed = await super().renew(digest, expires_at)
        await self._let_happen()
        return renewed

    async def add(self, row: CookieRow) -> None:
        await self._let_happen()
        await super().add(row)

    async def _let_happen(self) -> None:
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            await meanwhile()


@dataclass
class World:
    streams: SqliteStreams
    store: SlowCookies
    now: list[int]
    visitors: Visitors = field(default_factory=Visitors)

    def __post_init__(self) -> None:
        records = Records(self.streams, Seals(b"of these tests"), self.clock)
        cookies = Cookies(self.store, self.clock, KEY)
        self.access = GatewayAccess(
            b"secret", records, cookies, self.visitors, Issuers(self.role_of, self.clock), self.clock
        )
        hosts, limit = SessionHosts("http", ":1"), ChangeLimit(self.clock)
        self.tunnels = TunnelRegistry(records, hosts, self.visitors, limit)

    def clock(self) -> int:
        return self.now[0]

    async def role_of(self, issuer: Issuer, since: int) -> TenantRole | None:
        return TenantRole.MEMBER

    async def token(self, subject: str = "eve", seconds: int = 600) -> str:
        await self.access.set_member(SESSION, subject, Role.COLLABORATOR)
        return (await self.access.issue_token(SESSION, subject, seconds))[0]

    async def log_in(self, token: str) -> str:
        return await self.access.issue_cookie(SESSION, await self.access.by_token(SESSION, token))

    async def ticket(self, cookie: str) -> str:
        return await self.access.issue_ticket(SESSION, await self.visitor(cookie), "app")

    async def enter(self, ticket: str) -> str:
        return await self.access.issue_cookie(SESSION, await self.access.by_ticket(SESSION, ticket, "app"), "app")

    async def visitor(self, *cookies: str, tunnel: str | None = None) -> Visitor:
        found = await self.access.by_cookies(SESSION, list(cookies), tunnel)
        assert found is not None
        return found

    async def is_in(self, cookie: str, tunnel: str | None = None) -> bool:
        """Whether a cookie is valid, here and at a server that starts now."""
        other = World(self.streams, self.store, self.now).access
        found = [await each.by_cookies(SESSION, [cookie], tunnel) is not None for each in (self.access, other)]
        assert found[0] == found[1]
        return found[0]

    async def recreate_thread(self) -> None:
        await self.streams.delete("threads/t-1")
        await self.streams.create("threads/t-1", StreamConfig(content_type="application/json"))
        self.now[0] += 2000


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    streams = await SqliteStreams.open(tmp_path / "streams.db")
    await streams.create("threads/t-1", StreamConfig(content_type="application/json"))
    async with Database(tmp_path / "cookies.db") as database:
        yield World(streams, SlowCookies(database), [1_800_000_000_000])
    await streams.close()


# --- between the check and the connection ---


async def remove(world: World) -> None:
    await world.access.remove_member(SESSION, "eve")


async def demote(world: World) -> None:
    await world.access.set_member(SESSION, "eve", Role.VIEWER)


async def revoke_all(world: World) -> None:
    await world.access.revoke_all(SESSION)


async def delete_tunnel(world: World) -> None:
    await world.tunnels.delete(SESSION, "app")


async def move_tunnel(world: World) -> None:
    await world.tunnels.register(SESSION, {"name": "app", "port": 3001})


@pytest.mark.parametrize("change", [remove, demote, revoke_all])
async def test_a_right_that_ends_while_other_cookies_are_looked_up_is_gone(world: World, change: Change) -> None:
    """Cookies that are no longer known make the server read its store before the one that counts."""
    cookie = await world.log_in(await world.token())
    world.store.meanwhile = lambda: change(world)
    try:
        others = [new_value(KEY, SESSION.id) for _ in range(7)]
        found = await world.access.by_cookies(SESSION, [*others, cookie])
    except Forbidden:
        return
    assert found is None or found.role is Role.VIEWER


@pytest.mark.parametrize("change", [remove, demote, revoke_all, delete_tunnel, move_tunnel])
async def test_a_right_that_ends_before_the_connection_opens_opens_none(world: World, change: Change) -> None:
    await world.tunnels.register(SESSION, APP.to_json())
    token = await world.token()
    cookie = await world.log_in(token)
    for came in (await world.visitor(cookie), await world.access.by_token(SESSION, token)):
        visitor = replace(came, tunnel=APP)
        async with world.access.present(SESSION, visitor):
            visitor.check_not_over()
    visitors = [replace(await world.visitor(cookie), tunnel=APP), await world.access.by_token(SESSION, token)]
    await change(world)
    for visitor in visitors if change not in (delete_tunnel, move_tunnel) else visitors[:1]:
        with pytest.raises(HoldfastError) as refused:
            async with world.access.present(SESSION, visitor):
                pytest.fail("they are in")
        assert isinstance(refused.value, Unauthorized | Forbidden | NotFound)


class OneSession:
    """`Sessions` with a session that has no box: whoever is let in hears of that."""

    async def find(self, id: str) -> SessionView | None:
        return SESSION

    async def programs(self, session: SessionView) -> list[ProgramView]:
        return []

    async def of_box(self, box: str) -> SessionView | None:
        return None

    @contextlib.asynccontextmanager
    async def open_box(self, session: SessionView) -> AsyncIterator[Box]:
        raise AssertionError("it has no box")
        yield


async def ask(world: World, cookie: str, *, socket: bool) -> int:
    """The status of a request for a terminal, or for a page of a tunnel."""
    sessions, never = OneSession(), asyncio.get_running_loop().create_future()
    relay = Relay(lambda: "q-1", lambda _, __: None, lambda: never)
    hosts, boxes = SessionHosts("http", ":1"), OpenBoxes(sessions.open_box)
    gateway = Gateway(sessions, world.access, hosts, Terminals(), relay, boxes, KeptConnections())
    host = b"t-1.localhost:1" if socket else b"app--t-1.localhost:1"
    scope: dict[str, Any] = {
        "type": "websocket" if socket else "http",
        "scheme": "ws" if socket else "http",
        "method": "GET",
        "path": "/tty/ws",
        "raw_path": b"/tty/ws",
        "query_string": b"",
        "headers": [(b"host", host), (b"cookie", f"{COOKIE}={cookie}".encode())],
        "subprotocols": ["tty"],
        "state": {"lost": never},
        "extensions": {"websocket.http.response": {}},
    }
    sent: list[dict[str, Any]] = []

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    async def receive() -> dict[str, Any]:
        return {"type": "websocket.connect"}

    await gateway(scope, receive, send)
    return int(sent[0]["status"])


@pytest.mark.parametrize("socket", [True, False])
@pytest.mark.parametrize(("change", "status"), [(remove, 403), (demote, 403), (revoke_all, 401)])
async def test_no_terminal_and_no_tunnel_opens_for_who_lost_the_right_on_the_way(
    world: World, change: Change, status: int, socket: bool
) -> None:
    await world.tunnels.register(SESSION, APP.to_json())
    cookie = await world.log_in(await world.token())
    if not socket:
        cookie = await world.enter(await world.ticket(cookie))
    assert await ask(world, cookie, socket=socket) == 502
    world.now[0] += 120_000  # so that the use is written down, after the check
    world.store.meanwhile = lambda: change(world)
    assert await ask(world, cookie, socket=socket) == status
    assert world.store.meanwhile is None


@pytest.mark.parametrize("change", [remove, demote, revoke_all, delete_tunnel, move_tunnel])
async def test_a_right_that_ends_while_a_connection_is_open_closes_it_and_no_other(
    world: World, change: Change
) -> None:
    await world.tunnels.register(SESSION, APP.to_json())
    visitor = replace(await world.visitor(await world.log_in(await world.token())), tunnel=APP)
    other = await world.access.by_token(SESSION, await world.token("ada"))
    async with world.access.present(SESSION, visitor), world.access.present(SESSION, other):
        await change(world)
        with pytest.raises(Unauthorized):
            visitor.check_not_over()
        assert other.over.done() == (change is revoke_all)


async def test_what_is_typed_at_the_moment_of_the_removal_does_not_reach_the_shell() -> None:
    typed: list[bytes] = []
    over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    over.set_result(None)

    class Shell:
        async def write(self, data: bytes) -> None:
            typed.append(data)

    sent: list[dict[str, Any]] = [
        {"type": "websocket.receive", "bytes": b"0rm -rf /\n"},
        {"type": "websocket.disconnect"},
    ]

    async def receive() -> dict[str, Any]:
        return sent.pop(0)

    async def send(message: dict[str, Any]) -> None: ...

    socket = WebSocket({"type": "websocket"}, receive, send)  # type: ignore[arg-type]
    socket.client_state = WebSocketState.CONNECTED
    await _take_input(socket, Shell(), asyncio.Event(), over, types=True)  # type: ignore[arg-type]
    assert typed == []


async def test_who_was_here_before_everything_was_revoked_gets_no_new_credential(world: World) -> None:
    token = await world.token()
    by_token, by_cookie = await world.access.by_token(SESSION, token), await world.visitor(await world.log_in(token))
    await world.access.revoke_all(SESSION)
    with pytest.raises(Unauthorized):
        await world.access.issue_cookie(SESSION, by_token)
    with pytest.raises(Unauthorized):
        await world.access.issue_ticket(SESSION, by_cookie, "app")


# --- what came from what was revoked ---


@pytest.mark.parametrize("revoked", ["token", "cookie"])
async def test_with_a_credential_ends_all_that_came_from_it(world: World, revoked: str) -> None:
    token = await world.token()
    cookie, second = await world.log_in(token), await world.log_in(token)
    ticket = await world.ticket(cookie)
    entered = await world.enter(await world.ticket(cookie))
    visitor = await world.visitor(entered, tunnel="app")
    async with world.access.present(SESSION, visitor):
        await world.access.revoke(SESSION, token if revoked == "token" else cookie)
        assert visitor.over.done()
    assert not await world.is_in(cookie)
    assert not await world.is_in(entered, "app")
    assert await world.is_in(second) == (revoked == "cookie")
    with pytest.raises(Unauthorized):
        await world.enter(ticket)


@pytest.mark.parametrize("revoked", ["token", "cookie"])
async def test_a_ticket_stays_revoked_when_its_token_expires(world: World, revoked: str) -> None:
    token = await world.token(seconds=5)
    cookie = await world.log_in(token)
    ticket = await world.ticket(cookie)
    await world.access.revoke(SESSION, token if revoked == "token" else cookie)
    for _ in range(TICKET_SECONDS - 1):
        world.now[0] += 1000
        with pytest.raises(Unauthorized, match="revoked"):
            await world.access.by_ticket(SESSION, ticket, "app")


async def test_an_expired_link_or_cookie_is_revoked_with_what_came_from_it(world: World) -> None:
    token = await world.token(seconds=5)
    cookie = await world.log_in(token)
    world.now[0] += 6000
    assert await world.is_in(cookie)
    await world.access.revoke(SESSION, token)
    assert not await world.is_in(cookie)

    cookie = await world.log_in(await world.token())
    entered = await world.enter(await world.ticket(cookie))
    for _ in range(2):
        world.now[0] += IDLE_SECONDS * 900
        assert await world.is_in(entered, "app")
    await world.access.cookies.sweep()
    assert await world.store.find(digest(cookie)) is None
    await world.access.revoke(SESSION, cookie)
    assert not await world.is_in(entered, "app")


async def test_what_was_never_a_credential_of_the_session_cannot_be_revoked(world: World) -> None:
    for other in ("a" * 64, "a.b.c", (await world.token())[:-4] + "AAAA"):
        with pytest.raises(NotFound):
            await world.access.revoke(SESSION, other)


@pytest.mark.parametrize("everything", [True, False])
async def test_a_cookie_that_is_issued_while_its_token_is_revoked_is_not_valid(world: World, everything: bool) -> None:
    token = await world.token()
    visitor = await world.access.by_token(SESSION, token)
    added: list[CookieRow] = []

    async def meanwhile() -> None:
        await (world.access.revoke_all(SESSION) if everything else world.access.revoke(SESSION, token))

    world.store.meanwhile = meanwhile
    world.access.cookies._remember = lambda known: added.append(known.row)  # type: ignore[method-assign]
    with pytest.raises(Unauthorized):
        await world.access.issue_cookie(SESSION, visitor)
    assert len(added) == 1
    assert await world.store.find(added[0].digest) is None


async def test_a_cookie_that_is_remembered_after_its_removal_is_refused_until_it_expires(world: World) -> None:
    token = await world.token(seconds=1)
    cookie = await world.log_in(token)
    access = World(world.streams, world.store, world.now).access
    world.store.meanwhile = lambda: access.revoke(SESSION, token)
    assert await access.by_cookies(SESSION, [cookie]) is None  # it was read before, and is remembered after
    assert await world.store.find(digest(cookie)) is None
    for _ in range(2 * IDLE_SECONDS // 10):
        world.now[0] += 10_000
        assert await access.by_cookies(SESSION, [cookie]) is None


# --- a thread that is created again ---


async def test_a_new_thread_with_the_id_of_a_deleted_one_takes_none_of_its_credentials(world: World) -> None:
    token = await world.token()
    cookie = await world.log_in(token)
    ticket = await world.ticket(cookie)
    await world.recreate_thread()
    await world.token()  # the same person is invited again
    with pytest.raises(Unauthorized):
        await world.access.by_token(SESSION, token)
    with pytest.raises(Unauthorized):
        await world.access.by_ticket(SESSION, ticket, "app")
    assert not await world.is_in(cookie)
    assert await world.is_in(await world.log_in(await world.token()))
