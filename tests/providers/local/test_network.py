"""Boxes reach what their policy allows, with the clients that people use, and nothing else."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from tests.providers.local.attacking import PRELUDE
from tests.providers.local.networking import Net, attack, curl, networked, run, works

from holdfast.api.box.network import Network, NetworkPolicy
from holdfast.api.box.records import OWNER_ENVIRONMENT
from holdfast.api.box.spec import BoxSpec
from holdfast.api.errors.boxes import BoxConflict, InvalidSpec, Unsupported
from holdfast.boxes.capabilities import Capability
from holdfast.boxes.network_policy import PROXY_PORT
from holdfast.egress import EgressProxy
from holdfast.providers.local import LocalProvider

pytestmark = pytest.mark.anyio

WEBSOCKET = """
import base64, os, ssl
def talk(connection, host):
    key = base64.b64encode(os.urandom(16)).decode()
    head = f"GET /socket HTTP/1.1\\r\\nHost: {host}\\r\\nUpgrade: websocket\\r\\nConnection: Upgrade\\r\\n"
    connection.sendall((head + f"Sec-WebSocket-Key: {key}\\r\\nSec-WebSocket-Version: 13\\r\\n\\r\\n").encode())
    answer = b""
    while b"\\r\\n\\r\\n" not in answer:
        answer += connection.recv(1)
    mask, text = os.urandom(4), b"over the wall"
    connection.sendall(bytes([0x81, 0x80 | len(text)]) + mask + bytes(b ^ mask[i % 4] for i, b in enumerate(text)))
    said = b""
    while len(said) < 2 + len(text):
        said += connection.recv(99)
    return [answer.split(b"\\r\\n")[0].decode(), said[2:].decode()]
"""


@pytest.fixture(scope="module")
async def net(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Net]:
    async with networked(tmp_path_factory.mktemp("network")) as net:
        yield net


async def test_a_provider_claims_a_network_where_it_has_an_egress(net: Net, tmp_path: object) -> None:
    network = {Capability.NETWORK_ALLOW, Capability.NETWORK_OPEN, Capability.NETWORK_LIVE}
    assert network <= net.provider.capabilities
    async with LocalProvider(net.home) as without:
        assert not network & without.capabilities
        with pytest.raises(Unsupported, match="network-allow"):
            await without.create(BoxSpec(network=NetworkPolicy(Network.ALLOW)), id="refused")


async def test_of_two_that_have_an_egress_the_first_serves_a_home(net: Net) -> None:
    async with (
        EgressProxy(net.world, net.world, net.records) as other,
        LocalProvider(net.home, egress=other) as second,
    ):
        assert Capability.NETWORK_ALLOW not in second.capabilities


async def test_http_gets_to_what_is_allowed_and_is_told_why_not_elsewhere(net: Net) -> None:
    box = await net.box("site.test")
    assert (await curl(box, "http://site.test/hello")).text == "hello by GET\n"
    assert (await curl(box, "--data", "a" * 100_000, "http://site.test/echo")).text == "a" * 100_000
    refused = await curl(box, "--write-out", "%{http_code}", "http://other.test/hello")
    assert "403" in refused.text
    assert "no rule covers other.test" in refused.text
    allowed, _, denied = await net.decisions(box)
    assert (allowed.host, allowed.port, allowed.method, allowed.allowed) == ("site.test", 80, "GET", True)
    assert (denied.host, denied.port, denied.allowed) == ("other.test", 80, False)


async def test_https_gets_to_what_is_allowed_and_is_refused_elsewhere(net: Net) -> None:
    box = await net.box("site.test")
    assert (await curl(box, "https://site.test/hello")).text == "hello by GET\n"
    refused = await curl(box, "https://other.test/hello")
    assert refused.exit_code != 0
    assert "403" in refused.stderr.decode()
    allowed, denied = await net.decisions(box)
    assert (allowed.host, allowed.port, allowed.method, allowed.allowed) == ("site.test", 443, "CONNECT", True)
    assert allowed.received > 100
    assert (denied.host, denied.allowed) == ("other.test", False)


async def test_an_open_box_reaches_every_name(net: Net) -> None:
    box = await net.box(mode=Network.OPEN)
    for url in ("http://site.test/hello", "https://other.test/hello"):
        assert (await curl(box, url)).text == "hello by GET\n"


async def test_websockets_get_through_plain_and_within_tls(net: Net) -> None:
    box = await net.box("site.test")
    program = (
        WEBSOCKET
        + """
