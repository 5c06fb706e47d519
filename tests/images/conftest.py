"""A key to sign repositories with, and mirrors on loopback that can be made to misbehave."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote

import pytest
from tests.images.packing import Key

from holdfast.images.debian import download


@pytest.fixture(scope="session")
def key(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Key]:
    # Short: gpg talks to its agent over a socket there.
    key = Key(tmp_path_factory.mktemp("k") / "g")
    yield key
    key.close()


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between attempts."""
    monkeypatch.setattr(download, "_PAUSES", (0.0, 0.0, 0.0))


class Mirror:
    """Serves a folder over HTTP on loopback, with ranges, and notes what it was asked for."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.asked: list[tuple[str, str | None]] = []
        self.answer: Callable[[BaseHTTPRequestHandler], bool] = lambda _: False
        """Answers in our place, where it returns True."""
        mirror = self

        class Answer(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle(self) -> None:
                # Who has seen enough hangs up, in the middle of an answer too: a mirror takes no notice of that.
                with contextlib.suppress(ConnectionError):
                    super().handle()

            def do_GET(self) -> None:
                mirror.asked.append((self.path, self.headers.get("Range")))
                if mirror.answer(self):
                    return
                path = mirror.root / unquote(self.path).lstrip("/")
                if not path.is_file():
                    self.send_error(404)
                    return
                data = path.read_bytes()
                given = self.headers.get("Range")
                begin = int(given.removeprefix("bytes=").rstrip("-")) if given else 0
                self.send_response(206 if given else 200)
                if given:
                    self.send_header("Content-Range", f"bytes {begin}-{len(data) - 1}/{len(data)}")
                self.send_header("Content-Length", str(len(data) - begin))
                self.end_headers()
                self.wfile.write(data[begin:])

            def log_message(self, format: str, *args: object) -> None:
                return None

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), name="mirror")
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def mirror(tmp_path: Path) -> Iterator[Mirror]:
    root = tmp_path / "mirror"
    root.mkdir()
    mirror = Mirror(root)
    yield mirror
    mirror.close()
