"""What the boxes of these tests take for the Internet: names for servers on loopback. Nothing ever leaves the machine.

The addresses look public, so that they pass for what a resolver would say, and lead nowhere but to servers of ours.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import http.server
import ipaddress
import json
import os
import socket
import ssl
import subprocess
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from holdfast.egress import CannotConnect, CannotResolve

_WEBSOCKET: Final = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


class World:
    """Resolver and connector at once. Owns its servers; `with` closes them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.authority = Authority()
        self.connected: list[tuple[str, int]] = []
        """Where the connector was asked to go, refused or not."""
        self.resolved: list[str] = []
        self._addresses: dict[str, list[str]] = {}
        self._ports: dict[tuple[str, int], int] = {}
        self._servers = ExitStack()

    def __enter__(self) -> World:
        return self

    def __exit__(self, *_: object) -> None:
        self._servers.close()

    def name(self, host: str, ports: dict[int, int], *, addresses: Sequence[str] = ()) -> str:
        """Give a name to servers on loopback: by the port that a box thinks of, the port here."""
        given = list(addresses) or [f"45.33.32.{len(self._addresses) + 1}"]
        self._addresses[host] = given
        for address in given:
            for port, here in ports.items():
                self._ports[address, port] = here
        return host

    def serve(self, host: str, site: Callable[[Request], Answer], **more: Any) -> str:
        """A site of that name, by HTTP on port 80 and by HTTPS on port 443."""
        plain = self._start(site)
        secure = self._start(site, self.authority.context(host))
        return self.name(host, {80: plain, 443: secure}, **more)

    def _start(self, site: Callable[[Request], Answer], context: ssl.SSLContext | None = None) -> int:
        server = _Server(site, context)
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()

        def stop() -> None:
            server.shutdown()
            server.server_close()
            thread.join()

        self._servers.callback(stop)
        return int(server.server_address[1])

    # --- what the egress asks ---

    async def resolve(self, host: str, port: int) -> Sequence[str]:
        self.resolved.append(host)
        if host not in self._addresses:
            raise CannotResolve(f"{host} has no address")
        return self._addresses[host]

    async def connect(self, address: str, port: int) -> socket.socket:
        self.connected.append((address, port))
        here = self._ports.get((address, port))
        if here is None:
            raise CannotConnect(f"{address}:{port} is no place of this world")
        connection = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        try:
            await asyncio.get_running_loop().sock_connect(connection, ("127.0.0.1", here))
        except BaseException:
            connection.close()
            raise
        return connection


