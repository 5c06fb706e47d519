"""Addresses of this machine for ports of boxes: their own origin, who may visit them, and what attackers try."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
from tests.server.box_providers import dummies
from tests.server.conftest import api_of
from tests.server.raw import RawClient, request
from tests.server.test_box_ports import OK, TIMEOUT, Listen, listen
from websockets.sync.client import connect
from websockets.sync.server import ServerConnection
from websockets.sync.server import serve as serve_websockets

from holdfast.server.wire.box_hosts import BadPreviewUrl, BoxHosts, PreviewAddress
from holdfast.server.wire.preview import Carrier, Previews, expiry
from holdfast.server.wire.preview_addresses import (
    MOST_OF_A_BOX,
    NoAddress,
    PreviewAddresses,
    TooManyPreviews,
    candidates,
)
from holdfast.testing.server import ServerProcess

__all__ = ["listen"]  # a fixture


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    home = tmp_path_factory.mktemp("previews") / "home"
    with ServerProcess(home, providers=dummies, daytona=True) as server:
        yield server


@pytest.fixture
def daytona(server: ServerProcess) -> Iterator[httpx.Client]:
    with daytona_of(server) as client:
        yield client


def daytona_of(server: ServerProcess, url: str | None = None) -> httpx.Client:
    headers = {"Authorization": f"Bearer {server.api_key}"}
    return httpx.Client(
        base_url=f"{url or server.url}/compat/daytona", headers=headers, trust_env=False, timeout=TIMEOUT
    )


@pytest.fixture
def anybody() -> Iterator[httpx.Client]:
    with httpx.Client(trust_env=False, timeout=TIMEOUT) as client:
        yield client


@pytest.fixture
def sandbox(daytona: httpx.Client) -> Iterator[str]:
    id = create(daytona)
    yield id
    daytona.delete(f"/sandbox/{id}")


def create(daytona: httpx.Client) -> str:
    made = daytona.post("/sandbox", json={})
    assert made.status_code == 200, made.text
    id: str = made.json()["id"]
    return id


def link(daytona: httpx.Client, sandbox: str, port: int) -> tuple[str, str]:
    told = daytona.get(f"/sandbox/{sandbox}/ports/{port}/preview-url").json()
    return told["url"], told["token"]


def signed(daytona: httpx.Client, sandbox: str, port: int, seconds: int = 300) -> tuple[str, str]:
    answer = daytona.get(
        f"/sandbox/{sandbox}/ports/{port}/signed-preview-url", params={"expiresInSeconds": str(seconds)}
    )
    assert answer.status_code == 200, answer.text
    return answer.json()["url"], answer.json()["token"]


def address_of(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    assert parts.path in ("", "/")
    assert not parts.query
    assert parts.hostname is not None
    assert parts.port is not None
    return parts.hostname, parts.port


def is_closed(url: str) -> bool:
    try:
        socket.create_connection(address_of(url), timeout=TIMEOUT).close()
    except ConnectionRefusedError:
        return True
    return False


# --- who may visit ---


def test_host_and_port_of_a_signed_link_are_all_that_a_program_needs(
    daytona: httpx.Client, anybody: httpx.Client, sandbox: str, listen: Listen
) -> None:
    inside = listen(OK)
    url, _ = signed(daytona, sandbox, inside.port)
    host, port = address_of(url)
    assert anybody.get(f"http://{host}:{port}/v1/stream/threads/x?a=b").content == b"ok"
    assert inside.heads[0].startswith(b"GET /v1/stream/threads/x?a=b HTTP/1.1\r\n")
    assert inside.headers()["host"] == f"{host}:{port}"


def test_a_plain_link_needs_its_token_and_has_the_port_of_the_box(
    daytona: httpx.Client, anybody: httpx.Client, sandbox: str, listen: Listen
) -> None:
    inside = listen(OK)
    url, token = link(daytona, sandbox, inside.port)
    assert str(inside.port) in url
    assert anybody.get(url).status_code == 401
    assert anybody.get(url, headers={"x-daytona-preview-token": token}).content == b"ok"
    assert "x-daytona-preview-token" not in inside.headers()
    assert daytona.post(f"/sandbox/{sandbox}/public/true").status_code == 200
    assert anybody.get(url).content == b"ok"
    assert daytona.post(f"/sandbox/{sandbox}/public/false").status_code == 200
    assert anybody.get(url).status_code == 401


def test_the_token_of_another_sandbox_or_port_opens_nothing(
    daytona: httpx.Client, anybody: httpx.Client, sandbox: str, listen: Listen
) -> None:
    inside, beside = listen(OK), listen(OK)
    other = create(daytona)
    url, _ = link(daytona, sandbox, inside.port)
    for theirs, port in ((other, inside.port), (sandbox, beside.port)):
        for _, token in (link(daytona, theirs, port), signed(daytona, theirs, port)):
            assert anybody.get(url, headers={"x-daytona-preview-token": token}).status_code == 401
    assert inside.heads == []
    daytona.delete(f"/sandbox/{other}")


def test_a_signed_link_that_was_ended_opens_nothing_and_says_so(
    daytona: httpx.Client, anybody: httpx.Client, sandbox: str, listen: Listen
) -> None:
    inside = listen(OK)
    url, token = signed(daytona, sandbox, inside.port)
    still, _ = signed(daytona, sandbox, inside.port, 301)
    assert anybody.get(url).content == b"ok"
    assert daytona.post(f"/sandbox/{sandbox}/ports/{inside.port}/signed-preview-url/{token}/expire").status_code == 200
    assert anybody.get(url).status_code == 401
    assert anybody.get(still).content == b"ok"


def test_two_links_have_two_hosts_so_that_cookies_of_one_are_not_those_of_the_other(
    daytona: httpx.Client, sandbox: str, listen: Listen
) -> None:
    first, second = listen(OK), listen(OK)
    hosts = {address_of(link(daytona, sandbox, each.port)[0])[0] for each in (first, second)}
    hosts |= {address_of(signed(daytona, sandbox, first.port, seconds)[0])[0] for seconds in (100, 200)}
    assert len(hosts) == 4
    assert all(host.startswith("127.") and host != "127.0.0.1" for host in hosts)


def test_a_browser_exchanges_its_token_for_a_cookie_of_that_address(
    daytona: httpx.Client, anybody: httpx.Client, sandbox: str, listen: Listen
) -> None:
    inside = listen(OK)
    url, token = link(daytona, sandbox, inside.port)
    opened = anybody.get(url, params={"holdfast_token": token}, headers={"sec-fetch-mode": "navigate"})
    assert "path=/;" in opened.headers["set-cookie"].lower()
    assert anybody.get(url).content == b"ok"
    assert "cookie" not in inside.headers()


# --- what passes ---


def test_websockets_and_bodies_pass(daytona: httpx.Client, anybody: httpx.Client, sandbox: str, listen: Listen) -> None:
    def echo(opened: ServerConnection) -> None:
        for message in opened:
            opened.send(message)

    with serve_websockets(echo, "127.0.0.1", 0, max_size=None) as inside:
        serving = threading.Thread(target=inside.serve_forever)
        serving.start()
        url, _ = signed(daytona, sandbox, inside.socket.getsockname()[1])
        with connect(f"ws{url.removeprefix('http')}/ws", max_size=None, open_timeout=TIMEOUT, proxy=None) as opened:
            for message in ("text", bytes(1 << 20)):
                opened.send(message)
                assert opened.recv(timeout=TIMEOUT) == message
        inside.shutdown()
        serving.join(TIMEOUT)

    go_on = threading.Event()

    def events(taken: socket.socket, head: bytes) -> None:
        taken.sendall(b"HTTP/1.1 200 OK\r\n\r\none")
        assert go_on.wait(TIMEOUT)
        taken.sendall(b"two")

    url, _ = signed(daytona, sandbox, listen(events).port)
    with anybody.stream("GET", url) as answer:
        pieces = answer.iter_bytes()
        assert next(pieces) == b"one"
        go_on.set()
        assert b"".join(pieces) == b"two"


# --- attacks ---


@pytest.mark.parametrize("host", ["evil.example", "localhost", "127.0.0.1", "OTHER", "", None])
def test_a_page_of_another_host_does_not_get_in(
    daytona: httpx.Client, sandbox: str, listen: Listen, host: str | None
) -> None:
    """DNS rebinding: the name leads to the address, and the browser sends the name."""
    inside = listen(OK)
    url, _ = signed(daytona, sandbox, inside.port)
    if host == "OTHER":
        host = urlsplit(link(daytona, sandbox, inside.port)[0]).netloc
    with RawClient(address_of(url)) as client:
        lines = b"GET / HTTP/1.1\r\n" + (b"" if host is None else f"host: {host}\r\n".encode()) + b"\r\n"
        client.send(lines)
        assert client.head()[0] in (400, 421)
    assert inside.heads == []


def test_the_api_is_not_reached_through_an_address(
    server: ServerProcess, daytona: httpx.Client, sandbox: str, listen: Listen
) -> None:
    inside = listen(OK)
    url, _ = signed(daytona, sandbox, inside.port)
    own = urlsplit(server.url).netloc
    for target in ("/v1/boxes", "/compat/daytona/sandbox", "/v1/stream/threads/x", f"{server.url}/v1/boxes"):
        with RawClient(address_of(url)) as client:
            client.send(request("GET", target, host=own, authorization=f"Bearer {server.api_key}"))
            assert client.head()[0] == 421
    assert inside.heads == []


def test_the_host_of_an_address_means_nothing_to_the_server_itself(
    server: ServerProcess, daytona: httpx.Client, anybody: httpx.Client, sandbox: str, listen: Listen
) -> None:
    inside = listen(OK)
    url, _ = signed(daytona, sandbox, inside.port)
    assert anybody.get(server.url, headers={"host": urlsplit(url).netloc}).content != b"ok"
    assert inside.heads == []


def test_the_links_of_a_deleted_sandbox_are_closed_and_never_those_of_another(
    daytona: httpx.Client, anybody: httpx.Client, listen: Listen
) -> None:
    inside = listen(OK)
    gone = create(daytona)
    urls = [link(daytona, gone, inside.port)[0], signed(daytona, gone, inside.port)[0]]
    assert anybody.get(urls[1]).content == b"ok"  # a connection that is kept alive
    assert daytona.delete(f"/sandbox/{gone}").status_code == 200
    assert anybody.get(urls[1]).status_code in (404, 410)
    assert all(map(is_closed, urls))
    after = create(daytona)
    assert link(daytona, after, inside.port)[0] not in urls
    assert all(map(is_closed, urls))
    daytona.delete(f"/sandbox/{after}")


def test_a_flood_of_links_is_refused_and_the_first_ones_stay(
    daytona: httpx.Client, anybody: httpx.Client, sandbox: str, listen: Listen
) -> None:
    inside = listen(OK)
    urls = [signed(daytona, sandbox, inside.port, 300 + each)[0] for each in range(MOST_OF_A_BOX)]
    refused = daytona.get(f"/sandbox/{sandbox}/ports/{inside.port}/signed-preview-url", params={"expiresInSeconds": 9})
    assert refused.status_code == 429
    assert "at most" in refused.json()["message"] or "the most" in refused.json()["message"]
    assert anybody.get(urls[0]).content == b"ok"


# --- across restarts, elsewhere, and our own API ---


def test_links_are_the_same_after_a_restart_and_are_served_before_anybody_asks(
    tmp_path: Path, anybody: httpx.Client, listen: Listen
) -> None:
    inside = listen(OK)
    with ServerProcess(tmp_path / "home", providers=dummies, daytona=True) as server:
        with daytona_of(server) as daytona:
            sandbox = create(daytona)
            plain, token = link(daytona, sandbox, inside.port)
            url, _ = signed(daytona, sandbox, inside.port)
            ended, ended_token = signed(daytona, sandbox, inside.port, 500)
            daytona.post(f"/sandbox/{sandbox}/ports/{inside.port}/signed-preview-url/{ended_token}/expire")
        server.kill()
        server.start()
        with daytona_of(server) as daytona:
            daytona.get("/sandbox")  # the API is open, and so are its links
            assert anybody.get(url).content == b"ok"
            assert anybody.get(plain, headers={"x-daytona-preview-token": token}).content == b"ok"
            assert is_closed(ended)
            assert link(daytona, sandbox, inside.port)[0] == plain


def test_a_caller_from_elsewhere_gets_a_link_that_it_can_reach(
    daytona: httpx.Client, sandbox: str, listen: Listen
) -> None:
    inside = listen(OK)
    daytona.headers["host"] = "box.example:8484"
    url, _ = link(daytona, sandbox, inside.port)
    assert url == f"http://box.example:8484/v1/boxes/{sandbox}/ports/{inside.port}"
    assert signed(daytona, sandbox, inside.port)[0].startswith(f"{url}/?holdfast_token=")


def test_below_the_operators_domain_host_and_port_are_all_too(
    tmp_path: Path, anybody: httpx.Client, listen: Listen
) -> None:
    inside = listen(OK)
    domain = "https://preview.example.com:8443"
    with (
        ServerProcess(tmp_path / "home", providers=dummies, daytona=True, preview_url=domain) as server,
        daytona_of(server) as daytona,
    ):
        sandbox = create(daytona)
        plain, token = link(daytona, sandbox, inside.port)
        url, its_token = signed(daytona, sandbox, inside.port)
        assert plain == f"https://{inside.port}-{sandbox}.preview.example.com:8443"
        assert url == f"https://{inside.port}-{sandbox}--{its_token}.preview.example.com:8443"

        def ask(url: str, path: str = "/", **headers: str) -> httpx.Response:
            return anybody.get(f"{server.url}{path}", headers={"host": urlsplit(url).netloc, **headers})

        assert ask(url, "/v1/boxes").content == b"ok"
        assert inside.heads[-1].startswith(b"GET /v1/boxes HTTP/1.1\r\n")
        assert ask(url.upper().replace("HTTPS", "https")).content == b"ok"
        assert ask(plain).status_code == 401
        assert ask(plain, **{"x-daytona-preview-token": token}).content == b"ok"
        assert ask(url.replace(its_token, token)).content == b"ok"
        other = create(daytona)
        assert ask(url.replace(sandbox, other)).status_code == 401
        assert ask(url.replace("preview.example.com", "evil.example")).content != b"ok"
        daytona.post(f"/sandbox/{sandbox}/ports/{inside.port}/signed-preview-url/{its_token}/expire")
        assert ask(url).status_code == 401


def test_our_own_api_gives_an_address_too(server: ServerProcess, anybody: httpx.Client, listen: Listen) -> None:
    inside = listen(OK)
    with api_of(server) as api:
        box = api.post("/v1/boxes", json={}).json()["box"]["id"]
        url = api.get(f"/v1/boxes/{box}/preview-address", params={"port": inside.port}).json()["url"]
        host, port = address_of(url)
        assert anybody.get(f"http://{host}:{port}").content == b"ok"
        assert api.get("/v1/boxes/b-none/preview-address", params={"port": 80}).status_code == 404
        assert anybody.get(f"{server.url}/v1/boxes/{box}/preview-address?port=80").status_code == 401
        assert api.delete(f"/v1/boxes/{box}").status_code == 200
    assert anybody.get(url).status_code in (404, 410)


# --- the parts ---


class Served:
    """What serves the sockets of addresses."""

    def __init__(self) -> None:
        self.open: list[asyncio.Server] = []

    async def __call__(self, listener: socket.socket, address: PreviewAddress) -> asyncio.Server:
        server = await asyncio.start_server(lambda reader, writer: writer.close(), sock=listener)
        self.open.append(server)
        return server


@pytest.mark.anyio
async def test_addresses_are_closed_with_their_box_and_some_time_after_their_token() -> None:
    now = 1_000_000_000_000
    previews = Previews(b"key", required=True, clock=lambda: now)
    addresses = PreviewAddresses(b"key", Served(), lambda token: expiry(token) * 1000, lambda: now)
    there = {"b-1", "b-2"}

    async def is_there(box: str) -> bool:
        return box in there

    token = previews.issue(Carrier.URL, "b-1", 8000, seconds=60)
    first = await addresses.open("b-1", 8000, token)
    assert await addresses.open("b-1", 8000, token) == first
    await addresses.open("b-1", 8000)
    await addresses.open("b-2", 8000)
    await addresses.sweep(is_there)
    assert len(addresses) == 3
    now += 60_000 + 600_000
    await addresses.sweep(is_there)
    assert len(addresses) == 2
    assert is_closed(first.url)
    there.discard("b-1")
    await addresses.sweep(is_there)
    assert len(addresses) == 1
    addresses.close()
    assert len(addresses) == 0
    with pytest.raises(TooManyPreviews):
        await addresses.open("b-2", 8000)


@pytest.mark.anyio
async def test_expired_links_make_room_for_new_ones() -> None:
    now = 1_000_000_000_000
    previews = Previews(b"key", required=True, clock=lambda: now)
    addresses = PreviewAddresses(b"key", Served(), lambda token: expiry(token) * 1000, lambda: now)
    for seconds in range(1, MOST_OF_A_BOX + 1):
        await addresses.open("b-1", 80, previews.issue(Carrier.URL, "b-1", 80, seconds=seconds))
    with pytest.raises(TooManyPreviews, match="b-1"):
        await addresses.open("b-1", 80)
    now += 1000
    await addresses.open("b-1", 80)
    assert len(addresses) == MOST_OF_A_BOX
    addresses.close()


@pytest.mark.anyio
async def test_an_address_in_use_is_passed_over() -> None:
    taken = [socket.create_server(next(iter(candidates(b"key", "b-1", 80, "x"))))]
    addresses = PreviewAddresses(b"key", Served(), lambda token: 1 << 60, lambda: 0)
    address = await addresses.open("b-1", 80, "x")
    assert address_of(address.url) == list(candidates(b"key", "b-1", 80, "x"))[1]
    taken += [socket.create_server(each) for each in candidates(b"key", "b-1", 80, "y")]
    with pytest.raises(NoAddress, match="in use"):
        await addresses.open("b-1", 80, "y")
    addresses.close()
    for each in taken:
        each.close()


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        (b"80-b-1.localhost:8484", ("b-1", 80, None)),
        (b"80-B-1.LOCALHOST.", ("b-1", 80, None)),
        (b"80-b-1--5f-abcdefghijklmnopqrstuvwxyz.localhost", ("b-1", 80, "5f-abcdefghijklmnopqrstuvwxyz")),
        (b"80-b-1.preview.example.com", ("b-1", 80, None)),
        (b"80-b-1--5f-ABCDEFGHIJKLMNOPQRSTUVWXYZ.preview.example.com:1", ("b-1", 80, "5f-abcdefghijklmnopqrstuvwxyz")),
        (b"80-b-1--short.localhost", None),
        (b"80-b-1.previewXexample.com", None),
        (b"80-b-1.example.com", None),
        (b"a.80-b-1.preview.example.com", None),
        (b"preview.example.com", None),
        (b"80-b-1.preview.example.com.evil.example", None),
        (b"", None),
    ],
)
def test_names_of_ports(host: bytes, expected: tuple[str, int, str | None] | None) -> None:
    assert BoxHosts("https://Preview.example.com").named(host) == expected


@pytest.mark.parametrize(
    "url",
    ["preview.example.com", "ftp://a.b", "https://a.b/path", "https://a.b?x", "https://127.0.0.1", "https://[::1]",
     "https://a_b.c", "https://u@a.b", "https://a.b:99999", "http://localhost", "https://"],
)  # fmt: skip
def test_urls_that_can_have_no_names_below_them(url: str) -> None:
    with pytest.raises(BadPreviewUrl, match=r"expected|domain|Port"):
        BoxHosts(url)


def test_a_name_with_a_token_fits_into_one_label_of_the_dns() -> None:
    token = Previews(b"key", required=True).preview_token("b-0123456789abcdef", 65535, 86400)
    url = BoxHosts("https://p.example").url_below("b-0123456789abcdef", 65535, token)
    assert url is not None
    assert len((urlsplit(url).hostname or "").partition(".")[0]) <= 63


@pytest.mark.parametrize("carrier", [Carrier.URL, Carrier.LINK])
def test_a_token_has_one_spelling_so_that_it_is_not_used_again_in_another(carrier: Carrier) -> None:
    previews = Previews(b"key", required=True, clock=lambda: 1_000_000)
    token = previews.issue(carrier, "b-1", 80)
    assert previews.holds(token, carrier, "b-1", 80)
    others = [
        f"0{token}",
        f" {token}",
        f"+{token}",
        f"0x{token}",
        f"{token[:2]}_{token[2:]}",
        token.upper(),
        f"{token} ",
    ]
    for other in (*others, f"{token}\n", f"{token}-"):
        assert not previews.holds(other, carrier, "b-1", 80), other
    assert previews.admits(token, opens=True)
    assert not previews.admits(token, opens=True)
    previews.expire(token)
    assert not previews.holds(token, carrier, "b-1", 80)
