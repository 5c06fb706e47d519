"""Terminals in real boxes: typing, leaving and coming back, watching, and the internal API in the shell."""

from __future__ import annotations

import contextlib
import itertools
import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from tests.gateway.conftest import HTML, Session, new_session
from tests.server.conftest import api_of
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.frames import Close
from websockets.sync.client import ClientConnection

from holdfast import SyncClient
from holdfast.api.model.models import Api
from holdfast.testing.server import ServerProcess

pytestmark = pytest.mark.box

TIMEOUT = 240.0
_marks = itertools.count(1)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("terminals") / "home") as server:
        yield server


@pytest.fixture
def session(server: ServerProcess) -> Iterator[Session]:
    with api_of(server) as api:
        session = new_session(server, api)
        yield session
        # The server may have been restarted, and has another key then.
        api.headers["authorization"] = f"Bearer {server.api_key}"
        assert api.delete(f"/v1/boxes/{session.box}").status_code == 200


class Terminal:
    """A client of the `tty` subprotocol."""

    def __init__(self, socket: ClientConnection, **hello: Any) -> None:
        self.socket = socket
        self.output = b""
        self.offset: int | None = None
        self.end_of_old: int | None = None
        self.title = ""
        socket.send(json.dumps({"AuthToken": "", "columns": 80, "rows": 24, **hello}).encode())

    def read(self) -> None:
        message = self.socket.recv(timeout=TIMEOUT)
        assert isinstance(message, bytes)
        kind, rest = message[:1], message[1:]
        if kind == b"0":
            assert self.offset is not None, "the preferences come first"
            self.output += rest
            self.offset += len(rest)
        elif kind == b"1":
            self.title = rest.decode()
        else:
            told = json.loads(rest)
            self.offset, self.end_of_old = told["offset"], told["end"]

    def until(self, text: bytes) -> bytes:
        ends = time.monotonic() + TIMEOUT
        while text not in self.output:
            assert time.monotonic() < ends, self.output
            self.read()
        return self.output

    def end(self) -> Close:
        """How the server closes it."""
        with contextlib.suppress(ConnectionClosed):
            while True:
                self.read()
        code, reason = self.socket.close_code, self.socket.close_reason
        assert code is not None
        return Close(code, reason or "")

    def type(self, text: str) -> None:
        self.socket.send(b"0" + text.encode())

    def run(self, command: str) -> bytes:
        """Run a command, and return its output."""
        mark = f"done-{next(_marks)}"
        before = len(self.output)
        self.type(f"{command}; echo {mark[:2]}''{mark[2:]}\r")
        self.until(f"{mark}\r\n".encode())
        return self.output[before:]


def test_a_command_is_still_there_after_a_reload(session: Session) -> None:
    cookie = session.cookie()
    with session.socket("/tty/ws", cookie, subprotocols=["tty"]) as socket:
        assert socket.subprotocol == "tty"
        terminal = Terminal(socket, columns=100, rows=30)
        assert b"30 100" in terminal.run("stty size")
        assert session.id in terminal.title
        terminal.run("marker=left-here")
        assert terminal.offset == len(terminal.output)
    with session.socket("/tty/ws", cookie, subprotocols=["tty"]) as socket:
        again = Terminal(socket)
        # The screen is the same, nothing twice, and the shell is the same one.
        again.until(terminal.output)
        assert again.output.startswith(terminal.output)
        assert again.output.count(b"marker=left-here") == 1
        assert b"left-here\r\n" in again.run("echo $marker")


def test_a_client_that_counts_along_gets_only_what_it_missed(session: Session) -> None:
    bearer = session.bearer()
    with session.socket("/tty/ws", bearer, subprotocols=["tty"]) as socket:
        terminal = Terminal(socket)
        terminal.run("echo before")
        terminal.type("sleep 0.2; echo mis''sed\r")
        terminal.until(b"mis''sed\r\n")  # the shell has read the line
        left_at, shown = terminal.offset, terminal.output
    with session.socket("/tty/ws", bearer, subprotocols=["tty"]) as socket:
        again = Terminal(socket, offset=left_at)
        again.until(b"missed\r\n")
        assert b"before" not in again.output
        again.run("true")
    with session.socket("/tty/ws", bearer, subprotocols=["tty"]) as socket:
        whole = Terminal(socket)
        whole.until(shown + again.output)
        assert whole.output.startswith(shown + again.output)  # a prompt may have come since
    with session.socket("/tty/ws", bearer, subprotocols=["tty"]) as socket:
        lost = Terminal(socket, offset=10_000_000)  # of another terminal: it gets the screen instead
        lost.until(whole.output)


def test_a_client_that_missed_nothing_is_told_at_once_that_it_may_go_on(session: Session) -> None:
    bearer = session.bearer()
    with session.socket("/tty/ws", bearer, subprotocols=["tty"]) as socket:
        terminal = Terminal(socket)
        terminal.run("true")
        left_at = terminal.offset
    with session.socket("/tty/ws", bearer, subprotocols=["tty"]) as socket:
        again = Terminal(socket, offset=left_at)
        while again.offset is None:
            again.read()  # the shell prints nothing meanwhile
        assert (again.offset, again.output) == (left_at, b"")
        assert again.end_of_old is not None
        assert again.end_of_old >= again.offset


