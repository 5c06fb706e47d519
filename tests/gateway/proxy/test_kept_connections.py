"""Which requests share a connection to a program in a box, and what happens when the program closes it."""

from __future__ import annotations

import asyncio
import itertools
import socket
from collections.abc import Callable

import pytest
from tests.gateway.conftest import Session
from tests.server.test_box_ports import Listener

from holdfast.api.box.process import Connection
from holdfast.gateway.proxy.kept_connections import KeptConnections, Route

Listen = Callable[..., Listener]


def serving(*, most: int = 100, after: bytes = b"", head: bytes = b"") -> Callable[[socket.socket, bytes], None]:
    """A program that answers with the number of the connection, up to `most` requests on each."""
    numbers = itertools.count(1)

    def serve(taken: socket.socket, first: bytes) -> None:
        body = b"%d" % next(numbers)
        for _ in range(most):
            taken.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n%b\r\n%b%b" % (len(body), head, body, after))
            request = b""
            while b"\r\n\r\n" not in request:
                piece = taken.recv(65536)
                if not piece:
                    return
                request += piece

    return serve


def asked(session: Session, headers: dict[str, str], method: str = "GET", content: bytes | None = None) -> str:
    answer = session.visit("/t/app/", method, headers=headers, content=content)
    assert answer.status_code == 200, answer.text
    return answer.text


def test_the_requests_of_a_visitor_share_a_connection_and_those_of_two_never_do(
    session: Session, listen: Listen
) -> None:
    session.tunnel("app", listen(serving()).port)
    ada, vera = session.bearer("ada"), session.bearer("vera", "collaborator")
    assert [asked(session, ada), asked(session, ada)] == ["1", "1"]
    assert [asked(session, vera), asked(session, ada), asked(session, vera)] == ["2", "1", "2"]
    # What has a body, or changes something, is not sent on a connection that the program may be closing.
    assert asked(session, ada, "POST", content=b"x") == "3"
    assert asked(session, ada) == "1"


@pytest.mark.parametrize(
    "program",
    [
        serving(after=b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nforged"),
        serving(after=b"garbage"),
        serving(head=b"connection: close\r\n"),
    ],
    ids=["two answers", "garbage after it", "it closes"],
)
def test_a_connection_is_kept_only_after_a_clean_end(session: Session, listen: Listen, program: object) -> None:
    session.tunnel("app", listen(program).port)
    ada = session.bearer()
    assert [asked(session, ada) for _ in range(3)] == ["1", "2", "3"]


def test_a_request_goes_out_again_if_the_program_closed_the_kept_connection(session: Session, listen: Listen) -> None:
    program = listen(serving(most=1))
    session.tunnel("app", program.port)
    ada = session.bearer()
    assert [asked(session, ada) for _ in range(3)] == ["1", "2", "3"]
    assert not program.problems


class Fake(Connection):
    """A connection that only notes that it was closed."""

    def __init__(self) -> None:
        self.closed = asyncio.Event()

    async def read(self, limit: int = 1 << 16) -> bytes:
        return b""

    async def write(self, data: bytes) -> None: ...

    async def close_write(self) -> None: ...

    async def close(self) -> None:
        self.closed.set()


@pytest.mark.anyio
async def test_kept_connections_are_few_and_end_soon() -> None:
    kept = KeptConnections(idle_seconds=0.01)
    route, other = Route("b-1", 80, "ada"), Route("b-1", 80, "vera")
    connections = [Fake() for _ in range(40)]
    for each in connections:
        kept.keep(route, each)
    assert kept.take(other) is None
    taken = kept.take(route)
    assert isinstance(taken, Fake)
    await asyncio.gather(*(each.closed.wait() for each in connections if each is not taken))
    assert kept.take(route) is None
    assert not taken.closed.is_set()
    last = Fake()
    kept.keep(route, last)
    await kept.close()
    assert last.closed.is_set()
