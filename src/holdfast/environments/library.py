"""The environments of a server: stored, versioned, and found by name. Files of repositories are found by their text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from holdfast.api.environments import FILE_NAME
from holdfast.api.errors.environments import EnvironmentChanged, EnvironmentNotFound, InvalidEnvironment
from holdfast.environments.environment import Environment, digest_of
from holdfast.environments.parsing import parse_environment
from holdfast.environments.store import EnvironmentRow, EnvironmentStore

_MOST: Final = 1000


@dataclass(frozen=True, slots=True)
class FoundEnvironment:
    reference: str
    """`NAME@VERSION`, or `holdfast.toml` for a file."""
    digest: str
    environment: Environment
    trusted: bool
    """Whether it is on the server. A file from a repository is not."""
    allowed: bool
    """Whether it is trusted, or a user has allowed exactly this text at this place."""


class Environments:
    """Does not own its store."""

    def __init__(self, store: EnvironmentStore, clock: Callable[[], int]) -> None:
        self._store = store
        self._clock = clock

    async def save(self, name: str, text: str, *, by: str, after: int | None = None) -> EnvironmentRow:
        """Store a version, unless the latest one has the same text. Raises `EnvironmentChanged`."""
        environment = parse_environment(text)
        if environment.name is not None and environment.name != name:
            raise InvalidEnvironment(
                f"the text says name = {environment.name!r}, and it is stored as {name}",
                hint="use one name, or leave it out of the text",
            )
        latest = await self._store.get(name)
        digest = digest_of(text)
        if latest is not None and latest.digest == digest and after in (None, latest.version):
            return latest
        if latest is None and len(await self._store.latest()) >= _MOST:
            raise InvalidEnvironment(f"there are {_MOST} environments already", hint="remove those that are not used")
        row = await self._store.add(name, digest, text, by=by, now=self._clock(), after=after)
        if row is None:
            current = await self._store.get(name)
            raise EnvironmentChanged(
                f"{name} has version {0 if current is None else current.version} now, not {after}",
                hint=f"look at it with holdfast env show {name}, and edit that",
            )
        return row

    async def get(self, reference: str) -> EnvironmentRow:
        """Returns a version by `NAME` or `NAME@VERSION`. Raises `EnvironmentNotFound`."""
        name, _, version = reference.partition("@")
        row = await self._store.get(name, int(version) if version else None)
        if row is None:
            raise EnvironmentNotFound(f"there is no environment {reference}", hint="holdfast env list shows them all")
        return row

    async def versions(self, name: str) -> list[EnvironmentRow]:
        await self.get(name)
        return await self._store.versions(name)

    async def all(self) -> list[EnvironmentRow]:
        return await self._store.latest()

    async def remove(self, name: str) -> None:
        if not await self._store.remove(name):
            raise EnvironmentNotFound(f"there is no environment {name}", hint="holdfast env list shows them all")

    async def find(self, reference: str | None, text: str | None, place: str | None = None) -> FoundEnvironment:
        """Returns an environment of the server, or one of a file. Raises `InvalidEnvironment` if both are given.

        `place` is where the file is. Without one, nothing is allowed.
        """
        if (reference is None) == (text is None):
            raise InvalidEnvironment("give the name of an environment, or the text of a file, and not both")
        if reference is not None:
            row = await self.get(reference)
            return FoundEnvironment(
                f"{row.name}@{row.version}", row.digest, parse_environment(row.text), trusted=True, allowed=True
            )
        assert text is not None
        digest = digest_of(text)
        allowed = place is not None and await self._store.is_allowed(place, digest)
        return FoundEnvironment(FILE_NAME, digest, parse_environment(text), trusted=False, allowed=allowed)

    async def allow(self, text: str, place: str, *, by: str) -> str:
        """Allow a file at a place whatever it asks for, and no longer what an earlier text there asked for. Returns the
        digest of its text.
        """
        parse_environment(text)
        digest = digest_of(text)
        await self._store.allow(place, digest, by=by, now=self._clock())
        return digest

    async def disallow(self, place: str) -> bool:
        return await self._store.disallow(place)
