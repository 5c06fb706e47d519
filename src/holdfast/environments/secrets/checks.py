"""What a secret may look like: its name, its value, and the bindings that say where it may go.

The errors do not contain values.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from holdfast.api.box.network import Rule
from holdfast.api.errors.boxes import InvalidSpec
from holdfast.api.errors.secrets import InvalidSecret
from holdfast.api.secrets import MOST_BINDINGS, SECRET_NAME, Binding, Exposure, Placement

_NAME: Final = re.compile(SECRET_NAME)
_VISIBLE: Final = re.compile(r"[!-~]+")
_FORMAT: Final = re.compile(r"[ -~]{1,300}")
_HEADER: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}")
_PARAMETER: Final = re.compile(r"[A-Za-z0-9._~-]{1,100}")
_PLACEHOLDER: Final = re.compile(r"[A-Za-z0-9_]{16,100}")
_USER: Final = re.compile(r"[!-9;-~]{1,200}")  # visible, without a colon
_REPOSITORY: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9_][A-Za-z0-9._-]*){0,9}")
_FRAMING: Final = frozenset((
    "host", "content-length", "transfer-encoding", "connection", "upgrade", "te", "trailer", "expect", "keep-alive",
    "range", "if-range", "accept-encoding",
))  # fmt: skip
"""Headers that say how a message is sent. The proxy decides about them."""
SHORTEST_BOUND: Final = 16
"""Characters. A shorter value could occur in an answer as a word, so it could not be removed from answers."""
LONGEST_BOUND: Final = 8192
_RESERVED: Final = re.compile(
    r"(HOLDFAST_.*|PATH|HOME|USER|SHELL|LD_.*|PYTHON.*|NODE_.*|.*_PROXY|SSL_CERT_.*|.*_CA_BUNDLE|GIT_.*)", re.IGNORECASE
)
GIT_USER: Final = "x-access-token"
"""The user that forges accept beside a token: GitHub documents it, and others ignore the user."""


def check_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise InvalidSecret(
            f"{name[:80]!r} is not a valid name for a secret",
            hint="use up to 63 letters, digits and underscores: it is the name of a variable in boxes",
        )
    if _RESERVED.fullmatch(name):
        raise InvalidSecret(f"{name} has a meaning of its own as a variable in boxes", hint="choose another name")
    return name


def check_value(name: str, value: str, bindings: Iterable[Binding], expose: Exposure | None) -> str:
    """Raises `InvalidSecret` if the value does not fit where it goes."""
    if not value:
        raise InvalidSecret(f"the value of {name} is empty")
    if "\0" in value:
        raise InvalidSecret(f"the value of {name} contains a NUL character")
    if tuple(bindings):
        if not _VISIBLE.fullmatch(value):
            raise InvalidSecret(
                f"the value of {name} has blanks, line ends or other characters that requests cannot have",
                hint="give one line of ASCII characters without blanks",
            )
        if not SHORTEST_BOUND <= len(value) <= LONGEST_BOUND:
            raise InvalidSecret(
                f"the value of {name} has {len(value)} characters; a secret that is bound to a host has from"
                f" {SHORTEST_BOUND} to {LONGEST_BOUND}"
            )
    elif expose is Exposure.ENV and len(value.encode()) > 32_768:
        raise InvalidSecret(f"the value of {name} is too long for a variable", hint="use --expose file")
    return value


def check_bindings(name: str, bindings: Iterable[Binding], expose: Exposure | None) -> tuple[Binding, ...]:
    """Returns the bindings in canonical form. Raises `InvalidSecret`."""
    checked = tuple(map(_checked, bindings))
    if len(checked) > MOST_BINDINGS:
        raise InvalidSecret(f"{name} has more than {MOST_BINDINGS} bindings")
    if not checked and expose is None:
        raise InvalidSecret(
            f"{name} would go nowhere",
            hint="bind it to a host with --host HOST, or put it into boxes with --expose env or --expose file",
        )
    seen: set[tuple[str, Placement, str]] = set()
    for each in checked:
        place = (each.host, each.placement, each.name.lower())
        if place in seen:
            raise InvalidSecret(f"{name} is bound to {each.host} twice in the same way")
        seen.add(place)
    return checked


def host_and_port(host: str) -> tuple[str, int]:
    """Returns the two parts of the host of a checked binding."""
    name, _, port = host.partition(":")
    return name, int(port or 443)


def _checked(binding: Binding) -> Binding:
    host, name = _checked_host(binding.host), binding.name
    match binding.placement:
        case Placement.HEADER:
            name = name or "Authorization"
            if not _HEADER.fullmatch(name) or name.lower() in _FRAMING or name.lower().startswith(("proxy-", "sec-")):
                raise InvalidSecret(f"{name[:80]!r} is not a header that a secret can be put into")
        case Placement.QUERY:
            if not _PARAMETER.fullmatch(name):
                raise InvalidSecret(f"{name[:80]!r} is not the name of a query parameter")
        case Placement.PLACEHOLDER:
            if not _PLACEHOLDER.fullmatch(name):
                raise InvalidSecret(
                    f"{name[:80]!r} is not a placeholder that is found in requests",
                    hint="use 16 to 100 letters, digits and underscores",
                )
        case Placement.BASIC | Placement.GIT:
            name = name or GIT_USER
            if not _USER.fullmatch(name):
                raise InvalidSecret(f"{name[:80]!r} is not a user of basic authentication")
    if not _FORMAT.fullmatch(binding.format) or binding.format.count("{}") != 1:
        raise InvalidSecret(
            f"the format {binding.format[:80]!r} must contain {{}} once, for the value", hint="Bearer {}"
        )
    if binding.placement is not Placement.HEADER and binding.format != "{}":
        raise InvalidSecret("a format goes with a header", hint="leave out the format")
    if (binding.placement is Placement.GIT) != bool(binding.repositories):
        raise InvalidSecret(
            "a git binding names its repositories, and no other binding does", hint="--git github.com/acme/app"
        )
    repositories = tuple(dict.fromkeys(map(_checked_repository, binding.repositories)))
    return replace(binding, host=host, name=name, repositories=repositories)


def _checked_host(text: str) -> str:
    """A secret goes to hosts that are named one by one: no patterns, no addresses."""
    try:
        rule = Rule.parse(text)
    except InvalidSpec:
        rule = None
    if (
        rule is None
        or rule.methods
        or len(rule.ports) > 1
        or not re.fullmatch(r"[a-z0-9._-]*[a-z][a-z0-9._-]*", rule.host)
    ):
        raise InvalidSecret(
            f"{text[:300]!r} is not a host that a secret can be bound to",
            hint="name one host: api.example.com, or api.example.com:8443",
        )
    port = rule.ports[0] if rule.ports else 443
    return rule.host if port == 443 else f"{rule.host}:{port}"


def _checked_repository(path: str) -> str:
    plain = path.strip("/").removesuffix(".git")
    if not _REPOSITORY.fullmatch(plain) or ".." in plain or len(plain) > 200:
        raise InvalidSecret(f"{path[:200]!r} is not the path of a repository", hint="write it as OWNER/NAME: acme/app")
    return plain
