"""Prices of models, and what a call costs. `prices.json` has those that are shipped; a server's own are in its store.

A price that is not known is None everywhere, and never zero. A model of your own server that costs nothing has the
price 0 once you say so.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping
from functools import cache
from importlib import resources
from types import TracebackType
from typing import Final, Protocol, Self

import orjson

from holdfast.api.errors.models import InvalidModel, ModelNotFound
from holdfast.api.ids import now_ms
from holdfast.api.model.models import Price
from holdfast.threads.model_events import MOST_NANOS, Usage

_DATE: Final = re.compile(r"-(20\d{6}|20\d\d-\d\d-\d\d)$")
"""At the end of a model's name: a snapshot, which costs what its model costs."""
_MOST: Final = 10_000
_NANOS_PER_TOKEN: Final = 1000
"""Of a price of one dollar for a million tokens."""


def cost_of(price: Price, usage: Usage) -> int:
    """Returns the cost of a call in billionths of a dollar. Cached tokens without a price cost what others do."""
    rates: Price = price
    above = price.above
    if above is not None and usage.input + usage.cache_read + usage.cache_write > above.tokens:
        rates = Price(
            input=above.input,
            output=above.output,
            cache_read=above.cache_read,
            cache_write=above.cache_write,
        )
    read = rates.input if rates.cache_read is None else rates.cache_read
    write = rates.input if rates.cache_write is None else rates.cache_write
    hour = write if rates.cache_write_1h is None else rates.cache_write_1h
    total = (
        usage.input * rates.input
        + usage.output * rates.output
        + usage.cache_read * read
        + (usage.cache_write - usage.cache_write_1h) * write
        + usage.cache_write_1h * hour
    )
    return min(round(total * _NANOS_PER_TOKEN), MOST_NANOS)


@cache
def shipped_prices() -> Mapping[str, Price]:
    """Returns the prices that come with this release, by `NAME/MODEL` of built-in providers."""
    text = resources.files(__package__).joinpath("prices.json").read_bytes()
    listed = orjson.loads(text)["prices"]
    return {model: price_of(price) for model, price in listed.items()}


def price_of(value: Mapping[str, object]) -> Price:
    """Returns a price from the names of `prices.json`."""
    above = value.get("above")
    plain = {name: each for name, each in value.items() if name != "above"}
    if isinstance(above, Mapping):
        return Price.from_json({**_camel(plain), "above": _camel(above)})
    return Price.from_json(_camel(plain))


def _camel(value: Mapping[str, object]) -> dict[str, object]:
    names = {"cache_read": "cacheRead", "cache_write": "cacheWrite", "cache_write_1h": "cacheWrite1h"}
    return {names.get(name, name): each for name, each in value.items()}


def find_shipped(model: str) -> Price | None:
    """Returns the shipped price of `NAME/MODEL`, or of the model of which it is a dated snapshot."""
    known = shipped_prices()
    return known.get(model) or known.get(_DATE.sub("", model))


class PriceStore(Protocol):
    """The prices that were set on a server, by `NAME/MODEL`. What `put` and `remove` have returned from is on disk."""

    async def load_all(self) -> dict[str, str]:
        """Returns JSON by model."""
        ...

    async def put(self, model: str, price: str, now: int) -> None: ...

    async def remove(self, model: str) -> bool:
        """Remove a price. Returns whether there was one."""
        ...


class Prices:
    """All prices of a server, in a store and in memory. `async with` loads them."""

    def __init__(self, store: PriceStore, *, clock: Callable[[], int] = now_ms) -> None:
        self._store = store
        self._clock = clock
        self._own: dict[str, Price] = {}
        self._changing = asyncio.Lock()

    async def __aenter__(self) -> Self:
        self._own = {
            model: Price.from_json(orjson.loads(text)) for model, text in (await self._store.load_all()).items()
        }
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Does not close the store, which its owner closes."""

    def find(self, model: str) -> Price | None:
        """Returns the price of `NAME/MODEL`, or None if it is unknown."""
        return self._own.get(model) or find_shipped(model)

    def is_own(self, model: str) -> bool:
        """Whether the price was set on this server."""
        return model in self._own

    def cost(self, model: str, usage: Usage, reported: int | None = None) -> int | None:
        """Returns the cost of a call in billionths of a dollar, or None if it is unknown.

        What you set counts most, then what the provider says that it charged, then the shipped price.
        """
        own = self._own.get(model)
        if own is not None:
            return cost_of(own, usage)
        if reported is not None:
            return reported
        price = find_shipped(model)
        return None if price is None else cost_of(price, usage)

    def all(self) -> dict[str, Price]:
        """Returns all known prices by model, sorted."""
        known = {**shipped_prices(), **self._own}
        return {model: known[model] for model in sorted(known)}

    async def put(self, model: str, price: Price) -> None:
        async with self._changing:
            if model not in self._own and len(self._own) >= _MOST:
                raise InvalidModel(f"there are {_MOST} prices already", hint="remove prices that are not needed")
            await self._store.put(model, orjson.dumps(price.to_json()).decode(), self._clock())
            self._own[model] = price

    async def remove(self, model: str) -> None:
        """Remove a price that was set here. The shipped one, if there is one, counts again."""
        async with self._changing:
            if not await self._store.remove(model):
                raise ModelNotFound(f"no price of {model[:80]!r} was set here", hint="holdfast model price lists all")
            self._own.pop(model, None)
