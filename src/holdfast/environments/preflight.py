"""What a server lacks for an environment, all of it at once. Decisions only: `Known` tells what there is."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Final, Protocol

from holdfast.api.box.network import Network
from holdfast.api.environments import Gap, GapKind
from holdfast.boxes.capabilities import Capability
from holdfast.environments.environment import Environment
from holdfast.environments.grants import Given

_NETWORKS: Final = {
    Network.NONE: Capability.NETWORK_NONE,
    Network.ALLOW: Capability.NETWORK_ALLOW,
    Network.OPEN: Capability.NETWORK_OPEN,
}


@dataclass(frozen=True, slots=True)
class Problem:
    """Why something cannot be used, and what to do."""

    message: str
    next_step: str


class Known(Protocol):
    """What a server has."""

    def capabilities(self, provider: str) -> Collection[Capability] | Problem: ...

    def agent(self, name: str) -> Problem | None: ...

    def model(self, name: str, agent: str | None) -> Problem | None:
        """`agent` has to be able to use it, if there is one."""
        ...

    def only_model(self) -> Problem | None:
        """Returns why a run has to name its model, if it has to."""
        ...

    def has_secret(self, name: str) -> bool: ...


def find_gaps(
    environment: Environment,
    known: Known,
    given: Given,
    *,
    missing_image: Problem | None = None,
    asks: tuple[str, ...] = (),
    allow: str = "holdfast env allow --yes",
    agent: str | None = None,
    models: tuple[str, ...] = (),
) -> tuple[Gap, ...]:
    """`asks` are what nobody has granted yet. `agent` and `models` are checked in place of those of the environment.
    Without them, what the caller gives is not looked for.
    """
    return tuple(_gaps(environment, known, given, missing_image, asks, allow, agent, models))


def _gaps(
    environment: Environment,
    known: Known,
    given: Given,
    missing_image: Problem | None,
    asks: tuple[str, ...],
    allow: str,
    agent: str | None,
    models: tuple[str, ...],
) -> Iterator[Gap]:
    for ask in asks:
        yield _gap(GapKind.CONSENT, ask, Problem(f"the file asks for {ask}, and nobody has allowed that", allow))
    if not given.provider:
        yield from _provider_gaps(environment, known, given)
    if missing_image is not None and not given.image:
        yield _gap(GapKind.IMAGE, environment.image or "", missing_image)
    agent = agent or (None if given.agent else environment.agent)
    if agent is not None:
        if (problem := known.agent(agent)) is not None:
            yield _gap(GapKind.AGENT, agent, problem)
    elif not given.agent:
        missing = Problem("the environment names no agent", 'give --agent NAME, or write agent = "NAME"')
        yield _gap(GapKind.AGENT, "", missing)
    models = models or (() if given.model else environment.models)
    problems = [(name, known.model(name, agent)) for name in models]
    usable = any(problem is None for _, problem in problems)
    for name, problem in problems:
        if problem is not None:
            yield _gap(GapKind.MODEL, name, problem, required=not usable)
    if not models and not given.model and (problem := known.only_model()) is not None:
        yield _gap(GapKind.MODEL, "", problem)
    for names, required in ((environment.secrets, True), (environment.optional_secrets, False)):
        for use in names:
            name = use.partition(":")[0]
            if not known.has_secret(name):
                what = Problem(f"there is no secret {name}", f"holdfast secret set {name} --host HOST")
                yield _gap(GapKind.SECRET, name, what, required=required)


def _provider_gaps(environment: Environment, known: Known, given: Given) -> Iterator[Gap]:
    provider = environment.provider or "local"
    can = known.capabilities(provider)
    if isinstance(can, Problem):
        yield _gap(GapKind.PROVIDER, provider, can)
        return
    limits = environment.limits
    wanted = {
        Capability.IMAGES: environment.image is not None and not given.image,
        Capability.SNAPSHOTS: bool(environment.setup),
        Capability.SECRETS: bool(environment.secrets or environment.optional_secrets),
        Capability.CPU_LIMIT: limits.cpu is not None and not given.cpu,
        Capability.MEMORY_LIMIT: limits.memory is not None and not given.memory,
        Capability.DISK_LIMIT: limits.disk is not None and not given.disk,
        Capability.PIDS_LIMIT: limits.pids is not None and not given.pids,
    }
    if environment.egress is not None and not given.network:
        wanted[_NETWORKS[environment.egress.mode]] = True
    for capability, asked in wanted.items():
        if asked and capability not in can:
            message = f"provider {provider} does not support {capability.value}, which {_USED_BY[capability]} needs"
            yield _gap(
                GapKind.CAPABILITY, capability.value, Problem(message, "use another provider, or leave the field out")
            )


_USED_BY: Final = {
    Capability.IMAGES: "image",
    Capability.SNAPSHOTS: "setup",
    Capability.SECRETS: "secrets",
    Capability.CPU_LIMIT: "limits.cpu",
    Capability.MEMORY_LIMIT: "limits.memory",
    Capability.DISK_LIMIT: "limits.disk",
    Capability.PIDS_LIMIT: "limits.pids",
    Capability.NETWORK_NONE: "egress",
    Capability.NETWORK_ALLOW: "egress",
    Capability.NETWORK_OPEN: "egress",
}


def _gap(kind: GapKind, name: str, problem: Problem, *, required: bool = True) -> Gap:
    return Gap(kind=kind, name=name, message=problem.message, next_step=problem.next_step, required=required)
