"""Environments of a server: what a request for a run becomes with one, what is missing for it, and its setup."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from holdfast.api.box.network import Network, NetworkPolicy
from holdfast.api.box.spec import BoxSpec
from holdfast.api.environments import (
    BuildEnvironment,
    CheckEnvironment,
    EnvironmentBuild,
    EnvironmentCheck,
    EnvironmentConsent,
    EnvironmentUse,
    Gap,
    GapKind,
)
from holdfast.api.errors import HoldfastError
from holdfast.api.errors.boxes import ImageNotFound
from holdfast.api.errors.environments import (
    EnvironmentIncomplete,
    EnvironmentNotAllowed,
    InvalidEnvironment,
    SetupFailed,
)
from holdfast.api.errors.runs import InvalidRun
from holdfast.api.errors.secrets import SecretMissing
from holdfast.api.model.models import shared
from holdfast.api.progress import Progress
from holdfast.api.run.repositories import ClonedRepository
from holdfast.api.run.runs import NewRun, RunBox, WantedRun
from holdfast.boxes.capabilities import Capability
from holdfast.boxes.images import would_pull
from holdfast.environments.environment import Environment
from holdfast.environments.grants import Given, asks_of
from holdfast.environments.inputs import NO_INPUTS, read_inputs
from holdfast.environments.library import Environments, FoundEnvironment
from holdfast.environments.preflight import Problem, find_gaps
from holdfast.environments.setup import Setups, WantedSetup
from holdfast.runs.launch.plan import with_life

if TYPE_CHECKING:
    from holdfast.boxes.service.boxes import Boxes
    from holdfast.egress.models import Models
    from holdfast.environments.secrets import Secrets
    from holdfast.harnesses.harness import Harness
    from holdfast.runs.workspace.store import Workspaces

_NO_SECRETS: Final[Mapping[str, tuple[str, ...]]] = {}
_LARGEST_KEPT: Final = 24 * 1024
"""The options of a run have a bound on the thread."""


class ServerKnown:
    """What a server has, for the preflight."""

    def __init__(
        self,
        boxes: Boxes,
        models: Models,
        find_agent: Callable[[str], Harness],
        secrets: Secrets,
    ) -> None:
        self._boxes = boxes
        self._models = models
        self._find_agent = find_agent
        self._secrets = secrets

    def has_secret(self, name: str) -> bool:
        return self._secrets.exists(name)

    def hosts_of(self, secret: str) -> tuple[str, ...]:
        """Returns the hosts that a secret may be sent to, as rules."""
        found = self._secrets.find(secret)
        hosts = () if found is None else (each.host for each in found.bindings)
        return tuple(each if ":" in each else f"{each}:443" for each in hosts)

    def capabilities(self, provider: str) -> Collection[Capability] | Problem:
        try:
            found = self._boxes.provider(provider)
            found.check_usable()
            return found.capabilities
        except HoldfastError as error:
            return _problem(error, "holdfast provider list shows the providers")

    def agent(self, name: str) -> Problem | None:
        try:
            self._find_agent(name)
        except HoldfastError as error:
            return _problem(error, "holdfast agent list shows the agents")
        return None

    def model(self, name: str, agent: str | None) -> Problem | None:
        try:
            choice = self._models.resolve(name)
            harness = None if agent is None else self._find_agent(agent)
        except HoldfastError as error:
            return _problem(error, "holdfast model list shows the models")
        if harness is not None and shared(harness.apis, choice.apis) is None:
            return Problem(f"{harness.title} does not speak the API of {choice}", "use another model, or another agent")
        return None

    def only_model(self) -> Problem | None:
        try:
            self._models.resolve(None)
        except HoldfastError as error:
            return _problem(error, "holdfast model list shows the models")
        return None


@dataclass(frozen=True, slots=True)
class _Checked:
    found: FoundEnvironment
    gaps: tuple[Gap, ...]
    asks: tuple[str, ...]
    """What nobody has granted yet."""


class ServerEnvironments:
    """Does not own its parts."""

    def __init__(
        self, library: Environments, setups: Setups, boxes: Boxes, known: ServerKnown, workspaces: Workspaces
    ) -> None:
        self.library = library
        self.setups = setups
        self._boxes = boxes
        self._known = known
        self._workspaces = workspaces

    # --- runs ---

    async def apply(self, new: NewRun) -> tuple[NewRun, EnvironmentUse | None]:
        """Returns the request with what its environment adds, and what the run keeps of it.

        Raises if the server lacks something that the environment requires. Creates nothing.
        """
        if new.environment is None and new.environment_file is None:
            return new, None
        found, use, merged_with = await self._apply(new)
        if new.workspace is not None or new.thread is None:  # otherwise, the thread has its files already
            use = replace(use, repositories=repositories_of(found, new.repositories))
        check_length(use)
        return merged_with, use

    async def _apply(self, new: NewRun) -> tuple[FoundEnvironment, EnvironmentUse, NewRun]:
        provider = None if new.box is None else new.box.provider
        checked = await self._check(
            new.environment, new.environment_file, new.environment_place, given_by(new), provider
        )
        refuse_gaps(checked.found.reference, checked.gaps)
        missing = frozenset(each.name for each in checked.gaps if each.kind is GapKind.SECRET)
        environment = checked.found.environment
        wanted = [each for each in _secrets_of(environment) if each.partition(":")[0] not in missing]
        secrets = {each: self._known.hosts_of(each.partition(":")[0]) for each in wanted}
        return checked.found, use_of(checked.found, checked.gaps, new.box), merged(environment, new, secrets)

    async def apply_to_check(self, wanted: WantedRun) -> WantedRun:
        """As `apply`, before there are files: repositories are cloned after this check, not before."""
        if wanted.environment is None and wanted.environment_file is None:
            return wanted
        new = NewRun(
            prompt="check",
            agent=wanted.agent,
            model=wanted.model,
            box=wanted.box,
            fallbacks=wanted.fallbacks,
            budget=wanted.budget,
            environment=wanted.environment,
            environment_file=wanted.environment_file,
            environment_place=wanted.environment_place,
        )
        _, use, new = await self._apply(new)
        check_length(use)
        return replace(
            wanted, agent=new.agent, model=new.model, box=new.box, fallbacks=new.fallbacks, budget=new.budget
        )

    async def ensure(
        self, use: EnvironmentUse, spec: BoxSpec, workspace: Path | None, on_build: Callable[[], Awaitable[None]]
    ) -> tuple[str, bool]:
        """Returns the snapshot that a new box starts from, for `runs`."""
        wanted = await self._wanted(use, spec, workspace)
        if (found := await self.setups.find(wanted)) is not None:
            return found, False
        await on_build()
        try:
            built = await self.setups.ensure(wanted)
        except SetupFailed as error:
            how = f"holdfast env build{'' if use.is_file else f' {use.group}'} shows the whole output of its setup"
            raise SetupFailed(error.message, hint=f"{error.hint}; {how}" if error.hint else how) from None
        return built.snapshot, built.built

    # --- preflight, building, consent ---

    async def check(self, wanted: CheckEnvironment) -> EnvironmentCheck:
        given = Given(
            agent=wanted.agent is not None,
            model=wanted.model is not None,
            provider=wanted.provider is not None,
            **dict.fromkeys(wanted.given, True),
        )
        models = () if wanted.model is None else (wanted.model, *wanted.fallbacks)
        checked = await self._check(
            wanted.environment, wanted.text, wanted.place, given, wanted.provider, agent=wanted.agent, models=models
        )
        found = checked.found
        return EnvironmentCheck(
            reference=found.reference,
            digest=found.digest,
            gaps=checked.gaps,
            setup=await self._setup_state(found, checked.gaps, wanted.provider),
            ok=not any(each.required for each in checked.gaps),
        )

    async def build(self, wanted: BuildEnvironment, progress: Progress, ticks: Callable[[], int]) -> EnvironmentBuild:
        """Run the setup ahead of runs. Raises `EnvironmentNotAllowed` as a run does."""
        began = ticks()
        checked = await self._check(wanted.environment, wanted.text, wanted.place, Given(agent=True, model=True))
        needed = (GapKind.CONSENT, GapKind.PROVIDER, GapKind.CAPABILITY, GapKind.IMAGE)
        found = checked.found
        refuse_gaps(found.reference, tuple(each for each in checked.gaps if each.kind in needed))
        use = use_of(found, (), None)
        if not use.setup:
            return EnvironmentBuild(
                reference=found.reference, digest=found.digest, snapshot=None, built=False, milliseconds=0
            )
        workspace = None
        if wanted.workspace is not None:
            self._workspaces.check(wanted.workspace)
            workspace = self._workspaces.path(wanted.workspace)
        use = replace(use, repositories=repositories_of(found, wanted.repositories))
        setup = await self._wanted(use, _spec_of(found.environment), workspace)
        built = await self.setups.ensure(setup, progress, again=wanted.again)
        return EnvironmentBuild(
            reference=found.reference,
            digest=found.digest,
            snapshot=built.snapshot,
            built=built.built,
            milliseconds=ticks() - began,
        )

    async def consent(self, text: str, place: str) -> EnvironmentConsent:
        """Returns what a file asks for, and whether it was granted at this place."""
        found = await self.library.find(None, text, place)
        asks = asks_of(found.environment, Given(), pulls=True)  # with one provider or another
        return EnvironmentConsent(digest=found.digest, asks=asks, granted=found.allowed)

    async def remove(self, name: str) -> None:
        await self.library.remove(name)
        await self.setups.forget(name)

    # --- inside ---

    async def _check(
        self,
        reference: str | None,
        text: str | None,
        place: str | None,
        given: Given,
        provider: str | None = None,
        *,
        agent: str | None = None,
        models: tuple[str, ...] = (),
    ) -> _Checked:
        """`provider` is the one that the caller gives. So are `agent` and `models`, if they are to be checked here."""
        found = await self.library.find(reference, text, place)
        environment = found.environment
        problem, pulls = None, False
        if environment.image is not None and not given.image:
            problem, pulls = await self._look_for(environment.image, provider or environment.provider or "local")
        missing = None if pulls and given.provider else problem
        asks = () if found.allowed else asks_of(environment, given, pulls=pulls)
        gaps = find_gaps(environment, self._known, given, missing_image=missing, asks=asks, agent=agent, models=models)
        return _Checked(found, gaps, asks)

    async def _look_for(self, image: str, provider: str) -> tuple[Problem | None, bool]:
        """Returns why a provider has no such image, and whether it would pull it by itself for a new box."""
        try:
            images = self._boxes.provider(provider).images
        except HoldfastError:
            return None, False  # the provider is the problem
        pulls = await would_pull(images, image)
        if images is None:
            return None, pulls
        try:
            await images.get(image)
        except ImageNotFound as error:
            if not pulls:
                return Problem(error.message, f"holdfast image pull {image}"), False
            if images.takes_archives:
                return _problem(error, f"holdfast image list --provider {provider}"), True
        except HoldfastError:
            pass  # not a name of this store, such as one with a digest
        return None, pulls

    async def _setup_state(self, found: FoundEnvironment, gaps: tuple[Gap, ...], provider: str | None) -> str:
        environment = found.environment
        if not environment.setup:
            return "none"
        if environment.inputs or environment.repositories:
            return "unknown"  # it depends on files that the check does not have
        if any(each.kind in (GapKind.PROVIDER, GapKind.CAPABILITY) for each in gaps):
            return "missing"
        spec = _spec_of(environment)
        spec = replace(spec, provider=provider or spec.provider)
        can = self._known.capabilities(spec.provider)
        if isinstance(can, Problem) or Capability.SNAPSHOTS not in can:
            return "missing"
        wanted = await self._wanted(use_of(found, (), None), spec, None)
        return "missing" if await self.setups.find(wanted) is None else "built"

    async def _wanted(self, use: EnvironmentUse, spec: BoxSpec, workspace: Path | None) -> WantedSetup:
        inputs = NO_INPUTS
        if use.inputs:
            inputs = await asyncio.to_thread(read_inputs, workspace, use.inputs)
        network = replace(spec.network, secrets=()) if use.network is None else use.network
        spec = replace(spec, network=network)
        return WantedSetup(use.group, use.setup, spec, inputs, use.repositories, workspace)


# --- decisions ---


def given_by(new: NewRun) -> Given:
    """Returns what a request gives by itself, so that it need not come from the environment."""
    box = new.box or RunBox()
    return Given(
        agent=new.agent is not None,
        model=new.model is not None,
        provider=box.provider is not None,
        image=box.image is not None,
        network=box.network is not None,
        cpu=box.cpu is not None,
        memory=box.memory is not None,
        disk=box.disk is not None,
        pids=box.pids is not None,
        checkpoints=new.checkpoints is not None,
    )


def merged(environment: Environment, new: NewRun, secrets: Mapping[str, tuple[str, ...]] = _NO_SECRETS) -> NewRun:
    """Returns the request with the fields that it leaves open. `secrets` are those that there are, and their hosts."""
    limits, box = environment.limits, new.box or RunBox()
    model, fallbacks = new.model, new.fallbacks
    if model is None and environment.models:
        model, fallbacks = environment.models[0], environment.models[1:]
    return replace(
        new,
        agent=new.agent or environment.agent,
        model=model,
        fallbacks=fallbacks,
        budget=new.budget or (None if environment.budget.is_empty else environment.budget),
        timeout=new.timeout or limits.timeout,
        checkpoints=new.checkpoints or environment.checkpoints,
        box=replace(
            box,
            provider=box.provider or environment.provider,
            image=box.image or environment.image,
            cpu=limits.cpu if box.cpu is None else box.cpu,
            memory=limits.memory if box.memory is None else box.memory,
            disk=limits.disk if box.disk is None else box.disk,
            pids=limits.pids if box.pids is None else box.pids,
            network=network_with(environment.egress if box.network is None else box.network, secrets),
        ),
    )


def network_with(policy: NetworkPolicy | None, secrets: Mapping[str, tuple[str, ...]]) -> NetworkPolicy | None:
    """Returns a policy with the secrets of an environment. They open their own hosts, and nothing else."""
    has = set() if policy is None else {each.partition(":")[0] for each in policy.secrets}
    more = {use: hosts for use, hosts in secrets.items() if use.partition(":")[0] not in has}
    if not more:
        return policy
    policy = policy or NetworkPolicy()
    hosts = tuple(dict.fromkeys(host for each in more.values() for host in each))
    if policy.mode is Network.NONE and hosts:
        # Without rules, mode allow would mean the default list.
        policy = replace(policy, mode=Network.ALLOW, allow=hosts)
    return replace(policy, secrets=(*policy.secrets, *more))


def _secrets_of(environment: Environment) -> tuple[str, ...]:
    return (*environment.secrets, *environment.optional_secrets)


def setup_network(environment: Environment, box: RunBox | None) -> NetworkPolicy:
    """Returns what a setup may reach. It is shared by later runs, so no secret takes part in it, nor a host that only a
    secret opens."""
    given = None if box is None else box.network
    return replace(given or environment.egress or NetworkPolicy(), secrets=())


def repositories_of(found: FoundEnvironment, cloned: tuple[ClonedRepository, ...]) -> tuple[ClonedRepository, ...]:
    """Returns the repositories of an environment as they are in the workspace. Raises `InvalidEnvironment` unless the
    caller has cloned exactly these.
    """
    wanted = {each.path: str(each) for each in found.environment.repositories}
    if sorted(each.path for each in cloned) != sorted(wanted):
        names = ", ".join(f"{path} ({url})" for path, url in wanted.items()) or "none"
        raise InvalidEnvironment(
            f"the repositories of {found.reference} are {names}, and the workspace has"
            f" {', '.join(each.path for each in cloned) or 'none'}",
            hint="holdfast run clones them; through the API, upload them with the workspace and name their commits",
        )
    return tuple(sorted(cloned, key=lambda each: each.path))


def use_of(found: FoundEnvironment, gaps: tuple[Gap, ...], box: RunBox | None) -> EnvironmentUse:
    """`box` is what the request says about it, without what the environment adds."""
    environment = found.environment
    return EnvironmentUse(
        reference=found.reference,
        digest=found.digest,
        setup=environment.setup,
        inputs=environment.inputs,
        network=setup_network(environment, box) if environment.setup else None,
        services=environment.services,
        test=environment.test,
        warnings=tuple(each.message for each in gaps if not each.required),
    )


def check_length(use: EnvironmentUse) -> None:
    """Raises `InvalidEnvironment` if a thread cannot keep it."""
    if len(repr(use.kept())) > _LARGEST_KEPT:
        raise InvalidEnvironment(
            f"{use.reference} is too long for a thread", hint="put long commands into a script of the repository"
        )


def refuse_gaps(reference: str, gaps: tuple[Gap, ...]) -> None:
    """Raises the error of a launch if something required is missing. It names all of it."""
    required = [each for each in gaps if each.required]
    if not required:
        return
    if asked := [each.name for each in required if each.kind is GapKind.CONSENT]:
        raise EnvironmentNotAllowed(
            f"{reference} asks for: {'; '.join(asked)}. A file from a repository may not decide that by itself",
            hint="look at it, then allow it: holdfast env allow --yes",
        )
    if all(each.kind is GapKind.SECRET for each in required):
        names = [each.name for each in required]
        raise SecretMissing(
            f"{reference} requires {'a secret that is' if len(names) == 1 else 'secrets that are'} not stored: "
            + ", ".join(names),
            hint=f"holdfast secret set {names[0]}",
        )
    told = "; ".join(each.message for each in required)
    raise EnvironmentIncomplete(f"{reference} cannot be used yet: {told}", hint=required[0].next_step)


def require_agent(agent: str | None) -> str:
    if agent is None:
        raise InvalidRun("the run has no agent", hint="give --agent NAME, or use an environment that names one")
    return agent


def _spec_of(environment: Environment) -> BoxSpec:
    """Returns the spec of a box that the environment alone decides about."""
    box = merged(environment, NewRun(prompt="build")).box
    assert box is not None
    return spec_of(box)


def spec_of(box: RunBox) -> BoxSpec:
    """The spec of a run's box. Raises `InvalidSpec`."""
    fields = {name: value for name, value in box.to_json().items() if value is not None}
    return with_life(BoxSpec.from_json(fields))


def _problem(error: HoldfastError, otherwise: str) -> Problem:
    return Problem(error.message, error.hint or otherwise)
