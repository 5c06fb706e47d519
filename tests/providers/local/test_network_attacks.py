"""Attacks on the egress, from inside of a box: each is refused, recorded, and harmless to neighbours."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.providers.local import fake_guest
from tests.providers.local.attacking import PRELUDE, no_descriptor_is_left, open_descriptors
from tests.providers.local.networking import Net, attack, curl, networked

from holdfast.api.box.box import Box
from holdfast.api.box.network import Network, NetworkPolicy
from holdfast.api.errors.boxes import BoxError
from holdfast.egress import Limits
from holdfast.guest.init import codec
from holdfast.providers.host.guest_client import GuestClient
from holdfast.providers.local.egress import LocalEgress

pytestmark = pytest.mark.anyio

ASK = """
def ask(data, port=3128, host="127.0.0.1"):
    "Say something to the proxy; the first line of what it says, or what became of the connection."
    connection = socket.create_connection((host, port), 20)
    connection.settimeout(20)
    said = b""
    try:
        connection.sendall(data)
        while b"\\r\\n" not in said:
            piece = connection.recv(4096)
            if not piece:
                return "closed"
            said += piece
    except OSError as error:
        return errno.errorcode[error.errno]
    finally:
        connection.close()
    return said.split(b"\\r\\n")[0].decode()
"""
NEVER = (
    "127.0.0.1", "127.0.0.2", "0.0.0.0", "10.0.0.1", "172.16.0.1", "192.168.0.1", "169.254.169.254", "100.64.0.1",
    "224.0.0.1", "255.255.255.255", "[::1]", "[::]", "[fe80::1]", "[fc00::1]", "[::ffff:127.0.0.1]",
    "[::ffff:10.0.0.1]", "[2002:7f00:1::]", "[64:ff9b::7f00:1]", "2130706433", "0x7f000001", "0177.0.0.1", "127.1",
    "localhost",
)  # fmt: skip


@pytest.fixture(scope="module")
async def net(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Net]:
    async with networked(tmp_path_factory.mktemp("attacks"), Limits(connections=64)) as net:
        yield net


@pytest.fixture
async def box(net: Net) -> Box:
    return await net.box("site.test")


@pytest.fixture
async def open_box(net: Net) -> Box:
    return await net.box(mode=Network.OPEN)


# --- around the proxy -------------------------------------------------------------------------------------------------


async def test_there_is_no_other_way_out_than_the_proxy(net: Net, open_box: Box) -> None:
    """No route, by no protocol: names cannot be asked for, so nothing can be smuggled in questions for them."""
    program = """
def udp(address, family=socket.AF_INET):
    return attempt(lambda: socket.socket(family, socket.SOCK_DGRAM).sendto(b"secret.evil.test", address))
def tcp(address, family=socket.AF_INET):
    connection = socket.socket(family)
    connection.settimeout(5)
    return attempt(connection.connect, address)
def raw(*kind):
    return attempt(lambda: bool(socket.socket(*kind)))
def resolve():
    try:
        return socket.getaddrinfo("site.test", 80)
    except socket.gaierror:
        return "no name"
tell({
    "tcp": [tcp(("45.33.32.1", 80)), tcp(("169.254.169.254", 80)), tcp(("2606:4700::1", 443), socket.AF_INET6)],
    "udp": [udp(("8.8.8.8", 53)), udp(("2001:4860:4860::8888", 53), socket.AF_INET6), udp(("224.0.0.251", 5353))],
    "raw": [raw(socket.AF_INET, socket.SOCK_RAW, 1), raw(socket.AF_INET6, socket.SOCK_RAW, 58),
            raw(socket.AF_PACKET, socket.SOCK_RAW, 3)],
    "ping": attempt(lambda: bool(socket.socket(socket.AF_INET, socket.SOCK_DGRAM, 1))),
    "names": resolve(),
    "interfaces": [name for _, name in socket.if_nameindex()],
    "route": call(libc.unshare, 0x40000000),
})
"""
    told = await attack(open_box, program)
    assert told["tcp"] == ["ENETUNREACH"] * 3
    assert told["udp"] == ["ENETUNREACH"] * 3
    assert set(told["raw"]) <= {"EPERM", "EAFNOSUPPORT"}
    assert told["ping"] in ("EACCES", "EPERM", True)  # a socket, and nowhere to send from it
    assert told["names"] == "no name"
    assert told["interfaces"] == ["lo"]
    assert told["route"] == "EPERM"
    assert not [each for each in net.world.resolved if "evil" in each]


async def test_the_loopback_of_a_box_is_its_own(net: Net, open_box: Box) -> None:
    """Neither the machine's ports nor a neighbour's are there, nor their sockets without a path."""
    neighbour = await net.box(mode=Network.OPEN)
    serving = await neighbour.spawn(["python3", "-m", "http.server", "--bind", "127.0.0.1", "8123"])
    name = f"holdfast-test-{os.getpid()}"
    with socket.create_server(("127.0.0.1", 0)) as of_the_machine, socket.socket(socket.AF_UNIX) as abstract:
        abstract.bind(f"\0{name}")
        abstract.listen()
        port = of_the_machine.getsockname()[1]
        program = """
