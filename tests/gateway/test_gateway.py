"""The gateway as its users see it: links, cookies, programs, tunnels and roles."""

from __future__ import annotations

import json
import re
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
from tests.gateway.conftest import HTML, Session, free_port, new_session, path_of
from tests.server.box_providers import dummies
from tests.server.conftest import api_of
from tests.server.test_box_ports import OK, Listener
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.server import ServerConnection
from websockets.sync.server import serve as serve_websockets

from holdfast.testing.server import ServerProcess

Listen = Callable[..., Listener]


def test_a_link_is_exchanged_for_a_cookie_and_the_token_leaves_the_url(session: Session) -> None:
    token = session.link()
    answer = session.visit(f"/tty/?name=a&token={token}&x=1")
    assert (answer.status_code, answer.headers["location"]) == (303, "/tty/?name=a&x=1")
    assert answer.headers["referrer-policy"] == "no-referrer"
    cookie = answer.headers["set-cookie"]
    assert re.fullmatch(r"holdfast_session=[0-9a-f]{64}; Path=/; HttpOnly; SameSite=Lax", cookie)
    page = session.visit("/", headers={"cookie": cookie.partition(";")[0]})
    assert page.status_code == 200
    assert "/tty/" in page.text
    # It can be opened again while it is valid, and gives another cookie.
    assert session.visit(f"/?token={token}").headers["set-cookie"] != cookie


def test_a_token_works_as_a_bearer_token(session: Session) -> None:
    assert session.visit("/", headers=session.bearer()).status_code == 200


def test_an_old_link_still_opens_the_page_for_who_is_already_here(session: Session) -> None:
    cookie, token = session.cookie(), session.link()
    assert session.ask("POST", "/revoke", credential=token).status_code == 204
    answer = session.visit(f"/tty/?token={token}", headers=cookie)
    assert (answer.status_code, answer.headers["location"], "set-cookie" in answer.headers) == (303, "/tty/", False)


def test_health_is_open_and_everything_else_is_not(session: Session) -> None:
    assert session.visit("/health").json() == {"status": "ok"}
    for path in ("/", "/vscode/", "/vnc/", "/tty/", "/tty/token", "/t/app/", "/api/tunnels", "/opencode/", "/nothing"):
        answer = session.visit(path)
        assert (path, answer.status_code) == (path, 401)
        assert "bearer" in answer.headers["www-authenticate"].lower()
    page = session.visit("/", headers=HTML)
    assert page.status_code == 401
    assert page.headers["content-type"].startswith("text/html")


def test_a_tunnel_is_registered_listed_seen_on_the_thread_and_deleted(session: Session) -> None:
    made = session.ask("POST", "/tunnels", name="app", port=3000, protocol="auto")
    assert made.status_code == 201
    tunnel = made.json()
    origin = f"http://app--{session.host}/"
    assert tunnel == {"name": "app", "port": 3000, "protocol": "auto", "path": "/t/app/", "url": origin}
    assert session.ask("GET", "/tunnels").json() == {"tunnels": [tunnel]}
    entries = session.api.get(f"/v1/stream/threads/{session.id}").json()
    said = [each["payload"] for each in entries if each["payload"]["type"] == "signal.gateway.tunnel"]
    assert [each["tunnel"] for each in said] == [tunnel]
    assert session.ask("DELETE", "/tunnels/app").status_code == 204
    assert session.ask("DELETE", "/tunnels/app").status_code == 404
    assert session.ask("GET", "/tunnels").json() == {"tunnels": []}
    assert session.visit("/t/app/", headers=session.bearer()).status_code == 404


def test_a_browser_is_led_to_the_origin_of_a_tunnel(session: Session, listen: Listen) -> None:
    program = listen(OK.replace(b"\r\n\r\n", b"\r\nset-cookie: theme=dark; Domain=localhost\r\n\r\n"))
    session.tunnel("My_App", program.port)
    cookie = session.cookie()
    led = session.visit("/t/My_App/deep/page?a=b", headers={**HTML, **cookie})
    assert (led.status_code, led.headers["cross-origin-opener-policy"]) == (303, "same-origin")
    place = urlsplit(led.headers["location"])
    assert place.netloc.endswith(f"--{session.host}")
    assert place.path == "/deep/page"
    assert place.query.startswith("a=b&holdfast_token=")
    entered = session.visit(path_of(led.headers["location"]), host=place.netloc)
    assert (entered.status_code, entered.headers["location"]) == (303, "/deep/page?a=b")
    own = {"cookie": entered.headers["set-cookie"].partition(";")[0] + "; mine=1"}
    page = session.visit("/deep/page?a=b", host=place.netloc, headers=own)
    assert (page.status_code, page.text, page.headers["set-cookie"]) == (200, "ok", "theme=dark")
    head = program.headers()
    assert (head["host"], head["cookie"]) == (place.netloc, "mine=1")
    assert program.heads[-1].startswith(b"GET /deep/page?a=b HTTP/1.1\r\n")


