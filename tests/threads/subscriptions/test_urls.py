"""Server-side request forgery: whatever a subscriber writes, the server calls no one inside its own network."""

from __future__ import annotations

import datetime
import ssl
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from tests.threads.subscriptions.webhooks import Answer, WebhookReceiver

from holdfast.threads.subscriptions.delivery import DeliveryFailed, WebhookSender
from holdfast.threads.subscriptions.errors import WebhookRefused
from holdfast.threads.subscriptions.urls import WebhookTarget, judge_addresses, parse_target

if TYPE_CHECKING:
    from tests.threads.subscriptions.conftest import Bench

pytestmark = pytest.mark.anyio

NOT_PUBLIC = [
    "0.0.0.0",
    "0.1.2.3",
    "10.0.0.1",
    "100.64.0.1",
    "127.0.0.1",
    "127.8.8.8",
    "169.254.169.254",
    "172.16.0.1",
    "172.31.255.255",
    "192.0.0.8",
    "192.0.2.1",
    "192.88.99.1",
    "192.168.1.1",
    "198.18.0.1",
    "198.51.100.1",
    "203.0.113.1",
    "224.0.0.1",
    "239.1.2.3",
    "240.0.0.1",
    "255.255.255.255",
    "::",
    "::1",
    "::7f00:1",
    "::ffff:127.0.0.1",
    "::ffff:10.0.0.1",
    "::ffff:93.184.215.14",
    "64:ff9b::7f00:1",
    "64:ff9b:1::a00:1",
    "100::1",
    "2001::1",
    "2001:db8::1",
    "2002:7f00:1::",
    "fc00::1",
    "fd12:3456::1",
    "fe80::1",
    "fec0::1",
    "ff02::1",
]
PUBLIC = ["93.184.215.14", "1.1.1.1", "2606:4700::1111", "2a00:1450:4001::1"]


@pytest.mark.parametrize("address", NOT_PUBLIC)
def test_an_address_that_is_not_public_is_refused_written_or_resolved(address: str) -> None:
    host = f"[{address}]" if ":" in address else address
    with pytest.raises(WebhookRefused):
        parse_target(f"https://{host}/hook", allow_local=True)
    target = parse_target("https://hooks.example.com/hook", allow_local=True)
    with pytest.raises(WebhookRefused):
        judge_addresses(target, [address])
    with pytest.raises(WebhookRefused):
        judge_addresses(target, [PUBLIC[0], address])


@pytest.mark.parametrize("address", PUBLIC)
def test_a_public_address_is_taken(address: str) -> None:
    host = f"[{address}]" if ":" in address else address
    assert not parse_target(f"https://{host}/hook", allow_local=False).local
    target = parse_target("https://hooks.example.com/hook", allow_local=False)
    assert str(judge_addresses(target, [address])) == address


@pytest.mark.parametrize(
    "url",
    [
        "",
        "hook",
        "//hooks.example.com/",
        "https://",
        "https:hooks.example.com",
        "ftp://hooks.example.com/",
        "file:///etc/passwd",
        "gopher://127.0.0.1:6379/_x",
        "http://hooks.example.com/",
        "http://10.0.0.1/hook",
        "http://192.168.0.1:80/",
        "http://0.0.0.0/",
        "http://[::ffff:127.0.0.1]/",
        "http://localhost.example.com/",
        "http://evil@localhost/",
        "https://user:pass@hooks.example.com/",
        "https://hooks.example.com/#part",
        "https://hooks.example.com:0/",
        "https://hooks.example.com:99999/",
        "https://localhost/",
        "https://localhost./",
        "https://metadata/",
        "https://metadata.google.internal/",
        "https://printer.local/",
        "https://me.localhost/",
        "https://127.1/",
        "https://0x7f.1/",
        "https://0x7f000001/",
        "https://2130706433/",
        "https://0177.0.0.1/",
        "https://127.0.0.1./",
        "https://1.2.3.4.5/",
        "https://[fe80::1%25eth0]/",
        "https://[::1/",
        "https://exa mple.com/",
        "https://example.com\\@127.0.0.1/",
        "https://example.com\r\nx: y/",
        "https://ｌocalhost/",
        "https://-a.example.com/",
        "https://a..example.com/",
        "https://" + "a" * 64 + ".example.com/",
        "https://example.com/" + "a" * 2048,
    ],
)
def test_a_url_that_looks_wrong_is_refused(url: str) -> None:
    with pytest.raises(WebhookRefused):
        parse_target(url, allow_local=True)


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST", "127.0.0.1", "127.9.9.9", "[::1]"])
def test_http_is_for_this_machine_and_only_where_the_server_allows_it(host: str) -> None:
    assert parse_target(f"http://{host}:8080/hook", allow_local=True).local
    with pytest.raises(WebhookRefused):
        parse_target(f"http://{host}:8080/hook", allow_local=False)


def test_localhost_must_be_this_machine() -> None:
    target = parse_target("http://localhost:8080/", allow_local=True)
    assert str(judge_addresses(target, ["127.0.0.1", "::1"])) == "127.0.0.1"
    for elsewhere in ("93.184.215.14", "10.0.0.1", "0.0.0.0", "::ffff:127.0.0.1", "nonsense"):
        with pytest.raises(WebhookRefused):
            judge_addresses(target, ["127.0.0.1", elsewhere])
    with pytest.raises(WebhookRefused):
        judge_addresses(target, [])


