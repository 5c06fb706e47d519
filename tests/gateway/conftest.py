"""Sessions on a real server, whose boxes are dummies: their ports are this machine's."""

from __future__ import annotations

import itertools
import socket
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from tests.server.conftest import api_of, dummy_server
from tests.server.raw import RawClient
from tests.server.test_box_ports import OK, Listener, Script
from websockets.sync.client import ClientConnection, connect

from holdfast.testing.server import ServerProcess

__all__ = ["dummy_server"]

_numbers = itertools.count(1)
HTML = {"accept": "text/html"}


@dataclass
class Session:
    """A thread with a box, as somebody outside sees it."""

    server: ServerProcess
    api: httpx.Client
    id: str
    box: str

    @property
    def host(self) -> str:
        return f"{self.id}.localhost:{self.server.address[1]}"

    def tunnel_host(self, label: str) -> str:
        return f"{label}--{self.host}"

    def ask(self, method: str, path: str, **body: Any) -> httpx.Response:
        """Ask the API about this session."""
        return self.api.request(method, f"/v1/sessions/{self.id}{path}", json=body or None)

    def link(self, subject: str = "ada", role: str | None = "owner", seconds: int = 600) -> str:
        """Returns a token."""
        wanted = {"subject": subject, "seconds": seconds} | ({} if role is None else {"role": role})
        answer = self.api.post(f"/v1/sessions/{self.id}/links", json=wanted)
        assert answer.status_code == 201, answer.text
        return str(answer.json()["token"])

    def tunnel(self, name: str, port: int) -> None:
        answer = self.api.post(f"/v1/sessions/{self.id}/tunnels", json={"name": name, "port": port})
        assert answer.status_code == 201, answer.text

    def visit(
        self,
        path: str,
        method: str = "GET",
        *,
        host: str | None = None,
        headers: dict[str, str] | None = None,
        **more: Any,
    ) -> httpx.Response:
        """One request to the gateway, without cookies or credentials other than those in `headers`."""
        with httpx.Client(base_url=self.server.url, timeout=240, trust_env=False) as client:
            return client.request(method, path, headers={"host": host or self.host, **(headers or {})}, **more)

    def cookie(self, subject: str = "ada", role: str | None = "owner") -> dict[str, str]:
        """Open a link. Returns the header with the cookie."""
        answer = self.visit(f"/?token={self.link(subject, role)}")
        assert answer.status_code == 303, answer.text
        return {"cookie": answer.headers["set-cookie"].partition(";")[0]}

    def bearer(self, subject: str = "ada", role: str | None = "owner") -> dict[str, str]:
        return {"authorization": f"Bearer {self.link(subject, role)}"}

    def socket(
        self, path: str, headers: dict[str, str], *, host: str | None = None, **options: Any
    ) -> ClientConnection:
        opened: ClientConnection = connect(
            f"ws://{host or self.host}{path}",
            sock=socket.create_connection(self.server.address),
            additional_headers=headers,
            compression=None,
            proxy=None,
            **options,
        )
        return opened

    def raw(self) -> RawClient:
        return RawClient(self.server.address)


def new_session(server: ServerProcess, api: httpx.Client) -> Session:
    thread = str(api.post("/v1/threads", json={"title": f"session {next(_numbers)}"}).json()["id"])
    answer = api.post("/v1/boxes", json={"key": f"thread/{thread}"})
    assert answer.status_code == 201, answer.text
    return Session(server, api, thread, str(answer.json()["box"]["id"]))


@pytest.fixture
def new(dummy_server: ServerProcess) -> Iterator[Callable[[], Session]]:
    """Makes sessions. Their boxes are deleted in the end."""
    made: list[Session] = []
    with api_of(dummy_server) as api:

        def make() -> Session:
            made.append(new_session(dummy_server, api))
            return made[-1]

        yield make
        for each in made:
            api.delete(f"/v1/boxes/{each.box}")


@pytest.fixture
def session(new: Callable[[], Session]) -> Session:
    return new()


@pytest.fixture
def listen() -> Iterator[Callable[[Script | bytes], Listener]]:
    """Makes programs that listen in the box."""
    made: list[Listener] = []

    def listen(script: Script | bytes = OK) -> Listener:
        answer = script

        def whole(taken: socket.socket, head: bytes) -> None:
            assert isinstance(answer, bytes)
            taken.sendall(answer)

        made.append(Listener(whole if isinstance(script, bytes) else script))
        return made[-1]

    yield listen
    for each in made:
        each.close()


def free_port() -> int:
    """A port on which nothing listens now."""
    with closing(socket.create_server(("127.0.0.1", 0))) as unused:
        port: int = unused.getsockname()[1]
        return port


def path_of(url: str) -> str:
    parts = urlsplit(url)
    return parts.path + (f"?{parts.query}" if parts.query else "")
