"""An npm registry on loopback, and a tiny agent that is installed from it by the real npm."""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import io
import json
import os
import sys
import tarfile
import threading
import uuid
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from holdfast.harnesses.harness import Harness

_MODULE = """
from holdfast.harnesses.harness import Harness, Package

class Tiny(Harness):
    name, title, apis = "tiny", "Tiny", ()
    package = Package("tiny-agent", "1.2.3", "tiny")
    def files(self, task): return {}
    def command(self, task): raise NotImplementedError
    def rebuild(self, entries, task): return None
"""


def packed(files: Mapping[str, tuple[str, int]]) -> bytes:
    """A package as npm has it: each file with its mode."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        for name, (text, mode) in files.items():
            entry = tarfile.TarInfo(f"package/{name}")
            entry.size, entry.mode = len(text.encode()), mode
            tar.addfile(entry, io.BytesIO(text.encode()))
    return out.getvalue()


class Registry:
    """Serves packages to npm, and counts what it was asked for. Use in `with`."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.held = threading.Event()
        """Something waits for `release`."""
        self.release = threading.Event()
        self.release.set()
        self.status = 200
        self.sent: bytes | None = None
        """Instead of what was published."""
        self._packages: dict[str, tuple[dict[str, Any], bytes]] = {}
        registry = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                status, body = registry._answer(self.path)
                try:
                    self.send_response(status)
                    self.send_header("Content-Length", str(len(body)))
                    self.end_headers()
                    self.wfile.write(body)
                except OSError:  # whoever asked is gone
                    self.close_connection = True

            def log_message(self, format: str, *arguments: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    @property
    def downloads(self) -> int:
        return sum(path.endswith(".tgz") for path in self.asked)

    def publish(self, manifest: dict[str, Any], files: Mapping[str, tuple[str, int]]) -> str:
        """Says the package's integrity."""
        data = packed({"package.json": (json.dumps(manifest), 0o644), **files})
        self._packages[manifest["name"]] = (manifest, data)
        return f"sha512-{base64.b64encode(hashlib.sha512(data).digest()).decode()}"

    def _answer(self, path: str) -> tuple[int, bytes]:
        self.asked.append(path)
        if self.status != 200:
            return self.status, b"{}"
        name, _, tarball = path.strip("/").partition("/-/")
        if name not in self._packages:
            return 404, b"{}"
        manifest, data = self._packages[name]
        if tarball:
            self.held.set()
            self.release.wait(60)
            return 200, self.sent or data
        version = manifest["version"]
        told = {**manifest, "dist": {"tarball": f"{self.url}{name}/-/{name}-{version}.tgz"}}
        document = {"name": name, "dist-tags": {"latest": version}, "versions": {version: told}}
        return 200, json.dumps(document).encode()


def tiny_agent(
    folder: Path, registry: Registry, manifest: Mapping[str, Any], files: Mapping[str, tuple[str, int]]
) -> Harness:
    """An agent whose package is published, with its lock file beside its module, as our own have theirs."""
    whole = {"name": "tiny-agent", "version": "1.2.3", **manifest}
    integrity = registry.publish(whole, files)
    folder.mkdir()
    dependencies = {"tiny-agent": "1.2.3"}
    (folder / "package.json").write_text(json.dumps({"private": True, "optionalDependencies": dependencies}))
    locked = {"version": "1.2.3", "integrity": integrity, "optional": True, **manifest}
    locked.pop("scripts", None)
    lock = {
        "name": "tiny",
        "lockfileVersion": 3,
        "requires": True,
        "packages": {"": {"optionalDependencies": dependencies}, "node_modules/tiny-agent": locked},
    }
    (folder / "package-lock.json").write_text(json.dumps(lock))
    (folder / "__init__.py").write_text(_MODULE)
    name = f"tiny_{uuid.uuid4().hex}"
    spec = importlib.util.spec_from_file_location(name, folder / "__init__.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    agent: Harness = module.Tiny()
    return agent


def script_agent(folder: Path, registry: Registry) -> Harness:
    """One that node runs. It says its arguments."""
    script = "#!/usr/bin/env node\nconsole.log('tiny', process.argv.slice(2).join(' '))\n"
    # What npm would run, if it were let: no package's script is.
    scripts = {"postinstall": f"touch {folder}.ran"}
    return tiny_agent(folder, registry, {"bin": {"tiny": "cli.js"}, "scripts": scripts}, {"cli.js": (script, 0o755)})


def native_agent(folder: Path, registry: Registry, cpu: str) -> Harness:
    """A program of its own, that its package does not say it has."""
    return tiny_agent(folder, registry, {"os": ["linux"], "cpu": [cpu]}, {"bin/tiny": ("\x7fELF", 0o755)})


def tree_of(folder: Path) -> dict[str, tuple[int, int, bytes]]:
    """All that is in a folder: modes, times and contents."""
    found = {}
    for parent, _, names in os.walk(folder):
        for name in [".", *names]:
            path = Path(parent, name)
            status = path.lstat()
            data = path.read_bytes() if path.is_file() and not path.is_symlink() else b""
            found[str(path.relative_to(folder))] = (status.st_mode, status.st_mtime_ns, data)
    return found
