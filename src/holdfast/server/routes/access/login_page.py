"""The page that logs a browser in: it exchanges the code in its fragment for a cookie, or leads to the provider.

It stands alone, with its script and its style in it, which its policy allows by their digests.
"""

from __future__ import annotations

import base64
import hashlib
import html
from typing import Final

from fastapi import APIRouter
from fastapi.responses import Response

from holdfast.server.routes.services import Use

router = APIRouter(include_in_schema=False)

_STYLE: Final = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:34rem;margin:18vh auto;padding:0 1.25rem}"
    ":root{color-scheme:light dark}code{font-size:.95em}"
)
_SCRIPT: Final = """
const said = document.getElementById("said");
const code = new URLSearchParams(location.hash.slice(1)).get("code");
history.replaceState(null, "", location.pathname);
async function logIn() {
  said.textContent = "Logging in …";
  const headers = { "content-type": "application/json" };
  const answer = await fetch("/v1/login", { method: "POST", headers, body: JSON.stringify({ code }) });
  if (answer.ok) { location.replace("/"); return; }
  const { error } = await answer.json();
  said.textContent = `${error.message}. ${error.hint ?? ""}`;
}
if (code) logIn().catch(() => { said.textContent = "The server does not answer. Reload the page to try again."; });
"""


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


_HEADERS: Final = {
    "content-security-policy": (
        f"default-src 'none'; script-src {_digest(_SCRIPT)}; style-src {_digest(_STYLE)}; connect-src 'self';"
        " base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
    ),
    "referrer-policy": "no-referrer",
    "x-frame-options": "DENY",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
}


@router.get("/login")
async def show_login(services: Use) -> Response:
    provider = ""
    if services.oidc is not None:
        name = html.escape(services.oidc.settings.name)
        provider = f'<p><a href="/login/oidc">Log in with {name}</a></p>'
    page = (
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>Log in · Holdfast</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style>'
        "<h1>Holdfast</h1>"
        '<p id="said" role="status">Get a link with <code>holdfast login</code>, and open it in this browser.</p>'
        f"{provider}<script>{_SCRIPT}</script></html>"
    )
    return Response(page, 200, _HEADERS, media_type="text/html; charset=utf-8")
