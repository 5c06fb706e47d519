"""The live page of a thread, and the list of threads: static files that get their data from the API.

The files need no credential. The credential for the thread is in the fragment of the page's URL, which browsers do not
send; so no server, log or proxy sees it in an address.
"""

from __future__ import annotations

import hashlib
from functools import cache
from importlib.resources import files
from typing import Final

from fastapi import APIRouter, Request
from fastapi.responses import Response

from holdfast.api.errors import NotFound

router = APIRouter(include_in_schema=False)

_TYPES: Final = {
    "thread.html": "text/html; charset=utf-8",
    "threads.html": "text/html; charset=utf-8",
    "threads.js": "text/javascript; charset=utf-8",
    "thread.css": "text/css; charset=utf-8",
    "thread.js": "text/javascript; charset=utf-8",
    "timeline.js": "text/javascript; charset=utf-8",
    "tools.js": "text/javascript; charset=utf-8",
    "words.js": "text/javascript; charset=utf-8",
    "reading.js": "text/javascript; charset=utf-8",
    "mark.svg": "image/svg+xml",
}
_HEADERS: Final = {
    # Only scripts, styles and data of this server, because the page shows the output of agents.
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self';"
        " base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script';"
        " trusted-types 'none'"
    ),
    "referrer-policy": "no-referrer",
    "x-frame-options": "DENY",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=()",
    "cache-control": "no-cache",
}


@router.get("/")
async def show_threads(request: Request) -> Response:
    """The page with the list of threads."""
    return _answer("threads.html", request)


@router.get("/t/{id}")
async def show_thread(id: str, request: Request) -> Response:
    """The page of a thread. It is served for any id, so that it does not reveal which threads exist."""
    return _answer("thread.html", request)


@router.get("/page/{name}")
async def show_file(name: str, request: Request) -> Response:
    if name not in _TYPES or name.endswith(".html"):
        raise NotFound(f"there is no /page/{name}")
    return _answer(name, request)


def _answer(name: str, request: Request) -> Response:
    content, tag = _file(name)
    headers = {**_HEADERS, "etag": tag}
    if request.headers.get("if-none-match") == tag:
        return Response(None, 304, headers)
    return Response(content, 200, headers, media_type=_TYPES[name])


@cache
def _file(name: str) -> tuple[bytes, str]:
    content = (files("holdfast.server") / "page_files" / name).read_bytes()
    return content, f'"{hashlib.sha256(content).hexdigest()[:16]}"'
