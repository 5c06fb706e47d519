"""The request for a run: its prompt and options, and what of them is kept on the thread for the next one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from holdfast.api.box.spec import BoxSpec, Lifetime, OnIdle
from holdfast.api.errors.boxes import InvalidSpec
from holdfast.api.errors.runs import InvalidRun
from holdfast.api.limits import MAX_PROMPT, MAX_TIMEOUT
from holdfast.threads.run_events import ThreadRuns

IDLE_SECONDS: Final = 900
_KEPT: Final = ("provider", "image", "cpu", "memory", "disk", "pids", "network", "workdir", "idleSeconds", "onIdle")
"""Of a spec, on the thread: nothing that could be secret."""


@dataclass(frozen=True, slots=True)
class Options:
    """How a run is carried out, apart from its prompt."""

    agent: str
    model: str | None
    """Name, or name and model; None is the one there is."""
    spec: BoxSpec | None = None
    """None: as the thread's box is, or as boxes are."""
    workspace: str | None = None
    """Digest of what the workspace begins with, where the box is new. None: what the thread began with, or nothing."""
    fresh: bool = False
    """In a new box, with the files of the old one where they can be had."""
    timeout: int | None = None
    """Seconds that the run may take in all, from its launch. None: as long as it needs."""

    @property
    def box(self) -> BoxSpec:
        return default_spec() if self.spec is None else self.spec

    def to_json(self) -> dict[str, Any]:
        spec = self.box.to_json()
        kept = {name: spec[name] for name in _KEPT if spec[name] is not None}
        return {
            "spec": kept,
            **({} if self.workspace is None else {"workspace": self.workspace}),
            **({"fresh": True} if self.fresh else {}),
            **({} if self.timeout is None else {"timeout": self.timeout}),
        }


def options_of(agent: str, model: str | None, kept: Mapping[str, Any], workspace: str | None) -> Options:
    """Those of an earlier run, for the next. What somebody else wrote there is not followed: raises `InvalidRun`."""
    spec = kept.get("spec")
    try:
        known = {name: value for name, value in spec.items() if name in _KEPT} if isinstance(spec, dict) else {}
        found = with_life(BoxSpec.from_json(known))
    except (InvalidSpec, TypeError, ValueError) as error:
        raise InvalidRun(f"the thread says of its box what makes no sense: {error}") from None
    return Options(agent, model, found, workspace, timeout=timeout_in(kept))


def next_options(runs: ThreadRuns, agent: str | None, model: str | None) -> Options:
    """Those of the last run, unless told otherwise. What another may have written of that run is not followed."""
    last = runs.latest
    if last is None or not last.is_proven:
        assert agent is not None
        return Options(agent, model, default_spec())
    # Another agent may speak other models: it gets the one there is, unless one is named.
    kept = last.model or None
    return options_of(agent or last.agent, model or kept, last.options, runs.workspace)


def spec_of(runs: ThreadRuns) -> BoxSpec:
    """What the box of a thread was last asked to be: another spec would replace the box, and its files with it."""
    if runs.latest is None or not runs.latest.is_proven:
        return default_spec()
    return options_of("", None, runs.latest.options, None).box


def check_workspace(runs: ThreadRuns, options: Options) -> None:
    """Raises if the thread began with another workspace."""
    if options.workspace is not None and runs.count and options.workspace != runs.workspace:
        raise InvalidRun(
            "the thread has its workspace already", hint="leave it out, or launch a run on a thread of its own"
        )


def timeout_in(kept: Mapping[str, Any]) -> int | None:
    """Seconds that a run may take, as its options on the thread say."""
    timeout = kept.get("timeout")
    return timeout if type(timeout) is int and 0 < timeout <= MAX_TIMEOUT else None


def default_spec() -> BoxSpec:
    return with_life(BoxSpec())


def with_life(spec: BoxSpec) -> BoxSpec:
    """The box of a thread stays until somebody deletes it. It sleeps while it has nothing to do."""
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


@dataclass(frozen=True, slots=True)
class Prompt:
    text: str
    id: str | None = None
    """Of its entry. To launch with the same one again is to launch once."""
    author: str | None = None
