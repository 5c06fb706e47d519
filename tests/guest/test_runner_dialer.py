"""How a runner reaches a server outside of its box: by name, with TLS, through a proxy, and without blocking."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.providers.local.world import Authority

from holdfast.guest.runner import dialer
from holdfast.guest.runner.event_loop import Loop
from holdfast.guest.runner.http_client import Answer, HttpClient

NAME = "localhost"
BIG = 700_000


@contextmanager
def served(serve: Callable[[socket.socket], None], tls: ssl.SSLContext | None = None) -> Iterator[int]:
    """A server on a thread, for one connection after the other."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def run() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                try:
                    with connection if tls is None else tls.wrap_socket(connection, server_side=True) as wrapped:
                        serve(wrapped)
                except OSError:
                    pass

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield int(listener.getsockname()[1])
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


def answering(seen: list[bytes]) -> Callable[[socket.socket], None]:
    def serve(connection: socket.socket) -> None:
        data = b""
        while piece := connection.recv(65536):
            data += piece
            head, end, body = data.partition(b"\r\n\r\n")
            if end and len(body) >= int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0]):
                seen.append(data)
                data = b""
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % BIG + b"x" * BIG)

    return serve


def asked(url: str, *bodies: bytes) -> tuple[list[Answer | None], str]:
    """Post these bodies, one after the other over one client. Returns the answers, and the last problem."""
    loop = Loop()
    client = HttpClient(loop, url, lambda: "abc", seconds=10.0)
    answers: list[Answer | None] = []
    left = list(bodies)

    def then(answer: Answer | None) -> None:
        answers.append(answer)
        if left and answer is not None:
            client.post("/v1/x", "", left.pop(0), then)
        else:
            loop.stop()

    client.post("/v1/x", "", left.pop(0), then)
    loop.run(lambda error: loop.stop())
    client.close()
    return answers, client.problem


@pytest.fixture
def authority(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Authority:
    authority = Authority()
    (tmp_path / "ca.pem").write_bytes(authority.pem)
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    for name in ("https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY", "no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    return authority


def test_requests_and_large_answers_go_over_one_tls_connection(authority: Authority) -> None:
    seen: list[bytes] = []
    with served(answering(seen), authority.context(NAME)) as port:
        answers, _ = asked(f"https://{NAME}:{port}/guest", b"y" * BIG, b"{}")
    assert [answer is not None and (answer.status, len(answer.body)) for answer in answers] == [(200, BIG)] * 2
    head = seen[0].partition(b"\r\n\r\n")[0].split(b"\r\n")
    assert head[:3] == [b"POST /guest/v1/x HTTP/1.1", b"Host: localhost:%d" % port, b"Authorization: Bearer abc"]
    assert len(seen) == 2


def test_no_token_is_sent_to_a_server_that_is_not_the_one_of_the_url(authority: Authority) -> None:
    seen: list[bytes] = []
    with served(answering(seen), authority.context("other.example.com")) as port:
        assert "the certificate is not trusted" in asked(f"https://{NAME}:{port}/guest", b"{}")[1]
    with served(answering(seen), Authority().context(NAME)) as port:  # of somebody else
        assert "the certificate is not trusted" in asked(f"https://{NAME}:{port}/guest", b"{}")[1]
    with served(lambda connection: connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")) as port:  # no TLS at all
        assert "TLS: " in asked(f"https://{NAME}:{port}/guest", b"{}")[1]
    assert seen == []


def test_what_blocks_it_is_said_in_words(authority: Authority) -> None:
    def reset(connection: socket.socket) -> None:
        connection.recv(1)

    with served(reset) as port:
        _, problem = asked(f"https://{NAME}:{port}", b"{}")
        assert problem
    assert asked(f"https://{NAME}:{port}", b"{}")[1] == "Connection refused"
    assert "the name cannot be resolved" in asked("https://nothing.invalid", b"{}")[1]


def test_it_goes_through_the_proxy_of_the_box(authority: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bytes] = []
    targets: list[bytes] = []

    def proxy(allowed: bool) -> Callable[[socket.socket], None]:
        def serve(connection: socket.socket) -> None:
            head = b""
            while not head.endswith(b"\r\n\r\n"):
                head += connection.recv(1)
            targets.append(head)
            if not allowed:
                connection.sendall(b"HTTP/1.1 403 Forbidden\r\n\r\n")
                return
            connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
            with authority.context("relay.example.com").wrap_socket(connection, server_side=True) as inside:
                answering(seen)(inside)

        return serve

    with served(proxy(True)) as port:
        monkeypatch.setenv("HTTPS_PROXY", f"http://user:pass%20word@127.0.0.1:{port}")
        answers, _ = asked("https://relay.example.com/guest", b"{}")
    assert answers[0] is not None
    assert targets[0].startswith(b"CONNECT relay.example.com:443 HTTP/1.1\r\nHost: relay.example.com:443\r\n")
    assert b"Proxy-Authorization: Basic dXNlcjpwYXNzIHdvcmQ=\r\n" in targets[0]
    assert b"Bearer" not in targets[0]
    with served(proxy(False)) as port:
        monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{port}")
        problem = asked("https://relay.example.com/guest", b"{}")[1]
    assert problem == "the proxy of this box refuses relay.example.com:443: HTTP/1.1 403 Forbidden"


@pytest.mark.parametrize(
    ("variables", "found"),
    [
        ({}, None),
        ({"https_proxy": "http://p:3128"}, ("p", 3128, "")),
        ({"ALL_PROXY": "http://p"}, ("p", 80, "")),
        ({"https_proxy": "socks5://p:1"}, None),
        ({"https_proxy": "http://p:1", "no_proxy": "a.com, example.com"}, None),
        ({"https_proxy": "http://p:1", "NO_PROXY": "*"}, None),
        ({"https_proxy": "http://p:1", "no_proxy": "xample.com"}, ("p", 1, "")),
    ],
)
def test_the_proxy_is_that_of_the_variables(variables: dict[str, str], found: tuple[str, int, str] | None) -> None:
    assert dialer.find_proxy("relay.example.com", variables) == found
