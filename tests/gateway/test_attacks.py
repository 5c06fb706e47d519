"""Attacks on the gateway: strangers, other sessions, viewers, programs in boxes, pages in the browser of a user."""

from __future__ import annotations

import base64
import contextlib
import json
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from urllib.parse import urlsplit

import pytest
from tests.gateway.conftest import Session, new_session, path_of
from tests.server.box_providers import dummies
from tests.server.conftest import api_of
from tests.server.raw import request
from tests.server.test_box_ports import OK, Listener
from tests.server.test_revocation import Kim, lower_role, remove_member, revoke_key
from websockets.exceptions import ConnectionClosed, InvalidStatus

from holdfast.api.tools.catalogue import ALL
from holdfast.testing.server import ServerProcess

Listen = Callable[..., Listener]


def status_of_socket(session: Session, path: str, headers: dict[str, str], host: str | None = None) -> int:
    """The status with which a WebSocket is refused; 101 if it is not."""
    try:
        with session.socket(path, headers, host=host, subprotocols=["tty"]):
            return 101
    except InvalidStatus as refused:
        return refused.response.status_code


# --- credentials ---


def test_credentials_of_another_session_open_nothing(new: Callable[[], Session], listen: Listen) -> None:
    mine, other = new(), new()
    other.tunnel("app", listen().port)
    for stolen in (mine.cookie(), mine.bearer()):
        for path in ("/", "/vscode/", "/tty/", "/t/app/", "/t/unknown/"):
            assert other.visit(path, headers=stolen).status_code == 401
        assert status_of_socket(other, "/tty/ws", stolen) == 401
        assert status_of_socket(other, "/t/app/", stolen) == 401
        assert other.visit("/", host=other.tunnel_host("app"), headers=stolen).status_code == 401
    assert other.visit(f"/?token={mine.link()}").status_code == 401


def test_a_forged_token_opens_nothing(session: Session) -> None:
    token = session.link()
    header, payload, signature = token.split(".")

    def encoded(value: dict[str, object]) -> str:
        return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")

    claims = json.loads(base64.urlsafe_b64decode(payload + "=="))
    root = {**claims, "sub": "root"}
    for forged in (
        f"{encoded({'alg': 'none', 'typ': 'JWT'})}.{payload}.",
        f"{encoded({'alg': 'none', 'typ': 'JWT'})}.{payload}.{signature}",
        f"{header}.{encoded(root)}.{signature}",
        f"{header}.{payload}.",
        f"{header}.{payload}.{signature[:-4]}AAAA",
        token.upper(),
    ):
        assert session.visit("/", headers={"authorization": f"Bearer {forged}"}).status_code == 401
        assert session.visit(f"/?token={forged}").status_code == 401


def test_an_expired_token_opens_nothing(session: Session) -> None:
    token = session.link(seconds=1)
    claims = json.loads(base64.urlsafe_b64decode(token.split(".")[1] + "=="))
    while time.time() < claims["exp"]:
        time.sleep(0.05)
    assert session.visit("/", headers={"authorization": f"Bearer {token}"}).status_code == 401
    assert session.visit(f"/?token={token}").status_code == 401


def test_an_api_key_is_not_a_credential_of_a_session_and_is_not_passed_on(session: Session, listen: Listen) -> None:
    program = listen()
    session.tunnel("app", program.port)
    thread = session.api.post(f"/v1/threads/{session.id}/tokens", json={"scope": "read"}).json()["token"]
    revoked = session.link("bob")
    session.ask("POST", "/revoke", credential=revoked)
    cookie = enter(session, "app")
    for ours in (session.server.api_key, thread, revoked):
        header = {"authorization": f"Bearer {ours}"}
        assert session.visit("/t/app/", headers=header).status_code == 401
        # With a cookie, another credential is the program's own. But ours never is, not even one that is not valid.
        assert session.visit("/", host=session.tunnel_host("app"), headers={**cookie, **header}).status_code == 200
        assert "authorization" not in program.headers()
    theirs = {"authorization": "Bearer of-the-program"}
    assert session.visit("/", host=session.tunnel_host("app"), headers={**cookie, **theirs}).status_code == 200
    assert program.headers()["authorization"] == "Bearer of-the-program"
    assert session.api.get("/v1/boxes", headers={"authorization": session.bearer()["authorization"]}).status_code == 401


