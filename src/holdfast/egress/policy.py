"""Decides by name whether a request may leave a box. Pure decisions; `addresses` checks addresses later."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

from holdfast.api.box.network import DEFAULT_LIST, Network, NetworkPolicy, Rule

WEB_PORTS: Final = (80, 443)
"""The ports of a rule that names none."""
CONNECT: Final = "CONNECT"


@dataclass(frozen=True, slots=True)
class Target:
    """What a box wants to reach."""

    host: str
    """A name in lower case without a last dot, or an IP address in canonical form."""
    port: int
    method: str
    """`CONNECT` for a tunnel, whose content is encrypted."""

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Ruling:
    allowed: bool
    why: str
    """The rule that allows it, or the reason why it is denied."""


@dataclass(frozen=True, slots=True)
class Allowance:
    """What a box may reach, from its own policy, its environment's and the default list."""

    mode: Network
    rules: tuple[Rule, ...] = ()

    def judge(self, target: Target) -> Ruling:
        if self.mode is Network.NONE:
            return Ruling(False, "this box has no network")
        if self.mode is Network.OPEN:
            return Ruling(True, "open")
        nearly: str | None = None
        for rule in self.rules:
            if not host_matches(rule.host, target.host):
                continue
            if target.port not in (rule.ports or WEB_PORTS):
                nearly = f"rule {rule} does not cover port {target.port}"
            elif rule.methods and target.method == CONNECT:
                nearly = f"rule {rule} is for some methods only, and the method of an HTTPS request is encrypted"
            elif rule.methods and target.method not in rule.methods:
                nearly = f"rule {rule} does not cover {target.method}"
            else:
                return Ruling(True, str(rule))
        return Ruling(False, nearly or f"no rule covers {target.host}")


def host_matches(pattern: str, host: str) -> bool:
    """`*.example.com` matches all names below example.com, but not itself. An address matches only itself, a range the
    addresses in it.
    """
    if "/" in pattern:
        return _in_range(pattern, host)
    if pattern.startswith("*."):
        return host.endswith(pattern[1:]) and len(host) > len(pattern) - 1
    return pattern == host


@lru_cache(maxsize=4096)
def _in_range(network: str, host: str) -> bool:
    try:
        return ipaddress.ip_address(host) in ipaddress.ip_network(network)
    except ValueError:
        return False  # a name


def allowance(policy: NetworkPolicy, environment: NetworkPolicy | None, defaults: Iterable[Rule]) -> Allowance:
    """Returns what a box may reach. If its policy lists no hosts, the environment's or the default list applies."""
    if policy.mode is not Network.ALLOW:
        return Allowance(policy.mode)
    if not policy.allow:
        if environment is not None and (environment.mode is not Network.ALLOW or environment.allow):
            return allowance(environment, None, defaults)
        return Allowance(Network.ALLOW, tuple(defaults))
    rules = policy.rules()
    return Allowance(Network.ALLOW, (*rules, *defaults) if DEFAULT_LIST in policy.allow else rules)


# --- the default list ---

GIT_HOSTS: Final = (
    "github.com", "*.github.com", "*.githubusercontent.com", "gitlab.com", "bitbucket.org", "codeberg.org",
)  # fmt: skip
"""Hosts of git repositories, reached by HTTPS."""


@dataclass(frozen=True, slots=True)
class Source:
    """Where a rule comes from."""

    rule: Rule
    why: str
    """The client that uses it: `pip`, `npm`, `apt`, `cargo`, `git` or `gateway`."""


@dataclass(frozen=True, slots=True)
class DefaultList:
    """The default list of this machine. `registries` finds out which package registries it uses."""

    sources: tuple[Source, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables that make clients in a box use the registries of this machine. No secrets."""
    registries: tuple[str, ...] = ()
    """URLs of servers that pip and npm get packages from, without credentials."""
    indexes: Mapping[str, str] = field(default_factory=dict)
    """The index that `pip` and `npm` use on this machine if nothing is configured."""

    @property
    def rules(self) -> tuple[Rule, ...]:
        return tuple(dict.fromkeys(source.rule for source in self.sources))


def git_hosts() -> DefaultList:
    return DefaultList(tuple(Source(Rule.parse(host), "git") for host in GIT_HOSTS))
