"""The pages of the gateway itself. Pure."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Final

from holdfast.gateway.proxy.headers import Header
from holdfast.gateway.proxy.site import Reply

_STYLE: Final = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:42rem;margin:12vh auto;padding:0 1rem}"
    "body{color:#222;background:#fff}"
    "code{font-family:ui-monospace,monospace}a{color:#0b6e6e}h1{font-size:1.2rem}"
    "@media(prefers-color-scheme:dark){body{color:#ddd;background:#111}a{color:#5cc}}"
)
_POLICY: Final = (
    b"default-src 'none'; style-src 'self' 'unsafe-inline'; script-src 'self'; connect-src 'self';"
    b" frame-ancestors 'self'; base-uri 'none'; form-action 'none'"
)
COMMON: Final[list[Header]] = [
    (b"cache-control", b"no-store"),
    (b"referrer-policy", b"no-referrer"),
    (b"content-security-policy", _POLICY),
    (b"cross-origin-opener-policy", b"same-origin"),
]
"""Of all our own answers. A page of a tunnel that opens a session in a window keeps no hold of that window, not even
while it is redirected."""
_SCRIPT: Final = b"text/javascript; charset=utf-8"
_TYPES: Final = {
    "html": b"text/html; charset=utf-8",
    "js": _SCRIPT,
    "mjs": _SCRIPT,
    "css": b"text/css; charset=utf-8",
}
TERMINAL_FILES: Final = frozenset({"terminal.js", "xterm/xterm.mjs", "xterm/addon-fit.mjs", "xterm/xterm.css"})
"""What the page of a terminal loads."""


def page(title: str, *paragraphs: str, status: int = 200, refresh: int | None = None) -> Reply:
    """A short page. `paragraphs` are HTML."""
    again = "" if refresh is None else f'<meta http-equiv="refresh" content="{refresh}">'
    text = (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{html.escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width">{again}<style>{_STYLE}</style>'
        f"<h1>{html.escape(title)}</h1>{''.join(f'<p>{each}</p>' for each in paragraphs)}</html>"
    )
    return Reply(status, [(b"content-type", _TYPES["html"]), *COMMON], text.encode())


@dataclass(frozen=True, slots=True)
class Item:
    """A line of the index page: a link, or something that is not there yet."""

    name: str
    url: str | None
    state: str = ""


def index_page(session: str, state: str, items: Sequence[Item], *, refresh: int | None = None) -> Reply:
    shown = "".join(f"<li>{_item(each)}</li>" for each in items)
    return page(f"Session {session}", f"It is {html.escape(state)}.", f"<ul>{shown}</ul>", refresh=refresh)


def _item(item: Item) -> str:
    name = html.escape(item.name)
    if item.url is not None:
        name = f'<a href="{html.escape(item.url)}">{name}</a>'
    return name if not item.state else f"{name}: {html.escape(item.state)}"


def problem_page(status: int, title: str, message: str, hint: str | None) -> Reply:
    more = [html.escape(hint)] if hint else []
    return page(title, html.escape(_sentence(message)), *more, status=status)


def starting_page(what: str, state: str, starting: Sequence[str]) -> Reply:
    """Says what a session is doing, and tries again."""
    doing = html.escape(_sentence(f"the session is {state}"))
    missing = "".join(f"<li>{html.escape(each)}</li>" for each in starting)
    rest = [f"Still starting:<ul>{missing}</ul>"] if missing else []
    return page(f"{what} does not answer yet", doing, *rest, "This page tries again by itself.", status=502, refresh=2)


@cache
def static(name: str) -> Reply:
    """A file of the gateway: `terminal.html`, or one of `TERMINAL_FILES`."""
    body = (files("holdfast.gateway") / "static" / name).read_bytes()
    return Reply(200, [(b"content-type", _TYPES[name.rpartition(".")[2]]), *COMMON], body)


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}{'' if text.endswith(('.', '!', '?')) else '.'}"