port, name = int(sys.argv[1]), sys.argv[2]
def connect(address, family=socket.AF_INET):
    return attempt(socket.socket(family).connect, address)
tell([connect(("127.0.0.1", port)), connect(("127.0.0.1", 8123)), connect("\\0" + name, socket.AF_UNIX)])
"""
        assert await attack(open_box, program, str(port), name) == ["ECONNREFUSED"] * 3
    await serving.kill()


async def test_nobody_in_a_box_can_take_the_port_of_its_way_out(net: Net, box: Box) -> None:
    program = """
def bind(host, family, *options):
    taken = socket.socket(family)
    for option in options:
        taken.setsockopt(socket.SOL_SOCKET, option, 1)
    return attempt(lambda: (taken.bind((host, 3128)), taken.listen())[0])
tell([bind(host, family, *options) for host, family in (
    ("127.0.0.1", socket.AF_INET), ("0.0.0.0", socket.AF_INET), ("127.0.0.9", socket.AF_INET),
    ("::1", socket.AF_INET6), ("::", socket.AF_INET6),
) for options in ((), (socket.SO_REUSEADDR,), (socket.SO_REUSEPORT,), (socket.SO_REUSEADDR, socket.SO_REUSEPORT))])
"""
    assert set(await attack(box, program)) == {"EADDRINUSE"}
    assert (await curl(box, "http://site.test/hello")).exit_code == 0


async def test_the_listener_is_out_of_reach_in_the_box(box: Box) -> None:
    """The guest keeps it, and nobody can look into the guest."""
    program = """
tell([attempt(os.listdir, "/proc/1/fd"), attempt(os.open, "/proc/1/fd/9", os.O_RDONLY),
      call(libc.syscall, 438, os.pidfd_open(1), 9, 0)])
"""
    assert await attack(box, program) == ["EACCES", "EACCES", "EPERM"]


# --- through the proxy ------------------------------------------------------------------------------------------------


async def test_addresses_that_are_not_for_boxes_are_never_reached(net: Net, open_box: Box) -> None:
    """Also by explicit choice of everything, written in every way."""
    net.world.name("localhost", {80: 1, 443: 1}, addresses=["127.0.0.1"])
    before = len(net.world.connected)
    program = (
        ASK
        + """
told = {}
for host in sys.argv[1:]:
    told[host] = [
        ask(f"GET http://{host}/ HTTP/1.1\\r\\nHost: {host}\\r\\n\\r\\n".encode()).split(" ")[1:2],
        ask(f"CONNECT {host}:443 HTTP/1.1\\r\\nHost: {host}:443\\r\\n\\r\\n".encode()),
    ]
tell(told)
"""
    )
    for host, (plain, tunnel) in (await attack(open_box, program, *NEVER)).items():
        assert plain in (["403"], ["400"], ["502"]), host
        assert tunnel.split(" ")[1:2] != ["200"], host
    assert net.world.connected[before:] == []
    denied = await net.denied(open_box)
    assert len(denied) == len(await net.decisions(open_box)) >= len(NEVER)


async def test_names_that_lead_to_such_addresses_are_never_reached(net: Net, open_box: Box) -> None:
    for number, address in enumerate(("127.0.0.1", "10.1.2.3", "169.254.169.254", "::1", "::ffff:192.168.1.1")):
        net.world.name(f"inside{number}.test", {80: 1, 443: 1}, addresses=[address])
        refused = await curl(open_box, "--write-out", "%{http_code}", f"http://inside{number}.test/")
        assert "403" in refused.text, address
        assert (await curl(open_box, f"https://inside{number}.test/")).exit_code != 0
    reached = {address for address, _ in net.world.connected}
    assert not reached & {"127.0.0.1", "10.1.2.3", "169.254.169.254", "::1", "::ffff:192.168.1.1"}
    assert len(await net.denied(open_box)) == 10


async def test_a_redirect_to_a_private_address_leads_nowhere(net: Net, open_box: Box) -> None:
    led = await curl(
        open_box,
        "--location",
        "--write-out",
        "%{http_code}",
        "http://site.test/redirect?to=http://169.254.169.254/keys",
    )
    assert "403" in led.text
    allowed, denied = await net.decisions(open_box)
    assert (allowed.host, allowed.allowed) == ("site.test", True)
    assert (denied.host, denied.allowed) == ("169.254.169.254", False)


async def test_a_host_that_is_blocked_is_blocked_by_every_name_it_has(net: Net, box: Box) -> None:
    """By its address, by another port, as the name of another, and in every position of a request."""
    program = (
        ASK
        + """
