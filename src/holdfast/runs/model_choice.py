"""Which models an agent can be used with: those that speak an API of its own."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from holdfast.egress.models.model import Model
from holdfast.model_apis import Api, shared


@dataclass(frozen=True, slots=True)
class Offer:
    """A model, for one agent."""

    model: Model
    api: Api
    """What the two would speak."""


def offers(apis: Iterable[Api], models: Iterable[Model]) -> tuple[Offer, ...]:
    """What is there for an agent that speaks these APIs, in the order of the models."""
    spoken = tuple(apis)
    found = ((model, shared(spoken, model.apis)) for model in models)
    return tuple(Offer(model, api) for model, api in found if api is not None)
