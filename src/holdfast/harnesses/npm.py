"""Explains errors of npm to users who did not call npm. Pure functions."""

from __future__ import annotations

import re
from typing import Final

_CODE: Final = re.compile(r"^npm (?:error|ERR!) code (\S+)", re.MULTILINE)
_LINE: Final = re.compile(r"^npm (?:error|ERR!) (?!code |A complete log|\s*$)(.+)$", re.MULTILINE)
_SECRET: Final = re.compile(r"(://)[^/@\s]+@")
_MOST: Final = 300
_OF_THE_NETWORK: Final = frozenset(
    {
        "ENOTFOUND", "EAI_AGAIN", "ECONNREFUSED", "ECONNRESET", "ETIMEDOUT", "EHOSTUNREACH", "ENETUNREACH",
        "ERR_SOCKET_TIMEOUT", "FETCH_ERROR", "EPIPE",
    }
)  # fmt: skip
UNREACHED: Final = "check that this machine reaches npm's registry (`npm ping`; proxies are set in ~/.npmrc)"
_CERTIFICATES: Final = ("CERT", "SELF_SIGNED", "UNABLE_TO_")
_HINTS: Final = {
    "E401": "npm's registry requires a login: see `npm config get registry` and ~/.npmrc",
    "E403": "npm's registry refused the request: see `npm config get registry` and ~/.npmrc",
    "E404": "npm's registry does not have the package: see `npm config get registry`",
    "ETARGET": "npm's registry does not have that version: see `npm config get registry`",
    "EINTEGRITY": "npm's registry sent a package that does not match the lock file: see `npm config get registry`",
    "ENOSPC": "free some disk space and try again",
    "EACCES": "make npm's cache writable for the server's user: see `npm config get cache`",
    "EROFS": "make npm's cache writable for the server's user: see `npm config get cache`",
}


def explain(output: str) -> tuple[str, str]:
    """Returns a message and a hint."""
    code = _CODE.search(output)
    name = "" if code is None else code.group(1)
    lines = _LINE.findall(output) or output.strip().splitlines()[-1:] or ["npm printed nothing"]
    message = _SECRET.sub(r"\1…@", lines[0].strip())[:_MOST]
    if name and name not in message:
        message = f"{name}: {message}"
    if name in _OF_THE_NETWORK:
        return message, UNREACHED
    if name.startswith(_CERTIFICATES) or any(part in name for part in _CERTIFICATES):
        return message, "let npm trust your certificates: npm config set cafile FILE"
    return message, _HINTS.get(name, "read npm's message above, and try again")
