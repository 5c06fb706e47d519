"""git on this machine for an untrusted repository, whose folder may have been written by code in a box.

A repository's configuration can name programs that git starts even when it only reads: a file monitor, a hook, or a
transport that fetches missing objects of a partial clone. None of these runs here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

READ_ONLY: Final = ("git", "-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null")
"""The beginning of a read-only command."""


def read_environment(given: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment of a read-only command. Drops git variables, which could point to another repository."""
    kept = {name: value for name, value in given.items() if not name.startswith("GIT_")}
    return kept | {
        "LC_ALL": "C",
        "GIT_OPTIONAL_LOCKS": "0",
        "GIT_TERMINAL_PROMPT": "0",
        # Forbid all transports, whatever the configuration allows. Only git 2.44 and later knows the second variable.
        "GIT_ALLOW_PROTOCOL": "",
        "GIT_NO_LAZY_FETCH": "1",
    }
