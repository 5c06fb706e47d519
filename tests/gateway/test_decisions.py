"""The gateway's decisions by table: names of tunnels, host names, paths, roles, and what a thread says."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.api.errors import Conflict, Forbidden, InvalidRequest
from holdfast.api.session.gateway import MAX_TUNNELS, NewTunnel, Role, TunnelProtocol
from holdfast.gateway.hosts import SessionHost, SessionHosts
from holdfast.gateway.record import GatewayRecord, fold, without_expired
from holdfast.gateway.routes import Kind, Route, parse_path
from holdfast.gateway.sessions import ProgramView
from holdfast.gateway.site import check_origin, for_the_browser, for_the_program, no_program
from holdfast.gateway.tunnel.tunnels import Tunnels, host_label, parse_tunnel, with_tunnel
from holdfast.gateway.uses import Use, may

# --- tunnels ---


@pytest.mark.parametrize(
    "value",
    [
        {"name": "a", "port": 1},
        {"name": "A_b-3", "port": 65535, "protocol": "ws"},
        {"name": "x" * 32, "port": 80, "protocol": "auto"},
    ],
)
def test_a_tunnel_has_a_name_a_port_and_a_protocol(value: dict[str, Any]) -> None:
    expected = NewTunnel(name=value["name"], port=value["port"], protocol=TunnelProtocol(value.get("protocol", "http")))
    assert parse_tunnel(value) == expected


@pytest.mark.parametrize(
    "value",
    [
        {"name": "", "port": 80},
        {"name": "x" * 33, "port": 80},
        {"name": "../vscode", "port": 80},
        {"name": "..", "port": 80},
        {"name": "a/b", "port": 80},
        {"name": "a\n", "port": 80},
        {"name": "ä", "port": 80},
        {"name": "vscode", "port": 80},
        {"name": "VSCode", "port": 80},
        {"name": "api", "port": 80},
        {"name": "health", "port": 80},
        {"name": "t", "port": 80},
        {"name": 5, "port": 80},
        {"name": "a", "port": 0},
        {"name": "a", "port": 65536},
        {"name": "a", "port": 3128},
        {"name": "a", "port": "80"},
        {"name": "a", "port": True},
        {"name": "a", "port": 80.0},
        {"name": "a", "port": 80, "protocol": "ftp"},
        {"name": "a", "port": 80, "protocol": None},
        {"port": 80},
        {"name": "a"},
        [],
        None,
    ],
)
def test_what_is_no_tunnel_is_refused(value: Any) -> None:
    with pytest.raises(InvalidRequest):
        parse_tunnel(value)


def test_two_tunnels_never_share_a_host_name() -> None:
    tunnels: Tunnels = {}
    for name in ("app", "App", "a_b", "a-b", "-", "a--b", "a-"):
        tunnels = with_tunnel(tunnels, NewTunnel(name=name, port=80))
    labels = [host_label(name) for name in tunnels]
    assert len(set(labels)) == len(labels)
    assert all(SessionHosts("http", "").named(f"{each}--t-1.localhost".encode()) for each in labels)
    with pytest.raises(Conflict, match="host name"):
        with_tunnel(tunnels, NewTunnel(name=host_label("App"), port=81))


def test_the_number_of_tunnels_is_limited_but_one_can_be_replaced() -> None:
    tunnels: Tunnels = {f"n{each}": NewTunnel(name=f"n{each}", port=80) for each in range(MAX_TUNNELS)}
    with pytest.raises(Conflict, match="at most"):
        with_tunnel(tunnels, NewTunnel(name="more", port=80))
    assert with_tunnel(tunnels, NewTunnel(name="n0", port=81))["n0"].port == 81


# --- host names and paths ---


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        (b"t-01ab.localhost:8484", SessionHost("t-01ab", None)),
        (b"T-01AB.LOCALHOST", SessionHost("t-01ab", None)),
        (b"app--t-01ab.localhost", SessionHost("t-01ab", "app")),
        (b"3000--s-1.work.example.com", SessionHost("s-1", "3000")),
        (b"my-app--t-1.localhost", SessionHost("t-1", "my-app")),
        (b"localhost:8484", None),
        (b"127.0.0.1:8484", None),
        (b"3000-b-1.localhost", None),
        (b"b-1.localhost", None),
        (b"a--b--t-1.localhost", None),
        (b"x.t-1.localhost", None),
        (b"t-1.localhost.evil.com", None),
        (b"t-1.example.com", None),
        (b"t-1.workXexample.com", None),
        (b"--t-1.localhost", None),
        (b"t-1.localhost:8484:1", None),
        (b"", None),
    ],
)
def test_a_host_name_is_a_session_a_tunnel_or_neither(host: bytes, expected: SessionHost | None) -> None:
    assert SessionHosts("https", "", "work.example.com").named(host) == expected


def test_origins_lead_back_to_where_they_came_from() -> None:
    here, there = SessionHosts("http", ":8484"), SessionHosts("https", "", "work.example.com")
    assert here.origin("t-1") == "http://t-1.localhost:8484"
    assert there.origin("t-1", "app") == "https://app--t-1.work.example.com"


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (b"/health", Route(Kind.HEALTH)),
        (b"/", Route(Kind.INDEX)),
        (b"/vscode", Route(Kind.PROGRAM, "vscode", b"")),
        (b"/vnc/core/rfb.js", Route(Kind.PROGRAM, "vnc", b"/core/rfb.js")),
        (b"/tty/ws", Route(Kind.TERMINAL, path=b"/ws")),
        (b"/t/app/a/b", Route(Kind.TUNNEL, "app", b"/a/b")),
        (b"/t/app", Route(Kind.TUNNEL, "app", b"")),
        (b"/t/../vscode", Route(Kind.UNKNOWN)),
        (b"/t/%2e%2e/x", Route(Kind.UNKNOWN)),
        (b"/t/", Route(Kind.UNKNOWN)),
        (b"/vscodex", Route(Kind.UNKNOWN)),
        (b"/%76scode/", Route(Kind.UNKNOWN)),
        (b"//vscode/", Route(Kind.UNKNOWN)),
        (b"/api/tunnels", Route(Kind.UNKNOWN)),
        (b"/opencode/", Route(Kind.UNKNOWN)),
        (b"/v1/boxes", Route(Kind.UNKNOWN)),
        (b"/guest/v1", Route(Kind.UNKNOWN)),
        (b"/health/", Route(Kind.UNKNOWN)),
    ],
)
def test_a_path_is_a_route_or_unknown(path: bytes, expected: Route) -> None:
    assert parse_path(path) == expected


# --- roles ---


def test_a_viewer_only_watches_and_reads() -> None:
    assert {use for use in Use if may(Role.VIEWER, use)} == {Use.PAGE, Use.WATCH, Use.READ_TUNNEL}
    for role in (Role.OWNER, Role.COLLABORATOR):
        assert all(may(role, use) for use in Use)


# --- origins and headers ---

HOST = (b"host", b"t-1.localhost:1")


@pytest.mark.parametrize(
    ("headers", "unsafe_passes"),
    [
        ([HOST], True),
        ([HOST, (b"origin", b"http://t-1.localhost:1")], True),
        ([HOST, (b"origin", b"https://t-1.localhost:1")], True),
        ([HOST, (b"origin", b"http://app--t-1.localhost:1")], False),
        ([HOST, (b"origin", b"http://t-1.localhost:2")], False),
        ([HOST, (b"origin", b"http://evil.example")], False),
        ([HOST, (b"origin", b"null")], False),
        ([HOST, (b"origin", b"")], False),
        ([HOST, (b"origin", b"http://t-1.localhost:1.evil.example")], False),
    ],
)
def test_only_pages_of_the_same_origin_change_something_or_open_a_socket(
    headers: list[tuple[bytes, bytes]], unsafe_passes: bool
) -> None:
    check_origin("GET", headers, upgrade=False)
    for method, upgrade in (("POST", False), ("DELETE", False), ("GET", True)):
        if unsafe_passes:
            check_origin(method, headers, upgrade=upgrade)
        else:
            with pytest.raises(Forbidden):
                check_origin(method, headers, upgrade=upgrade)


def test_parts_of_other_pages_are_refused_and_links_from_them_are_not() -> None:
    elsewhere = [HOST, (b"sec-fetch-site", b"cross-site")]
    with pytest.raises(Forbidden):
        check_origin("GET", [*elsewhere, (b"sec-fetch-mode", b"no-cors")], upgrade=False)
    check_origin("GET", [*elsewhere, (b"sec-fetch-mode", b"navigate")], upgrade=False)


def test_a_program_sees_neither_our_credentials_nor_headers_of_the_hop() -> None:
    headers = [
        HOST,
        (b"cookie", b"a=b; holdfast_session=secret; __Host-holdfast_session=secret; c=d"),
        (b"authorization", b"Bearer secret"),
        (b"referer", b"http://t-1.localhost:1/?token=eyJsecret"),
        (b"connection", b"keep-alive, x-hop"),
        (b"x-hop", b"secret"),
        (b"te", b"trailers"),
        (b"transfer-encoding", b"chunked"),
        (b"x-forwarded-for", b"secret"),
        (b"accept-encoding", b"gzip"),
    ]
    sent = for_the_program(headers, "http", b"/vscode", authorization=False)
    assert b"secret" not in b"".join(value for _, value in sent)
    assert (b"cookie", b"a=b; c=d") in sent
    assert {name for name, _ in sent}.isdisjoint({b"connection", b"te", b"transfer-encoding", b"x-hop"})
    assert (b"x-forwarded-prefix", b"/vscode") in sent
    kept = for_the_program(headers, "http", b"", authorization=True)
    assert (b"authorization", b"Bearer secret") in kept  # it is the program's own


def test_an_answer_cannot_set_our_cookie_or_end_the_login() -> None:
    headers = [
        (b"set-cookie", b"holdfast_session=" + b"0" * 64),
        (b"set-cookie", b" Holdfast_Session =x"),
        (b"set-cookie", b"__Host-holdfast_session=x; Secure; Path=/"),
        (b"set-cookie", b"=holdfast_session=" + b"0" * 64),
        (b"set-cookie", b" = holdfast_session=x; Path=/vscode/a"),
        (b"set-cookie", b"theme=dark; Domain=localhost"),
        (b"clear-site-data", b'"*"'),
        (b"transfer-encoding", b"chunked"),
    ]
    framing = (b"content-security-policy", b"frame-ancestors 'self'")
    assert for_the_browser(headers, shares_origin=True) == [(b"set-cookie", b"theme=dark"), framing]


@pytest.mark.parametrize("wanted", [b"/", b"/vscode/", b"/tty/", b"//elsewhere/"])
def test_a_service_worker_of_the_editor_has_the_pages_of_the_editor_at_most(wanted: bytes) -> None:
    """One for `/` would see the tokens in links to the session."""
    answer = [(b"service-worker-allowed", wanted)]
    kept = for_the_browser(answer, shares_origin=True, worker_scope=b"/vscode/")
    assert [value for name, value in kept if name == b"service-worker-allowed"] == [b"/vscode/"]
    for others in (
        for_the_browser(answer, shares_origin=True),
        for_the_browser(answer, shares_origin=False),
        for_the_browser([], shares_origin=True, worker_scope=b"/vscode/"),
    ):
        assert b"service-worker-allowed" not in dict(others)


# --- what a thread says ---


def test_a_record_is_folded_from_its_entries() -> None:
    record = GatewayRecord()
    for payload in (
        {"type": "signal.gateway.member", "subject": "ada", "role": "owner"},
        {"type": "signal.gateway.member", "subject": "bob", "role": "viewer"},
        {"type": "signal.gateway.member", "subject": "ada", "role": "king"},
        {"type": "signal.gateway.member", "subject": 5, "role": "owner"},
        {"type": "signal.gateway.tunnel", "name": "app", "tunnel": {"name": "app", "port": 80, "url": "x"}},
        {"type": "signal.gateway.tunnel", "name": "gone", "tunnel": {"name": "gone", "port": 80}},
        {"type": "signal.gateway.tunnel", "name": "/", "tunnel": {"name": "/", "port": 80}},
        {"type": "signal.gateway.tunnel", "name": "app", "tunnel": 3},
        {"type": "signal.gateway.tunnel", "name": "gone", "tunnel": None},
        {"type": "signal.gateway.tunnel", "name": ["app"], "tunnel": None},
        {"type": "signal.gateway.revoked", "token": "d", "until": 10},
        {"type": "signal.gateway.unheard-of"},
        {"type": "chat"},
    ):
        record = fold(record, payload)
    assert record.members == {"bob": Role.VIEWER}
    assert list(record.tunnels) == ["app"]
    assert (without_expired(record, 9).revoked, without_expired(record, 10).revoked) == ({"d": 10}, {})
    later = fold(record, {"type": "signal.gateway.revoked", "generation": 1})
    assert (later.generation, later.revoked, later.members) == (1, {}, {"bob": Role.VIEWER})
    assert fold(later, {"type": "signal.gateway.revoked", "generation": 0}) == later


@pytest.mark.parametrize(
    ("states", "told"),
    [
        ({}, "session t-1 has no editor: its box was made without a workstation"),
        ({"desktop": "running"}, "session t-1 has no editor: its box was made without a workstation"),
        ({"editor": "missing"}, "session t-1 has no editor: code-server is not here"),
        ({"editor": "failed"}, "the editor of session t-1 has failed: code-server is not here"),
        ({"editor": "starting"}, None),
        ({"editor": "restarting"}, None),
        ({"editor": "running"}, None),
    ],
)
def test_a_program_that_may_still_start_is_waited_for_and_no_other(states: dict[str, str], told: str | None) -> None:
    programs = [ProgramView(name, name.title(), state, "code-server is not here") for name, state in states.items()]
    found = no_program("t-1", "editor", programs)
    assert (None if found is None else found.message) == told
