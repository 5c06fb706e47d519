"""The default list: what boxes reach that say no more than that they want a network."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from holdfast.boxes.network_policy import Rule

GIT_HOSTS: Final = (
    "github.com", "*.github.com", "*.githubusercontent.com", "gitlab.com", "bitbucket.org", "codeberg.org",
)  # fmt: skip
"""Code comes from there, and goes there by HTTPS."""


@dataclass(frozen=True, slots=True)
class Source:
    """Where a rule comes from."""

    rule: Rule
    why: str
    """Who named it: `pip`, `npm`, `apt`, `cargo`, `git`, `gateway`."""


@dataclass(frozen=True, slots=True)
class DefaultList:
    """As it was found on this machine. The registries are not written down here: `registries` asks for them."""

    sources: tuple[Source, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    """Of a box's processes, so that its clients use the registries that this machine's use. No secrets."""

    @property
    def rules(self) -> tuple[Rule, ...]:
        return tuple(dict.fromkeys(source.rule for source in self.sources))


def git_hosts() -> DefaultList:
    return DefaultList(tuple(Source(Rule.parse(host), "git") for host in GIT_HOSTS))
