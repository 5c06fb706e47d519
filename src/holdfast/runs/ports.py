"""What runs need of others: models by name, agents in boxes, and the runner's code. Passed in, each of them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from holdfast.boxes.box import Box
from holdfast.egress.models.model import ModelChoice
from holdfast.harnesses.harness import Harness
from holdfast.model_apis import Api


class ModelNames(Protocol):
    def apis_of(self, wanted: str) -> tuple[Api, ...]:
        """What the model of a name speaks, also where it cannot be used yet. Raises an error with a code and a hint."""
        ...

    def resolve(self, wanted: str | None = None) -> ModelChoice:
        """The model of a name (`NAME` or `NAME/MODEL`), or the only one. Raises an error with a code and a hint."""
        ...


@dataclass(frozen=True, slots=True)
class Installed:
    """An agent in a box."""

    program: str
    """The folder that it was installed in."""
    node: str
    version: str | None


TellInstalling = Callable[[str, int | None], Awaitable[object]]
"""Of something that is being installed: what, and once it is there, how many milliseconds that took."""


class Agents(Protocol):
    def find(self, name: str) -> Harness:
        """Raises `UnknownAgent`."""
        ...

    async def ensure(self, box: Box, harness: Harness, tell: TellInstalling) -> Installed:
        """Have the agent in the box. Quick where it is there already; what has to be installed first is told."""
        ...


Pack = Callable[[Harness], bytes]
"""The code of a runner that reads what this agent prints, for a box."""