class RecordingTransport(httpx.AsyncBaseTransport):
    """The last point before the network: what arrives here would have been sent."""

    def __init__(self) -> None:
        self.requests: list[httpx.Request] = []

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        return httpx.Response(200, stream=httpx.ByteStream(b'{"done": true}'))


async def webhook_error(bench: Bench, url: str) -> str:
    body = {"type": "webhook", "pattern": "events/*", "webhook": {"url": url}}
    status, answer = await bench.call("PUT", "subscriptions/evil", body)
    assert status == 400
    return str(answer["error"]["code"])


@pytest.mark.parametrize("address", NOT_PUBLIC)
async def test_a_name_of_an_inner_address_cannot_be_subscribed(bench: Bench, address: str) -> None:
    transport = bench.transport = RecordingTransport()
    await bench.restart()
    bench.addresses = {"inner.example.com": [address], "both.example.com": [PUBLIC[0], address]}
    for host in bench.addresses:
        assert await webhook_error(bench, f"https://{host}/") == "WEBHOOK_URL_REJECTED"
    assert transport.requests == []


async def test_a_name_that_is_not_known_cannot_be_subscribed(bench: Bench) -> None:
    assert await webhook_error(bench, "https://unknown.example.com/") == "WEBHOOK_URL_REJECTED"
    assert bench.resolved == ["unknown.example.com"]


async def test_a_name_that_changes_after_it_was_accepted_is_not_called(bench: Bench) -> None:
    transport = bench.transport = RecordingTransport()
    await bench.restart()
    bench.addresses = {"rebind.example.com": [PUBLIC[0]]}
    await bench.webhook("s", "https://rebind.example.com/hook")
    bench.addresses = {"rebind.example.com": ["127.0.0.1"]}
    await bench.put("events/a", 1)
    failed = await bench.subscriptions.until(lambda saved: saved.attempts == 1)
    assert failed.last_error == "webhook.url leads to 127.0.0.1, which is not a public address"
    assert transport.requests == []
    bench.addresses = {"rebind.example.com": [PUBLIC[1]]}
    bench.clock.advance(1_000)
    await bench.subscriptions.until(lambda saved: saved.wake is None)
    assert len(transport.requests) == 1


async def test_a_changed_name_reaches_no_socket_of_this_machine(bench: Bench, receiver: WebhookReceiver) -> None:
    """The same with the real transport, against a real listener."""
    bench.addresses = {"rebind.example.com": [PUBLIC[0]]}
    await bench.webhook("s", f"https://rebind.example.com:{receiver.port}/hook")
    bench.addresses = {"rebind.example.com": ["127.0.0.1"]}
    await bench.put("events/a", 1)
    await bench.subscriptions.until(lambda saved: saved.attempts == 1)
    assert receiver.connections == 0


async def test_the_connection_goes_to_the_address_that_was_judged(bench: Bench) -> None:
    transport = bench.transport = RecordingTransport()
    await bench.restart()
    bench.addresses = {"hooks.example.com": [PUBLIC[2]]}
    await bench.webhook("s", "https://hooks.example.com:8443/hook?x=1")
    await bench.put("events/a", 1)
    await bench.subscriptions.until(lambda saved: saved.wake is None and saved.generation == 1)
    (request,) = transport.requests
    assert str(request.url) == f"https://[{PUBLIC[2]}]:8443/hook?x=1"
    assert request.headers["host"] == "hooks.example.com:8443"
    assert request.extensions["sni_hostname"] == "hooks.example.com"


async def test_a_server_that_no_longer_allows_local_webhooks_stops_calling_them(
    bench: Bench, receiver: WebhookReceiver
) -> None:
    await bench.webhook("s", receiver.url)
    bench.allow_local = False
    await bench.restart()
    await bench.put("events/a", 1)
    await bench.subscriptions.until(lambda saved: saved.attempts == 1)
    assert receiver.connections == 0


def certificate_for(name: str, folder: Path) -> Path:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .sign(key, hashes.SHA256())
    )
    path = folder / f"{name}.pem"
    path.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        + certificate.public_bytes(serialization.Encoding.PEM)
    )
    return path


@pytest.mark.parametrize(("presented", "accepted"), [("hooks.example.com", True), ("other.example.com", False)])
async def test_the_certificate_must_be_for_the_name_and_not_for_the_address(
    tmp_path: Path, presented: str, accepted: bool
) -> None:
    path = certificate_for(presented, tmp_path)
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(path)
    trusting = ssl.create_default_context(cafile=str(path))

    async def resolve(host: str, port: int) -> list[str]:
        return ["127.0.0.1"]

    sender = WebhookSender(
        allow_local=True, resolver=resolve, transport=lambda: httpx.AsyncHTTPTransport(verify=trusting)
    )
    async with WebhookReceiver(Answer(body=b'{"done": true}'), tls=serving) as receiver:
        # As parse_target makes it, but bound to this machine, where the test can listen.
        url = f"https://hooks.example.com:{receiver.port}/hook"
        target = WebhookTarget(httpx.URL(url), "hooks.example.com", receiver.port, local=True)
        if accepted:
            assert await sender._send(target, b"{}", {}) is True
        else:
            with pytest.raises(httpx.ConnectError, match="certificate"):
                await sender._send(target, b"{}", {})


async def test_a_refused_url_is_a_failed_delivery_and_not_a_crash() -> None:
    with pytest.raises(DeliveryFailed):
        await WebhookSender(allow_local=False).send("http://127.0.0.1/", b"{}", {})
