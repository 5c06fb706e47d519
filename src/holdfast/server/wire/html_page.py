"""Pages that stand alone: a title, some sentences and what to do next.

Programs get errors as JSON. A browser that navigates to an address gets the same error as such a page.
"""

from __future__ import annotations

import base64
import hashlib
import html
from typing import Final

from fastapi import Request
from fastapi.responses import Response

from holdfast.api.errors import HoldfastError

_STYLE: Final = (
    ":root{color-scheme:light dark;--accent:light-dark(#0b6e63,#4fc3b0)}"
    "body{font:16px/1.5 system-ui,sans-serif;max-width:34rem;margin:18vh auto;padding:0 1.25rem}"
    "h1{font-size:1.3rem;margin:0 0 .6rem}p{margin:.4rem 0}code{font-size:.95em}a{color:var(--accent)}"
    ".mark{font-weight:650;letter-spacing:-.01em;margin-bottom:1.6rem;opacity:.75}"
)
_MACHINES: Final = ("/v1/", "/page/", "/compat/", "/metrics", "/health")
"""Below these paths, programs ask."""


def html_page(title: str, body: str, *, status: int = 200, script: str = "") -> Response:
    """Returns a page. `body` is markup; its policy allows no script and no style but its own."""
    scripts = f"script-src {_digest(script)}; connect-src 'self'; " if script else ""
    headers = {
        "content-security-policy": (
            f"default-src 'none'; {scripts}style-src {_digest(_STYLE)};"
            " base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
        ),
        "referrer-policy": "no-referrer",
        "x-frame-options": "DENY",
        "x-robots-tag": "noindex",
        "cross-origin-opener-policy": "same-origin",
        "cache-control": "no-store",
    }
    page = (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{html.escape(title)} · Holdfast</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style>'
        f'<main><p class="mark">Holdfast</p><h1>{html.escape(title)}</h1>{body}</main>'
        f"{f'<script>{script}</script>' if script else ''}</html>"
    )
    return Response(page, status, headers, media_type="text/html; charset=utf-8")


def error_page(request: Request, error: HoldfastError) -> Response | None:
    """Returns an error as a page for a browser that navigates. None for programs, and for scripts of pages."""
    if not is_navigation(request):
        return None
    if request.url.path.startswith("/s/"):
        title, home = "This link does not open a thread", ""
    elif error.status == 404:
        title, home = "There is no such page", '<p><a href="/">Go to the threads</a></p>'
    else:
        title, home = "This did not work", '<p><a href="/login">Log in another way</a></p>'
    hint = f"<p>{_sentence(error.hint)}</p>" if error.hint else ""
    page = html_page(title, f"<p>{_sentence(error.message)}</p>{hint}{home}", status=error.status or 500)
    for name, value in error.headers:
        page.headers.append(name.decode(), value.decode("latin-1"))
    return page


def is_navigation(request: Request) -> bool:
    wants = "text/html" in request.headers.get("accept", "")
    return wants and request.method in ("GET", "HEAD") and not request.url.path.startswith(_MACHINES)


def _sentence(text: str) -> str:
    ending = "" if text.endswith((".", "!", "?")) else "."
    return html.escape(text[:1].upper() + text[1:] + ending)


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
