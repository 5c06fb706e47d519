"""The address of a repository, as a user writes it: `PATH|URL[@REF]`. Pure: nothing is looked up but a path.

Only https, ssh and file are allowed. A helper (`ext::…`), an option in the place of a host and a control character are
refused by name, before git sees them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit, urlunsplit

from holdfast.api.errors.repositories import InvalidRepository

PROTOCOLS: Final = ("https", "ssh", "file")
_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_HELPER: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9+.-]*::")
_SCP: Final = re.compile(r"(?:[A-Za-z0-9._~-]+@)?[A-Za-z0-9][A-Za-z0-9.-]*:(?![/\\]{2})[^\s]+")
"""`git@host:path`."""
_AUTHORITY: Final = re.compile(
    r"(?:(?:[A-Za-z0-9._~!$&'()*+,;=:-]|%[0-9A-Fa-f]{2})*@)?(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?"
)
"""A user, a host and a port that every program reads alike: no `%` or other letters in the host, one `@`."""
_REF: Final = re.compile(r"(?!-)(?!.*(?:\.\.|@\{|//|\.lock(?:/|$)))[^\x00-\x20\x7f~^:?*\[\\]{1,255}(?<![/.])")
_COMMIT: Final = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")


@dataclass(frozen=True, slots=True)
class Address:
    """A repository, and the ref that is wanted of it."""

    url: str
    """A URL, or an absolute path."""
    ref: str | None
    is_path: bool

    @property
    def protocol(self) -> str:
        if self.is_path:
            return "file"
        scheme = _SCHEME.match(self.url)
        return "ssh" if scheme is None else scheme[1].lower()


def parse_address(text: str, here: Path) -> Address:
    """Parse `PATH|URL[@REF]`. An existing folder wins over a URL that looks the same. Raises `InvalidRepository`."""
    if not text or text.startswith("-") or not text.isprintable():
        raise InvalidRepository(f"{text[:80]!r} is not the address of a repository", hint=_EXAMPLES)
    whole = _folder(text, here)
    if whole is not None:
        return Address(str(whole), None, True)
    url, ref = _split(text)
    if ref is not None:
        check_ref(ref)
    folder = _folder(url, here)
    if folder is not None:
        return Address(str(folder), ref, True)
    return Address(_check_url(url), ref, False)


def parse_remote(text: str) -> Address:
    """Parse `URL[@REF]`. Nothing is looked up, and a path is no URL. Raises `InvalidRepository`."""
    url, ref = _split(text)
    known = _SCHEME.match(url) or _HELPER.match(url) or _SCP.fullmatch(url)
    if not known or text.startswith("-") or not text.isprintable() or len(text) > 2048:
        raise InvalidRepository(
            f"{text[:80]!r} is not the URL of a repository",
            hint="for example https://host/owner/name.git@v1 or git@host:owner/name.git",
        )
    return Address(_check_url(url), None if ref is None else check_ref(ref), False)


def check_ref(ref: str) -> str:
    """Raises `InvalidRepository` unless this is a name that a branch, tag or commit can have."""
    if not _REF.fullmatch(ref):
        raise InvalidRepository(f"{ref[:80]!r} is not a branch, tag or commit", hint="for example main, or v1.2")
    return ref


def is_commit(ref: str) -> bool:
    return _COMMIT.fullmatch(ref) is not None


def without_user(url: str) -> str:
    """Returns a URL without a password, and for https without a user, in whose place tokens are often put."""
    scheme = _SCHEME.match(url)
    if scheme is None:
        return url
    parts = urlsplit(url)
    user, at, host = parts.netloc.rpartition("@")
    if not at:
        return url
    kept = f"{user.partition(':')[0]}@{host}" if scheme[1].lower() == "ssh" else host
    return urlunsplit(parts._replace(netloc=kept, query="", fragment=""))


def _split(text: str) -> tuple[str, str | None]:
    """Split at the `@` of a ref. One before the path of a URL belongs to its user."""
    scheme = _SCHEME.match(text)
    if scheme is not None:
        begin = text.find("/", scheme.end())
    elif _SCP.fullmatch(text) is not None:
        begin = text.index(":")
    else:
        begin = 0
    at = -1 if begin < 0 else text.rfind("@", begin)
    return (text, None) if at <= 0 else (text[:at], text[at + 1 :])


def _folder(text: str, here: Path) -> Path | None:
    if _SCHEME.match(text) or _HELPER.match(text):
        return None
    try:
        path = here / Path(text).expanduser()
        return path.resolve() if path.is_dir() else None
    except (OSError, RuntimeError, ValueError):
        return None


def _check_url(url: str) -> str:
    scheme = _SCHEME.match(url)
    if _HELPER.match(url):
        raise InvalidRepository(f"{url[:80]!r} names a program for git to start, and is refused", hint=_EXAMPLES)
    if scheme is None:
        if _SCP.fullmatch(url):
            return url
        raise InvalidRepository(f"{url[:80]!r} is neither a folder nor the URL of a repository", hint=_EXAMPLES)
    protocol = scheme[1].lower()
    if protocol not in PROTOCOLS:
        raise InvalidRepository(
            f"{protocol}:// is not allowed for repositories: use {', '.join(PROTOCOLS)}", hint=_EXAMPLES
        )
    try:
        parts = urlsplit(url)
        host = parts.hostname
        _ = parts.port
    except ValueError:
        host, parts = None, urlsplit("")
    if protocol == "file":
        if host not in (None, "", "localhost") or not parts.path.startswith("/"):
            raise InvalidRepository(f"{url[:80]!r} is not a path on this machine", hint="file:///path/to/repository")
        return url
    if not _AUTHORITY.fullmatch(parts.netloc) or "\\" in url:
        # Otherwise git or curl could go to another host than the one that was checked and shown here.
        raise InvalidRepository(
            f"{url[:80]!r} has a host that programs read differently",
            hint="use letters, digits, dots and hyphens, and for other letters the form that begins with xn--",
        )
    if not host or host.startswith("-") or (parts.username or "").startswith("-") or not parts.path.strip("/"):
        raise InvalidRepository(f"{url[:80]!r} has no valid host and path", hint=_EXAMPLES)
    return url


_EXAMPLES: Final = "for example . or ../project@main or https://host/owner/name.git@v1 or git@host:owner/name.git"
