"""What a key, a login or a member has opened or issued ends when they lose their rights."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import httpx
import pytest
from tests.server.box_providers import dummies
from tests.server.conftest import api_of
from tests.server.test_box_ports import Listener
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from holdfast.testing.server import ServerProcess

_names = count(1)


@dataclass
class Kim:
    """A member with a key, and an owner who can take their rights away."""

    server: ServerProcess
    owner: httpx.Client
    name: str = field(default_factory=lambda: f"kim-{next(_names)}")

    def __post_init__(self) -> None:
        assert self.owner.put(f"/v1/members/{self.name}", json={"role": "member"}).status_code == 200
        made = self.owner.post("/v1/keys", json={"name": self.name, "role": "member", "member": self.name}).json()
        self.key_id, self.key = made["id"], made["key"]
        self.thread = self.owner.post("/v1/threads", json={}).json()["id"]

    def client(self, credential: str | None = None) -> httpx.Client:
        headers = {"Authorization": f"Bearer {credential or self.key}"}
        return httpx.Client(base_url=self.server.url, headers=headers, timeout=240, trust_env=False)

    def token(self, scope: str = "write") -> str:
        with self.client() as client:
            made = client.post(f"/v1/threads/{self.thread}/tokens", json={"scope": scope, "ttlSeconds": 3600})
        assert made.status_code == 201, made.text
        return str(made.json()["token"])

    def say(self, text: str) -> None:
        assert self.owner.post(f"/v1/threads/{self.thread}/chat", json={"text": text}).is_success

    @contextmanager
    def tail(self, credential: str | None = None) -> Iterator[Iterator[str]]:
        """A live read that has reached the end of the thread."""
        with (
            self.client(credential) as client,
            client.stream("GET", f"/v1/stream/threads/{self.thread}?live=sse&offset=-1") as answer,
        ):
            assert answer.status_code == 200
            lines = answer.iter_lines()
            while "upToDate" not in next(lines):
                pass
            yield lines


def revoke_key(kim: Kim) -> None:
    assert kim.owner.delete(f"/v1/keys/{kim.key_id}").status_code == 204


def remove_member(kim: Kim) -> None:
    assert kim.owner.delete(f"/v1/members/{kim.name}").status_code == 204


def lower_role(kim: Kim) -> None:
    assert kim.owner.put(f"/v1/members/{kim.name}", json={"role": "viewer"}).status_code == 200


WAYS = pytest.mark.parametrize("lose", [revoke_key, remove_member, lower_role], ids=lambda each: each.__name__)
Lose = Callable[[Kim], None]


@pytest.fixture
def kim(dummy_server: ServerProcess, api: httpx.Client) -> Kim:
    return Kim(dummy_server, api)


def read_on(lines: Iterator[str]) -> str:
    """All that a live read still delivers."""
    seen: list[str] = []
    with suppress(httpx.RemoteProtocolError):  # it is cut, as it must not look complete
        seen.extend(lines)
    return "\n".join(seen)


def receive_all(opened: ClientConnection) -> None:
    while True:
        opened.recv(timeout=240)


@WAYS
def test_a_live_read_ends_with_the_right_to_it(kim: Kim, lose: Lose) -> None:
    with kim.tail() as lines:
        lose(kim)
        kim.say("said afterwards")
        assert "said afterwards" not in read_on(lines)


def test_a_live_read_of_somebody_else_goes_on(kim: Kim) -> None:
    other = Kim(kim.server, kim.owner)
    other.thread = kim.thread
    with other.tail() as lines:
        remove_member(kim)
        kim.say("said afterwards")
        assert any("said afterwards" in line for line in lines)


def test_a_long_poll_ends_with_the_right_to_it(kim: Kim) -> None:
    path = f"/v1/stream/threads/{kim.thread}"
    answers: list[httpx.Response] = []
    with kim.client() as client:
        end = client.get(path, params={"offset": "-1"}).headers["stream-next-offset"]
        poll = threading.Thread(
            target=lambda: answers.append(client.get(path, params={"offset": end, "live": "long-poll"}))
        )
        poll.start()
        revoke_key(kim)  # whether the poll has begun or not
        kim.say("said afterwards")
        poll.join()
    assert answers[0].status_code == 401, answers[0].text


@WAYS
def test_a_socket_ends_with_the_right_to_it(kim: Kim, lose: Lose, box: str) -> None:
    url = f"{kim.server.url.replace('http', 'ws', 1)}/v1/boxes/{box}/channel"
    with connect(url, additional_headers={"Authorization": f"Bearer {kim.key}"}, proxy=None) as opened:
        lose(kim)
        with pytest.raises(ConnectionClosed) as closed:
            receive_all(opened)
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1008


def test_a_socket_of_a_login_ends_with_the_login(kim: Kim, box: str) -> None:
    own_page = {"Origin": kim.server.url, "Sec-Fetch-Site": "same-origin"}
    with kim.client() as client, httpx.Client(base_url=kim.server.url, trust_env=False) as browser:
        code = client.post("/v1/login/links").json()["path"].partition("#code=")[2]
        assert browser.post("/v1/login", json={"code": code}, headers=own_page).status_code == 200
        cookie = "; ".join(f"{name}={value}" for name, value in browser.cookies.items())
        url = f"{kim.server.url.replace('http', 'ws', 1)}/v1/boxes/{box}/channel"
        with connect(url, additional_headers={"Cookie": cookie, **own_page}, proxy=None) as opened:
            assert browser.delete("/v1/login", headers=own_page).status_code == 204
            with pytest.raises(ConnectionClosed):
                receive_all(opened)


# --- tokens of threads ---


def chat_by(kim: Kim, token: str) -> int:
    with kim.client(token) as client:
        return client.post(f"/v1/threads/{kim.thread}/chat", json={"text": "kim was here"}).status_code


def append_by(kim: Kim, token: str) -> int:
    """On the hot path, which has no time to ask the store."""
    entry = [{"payload": {"type": "chat", "role": "user", "text": "kim was here"}}]
    with kim.client(token) as client:
        return client.post(f"/v1/stream/threads/{kim.thread}", json=entry).status_code


def renew(kim: Kim, token: str) -> httpx.Response:
    with kim.client(token) as client:
        return client.post("/v1/tokens/renew")


@pytest.mark.parametrize("lose", [revoke_key, remove_member], ids=lambda each: each.__name__)
def test_a_token_ends_with_who_issued_it(kim: Kim, lose: Lose) -> None:
    token = kim.token()
    renewed = str(renew(kim, token).json()["token"])
    for each in (token, renewed):
        assert chat_by(kim, each) < 300
        assert append_by(kim, each) < 300
    lose(kim)
    for each in (token, renewed):
        assert (chat_by(kim, each), append_by(kim, each), renew(kim, each).status_code) == (401, 401, 401)


def test_a_token_stays_revoked_when_its_member_comes_back(kim: Kim) -> None:
    token = kim.token()
    remove_member(kim)
    assert kim.owner.put(f"/v1/members/{kim.name}", json={"role": "owner"}).status_code == 200
    assert renew(kim, token).status_code == 401


def test_a_token_of_a_member_who_only_views_now_only_reads(kim: Kim) -> None:
    token = kim.token()
    lower_role(kim)
    assert (chat_by(kim, token), append_by(kim, token)) == (403, 403)
    assert renew(kim, token).json()["scope"] == "read"


def test_a_live_read_by_a_token_ends_with_who_issued_it(kim: Kim) -> None:
    with kim.tail(kim.token("read")) as lines:
        remove_member(kim)
        kim.say("said afterwards")
        assert "said afterwards" not in read_on(lines)


# --- what is open for long ---


def drained(answer: httpx.Response) -> int:
    """Read all that still comes of an answer. Raises if it is cut."""
    return sum(map(len, answer.iter_raw()))


@WAYS
def test_an_answer_that_is_streamed_is_cut_with_the_right_to_it(kim: Kim, lose: Lose, box: str) -> None:
    size = 400 << 20  # more than the buffers on the way hold
    made = kim.owner.post(f"/v1/boxes/{box}/exec", json={"argv": ["truncate", "-s", str(size), "large"]})
    assert made.status_code == 200, made.text
    with kim.client() as client, client.stream("GET", f"/v1/boxes/{box}/files", params={"path": "large"}) as answer:
        assert answer.status_code == 200
        lose(kim)
        with pytest.raises(httpx.HTTPError):
            drained(answer)


@WAYS
@pytest.mark.parametrize("upgrade", [False, True], ids=["HTTP", "WebSocket"])
def test_a_connection_to_a_port_ends_with_the_right_to_it(kim: Kim, lose: Lose, box: str, upgrade: bool) -> None:
    ended = threading.Event()

    def endless(taken: socket.socket, head: bytes) -> None:
        switching = b"HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\n"
        taken.sendall(switching if upgrade else b"HTTP/1.1 200 OK\r\n\r\nfirst")
        while taken.recv(65536):
            pass
        ended.set()

    program = Listener(endless)
    more = "upgrade: websocket\r\nconnection: upgrade\r\nsec-websocket-key: x\r\n" if upgrade else ""
    head = f"GET /v1/boxes/{box}/ports/{program.port}/ HTTP/1.1\r\nhost: a\r\nauthorization: Bearer {kim.key}\r\n{more}"
    try:
        with socket.create_connection(kim.server.address, timeout=240) as client:
            client.sendall(f"{head}\r\n".encode())
            assert client.recv(12) == (b"HTTP/1.1 101" if upgrade else b"HTTP/1.1 200")
            lose(kim)
            with suppress(ConnectionResetError):
                while client.recv(65536):
                    pass
            assert ended.wait(240)  # the program in the box sees it, too
    finally:
        program.close()


def test_a_socket_of_the_daytona_api_ends_with_the_right_to_it(tmp_path: Path) -> None:
    with ServerProcess(tmp_path, providers=dummies, daytona=True) as server, api_of(server) as owner:
        check_daytona_socket(Kim(server, owner))


def check_daytona_socket(kim: Kim) -> None:
    url = f"{kim.server.url.replace('http', 'ws', 1)}/compat/daytona/socket.io/?EIO=4&transport=websocket"
    with connect(url, proxy=None) as events:
        assert str(events.recv(timeout=240)).startswith("0")
        events.send("40" + json.dumps({"token": kim.key}))
        assert str(events.recv(timeout=240)).startswith("40")
        revoke_key(kim)
        with pytest.raises(ConnectionClosed) as closed:
            receive_all(events)
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1008
