"""What packages say of each other: depends, provides, conflicts. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from holdfast.images.debian.versions import satisfies

_RELATION: Final = re.compile(
    r"\s*(?P<name>[a-z0-9][a-z0-9+.-]*)(:(?P<qualifier>[a-z0-9-]+))?"
    r"(\s*\(\s*(?P<operator><<|<=|=|>=|>>|<|>)\s*(?P<version>[^\s)]+)\s*\))?"
    r"(\s*\[(?P<architectures>[^]]*)\])?(\s*<[^>]*>)*\s*"
)


@dataclass(frozen=True, slots=True)
class Relation:
    name: str
    operator: str = ""
    version: str = ""

    def takes(self, version: str | None) -> bool:
        """Whether this version will do. One that nobody tells (an unversioned `Provides`) will where none is asked."""
        if not self.operator:
            return True
        return version is not None and satisfies(version, self.operator, self.version)

    def __str__(self) -> str:
        return f"{self.name} ({self.operator} {self.version})" if self.operator else self.name


Alternatives = tuple[Relation, ...]


def parse_relations(text: str, architecture: str) -> tuple[Alternatives, ...]:
    """`a (>= 1), b | c`: every one of the outer, any one of the inner. Those of other architectures are left out.

    Raises `ValueError` for what cannot be read.
    """
    found = []
    for group in text.replace("\n", " ").split(","):
        if not group.strip():
            continue
        alternatives = []
        for each in group.split("|"):
            match = _RELATION.fullmatch(each)
            if match is None:
                raise ValueError(f"{each.strip()!r} is no relation between packages")
            if _is_for(match["architectures"], architecture):
                alternatives.append(Relation(match["name"], match["operator"] or "", match["version"] or ""))
        if alternatives:
            found.append(tuple(alternatives))
    return tuple(found)


def _is_for(architectures: str | None, architecture: str) -> bool:
    if architectures is None:
        return True
    names = architectures.split()
    if all(name.startswith("!") for name in names):
        return f"!{architecture}" not in names
    return architecture in names
