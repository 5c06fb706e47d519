"""The default list: what a box may reach if its policy allows a network but lists no hosts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from holdfast.api.box.network import Rule

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

    @property
    def rules(self) -> tuple[Rule, ...]:
        return tuple(dict.fromkeys(source.rule for source in self.sources))


def git_hosts() -> DefaultList:
    return DefaultList(tuple(Source(Rule.parse(host), "git") for host in GIT_HOSTS))
