"""Which names of files may go into a checkout. Pure.

A box chooses the names. Some file systems read other names as `.git`: in other case, in short form, with characters
that they drop. Git refuses most of these; we refuse all of them on every file system.
"""

from __future__ import annotations

import re
from typing import Final

_DOT_GIT: Final = re.compile(rb"(?:\.git|git~[0-9])[ .]*(?:\Z|:)", re.IGNORECASE)
_DOT_GITMODULES: Final = re.compile(rb"(?:\.gitmodules|gitmod~|gi7eb)", re.IGNORECASE)
_UNSEEN: Final = re.compile("[\u200c-\u200f\u202a-\u202e\u206a-\u206f\ufeff]")
"""Characters that some file systems drop from names."""
_MAX_NAME: Final = 4096


def is_git_name(parts: tuple[bytes, ...], is_link: bool) -> bool:
    """Returns whether git refuses the name in patches, because some file systems would read it as `.git`."""
    for part in parts:
        for name in part.split(b"\\"):
            seen = as_seen(name)
            if _DOT_GIT.match(seen) or (is_link and _DOT_GITMODULES.match(seen)):
                return True
    return False


def refusal(path: bytes, target: bytes | None) -> str | None:
    """Returns why a file, or a link to `target`, may not be written into a checkout, or None."""
    parts = tuple(path.split(b"/"))
    if not path or len(path) > _MAX_NAME or b"\0" in path:
        return "its name is empty or too long"
    if any(part in (b"", b".", b"..") for part in parts):
        return "its name leads out of the checkout"
    if is_git_name(parts, target is not None):
        return "its name belongs to git"
    if _DOT_GITMODULES.match(as_seen(parts[-1])):
        return "it says where git fetches submodules from"
    if target is not None and not _stays_inside(parts, target):
        return "it is a link that leads out of the checkout, or into .git"
    return None


def is_head(path: bytes) -> bool:
    """Returns whether a file could make git take its folder for a repository, and read a configuration there."""
    return as_seen(path.rpartition(b"/")[2]).strip(b" .").lower() == b"head"


def seen_name(name: bytes) -> bytes:
    """Returns a name as the least exact file system reads it: in small letters, without what some drop."""
    return as_seen(name).rstrip(b" .").lower()


def as_seen(name: bytes) -> bytes:
    """Returns a name as some file systems read it: without characters that are not seen."""
    return _UNSEEN.sub("", name.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")


def _stays_inside(parts: tuple[bytes, ...], target: bytes) -> bool:
    """Returns whether a link stays inside, whatever other links there are: `..` only at the beginning, no `.git`."""
    if not target or target.startswith(b"/") or b"\0" in target or len(target) > _MAX_NAME:
        return False
    depth = len(parts) - 1
    down = False
    for step in target.split(b"/"):
        if step in (b"", b"."):
            continue
        if step == b"..":
            depth -= 1
            # After a folder, that folder may be a link, whose parent is elsewhere.
            if down or depth < 0:
                return False
        else:
            down = True
            if is_git_name((step,), False):
                return False
    return True
