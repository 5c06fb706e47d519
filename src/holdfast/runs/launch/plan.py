"""The request for a run (its prompt and options), and the plan made of it: which agent, which model and API, which box.

A plan is made once and passed to every step of the launch. Options are kept on the thread, for the next run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

from holdfast.api.box.spec import BoxSpec, Lifetime, OnIdle
from holdfast.api.environments import EnvironmentUse
from holdfast.api.errors.agents import ModelNotSpoken
from holdfast.api.errors.boxes import BoxGone, InvalidSpec
from holdfast.api.errors.runs import InvalidRun
from holdfast.api.limits import MAX_FALLBACKS, MAX_PROMPT, MAX_TIMEOUT
from holdfast.api.model.budgets import Budget
from holdfast.api.model.models import Api, Price, shared
from holdfast.api.run.checkpoints import CheckpointPolicy
from holdfast.api.run.repositories import Source
from holdfast.api.session.sessions import ContextFile
from holdfast.boxes.capabilities import Capability
from holdfast.boxes.images import would_pull
from holdfast.boxes.labels import BASE, MOVED_FROM, SERVICES, WORKSTATION
from holdfast.boxes.rows import BoxRow
from holdfast.boxes.service.boxes import Boxes
from holdfast.egress.models.model import Model, ModelChoice
from holdfast.harnesses.harness import Harness
from holdfast.harnesses.placement import Agents
from holdfast.threads.checkpoints import Base
from holdfast.threads.run_events import Run, ThreadRuns

IDLE_SECONDS: Final = 900
DISPLAY: Final = ":99"
"""The display of a workstation."""
_KEPT: Final = ("provider", "image", "cpu", "memory", "disk", "pids", "network", "workdir", "idleSeconds", "onIdle")
"""The fields of a spec that are kept on the thread. None of them can be secret."""


@dataclass(frozen=True, slots=True)
class Prompt:
    text: str
    id: str | None = None
    """Id of its entry. A second launch with the same id returns the first one's run."""
    author: str | None = None


@dataclass(frozen=True, slots=True)
class Options:
    """How a run is carried out, apart from its prompt."""

    agent: str
    model: str | None
    """`NAME` or `NAME/MODEL`. None: the only model."""
    spec: BoxSpec | None = None
    """None: the spec of the thread's box, or the default."""
    workspace: str | None = None
    """Digest of the files for a new box. None: the thread's first workspace, or no files."""
    source: Source | None = None
    """Where the files came from."""
    fresh: bool = False
    """Use a new box, with the files of the old one if the provider has snapshots."""
    timeout: int | None = None
    """Seconds from the launch. None: no limit."""
    checkpoints: str | None = None
    """A `CheckpointPolicy` as text. None: the provider decides."""
    environment: EnvironmentUse | None = None
    fallbacks: tuple[str, ...] = ()
    """Models to use if `model` gives no answer, in order."""
    budget: Budget | None = None
    """For the run."""
    delegates: bool = False
    """Give the agent the tools to delegate tasks."""
    tools: tuple[str, ...] = ()
    """Of a session: the groups of operations that it may use (`holdfast.api.tools`)."""
    asks: tuple[str, ...] = ()
    """Of a session: what its agent may do only if somebody permits it (`holdfast.api.session.sessions.Permission`)."""
    shares: str | None = None
    """The thread whose box is used, instead of a box of its own."""
    forks: str | None = None
    """The box whose files a first box of its own starts with."""
    workstation: bool = False
    """A desktop and an editor belong to the box."""
    context: tuple[ContextFile, ...] = ()
    """Files that tell the agent about its task, beside the workspace. The session keeps them, not each of its runs."""

    @property
    def box(self) -> BoxSpec:
        spec = default_spec() if self.spec is None else self.spec
        if self.workstation:
            spec = replace(spec, labels={**spec.labels, WORKSTATION: "yes"}, env={"DISPLAY": DISPLAY, **spec.env})
        if not self.workstation and (self.environment is None or not self.environment.services):
            return spec
        return replace(spec, labels={**spec.labels, SERVICES: "yes"})

    def to_json(self) -> dict[str, Any]:
        spec = self.box.to_json()
        kept = {name: spec[name] for name in _KEPT if spec[name] is not None}
        return {
            "spec": kept,
            **({} if self.workspace is None else {"workspace": self.workspace}),
            **({} if self.source is None else {"source": self.source.to_request()}),
            **({"fresh": True} if self.fresh else {}),
            **({} if self.timeout is None else {"timeout": self.timeout}),
            **({} if self.checkpoints is None else {"checkpoints": self.checkpoints}),
            **({} if self.environment is None else {"environment": self.environment.kept()}),
            **({"fallbacks": list(self.fallbacks)} if self.fallbacks else {}),
            **({} if self.budget is None else {"budget": self.budget.to_json()}),
            **({"delegates": True} if self.delegates else {}),
            **({"tools": list(self.tools)} if self.tools else {}),
            **({"asks": list(self.asks)} if self.asks else {}),
            **({} if self.shares is None else {"shares": self.shares}),
            **({} if self.forks is None else {"forks": self.forks}),
            **({"workstation": True} if self.workstation else {}),
        }