def test_a_terminal_is_still_there_after_the_server_was_killed(session: Session, server: ServerProcess) -> None:
    cookie = session.cookie()
    with session.socket("/tty/ws", cookie, subprotocols=["tty"]) as socket:
        Terminal(socket).run("marker=kept")
        server.kill()
    server.start()
    with session.socket("/tty/ws", cookie, subprotocols=["tty"]) as socket:
        assert b"kept\r\n" in Terminal(socket).run("echo $marker")


def test_a_viewer_sees_everything_and_types_nothing(session: Session) -> None:
    watching = session.bearer("vera", "viewer")
    with session.socket("/tty/ws", watching, subprotocols=["tty"]) as early:
        assert Terminal(early).end().code == 1008  # a viewer starts no terminal
    with (
        session.socket("/tty/ws", session.bearer(), subprotocols=["tty"]) as mine,
        session.socket("/tty/ws?name=main", watching, subprotocols=["tty"]) as theirs,
    ):
        terminal = Terminal(mine, columns=90, rows=33)
        terminal.run("true")
        viewer = Terminal(theirs, columns=20, rows=10)
        viewer.type("touch /tmp/typed-by-a-viewer\r")
        theirs.send(b'1{"columns":20,"rows":10}')
        viewer.until(b"done-")
        assert b"33 90" in terminal.run("stty size")
        viewer.until(b"33 90")
        assert b"No such file" in terminal.run("ls /tmp/typed-by-a-viewer")
        assert b"touch" not in terminal.output
        session.ask("PUT", "/members", subject="vera", role="collaborator")
        assert viewer.end().code == 1008  # with another role, it is opened again


def test_a_paused_client_gets_no_output_until_it_resumes(session: Session) -> None:
    with session.socket("/tty/ws", session.bearer(), subprotocols=["tty"]) as socket:
        terminal = Terminal(socket)
        terminal.run("true")
        socket.send(b"2")
        terminal.type("seq 1 50000; echo al''l\r")
        with contextlib.suppress(TimeoutError):
            while True:
                assert b"all" not in socket.recv(timeout=0.5)
        socket.send(b"3")
        terminal.until(b"all\r\n")


def test_a_shell_that_ends_says_so_and_the_next_client_gets_a_new_one(session: Session) -> None:
    bearer = session.bearer()
    with session.socket("/tty/ws?name=short", bearer, subprotocols=["tty"]) as socket:
        terminal = Terminal(socket)
        terminal.type("exit 3\r")
        end = terminal.end()
        assert (end.code, end.reason) == (1000, "the shell ended with exit code 3")
    with session.socket("/tty/ws?name=short", bearer, subprotocols=["tty"]) as socket:
        Terminal(socket).run("true")


def test_a_shell_in_the_box_registers_tunnels_by_the_internal_api(session: Session) -> None:
    ask = (
        "python3 -c 'import os,sys,urllib.request as u; m,p,*b=sys.argv[1:]; d=b[0].encode() if b else None;"
        ' print(u.urlopen(u.Request(os.environ["HOLDFAST_API"]+p,method=m,data=d)).read().decode())\''
    )
    with session.socket("/tty/ws", session.bearer(), subprotocols=["tty"]) as socket:
        terminal = Terminal(socket, columns=900)
        said = terminal.run(f"""{ask} POST /tunnels '{{"name": "app", "port": 3000}}'""")
        assert b'"ok":true' in said
        assert session.ask("GET", "/tunnels").json()["tunnels"][0]["name"] == "app"
        assert b'"port":3000' in terminal.run(f"{ask} GET /tunnels")
        assert b"HTTP Error 400" in terminal.run(f"""{ask} POST /tunnels '{{"name": "vscode", "port": 3000}}'""")
        assert b"HTTP Error 404" in terminal.run(f"{ask} GET /nothing")
        assert b'"ok":true' in terminal.run(f"{ask} DELETE /tunnels/app")
        assert b"HTTP Error 404" in terminal.run(f"{ask} DELETE /tunnels/app")
    assert session.ask("GET", "/tunnels").json() == {"tunnels": []}


def test_a_terminal_needs_its_subprotocol_and_a_proper_name(session: Session) -> None:
    bearer = session.bearer()
    for path, subprotocols in (
        ("/tty/ws", None),
        ("/tty/ws?name=../x", ["tty"]),
        ("/tty/ws?name=" + "a" * 33, ["tty"]),
    ):
        with pytest.raises(InvalidStatus) as refused:
            session.socket(path, bearer, subprotocols=subprotocols)
        assert refused.value.response.status_code == 400


def test_a_session_is_opened_in_the_browser_and_says_when_it_sleeps(server: ServerProcess) -> None:
    with SyncClient(server.url, api_key=server.api_key) as client, api_of(server) as api:
        client.models.add("nobody", apis=[Api.OPENAI_CHAT], base_url="http://127.0.0.1:9", model="m")
        id = client.sessions.create(agent="pi", model="nobody").id
        made = client.sessions.wait(id)
        assert (made.state, made.error) == ("running", None)
        assert made.box is not None
        session = Session(server, api, id, made.box)
        bearer = session.bearer()
        with session.socket("/tty/ws", bearer, subprotocols=["tty"]) as socket:
            Terminal(socket).run("echo kept > $HOME/kept.txt")
        assert "It is running." in session.visit("/", headers=bearer).text
        client.sessions.hibernate(id)
        ends = time.monotonic() + TIMEOUT
        while (page := session.visit("/vscode/", headers={**bearer, **HTML})).text.find("hibernated") < 0:
            assert time.monotonic() < ends, page.text
        assert page.status_code == 502
        client.sessions.terminate(id)
        client.sessions.delete_workspace(id)
