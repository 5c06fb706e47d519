"""The host names of ports of boxes: `<port>-<box>.localhost`. Pure.

Each port has its own host name, so that a page from a box has another origin than every other page and the API.
"""

from __future__ import annotations

import functools
import re
from typing import Final, NamedTuple

_HOST: Final = re.compile(rb"([0-9]{1,5})-([a-z0-9][a-z0-9-]{0,55})\.localhost\.?(?::[0-9]{1,5})?", re.IGNORECASE)
_PATH: Final = re.compile(rb"/v1/boxes/([A-Za-z0-9_-]{1,64})/ports/([0-9]{1,5})(/.*)?", re.DOTALL)


class PortTarget(NamedTuple):
    """A port of a box, and the requested path."""

    box: str
    port: int
    path: bytes
    """The path after the port; empty if not even a slash follows."""
    prefix: bytes
    """The path before it; empty if the host names the port."""


@functools.lru_cache(maxsize=512)
def _parse_host(host: bytes) -> tuple[str, int] | None:
    match = _HOST.fullmatch(host)
    return None if match is None else (match[2].decode().lower(), int(match[1]))


def is_box_host(host: bytes) -> bool:
    """Returns whether a Host header, or the part of an Origin after its scheme, has the form that belongs to boxes."""
    return _parse_host(host) is not None


def find_target(host: bytes | None, raw_path: bytes) -> PortTarget | None:
    """The port that a request is for, or None. If the host names one, all paths belong to the box."""
    if host is not None and (named := _parse_host(host)) is not None:
        return PortTarget(*named, raw_path or b"/", b"")
    if raw_path.startswith(b"/v1/boxes/") and (match := _PATH.fullmatch(raw_path)) is not None:
        path = match[3] or b""
        return PortTarget(match[1].decode(), int(match[2]), path, raw_path[: len(raw_path) - len(path)])
    return None


def host_name(box: str, port: int) -> str:
    return f"{port}-{box.lower()}.localhost"
