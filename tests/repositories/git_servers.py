"""Real servers of git for tests: over https with basic auth, and over ssh.

Over https, git's own `http-backend` answers behind a small TLS server. Over ssh, a program in the place of `ssh` does
what ssh does: it starts on the other side what git asks for. Here that is the same machine.
"""

from __future__ import annotations

import base64
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Final, Self

from holdfast.egress.bound.certificates import BoxAuthority

_SECONDS: Final = 240.0


class HttpsGit:
    """Serves the repositories below a folder to one user. Use it in a `with` block."""

    def __init__(self, folder: Path, *, user: str = "me", password: str) -> None:
        self.folder = folder
        self.authorization = "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()
        self.requests: list[tuple[str, str, str | None]] = []
        """Method, path and `Authorization` of each request."""
        self.redirect: str | None = None
        """Where every request is sent on to, if anywhere."""
        self._authority = BoxAuthority(os.urandom(32), "git server")
        self._server: ThreadingHTTPServer | None = None
        self._thread: threading.Thread | None = None

    @property
    def host(self) -> str:
        assert self._server is not None
        return f"localhost:{self._server.server_address[1]}"

    def url(self, repository: str) -> str:
        return f"https://{self.host}/{repository}"

    def certificate(self) -> bytes:
        """The certificate that its clients have to trust."""
        return self._authority.certificate()

    def __enter__(self) -> Self:
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        context = self._authority.context("localhost")
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self._thread = threading.Thread(target=self._server.serve_forever, name="git server", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        assert self._server is not None
        assert self._thread is not None
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _handler(git: HttpsGit) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"  # a connection that ends without notice is an error for git

        def do_GET(self) -> None:
            self._answer(b"")

        def do_POST(self) -> None:
            if self.headers.get("Transfer-Encoding") == "chunked":
                body = b""
                while size := int(self.rfile.readline(), 16):
                    body += self.rfile.read(size)
                    self.rfile.readline()
                self.rfile.readline()
            else:
                body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
            self._answer(body)

        def _answer(self, body: bytes) -> None:
            authorization = self.headers.get("Authorization")
            git.requests.append((self.command, self.path, authorization))
            if git.redirect is not None:
                self.send_response(302)
                self.send_header("Location", git.redirect + self.path)
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            if authorization != git.authorization:
                self.send_response(401)
                self.send_header("WWW-Authenticate", 'Basic realm="git"')
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            path, _, query = self.path.partition("?")
            done = subprocess.run(
                ["git", "http-backend"],
                input=body,
                env={
                    "PATH": os.environ["PATH"],
                    "GIT_PROJECT_ROOT": str(git.folder),
                    "GIT_HTTP_EXPORT_ALL": "1",
                    "GIT_PROTOCOL": self.headers.get("Git-Protocol", ""),
                    "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding", ""),
                    "REMOTE_USER": "me",
                    "REQUEST_METHOD": self.command,
                    "PATH_INFO": path,
                    "QUERY_STRING": query,
                    "CONTENT_TYPE": self.headers.get("Content-Type", ""),
                    "CONTENT_LENGTH": str(len(body)),
                },
                capture_output=True,
                timeout=_SECONDS,
                check=False,
            )
            head, _, content = done.stdout.partition(b"\r\n\r\n")
            headers = [tuple(line.split(": ", 1)) for line in head.decode("latin-1").split("\r\n") if line]
            status = next((value for name, value in headers if name == "Status"), "200 OK")
            self.send_response(int(status.split(" ")[0]))
            for name, value in headers:
                if name not in ("Status", "Content-Length"):
                    self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:
            pass

    return Handler


_SSH: Final = """\
import os, shlex, sys
root, log = {root!r}, {log!r}
*options, host, command = sys.argv[1:]
if "-G" in options or host == "-G":
    sys.exit(0)  # git asks whether this is the ssh of OpenSSH
with open(log, "a") as file:
    file.write(" ".join([*options, host, command]) + "\\n")
if host.rpartition("@")[2] != "git.example":
    sys.exit("ssh: Could not resolve hostname " + host)
if not os.environ.get("SSH_AUTH_SOCK"):
    sys.exit("git@git.example: Permission denied (publickey).")
program, path = shlex.split(command)
assert program in ("git-upload-pack", "git-receive-pack")
os.execvp("git", ["git", program[4:], root + "/" + path.lstrip("/")])
"""


def with_home(folder: Path, *, host: str | None, password: str) -> dict[str, str]:
    """Make the home of a user whose git has stored a password for a host, or none. Returns the user's variables."""
    folder.mkdir()
    (folder / ".gitconfig").write_text("[credential]\n\thelper = store\n")
    if host is not None:
        (folder / ".git-credentials").write_text(f"https://me:{password}@{host.replace(':', '%3a')}\n")
    return {"HOME": str(folder)}


class SshGit:
    """Serves the repositories below a folder at `git.example`, to who has an ssh agent."""

    def __init__(self, folder: Path, place: Path) -> None:
        self.log = place / "ssh.log"
        program = place / "ssh.py"
        program.write_text(_SSH.format(root=str(folder), log=str(self.log)))
        self.environment = {"GIT_SSH_COMMAND": f"{sys.executable} {program}", "SSH_AUTH_SOCK": "/run/agent"}

    def calls(self) -> list[str]:
        return self.log.read_text().splitlines() if self.log.exists() else []
