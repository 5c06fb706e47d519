"""The providers of a service, by name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from holdfast.api.box.spec import BoxSpec
from holdfast.api.errors.boxes import Unsupported
from holdfast.boxes.capabilities import Capability, needed, require
from holdfast.boxes.labels import refuse_reserved
from holdfast.boxes.provider import Provider


class Providers(Mapping[str, Provider]):
    """Does not own the providers. The caller that opened them closes them."""

    def __init__(self, providers: Mapping[str, Provider]) -> None:
        self._providers = dict(providers)

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
            raise Unsupported(f"there is no provider {name}", hint=f"use one of: {known}") from None

    def for_spec(self, spec: BoxSpec, *more: Capability) -> Provider:
        """Returns the provider of a spec. Raises `Unsupported` if it cannot create such a box."""
        refuse_reserved(spec.labels)
        provider = self.named(spec.provider)
        provider.check_usable()
        require(provider.name, provider.capabilities, *needed(spec), *more)
        return provider
