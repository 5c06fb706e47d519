"""Removes credentials from a repository's git configuration before the repository goes into a box. Pure functions."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

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


def is_configuration(name: str) -> bool:
    """Whether a path is that of a git configuration file."""
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
