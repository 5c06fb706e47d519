"""A cache of what was used last. Whatever is in it can be lost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

V = TypeVar("V")


class Recent(Generic[V]):
    def __init__(self, most: int) -> None:
        self._most = most
        self._values: dict[str, V] = {}

    def get(self, key: str) -> V | None:
        return self._values.get(key)

    def set(self, key: str, value: V) -> None:
        self._values.pop(key, None)
        self._values[key] = value
        while len(self._values) > self._most:
            self._values.pop(next(iter(self._values)))

    def get_or_make(self, key: str, make: Callable[[], V]) -> V:
        value = self._values[key] if key in self._values else make()
        self.set(key, value)
        return value
