"""The relay to ports of boxes, with boxes that take their time: its limits are too long to wait for on a server."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Iterator
from typing import Any, cast

import pytest

from holdfast.api.box.box import Box
from holdfast.api.box.process import Connection
from holdfast.boxes.service.boxes import Boxes
from holdfast.server.lazy import Lazy
from holdfast.server.shutdown import Shutdown
from holdfast.server.telemetry.metrics import Metrics
from holdfast.server.wire.origins import OriginPolicy
from holdfast.server.wire.port_relay import PortRelay
from holdfast.server.wire.ports import Ports
from holdfast.server.wire.preview import Carrier, Previews
from holdfast.threads.access.credentials import Access

pytestmark = pytest.mark.anyio


class Silent(Connection):
    """Takes everything, says nothing."""

    def __init__(self, takes: int) -> None:
        self.takes = takes
        self.closed = False

    async def read(self, limit: int = 1 << 16) -> bytes:
        await asyncio.Event().wait()
        return b""

    async def write(self, data: bytes) -> None:
        self.takes -= len(data)
        if self.takes < 0:
            await asyncio.Event().wait()

    async def close_write(self) -> None:
        pass

    async def close(self) -> None:
        self.closed = True


class Stub:
    """A box service with one box, whose ports are as told."""

    id = "b-1"

    def __init__(self, connection: Connection | None) -> None:
        self.connection = connection
        self.worked: list[str] = []

    async def get(self) -> Stub:
        return self

    @contextlib.contextmanager
    def working(self, id: str) -> Iterator[None]:
        try:
            yield
        finally:
            self.worked.append(id)

    async def open(self, id: str) -> Box:
        return cast("Box", self)

    async def connect(self, port: int) -> Connection:
        if self.connection is None:
            await asyncio.Event().wait()
        assert self.connection is not None
        return self.connection

    async def __aenter__(self) -> Stub:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass


async def visit(stub: Stub, body: int = 0) -> tuple[int, bytes]:
    access = Access(cast("Any", None), b"secret", required=False)
    ports = Ports(access, OriginPolicy(open_server=True), Previews(b"key", required=False))
    metrics = Metrics(Counter(), dict, lambda: 0)
    boxes = cast("Lazy[Boxes]", stub)
    relay = PortRelay(ports, boxes, Shutdown(), metrics, lambda: "r-1", connect_seconds=0.05, answer_seconds=0.1)
    left = body
    answered: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        nonlocal left
        if left < 0:
            await asyncio.Event().wait()
        piece = bytes(min(left, 1 << 16))
        left = left - len(piece) if left > len(piece) else -1
        return {"type": "http.request", "body": piece, "more_body": left > 0}

    async def send(message: dict[str, Any]) -> None:
        answered.append(message)

    scope = {
        "type": "http",
        "method": "POST",
        "scheme": "http",
        "path": "/v1/boxes/b-1/ports/80/",
        "raw_path": b"/v1/boxes/b-1/ports/80/",
        "query_string": b"",
        "headers": [(b"host", b"localhost"), (b"content-length", str(body).encode())],
        "state": {},
    }
    async with asyncio.timeout(240):
        await relay(scope, receive, send)
    return answered[0]["status"], b"".join(each.get("body", b"") for each in answered[1:])


async def test_a_box_that_takes_no_connection_is_not_waited_for() -> None:
    stub = Stub(None)
    status, body = await visit(stub)
    assert (status, b"gateway_timeout" in body, stub.worked) == (504, True, ["b-1"])


async def test_a_box_that_does_not_answer_is_not_waited_for() -> None:
    silent = Silent(1 << 30)
    status, body = await visit(Stub(silent))
    assert (status, b"gateway_timeout" in body, silent.closed) == (504, True, True)


async def test_a_box_that_takes_nothing_more_is_not_waited_for() -> None:
    silent = Silent(100_000)
    status, _ = await visit(Stub(silent), body=1 << 20)
    assert (status, silent.closed) == (504, True)


def test_a_preview_holds_for_its_port_its_carrier_and_its_time() -> None:
    now = 1_000_000_000
    previews = Previews(b"key", required=True, clock=lambda: now)
    token = previews.issue(Carrier.URL, "b-1", 80)
    assert previews.holds(token, Carrier.URL, "b-1", 80)
    for carrier, box, port in ((Carrier.COOKIE, "b-1", 80), (Carrier.URL, "b-2", 80), (Carrier.URL, "b-1", 81)):
        assert not previews.holds(token, carrier, box, port)
    for wrong in ("", "-", "x-y", token + "x", token[:-1], f"f{token}", "\N{SNOWMAN}-\N{SNOWMAN}"):
        assert not previews.holds(wrong, Carrier.URL, "b-1", 80)
    assert not Previews(b"other", required=True, clock=lambda: now).holds(token, Carrier.URL, "b-1", 80)
    now += 301_000
    assert not previews.holds(token, Carrier.URL, "b-1", 80)


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1:8484", "http://80-b-1.localhost:8484/"),
        ("localhost", "http://80-b-1.localhost/"),
        ("[::1]:8484", "http://80-b-1.localhost:8484/"),
        ("[::1]", "http://80-b-1.localhost/"),
        ("box.example:8484", "http://box.example:8484/v1/boxes/b-1/ports/80/"),
        ("192.0.2.1", "http://192.0.2.1/v1/boxes/b-1/ports/80/"),
    ],
)
def test_a_port_is_visited_by_name_where_names_lead_here(host: str, expected: str) -> None:
    assert Previews(b"key", required=False).url("http", host, "b-1", 80) == expected
