"""Which headers of requests and answers pass between a browser and a program in a box. Pure.

Programs in boxes are not trusted: they never see our credentials, and their answers cannot set our cookies.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Final

from holdfast.api.errors import Refused

Header = tuple[bytes, bytes]

HOP_BY_HOP: Final = frozenset(
    {
        b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"proxy-connection", b"te",
        b"trailer", b"transfer-encoding", b"upgrade",
    }
)  # fmt: skip
NOT_TO_THE_BOX: Final = frozenset({b"expect", b"content-length", b"host", b"forwarded"})
NOT_TO_THE_CLIENT: Final = frozenset(
    {b"content-length", b"alt-svc", b"strict-transport-security", b"public-key-pins", b"service-worker-allowed"}
)
_NAME: Final = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_VALUE: Final = re.compile(rb"[^\x00-\x08\x0a-\x1f\x7f]*")
_MOST_TOKENS: Final = 8
_MOST_COOKIES: Final = 1024
"""More than a head has room for. A page may have set many cookies of the name of ours, so all are looked at, which must
be cheap for those that are not."""


class BadAnswer(Refused):
    """The program in the box did not speak HTTP."""

    status = 502
    code = "bad_gateway"


def check_answer(headers: list[Header]) -> None:
    """Raises `BadAnswer` for headers that are not valid in HTTP."""
    for name, value in headers:
        if not _NAME.fullmatch(name) or not _VALUE.fullmatch(value):
            raise BadAnswer("the program in the box answered with invalid headers")


def named_by_connection(headers: list[Header]) -> frozenset[bytes]:
    """The headers that are for the next hop alone, as a Connection header says."""
    values = [value for name, value in headers if name == b"connection"]
    return frozenset(part.strip().lower() for value in values for part in value.split(b","))


def first(headers: list[Header], name: bytes) -> bytes | None:
    for each, value in headers:  # not a generator: this runs a dozen times for each request
        if each == name:
            return value
    return None


# --- cookies ---


def cookies_named(headers: list[Header], cookie: str) -> list[str]:
    """All values of a cookie."""
    pairs = (each.strip().partition(b"=") for name, value in headers if name == b"cookie" for each in value.split(b";"))
    return [value.decode("latin-1") for name, _, value in pairs if name == cookie.encode()][:_MOST_COOKIES]


def without_cookies(value: bytes, ours: Collection[bytes]) -> bytes:
    """The value of a Cookie header without our own cookies. `ours` are in lower case."""
    kept = [each for each in value.split(b";") if each.partition(b"=")[0].strip().lower() not in ours]
    return b";".join(kept).strip()


def host_only(cookie: bytes, ours: Collection[bytes]) -> bytes | None:
    """Restrict a cookie that a box sets to its own host. Returns None if it has the name of one of ours, or no
    name: browsers send such a cookie with the value `a=b` as if its name were `a`."""
    pair, *attributes = cookie.split(b";")
    name = pair.partition(b"=")[0].strip().lower()
    if not name or name in ours:
        return None
    kept = [each for each in attributes if each.partition(b"=")[0].strip().lower() != b"domain"]
    return b";".join([pair, *kept])


# --- URLs ---


def take_parameter(query: bytes, parameter: str) -> tuple[list[str], bytes]:
    """The values of a parameter in a query, and the query without them."""
    start = parameter.encode() + b"="
    parts = query.split(b"&") if query else []
    values = [part[len(start) :].decode("latin-1") for part in parts if part.startswith(start)]
    return values[:_MOST_TOKENS], b"&".join(part for part in parts if not part.startswith(start))


def is_navigation(headers: list[Header]) -> bool:
    """Whether a browser opens a page, rather than a part of one."""
    mode = first(headers, b"sec-fetch-mode")
    return mode == b"navigate" or (mode is None and b"text/html" in (first(headers, b"accept") or b""))


def without_authority(location: bytes) -> bytes:
    """A path that starts with two slashes would mean another host."""
    return b"/" + location.lstrip(b"/\\") if location[:1] in b"/\\" else location


def bearer(headers: list[Header]) -> str | None:
    """The credential of an Authorization header."""
    value = first(headers, b"authorization")
    if value is None:
        return None
    scheme, _, text = value.decode("latin-1").partition(" ")
    return (text.strip() or None) if scheme.lower() == "bearer" else None
