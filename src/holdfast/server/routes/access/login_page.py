"""The page that logs a browser in: it exchanges the code in its fragment for a cookie, or leads to the provider.

It stands alone, with its script and its style in it, which its policy allows by their digests.
"""

from __future__ import annotations

import html
from typing import Final

from fastapi import APIRouter
from fastapi.responses import Response

from holdfast.server.routes.services import Use
from holdfast.server.wire.html_page import html_page

router = APIRouter(include_in_schema=False)

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
  const sentence = (text) => text ? `${text[0].toUpperCase()}${text.slice(1).replace(/\\.$/, "")}. ` : "";
  said.textContent = sentence(error.message) + sentence(error.hint);
}
if (code) logIn().catch(() => { said.textContent = "The server does not answer. Reload the page to try again."; });
"""


@router.get("/login")
async def show_login(services: Use) -> Response:
    provider = ""
    if services.oidc is not None:
        name = html.escape(services.oidc.settings.name)
        provider = f'<p><a href="/login/oidc">Log in with {name}</a></p>'
    said = '<p id="said" role="status">Get a link with <code>holdfast login</code>, and open it in this browser.</p>'
    return html_page("Log in", said + provider, script=_SCRIPT)
