"""Parses heads of HTTP/1.1 messages strictly. Anything that two parsers could read differently is refused.

Every request of a box is parsed here and then rewritten, so a server never sees the box's own bytes.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

_TOKEN: Final = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_METHOD: Final = re.compile(rb"[A-Z][A-Z-]{0,31}")
_VALUE: Final = re.compile(rb"[\t\x20-\x7e\x80-\xff]*")
_PATH: Final = re.compile(rb"[\x21\x22\x24-\x7e]*")  # visible, without #
_DIGITS: Final = re.compile(rb"[0-9]{1,18}")
_LABEL: Final = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?")
_NUMBER: Final = re.compile(r"[0-9]+|0x[0-9a-f]*")
_STATUS: Final = re.compile(rb"HTTP/1\.([01]) ([1-5][0-9][0-9])(?: ([\t\x20-\x7e\x80-\xff]*))?")
_HOP_BY_HOP: Final = frozenset((b"connection", b"keep-alive", b"te", b"upgrade", b"proxy-connection"))
_ESSENTIAL: Final = frozenset((b"host", b"content-length", b"transfer-encoding", b"trailer"))
"""Headers that a Connection header cannot remove."""
MOST_HEADERS: Final = 200

Headers = list[tuple[bytes, bytes]]


class BadHead(Exception):
    """The message is malformed or ambiguous. The text ends a sentence for the sender."""


@dataclass(frozen=True, slots=True)
class Body:
    """How the end of a message's body is determined."""

    length: int | None = 0
    """None if it is not given by a length."""
    chunked: bool = False

    @property
    def empty(self) -> bool:
        return self.length == 0 and not self.chunked


UNTIL_CLOSE: Final = Body(None)
NOTHING: Final = Body(0)


@dataclass(frozen=True, slots=True)
class Request:
    method: str
    host: str
    port: int
    path: bytes
    headers: Headers
    body: Body
    keep_alive: bool
    version: bytes = b"HTTP/1.1"
    """The version of the box's request. The server gets the same, because a 1.0 client cannot read chunks."""
    upgrade: bytes | None = None
    """The protocol to upgrade to: a WebSocket, or None."""

    def to_bytes(self, usual_port: int = 80) -> bytes:
        """Returns the head that is sent to the server. `usual_port` is left out of its Host header."""
        authority = f"[{self.host}]" if ":" in self.host else self.host
        if self.port != usual_port:
            authority += f":{self.port}"
        lines = [b"%s %s %s" % (self.method.encode(), self.path, self.version), b"Host: %s" % authority.encode()]
        lines += (b"%s: %s" % header for header in end_to_end(self.headers) if header[0].lower() != b"host")
        if self.upgrade is not None:
            lines += (b"Connection: Upgrade", b"Upgrade: %s" % self.upgrade)
        return b"\r\n".join((*lines, b"", b""))


@dataclass(frozen=True, slots=True)
class Response:
    status: int
    reason: bytes
    headers: Headers
    body: Body
    keep_alive: bool

    def to_bytes(self, *, last: bool) -> bytes:
        """Returns the head that is sent to the box. Set `last` if the connection ends with this message."""
        lines = [b"HTTP/1.1 %d %s" % (self.status, self.reason)]
        lines += (b"%s: %s" % header for header in end_to_end(self.headers))
        if self.status == 101:
            lines += (b"Connection: Upgrade", *(b"Upgrade: %s" % value for value in values(self.headers, b"upgrade")))
        elif last and self.status >= 200:
            lines.append(b"Connection: close")
        return b"\r\n".join((*lines, b"", b""))


def end_to_end(headers: Headers) -> Iterable[tuple[bytes, bytes]]:
    """Yields the headers for the final recipient, without those for a proxy."""
    named = {part.strip().lower() for value in values(headers, b"connection") for part in value.split(b",")}
    for name, value in headers:
        lower = name.lower()
        if lower in _HOP_BY_HOP or lower.startswith(b"proxy-") or (lower in named and lower not in _ESSENTIAL):
            continue
        yield name, value


def values(headers: Headers, name: bytes) -> list[bytes]:
    return [value for each, value in headers if each.lower() == name]


