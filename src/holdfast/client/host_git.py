"""git on this machine, for a repository that is not trusted: its folder may have been written by code in a box.

A repository's own settings can name programs, and git starts some of them only to read: a monitor of files, a hook, or
a transport that brings objects which a partial clone lacks. None of these runs here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

READ_ONLY: Final = ("git", "-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null")
"""How a command begins that only reads."""


def read_environment(given: Mapping[str, str]) -> dict[str, str]:
    """The environment of such a command. Variables that a hook or an editor set would lead to another repository."""
    kept = {name: value for name, value in given.items() if not name.startswith("GIT_")}
    return kept | {
        "LC_ALL": "C",
        "GIT_OPTIONAL_LOCKS": "0",
        "GIT_TERMINAL_PROMPT": "0",
        # No transport at all, whatever the settings allow. The second is known to git 2.44 and newer alone.
        "GIT_ALLOW_PROTOCOL": "",
        "GIT_NO_LAZY_FETCH": "1",
    }
