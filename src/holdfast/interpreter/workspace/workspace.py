"""The workspace of an interpreter: which box it has, and what is in it: a checkout, context files, a volume.

Three layers are kept apart: the template that boxes begin with, what a box holds, and the volume. A change of the
workspace is made in the box that is there, which keeps what it has in memory. Another box is made only where that one
cannot do: `decide` says when.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Final

from holdfast.api.box.box import Box, Power
from holdfast.api.box.spec import BoxSpec
from holdfast.api.errors.boxes import BoxDiffers, BoxError, BoxGone, BoxNotFound, CreateFailed
from holdfast.api.errors.interpreters import InvalidInterpreter, WorkspaceConflict
from holdfast.boxes.service.acquire_rules import How
from holdfast.interpreter.host import Given, Host
from holdfast.interpreter.workspace import context_files
from holdfast.interpreter.workspace.checkout import CheckedOut, Step, changes, prepare
from holdfast.interpreter.workspace.repositories import Repository, check_ref, locate
from holdfast.interpreter.workspace.volumes import make_folders, volume_of, with_volume

FORCED: Final = "a new box was asked for (force_new)"


@dataclass(frozen=True, slots=True)
class WorkspaceConfig:
    """What a workspace is to be. None leaves a part of it as it is."""

    repo_url: str | Path | None = None
    """A URL that the box may reach, or a folder of this machine: its commits are brought into the box."""
    ref: str | None = None
    """A branch, a tag or a commit; the default branch if there is none."""
    context_paths: Sequence[str | Path] | None = None
    """Files and folders of this machine, staged under `.holdfast/context`. Empty: none, and those there are go."""
    volume: str | None = None
    """Mounted at `/home/box/memory`."""
    force_new: bool = False
    """Begin with another box. What only the old one had is lost."""

    def __post_init__(self) -> None:
        if isinstance(self.context_paths, (str, Path)):
            raise InvalidInterpreter(
                "context_paths is a list of paths", hint=f"context_paths=[{str(self.context_paths)!r}]"
            )

    def over(self, before: WorkspaceConfig) -> WorkspaceConfig:
        """This, and of what it leaves as it is, what was asked for before."""
        another = self.repo_url is not None and self.repo_url != before.repo_url
        return WorkspaceConfig(
            before.repo_url if self.repo_url is None else self.repo_url,
            self.ref if another or self.ref is not None else before.ref,
            before.context_paths if self.context_paths is None else tuple(self.context_paths),
            before.volume if self.volume is None else self.volume,
            self.force_new,
        )


class Kind(StrEnum):
    """How the box of a workspace came to be the one it is."""

    CREATED = "created"
    REUSED = "reused"
    """The one that this interpreter had, as it was."""
    RESUMED = "resumed"
    """One from before, with its files: found again, started again, or woken."""
    RECREATED = "recreated"
    """Another one in the place of one that could not do. Its files, and what was in memory, are new."""


@dataclass(frozen=True, slots=True)
class Transition:
    kind: Kind
    reason: str
    changed: tuple[str, ...] = ()
    """What was done in the box, in words."""
    checkout: CheckedOut | None = None
    context_files: int | None = None
    """Staged now; None where the context was left alone."""


# --- decisions about the box ---


@dataclass(frozen=True, slots=True)
class Held:
    """The box that an interpreter has, as it was found."""

    volume: str | None
    power: Power | None
    """None: it is gone."""


@dataclass(frozen=True, slots=True)
class Keep:
    """It can stay as it is."""


@dataclass(frozen=True, slots=True)
class Acquire:
    """Ask for the box of the key, whatever there is of it: it is started, woken, restored or made."""


@dataclass(frozen=True, slots=True)
class Recreate:
    reason: str
    deliberate: bool = False
    """Whoever asked wants to lose the old one."""


Decision = Keep | Acquire | Recreate


def decide(held: Held | None, wanted: WorkspaceConfig) -> Decision:
    """Whether the box can stay. A box whose mounts are others is another machine; nothing else is a reason."""
    if wanted.force_new:
        return Recreate(FORCED, deliberate=True)
    if held is None:
        return Acquire()
    if held.power is None:
        return Recreate("the box is gone")
    if wanted.volume is not None and wanted.volume != held.volume:
        return Recreate(_another_volume(held.volume, wanted.volume))
    return Keep() if held.power is Power.RUNNING else Acquire()


def _another_volume(had: str | None, wanted: str | None) -> str:
    return f"the volume is another: {had or 'none'} → {wanted or 'none'}"


def describe(given: Given, *, instead: str | None) -> tuple[Kind, str]:
    """How a box that a host gave came to be. `instead`: why one was asked for in the place of another."""
    if instead is not None:
        return Kind.RECREATED, instead
    if given.how is not How.CREATED:
        return Kind.RESUMED, given.why or "it was there"
    if given.why and given.why != "there was none":
        return Kind.RECREATED, given.why
    return Kind.CREATED, "there was none"


_UNRECOVERABLE: Final = (BoxGone, BoxNotFound, CreateFailed)
"""Not: somebody else is at the box, or nobody can say how it is. These are no reason to lose it."""


# --- effects ---

SetUp = Callable[[Box], Awaitable[None]]
"""Makes what runs in the box find the workspace: its folder, its helpers. Done again after every change."""


@dataclass(slots=True)
class Workspace:
    """The workspace of one interpreter, in the box of one key. Closing it lets go of the box, which lives on."""

    host: Host
    key: str
    spec: BoxSpec
    """Of the box, without the volume of a config."""
    set_up: SetUp | None = None
    roots: Sequence[Path] | None = None
    """Folders of this machine that a config may name; None: all. A server gives none: `()`."""
    box: Box | None = None
    config: WorkspaceConfig = field(default_factory=WorkspaceConfig)
    """All that was asked for until now."""
    _settled: bool = True
    """The box has all that was asked for. Not so: it is new, and something went wrong on the way."""
    _digests: context_files.Digests = field(default_factory=dict)
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def workdir(self) -> str:
        return self.spec.workdir

    async def configure(self, wanted: WorkspaceConfig) -> Transition:
        """Make the workspace what is wanted. What cannot be is refused before anything is changed, where that shows.

        Raises `WorkspaceConflict` where something in the box would be lost, `WorkspaceFailed`, `InvalidInterpreter`.
        """
        async with self._turn:
            return await self._configure(wanted)

    async def _configure(self, wanted: WorkspaceConfig) -> Transition:
        merged = wanted.over(self.config)
        # Everything that this machine can tell is asked before a box is touched.
        repository = None if merged.repo_url is None else locate(merged.repo_url, self.roots)
        ref = check_ref(merged.ref)
        if wanted.ref is not None and repository is None:
            raise InvalidInterpreter("a ref without a repository", hint="give repo_url, too")
        survey = None
        if merged.context_paths is not None:
            survey = await context_files.survey(merged.context_paths, self.roots, self._digests)
        kind, reason = await self._have_box(wanted, merged)
        assert self.box is not None
        self._settled = self._settled and kind not in (Kind.CREATED, Kind.RECREATED)
        asked = wanted.repo_url is not None or wanted.ref is not None
        transition = await self._reconcile(
            Transition(kind, reason),
            repository if asked or not self._settled else None,
            ref,
            survey if wanted.context_paths is not None or not self._settled else None,
        )
        self.config, self._settled = replace(merged, force_new=False), True
        return transition

    async def close(self) -> None:
        box, self.box = self.box, None
        if box is not None:
            await box.close()

    # --- the box ---

    async def _have_box(self, wanted: WorkspaceConfig, merged: WorkspaceConfig) -> tuple[Kind, str]:
        spec = with_volume(self.spec, merged.volume) if merged.volume is not None else self.spec
        decision = decide(await self._look(), replace(wanted, volume=merged.volume))
        match decision:
            case Keep():
                return Kind.REUSED, "it was there"
            case Recreate(reason, deliberate):
                if not deliberate and self.box is not None:
                    await self._refuse_loss(self.box, reason)
                return await self._recreate(spec, reason)
            case Acquire():
                return await self._acquire(spec)

    async def _look(self) -> Held | None:
        if self.box is None:
            return None
        volume = _volume(self.box.spec)
        try:
            return Held(volume, await self.box.power())
        except (BoxGone, BoxNotFound):
            return Held(volume, None)

    async def _refuse_loss(self, box: Box, reason: str) -> None:
        """Another box does not have what was changed in the checkout of this one."""
        try:
            if await box.power() is not Power.RUNNING:
                await box.start()
            changed = await changes(box, box.spec.workdir)
        except (BoxGone, BoxNotFound):
            return
        if changed:
            shown = ", ".join(changed[:5]) + (f" and {len(changed) - 5} more" if len(changed) > 5 else "")
            raise WorkspaceConflict(
                f"{reason}. That takes another box, and box {box.id} has local changes: {shown}",
                hint="go on as before, and push them or copy them out of the box; force_new=True loses them",
            )

    async def _acquire(self, spec: BoxSpec) -> tuple[Kind, str]:
        await self._ensure_volume(spec)
        try:
            given = await self.host.acquire(self.key, spec)
        except BoxDiffers as error:
            return await self._recreate(spec, await self._let_differ(spec, error.message))
        except _UNRECOVERABLE as error:
            return await self._recreate(spec, f"it could not be resumed: {error.message}{await self._keep_files()}")
        await self._take(given.box)
        return describe(given, instead=None)

    async def _let_differ(self, spec: BoxSpec, how: str) -> str:
        """Why the box from before, which somebody else had, may go."""
        if (old := await self.host.find(self.key)) is None:
            return how
        async with old:
            if _volume(old.spec) != _volume(spec):
                how = _another_volume(_volume(old.spec), _volume(spec))
            await self._refuse_loss(old, how)
        return how

    async def _keep_files(self) -> str:
        """A box that does not start cannot be looked at. Its files are kept, where its provider can do that."""
        with suppress(BoxError):
            if (old := await self.host.find(self.key)) is not None:
                async with old:
                    return f"; its files are kept in snapshot {(await old.snapshot()).id}"
        return ""

    async def _recreate(self, spec: BoxSpec, reason: str) -> tuple[Kind, str]:
        await self._ensure_volume(spec)
        given = await self.host.acquire(self.key, spec, fresh=True)
        await self._take(given.box)
        return describe(given, instead=reason)

    async def _take(self, box: Box) -> None:
        """This handle from now on, in the place of the one there was."""
        await self.close()
        self.box = box

    async def _ensure_volume(self, spec: BoxSpec) -> None:
        if (mounted := volume_of(spec.volumes)) is not None:
            await self.host.ensure_volume(mounted.volume, spec.provider)

    # --- what is in it ---

    async def _reconcile(
        self, begun: Transition, repository: Repository | None, ref: str | None, survey: context_files.Survey | None
    ) -> Transition:
        box, workdir = self.box, self.workdir
        assert box is not None
        changed: list[str] = []
        checkout = None
        if volume_of(box.spec.volumes) is not None:
            await make_folders(box)
        if repository is not None:
            pending = await prepare(box, workdir, repository, ref)
            if pending.steps:
                await context_files.own_folder(box, workdir)
                await context_files.unlink(box, workdir)
            try:
                checkout = await pending.make()
            finally:
                if pending.steps:
                    await context_files.link(box, workdir)
            changed += _told(checkout, repository)
        if survey is not None and survey.digest != await context_files.staged(box, workdir):
            await context_files.stage(box, workdir, survey)
            files = f"{survey.files} context file{'s' if survey.files > 1 else ''}"
            changed.append(f"staged {files}" if survey.items else "cleared the context")
            await context_files.link(box, workdir)
        if self.set_up is not None:
            await self.set_up(box)
        return replace(
            begun,
            changed=tuple(changed),
            checkout=checkout,
            context_files=None if survey is None else survey.files,
        )


def _volume(spec: BoxSpec) -> str | None:
    mounted = volume_of(spec.volumes)
    return None if mounted is None else mounted.volume


def _told(checkout: CheckedOut, repository: Repository) -> list[str]:
    if not checkout.steps:
        return []
    done = "cloned" if Step.SWITCH in checkout.steps else "updated"
    where = f"{checkout.branch} at {checkout.commit[:12]}" if checkout.branch else checkout.commit[:12]
    return [f"{done} {repository}: {where}", *(f"kept {each}" for each in checkout.kept)]
