"""Files of other projects that the gateway serves. They are what the package has, byte for byte.

For a newer version: `npm pack @xterm/xterm @xterm/addon-fit`, copy `lib/*.mjs`, `css/xterm.css` and `LICENSE` from the
archives to `src/holdfast/gateway/static/xterm/`, try a terminal, and change the digests here and the versions in
`VENDORED.md`.
"""

from __future__ import annotations

import hashlib
from importlib.resources import files

from holdfast.gateway.pages import TERMINAL_FILES

DIGESTS = {
    "LICENSE": "b569f629d00f2626a8100df2a1798210535621e42164dfd426a6fe5aac7b0ccd",
    "addon-fit.mjs": "2d87e1bddc73be9111de8beee5370c3bb7aac9c94e18e6f245f02ca741ef1769",
    "xterm.css": "854a7c0fb70e8b1a083c16797ab827299fb18744f5ad34f227b48337e33293c6",
    "xterm.mjs": "b336ec65a086c056d4804b3d4c2347da5663d3f23c3f25be866467bd8857ad59",
}


def test_they_are_unchanged_and_served() -> None:
    folder = files("holdfast.gateway") / "static" / "xterm"
    found = {each.name: hashlib.sha256(each.read_bytes()).hexdigest() for each in folder.iterdir()}
    assert found.pop("VENDORED.md")
    assert found == DIGESTS
    assert {f"xterm/{name}" for name in DIGESTS if name != "LICENSE"} <= TERMINAL_FILES