def head(line, host, *more):
    return ask("\\r\\n".join([line, f"Host: {host}", *more, "", ""]).encode())
tell({
    "address": head("GET http://45.33.32.2/hello HTTP/1.1", "45.33.32.2"),
    "other address": head("GET http://45.33.32.1/hello HTTP/1.1", "45.33.32.1"),
    "port": head("GET http://site.test:8080/hello HTTP/1.1", "site.test:8080"),
    "host": head("GET http://site.test/hello HTTP/1.1", "other.test"),
    "absolute": head("GET http://other.test/hello HTTP/1.1", "site.test"),
    "origin": head("GET /hello HTTP/1.1", "other.test"),
    "userinfo": head("GET http://site.test@other.test/hello HTTP/1.1", "other.test"),
    "suffix": head("GET http://site.test.other.test/hello HTTP/1.1", "site.test.other.test"),
    "prefix": head("GET http://notsite.test/hello HTTP/1.1", "notsite.test"),
    "two hosts": head("GET http://site.test/hello HTTP/1.1", "site.test", "Host: other.test"),
    "lengths": head("POST http://site.test/echo HTTP/1.1", "site.test", "Content-Length: 5", "Content-Length: 6"),
    "both": head("POST http://site.test/echo HTTP/1.1", "site.test", "Content-Length: 5", "Transfer-Encoding: chunked"),
    "folded": head("GET http://site.test/hello HTTP/1.1", "site.test", "X: 1", " Host: other.test"),
    "space": head("GET http://site.test/hello HTTP/1.1", "site.test", "Host : other.test"),
    "bare": ask(b"GET http://site.test/hello HTTP/1.1\\nHost: other.test\\n\\n\\r\\n\\r\\n"),
    "ftp": head("GET ftp://site.test/hello HTTP/1.1", "site.test"),
    "connect": head("CONNECT other.test:443 HTTP/1.1", "other.test:443"),
    "connect address": head("CONNECT 45.33.32.2:443 HTTP/1.1", "45.33.32.2:443"),
    "connect port": head("CONNECT site.test:22 HTTP/1.1", "site.test:22"),
    "connect host": head("CONNECT site.test:443 HTTP/1.1", "other.test:443"),
})
"""
    )
    told = await attack(box, program)
    through = {name: line for name, line in told.items() if " 200 " in f"{line} "}
    assert through == {}
    refused = [each for each in await net.decisions(box) if not each.allowed]
    assert len(refused) >= 10
    assert (await curl(box, "http://site.test/hello")).exit_code == 0


async def test_a_tunnel_carries_nothing_but_the_tls_of_its_name(net: Net, box: Box) -> None:
    program = (
        ASK
        + """
import ssl
def tunnel():
    connection = socket.create_connection(("127.0.0.1", 3128), 20)
    connection.settimeout(20)
    connection.sendall(b"CONNECT site.test:443 HTTP/1.1\\r\\nHost: site.test:443\\r\\n\\r\\n")
    assert b" 200 " in connection.recv(4096)
    return connection
def shake(name):
    context = ssl.create_default_context(cafile="ca.pem")
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        context.wrap_socket(tunnel(), server_hostname=name)
        return "through"
    except (OSError, ssl.SSLError) as error:
        return "refused"
def say(data):
    connection = tunnel()
    def talk():
        connection.sendall(data)
        return len(connection.recv(4096))
    return attempt(talk)
tell([shake("site.test"), shake("other.test"), shake(None), say(b"SSH-2.0-OpenSSH_9.2\\r\\n"),
      say(b"GET /hello HTTP/1.1\\r\\nHost: other.test\\r\\n\\r\\n")])
