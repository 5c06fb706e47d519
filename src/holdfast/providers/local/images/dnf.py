"""Configures dnf in a box to leave out the capabilities of files.

Some packages (httpd, iputils) set these on their programs. No process in a box may, and rpm gives up the whole package
when it is refused. The setting is possible only in dnf's one configuration file, so that of the image is amended.
"""

from __future__ import annotations

import re
from typing import Final

CONFIGURATION: Final = "etc/dnf/dnf.conf"
_FLAG: Final = "nocaps"
_MAIN: Final = re.compile(r"^\[main\][^\n]*\n?", re.M)
_SECTION: Final = re.compile(r"^\[", re.M)
_FLAGS: Final = re.compile(r"^(tsflags[ \t]*[=:][ \t]*)([^\n]*)", re.M)


def amended(text: str) -> str | None:
    """Returns the configuration with the flag added, or None if it has the flag."""
    head = _MAIN.search(text)
    if head is None:
        return f"[main]\ntsflags={_FLAG}\n{text}"
    rest = text[head.end() :]
    following = _SECTION.search(rest)
    options = rest if following is None else rest[: following.start()]
    flags = _FLAGS.search(options)
    if flags is None:
        return f"{text[: head.end()].rstrip()}\ntsflags={_FLAG}\n{rest}"
    if _FLAG in re.split(r"[\s,]+", flags[2]):
        return None
    place = head.end() + flags.end(1)
    return f"{text[:place]}{_FLAG}{', ' if flags[2].strip() else ''}{text[place:]}"
