"""Connects to a server outside of the box: by name, through the box's HTTP proxy if it has one, and with TLS.

Only for boxes that reach Holdfast by a URL, so it is imported only there. Resolving a name can take long and cannot be
done without blocking, so each attempt is made in a thread. Its result comes back to the event loop.
"""

from __future__ import annotations

import _thread
import binascii
import os
import socket
import ssl
from urllib.parse import unquote, urlsplit

from holdfast.guest.runner.event_loop import READ

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import TypeAlias

    from holdfast.guest.runner.event_loop import Loop

    Connection: TypeAlias = "socket.socket | TlsConnection"

_SECONDS = 20.0
_MAX_HEAD = 16 << 10
_MAX_READ = 4 << 20
_BUNDLES = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem")
"""Where systems keep the certificates of authorities, for a Python that was built to look elsewhere."""


class TlsConnection:
    """What the client uses of a socket, over TLS. Raises `BlockingIOError` like a socket that does not block."""

    def __init__(self, connection: ssl.SSLSocket) -> None:
        connection.setblocking(False)
        self._connection = connection

    def fileno(self) -> int:
        return self._connection.fileno()

    def send(self, data: memoryview) -> int:
        try:
            return self._connection.send(data)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise BlockingIOError from None

    def recv(self, size: int) -> bytes:
        """Returns everything that has arrived: what is decrypted already does not wake the event loop again."""
        received = bytearray()
        while len(received) < _MAX_READ:
            try:
                data = self._connection.recv(size)
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                if not received:
                    raise BlockingIOError from None
                break
            except OSError:
                if not received:
                    raise
                break
            if not data:
                break
            received += data
        return bytes(received)

    def close(self) -> None:
        self._connection.close()


def dial(loop: Loop, scheme: str, host: str, port: int, then: Callable[[Connection | None, str], None]) -> None:
    """Connect in the background. `then` is called on the loop, with the connection, or with None and the reason."""
    outcome: list[tuple[Connection | None, str]] = []
    finished, finish = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)

    def work() -> None:
        try:
            outcome.append((connect(scheme, host, port, os.environ), ""))
        except (OSError, ValueError) as error:
            outcome.append((None, explain(error)))
        finally:
            os.close(finish)

    def ready(_events: int) -> None:
        loop.unwatch(finished)
        os.close(finished)
        then(*(outcome[0] if outcome else (None, "the connection failed")))

    loop.watch(finished, READ, ready)
    try:
        _thread.start_new_thread(work, ())
    except RuntimeError:  # no more threads in this box
        os.close(finish)


def connect(
    scheme: str, host: str, port: int, environment: Mapping[str, str], seconds: float = _SECONDS
) -> socket.socket | TlsConnection:
    """Returns a connection that does not block. Raises OSError and ValueError."""
    proxy = find_proxy(host, environment) if scheme == "https" else None
    connection = socket.create_connection((host, port) if proxy is None else proxy[:2], seconds)
    try:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if scheme == "http":
            connection.setblocking(False)
            return connection
        if proxy is not None:
            _ask_proxy(connection, host, port, proxy[2])
        return TlsConnection(_context().wrap_socket(connection, server_hostname=host))
    except BaseException:
        connection.close()
        raise


def find_proxy(host: str, environment: Mapping[str, str]) -> tuple[str, int, str] | None:
    """Returns host, port and credentials of the proxy that the box's variables name for a host, or None."""

    def first(*names: str) -> str:
        return next((environment[name] for name in names if environment.get(name)), "")

    for entry in first("no_proxy", "NO_PROXY").split(","):
        name = entry.strip().lstrip(".").lower()
        if name and (name in ("*", host) or host.endswith("." + name)):
            return None
    url = urlsplit(first("https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"))
    if url.scheme != "http" or not url.hostname:
        return None
    user = "%s:%s" % (unquote(url.username), unquote(url.password or "")) if url.username else ""
    return url.hostname, url.port or 80, user


def _ask_proxy(connection: socket.socket, host: str, port: int, user: str) -> None:
    target = "%s:%d" % ("[%s]" % host if ":" in host else host, port)
    head = "CONNECT %s HTTP/1.1\r\nHost: %s\r\n" % (target, target)
    if user:
        head += "Proxy-Authorization: Basic %s\r\n" % binascii.b2a_base64(user.encode(), newline=False).decode()
    connection.sendall(head.encode("latin-1") + b"\r\n")
    answer = b""
    while b"\r\n\r\n" not in answer:
        data = connection.recv(1)  # not more: what follows belongs to TLS
        if not data or len(answer) > _MAX_HEAD:
            raise OSError("the proxy of this box closed the connection to %s" % target)
        answer += data
    status = answer.split(b"\r\n", 1)[0].decode("latin-1")
    if status.split(" ")[1:2] != ["200"]:
        raise OSError("the proxy of this box refuses %s: %s" % (target, status[:300]))


def _context() -> ssl.SSLContext:
    context = ssl.create_default_context()
    if not context.cert_store_stats()["x509_ca"]:
        for bundle in _BUNDLES:
            if os.path.exists(bundle):
                context.load_verify_locations(bundle)
                break
    return context


def explain(error: Exception) -> str:
    """Returns the reason in one line, in the words that a diagnosis recognises."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return "TLS: the certificate is not trusted: %s" % error.verify_message
    if isinstance(error, ssl.SSLError):
        return "TLS: %s" % (error.reason or error)
    if isinstance(error, socket.gaierror):
        return "the name cannot be resolved: %s" % error.strerror
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
