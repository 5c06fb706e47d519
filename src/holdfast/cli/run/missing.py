"""Finds out from a command's output what it was missing: a program, a module, or the network. Pure.

An agent that cannot install pytest does what it can; the user should learn what to change.
"""

from __future__ import annotations

import re
from typing import Final

_READ: Final = 64 * 1024
"""Only the end of an output is searched, because failures are reported there."""
_MODULE: Final = re.compile(r"No module named '?([A-Za-z_][\w]{0,63})")
_PROGRAM: Final = re.compile(
    r"^(?:\S*(?:sh|env)\S*: )?(?:line \d+: |\d+: )?([A-Za-z][\w.+-]{0,63}): (?:command )?not found$", re.MULTILINE
)
_NETWORK: Final = re.compile(
    r"(Temporary failure in name resolution|Could not resolve host|Name or service not known"
    r"|getaddrinfo (?:ENOTFOUND|EAI_AGAIN)|Network is unreachable|blocked by the network policy of this box"
    r"|Could not resolve proxy)",
    re.IGNORECASE,
)


def find_missing(output: str) -> str:
    """Return what is missing in a few words, or an empty string."""
    end = output[-_READ:]
    if _NETWORK.search(end):
        return "the network"
    if found := _MODULE.search(end):
        return found[1]
    if found := _PROGRAM.search(end):
        return found[1]
    return ""
