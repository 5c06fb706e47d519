"""A server at HTTPS that says what it got, and serves git repositories to who has their password, as forges do."""

from __future__ import annotations

import base64
import http.server
import os
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from holdfast.egress.bound.certificates import BoxAuthority

HOST: Final = "api.test"
GIT: Final = "git.test"
VALUE: Final = "sk-live-0123456789/abcdef+ghij"
AUTHORITY: Final = BoxAuthority(b"outside", "the authority of the world outside")


class Forge(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    folder: Path
    seen: list[tuple[str, str, str | None]]
    """Method, path and credential of each request."""

    def _serve(self) -> None:
        credential = self.headers.get("Authorization")
        self.seen.append((self.command, self.path, credential))
        body = self._body()
        if self.headers["Host"] == GIT:
            self._git(credential, body)
        else:
            self._answer(200, "text/plain", f"you sent {credential}\n".encode())

    do_GET = do_POST = _serve

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        body = b""
        while size := int(self.rfile.readline(), 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def _git(self, credential: str | None, body: bytes) -> None:
        known = base64.b64encode(f"x-access-token:{VALUE}".encode()).decode()
        if credential != f"Basic {known}":
            self._answer(401, "text/plain", b"who are you?", ("WWW-Authenticate", 'Basic realm="forge"'))
            return
        path, _, query = self.path.partition("?")
        environment = {
            "PATH": os.environ["PATH"], "GIT_PROJECT_ROOT": str(self.folder), "GIT_HTTP_EXPORT_ALL": "1",
            "REMOTE_USER": "me", "PATH_INFO": path, "QUERY_STRING": query, "REQUEST_METHOD": self.command,
            "CONTENT_TYPE": self.headers.get("Content-Type", ""), "CONTENT_LENGTH": str(len(body)),
            "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding", ""),
            "GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "safe.directory", "GIT_CONFIG_VALUE_0": "*",
        }  # fmt: skip
        made = subprocess.run(["git", "http-backend"], input=body, env=environment, capture_output=True, check=True)
        head, _, content = made.stdout.partition(b"\r\n\r\n")
        fields = dict(line.split(": ", 1) for line in head.decode().split("\r\n"))
        status = int(fields.pop("Status", "200 OK").split()[0])
        self._answer(status, fields.pop("Content-Type", "text/plain"), content)

    def _answer(self, status: int, kind: str, content: bytes, *more: tuple[str, str]) -> None:
        self.send_response(status)
        for name, value in (("Content-Type", kind), ("Content-Length", str(len(content))), *more):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        pass


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True


@contextmanager
def serve_forge(folder: Path) -> Iterator[tuple[dict[str, dict[str, int]], list[tuple[str, str, str | None]]]]:
    """Yields the names of the servers, by port, and what they have seen. There are the repositories acme/app and
    acme/other.
    """
    for name in ("app", "other"):
        repository = folder / "acme" / f"{name}.git"
        subprocess.run(["git", "init", "-q", "--bare", "-b", "main", repository], check=True)
        subprocess.run(["git", "-C", repository, "config", "http.receivepack", "true"], check=True)
        _commit(repository)
    names: dict[str, dict[str, int]] = {}
    seen: list[tuple[str, str, str | None]] = []
    handler = type("Handler", (Forge,), {"folder": folder, "seen": seen})
    servers = []
    try:
        for name in (HOST, GIT, "other.test"):
            server = _Server(("127.0.0.1", 0), handler)
            server.socket = AUTHORITY.context(name).wrap_socket(server.socket, server_side=True)
            thread = threading.Thread(target=server.serve_forever, args=(0.05,))
            thread.start()
            servers.append((server, thread))
            names[name] = {"443": server.server_address[1]}
        yield names, seen
    finally:
        for server, thread in servers:
            server.shutdown()
            thread.join()
            server.server_close()


def _commit(repository: Path) -> None:
    """Write a first commit into a bare repository."""
    environment = {
        "PATH": os.environ["PATH"], "GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@example.com",
        "GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@example.com",
    }  # fmt: skip

    def git(*arguments: str, stdin: str = "") -> str:
        made = subprocess.run(
            ["git", "-C", repository, *arguments],
            input=stdin, env=environment, text=True, capture_output=True, check=True,
        )  # fmt: skip
        return made.stdout.strip()

    blob = git("hash-object", "-w", "--stdin", stdin="hello\n")
    tree = git("mktree", stdin=f"100644 blob {blob}\tREADME\n")
    git("update-ref", "refs/heads/main", git("commit-tree", tree, "-m", "first"))
