"""Builds an image by a plan: in a box, step by step, with a snapshot after each as the cache.

A build starts after the last cached step. If a step fails, the box is deleted, the snapshots of earlier steps stay, and
the next build continues there.
"""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Mapping
from typing import Final

from holdfast.api.box.box import Box
from holdfast.api.box.network import Network, NetworkPolicy
from holdfast.api.box.snapshots import Snapshot
from holdfast.api.errors.boxes import CannotExecute, ExecTimeout, SnapshotInUse, SnapshotNotFound
from holdfast.api.images import Image
from holdfast.api.progress import Progress
from holdfast.images.build_host import BUILD, BUILD_OF, BuildHost, LastOutput, build_spec, image_or_none, temporary_box
from holdfast.images.errors import StepFailed
from holdfast.images.plan import INSTALL, CommandStep, FilesStep, PackagesStep, Plan, Step

_STEP_SECONDS: Final = 4 * 3600.0


async def build(
    host: BuildHost,
    plan: Plan,
    name: str,
    network: NetworkPolicy,
    progress: Progress,
    *,
    cache: bool = True,
    labels: Mapping[str, str] | None = None,
) -> Image:
    """Build the image under this name. Without the cache every step is run, and its snapshot replaces the old one.

    `labels` are stored with the image, in addition to the build's own.
    """
    if cache and (image := await image_or_none(host, name)) and _is_made_so(image, plan, labels or {}):
        for step in plan.steps:
            progress.skip(step.kind, step.what)
        return image
    known = _by_hash(await host.snapshots()) if cache else {}
    done = next((number for number in range(len(plan.steps), 0, -1) if plan.steps[number - 1].hash in known), 0)
    for step in plan.steps[:done]:
        progress.skip(step.kind, step.what)
    snapshot = known[plan.steps[done - 1].hash].id if done else None
    if snapshot is None or done < len(plan.steps):
        snapshot = await _work(host, plan, done, snapshot, name, network, progress)
    image_labels = {**(labels or {}), BUILD: plan.hash, BUILD_OF: name}
    image = await host.name_snapshot(snapshot, name, config=plan.config, labels=image_labels)
    await forget(host, name, keep={step.hash for step in plan.steps}, latest=snapshot)
    return image


async def forget(host: BuildHost, name: str, *, keep: set[str], latest: str | None = None) -> None:
    """Delete snapshots of steps that the recipe no longer has, and duplicates."""
    newest = {hash: snapshot.id for hash, snapshot in _by_hash(await host.snapshots()).items()}
    for snapshot in await host.snapshots():
        hash = snapshot.labels.get(BUILD, "")
        if snapshot.labels.get(BUILD_OF) != name or snapshot.id == latest:
            continue
        if hash not in keep or newest.get(hash) != snapshot.id:
            with contextlib.suppress(SnapshotNotFound, SnapshotInUse):
                await host.delete_snapshot(snapshot.id)


async def _work(
    host: BuildHost,
    plan: Plan,
    done: int,
    snapshot: str | None,
    name: str,
    network: NetworkPolicy,
    progress: Progress,
) -> str:
    """Run the remaining steps. Returns the snapshot id of the last one."""
    spec = build_spec(host, plan.base.name, network, name)
    begun = host.create(spec) if snapshot is None else host.restore(snapshot, spec)
    async with temporary_box(await begun) as box:
        for step in plan.steps[done:]:
            progress.begin(step.kind, step.what)
            await _perform(box, step, plan, network, progress)
            snapshot = (await box.snapshot(labels={BUILD: step.hash, BUILD_OF: name})).id
            progress.end()
        if snapshot is None:  # a recipe without steps: only another name or other variables
            snapshot = (await box.snapshot(labels={BUILD: plan.hash, BUILD_OF: name})).id
    return snapshot


async def _perform(box: Box, step: Step, plan: Plan, network: NetworkPolicy, progress: Progress) -> None:
    match step:
        case FilesStep():
            for target, source in step.files.items():
                await box.files.upload(source, target)
        case PackagesStep():
            await _run(box, ("/bin/sh", "-c", INSTALL, "install", *step.packages), step, plan, network, progress, "/")
        case CommandStep():
            workdir = plan.config.workdir
            if workdir is not None:
                await box.files.mkdir(workdir)
            await _run(box, step.command, step, plan, network, progress, workdir or "/")


async def _run(
    box: Box,
    command: tuple[str, ...],
    step: Step,
    plan: Plan,
    network: NetworkPolicy,
    progress: Progress,
    workdir: str,
) -> None:
    output = LastOutput()

    def take(data: bytes) -> None:
        output.take(data)
        progress.output(data)

    hint = "mend it, and build again: the steps before it are kept"
    if network.mode is Network.NONE:
        hint += '. The recipe says network = "none": what it does must need no network'
    try:
        done = await box.exec(command, env=plan.env, cwd=workdir, timeout=_STEP_SECONDS, on_stdout=take, on_stderr=take)
    except ExecTimeout:
        raise StepFailed(
            f"this did not end within {_STEP_SECONDS / 3600:.0f} hours: {step.what}", output=output.data, hint=hint
        ) from None
    except CannotExecute as error:
        raise StepFailed(
            f"this cannot be run: {shlex.join(command)[:200]}: {error.message}", output=output.data, hint=hint
        ) from None
    if not done.ok:
        raise StepFailed(f"this ended with {done.exit_code}: {step.what}", output=output.data, hint=hint)


def _is_made_so(image: Image, plan: Plan, labels: Mapping[str, str]) -> bool:
    wanted = {**labels, BUILD: plan.hash}
    return all(image.labels.get(name) == value for name, value in wanted.items())


def _by_hash(snapshots: list[Snapshot]) -> dict[str, Snapshot]:
    """Returns the newest snapshot of each hash."""
    return {snapshot.labels[BUILD]: snapshot for snapshot in snapshots if BUILD in snapshot.labels}