def enter(session: Session, name: str, subject: str = "ada") -> dict[str, str]:
    """The cookie at the origin of a tunnel."""
    led = session.visit(f"/t/{name}/", headers=session.cookie(subject))
    place = urlsplit(led.headers["location"])
    entered = session.visit(path_of(led.headers["location"]), host=place.netloc)
    assert entered.status_code == 303, entered.text
    return {"cookie": entered.headers["set-cookie"].partition(";")[0]}


def test_a_cookie_or_a_ticket_holds_at_one_origin_alone(session: Session, listen: Listen) -> None:
    for name in ("one", "two"):
        session.tunnel(name, listen().port)
    own, tunnel = session.cookie(), enter(session, "one")
    one, two = session.tunnel_host("one"), session.tunnel_host("two")
    assert session.visit("/", host=one, headers=tunnel).status_code == 200
    for host, cookie in ((one, own), (two, own), (two, tunnel), (session.host, tunnel)):
        assert session.visit("/", host=host, headers=cookie).status_code == 401
    ticket = urlsplit(session.visit("/t/one/", headers=own).headers["location"]).query.partition("=")[2]
    assert session.visit(f"/?holdfast_token={ticket}", host=two).status_code == 401
    assert session.visit(f"/?token={ticket}").status_code == 401
    assert session.visit("/", headers={"authorization": f"Bearer {ticket}"}).status_code == 401


def test_a_ticket_opens_a_tunnel_once(session: Session, listen: Listen) -> None:
    session.tunnel("app", listen().port)
    own, host = session.cookie(), session.tunnel_host("app")
    way = path_of(session.visit("/t/app/", headers=own).headers["location"])
    entered = session.visit(way, host=host)
    assert entered.status_code == 303
    again = session.visit(way, host=host)
    assert (again.status_code, "set-cookie" in again.headers) == (401, False)
    # The same signature in another spelling is not another ticket.
    for digit in "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_":
        assert session.visit(way[:-1] + digit, host=host).status_code == 401
    # Who has entered may go back to that address, and gets no second cookie.
    known = {"cookie": entered.headers["set-cookie"].partition(";")[0]}
    back = session.visit(way, host=host, headers=known)
    assert (back.status_code, back.headers["location"], "set-cookie" in back.headers) == (303, "/", False)


def test_a_ticket_does_not_outlive_the_server_that_remembers_its_use(session: Session, listen: Listen) -> None:
    session.tunnel("app", listen().port)
    way = path_of(session.visit("/t/app/", headers=session.cookie()).headers["location"])
    host = session.tunnel_host("app")
    assert session.visit(way, host=host).status_code == 303
    session.server.kill()
    session.server.start()
    session.api.headers["authorization"] = f"Bearer {session.server.api_key}"
    assert session.visit(way, host=host).status_code == 401
    assert enter(session, "app")


def test_a_page_of_a_tunnel_gets_no_service_worker(session: Session, listen: Listen) -> None:
    """It would see the ticket of everybody who comes, and could keep it from being used."""
    program = listen(OK.replace(b"\r\n\r\n", b"\r\nvary: accept\r\ncache-control: max-age=99\r\n\r\n"))
    session.tunnel("app", program.port)
    cookie, host = enter(session, "app"), session.tunnel_host("app")
    for script in ({"service-worker": "script"}, {"sec-fetch-dest": "serviceworker"}):
        assert session.visit("/sw.js", host=host, headers={**cookie, **script}).status_code == 403
    assert program.heads == []
    # Nor is one taken from the browser's cache, where a page may have put its script.
    plain = session.visit("/sw.js", host=host, headers=cookie)
    assert (plain.status_code, plain.headers.get_list("vary")) == (200, ["accept", "service-worker"])