connection = socket.create_connection(("127.0.0.1", 3128))
connection.sendall(b"CONNECT site.test:443 HTTP/1.1\\r\\nHost: site.test:443\\r\\n\\r\\n")
assert b" 200 " in connection.recv(999)
secure = ssl.create_default_context(cafile="ca.pem").wrap_socket(connection, server_hostname="site.test")
within = talk(secure, "site.test")
class Absolute:
    def __init__(self, connection): self.connection = connection
    def sendall(self, data): self.connection.sendall(data.replace(b"GET /", b"GET http://site.test/", 1))
    def recv(self, size): return self.connection.recv(size)
tell([within, talk(Absolute(socket.create_connection(("127.0.0.1", 3128))), "site.test")])
"""
    )
    expected = ["HTTP/1.1 101 Switching Protocols", "over the wall"]
    assert await attack(box, program) == [expected, expected]


async def test_every_process_of_a_box_finds_its_way_out(net: Net) -> None:
    box = await net.box("site.test", env={"NO_PROXY": "of-the-spec"})
    assert "of-the-spec" in await works(box, "sh", "-c", "echo $NO_PROXY")
    assert await works(box, "sh", "-c", "echo $https_proxy") == f"http://127.0.0.1:{PROXY_PORT}\n"
    process = await box.spawn(["curl", "--silent", "http://site.test/hello"])
    assert await process.wait(240) == 0
    assert await process.read() == b"hello by GET\n"
    async with await box.channel(["curl", "--silent", "http://site.test/hello"]) as channel:
        assert await channel.read() == b"hello by GET\n"


async def test_a_box_without_a_network_has_no_way_out_and_no_trace_of_one(net: Net) -> None:
    box = await net.box(mode=Network.NONE)
    assert "PROXY" not in (await works(box, "env")).upper()
    refused = await curl(box, "--proxy", f"http://127.0.0.1:{PROXY_PORT}", "http://site.test/hello")
    assert refused.exit_code == 7  # nobody listens there
    metrics = await box.metrics()
    assert metrics.listening == 0


# --- life -------------------------------------------------------------------------------------------------------------


async def test_a_policy_changes_while_the_box_runs(net: Net) -> None:
    box = await net.box("site.test")
    assert (await curl(box, "http://site.test/hello")).exit_code == 0
    await box.set_network(NetworkPolicy(Network.ALLOW, ("other.test",)))
    assert (await curl(box, "--fail", "http://site.test/hello")).exit_code == 22
    assert (await curl(box, "--fail", "http://other.test/hello")).exit_code == 0
    await box.set_network(NetworkPolicy())
    assert (await curl(box, "--proxy", "http://127.0.0.1:3128", "http://other.test/hello")).exit_code != 0
    assert "PROXY" not in (await works(box, "env")).upper()
    again = await net.provider.attach(box.id)
    assert again.spec.network == NetworkPolicy()


async def test_a_change_ends_what_it_does_not_allow_any_more(net: Net) -> None:
    box = await net.box("site.test", "other.test")
    program = """
import time
def tunnel(host):
    connection = socket.create_connection(("127.0.0.1", 3128))
    head = f"GET http://{host}/socket HTTP/1.1\\r\\nHost: {host}\\r\\nUpgrade: websocket\\r\\nConnection: Upgrade\\r\\n"
    connection.sendall(head.encode() + b"Sec-WebSocket-Key: a\\r\\nSec-WebSocket-Version: 13\\r\\n\\r\\n")
    assert b"101" in connection.recv(4096)
    return connection
