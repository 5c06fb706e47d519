"""The plan of a launch: which agent, which model, and what they speak. Made once, and carried down to every step."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from holdfast.api.box.spec import OnIdle
from holdfast.api.errors.agents import ModelNotSpoken
from holdfast.api.model_apis import Api, shared
from holdfast.boxes.capabilities import Capability
from holdfast.boxes.service.boxes import Boxes
from holdfast.egress.models.model import Model, ModelChoice
from holdfast.harnesses.harness import Harness
from holdfast.runs.launch.agents import Agents
from holdfast.runs.launch.request import Options


class ModelNames(Protocol):
    """Models by name."""

    def apis_of(self, wanted: str) -> tuple[Api, ...]:
        """Returns what the model of a name speaks, even if it cannot be used yet. Raises an error with a code and a
        hint."""
        ...

    def resolve(self, wanted: str | None = None) -> ModelChoice:
        """Returns the model of a name (`NAME` or `NAME/MODEL`), or the only one. Raises an error with a code and a
        hint."""
        ...


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """What a run is launched with."""

    options: Options
    """With the names of the agent and the model, and a spec that the provider can fulfil."""
    harness: Harness
    model: ModelChoice
    api: Api
    """What the agent and the model speak with each other."""


class LaunchPlanner:
    """Makes plans, and launches nothing."""

    def __init__(self, agents: Agents, models: ModelNames, boxes: Boxes) -> None:
        self._agents = agents
        self._models = models
        self._boxes = boxes

    def plan(self, options: Options) -> LaunchPlan:
        """Raises the error that says which of agent, model and box cannot be had, before anything is made."""
        harness = self._agents.find(options.agent)
        if options.model is not None:
            # First: nobody should fetch a key for a model that this agent cannot use.
            _spoken(harness, options.model, self._models.apis_of(options.model))
        model = self._models.resolve(options.model)
        api = _spoken(harness, str(model), model.apis)
        named = replace(options, agent=harness.agent, model=str(model))
        return LaunchPlan(self.fit(named), harness, model, api)

    def fit(self, options: Options) -> Options:
        """Returns options that the provider can fulfil. Raises if it cannot."""
        spec = options.box
        can = self._boxes.provider(spec.provider).capabilities
        if spec.on_idle is OnIdle.HIBERNATE and not {Capability.STOP, Capability.SNAPSHOTS} <= can:
            spec = replace(spec, on_idle=OnIdle.KEEP)
        self._boxes.check(spec)
        return replace(options, spec=spec)


@dataclass(frozen=True, slots=True)
class Offer:
    """A model that an agent can be used with."""

    model: Model
    api: Api
    """What the two would speak."""


def offers(apis: Iterable[Api], models: Iterable[Model]) -> tuple[Offer, ...]:
    """Returns the models for an agent that speaks these APIs, in the order given."""
    spoken = tuple(apis)
    found = ((model, shared(spoken, model.apis)) for model in models)
    return tuple(Offer(model, api) for model, api in found if api is not None)


def _spoken(harness: Harness, model: str, apis: Sequence[Api]) -> Api:
    api = shared(harness.apis, apis)
    if api is None:
        raise ModelNotSpoken(
            f"{harness.title} speaks {', '.join(harness.apis)}, and {model} speaks {', '.join(apis)}",
            hint="use another model, or another agent: holdfast model list shows what each speaks",
        )
    return api