def test_a_cookie_of_the_attackers_choice_is_never_taken_over(session: Session, listen: Listen) -> None:
    chosen = "c" * 64
    answer = session.visit(f"/?token={session.link()}", headers={"cookie": f"holdfast_session={chosen}"})
    assert chosen not in answer.headers["set-cookie"]
    assert session.visit("/", headers={"cookie": f"holdfast_session={chosen}"}).status_code == 401
    # A program in the box cannot plant one either: neither at the session's origin nor at its own.
    planted = OK.replace(b"\r\n\r\n", b"\r\nset-cookie: HOLDFAST_session=%b; Path=/\r\n\r\n" % chosen.encode())
    session.tunnel("app", listen(planted).port)
    assert "set-cookie" not in session.visit("/t/app/", headers=session.bearer()).headers
    # Next to a planted one, the real one still counts.
    real = session.cookie()["cookie"]
    assert session.visit("/", headers={"cookie": f"holdfast_session={chosen}; {real}"}).status_code == 200


def test_planted_cookies_do_not_hide_the_real_one(session: Session) -> None:
    """A page of the editor can set hundreds, for paths that browsers send before ours."""
    planted = "; ".join(f"holdfast_session={number:064x}" for number in range(180))
    assert session.visit("/", headers={"cookie": f"{planted}; {session.cookie()['cookie']}"}).status_code == 200
    assert session.visit("/", headers={"cookie": planted}).status_code == 401


def test_no_credential_gets_into_the_box(session: Session, listen: Listen) -> None:
    program = listen()
    session.tunnel("app", program.port)
    token = session.link()
    bearer = {"authorization": f"Bearer {token}", "referer": f"http://{session.host}/?token={token}"}
    session.visit(f"/t/app/?token={token}", "POST", headers=bearer)
    cookie = enter(session, "app")
    session.visit(f"/?holdfast_token={token}", "POST", host=session.tunnel_host("app"), headers=cookie)
    assert len(program.heads) == 2
    for head in program.heads:
        assert b"eyJ" not in head
        assert b"holdfast_session" not in head


def test_with_a_revoked_cookie_end_the_tunnels_that_were_opened_by_it(session: Session, listen: Listen) -> None:
    session.tunnel("app", listen().port)
    host, own = session.tunnel_host("app"), session.cookie()
    way = [path_of(session.visit("/t/app/", headers=own).headers["location"]) for _ in range(2)]
    tunnel = {"cookie": session.visit(way[0], host=host).headers["set-cookie"].partition(";")[0]}
    assert session.visit("/", host=host, headers=tunnel).status_code == 200
    assert session.ask("POST", "/revoke", credential=own["cookie"].partition("=")[2]).status_code == 204
    assert session.visit("/", headers=own).status_code == 401
    assert session.visit("/", host=host, headers=tunnel).status_code == 401
    assert session.visit(way[1], host=host).status_code == 401


def test_an_expired_link_can_still_be_revoked_with_its_cookies(session: Session) -> None:
    token = session.link(seconds=2)
    cookie = {"cookie": session.visit(f"/?token={token}").headers["set-cookie"].partition(";")[0]}
    claims = json.loads(base64.urlsafe_b64decode(token.split(".")[1] + "=="))
    while time.time() < claims["exp"]:
        time.sleep(0.05)
    assert session.visit("/", headers=cookie).status_code == 200
    assert session.ask("POST", "/revoke", credential=token).status_code == 204
    assert session.visit("/", headers=cookie).status_code == 401


