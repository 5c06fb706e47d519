"""What a command in a box failed for want of: a program or module that is not there, or the network. Pure.

An agent without pytest and without a way to get it does what it can; the person who started it should be told what to
change.
"""

from __future__ import annotations

import re
from typing import Final

_READ: Final = 64 * 1024
"""Of an output, its last characters: where failures are told."""
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
    """In a few words; empty where nothing of the kind shows."""
    end = output[-_READ:]
    if _NETWORK.search(end):
        return "the network"
    if found := _MODULE.search(end):
        return found[1]
    if found := _PROGRAM.search(end):
        return found[1]
    return ""
