"""What a file from a repository may decide by itself, and what a user has to grant. Pure.

Such a file is written by whoever can write to the repository. It runs with the rights of the user who launches a run,
so it may shape the box, but neither widen what the box can reach nor spend what is the user's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from holdfast.api.box.network import Network
from holdfast.api.run.checkpoints import CheckpointPolicy
from holdfast.environments.environment import Environment
from holdfast.repositories.address import without_user


class Right(StrEnum):
    FREE = "free"
    """The file decides. The box keeps what comes of it inside."""
    BOUNDED = "bounded"
    """The file decides up to a bound, and asks for more."""
    ASKS = "asks"
    """A user grants it, for exactly this text, or gives the value on the command line."""


RIGHTS: Final[Mapping[str, Right]] = {
    "name": Right.FREE,
    "setup": Right.FREE,
    "inputs": Right.FREE,
    "services": Right.FREE,
    "agent": Right.FREE,
    "test": Right.FREE,
    "budget": Right.FREE,  # it only lowers what a run may spend
    "checkpoints": Right.BOUNDED,
    "limits": Right.BOUNDED,
    "image": Right.BOUNDED,  # one that is there already: nothing is pulled for a file by itself
    "provider": Right.ASKS,  # another machine, perhaps one without isolation, perhaps one that costs money
    "repositories": Right.ASKS,  # cloned with the credentials of the user
    "models": Right.ASKS,  # paid by the user
    "secrets": Right.ASKS,
    "optional_secrets": Right.ASKS,
    "egress": Right.ASKS,  # the way out for the user's files
}
"""By field. Everything else, such as mounts, volumes and variables, is not a field of an environment at all."""

MOST_CPU: Final = 4.0
MOST_MEMORY: Final = 8 << 30
MOST_DISK: Final = 32 << 30
MOST_PIDS: Final = 4096
MOST_CHECKPOINTS: Final = CheckpointPolicy.parse("every keep=10 days=30 total=5G seconds=20 size=500M")


@dataclass(frozen=True, slots=True)
class Given:
    """What the user gives explicitly. It takes the place of what the file says, so the file need not ask for it."""

    agent: bool = False
    model: bool = False
    provider: bool = False
    image: bool = False
    network: bool = False
    cpu: bool = False
    memory: bool = False
    disk: bool = False
    pids: bool = False
    checkpoints: bool = False


def asks_of(environment: Environment, given: Given, *, pulls: bool = False) -> tuple[str, ...]:
    """Returns what a file asks for, one phrase each, in the order of the fields.

    `pulls` says that the provider would pull the image, from wherever its name leads.
    """
    asks: list[str] = []
    if environment.provider is not None and not given.provider:
        asks.append(f"provider {environment.provider}")
    if environment.image is not None and pulls and not given.image:
        asks.append(f"image {environment.image}, if it has to be pulled")
    asks += [f"a clone of {without_user(each.url)}" for each in environment.repositories]
    if environment.models and not given.model:
        asks.append(f"model {', '.join(environment.models)}")
    asks += [f"secret {name}" for name in environment.secrets]
    asks += [f"secret {name}, if there is one" for name in environment.optional_secrets]
    policy = environment.egress
    if policy is not None and policy.mode is not Network.NONE and not given.network:
        asks.append("network open" if policy.mode is Network.OPEN else f"network access to {', '.join(policy.allow)}")
    limits = environment.limits
    for name, value, most, shown, explicit in (
        ("cpu", limits.cpu, MOST_CPU, f"{limits.cpu} cores", given.cpu),
        ("memory", limits.memory, MOST_MEMORY, f"{(limits.memory or 0) >> 20} MB", given.memory),
        ("disk", limits.disk, MOST_DISK, f"{(limits.disk or 0) >> 20} MB", given.disk),
        ("pids", limits.pids, MOST_PIDS, f"{limits.pids}", given.pids),
    ):
        if value is not None and value > most and not explicit:
            asks.append(f"{name} {shown}")
    if environment.checkpoints is not None and not given.checkpoints:
        wanted, usual = CheckpointPolicy.parse(environment.checkpoints, MOST_CHECKPOINTS), MOST_CHECKPOINTS
        if (
            wanted.keep > usual.keep
            or wanted.days > usual.days
            or wanted.total > usual.total
            or wanted.seconds > usual.seconds
            or wanted.size > usual.size
        ):
            asks.append(f"checkpoints {environment.checkpoints}")
    return tuple(asks)