def test_a_thread_that_is_created_again_is_another_session(session: Session) -> None:
    token, cookie = session.link("mallory", "collaborator"), session.cookie("mallory", "collaborator")
    assert session.api.post(f"/v1/sessions/{session.id}/revoke", json={}).status_code == 204
    assert session.api.delete(f"/v1/threads/{session.id}").status_code == 204
    assert session.api.post("/v1/threads", json={"id": session.id, "title": "again"}).status_code == 201
    session.link("mallory", "viewer")
    for old in ({"authorization": f"Bearer {token}"}, cookie):
        assert session.visit("/", headers=old).status_code == 401
    assert session.visit("/", headers=session.bearer("mallory", "viewer")).status_code == 200


# --- names and paths ---


def test_a_tunnel_cannot_be_named_like_a_route_or_a_path(session: Session) -> None:
    for name in ("vscode", "VNC", "tty", "api", "health", "t", "..", "../vscode", "a/b", "", "a" * 33, "a b", "ä"):
        answer = session.ask("POST", "/tunnels", name=name, port=3000)
        assert (name, answer.status_code // 100) == (name, 4)
    for port in (0, 65536, -1, "80", 1.5, True, None):
        assert session.ask("POST", "/tunnels", name="app", port=port).status_code == 422
    assert session.ask("GET", "/tunnels").json() == {"tunnels": []}


def test_internal_routes_and_the_api_are_not_there_from_outside(session: Session) -> None:
    for headers in (session.bearer(), session.cookie(), {"authorization": f"Bearer {session.server.api_key}"}):
        for path in (
            "/api/tunnels",
            "/api/spawn-child",
            "/v1/boxes",
            "/v1/threads",
            "/guest/v1/tokens/renew",
            "/metrics",
        ):
            assert session.visit(path, headers=headers).status_code in (401, 404)
            assert session.visit(path, "POST", headers=headers).status_code in (401, 403)
        stream = session.visit(f"/v1/stream/threads/{session.id}", headers=headers)
        port = session.visit(f"/v1/boxes/{session.box}/ports/9/", headers=headers)
        assert port.status_code in (401, 404)
        assert stream.status_code in (401, 404)
    own = {"authorization": f"Bearer {session.server.api_key}"}
    for path in ("/api/tunnels", "/guest/api/tunnels"):
        assert session.visit(path, host="127.0.0.1", headers=own).status_code in (404, 405)
        assert session.visit(path, "POST", host="127.0.0.1", headers=own, json={}).status_code == 404


def test_no_tool_of_a_session_can_be_reached_from_outside(session: Session) -> None:
    bearer, key = session.bearer(), {"authorization": f"Bearer {session.server.api_key}"}
    for operation in (each for each in ALL if each.route):
        path = operation.path.replace("{id}", "x")
        assert session.visit(path, operation.method, headers=bearer).status_code in (401, 403, 404), path
        assert session.visit(path, operation.method, headers={}).status_code in (401, 403), path
        for prefix in ("", "/guest"):
            there = session.visit(prefix + path, operation.method, host="127.0.0.1", headers=key)
            assert there.status_code in (404, 405), path
        called = session.visit(f"/v1/sessions/{session.id}/tools/{operation.name}", "POST", headers=bearer, json={})
        assert called.status_code in (401, 403), operation.name
        by_nobody = session.visit(
            f"/v1/sessions/{session.id}/tools/{operation.name}", "POST", host="127.0.0.1", headers=bearer, json={}
        )
        assert by_nobody.status_code in (401, 403), operation.name


def test_the_way_of_a_box_to_the_server_is_not_a_way_in(session: Session) -> None:
    """Behind this port is the internal API, which takes who comes from there for the box."""
    refused = session.ask("POST", "/tunnels", name="app", port=3128)
    assert (refused.status_code, "3128" in refused.text) == (400, True)
    key = {"authorization": f"Bearer {session.server.api_key}"}
    port = session.visit(f"/v1/boxes/{session.box}/ports/3128/api/tunnels", host="127.0.0.1", headers=key)
    assert (port.status_code, "3128" in port.text) == (403, True)


@pytest.mark.parametrize("path", ["/t/../vscode/", "/t/%2e%2e/", "//vscode/", "/%74/app/", "/t/app%2f..%2f", "/T/app/"])
def test_a_path_that_pretends_to_be_another_is_unknown(session: Session, path: str) -> None:
    with session.raw() as client:
        client.send(request("GET", path, host=session.host, **session.bearer()))
        assert client.answer().status == 404


def test_the_id_of_a_session_says_nothing_to_strangers(session: Session) -> None:
    unknown = session.visit("/", host=f"t-0000000000000.localhost:{session.server.address[1]}")
    known = session.visit("/")
    assert (unknown.status_code, unknown.json()["error"]["message"]) == (401, known.json()["error"]["message"])


def test_entries_that_others_write_give_nobody_a_role(session: Session) -> None:
    bearer = session.bearer("vera", "viewer")
    forged = {"payload": {"type": "signal.gateway.member", "subject": "vera", "role": "owner"}}
    tunnel = {"payload": {"type": "signal.gateway.tunnel", "name": "app", "tunnel": {"name": "app", "port": 22}}}
    answer = session.api.post(f"/v1/stream/threads/{session.id}", json=[forged, tunnel])
    assert answer.status_code in (200, 204)
    assert session.visit("/vscode/", headers=bearer).status_code == 403
    assert session.visit("/t/app/", headers=bearer).status_code == 404
    # A copy of a sealed entry on another thread counts for nothing there.
    entries = session.api.get(f"/v1/stream/threads/{session.id}").json()
    sealed = [each for each in entries if "seal" in each["payload"]]
    assert sealed
    other = new_session(session.server, session.api)
    session.api.post(f"/v1/stream/threads/{other.id}", json=sealed)
    assert session.api.get(f"/v1/sessions/{other.id}/members").json() == {"members": []}
    session.api.delete(f"/v1/boxes/{other.box}")


# --- pages in the browser ---


def test_a_page_of_a_foreign_origin_can_neither_post_nor_open_a_socket(session: Session, listen: Listen) -> None:
    session.tunnel("app", listen().port)
    own, tunnel, host = session.cookie(), enter(session, "app"), session.tunnel_host("app")
    for origin in ("http://evil.example", "null", f"http://{session.tunnel_host('other')}", f"http://{session.host}"):
        foreign = {"origin": origin}
        assert session.visit("/", "POST", host=host, headers={**tunnel, **foreign}).status_code == 403
        assert status_of_socket(session, "/", {**tunnel, **foreign}, host) == 403
        if origin != f"http://{session.host}":
            assert status_of_socket(session, "/tty/ws", {**own, **foreign}) == 403
            assert session.visit("/vscode/", "POST", headers={**own, **foreign}).status_code == 403
    embedded = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"}
    assert session.visit("/", host=host, headers={**tunnel, **embedded}).status_code == 403
    assert session.visit("/", "POST", host=host, headers={**tunnel, "origin": f"http://{host}"}).status_code == 200


def test_a_page_of_another_origin_cannot_show_the_session_in_a_frame(session: Session, listen: Listen) -> None:
    session.tunnel("app", listen().port)
    own, tunnel = session.cookie(), enter(session, "app")
    navigates = {"sec-fetch-mode": "navigate"}
    for site in ("same-site", "cross-site"):
        for dest in ("iframe", "frame", "embed", "object"):
            framed = {**navigates, "sec-fetch-site": site, "sec-fetch-dest": dest}
            for path in ("/vscode/", "/vnc/", "/tty/", "/t/app/", "/"):
                assert session.visit(path, headers={**own, **framed}).status_code == 403
            # The editor shows tunnels in frames.
            assert session.visit("/", host=session.tunnel_host("app"), headers={**tunnel, **framed}).status_code == 200
        link = {**navigates, "sec-fetch-site": site, "sec-fetch-dest": "document"}
        assert session.visit("/", headers={**own, **link}).status_code == 200
    within = {**navigates, "sec-fetch-site": "same-origin", "sec-fetch-dest": "iframe"}
    assert session.visit("/tty/", headers={**own, **within}).status_code == 200


def test_a_redirect_never_leads_to_another_host(session: Session) -> None:
    token = session.link()
    for path in (f"//evil.example/?token={token}", f"/\\evil.example/?token={token}"):
        with session.raw() as client:
            client.send(request("GET", path, host=session.host))
            answer = client.answer()
        assert answer.status == 303
        assert answer.headers["location"].startswith("/evil.example")


def test_a_line_break_in_a_path_or_a_query_gets_into_no_header(session: Session) -> None:
    token = session.link()
    answer = session.visit(f"/tty/?x=%0d%0aset-cookie:%20a=b&token={token}")
    assert answer.headers["location"] == "/tty/?x=%0d%0aset-cookie:%20a=b"
    assert "a=b" not in answer.headers["set-cookie"]
    with session.raw() as client:
        client.send(f"GET /tty/?x=a\nset-cookie:b HTTP/1.1\r\nhost: {session.host}\r\n\r\n".encode())
        raw = client.answer()
    assert (raw.status in (400, 401), "set-cookie" in raw.headers) == (True, False)


# --- the wire ---

SMUGGLING = [
    b"content-length: 4\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\nGET /hidden HTTP/1.1\r\nhost: x\r\n\r\n",
    b"transfer-encoding: chunked\r\ncontent-length: 4\r\n\r\n0\r\n\r\nGET /hidden HTTP/1.1\r\nhost: x\r\n\r\n",
    b"content-length: 5\r\ncontent-length: 6\r\n\r\nhello!",
    b"content-length: +5\r\n\r\nhello",
    b"transfer-encoding: xchunked\r\n\r\n0\r\n\r\n",
    b"transfer-encoding : chunked\r\n\r\n0\r\n\r\n",
    b"transfer-encoding: chunked, identity\r\n\r\n0\r\n\r\n",
    b"transfer-encoding:\x0bchunked\r\n\r\n0\r\n\r\n",
    b"content-length: 5\r\n x: folded\r\n\r\nhello",
]


@pytest.mark.parametrize("framing", SMUGGLING)
def test_a_request_of_ambiguous_length_is_never_two(session: Session, listen: Listen, framing: bytes) -> None:
    program = listen()
    session.tunnel("app", program.port)
    with session.raw() as client:
        start = (
            f"POST /t/app/ HTTP/1.1\r\nhost: {session.host}\r\nauthorization: {session.bearer()['authorization']}\r\n"
        )
        client.send(start.encode() + framing)
        client.finish_sending()
        status, _ = client.head()
    assert status in (400, 501) or len(program.heads) == 1
    for head in program.heads:
        assert b"GET /hidden" not in head.partition(b"\r\n\r\n")[0]
        names = [line.partition(b":")[0].lower() for line in head.partition(b"\r\n\r\n")[0].split(b"\r\n")[1:]]
        assert names.count(b"content-length") + names.count(b"transfer-encoding") <= 1


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nx: " + b"a" * 200_000 + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 1000 + b"\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\n",
        b"SSH-2.0-OpenSSH_9.2\r\n\r\n",
    ],
)
def test_a_hostile_answer_of_a_program_is_a_bad_gateway(session: Session, listen: Listen, answer: bytes) -> None:
    session.tunnel("app", listen(answer).port)
    assert session.visit("/t/app/", headers=session.bearer()).status_code == 502