class Authority:
    """A certificate authority that nobody but these tests trusts."""

    def __init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Holdfast tests")])
        self._certificate = self._sign(self._name, self._key.public_key(), [(x509.BasicConstraints(True, None), True)])

    @property
    def pem(self) -> bytes:
        return self._certificate.public_bytes(serialization.Encoding.PEM)

    def _sign(
        self, subject: x509.Name, key: ec.EllipticCurvePublicKey, extensions: list[tuple[x509.ExtensionType, bool]]
    ) -> x509.Certificate:
        now = datetime.now(UTC)
        made = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=1))
            .not_valid_after(now + timedelta(days=1))
        )
        for extension, critical in extensions:
            made = made.add_extension(extension, critical)
        return made.sign(self._key, hashes.SHA256())

    def issue(self, host: str) -> bytes:
        """A private key and a certificate for a host, as PEM."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host)])
        names: list[x509.GeneralName] = [x509.DNSName(host)]
        certificate = self._sign(
            subject,
            key.public_key(),
            [
                (x509.SubjectAlternativeName(names), False),
                (x509.BasicConstraints(False, None), True),
                (x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), False),
            ],
        )
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        return private + certificate.public_bytes(serialization.Encoding.PEM)

    def context(self, host: str) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        # The module takes files only; this one is gone once it was read.
        place = os.memfd_create("certificate")
        try:
            os.write(place, self.issue(host))
            context.load_cert_chain(f"/proc/self/fd/{place}")
        finally:
            os.close(place)
        return context


# --- sites ------------------------------------------------------------------------------------------------------------


class Request:
    def __init__(self, method: str, target: str, headers: dict[str, str], body: bytes, origin: str) -> None:
        parts = urlsplit(target)
        self.method = method
        self.path = parts.path
        self.query = parse_qs(parts.query)
        self.raw_query = parts.query
        self.headers = headers
        self.body = body
        self.origin = origin
        """Scheme and host, as the client sees them."""


class Answer:
    def __init__(self, body: bytes = b"", *, status: int = 200, **headers: str) -> None:
        self.body = body
        self.status = status
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}

    @classmethod
    def json(cls, document: Any) -> Answer:
        return cls(json.dumps(document).encode(), content_type="application/json")


NOTHING: Final = Answer(b"there is nothing here", status=404)


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256

    def __init__(self, site: Callable[[Request], Answer], context: ssl.SSLContext | None) -> None:
        super().__init__(("127.0.0.1", 0), _Site)
        self.site = site
        self.context = context

    def finish_request(self, request: Any, client_address: Any) -> None:
        request.settimeout(30)
        if self.context is None:
            super().finish_request(request, client_address)
            return
        with self.context.wrap_socket(request, server_side=True) as secure:
            super().finish_request(secure, client_address)

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass  # clients of these tests leave as they like


class _Site(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def _any(self) -> None:
        if self.headers.get("Upgrade", "").lower() == "websocket":
            self._websocket()
            return
        server: Any = self.server
        body = self._body()
        origin = f"{'http' if server.context is None else 'https'}://{self.headers['Host']}"
        answer = server.site(Request(self.command, self.path, dict(self.headers.items()), body, origin))
        self.send_response(answer.status)
        for name, value in {"Content-Length": str(len(answer.body)), **answer.headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)

    do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = _any

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "").lower() == "chunked":
            body = b""
            while size := int(self.rfile.readline(), 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return body
        return self.rfile.read(int(self.headers.get("Content-Length", "0")))

    def _websocket(self) -> None:
        """Says everything back, until the client leaves."""
        key = self.headers["Sec-WebSocket-Key"].encode()
        accept = base64.b64encode(hashlib.sha1(key + _WEBSOCKET).digest()).decode()
        self.send_response(101)
        for name, value in {"Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Accept": accept}.items():
            self.send_header(name, value)
        self.end_headers()
        while True:
            head = self.rfile.read(2)
            if len(head) < 2 or head[0] & 0x0F == 8:
                break
            mask = self.rfile.read(4)
            data = bytes(byte ^ mask[at % 4] for at, byte in enumerate(self.rfile.read(head[1] & 0x7F)))
            self.wfile.write(bytes([head[0], len(data)]) + data)
        self.close_connection = True

    def log_message(self, format: str, *args: Any) -> None:
        pass


def plain_site(request: Request) -> Answer:
    """Says hello, says things back, redirects, and sends as much as it is asked for."""
    match request.path:
        case "/hello":
            return Answer(f"hello by {request.method}\n".encode())
        case "/echo":
            return Answer(request.body)
        case "/headers":
            return Answer.json(request.headers)
        case "/redirect":
            return Answer(status=302, Location=request.query["to"][0])
        case "/bytes":
            return Answer(bytes(int(request.query["size"][0])))
    return NOTHING


def folder_site(folder: Path) -> Callable[[Request], Answer]:
    """Files as they are."""

    def site(request: Request) -> Answer:
        path = folder / request.path.lstrip("/")
        return Answer(path.read_bytes()) if path.is_file() else NOTHING

    return site


def git_site(folder: Path) -> Callable[[Request], Answer]:
    """All repositories of a folder, by git's own program."""

    def site(request: Request) -> Answer:
        environment = {
            "PATH": os.defpath,
            "GIT_PROJECT_ROOT": str(folder),
            "GIT_HTTP_EXPORT_ALL": "1",
            "REQUEST_METHOD": request.method,
            "PATH_INFO": request.path,
            "QUERY_STRING": request.raw_query,
            "CONTENT_TYPE": request.headers.get("Content-Type", ""),
            "CONTENT_LENGTH": str(len(request.body)),
            "HTTP_CONTENT_ENCODING": request.headers.get("Content-Encoding", ""),
            "GIT_PROTOCOL": request.headers.get("Git-Protocol", ""),
            "REMOTE_ADDR": str(ipaddress.IPv4Address("127.0.0.1")),
            "GIT_CONFIG_COUNT": "1",
            "GIT_CONFIG_KEY_0": "safe.directory",
            "GIT_CONFIG_VALUE_0": "*",
        }
        done = subprocess.run(
            ["git", "http-backend"], input=request.body, env=environment, capture_output=True, check=True, timeout=30
        )
        head, _, body = done.stdout.partition(b"\r\n\r\n")
        headers = dict(line.split(": ", 1) for line in head.decode().splitlines())
        status = int(headers.pop("Status", "200").split()[0])
        answer = Answer(body, status=status)
        answer.headers = headers
        return answer

    return site