kept, ended = tunnel("site.test"), tunnel("other.test")
tell("open")
sys.stdin.read(1)
ended.settimeout(20)
gone = attempt(ended.recv, 1)
kept.sendall(bytes([0x81, 0x81, 0, 0, 0, 0, 65]))
tell([gone in ("ECONNRESET", b""), kept.recv(9)[2:].decode()])
"""
    async with await box.channel(["python3", "-c", PRELUDE + program]) as channel:
        assert await channel.read() == b'"open"\n'
        await box.set_network(NetworkPolicy(Network.ALLOW, ("site.test",)))
        await channel.write(b"x")
        assert await channel.read() == b'[true, "A"]\n'


async def test_a_box_that_had_no_network_gets_one_while_it_runs(net: Net) -> None:
    box = await net.box(mode=Network.NONE)
    await box.set_network(NetworkPolicy(Network.ALLOW, ("site.test",)))
    assert (await curl(box, "http://site.test/hello")).exit_code == 0


async def test_a_box_that_took_the_port_is_told_so_and_stays_as_it_was(net: Net) -> None:
    box = await net.box(mode=Network.NONE)
    server = await box.spawn(["python3", "-m", "http.server", "--bind", "127.0.0.1", str(PROXY_PORT)])
    listening = "import socket; socket.create_connection(('127.0.0.1', 3128), 1).close()"
    await works(box, "sh", "-c", f'for i in $(seq 200); do python3 -c "{listening}" 2>/dev/null && exit; done; exit 1')
    with pytest.raises(BoxConflict, match="3128"):
        await box.set_network(NetworkPolicy(Network.OPEN))
    assert (await net.provider.attach(box.id)).spec.network.mode is Network.NONE
    await server.kill()
    await server.wait(240)
    await box.set_network(NetworkPolicy(Network.OPEN))
    assert (await curl(box, "http://site.test/hello")).exit_code == 0


async def test_a_policy_that_makes_no_sense_changes_nothing(net: Net) -> None:
    box = await net.box("site.test")
    with pytest.raises(InvalidSpec):
        await box.set_network(NetworkPolicy(Network.ALLOW, ("not a host!",)))
    assert (await curl(box, "http://site.test/hello")).exit_code == 0


async def test_a_stopped_box_takes_a_policy_and_starts_with_it(net: Net) -> None:
    box = await net.box("site.test")
    await box.stop()
    await box.set_network(NetworkPolicy(Network.ALLOW, ("other.test",)))
    await box.start()
    assert (await curl(box, "--fail", "http://other.test/hello")).exit_code == 0
    assert (await curl(box, "--fail", "http://site.test/hello")).exit_code == 22


async def test_a_paused_box_takes_a_policy_and_goes_on_with_it(net: Net) -> None:
    if Capability.PAUSE not in net.provider.capabilities:
        pytest.skip("this machine lets no box be paused")
    box, other = await net.box(mode=Network.NONE), await net.box("site.test")
    for each in (box, other):
        await each.pause()
        await each.set_network(NetworkPolicy(Network.ALLOW, ("other.test",)))
        await each.start()
        assert (await curl(each, "--fail", "http://other.test/hello")).exit_code == 0
        assert (await curl(each, "--fail", "http://site.test/hello")).exit_code == 22


async def test_snapshots_and_forks_keep_the_way_out(net: Net) -> None:
    box = await net.box("site.test")
    await box.snapshot()  # an idle box is started anew for it
    assert (await curl(box, "http://site.test/hello")).exit_code == 0
    fork = await box.fork()
    assert (await curl(fork, "--fail", "http://site.test/hello")).exit_code == 0
    assert (await curl(fork, "--fail", "http://other.test/hello")).exit_code == 22


async def test_the_policy_of_an_environment_reaches_its_boxes_at_once(net: Net) -> None:
    box = await net.box(labels={OWNER_ENVIRONMENT: "web"})
    stranger = await net.box(labels={OWNER_ENVIRONMENT: "mobile"})
    assert (await curl(box, "--fail", "http://site.test/hello")).exit_code == 22
    await net.policies.put("web", NetworkPolicy(Network.ALLOW, ("site.test",)))
    net.proxy.refresh("web")
    assert (await curl(box, "--fail", "http://site.test/hello")).exit_code == 0
    assert (await curl(stranger, "--fail", "http://site.test/hello")).exit_code == 22


async def test_metrics_tell_what_went_through(net: Net) -> None:
    box = await net.box("site.test")
    await curl(box, "--output", "/dev/null", "http://site.test/bytes?size=300000")
    await curl(box, "--output", "/dev/null", "--data", "b" * 50_000, "http://site.test/echo")
    metrics = await box.metrics()
    assert metrics.received is not None
    assert metrics.sent is not None
    assert metrics.received > 350_000
    assert metrics.sent > 50_000
    assert metrics.listening == 0


async def test_what_waits_is_served_by_the_next_provider(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("restart")
    async with networked(folder) as net:
        box = await net.box("site.test")
        await net.provider.close()
        process = None
        async with LocalProvider(net.home) as between:  # no egress: nothing is served, and boxes live on
            handle = await between.attach(box.id)
            process = await handle.spawn(
                ["curl", "--silent", "--proxy", "http://127.0.0.1:3128", "http://site.test/hello"]
            )
        await net.provider.open()
        found = await (await net.provider.attach(box.id)).process(process.id)
        assert await found.wait(240) == 0
        assert await found.read() == b"hello by GET\n"


async def test_a_box_that_was_started_by_somebody_else_is_served_again_after_a_sweep(net: Net) -> None:
    box = await net.box("site.test")
    async with LocalProvider(net.home) as other:
        handle = await other.attach(box.id)
        await handle.stop()
        await handle.start()
    await net.provider.sweep()
    assert (await run(box, "curl", "--silent", "http://site.test/hello")).text == "hello by GET\n"
