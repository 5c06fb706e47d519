"""Authentication at a registry: parses challenges, and creates the credentials or tokens that answer them.

A registry names a server that issues tokens, and is untrusted in that too. The URL is checked before anything is sent,
and the requested scope is always to pull this one repository, whatever the challenge contains.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

LARGEST_ANSWER: Final = 1 << 18
_LONGEST_TOKEN: Final = 1 << 16
_LONGEST_CHALLENGE: Final = 8192
_TOKEN: Final = re.compile(r"[\x21-\x7e]+")
_SCHEME: Final = re.compile(r"(?:^|,)\s*(Bearer|Basic)(?=\s|,|$)", re.IGNORECASE)
_PARAMETER: Final = re.compile(r'([A-Za-z0-9_-]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s,"]+))')


@dataclass(frozen=True, slots=True)
class Credentials:
    """Of one user at one registry."""

    username: str
    password: str = field(repr=False)

    def __post_init__(self) -> None:
        if ":" in self.username:
            raise ValueError("a user name cannot contain a colon")

    @property
    def basic(self) -> str:
        return "Basic " + base64.b64encode(f"{self.username}:{self.password}".encode()).decode()


@dataclass(frozen=True, slots=True)
class Challenge:
    """What a registry requires: a token from a realm, or a user and a password (`realm` is None)."""

    realm: str | None = None
    service: str | None = None


def parse_challenges(headers: Iterable[str]) -> Challenge | None:
    """Returns the challenge to answer from `WWW-Authenticate`, preferably for a token, or None if none is supported."""
    basic = None
    for header in headers:
        text = header[:_LONGEST_CHALLENGE]
        starts = [*_SCHEME.finditer(text)]
        for number, start in enumerate(starts):
            end = starts[number + 1].start() if number + 1 < len(starts) else len(text)
            if start[1].lower() == "basic":
                basic = Challenge()
                continue
            parameters = {
                name.lower(): re.sub(r"\\(.)", r"\1", quoted) if quoted else plain
                for name, quoted, plain in _PARAMETER.findall(text[start.end() : end])
            }
            if parameters.get("realm"):
                return Challenge(parameters["realm"], parameters.get("service"))
    return basic


def parse_token(data: bytes) -> str | None:
    """Returns the token in a realm's answer, or None if there is none that is valid in a header."""
    try:
        answer: Any = json.loads(data)
    except (ValueError, RecursionError):
        return None
    if not isinstance(answer, dict):
        return None
    for name in ("token", "access_token"):
        token = answer.get(name)
        if isinstance(token, str) and len(token) <= _LONGEST_TOKEN and _TOKEN.fullmatch(token):
            return token
    return None
