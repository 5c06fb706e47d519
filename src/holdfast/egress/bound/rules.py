"""Decides which secrets go into a request of a box. Pure decisions: nothing here sees the value of a secret, but
`with_secrets`, which writes it into a request.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol
from urllib.parse import quote, unquote_plus, unquote_to_bytes

from holdfast.api.secrets import Binding, Placement, SecretAction, SecretRecord
from holdfast.egress.http_head import Headers, Request, end_to_end

_REFUSED_METHODS: Final = frozenset(("TRACE", "TRACK", "CONNECT"))
"""Methods whose answer contains the request, or that mean another host."""
_DROPPED: Final = frozenset(
    (b"host", b"accept-encoding", b"a-im", b"range", b"request-range", b"if-range", b"sec-websocket-extensions")
)
"""Not sent to a host with a binding: secrets cannot be found in compressed answers, nor in parts of answers.

Apache takes `Request-Range` for `Range`. `A-IM` asks for an answer that is compressed without `Content-Encoding`.
"""
_READS: Final = {
    ("GET", "info/refs?service=git-upload-pack"),
    ("POST", "git-upload-pack"),
}
_PUSHES: Final = {
    ("GET", "info/refs?service=git-receive-pack"),
    ("POST", "git-receive-pack"),
}


class SecretSource(Protocol):
    """The secrets of a server, as the egress uses them."""

    def find(self, name: str) -> SecretRecord | None: ...

    def reveal(self, name: str) -> str:
        """Returns a value. Raises `SecretMissing`."""
        ...

    def note(
        self, name: str, action: SecretAction, *, box: str, thread: str | None = None, host: str = "", detail: str = ""
    ) -> None:
        """Record what a box did with a secret. Never blocks."""


@dataclass(frozen=True, slots=True)
class SecretUse:
    """That a box may use a secret, as its policy says: `NAME` or `NAME:push`."""

    name: str
    push: bool = False

    @classmethod
    def parse(cls, text: str) -> SecretUse:
        name, _, push = text.partition(":")
        return cls(name, push == "push")


@dataclass(frozen=True, slots=True)
class Bound:
    """A secret that a box may use at a host."""

    use: SecretUse
    binding: Binding


class Refusal(Exception):
    """A request that is not sent, with or without a secret. `secret` is the one that it was about."""

    def __init__(self, why: str, secret: str) -> None:
        super().__init__(why)
        self.secret = secret


def host_and_port(host: str) -> tuple[str, int]:
    """Returns the parts of the host of a binding, which is in canonical form."""
    name, _, port = host.partition(":")
    return name, int(port or 443)


def bound_at(
    uses: Iterable[SecretUse], find: Callable[[str], SecretRecord | None], host: str, port: int
) -> tuple[Bound, ...]:
    """Returns the secrets that a box may use at a host."""
    found: list[Bound] = []
    for use in uses:
        record = find(use.name)
        if record is not None:
            found += (Bound(use, each) for each in record.bindings if host_and_port(each.host) == (host, port))
    return tuple(found)


def choose(
    bound: Iterable[Bound], method: str, path: bytes, headers: Sequence[tuple[bytes, bytes]] = ()
) -> tuple[Bound, ...]:
    """Returns the secrets that go into a request. Raises `Refusal`."""
    bound = tuple(bound)
    if method in _REFUSED_METHODS:
        raise Refusal(f"{method} is not sent to a host that a secret is bound to", bound[0].use.name)
    chosen: dict[str, Bound] = {}
    git = [each for each in bound if each.binding.placement is Placement.GIT]
    for each in bound:
        if each.binding.placement is Placement.PLACEHOLDER:
            mark = each.binding.name.encode()
            if mark in path.partition(b"?")[2] or any(mark in value for _, value in headers):
                _add(chosen, each)
        elif each.binding.placement is not Placement.GIT:
            _add(chosen, each)
    if git:
        found = _git(git, method, path)
        if found is not None:
            chosen[_place(found.binding)] = found  # a repository is more specific than a host
    return tuple(chosen.values())


def _add(chosen: dict[str, Bound], bound: Bound) -> None:
    place = _place(bound.binding)
    if (other := chosen.get(place)) is not None:
        names = f"{other.use.name} and {bound.use.name}"
        raise Refusal(f"{names} are both bound to the {place} of {bound.binding.host}", bound.use.name)
    chosen[place] = bound


def _place(binding: Binding) -> str:
    match binding.placement:
        case Placement.QUERY:
            return f"query parameter {binding.name}"
        case Placement.HEADER:
            return f"header {binding.name.lower()}"
        case Placement.PLACEHOLDER:
            return f"placeholder {binding.name}"
    return "header authorization"


def _git(bound: list[Bound], method: str, path: bytes) -> Bound | None:
    """Returns the secret for a request of git, or None if it is not for one of the repositories.

    A request is compared as it is written: only what git itself sends is recognised, so that no other spelling of a
    path leads to another repository. A push that is not allowed is refused, however it is written.
    """
    for each in bound:
        for repository in each.binding.repositories:
            for name in (f"/{repository}/", f"/{repository}.git/"):
                request = (method, path.decode("latin-1").removeprefix(name))
                if path.startswith(name.encode()) and request in _READS:
                    return each
                if path.startswith(name.encode()) and request in _PUSHES:
                    if each.use.push:
                        return each
                    raise Refusal(
                        f"{each.use.name} may not push to {repository}: this box may only read it", each.use.name
                    )
    if b"git-receive-pack" in unquote_to_bytes(unquote_to_bytes(path)).lower():
        names = ", ".join(dict.fromkeys(each.use.name for each in bound))
        raise Refusal(f"{names} may push to no such repository", bound[0].use.name)
    return None


def with_secrets(request: Request, chosen: Iterable[Bound], values: Mapping[str, str]) -> Request:
    """Returns the request as it is sent to the server, with the secrets in their places.

    What the box put there is replaced. Headers that concern only one connection are dropped before: otherwise a box
    could name the header of a secret among them.
    """
    headers: Headers = [each for each in end_to_end(request.headers) if each[0].lower() not in _DROPPED]
    headers.append((b"Accept-Encoding", b"identity"))
    path = request.path
    for each in chosen:
        binding, value = each.binding, values[each.use.name]
        if binding.placement is Placement.PLACEHOLDER:
            mark = binding.name.encode()
            headers = [(name, content.replace(mark, value.encode())) for name, content in headers]
            before, asked, query = path.partition(b"?")
            path = before + asked + query.replace(mark, quote(value, safe="").encode())
            continue
        if binding.placement is Placement.QUERY:
            path = _with_parameter(path, binding.name, value)
            continue
        if binding.placement is Placement.HEADER:
            name, content = binding.name.encode(), binding.format.replace("{}", value).encode()
        else:
            name, content = b"Authorization", b"Basic " + basic(binding.name, value).encode()
        headers = [header for header in headers if header[0].lower() != name.lower()]
        headers.append((name, content))
    return replace(request, path=path, headers=headers)


def basic(user: str, value: str) -> str:
    return base64.b64encode(f"{user}:{value}".encode()).decode()


def _with_parameter(path: bytes, name: str, value: str) -> bytes:
    before, _, query = path.partition(b"?")
    kept = [
        part for part in query.split(b"&") if part and unquote_plus(part.partition(b"=")[0].decode("latin-1")) != name
    ]
    kept.append(f"{name}={quote(value, safe='')}".encode())
    return before + b"?" + b"&".join(kept)


def forms(chosen: Iterable[Bound], values: Mapping[str, str]) -> list[str]:
    """Returns how the values may be written in an answer: as they are, in base64, and in hexadecimal digits.

    `Scrubber` knows all escapes.
    """
    found: dict[str, None] = {}
    for each in chosen:
        value = values[each.use.name]
        found[value] = None
        if each.binding.placement in (Placement.BASIC, Placement.GIT):
            found[basic(each.binding.name, value)] = None
        found |= dict.fromkeys(_base64(value))
        digits = value.encode().hex()
        found |= dict.fromkeys((digits, digits.upper()))
    return [*found]


def _base64(value: str) -> Iterable[str]:
    """Yields the value in base64, as part of a longer text at any position, without its first and last characters."""
    for before in range(3):
        plain = b"\0" * before + value.encode()
        whole = len(plain) - len(plain) % 3
        encoded = base64.b64encode(plain[:whole]).decode()[4 if before else 0 :]
        yield encoded
        yield encoded.replace("+", "-").replace("/", "_")