"""
    )
    fine, *others = await attack(box, program)
    assert fine == "through"
    assert others[:2] == ["refused", "refused"]
    assert set(others[2:]) <= {"ECONNRESET", 0}
    assert len(await net.denied(box)) == 4


async def test_thousands_of_connections_leave_a_neighbour_alone(net: Net, box: Box) -> None:
    neighbour = await net.box("site.test")
    program = """
import time
resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
held, ended = [], 0
tell("begun")
deadline = time.monotonic() + 3
while time.monotonic() < deadline and len(held) < 3000:
    connection = socket.socket()
    connection.settimeout(1)
    if attempt(connection.connect, ("127.0.0.1", 3128)) is None:
        held.append(connection)
tell(len(held))
sys.stdin.read(1)
"""
    async with await box.channel(["python3", "-c", PRELUDE + program]) as channel:
        assert await channel.read() == b'"begun"\n'
        slowest = 0.0
        for _ in range(10):
            begin = asyncio.get_running_loop().time()
            assert (await curl(neighbour, "http://site.test/hello")).text == "hello by GET\n"
            slowest = max(slowest, asyncio.get_running_loop().time() - begin)
        assert int(await channel.read()) > 200
        assert net.proxy.traffic(box.id).open <= 64
    assert slowest < 5.0
    refused = [each for each in await net.denied(box) if "at once" in each.why]
    assert sum(each.count for each in refused) > 100
    again = ("--retry", "20", "--retry-delay", "1", "--retry-all-errors")
    assert (await curl(box, *again, "http://site.test/hello")).exit_code == 0


async def test_slow_and_endless_requests_use_up_their_own_share_only(net: Net, box: Box) -> None:
    neighbour = await net.box("site.test")
    program = """
def begin(data):
    connection = socket.create_connection(("127.0.0.1", 3128), 20)
    connection.sendall(data)
    return connection
slow = [begin(b"GET http://site.test/he") for _ in range(30)]
endless = begin(b"POST http://site.test/echo HTTP/1.1\\r\\nHost: site.test\\r\\nTransfer-Encoding: chunked\\r\\n\\r\\n")
headers = begin(b"GET http://site.test/hello HTTP/1.1\\r\\nHost: site.test\\r\\n")
headers.settimeout(20)
def flood():
    for _ in range(1000):
        headers.sendall(b"X-Filler: " + b"a" * 1000 + b"\\r\\n")
    return headers.recv(100).split(b"\\r\\n")[0].decode()
told = attempt(flood)
for _ in range(64):
    endless.sendall(b"10000\\r\\n" + b"b" * 65536 + b"\\r\\n")
tell(told)
"""
    told = await attack(box, program)
    assert told in ("ECONNRESET", "EPIPE", "") or " 4" in told
    assert (await curl(neighbour, "http://site.test/hello")).exit_code == 0


async def test_bandwidth_is_held_to_the_policy(net: Net) -> None:
    box = await net.box("site.test")
    await box.set_network(NetworkPolicy(Network.ALLOW, ("site.test",), bandwidth=200_000))
    begin = asyncio.get_running_loop().time()
    done = await curl(
        box, "--output", "/dev/null", "--write-out", "%{size_download}", "http://site.test/bytes?size=400000"
    )
    taken = asyncio.get_running_loop().time() - begin
    assert done.text == "400000"
    assert taken > 1.0


# --- a guest that is somebody else's ----------------------------------------------------------------------------------


async def test_what_a_lying_guest_hands_out_is_looked_at(net: Net, tmp_path: Path) -> None:
    """It is no listener, or one of another kind: the box has no egress, and the descriptors are closed."""
    ways_out = LocalEgress(net.proxy)
    ways_out.claim(tmp_path)
    before = open_descriptors()
    for kinds in ([], ["pipe"], ["socket"], ["folder"], ["file", "file"]):
        process = await _lying_guest(tmp_path, {"listen": {"bytes": codec.frame({}).hex(), "descriptors": kinds}})
        try:
            with pytest.raises(BoxError):
                await ways_out.open(GuestClient("liar", tmp_path), NetworkPolicy(Network.OPEN), {})
        finally:
            process.kill()
            await process.wait()
    assert net.proxy.traffic("liar").open == 0
    await no_descriptor_is_left(before)
    ways_out.close()


async def _lying_guest(folder: Path, answers: dict[str, object]) -> asyncio.subprocess.Process:
    process = await asyncio.create_subprocess_exec(
        sys.executable, fake_guest.__file__, str(folder), json.dumps(answers), stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    assert await process.stdout.readline() == b"ready\n"
    return process
