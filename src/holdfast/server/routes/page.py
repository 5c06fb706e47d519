"""The page: static files that get their data from the API. `bin/build-web` builds them from `web/`.

The files need no credential. The credential of the page is in the fragment of its URL, which browsers do not send; so
no server, log or proxy sees it in an address. One document serves every address of the page.
"""

from __future__ import annotations

import gzip
import hashlib
import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Final, Literal

from fastapi import APIRouter, Request
from fastapi.responses import Response

from holdfast.api.errors import NotFound

router = APIRouter(include_in_schema=False)

_TYPES: Final = {
    "css": "text/css; charset=utf-8",
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
_DOCUMENT: Final = "index.html"
_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,100}")
_HASHED: Final = re.compile(r".+-[A-Za-z0-9_-]{8}\.(?:css|js)")
"""Names that contain a hash of what is in the file."""
_SMALLEST_PACKED: Final = 1024
_NO_STYLE: Final = "'sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU='"
"""A style element without text, as the terminal makes them."""
_HEADERS: Final = {
    # Only scripts, styles and data of this server, because the page shows the output of agents. No text can become
    # markup (trusted types).
    "content-security-policy": (
        f"default-src 'none'; script-src 'self'; style-src 'self' {_NO_STYLE}; img-src 'self'; connect-src 'self';"
        " base-uri 'none'; form-action 'none'; frame-ancestors 'none';"
        " require-trusted-types-for 'script'; trusted-types 'none'"
    ),
    "referrer-policy": "no-referrer",
    "x-frame-options": "DENY",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=()",
    "vary": "accept-encoding",
}


@router.get("/")
@router.get("/new")
@router.get("/inbox")
@router.get("/boxes")
@router.get("/settings")
@router.get("/settings/{part}")
@router.get("/compare/{a}/{b}")
@router.get("/t/{id}")
async def show_page(request: Request) -> Response:
    """The page. It is served for any id, so that it does not reveal which threads exist."""
    return _answer(_DOCUMENT, request)


@router.get("/t/{id}/{view}")
async def show_view(
    id: str, view: Literal["changes", "files", "terminal", "ports", "box"], request: Request
) -> Response:
    """What lies beside the timeline of a thread."""
    return _answer(_DOCUMENT, request)


@router.get("/page/{name}")
async def show_file(name: str, request: Request) -> Response:
    if _NAME.fullmatch(name) is None or name == _DOCUMENT:
        raise NotFound(f"there is no /page/{name}")
    return _answer(name, request)


@dataclass(frozen=True, slots=True)
class _File:
    content: bytes
    packed: bytes
    """The same for clients that accept gzip."""
    tag: str


def _answer(name: str, request: Request) -> Response:
    file = _file(name)
    fresh = "public, max-age=31536000, immutable" if _HASHED.fullmatch(name) else "no-cache"
    headers = {**_HEADERS, "etag": file.tag, "cache-control": fresh}
    if request.headers.get("if-none-match") == file.tag:
        return Response(None, 304, headers)
    media_type = _TYPES[name.rpartition(".")[2]]
    if "gzip" in request.headers.get("accept-encoding", "") and len(file.content) >= _SMALLEST_PACKED:
        return Response(file.packed, 200, {**headers, "content-encoding": "gzip"}, media_type=media_type)
    return Response(file.content, 200, headers, media_type=media_type)


@cache
def _names() -> frozenset[str]:
    """Returns the files that there are. Requests name no others, so none can lead out of the folder."""
    folder = files("holdfast") / "web"
    return frozenset(each.name for each in folder.iterdir() if each.name.rpartition(".")[2] in _TYPES)


def _file(name: str) -> _File:
    if name not in _names():
        raise NotFound(f"there is no /page/{name}")
    return _read(name)


@cache
def _read(name: str) -> _File:
    content = (files("holdfast") / "web" / name).read_bytes()
    return _File(content, gzip.compress(content, mtime=0), f'"{hashlib.sha256(content).hexdigest()[:16]}"')
