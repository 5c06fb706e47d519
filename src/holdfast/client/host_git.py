"""git repositories of this machine: reading an untrusted one, and removing credentials before one goes into a box.

Code in a box may have written the folder of an untrusted repository. Its configuration can name programs that git
starts even when it only reads: a file monitor, a hook, or a transport that fetches missing objects of a partial clone.
None of these runs here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

READ_ONLY: Final = ("git", "-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null")
"""The beginning of a read-only command."""
_CONFIGURATION: Final = frozenset({"config", "config.worktree"})
_USER: Final = re.compile(rb"(https?://)[^/\s\"]*@", re.IGNORECASE)
"""User names are removed too, because tokens are often put in their place."""
_PASSWORD: Final = re.compile(rb"([a-z][a-z0-9+.-]*://[^/\s\":]*):[^/\s\"]*@", re.IGNORECASE)
_SECTION: Final = re.compile(rb"\s*\[\s*([A-Za-z0-9.-]*)\s*(?:\"(?:[^\"\\]|\\.)*\")?\s*\]")
_SETTING: Final = re.compile(rb"\s*([A-Za-z][A-Za-z0-9-]*)\s*(?:=|$)")
_SECRET: Final = re.compile(
    rb"pass|token|secret|oauth|extraheader|cookie|apikey|accesskey|authorization", re.IGNORECASE
)
_HELPERS: Final = b"credential"
"""A section whose helpers name programs on this machine, and may contain passwords."""


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


def is_configuration(name: str) -> bool:
    """Returns whether a path is that of a git configuration file."""
    parts = name.split("/")
    return ".git" in parts[:-1] and parts[-1] in _CONFIGURATION


def without_credentials(configuration: bytes) -> bytes:
    """Returns a git configuration without user names, passwords and headers that give access to remotes."""
    kept, section = [], b""
    for line in _whole_lines(configuration):
        head = _SECTION.match(line)
        if head is not None:
            section = head[1].lower().partition(b".")[0]
        begin = head.end() if head is not None else 0
        setting = _SETTING.match(line, begin)
        if setting is not None and (section == _HELPERS or _SECRET.search(setting[1])):
            # A setting may be on the same line as its section header.
            kept.append(line[:begin] + b"\n" if begin else b"")
        else:
            kept.append(line)
    return _PASSWORD.sub(rb"\1@", _USER.sub(rb"\1", b"".join(kept)))


def _whole_lines(configuration: bytes) -> Iterator[bytes]:
    """Yields lines with their continuations: a line that ends in a backslash continues on the next."""
    whole = b""
    for line in configuration.splitlines(keepends=True):
        whole += line
        end = line.rstrip(b"\r\n")
        if (len(end) - len(end.rstrip(b"\\"))) % 2 == 0:
            yield whole
            whole = b""
    if whole:
        yield whole