def parse_request(head: bytes) -> Request:
    """Parses the head of a request to a proxy, without its empty line. Raises `BadHead`."""
    method, target, version, headers, hosts = _split_request(head)
    if method == b"CONNECT":
        host, port = parse_authority(target, None)
        path = b""
    else:
        if target[:7].lower() != b"http://":
            raise BadHead("this is a proxy: it accepts http://host/path, and CONNECT host:port for everything else")
        authority, slash, path = target[7:].partition(b"/")
        if b"?" in authority:
            authority, _, path = target[7:].partition(b"?")
            slash = b"/?"
        path = (slash or b"/") + path
        if not _PATH.fullmatch(path):
            raise BadHead("the URL has invalid characters")
        host, port = parse_authority(authority, 80)
    # If they disagree, a server with several hosts would serve one, and the policy would have judged the other.
    # For CONNECT, many clients omit the port in the Host header, which is not forwarded.
    if hosts and parse_authority(hosts[0], port if method == b"CONNECT" else 80) != (host, port):
        raise BadHead("the Host header and the URL disagree")
    body = _body(headers, version)
    if method == b"CONNECT" and not body.empty:
        raise BadHead("a CONNECT has no body")
    return Request(
        method.decode(),
        host,
        port,
        path,
        headers,
        body,
        version == b"HTTP/1.1" and _keep_alive(headers, version),
        version,
        _upgrade(headers, version),
    )


def parse_path_request(head: bytes, host: str, port: int) -> Request:
    """Parses the head of a request whose target is a path, as servers get them, for another host. Raises `BadHead`."""
    method, target, version, headers, hosts = _split_request(head)
    if method == b"CONNECT" or not target.startswith(b"/"):
        raise BadHead("this is not a proxy: the first line has to name a path, not a URL or a host")
    if not _PATH.fullmatch(target):
        raise BadHead("the path has invalid characters")
    if hosts:
        parse_authority(hosts[0], 80)
    body = _body(headers, version)
    keep_alive = version == b"HTTP/1.1" and _keep_alive(headers, version)
    return Request(method.decode(), host, port, target, headers, body, keep_alive, version)


def parse_tunnelled_request(head: bytes, host: str, port: int) -> Request:
    """Parses the head of a request inside TLS for a host, which has to be its host. Raises `BadHead`."""
    method, target, version, headers, hosts = _split_request(head)
    if method == b"CONNECT" or not target.startswith(b"/"):
        raise BadHead("inside a tunnel, the first line has to name a path, not a URL or another host")
    if not _PATH.fullmatch(target):
        raise BadHead("the path has invalid characters")
    if not hosts or parse_authority(hosts[0], 443) != (host, port):
        raise BadHead(f"the Host header is not {host}, which the tunnel is for")
    body = _body(headers, version)
    keep_alive = version == b"HTTP/1.1" and _keep_alive(headers, version)
    return Request(method.decode(), host, port, target, headers, body, keep_alive, version, _upgrade(headers, version))


def request_head(method: str, target: bytes, headers: Headers) -> bytes:
    """Returns the head of a request of our own. Raises `BadHead` if something in it could end a line."""
    if not _METHOD.fullmatch(method.encode("ascii", "replace")) or not target or not _PATH.fullmatch(target):
        raise BadHead("the method or the path has invalid characters")
    lines = [b"%s %s HTTP/1.1" % (method.encode(), target)]
    for name, value in headers:
        if not _TOKEN.fullmatch(name) or not _VALUE.fullmatch(value):
            raise BadHead("a header has invalid characters")
        lines.append(b"%s: %s" % (name, value))
    return b"\r\n".join((*lines, b"", b""))


def parse_response(head: bytes, method: str) -> Response:
    """Parses the answer to a request with this method. Raises `BadHead`."""
    first, headers = _split(head)
    if (found := _STATUS.fullmatch(first)) is None:
        raise BadHead("the first line is not a status line of HTTP/1")
    version, status, reason = b"HTTP/1." + found[1], int(found[2]), found[3] or b""
    if method == "HEAD" or status < 200 or status in (204, 304):
        body = NOTHING
    else:
        body = _body(headers, version)
        if body.empty and not values(headers, b"content-length"):
            body = UNTIL_CLOSE
    return Response(status, reason, headers, body, body != UNTIL_CLOSE and _keep_alive(headers, version))


def parse_trailer(line: bytes) -> bytes:
    """Returns the line to forward, or nothing for a trailer that may not be forwarded. Raises `BadHead`."""
    _, [(name, value)] = _split(b"\r\n" + line)
    lower = name.lower()
    if lower in _HOP_BY_HOP or lower in _ESSENTIAL or lower.startswith(b"proxy-"):
        return b""
    return b"%s: %s\r\n" % (name, value)


