"""The packages that sources have, by name and by what they provide. Pure.

An index has tens of thousands of packages, of which a few hundred are looked at: a stanza stays text until then.
"""

from __future__ import annotations

import posixpath
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from holdfast.images.debian.control import stanza
from holdfast.images.debian.relations import Alternatives, Relation, parse_relations
from holdfast.images.debian.versions import compare
from holdfast.images.errors import MirrorFailed

_SHA256: Final = re.compile(r"[0-9a-f]{64}")
_LARGEST: Final = 4 * 1024**3
_PRIORITIES: Final = ("required", "important", "standard", "optional", "extra")


@dataclass(frozen=True, slots=True)
class Package:
    name: str
    version: str
    architecture: str
    priority: str
    essential: bool
    depends: tuple[Alternatives, ...]
    """What it needs, before it is unpacked or after."""
    conflicts: tuple[Relation, ...]
    """What it cannot be together with, or breaks."""
    provides: tuple[Relation, ...]
    replaces: tuple[Relation, ...]
    """Whose files it may take over."""
    url: str
    size: int
    sha256: str
    installed_size: int
    """Bytes, about."""

    @property
    def rank(self) -> int:
        """The lower, the more it belongs to every system."""
        return _PRIORITIES.index(self.priority) if self.priority in _PRIORITIES else len(_PRIORITIES)

    def __str__(self) -> str:
        return f"{self.name} {self.version}"


@dataclass(frozen=True, slots=True)
class _Entry:
    """A package that nobody has looked at yet."""

    text: str
    version: str
    mirror: str


class PackageIndex:
    """Of one architecture. Where several sources have a package, its latest version counts."""

    def __init__(self, architecture: str) -> None:
        self.architecture = architecture
        self._entries: dict[str, _Entry] = {}
        self._providers: defaultdict[str, set[str]] = defaultdict(set)
        self._read: dict[str, Package] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, packages: str, mirror: str) -> None:
        """All of a `Packages` file, of the mirror with this URL."""
        for text in packages.split("\n\n"):
            text = text.strip("\n")
            name, version = _field(text, "Package"), _field(text, "Version")
            if not name or not version or _field(text, "Architecture") not in (self.architecture, "all"):
                continue
            known = self._entries.get(name)
            if known is not None and compare(known.version, version) >= 0:
                continue
            self._entries[name] = _Entry(text, version, mirror)
            self._read.pop(name, None)
            for provided in _field(text, "Provides").split(","):
                if provided.strip():
                    self._providers[provided.split("(")[0].split(":")[0].strip()].add(name)

    def get(self, name: str) -> Package | None:
        if name not in self._read and name in self._entries:
            self._read[name] = _read(self._entries[name], self.architecture)
        return self._read.get(name)

    def candidates(self, relation: Relation) -> Iterator[Package]:
        """What fulfils a relation: the package itself first, then those that provide it, what is most usual first."""
        package = self.get(relation.name)
        if package is not None and relation.takes(package.version):
            yield package
        found = [self.get(name) for name in self._providers.get(relation.name, ()) if name != relation.name]
        providers = [each for each in found if each is not None and fulfils(each, relation)]
        yield from sorted(providers, key=lambda each: (each.rank, each.name))

    def essential(self) -> list[str]:
        """Names of what every system has: essential packages, and those of priority required."""
        return sorted(
            name
            for name, entry in self._entries.items()
            if _field(entry.text, "Essential") == "yes" or _field(entry.text, "Priority") == "required"
        )

    def similar(self, name: str) -> list[str]:
        """Names that somebody may have meant."""
        import difflib

        return difflib.get_close_matches(name, self._entries, n=3, cutoff=0.8)


def fulfils(package: Package, relation: Relation) -> bool:
    if package.name == relation.name and relation.takes(package.version):
        return True
    return any(each.name == relation.name and relation.takes(each.version or None) for each in package.provides)


def _field(text: str, name: str) -> str:
    """The first line of a field, read off the text: a hundred times as fast as parsing all of it."""
    start = 0 if text.startswith(f"{name}: ") else text.find(f"\n{name}: ") + 1
    if start == 0 and not text.startswith(f"{name}: "):
        return ""
    start += len(name) + 2
    end = text.find("\n", start)
    return text[start : end if end >= 0 else len(text)].strip()


def _read(entry: _Entry, architecture: str) -> Package:
    fields = stanza(entry.text)
    name = fields.get("package", "")
    try:
        relations = {
            each: parse_relations(fields.get(each, ""), architecture)
            for each in ("pre-depends", "depends", "conflicts", "breaks", "provides", "replaces")
        }
        size = int(fields["size"])
        sha256 = fields["sha256"].lower()
        filename = posixpath.normpath(fields["filename"])
        installed = int(fields.get("installed-size") or 0) * 1024
    except (KeyError, ValueError) as error:
        raise MirrorFailed(f"what {entry.mirror} says of package {name} makes no sense: {error}") from None
    if not _SHA256.fullmatch(sha256) or not 0 < size <= _LARGEST or filename.startswith(("/", "..")):
        raise MirrorFailed(f"what {entry.mirror} says of package {name} makes no sense: its file, size or checksum")
    return Package(
        name=name,
        version=entry.version,
        architecture=fields.get("architecture", ""),
        priority=fields.get("priority", ""),
        essential=fields.get("essential", "") == "yes",
        depends=relations["pre-depends"] + relations["depends"],
        conflicts=_flat(relations["conflicts"] + relations["breaks"]),
        provides=_flat(relations["provides"]),
        replaces=_flat(relations["replaces"]),
        url=f"{entry.mirror.rstrip('/')}/{filename}",
        size=size,
        sha256=sha256,
        installed_size=installed,
    )


def _flat(groups: tuple[Alternatives, ...]) -> tuple[Relation, ...]:
    return tuple(each for group in groups for each in group)