def test_an_enormous_head_is_refused(session: Session) -> None:
    for head in (
        f"GET /{'a' * 20_000} HTTP/1.1\r\nhost: {session.host}\r\n\r\n",
        f"GET / HTTP/1.1\r\nhost: {session.host}\r\ncookie: {'a' * 70_000}\r\n\r\n",
        f"GET / HTTP/1.1\r\nhost: {session.host}\r\nauthorization: Bearer {'a.' * 40_000}\r\n\r\n",
    ):
        with session.raw() as client:
            client.try_send(head.encode())
            assert client.head()[0] in (414, 431)


def test_two_hosts_are_refused(session: Session) -> None:
    with session.raw() as client:
        client.send(f"GET / HTTP/1.1\r\nhost: {session.host}\r\nhost: 127.0.0.1\r\n\r\n".encode())
        assert client.answer().status == 400


# --- logs, and clients that take their time ---


@pytest.fixture(scope="module")
def impatient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server that waits a second for a request, and logs everything."""
    home = tmp_path_factory.mktemp("impatient") / "home"
    with ServerProcess(home, providers=dummies, request_timeout=1.0, log_level="debug") as server:
        yield server


def test_no_token_and_no_cookie_is_in_the_log(impatient: ServerProcess) -> None:
    with api_of(impatient) as api:
        session = new_session(impatient, api)
        session.tunnel("app", 9)
        token = session.link()
        cookie = session.visit(f"/tty/?token={token}").headers["set-cookie"].partition(";")[0]
        value = cookie.partition("=")[2]
        session.visit(f"/t/app/?token={token}", "POST", headers={"authorization": f"Bearer {token}"})
        session.visit("/", headers={"authorization": f"Bearer {token}x"})
        session.visit(f"/{token}", headers={"cookie": cookie})
        led = session.visit("/t/app/", headers={"cookie": cookie}).headers["location"]
        session.visit(path_of(led), host=session.tunnel_host("app"))
        session.ask("POST", "/revoke", credential=token)
        session.ask("POST", "/revoke", credential=value)
        written = impatient.read_log() + json.dumps(api.get(f"/v1/stream/threads/{session.id}").json())
        assert session.id in written
        for secret in (token, token.split(".")[2], value, path_of(led).rpartition("=")[2].split(".")[2]):
            assert secret not in written
        files = b"".join(each.read_bytes() for each in impatient.home.rglob("holdfast.db*") if each.is_file())
        assert value.encode() not in files
        assert token.encode() not in files
        api.delete(f"/v1/boxes/{session.box}")


def test_a_client_that_takes_its_time_is_not_waited_for(impatient: ServerProcess) -> None:
    with api_of(impatient) as api:
        session = new_session(impatient, api)
        with session.raw() as head, session.raw() as body:
            head.send(f"GET / HTTP/1.1\r\nhost: {session.host}\r\nx: ".encode())
            body.send(request("POST", "/vscode/", host=session.host, content_length="1000", **session.bearer()))
            assert head.answer().status == 408
            # The program is not there, so the answer comes before the body.
            assert body.head()[0] in (404, 408, 502)
        api.delete(f"/v1/boxes/{session.box}")


def test_an_enormous_frame_closes_a_terminal_and_not_the_server(session: Session) -> None:
    """The box is a dummy, which has no terminals: the frame is refused before one is needed."""
    with session.socket("/tty/ws", session.bearer(), subprotocols=["tty"]) as client:
        client.socket.sendall(b"\x82\xff" + struct.pack(">Q", 1 << 40) + b"mask")
        with pytest.raises(ConnectionClosed) as closed:
            client.recv(timeout=240)
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1009
    assert session.visit("/health").status_code == 200


def test_a_member_who_is_removed_is_out_at_once(session: Session) -> None:
    with session.socket("/tty/ws", session.bearer("bob"), subprotocols=["tty"]) as client:
        removed = session.api.delete(f"/v1/sessions/{session.id}/members", params={"subject": "bob"})
        assert removed.status_code == 204
        client.send(b'{"columns":80,"rows":24}')
        with pytest.raises(ConnectionClosed) as closed:
            client.recv(timeout=240)
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1008


def test_what_waits_for_a_program_is_not_passed_on_for_a_member_who_was_removed(
    session: Session, listen: Listen
) -> None:
    asked, removed = threading.Event(), threading.Event()
    got: list[bytes] = []

    def answers_late(taken: socket.socket, head: bytes) -> None:
        asked.set()
        assert removed.wait(240)
        taken.sendall(b"HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\n")
        while piece := taken.recv(1024):
            got.append(piece)

    program = listen(answers_late)
    session.tunnel("app", program.port)
    with session.raw() as client:
        upgrade = {"connection": "upgrade", "upgrade": "websocket", "sec_websocket_version": "13"}
        key = base64.b64encode(b"0" * 16).decode()
        bearer = session.bearer("bob")
        client.send(request("GET", "/t/app/", host=session.host, sec_websocket_key=key, **upgrade, **bearer))
        client.send(b"typed")
        assert asked.wait(240)
        session.api.delete(f"/v1/sessions/{session.id}/members", params={"subject": "bob"})
        removed.set()
        while client.socket.recv(1024):
            pass
    program.close()
    assert got == []


def test_a_program_that_never_reads_holds_up_only_its_own_connection(session: Session, listen: Listen) -> None:
    """What a client sends before a program answers waits in bounded buffers: here, and in the network."""

    def reads_nothing(taken: socket.socket, head: bytes) -> None:
        time.sleep(0.5)

    session.tunnel("app", listen(reads_nothing).port)
    with session.raw() as client:
        upgrade = {"connection": "upgrade", "upgrade": "websocket", "sec_websocket_version": "13"}
        key = base64.b64encode(b"0" * 16).decode()
        client.send(request("GET", "/t/app/", host=session.host, sec_websocket_key=key, **upgrade, **session.bearer()))
        client.socket.settimeout(0.3)
        sent = 0
        with contextlib.suppress(TimeoutError, ConnectionError):
            while sent < 64 << 20:
                sent += client.socket.send(b"x" * 65536)
        assert sent < 32 << 20
    assert session.visit("/health").status_code == 200


@pytest.mark.parametrize("lose", [revoke_key, remove_member, lower_role], ids=lambda each: each.__name__)
def test_a_link_ends_with_the_rights_of_who_issued_it(
    session: Session, listen: Listen, lose: Callable[[Kim], None]
) -> None:
    """Also the links of others that they issued, as thread tokens do, and all that came from them."""
    kim = Kim(session.server, session.api)

    def program(taken: socket.socket, head: bytes) -> None:
        taken.sendall(OK if b" /endless" not in head else b"HTTP/1.1 200 OK\r\n\r\nfirst")
        while b" /endless" in head and taken.recv(65536):
            pass

    session.tunnel("app", listen(program).port)
    with kim.client() as client:
        wanted: tuple[dict[str, str], ...] = ({}, {"subject": "vera", "role": "collaborator"})
        tokens = [client.post(f"/v1/sessions/{session.id}/links", json=each).json()["token"] for each in wanted]
    mine = session.cookie()
    cookies = [
        {"cookie": session.visit(f"/?token={token}").headers["set-cookie"].partition(";")[0]} for token in tokens
    ]
    ticket = path_of(session.visit("/t/app/", headers=cookies[0]).headers["location"])
    entered = session.visit(ticket, host=session.tunnel_host("app"))
    inside = {"cookie": entered.headers["set-cookie"].partition(";")[0]}
    assert session.visit("/", host=session.tunnel_host("app"), headers=inside).status_code == 200
    start = f"GET /endless HTTP/1.1\r\nhost: {session.tunnel_host('app')}\r\ncookie: {inside['cookie']}\r\n\r\n"
    with socket.create_connection(session.server.address, timeout=240) as opened:
        opened.sendall(start.encode())
        assert opened.recv(12) == b"HTTP/1.1 200"
        lose(kim)
        with contextlib.suppress(ConnectionResetError):
            while opened.recv(65536):
                pass
    for token, cookie in zip(tokens, cookies, strict=True):
        assert session.visit("/", headers={"authorization": f"Bearer {token}"}).status_code == 401
        assert session.visit(f"/?token={token}").status_code == 401
        assert session.visit("/", headers=cookie).status_code == 401
    assert session.visit("/", host=session.tunnel_host("app"), headers=inside).status_code == 401
    assert session.visit("/", headers=mine).status_code == 200
