"""Which packages a system is made of: what it must have, what was wanted, and what all of these need. Pure.

This is no package manager: it begins with nothing installed, so it has nothing to remove or to upgrade. It decides
plain needs before choices, so that a choice falls on what is there anyway.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable

from holdfast.images.debian.index import Package, PackageIndex, fulfils
from holdfast.images.debian.relations import Alternatives, Relation
from holdfast.images.errors import Unresolvable


def resolve(index: PackageIndex, wanted: Iterable[str]) -> list[Package]:
    """By name. Raises `Unresolvable` with the chain that leads to what cannot be had."""
    choice = _Choice(index)
    for name in wanted:
        choice.want(name)
    choice.settle()
    return choice.checked()


class _Choice:
    def __init__(self, index: PackageIndex) -> None:
        self._index = index
        self._chosen: dict[str, Package] = {}
        self._present: defaultdict[str, list[Package]] = defaultdict(list)
        """By their names and by what they provide."""
        self._unwanted: defaultdict[str, list[tuple[Package, Relation]]] = defaultdict(list)
        """What the chosen cannot be together with, by name."""
        self._because: dict[str, str | None] = {}
        self._plain: deque[tuple[Package, Alternatives]] = deque()
        self._open: deque[tuple[Package, Alternatives]] = deque()

    def want(self, name: str) -> None:
        for package in self._index.candidates(Relation(name)):
            self._take(package, None)
            return
        similar = self._index.similar(name)
        raise Unresolvable(
            f"there is no package {name}",
            hint=f"perhaps {' or '.join(similar)}" if similar else "check its name, and that the sources have it",
        )

    def settle(self) -> None:
        while self._plain or self._open:
            package, alternatives = (self._plain or self._open).popleft()
            if self._is_fulfilled(alternatives):
                continue
            found = [each for relation in alternatives for each in self._index.candidates(relation)]
            fitting = next((each for each in found if self._obstacle(each) is None), None)
            if fitting is None:
                raise self._failure(package, alternatives, found)
            self._take(fitting, package.name)

    def checked(self) -> list[Package]:
        """What was chosen first may conflict with what came later."""
        for package in self._chosen.values():
            if other := self._obstacle(package):
                raise Unresolvable(
                    f"{package} conflicts with {other}",
                    hint=f"leave one of them out: {self._chain(package.name)}; {self._chain(other.name)}",
                )
        return [self._chosen[name] for name in sorted(self._chosen)]

    def _take(self, package: Package, because: str | None) -> None:
        if package.name in self._chosen:
            return
        self._chosen[package.name] = package
        self._because[package.name] = because
        for name in {package.name, *(each.name for each in package.provides)}:
            self._present[name].append(package)
        for relation in package.conflicts:
            self._unwanted[relation.name].append((package, relation))
        for alternatives in package.depends:
            is_plain = len(alternatives) == 1 and self._index.get(alternatives[0].name) is not None
            (self._plain if is_plain else self._open).append((package, alternatives))

    def _is_fulfilled(self, alternatives: Alternatives) -> bool:
        for relation in alternatives:
            if any(fulfils(each, relation) for each in self._present.get(relation.name, ())):
                return True
        return False

    def _obstacle(self, package: Package) -> Package | None:
        """A chosen package that this one cannot be together with. None conflicts with what it provides itself."""
        for relation in package.conflicts:
            for other in self._present.get(relation.name, ()):
                if other.name != package.name and fulfils(other, relation):
                    return other
        for name in (package.name, *(each.name for each in package.provides)):
            for other, relation in self._unwanted.get(name, ()):
                if other.name != package.name and fulfils(package, relation):
                    return other
        return None

    def _failure(self, package: Package, alternatives: Alternatives, found: list[Package]) -> Unresolvable:
        wanted = " | ".join(str(each) for each in alternatives)
        if found:
            obstacle = self._obstacle(found[0])
            why = f"{found[0]} conflicts with {obstacle}"
        else:
            there = [each for relation in alternatives if (each := self._index.get(relation.name))]
            why = f"there is only {there[0]}" if there else "no source has it"
        return Unresolvable(
            f"{package} needs {wanted}, and {why}",
            hint=f"wanted because of {self._chain(package.name)}; check that the sources fit together",
        )

    def _chain(self, name: str) -> str:
        names: list[str] = []
        at: str | None = name
        while at is not None and at not in names:
            names.append(at)
            at = self._because.get(at)
        return " → ".join(reversed(names))