def test_a_program_with_a_token_reaches_a_tunnel_by_path(session: Session, listen: Listen) -> None:
    program = listen()
    session.tunnel("app", program.port)
    bearer = session.bearer()
    answer = session.visit("/t/app/data?token=of-the-program", "POST", headers=bearer, content=b"hello")
    assert (answer.status_code, answer.text) == (200, "ok")
    head = program.headers()
    assert "authorization" not in head
    assert head["x-forwarded-prefix"] == "/t/app"
    assert program.heads[-1].startswith(b"POST /data?token=of-the-program HTTP/1.1\r\n")
    assert session.visit("/t/app", headers=bearer).headers["location"] == "/t/app/"


def test_bodies_are_streamed_both_ways(session: Session, listen: Listen) -> None:
    size = 3 << 20

    def echo(taken: socket.socket, head: bytes) -> None:
        body = head.partition(b"\r\n\r\n")[2]
        while len(body) < size:
            body += taken.recv(1 << 16)
        taken.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % size + body)

    session.tunnel("app", listen(echo).port)
    sent = bytes(range(256)) * (size // 256)
    answer = session.visit("/t/app/", "PUT", headers=session.bearer(), content=sent)
    assert answer.content == sent


def test_what_does_not_answer_is_a_page_that_tries_again(session: Session) -> None:
    session.tunnel("app", free_port())
    bearer = session.bearer()
    answer = session.visit("/t/app/", headers=bearer)
    assert (answer.status_code, answer.json()["error"]["code"]) == (502, "not_ready")
    page = session.visit("/t/app/", headers={**bearer, **HTML})
    assert page.status_code == 502
    assert "Tunnel app does not answer yet" in page.text
    assert 'http-equiv="refresh"' in page.text


@pytest.mark.parametrize(("path", "program"), [("/vscode/", "editor"), ("/vnc/", "desktop")])
def test_a_session_without_an_editor_or_desktop_says_so_and_is_not_tried_again(
    session: Session, path: str, program: str
) -> None:
    page = session.visit(path, headers={**session.cookie(), **HTML})
    assert page.status_code == 404
    assert f"No {program} here" in page.text
    assert "holdfast session new --workstation" in page.text
    assert "http-equiv" not in page.text
    answer = session.visit(path, headers=session.bearer())
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "no_program")


def echo_websockets(connection: ServerConnection) -> None:
    try:
        for message in connection:
            connection.send(message)
    except ConnectionClosed:
        pass


def test_a_websocket_passes_with_its_subprotocol(session: Session) -> None:
    with serve_websockets(echo_websockets, "127.0.0.1", 0, subprotocols=["vite-hmr"]) as program:  # type: ignore[list-item]
        thread = threading.Thread(target=program.serve_forever)
        thread.start()
        try:
            session.tunnel("app", program.socket.getsockname()[1])
            with session.socket("/t/app/", session.bearer(), subprotocols=["other", "vite-hmr"]) as client:
                assert client.subprotocol == "vite-hmr"
                client.send("hello")
                client.send(b"x" * 200_000)
                assert client.recv(timeout=240) == "hello"
                assert client.recv(timeout=240) == b"x" * 200_000
        finally:
            program.shutdown()
            thread.join()


def test_a_viewer_reads_tunnels_and_nothing_more(session: Session, listen: Listen) -> None:
    session.tunnel("app", listen().port)
    bearer = session.bearer("vera", "viewer")
    assert session.visit("/", headers=bearer).status_code == 200
    assert session.visit("/tty/", headers=bearer).status_code == 200
    assert session.visit("/t/app/", headers=bearer).status_code == 200
    for path in ("/vscode/", "/vnc/"):
        assert session.visit(path, headers=bearer).status_code == 403
    assert session.visit("/t/app/", "POST", headers=bearer).status_code == 403
    with pytest.raises(InvalidStatus) as refused:
        session.socket("/t/app/", bearer)
    assert refused.value.response.status_code == 403


def test_a_role_changes_at_once(session: Session) -> None:
    bearer = session.bearer("vera", "viewer")
    assert session.visit("/vscode/", headers=bearer).status_code == 403
    session.ask("PUT", "/members", subject="vera", role="collaborator")
    assert session.visit("/vscode/", headers=bearer).json()["error"]["code"] == "no_program"
    assert {"subject": "vera", "role": "collaborator"} in session.ask("GET", "/members").json()["members"]
    removed = session.api.delete(f"/v1/sessions/{session.id}/members", params={"subject": "vera"})
    assert removed.status_code == 204
    assert session.visit("/", headers=bearer).status_code == 403


def test_a_link_for_somebody_else_needs_a_role_once(session: Session) -> None:
    answer = session.ask("POST", "/links", subject="zoe")
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "forbidden")
    session.link("zoe", "viewer")
    assert session.ask("POST", "/links", subject="zoe").json()["role"] == "viewer"
    own = session.api.post(f"/v1/sessions/{session.id}/links", json={}).json()
    assert own["role"] == "owner"
    assert own["url"].startswith(f"http://{session.host}/?token=")


