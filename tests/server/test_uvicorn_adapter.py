"""What we rely on in uvicorn, one by one. Says what is missing where a new version lacks something."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
import uvicorn
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

import holdfast
from holdfast.server.wire.uvicorn_adapter import STATUS_LINE, Config, HttpToolsProtocol, ServerState, make_config

pytestmark = pytest.mark.anyio


class Reliance(NamedTuple):
    owner: str
    name: str
    reason: str


ATTRIBUTES: Final = [
    *(
        Reliance("protocol", name, reason)
        for name, reason in {
            "app": "a queued stream request stands beside the app of others",
            "connections": "an upgraded connection leaves the set, and its tunnel enters it",
            "cycle": "the request that came in last",
            "expect_100_continue": "a client that waits for it is told to go on",
            "flow": "reading pauses while requests wait, and writing while the client is slow",
            "headers": "the head of the request that comes in",
            "loop": "clocks and tasks",
            "parser": "httptools' parser, fed by us",
            "pipeline": "requests that wait for their turn: (cycle, app), the newest on the left",
            "scheme": "told to ports of boxes",
            "scope": "the state of its scope carries the transport",
            "server_state": "counts requests and has the headers of every response",
            "tasks": "the tasks that a shutdown waits for",
            "transport": "the connection",
            "ws_protocol_class": "which protocol takes an upgraded connection",
        }.items()
    ),
    *(
        Reliance("protocol", name, reason)
        for name, reason in {
            "connection_lost": "extended",
            "connection_made": "extended",
            "data_received": "replaced",
            "eof_received": "replaced",
            "handle_websocket_upgrade": "called for WebSockets",
            "on_body": "extended",
            "on_header": "extended",
            "on_headers_complete": "extended",
            "on_message_begin": "extended",
            "on_message_complete": "extended",
            "on_response_complete": "replaced: it starts the next request that waits",
            "on_url": "extended",
            "send_400_response": "replaced",
            "shutdown": "called by the server for each connection when it stops",
            "_should_upgrade": "called: asks _should_upgrade_to_ws",
            "_should_upgrade_to_ws": "replaced: few paths can be upgraded",
            "_start_asgi_task": "extended: also called when the turn of a waiting request has come",
        }.items()
    ),
    *(
        Reliance("cycle", name, "read or set on the requests of others, and kept by our own")
        for name in (
            "disconnected",
            "keep_alive",
            "message_event",
            "more_body",
            "response_complete",
            "scope",
            "transport",
        )
    ),
    *(
        Reliance("flow", name, "keeps slow clients and waiting requests within bounds")
        for name in ("drain", "pause_reading", "read_paused", "resume_reading", "resume_writing", "write_paused")
    ),
    *(
        Reliance("state", name, "shared by all connections of a server")
        for name in ("connections", "default_headers", "tasks", "total_requests")
    ),
    *(
        Reliance("server", name, reason)
        for name, reason in {
            "capture_signals": "replaced: a signal ends serving, and no more",
            "handle_exit": "called on a signal",
            "serve": "called with our listener",
            "server_state": "has all connections",
            "should_exit": "set to stop",
            "shutdown": "extended: long-lived responses end first",
            "startup": "extended: the server is announced before, and opens its parts after",
        }.items()
    ),
]
PARAMETERS: Final[list[tuple[str, Callable[..., Any], list[str]]]] = [
    ("HttpToolsProtocol", HttpToolsProtocol, ["config", "server_state", "app_state", "_loop"]),
    ("HttpToolsProtocol._start_asgi_task", HttpToolsProtocol._start_asgi_task, ["self", "cycle", "app"]),
    ("WebSocketsSansIOProtocol", WebSocketsSansIOProtocol, ["config", "server_state", "app_state"]),
    ("Server.serve", uvicorn.Server.serve, ["self", "sockets"]),
    ("Server.startup", uvicorn.Server.startup, ["self", "sockets"]),
    ("Server.shutdown", uvicorn.Server.shutdown, ["self", "sockets"]),
    ("Server.handle_exit", uvicorn.Server.handle_exit, ["self", "sig", "frame"]),
]
OPTIONS: Final = (
    "access_log", "backlog", "http", "interface", "lifespan", "log_config", "loop", "proxy_headers", "server_header",
    "timeout_graceful_shutdown", "timeout_keep_alive", "ws", "ws_max_size", "ws_per_message_deflate",
    "ws_ping_interval", "ws_ping_timeout",
)  # fmt: skip


async def app(scope: Any, receive: Any, send: Any) -> None:
    raise AssertionError("nobody asks")


@contextlib.asynccontextmanager
async def owners() -> Any:
    """Real ones, of a connection that is open and has a request."""
    config = make_config(app, HttpToolsProtocol)
    server = uvicorn.Server(config)
    state = ServerState()
    made: list[HttpToolsProtocol] = []
    config.load()

    def connected() -> HttpToolsProtocol:
        made.append(HttpToolsProtocol(config, state, {}, _loop=asyncio.get_running_loop()))
        return made[-1]

    listener = await asyncio.get_running_loop().create_server(connected, "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*listener.sockets[0].getsockname())
    writer.write(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
    await reader.readline()  # the app fails, and so it is answered
    protocol = made[0]
    yield {"protocol": protocol, "cycle": protocol.cycle, "flow": protocol.flow, "state": state, "server": server}
    writer.close()
    await writer.wait_closed()
    listener.close()


def missing(owners: dict[str, Any], relied_on: list[Reliance]) -> list[str]:
    """A sentence for everything that is not there."""
    return [
        f"uvicorn {uvicorn.__version__}: {type(owners[each.owner]).__name__} has no {each.name!r} ({each.reason})"
        for each in relied_on
        if not hasattr(owners[each.owner], each.name)
    ]


async def test_uvicorn_has_every_attribute_that_we_rely_on() -> None:
    async with owners() as found:
        assert isinstance(found["cycle"], RequestResponseCycle)
        assert isinstance(found["flow"], FlowControl)
        assert missing(found, ATTRIBUTES) == []


async def test_what_is_missing_is_told_in_a_sentence() -> None:
    async with owners() as found:
        told = missing(found, [Reliance("flow", "drain_all", "an example")])
    assert told == [f"uvicorn {uvicorn.__version__}: FlowControl has no 'drain_all' (an example)"]


@pytest.mark.parametrize(("name", "called", "wanted"), PARAMETERS, ids=[name for name, _, _ in PARAMETERS])
def test_uvicorn_takes_the_parameters_that_we_pass(name: str, called: Callable[..., Any], wanted: list[str]) -> None:
    has = list(inspect.signature(called).parameters)
    assert has[: len(wanted)] == wanted, f"uvicorn {uvicorn.__version__}: {name} takes {has}, we pass {wanted}"


def test_uvicorn_has_the_options_that_we_set() -> None:
    has = inspect.signature(Config).parameters
    assert [name for name in OPTIONS if name not in has] == [], f"uvicorn {uvicorn.__version__}: not options any more"


def test_a_status_line_is_bytes_with_its_end() -> None:
    assert STATUS_LINE[204] == b"HTTP/1.1 204 No Content\r\n"


def test_nothing_else_in_the_package_imports_uvicorn() -> None:
    package = Path(holdfast.__file__).parent
    importing = re.compile(r"^\s*(from|import) uvicorn\b", re.MULTILINE)
    found = {str(each.relative_to(package)) for each in package.rglob("*.py") if importing.search(each.read_text())}
    served = {"testing/sprites/counterpart.py"}  # another API, with the same class for its WebSockets
    assert found - served == {"server/wire/uvicorn_adapter.py", "server/wire/websocket_protocol.py"}
