"""A cache of what was used last. Whatever is in it can be lost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

V = TypeVar("V")


class Recent(Generic[V]):
    def __init__(self, most: int, *, weigh: Callable[[V], int] | None = None, heaviest: int = 0) -> None:
        """Values may grow while they are in it. All but the last together weigh `heaviest` at most, after each use."""
        self._most = most
        self._weigh = weigh
        self._heaviest = heaviest
        self._values: dict[str, V] = {}

    def get(self, key: str) -> V | None:
        return self._values.get(key)

    def set(self, key: str, value: V) -> None:
        self._values.pop(key, None)
        self._values[key] = value
        while len(self._values) > self._most:
            self._values.pop(next(iter(self._values)))
        if self._weigh is not None:
            self._make_lighter(self._weigh)

    def _make_lighter(self, weigh: Callable[[V], int]) -> None:
        weights = {key: weigh(value) for key, value in self._values.items()}
        total = sum(weights.values())
        for key in list(weights)[:-1]:
            if total <= self._heaviest:
                return
            total -= weights[key]
            del self._values[key]

    def get_or_make(self, key: str, make: Callable[[], V]) -> V:
        value = self._values[key] if key in self._values else make()
        self.set(key, value)
        return value
