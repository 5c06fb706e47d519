"""pip and npm in real boxes, and a registry that counts: what one box downloaded, the next one gets from the cache."""

from __future__ import annotations

import base64
import hashlib
import http.server
import io
import json
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from tests.server.conftest import api_of
from tests.server.egress_world import authority_beside, names_beside, outside_with_packages

from holdfast.egress.bound.certificates import BoxAuthority
from holdfast.testing.server import ServerProcess

AUTHORITY = BoxAuthority(b"outside", "the authority of the world outside")
HOST = "registry.test"


def wheel() -> bytes:
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w") as archive:
        archive.writestr("demo.py", "ANSWER = 42\n")
        archive.writestr("demo-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: demo\nVersion: 1.0\n")
        archive.writestr("demo-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr("demo-1.0.dist-info/RECORD", "demo.py,,\n")
    return written.getvalue()


def tarball() -> bytes:
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w:gz") as archive:
        for name, text in {
            "package.json": '{"name": "demo", "version": "1.0.0", "main": "index.js"}',
            "index.js": "module.exports = 42\n",
        }.items():
            member = tarfile.TarInfo(f"package/{name}")
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text.encode()))
    return written.getvalue()


class Registry(http.server.BaseHTTPRequestHandler):
    """An index of Python and one of npm, each with one package."""

    protocol_version = "HTTP/1.1"
    asked: list[str]
    files: dict[str, tuple[str, bytes]]

    def do_GET(self) -> None:
        self.asked.append(self.path)
        kind, body = self.files.get(self.path, ("text/plain", b""))
        self.send_response(200 if body else 404)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def registry() -> type[Registry]:
    made, npm = wheel(), tarball()
    link = f"/files/demo-1.0-py3-none-any.whl#sha256={hashlib.sha256(made).hexdigest()}"
    dist = {
        "tarball": f"https://{HOST}/demo/-/demo-1.0.0.tgz",
        "integrity": "sha512-" + base64.b64encode(hashlib.sha512(npm).digest()).decode(),
    }
    version = {"name": "demo", "version": "1.0.0", "dist": dist}
    package = {"name": "demo", "dist-tags": {"latest": "1.0.0"}, "versions": {"1.0.0": version}}
    return type(
        "OwnRegistry",
        (Registry,),
        {
            "asked": [],
            "files": {
                "/simple/demo/": ("text/html", f'<a href="{link}">demo-1.0-py3-none-any.whl</a>'.encode()),
                "/files/demo-1.0-py3-none-any.whl": ("application/octet-stream", made),
                "/demo": ("application/json", json.dumps(package).encode()),
                "/demo/-/demo-1.0.0.tgz": ("application/octet-stream", npm),
            },
        },
    )


@pytest.fixture
def server(tmp_path_factory: pytest.TempPathFactory, registry: type[Registry]) -> Iterator[ServerProcess]:
    home = tmp_path_factory.mktemp("packages") / "home"
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), registry) as outside:
        outside.socket = AUTHORITY.context(HOST).wrap_socket(outside.socket, server_side=True)
        thread = threading.Thread(target=outside.serve_forever, args=(0.05,))
        thread.start()
        names_beside(home).write_text(json.dumps({HOST: {"443": outside.server_address[1]}}))
        authority_beside(home).write_bytes(AUTHORITY.certificate())
        try:
            with ServerProcess(home, outside=outside_with_packages) as server:
                yield server
        finally:
            outside.shutdown()
            thread.join()


INSTALL = """
set -e
mkdir -p /tmp/p && cd /tmp/p
python3 -m pip install --disable-pip-version-check --quiet --no-cache-dir --target /tmp/p/site demo
PYTHONPATH=/tmp/p/site python3 -c 'import demo; print(demo.ANSWER)'
npm install --no-update-notifier --no-audit --no-fund --cache /tmp/p/npm demo
node -e 'console.log(require("demo"))'
cat package-lock.json
"""


# Two installations take long on a busy machine, so the request has time.
def run(api: httpx.Client, box: str, script: str) -> str:
    answer = api.post(f"/v1/boxes/{box}/exec", json={"argv": ["sh", "-c", script]}, timeout=300).json()
    assert answer.get("exitCode") == 0, answer
    return base64.b64decode(answer["stdout"]).decode()


@pytest.mark.box
@pytest.mark.slow
def test_a_second_box_installs_without_a_second_download(server: ServerProcess, registry: type[Registry]) -> None:
    with api_of(server) as api:
        made = []
        for _ in range(2):
            answer = api.post("/v1/boxes", json={"spec": {"network": {"mode": "allow"}}})
            assert answer.status_code == 201, answer.text
            made.append(answer.json()["box"]["id"])
        for box in made:
            output = run(api, box, INSTALL)
            assert output.count("42") == 2, output
            assert f'"resolved": "https://{HOST}/demo/-/demo-1.0.0.tgz"' in output, "lock files name the registry"
            assert "packages.internal" not in output
        downloads = [path for path in registry.asked if path.endswith((".whl", ".tgz"))]
        assert sorted(downloads) == ["/demo/-/demo-1.0.0.tgz", "/files/demo-1.0-py3-none-any.whl"]
        # What a project or a user says is stronger than the cache.
        own = "mkdir -p /tmp/q && cd /tmp/q && echo registry=https://other.test/ > .npmrc && npm config get registry"
        assert run(api, made[0], own).strip() == "https://other.test/"
        kept = server.home / "cache" / "package-files" / "files"
        assert len(list(kept.iterdir())) == 2
        for box in made:
            api.delete(f"/v1/boxes/{box}")
