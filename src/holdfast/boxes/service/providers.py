"""The providers of a service, by name. They come and go while it runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from holdfast.api.box.spec import BoxSpec
from holdfast.api.errors.boxes import BoxConflict, BoxUnreachable, Unsupported
from holdfast.boxes.capabilities import Capability, needed, require
from holdfast.boxes.labels import refuse_reserved
from holdfast.boxes.provider import Provider
from holdfast.boxes.rows import BoxRow


class Providers(Mapping[str, Provider]):
    """Does not own the providers. The caller that opened them closes them."""

    def __init__(self, providers: Mapping[str, Provider]) -> None:
        self._providers = dict(providers)
        self._creating: Counter[str] = Counter()
        """How many boxes are being created now, by provider."""
        self._closed: set[str] = set()
        """Providers that take no new boxes now."""

    def __getitem__(self, name: str) -> Provider:
        return self._providers[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._providers)

    def __len__(self) -> int:
        return len(self._providers)

    def named(self, name: str) -> Provider:
        """Raises `Unsupported` if there is no provider of that name."""
        try:
            return self._providers[name]
        except KeyError:
            known = ", ".join(sorted(self._providers)) or "none"
            hint = f"use one of: {known}; or add an account of that name: holdfast provider add {name} --kind KIND"
            raise Unsupported(f"there is no provider {name}", hint=hint) from None

    def of(self, row: BoxRow) -> Provider:
        """Returns the provider of a box. Raises `BoxUnreachable` if this server does not have it."""
        try:
            return self._providers[row.provider]
        except KeyError:
            raise BoxUnreachable(
                f"box {row.id} is at the provider {row.provider}, which this server does not have",
                hint=f"add its account again: holdfast provider add {row.provider}",
            ) from None

    def for_spec(self, spec: BoxSpec, *more: Capability) -> Provider:
        """Returns the provider of a spec. Raises `Unsupported` if it cannot create such a box."""
        refuse_reserved(spec.labels)
        provider = self.named(spec.provider)
        provider.check_usable()
        require(provider.name, provider.capabilities, *needed(spec), *more)
        return provider

    # --- coming and going ---

    def put(self, name: str, provider: Provider) -> None:
        """Add a provider, or put it in the place of the one of that name."""
        self._providers = {**self._providers, name: provider}  # a new one: others may be iterating

    def take_out(self, name: str) -> None:
        self._providers = {each: provider for each, provider in self._providers.items() if each != name}

    @contextmanager
    def creating(self, name: str, provider: Provider) -> Iterator[None]:
        """A box is being created at this provider, which was looked up before. Raises `BoxConflict` if that is no
        longer the provider of this name, or is about to go.
        """
        if self._providers.get(name) is not provider or name in self._closed:
            raise BoxConflict(f"provider {name} is being changed", hint="try again in a moment")
        self._creating[name] += 1
        try:
            yield
        finally:
            self._creating[name] -= 1

    @contextmanager
    def closed(self, name: str) -> Iterator[None]:
        """No box is created at this provider meanwhile. Raises `BoxConflict` if one is being created now."""
        if self._creating[name]:
            raise BoxConflict(f"a box is being created at provider {name}", hint="try again in a moment")
        self._closed.add(name)
        try:
            yield
        finally:
            self._closed.discard(name)