def parse_authority(text: bytes, default: int | None) -> tuple[str, int]:
    """Parses `host`, `host:port` or `[IPv6]:port`. Raises `BadHead`."""
    try:
        plain = text.decode("ascii")
    except UnicodeDecodeError:
        raise BadHead("a host name must be in ASCII (xn--…)") from None
    if plain.startswith("["):
        inside, bracket, rest = plain[1:].partition("]")
        if not bracket or (rest and not rest.startswith(":")) or ":" not in inside:
            raise BadHead(f"{plain[:300]!r} is not a valid host")
        host, port = inside, rest[1:] if rest else None
    else:
        host, colon, after = plain.partition(":")
        port = after if colon else None
    if port is None or port == "":
        if default is None or port == "":
            raise BadHead(f"{plain[:300]!r} has no port")
        number = default
    elif _DIGITS.fullmatch(port.encode()) and len(port) <= 5 and 0 < int(port) < 65536:
        number = int(port)
    else:
        raise BadHead(f"{port[:20]!r} is not a valid port")
    return host_name(host), number


def host_name(text: str) -> str:
    """Returns a name in lower case without its last dot, or an address in canonical form. Raises `BadHead`."""
    host = text.lower()
    if "%" in host:
        raise BadHead(f"{text[:300]!r} is not a valid host name")
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        host = host.removesuffix(".")
    labels = host.split(".")
    # Some programs read 127.1, 0x7f000001 or 2130706433 as an address, and others as a name.
    if len(host) > 253 or not all(_LABEL.fullmatch(label) for label in labels) or _NUMBER.fullmatch(labels[-1]):
        raise BadHead(f"{text[:300]!r} is not a valid host name")
    return host


def _split_request(head: bytes) -> tuple[bytes, bytes, bytes, Headers, list[bytes]]:
    """Returns method, target, version, headers, and the values of Host."""
    first, headers = _split(head)
    parts = first.split(b" ")
    if len(parts) != 3:
        raise BadHead("the first line must be: method, one space, URL, one space, version")
    method, target, version = parts
    if not _METHOD.fullmatch(method):
        raise BadHead("the method is invalid")
    if version not in (b"HTTP/1.1", b"HTTP/1.0"):
        raise BadHead("only HTTP/1.1 and HTTP/1.0 are supported")
    hosts = values(headers, b"host")
    if len(hosts) > 1 or (not hosts and version == b"HTTP/1.1"):
        raise BadHead("there must be exactly one Host header")
    return method, target, version, headers, hosts


def _split(head: bytes) -> tuple[bytes, Headers]:
    if b"\0" in head:
        raise BadHead("it contains a NUL character")
    lines = head.split(b"\r\n")
    if len(lines) > MOST_HEADERS + 1:
        raise BadHead(f"more than {MOST_HEADERS} headers")
    headers: Headers = []
    for line in lines[1:]:
        name, colon, value = line.partition(b":")
        # This also refuses folded lines, bare line ends, and spaces before the colon.
        if not colon or not _TOKEN.fullmatch(name):
            raise BadHead("the name of a header is invalid")
        if not _VALUE.fullmatch(value):
            raise BadHead(f"the value of {name.decode('ascii')[:100]} has invalid characters")
        headers.append((name, value.strip(b" \t")))
    return lines[0], headers


def _body(headers: Headers, version: bytes) -> Body:
    codings, lengths = values(headers, b"transfer-encoding"), values(headers, b"content-length")
    if codings and lengths:
        raise BadHead("it has both Content-Length and Transfer-Encoding")
    if codings:
        if len(codings) > 1 or codings[0].lower() != b"chunked" or version != b"HTTP/1.1":
            raise BadHead("the only supported Transfer-Encoding is chunked, once, in HTTP/1.1")
        return Body(None, chunked=True)
    if len(lengths) > 1:
        raise BadHead("more than one Content-Length")
    if lengths and not _DIGITS.fullmatch(lengths[0]):
        raise BadHead("the Content-Length is not a number")
    return Body(int(lengths[0])) if lengths else NOTHING


def _keep_alive(headers: Headers, version: bytes) -> bool:
    named = {
        part.strip().lower()
        for name in (b"connection", b"proxy-connection")
        for value in values(headers, name)
        for part in value.split(b",")
    }
    return b"close" not in named and (version == b"HTTP/1.1" or b"keep-alive" in named)


def _upgrade(headers: Headers, version: bytes) -> bytes | None:
    """Returns `websocket` for such an upgrade. The proxy supports no other protocol."""
    named = {part.strip().lower() for value in values(headers, b"connection") for part in value.split(b",")}
    wanted = [value.strip().lower() for value in values(headers, b"upgrade")]
    return b"websocket" if b"upgrade" in named and wanted == [b"websocket"] and version == b"HTTP/1.1" else None
