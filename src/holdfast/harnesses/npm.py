"""What npm's complaints mean, for people who did not ask for npm. Pure."""

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
UNREACHED: Final = "see whether this machine reaches npm's registry (`npm ping`; proxies are set in ~/.npmrc)"
_CERTIFICATES: Final = ("CERT", "SELF_SIGNED", "UNABLE_TO_")
_HINTS: Final = {
    "E401": "npm's registry wants a login: see `npm config get registry` and ~/.npmrc",
    "E403": "npm's registry refuses it: see `npm config get registry` and ~/.npmrc",
    "E404": "npm's registry does not have it: see `npm config get registry`",
    "ETARGET": "npm's registry does not have that version: see `npm config get registry`",
    "EINTEGRITY": "what npm's registry sent is not what the lock file pins: see `npm config get registry`",
    "ENOSPC": "make room on the disk, and try again",
    "EACCES": "let the server's user write to npm's cache: see `npm config get cache`",
    "EROFS": "let the server's user write to npm's cache: see `npm config get cache`",
}


def explain(output: str) -> tuple[str, str]:
    """What went wrong, and what to do next."""
    code = _CODE.search(output)
    name = "" if code is None else code.group(1)
    lines = _LINE.findall(output) or output.strip().splitlines()[-1:] or ["npm said nothing"]
    message = _SECRET.sub(r"\1…@", lines[0].strip())[:_MOST]
    if name and name not in message:
        message = f"{name}: {message}"
    if name in _OF_THE_NETWORK:
        return message, UNREACHED
    if name.startswith(_CERTIFICATES) or any(part in name for part in _CERTIFICATES):
        return message, "let npm trust your certificates: npm config set cafile FILE"
    return message, _HINTS.get(name, "read npm's words above, and try again")
