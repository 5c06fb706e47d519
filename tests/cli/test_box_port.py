"""`holdfast box port`: a port of a box by URL, and brought to this machine."""

from __future__ import annotations

import http.client
import re
import signal
import socket
import subprocess
from contextlib import closing
from urllib.parse import urlsplit

from tests.cli.conftest import BoxCli, Cli

from holdfast.cli.box.port import own_addresses
from holdfast.cli.exits import Exit

ECHO = """
import socketserver, sys
class Echo(socketserver.StreamRequestHandler):
    def handle(self):
        data = self.rfile.read()
        self.wfile.write(data[::-1])
class Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
with Server(("127.0.0.1", 4567), Echo) as server:
    print("listening", flush=True)
    server.serve_forever()
"""


def begin(box_cli: Cli, boxes: BoxCli, box: str, *command: str) -> None:
    """Start a server in the box, and wait until it says that it listens."""
    process = box_cli("box", "exec", "-d", box, "--", *command).out.strip()
    with boxes.start("logs", box, process, "-f", stdin=subprocess.DEVNULL) as reading:
        assert reading.stdout is not None
        assert reading.stdout.readline()
        reading.kill()


def test_any_tcp_is_forwarded_and_both_ends_can_close(box_cli: Cli, boxes: BoxCli, box: str) -> None:
    begin(box_cli, boxes, box, "python3", "-c", ECHO)
    with boxes.start("port", box, "4567", "--forward", "0", stdin=subprocess.DEVNULL) as forwarding:
        assert forwarding.stdout is not None
        match = re.search(rb"forwarding\s+(127\.[0-9.]+):(\d+) to port 4567", forwarding.stdout.readline())
        assert match is not None
        address = (match.group(1).decode(), int(match.group(2)))
        assert address[0] == own_addresses(box, 4567)[0] != "127.0.0.1"  # whose cookies others would share
        data = bytes(range(256)) * 2000
        for _ in range(3):
            with socket.create_connection(address, timeout=240) as talk:
                talk.sendall(data)
                talk.shutdown(socket.SHUT_WR)
                answer = b"".join(iter(lambda: talk.recv(65536), b""))
            assert answer == data[::-1]
        forwarding.send_signal(signal.SIGINT)
        _, err = forwarding.communicate(timeout=240)
    assert forwarding.returncode == Exit.INTERRUPTED
    assert b"the box keeps running" in err
    assert b"Traceback" not in err


def test_a_port_where_nothing_listens_is_told_once(boxes: BoxCli, box: str) -> None:
    with boxes.start("port", box, "4568", "--forward", "0", "--localhost", stdin=subprocess.DEVNULL) as forwarding:
        assert forwarding.stdout is not None
        assert forwarding.stderr is not None
        match = re.search(rb":(\d+) to", forwarding.stdout.readline())
        assert match is not None
        for _ in range(2):
            with socket.create_connection(("127.0.0.1", int(match.group(1))), timeout=240) as talk:
                assert talk.recv(1) == b""
        assert b"4568" in forwarding.stderr.readline()
        forwarding.send_signal(signal.SIGINT)
        _, err = forwarding.communicate(timeout=240)
    assert err.count(b"4568") == 1  # in what is said at the end


def test_the_url_of_a_port_leads_there(boxes: BoxCli, box_cli: Cli, box: str) -> None:
    box_cli("box", "exec", box, "--", "sh", "-c", "echo hello > index.html")
    begin(box_cli, boxes, box, "python3", "-u", "-m", "http.server", "8123")
    told = box_cli("box", "port", box, "8123", "--json").json()
    assert box_cli("box", "port", box, "8123").out.partition("?")[0] == told["url"].partition("?")[0]
    place = urlsplit(told["url"])
    # Not every resolver knows that all names below localhost are this machine; browsers and curl do.
    connection = http.client.HTTPConnection("127.0.0.1", place.port or 80, timeout=30)
    with closing(connection):
        connection.request("GET", f"/index.html?{place.query}", headers={"host": place.netloc, **told["headers"]})
        answer = connection.getresponse()
        assert (answer.status, answer.read()) == (200, b"hello\n")
