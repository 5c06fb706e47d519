"""The workspace of an interpreter: its box, and the checkout, context files and volume in it.

A change of the workspace is made in the present box, which keeps its memory. `decide` says when another box is needed.
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
from holdfast.interpreter.host import AcquiredBox, Host
from holdfast.interpreter.workspace import context_files
from holdfast.interpreter.workspace.checkout import CheckedOut, Step, changes, prepare
from holdfast.interpreter.workspace.repositories import Repository, check_ref, locate
from holdfast.interpreter.workspace.volumes import make_folders, volume_of, with_volume

FORCED: Final = "a new box was asked for (force_new)"


@dataclass(frozen=True, slots=True)
class WorkspaceConfig:
    """The wanted workspace. None leaves a part unchanged."""

    repo_url: str | Path | None = None
    """A URL that the box can reach, or a folder of this machine, whose commits are copied into the box."""
    ref: str | None = None
    """A branch, a tag or a commit. None: the default branch."""
    context_paths: Sequence[str | Path] | None = None
    """Files and folders of this machine, copied to `.holdfast/context`. An empty list removes all."""
    volume: str | None = None
    """Mounted at `/home/box/memory`."""
    force_new: bool = False
    """Use a new box. What only the old one has is lost."""

    def __post_init__(self) -> None:
        if isinstance(self.context_paths, (str, Path)):
            raise InvalidInterpreter(
                "context_paths must be a list of paths", hint=f"context_paths=[{str(self.context_paths)!r}]"
            )

    def over(self, before: WorkspaceConfig) -> WorkspaceConfig:
        """This config, with unchanged parts taken from an earlier one."""
        another = self.repo_url is not None and self.repo_url != before.repo_url
        return WorkspaceConfig(
            before.repo_url if self.repo_url is None else self.repo_url,
            self.ref if another or self.ref is not None else before.ref,
            before.context_paths if self.context_paths is None else tuple(self.context_paths),
            before.volume if self.volume is None else self.volume,
            self.force_new,
        )


class Kind(StrEnum):
    """How a workspace got its box."""

    CREATED = "created"
    REUSED = "reused"
    """The box that this interpreter already had."""
    RESUMED = "resumed"
    """An earlier box with its files, which was found, started or woken."""
    RECREATED = "recreated"
    """A new box in place of an unusable one. Files and memory are new."""


@dataclass(frozen=True, slots=True)
class Transition:
    kind: Kind
    reason: str
    changed: tuple[str, ...] = ()
    """Descriptions of what was done in the box."""
    checkout: CheckedOut | None = None
    context_files: int | None = None
    """The number of staged files. None if they were not changed."""


# --- decisions about the box ---


@dataclass(frozen=True, slots=True)
class CurrentBox:
    """The present box of an interpreter."""

    volume: str | None
    power: Power | None
    """None if the box is gone."""


@dataclass(frozen=True, slots=True)
class Keep:
    """Keep the present box."""


@dataclass(frozen=True, slots=True)
class Acquire:
    """Acquire the box of the key: it is started, woken, restored or created."""


@dataclass(frozen=True, slots=True)
class Recreate:
    reason: str
    deliberate: bool = False
    """The caller accepts to lose the old box."""


Decision = Keep | Acquire | Recreate


def decide(current: CurrentBox | None, wanted: WorkspaceConfig) -> Decision:
    """Decide whether the box can stay. Only another volume requires another box."""
    if wanted.force_new:
        return Recreate(FORCED, deliberate=True)
    if current is None:
        return Acquire()
    if current.power is None:
        return Recreate("the box is gone")
    if wanted.volume is not None and wanted.volume != current.volume:
        return Recreate(_another_volume(current.volume, wanted.volume))
    return Keep() if current.power is Power.RUNNING else Acquire()


def _another_volume(had: str | None, wanted: str | None) -> str:
    return f"the volume changed: {had or 'none'} → {wanted or 'none'}"


def describe(acquired: AcquiredBox, *, instead: str | None) -> tuple[Kind, str]:
    """Describe how a box was acquired. `instead` is the reason for replacing another box."""
    if instead is not None:
        return Kind.RECREATED, instead
    if acquired.how is not How.CREATED:
        return Kind.RESUMED, acquired.why or "it was there"
    if acquired.why and acquired.why != "there was none":
        return Kind.RECREATED, acquired.why
    return Kind.CREATED, "there was none"


_UNRECOVERABLE: Final = (BoxGone, BoxNotFound, CreateFailed)
"""A box that is in use by another process, or whose state is unknown, is not among these: it must not be lost."""


# --- effects ---

OnChange = Callable[[Box], Awaitable[None]]
"""Called after every change, with the box."""


@dataclass(slots=True)
class Workspace:
    """The workspace of one interpreter, in the box of one key. After `close`, the box goes on running."""

    host: Host
    key: str
    spec: BoxSpec
    """The spec of the box, without the volume of a config."""
    on_change: OnChange | None = None
    roots: Sequence[Path] | None = None
    """Folders of this machine that a config may use; None allows all. A server allows none: `()`."""
    box: Box | None = None
    config: WorkspaceConfig = field(default_factory=WorkspaceConfig)
    """The present configuration."""
    _settled: bool = True
    """The box has the present configuration. False after a failure in a new box."""
    _digests: context_files.Digests = field(default_factory=dict)
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def workdir(self) -> str:
        return self.spec.workdir

    async def configure(self, wanted: WorkspaceConfig) -> Transition:
        """Change the workspace. What can be checked in advance is checked before anything changes.

        Raises `WorkspaceConflict` if something in the box would be lost, `WorkspaceFailed`, `InvalidInterpreter`.
        """
        async with self._turn:
            return await self._configure(wanted)

    async def _configure(self, wanted: WorkspaceConfig) -> Transition:
        merged = wanted.over(self.config)
        # Everything that this machine can check is checked before a box is touched.
        repository = None if merged.repo_url is None else locate(merged.repo_url, self.roots)
        ref = check_ref(merged.ref)
        if wanted.ref is not None and repository is None:
            raise InvalidInterpreter("a ref needs a repository", hint="give repo_url, too")
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
        decision = decide(await self._current(), replace(wanted, volume=merged.volume))
        match decision:
            case Keep():
                return Kind.REUSED, "it was there"
            case Recreate(reason, deliberate):
                if not deliberate and self.box is not None:
                    await self._refuse_loss(self.box, reason)
                return await self._recreate(spec, reason)
            case Acquire():
                return await self._acquire(spec)

    async def _current(self) -> CurrentBox | None:
        if self.box is None:
            return None
        volume = _volume(self.box.spec)
        try:
            return CurrentBox(volume, await self.box.power())
        except (BoxGone, BoxNotFound):
            return CurrentBox(volume, None)

    async def _refuse_loss(self, box: Box, reason: str) -> None:
        """Raise `WorkspaceConflict` if the box has local changes, which another box would not have."""
        try:
            if await box.power() is not Power.RUNNING:
                await box.start()
            changed = await changes(box, box.spec.workdir)
        except (BoxGone, BoxNotFound):
            return
        if changed:
            shown = ", ".join(changed[:5]) + (f" and {len(changed) - 5} more" if len(changed) > 5 else "")
            raise WorkspaceConflict(
                f"{reason}. This requires another box, and box {box.id} has local changes: {shown}",
                hint="keep the box, and push or copy the changes first; force_new=True loses them",
            )

    async def _acquire(self, spec: BoxSpec) -> tuple[Kind, str]:
        await self._ensure_volume(spec)
        try:
            acquired = await self.host.acquire(self.key, spec)
        except BoxDiffers as error:
            return await self._recreate(spec, await self._reason_to_replace(spec, error.message))
        except _UNRECOVERABLE as error:
            return await self._recreate(spec, f"it could not be resumed: {error.message}{await self._keep_files()}")
        await self._use(acquired.box)
        return describe(acquired, instead=None)

    async def _reason_to_replace(self, spec: BoxSpec, difference: str) -> str:
        """The reason to replace the box of an earlier process. Raises `WorkspaceConflict` if it has local changes."""
        if (old := await self.host.find(self.key)) is None:
            return difference
        async with old:
            if _volume(old.spec) != _volume(spec):
                difference = _another_volume(_volume(old.spec), _volume(spec))
            await self._refuse_loss(old, difference)
        return difference

    async def _keep_files(self) -> str:
        """A box that does not start cannot be checked for changes. Keep its files in a snapshot, if possible."""
        with suppress(BoxError):
            if (old := await self.host.find(self.key)) is not None:
                async with old:
                    return f"; its files are kept in snapshot {(await old.snapshot()).id}"
        return ""

    async def _recreate(self, spec: BoxSpec, reason: str) -> tuple[Kind, str]:
        await self._ensure_volume(spec)
        acquired = await self.host.acquire(self.key, spec, fresh=True)
        await self._use(acquired.box)
        return describe(acquired, instead=reason)

    async def _use(self, box: Box) -> None:
        """Replace the handle of the box."""
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
            changed += _describe_checkout(checkout, repository)
        if survey is not None and survey.digest != await context_files.staged(box, workdir):
            await context_files.stage(box, workdir, survey)
            files = f"{survey.files} context file{'s' if survey.files > 1 else ''}"
            changed.append(f"staged {files}" if survey.items else "cleared the context")
            await context_files.link(box, workdir)
        if self.on_change is not None:
            await self.on_change(box)
        return replace(
            begun,
            changed=tuple(changed),
            checkout=checkout,
            context_files=None if survey is None else survey.files,
        )


def _volume(spec: BoxSpec) -> str | None:
    mounted = volume_of(spec.volumes)
    return None if mounted is None else mounted.volume


def _describe_checkout(checkout: CheckedOut, repository: Repository) -> list[str]:
    if not checkout.steps:
        return []
    done = "cloned" if Step.SWITCH in checkout.steps else "updated"
    where = f"{checkout.branch} at {checkout.commit[:12]}" if checkout.branch else checkout.commit[:12]
    return [f"{done} {repository}: {where}", *(f"kept {each}" for each in checkout.kept)]