def options_of(agent: str, model: str | None, kept: Mapping[str, Any], workspace: str | None) -> Options:
    """Returns the options of an earlier run, as they were kept on the thread. Raises `InvalidRun`."""
    spec = kept.get("spec")
    try:
        known = {name: value for name, value in spec.items() if name in _KEPT} if isinstance(spec, dict) else {}
        found = with_life(BoxSpec.from_json(known))
    except (InvalidSpec, TypeError, ValueError) as error:
        raise InvalidRun(f"the thread has an invalid spec of its box: {error}") from None
    return Options(
        agent,
        model,
        found,
        workspace,
        timeout=timeout_in(kept),
        checkpoints=_text(kept.get("checkpoints")),
        fallbacks=fallbacks_in(kept),
        budget=budget_in(kept),
        delegates=kept.get("delegates") is True,
        tools=tools_in(kept),
        asks=_texts(kept.get("asks")),
        shares=_text(kept.get("shares")),
        forks=_text(kept.get("forks")),
        workstation=kept.get("workstation") is True,
        context=context_in(kept),
        environment=EnvironmentUse.from_kept(kept.get("environment")),
    )


def tools_in(kept: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns the groups of operations from options that were kept on the thread."""
    return _texts(kept.get("tools"))


def _texts(names: object) -> tuple[str, ...]:
    return tuple(each for each in names if isinstance(each, str)) if isinstance(names, list) else ()


def environment_of(run: Run) -> EnvironmentUse | None:
    """Returns the environment of a run, as it was kept on the thread, if this server launched it."""
    return EnvironmentUse.from_kept(run.options.get("environment")) if run.is_proven else None


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def next_options(
    runs: ThreadRuns, agent: str | None, model: str | None, box: BoxRow | None = None, base: Base | None = None
) -> Options:
    """Returns the options of the last run, with another agent or model if given, at the provider of the thread's box.

    The options of a run that this server cannot prove to be its own are ignored.
    """
    last = runs.latest
    if last is None and runs.delegation is not None:
        task = runs.delegation
        workspace = _text(task.options.get("workspace"))
        return options_of(agent or task.agent, model or task.model or None, task.options, workspace)
    if last is None or not last.is_proven:
        assert agent is not None
        return Options(agent, model, default_spec())
    kept = last.model or None
    options = options_of(agent or last.agent, model or kept, last.options, runs.workspace)
    if model is not None:  # which is the whole chain
        options = replace(options, fallbacks=())
    return replace(options, spec=_where_it_is(options.box, box, base))


def session_options(runs: ThreadRuns, box: BoxRow | None = None, base: Base | None = None) -> Options:
    """Returns the options of the next run of a session, at the provider of its box. Raises `InvalidRun`."""
    session = runs.session
    assert session is not None
    options = options_of(session.agent, session.model or None, session.options, runs.workspace)
    return replace(options, spec=_where_it_is(options.box, box, base))


def spec_of(runs: ThreadRuns, box: BoxRow | None = None, base: Base | None = None) -> BoxSpec:
    """Returns the spec of a thread's box. With another spec, the box would be replaced."""
    if runs.latest is None or not runs.latest.is_proven:
        return default_spec()
    return _where_it_is(options_of("", None, runs.latest.options, None).box, box, base)


def _where_it_is(spec: BoxSpec, box: BoxRow | None, base: Base | None) -> BoxSpec:
    """Returns the spec with what a move, a fork or a rewind has changed since the last run."""
    if base is not None and (box is None or box.labels.get(BASE) != base.id):
        return replace(spec, provider=base.files.provider, image=base.files.image)
    if box is None or (base is None and MOVED_FROM not in box.labels):
        return spec
    return replace(spec, provider=box.spec.provider, image=box.spec.image)


def check_workspace(runs: ThreadRuns, options: Options) -> None:
    """Raises if the thread began with another workspace."""
    if options.workspace is not None and runs.count and options.workspace != runs.workspace:
        raise InvalidRun(
            "the thread has its workspace already", hint="leave it out, or launch a run on a thread of its own"
        )


def timeout_in(kept: Mapping[str, Any]) -> int | None:
    """Returns the timeout in seconds from options that were kept on the thread."""
    timeout = kept.get("timeout")
    return timeout if type(timeout) is int and 0 < timeout <= MAX_TIMEOUT else None


def fallbacks_in(kept: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns the fallback models from options that were kept on the thread."""
    names = kept.get("fallbacks")
    return tuple(each for each in names if isinstance(each, str))[:MAX_FALLBACKS] if isinstance(names, list) else ()


def budget_in(kept: Mapping[str, Any]) -> Budget | None:
    """Returns the budget from options that were kept on the thread. One that cannot be read lets nothing pass."""
    budget = kept.get("budget")
    if budget is None:
        return None
    try:
        return Budget.from_json(budget)
    except (LookupError, TypeError, ValueError, AttributeError):
        return Budget(cost=0)


def kept_context(files: Sequence[ContextFile]) -> dict[str, Any]:
    """Returns what a session keeps of its context files, beside its other options."""
    return {"context": [[each.name, each.text] for each in files]} if files else {}


def context_in(kept: Mapping[str, Any]) -> tuple[ContextFile, ...]:
    """Returns the context files from options that were kept on the thread."""
    files = kept.get("context")
    known = [each for each in files if isinstance(each, list) and len(each) == 2] if isinstance(files, list) else []
    return tuple(ContextFile(name=str(name), text=str(text)) for name, text in known)


def default_spec() -> BoxSpec:
    return with_life(BoxSpec())


def with_life(spec: BoxSpec) -> BoxSpec:
    """Returns the spec of a box that is kept until it is deleted, and hibernates while it is idle."""
    return replace(
        spec,
        lifetime=Lifetime.SHARED,
        idle_seconds=IDLE_SECONDS if spec.idle_seconds is None else spec.idle_seconds,
        on_idle=OnIdle.HIBERNATE if spec.on_idle is None else spec.on_idle,
    )


def check_prompt(text: str) -> str:
    if not text.strip():
        raise InvalidRun("the prompt is empty", hint="say what the agent should do")
    if len(text) > MAX_PROMPT:
        raise InvalidRun(f"the prompt has {len(text)} characters, more than {MAX_PROMPT}", hint="put it into a file")
    return text


# --- the plan ---


class ModelNames(Protocol):
    """Models by name."""

    def apis_of(self, wanted: str) -> tuple[Api, ...]:
        """Returns the APIs of a model, even if it cannot be used yet. Raises an error with a code and a hint."""
        ...

    def resolve(self, wanted: str | None = None) -> ModelChoice:
        """Returns a model (`NAME` or `NAME/MODEL`), or the only one. Raises an error with a code and a hint."""
        ...


class ModelPrices(Protocol):
    def find(self, model: str) -> Price | None:
        """Returns the price of `NAME/MODEL`, or None if it is unknown."""
        ...


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    options: Options
    """With the full names of agent and model, and a spec that the provider supports."""
    harness: Harness
    model: ModelChoice
    api: Api
    """The API that the agent and the model have in common."""


def key_of(thread: str) -> str:
    """Returns the key of a thread's box."""
    return f"thread/{thread}"


class LaunchPlanner:
    def __init__(self, agents: Agents, models: ModelNames, boxes: Boxes, prices: ModelPrices | None = None) -> None:
        """Without `prices`, budgets are not checked before the launch."""
        self._prices = prices
        self.agents = agents
        self._models = models
        self._boxes = boxes

    def plan(self, options: Options) -> LaunchPlan:
        """Raises if the agent, the model or the box is not available, before anything is created."""
        if options.checkpoints is not None:
            CheckpointPolicy.parse(options.checkpoints)
        harness = self.agents.find(options.agent)
        if options.model is not None:
            # Before the model's key is asked for: the user should not fetch a key that this agent cannot use.
            _shared_api(harness, options.model, self._models.apis_of(options.model))
        for fallback in options.fallbacks:
            _shared_api(harness, fallback, self._models.apis_of(fallback))
        model = self._models.resolve(options.model)
        others = {str(each): each for each in map(self._models.resolve, options.fallbacks) if str(each) != str(model)}
        chain = [model, *others.values()]
        api = _chain_api(harness, chain)
        if options.budget is not None and options.budget.cost is not None and self._prices is not None:
            for each in chain:
                if self._prices.find(str(each)) is None:
                    raise InvalidRun(
                        f"the price of {each} is unknown, so the run cannot have a budget in dollars",
                        hint=f"holdfast model price {each} --input DOLLARS --output DOLLARS, or use --budget-tokens",
                    )
        named = replace(options, agent=harness.agent, model=str(model), fallbacks=tuple(others))
        # The agent must not write more than any of them can read.
        model = replace(
            model,
            context_window=min(each.context_window for each in chain),
            max_tokens=min(each.max_tokens for each in chain),
        )
        return LaunchPlan(self.fit(named), harness, model, api)

    async def box_of(self, thread: str) -> BoxRow | None:
        """Returns the box that a thread has now."""
        return await self._boxes.of_key(key_of(thread))

    async def check_move(self, thread: str, options: Options) -> None:
        """Raises if the options want the thread's box at another provider, and it cannot be moved there."""
        row, spec = await self.box_of(thread), options.box
        if row is not None and row.provider != spec.provider:
            with suppress(BoxGone):  # then there is nothing to move
                await self._boxes.check_move(row.id, lambda _: spec)

    async def check_image(self, before: BoxSpec, wanted: BoxSpec) -> None:
        """Raises if another provider would pull the image of a thread, which may be named by a file of a repository:
        nobody has named it for that provider.
        """
        if wanted.image is None or wanted.provider == before.provider or wanted.image != before.image:
            return
        if await would_pull(self._boxes.provider(wanted.provider).images, wanted.image):
            raise InvalidRun(
                f"{wanted.provider} would pull image {wanted.image}, which nobody has named for {wanted.provider}",
                hint=f"name it: holdfast box move BOX --to {wanted.provider} --image {wanted.image}; then resume the"
                " thread",
            )

    def fit(self, options: Options) -> Options:
        """Returns the options with a spec that the provider supports. Raises if there is none."""
        spec = options.box
        can = self._boxes.provider(spec.provider).capabilities
        if spec.on_idle is OnIdle.HIBERNATE and not {Capability.STOP, Capability.SNAPSHOTS} <= can:
            spec = replace(spec, on_idle=OnIdle.KEEP)
        self._boxes.check(spec)
        return replace(options, spec=spec)


@dataclass(frozen=True, slots=True)
class Offer:
    """A model that an agent can use."""

    model: Model
    api: Api
    """The API that they have in common."""


def offers(apis: Iterable[Api], models: Iterable[Model]) -> tuple[Offer, ...]:
    """Returns the models that an agent with these APIs can use, in the same order."""
    supported = tuple(apis)
    found = ((model, shared(supported, model.apis)) for model in models)
    return tuple(Offer(model, api) for model, api in found if api is not None)


def _chain_api(harness: Harness, chain: Sequence[ModelChoice]) -> Api:
    """Returns the first API of the agent that all these models support: a request is passed on as it is."""
    for api in harness.apis:
        if all(api in each.apis for each in chain):
            return api
    if len(chain) == 1:
        return _shared_api(harness, str(chain[0]), chain[0].apis)
    spoken = "; ".join(f"{each} speaks {', '.join(each.apis)}" for each in chain)
    raise ModelNotSpoken(
        f"these models have no API in common that {harness.title} speaks: {spoken}",
        hint="leave one out: holdfast model list shows what each speaks",
    )


def _shared_api(harness: Harness, model: str, apis: Sequence[Api]) -> Api:
    api = shared(harness.apis, apis)
    if api is None:
        raise ModelNotSpoken(
            f"{harness.title} speaks {', '.join(harness.apis)}, and {model} speaks {', '.join(apis)}",
            hint="use another model, or another agent: holdfast model list shows what each speaks",
        )
    return api
