"""The network policy of a box."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, Final

from holdfast.api.document import Document, Limits
from holdfast.api.errors.boxes import InvalidSpec
from holdfast.api.limits import RuleText

DEFAULT_LIST: Final = "default"
"""In a list of rules: the package registries that this machine's own clients use, git hosts and the model gateway."""
SECRET_HOSTS: Final = "secrets"
"""In a list of rules: the hosts that the secrets of the policy are bound to. They need no rule, so this adds none. It
makes a list that allows nothing else."""
_LABEL: Final = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?")
_METHOD: Final = re.compile(r"[A-Z]{1,32}")
_MOST_RULES: Final = 1000
_MOST_SECRETS: Final = 64
_SECRET_USE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}(:push)?")

SecretUse = Annotated[str, Limits(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,62}(:push)?$")]
"""The name of a secret, or `NAME:push`."""


class Network(StrEnum):
    NONE = "none"
    """Loopback only."""
    ALLOW = "allow"
    """The hosts that are listed, through the egress proxy."""
    OPEN = "open"
    """Every public host, through the egress proxy. Never the default."""


@dataclass(frozen=True, slots=True)
class Rule:
    """Allows requests. `*.example.com` matches everything below example.com, but not example.com itself."""

    host: str
    """A name, a name that starts with `*.`, an IP address, or a range of addresses such as `203.0.113.0/24`, in lower
    case and canonical form. A range allows addresses, not names that lead to them."""
    ports: tuple[int, ...] = ()
    """If empty: 80 and 443."""
    methods: tuple[str, ...] = ()
    """If empty: all. The method of an HTTPS request is encrypted, so a rule with methods allows no HTTPS."""

    @classmethod
    def parse(cls, text: str) -> Rule:
        """`[METHOD[,METHOD…] ]host[:port[,port…]]`, such as `*.example.com:443`, `GET,HEAD example.com` or
        `203.0.113.0/24:443`.
        """
        before, _, target = text.strip().rpartition(" ")
        host, ports = _split_port(target)
        methods = tuple(method.strip().upper() for method in before.split(",")) if before else ()
        rule = cls(_canonical(host.lower().removesuffix(".")), _ports(ports, text), methods)
        if not _is_host(rule.host) or not all(_METHOD.fullmatch(method) for method in methods):
            raise InvalidSpec(
                f"{text!r} is not a network rule", hint="write HOST, *.DOMAIN or HOST:PORT, such as *.example.com:443"
            )
        return rule

    def __str__(self) -> str:
        methods = f"{','.join(self.methods)} " if self.methods else ""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return methods + host + (f":{','.join(map(str, self.ports))}" if self.ports else "")


def _split_port(target: str) -> tuple[str, str]:
    if target.startswith("["):
        host, _, rest = target[1:].partition("]")
        return host, rest.removeprefix(":")
    if target.count(":") > 1:  # a bare IPv6 address
        return target, ""
    host, _, ports = target.partition(":")
    return host, ports


def _ports(text: str, rule: str) -> tuple[int, ...]:
    try:
        ports = tuple(int(port) for port in text.split(",")) if text else ()
    except ValueError:
        ports = (0,)
    if not all(0 < port < 65536 for port in ports):
        raise InvalidSpec(f"{rule!r} is not a network rule: {text} is not a list of ports")
    return ports


def _canonical(host: str) -> str:
    """Convert an address to the form that the proxy uses, because an address can be written in many ways."""
    try:
        network = ipaddress.ip_network(host)
    except ValueError:
        return host
    return str(network.network_address if network.num_addresses == 1 else network)


def _is_host(host: str) -> bool:
    try:
        ipaddress.ip_network(host)
    except ValueError:
        labels = host.removeprefix("*.").split(".")
        return len(host) <= 253 and all(_LABEL.fullmatch(label) for label in labels) and not labels[-1].isdigit()
    return True


@dataclass(frozen=True, slots=True)
class NetworkPolicy(Document):
    """What a box may reach. It can be changed while the box runs if the provider supports `network-live`."""

    mode: Network = Network.NONE
    allow: Annotated[tuple[RuleText, ...], Limits(max_length=_MOST_RULES)] = ()
    """Rules, for `allow`. `default` among them stands for the default list, and `secrets` for the hosts of `secrets`.
    Empty: what the box's environment allows, or the default list where it has no policy of its own."""
    bandwidth: Annotated[int, Limits(ge=1024, lt=1 << 60, strict=True)] | None = None
    """Bytes per second, both ways together. None leaves it to the server."""
    connections: Annotated[int, Limits(ge=1, lt=1 << 31, strict=True)] | None = None
    """At once. None leaves it to the server."""
    secrets: Annotated[tuple[SecretUse, ...], Limits(max_length=_MOST_SECRETS)] = ()
    """The secrets that requests of the box may use, by name. `NAME:push` also allows git to push with it. The hosts
    that they are bound to need no rule."""

    def check(self) -> None:
        """Raises `InvalidSpec` if this is invalid."""
        if self.allow and self.mode is not Network.ALLOW:
            raise InvalidSpec(f"the box spec is invalid: network {self.mode}: a list of hosts goes with mode allow")
        if len(self.allow) > _MOST_RULES:
            raise InvalidSpec(f"the box spec is invalid: network: at most {_MOST_RULES} rules")
        self.rules()
        if len(self.secrets) > _MOST_SECRETS or not all(map(_SECRET_USE.fullmatch, self.secrets)):
            raise InvalidSpec(
                f"the box spec is invalid: network secrets {', '.join(self.secrets)[:200]!r}: up to {_MOST_SECRETS}"
                " names, such as TOKEN or TOKEN:push"
            )
        if len({use.partition(":")[0] for use in self.secrets}) < len(self.secrets):
            raise InvalidSpec("the box spec is invalid: network secrets: a name is given twice")
        for name, value, least in (("bandwidth", self.bandwidth, 1024), ("connections", self.connections, 1)):
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < least):
                raise InvalidSpec(f"the box spec is invalid: network {name} {value!r}: at least {least}")

    def rules(self) -> tuple[Rule, ...]:
        """Returns the listed rules. The caller adds the default list."""
        return tuple(Rule.parse(text) for text in self.allow if text not in (DEFAULT_LIST, SECRET_HOSTS))

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> NetworkPolicy:
        """Raises `KeyError`, `TypeError`, `ValueError` or `InvalidSpec` if it is invalid."""
        if unknown := sorted(set(document) - {"mode", "allow", "bandwidth", "connections", "secrets"}):
            raise InvalidSpec(f"a network policy has no {', '.join(unknown)}")
        policy = cls(
            Network(document["mode"]),
            tuple(_texts(document.get("allow") or ())),
            document.get("bandwidth"),
            document.get("connections"),
            tuple(_texts(document.get("secrets") or ())),
        )
        policy.check()
        return policy


def _texts(values: Iterable[Any]) -> Iterable[str]:
    if isinstance(values, str):
        raise TypeError("expected a list of texts")
    for value in values:
        if not isinstance(value, str):
            raise TypeError(f"{value!r} is not a text")
        yield value
