"""The cookie of a browser that is logged in, and which requests may use it.

Browsers send cookies on their own, so a cookie counts only for requests of the server's own pages. They say so by
Sec-Fetch-Site or, where a browser does not send that, by Origin. Pages of boxes have other origins, also on this host.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

from holdfast.api.errors import Forbidden
from holdfast.server.wire.origins import is_same_site
from holdfast.threads.access.credentials import LoginCookie
from holdfast.threads.access.tenant_names import LOGIN_PREFIX

COOKIE: Final = "holdfast_login"
SECURE_COOKIE: Final = f"__Host-{COOKIE}"
"""Over https. Browsers accept this name only from this host itself, over https, and for all paths."""
COOKIES: Final = frozenset({COOKIE.encode(), SECURE_COOKIE.encode()})
_SAFE: Final = ("GET", "HEAD", "OPTIONS")
_OWN: Final = (b"same-origin", b"none")
_MOST: Final = 8 * 1024


def login_named(headers: Mapping[bytes, bytes]) -> str | None:
    """Returns the credential in the cookie of a request, without a check of who sends it."""
    return _find(headers, COOKIES)


def came_over_https(headers: Mapping[bytes, bytes], public_url: str | None) -> bool:
    """Whether the browser came over https: to the address that the operator named, or to a proxy, which says so."""
    if public_url is not None:
        return urlsplit(public_url).scheme == "https"
    return headers.get(b"x-forwarded-proto") == b"https"


def login_of(headers: Mapping[bytes, bytes], method: str, public_url: str | None) -> LoginCookie | None:
    """Returns the credential in the cookie of a request. None if there is none.

    Raises `Forbidden` if another page makes the browser send it. `method` is `GET` for a WebSocket, whose handshake
    always has an Origin. Over https only the name counts that no other host and no plain http can set: otherwise they
    could log the browser in as somebody else.
    """
    if b"cookie" not in headers:
        return None
    name = SECURE_COOKIE if came_over_https(headers, public_url) else COOKIE
    found = _find(headers, frozenset({name.encode()}))
    if found is None:
        return None
    site, origin = headers.get(b"sec-fetch-site"), headers.get(b"origin")
    is_own = origin is not None and is_same_site(origin, headers.get(b"host"))
    if site is not None:
        allowed = site in _OWN and (origin is None or is_own)
    else:
        allowed = is_own or (origin is None and method in _SAFE)
    if not allowed or (method not in _SAFE and not is_own and site != b"same-origin"):
        raise Forbidden("only pages of this server may use its login", hint="send an API key instead of a cookie")
    return LoginCookie(found)


def _find(headers: Mapping[bytes, bytes], names: frozenset[bytes]) -> str | None:
    """The last one that looks like a login: a planted one may come before it."""
    value, found = headers.get(b"cookie"), None
    if value is None or LOGIN_PREFIX.encode() not in value:
        return None
    for part in value[:_MOST].split(b";"):
        name, _, text = part.strip().partition(b"=")
        if name in names and text.startswith(LOGIN_PREFIX.encode()):
            found = text.decode("latin-1")
            if name == SECURE_COOKIE.encode():
                break
    return found


def set_cookie(secret: str, *, secure: bool, seconds: int) -> str:
    """The Set-Cookie header for a login. `seconds` 0 removes it."""
    name = SECURE_COOKIE if secure else COOKIE
    ending = "; Secure" if secure else ""
    return f"{name}={secret}; Path=/; HttpOnly; SameSite=Strict; Max-Age={seconds}{ending}"
