"""A real registry on loopback, to be pushed to and pulled from; and one in this process that can be made to lie."""

from __future__ import annotations

import base64
import contextlib
import gzip
import hashlib
import json
import platform
import re
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import jwt
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from tests.providers.local.rootfs import Tar

INDEX = "application/vnd.oci.image.index.v1+json"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"
ARCHITECTURE = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
USER, PASSWORD = "sailor", "s3cret"
_HTPASSWD = f"{USER}:$2b$05$NOEpyBbaUnIpUIjHpkdndOnAvPFZ7/UBGr1s/24XXd4Wfffp960Ai\n"


def sha256(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


@dataclass
class Pushed:
    """An image as a registry has it: documents and blobs by digest."""

    layers: Sequence[bytes]
    """Tar streams."""
    config: Mapping[str, Any] = field(default_factory=dict)
    pack: Callable[[bytes], bytes] = lambda data: gzip.compress(data, mtime=0)
    layer_type: str = LAYER

    def __post_init__(self) -> None:
        self.packed = [self.pack(layer) for layer in self.layers]
        told = {
            "os": "linux",
            "architecture": ARCHITECTURE,
            "config": dict(self.config),
            "rootfs": {"type": "layers", "diff_ids": [sha256(layer) for layer in self.layers]},
        }
        self.config_data = json.dumps(told).encode()
        self.manifest: dict[str, Any] = {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": {"mediaType": CONFIG, "digest": sha256(self.config_data), "size": len(self.config_data)},
            "layers": [
                {"mediaType": self.layer_type, "digest": sha256(each), "size": len(each)} for each in self.packed
            ],
        }

    @property
    def blobs(self) -> dict[str, bytes]:
        return {sha256(each): each for each in (self.config_data, *self.packed)}

    @property
    def data(self) -> bytes:
        return json.dumps(self.manifest).encode()

    @property
    def size(self) -> int:
        return sum(map(len, self.blobs.values()))


def index_of(*platforms: tuple[str, str, bytes]) -> bytes:
    """A list of manifests: `os`, `architecture`, and the manifest."""
    manifests = [
        {
            "mediaType": MANIFEST,
            "digest": sha256(data),
            "size": len(data),
            "platform": {"os": system, "architecture": architecture},
        }
        for system, architecture, data in platforms
    ]
    return json.dumps({"schemaVersion": 2, "mediaType": INDEX, "manifests": manifests}).encode()


# --- the real one -----------------------------------------------------------------------------------------------------


class RegistryProcess:
    """Debian's docker-registry, with its files in a folder."""

    def __init__(self, folder: Path, auth: str = "") -> None:
        program = shutil.which("docker-registry")
        if program is None:
            pytest.skip("this machine has no registry to pull from: apt install docker-registry")
        folder.mkdir(parents=True)
        self._log = folder / "log"
        config = folder / "config.yml"
        config.write_text(
            "version: 0.1\nlog: {level: info, formatter: json}\n"
            f"storage: {{filesystem: {{rootdirectory: {folder / 'files'}}}}}\n"
            f"http: {{addr: '127.0.0.1:0', secret: test}}\n{auth}"
        )
        with self._log.open("wb") as log:
            self._process = subprocess.Popen([program, "serve", str(config)], stdout=log, stderr=log)
        self.host = f"127.0.0.1:{self._port()}"
        self.url = f"http://{self.host}"

    def _port(self) -> int:
        deadline = time.monotonic() + 240
        while time.monotonic() < deadline:
            if found := re.search(r"listening on [^ \"]*:(\d+)", self._log.read_text()):
                return int(found[1])
            if self._process.poll() is not None:
                break
            time.sleep(0.02)
        raise AssertionError(f"the registry does not start: {self._log.read_text()[-2000:]}")

    def push(self, repository: str, tag: str, image: Pushed, *, headers: Mapping[str, str] | None = None) -> str:
        """The digest that it has there."""
        with httpx.Client(base_url=self.url, headers=headers, trust_env=False) as http:
            for digest, data in image.blobs.items():
                place = http.post(f"/v2/{repository}/blobs/uploads/")
                assert place.status_code == 202, place.text
                there = httpx.URL(place.headers["location"]).copy_merge_params({"digest": digest})
                http.put(there, content=data).raise_for_status()
            return self._put(http, repository, tag, image.data, MANIFEST)

    def push_index(self, repository: str, tag: str, data: bytes) -> str:
        with httpx.Client(base_url=self.url, trust_env=False) as http:
            return self._put(http, repository, tag, data, INDEX)

    def _put(self, http: httpx.Client, repository: str, tag: str, data: bytes, kind: str) -> str:
        done = http.put(f"/v2/{repository}/manifests/{tag}", content=data, headers={"Content-Type": kind})
        assert done.status_code == 201, done.text
        return done.headers["docker-content-digest"]

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(240)


def htpasswd(folder: Path) -> str:
    """The configuration of a registry that wants a user and a password."""
    path = folder / "htpasswd"
    path.write_text(_HTPASSWD)
    return f"auth: {{htpasswd: {{realm: here, path: {path}}}}}\n"


class Tokens:
    """Hands out tokens that a real registry believes, and notes who asked for what."""

    def __init__(self, folder: Path) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "tokens")])
        now = datetime.now(UTC)
        certificate = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(name)
            .public_key(self._key.public_key())
            .serial_number(1)
            .not_valid_before(now - timedelta(days=1))
            .not_valid_after(now + timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self._chain = [base64.b64encode(certificate.public_bytes(serialization.Encoding.DER)).decode()]
        self._bundle = folder / "tokens.pem"
        self._bundle.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        self.asked: list[tuple[str | None, str]] = []
        """The `Authorization` and the scope of each request."""
        self.web = Web(self._answer)

    @property
    def configuration(self) -> str:
        told = f"realm: {self.web.url}/token, service: registry, issuer: tokens, rootcertbundle: {self._bundle}"
        return f"auth: {{token: {{{told}}}}}\n"

    def token(self, repository: str, *actions: str) -> str:
        now = int(time.time())
        access = [{"type": "repository", "name": repository, "actions": list(actions)}]
        claims = {"iss": "tokens", "aud": "registry", "sub": USER, "jti": "1", "access": access}
        return jwt.encode(
            {**claims, "iat": now, "nbf": now - 5, "exp": now + 60}, self._key, "ES256", headers={"x5c": self._chain}
        )

    def _answer(self, request: BaseHTTPRequestHandler) -> None:
        scope = parse_qs(urlsplit(request.path).query).get("scope", [""])[0]
        given = request.headers.get("Authorization")
        self.asked.append((given, scope))
        _, repository, actions = scope.split(":")
        wanted = "Basic " + base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
        if repository.startswith("private/") and given != wanted:
            send(request, 401, b"{}")
        else:
            send(request, 200, json.dumps({"token": self.token(repository, *actions.split(","))}).encode())


# --- one that lies ----------------------------------------------------------------------------------------------------


def send(request: BaseHTTPRequestHandler, status: int, data: bytes = b"", **headers: str) -> None:
    request.send_response(status)
    for name, value in headers.items():
        request.send_header(name.replace("_", "-"), value)
    request.send_header("Content-Length", str(len(data)))
    request.end_headers()
    if request.command != "HEAD":
        request.wfile.write(data)


class Web:
    """An HTTP server on loopback that answers as a function says."""

    def __init__(self, answer: Callable[[BaseHTTPRequestHandler], None]) -> None:
        class Answer(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle(self) -> None:
                with contextlib.suppress(ConnectionError):
                    super().handle()

            def do_GET(self) -> None:
                answer(self)

            do_HEAD = do_GET

            def log_message(self, format: str, *args: object) -> None:
                return None

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
        self._server.daemon_threads = True
        self.host = f"127.0.0.1:{self._server.server_port}"
        self.url = f"http://{self.host}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), name="web")
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class LyingRegistry:
    """Has one image under every name and tag. `answer` answers in its place, where it returns True."""

    def __init__(self, image: Pushed) -> None:
        self.image = image
        self.manifest = image.data
        self.blobs = dict(image.blobs)
        self.asked: list[tuple[str, dict[str, str]]] = []
        """Paths, and headers by name in lower case."""
        self.answer: Callable[[BaseHTTPRequestHandler], bool] = lambda _: False
        self.web = Web(self._respond)
        self.host = self.web.host

    def _respond(self, request: BaseHTTPRequestHandler) -> None:
        self.asked.append((request.path, {name.lower(): value for name, value in request.headers.items()}))
        if self.answer(request):
            return
        if "/manifests/" in request.path:
            send(request, 200, self.manifest, Content_Type=MANIFEST, Docker_Content_Digest=sha256(self.manifest))
            return
        data = self.blobs.get(request.path.rpartition("/")[2])
        if data is None:
            send(request, 404, b"{}")
            return
        given = request.headers.get("Range")
        start = int(given.removeprefix("bytes=").rstrip("-")) if given else 0
        span = {"Content_Range": f"bytes {start}-{len(data) - 1}/{len(data)}"} if given else {}
        send(request, 206 if given else 200, data[start:], **span)


@contextlib.contextmanager
def lying(image: Pushed) -> Iterator[LyingRegistry]:
    registry = LyingRegistry(image)
    try:
        yield registry
    finally:
        registry.web.close()


def small_image(*files: str) -> Pushed:
    """A layer for each of these files, and nothing that could run."""
    return Pushed([Tar().file(name, name.encode() * 1000).done() for name in files or ("etc/a", "etc/b")])