def test_what_is_revoked_opens_nothing_and_what_is_open_is_closed(session: Session) -> None:
    token = session.link()
    bearer = {"authorization": f"Bearer {token}"}
    cookies = [
        {"cookie": session.visit(f"/?token={token}").headers["set-cookie"].partition(";")[0]},
        session.cookie("bob"),
        session.cookie("bob"),
    ]
    value = cookies[2]["cookie"].partition("=")[2]

    def valid() -> list[bool]:
        return [session.visit("/", headers=each).status_code == 200 for each in (bearer, *cookies)]

    assert valid() == [True, True, True, True]
    assert session.ask("POST", "/revoke", credential=value).status_code == 204
    assert valid() == [True, True, True, False]
    assert session.ask("POST", "/revoke", credential=token).status_code == 204
    assert valid() == [False, False, True, False]  # with a token, also the cookies that it was exchanged for
    assert session.ask("POST", "/revoke", credential="a" * 64).status_code == 404
    assert session.api.post(f"/v1/sessions/{session.id}/revoke", json={}).status_code == 204
    assert valid() == [False, False, False, False]
    assert session.visit("/", headers=session.bearer()).status_code == 200  # a new one


@pytest.mark.parametrize("how", ["session", "member", "tunnel", "port"])
def test_an_open_connection_is_closed_when_the_right_to_it_ends(session: Session, listen: Listen, how: str) -> None:
    def stream(taken: socket.socket, head: bytes) -> None:
        taken.sendall(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\ndata: 1\n\n")
        while taken.recv(1024):
            pass

    session.tunnel("app", listen(stream).port)
    with (
        httpx.Client(base_url=session.server.url, timeout=240, trust_env=False) as client,
        client.stream("GET", "/t/app/", headers={"host": session.host, **session.bearer()}) as answer,
    ):
        pieces = answer.iter_raw()
        assert next(pieces) == b"data: 1\n\n"
        match how:
            case "session":
                session.api.post(f"/v1/sessions/{session.id}/revoke", json={})
            case "member":
                session.ask("PUT", "/members", subject="ada", role="viewer")
            case "tunnel":
                session.ask("DELETE", "/tunnels/app")
            case "port":
                session.tunnel("app", free_port())
        with pytest.raises(httpx.RemoteProtocolError):
            next(pieces)


def test_a_thread_without_a_box_says_so(session: Session) -> None:
    session.api.delete(f"/v1/boxes/{session.box}")
    session.tunnel("app", 80)
    answer = session.visit("/t/app/", headers=session.bearer())
    assert answer.status_code == 502
    assert "no box" in answer.json()["error"]["message"]


def test_logins_tunnels_and_revocations_survive_a_restart(session: Session, listen: Listen) -> None:
    session.tunnel("app", listen().port)
    cookie, bearer, gone = session.cookie(), session.bearer(), session.bearer("bob")
    session.ask("POST", "/revoke", credential=gone["authorization"].removeprefix("Bearer "))
    session.server.kill()
    session.server.start()
    session.api.headers["authorization"] = f"Bearer {session.server.api_key}"
    assert session.visit("/", headers=cookie).status_code == 200
    assert session.visit("/t/app/", headers=bearer).text == "ok"
    assert session.visit("/", headers=gone).status_code == 401


def test_behind_https_the_cookie_belongs_to_its_host_alone(tmp_path: Path) -> None:
    with (
        ServerProcess(tmp_path / "home", providers=dummies, preview_url="https://work.example.com") as server,
        api_of(server) as api,
    ):
        session = new_session(server, api)
        host = f"{session.id}.work.example.com"
        cookie = session.visit(f"/?token={session.link()}", host=host).headers["set-cookie"]
        form = r"__Host-holdfast_session=[0-9a-f]{64}; Path=/; HttpOnly; SameSite=Lax; Secure"
        assert re.fullmatch(form, cookie)
        named = cookie.partition(";")[0]
        assert session.visit("/", host=host, headers={"cookie": named}).status_code == 200
        # A name that a program could set does not count here.
        assert session.visit("/", host=host, headers={"cookie": named.removeprefix("__Host-")}).status_code == 401
        api.delete(f"/v1/boxes/{session.box}")


def test_the_script_of_the_terminal_is_served_to_members_alone(session: Session) -> None:
    cookie = session.cookie()
    page = session.visit("/tty/", headers=cookie)
    assert "/tty/terminal.js" in page.text
    assert "script-src 'self'" in page.headers["content-security-policy"]
    script = session.visit("/tty/terminal.js", headers=cookie)
    assert script.headers["content-type"].startswith("text/javascript")
    assert json.loads(session.visit("/tty/token", headers=cookie).text) == {"token": ""}
    assert session.visit("/tty/../../etc/passwd", headers=cookie).status_code == 404
