"""Reads the pages of package indexes: which files they name, with which digests. Pure functions.

Understands the simple index of Python as HTML and JSON, and the documents of npm.
"""

from __future__ import annotations

import base64
import binascii
import html
import json
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, Final
from urllib.parse import urldefrag, urljoin

from holdfast.egress.packages.cache import Digest

_LINK: Final = re.compile(r"""(href\s*=\s*)(["'])([^"']*)\2""", re.IGNORECASE)
_BASE: Final = re.compile(r"<base\s", re.IGNORECASE)

MapUrl = Callable[[str], str]
"""Returns the URL by which a box gets the file of a URL."""


def digests(page: bytes, url: str) -> dict[str, Digest]:
    """Returns what a page says about files, by their URLs. A page that cannot be read says nothing."""
    try:
        document = json.loads(page)
    except (ValueError, RecursionError):
        return dict(_of_html(page.decode("utf-8", "replace"), url))
    found: dict[str, Digest] = {}
    with suppress(AttributeError, TypeError, ValueError):
        found.update(_of_python(document, url))
    with suppress(AttributeError, TypeError, ValueError):
        found.update(_of_npm(document))
    return found


def rewrite(page: bytes, url: str, map_url: MapUrl) -> bytes:
    """Returns a page of a Python index whose links to files are mapped, with their fragments."""

    def mapped(link: str) -> str:
        try:
            whole, fragment = urldefrag(urljoin(url, link))
            return map_url(whole) + (f"#{fragment}" if fragment else "")
        except ValueError:
            return link

    try:
        document = json.loads(page)
    except (ValueError, RecursionError):
        text = page.decode("utf-8", "surrogateescape")
        if _BASE.search(text):
            return page  # its links mean something else, and stay as they are

        def link(found: re.Match[str]) -> str:
            return f"{found[1]}{found[2]}{html.escape(mapped(html.unescape(found[3])))}{found[2]}"

        return _LINK.sub(link, text).encode("utf-8", "surrogateescape")
    if isinstance(document, dict) and isinstance(document.get("files"), list):
        for file in document["files"]:
            if isinstance(file, dict) and isinstance(file.get("url"), str):
                file["url"] = mapped(file["url"])
        return json.dumps(document).encode()
    return page


def _of_html(text: str, url: str) -> Iterator[tuple[str, Digest]]:
    for found in _LINK.finditer(text):
        with suppress(ValueError):
            file, fragment = urldefrag(urljoin(url, html.unescape(found[3])))
            algorithm, _, value = fragment.partition("=")
            if (digest := Digest.of(algorithm, value)) is not None:
                yield file, digest


def _of_python(document: Any, url: str) -> Iterator[tuple[str, Digest]]:
    for file in document.get("files", ()):
        whole = urljoin(url, file["url"])
        if (digest := Digest.of("sha256", str(file.get("hashes", {}).get("sha256", "")))) is not None:
            yield whole, digest
        metadata = file.get("core-metadata")
        if isinstance(metadata, dict) and (digest := Digest.of("sha256", str(metadata.get("sha256", "")))) is not None:
            yield f"{whole}.metadata", digest


def _of_npm(document: Any) -> Iterator[tuple[str, Digest]]:
    versions = document.get("versions")
    for version in versions.values() if isinstance(versions, dict) else (document,):
        dist = version.get("dist")
        if not isinstance(dist, dict):
            continue
        algorithm, _, value = str(dist.get("integrity", "")).partition(" ")[0].partition("-")
        found: Digest | None = None
        with suppress(binascii.Error, ValueError):
            found = Digest.of(algorithm, base64.b64decode(value, validate=True).hex())
        found = found or Digest.of("sha1", str(dist.get("shasum", "")))
        if found is not None and isinstance(dist.get("tarball"), str):
            yield dist["tarball"], found
