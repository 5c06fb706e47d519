"""Where sandboxes begin: images by name, pulled when they are missing, and images built from Dockerfiles."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Final

from holdfast.api.box.box import Box
from holdfast.api.box.network import Network, NetworkPolicy
from holdfast.api.box.spec import BoxSpec
from holdfast.api.errors.boxes import BoxError, ImageNotFound
from holdfast.api.ids import now_ms
from holdfast.boxes.images import local_name
from holdfast.boxes.service.boxes import Boxes
from holdfast.compat.daytona.http.errors import ApiError, bad_request
from holdfast.compat.daytona.records import Record, RecordStore
from holdfast.compat.daytona.snapshot.dockerfile import BuildPlan, Run, read_dockerfile
from holdfast.images.registry.pull import Puller

KIND: Final = "build"
_STEP_SECONDS: Final = 3600.0
log = logging.getLogger(__name__)

Log = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Origin:
    """What the files of a new box are."""

    image: str | None = None
    snapshot: str | None = None
    """Of a box. It is in `image`, if there is one."""
    env: dict[str, str] = field(default_factory=dict)
    workdir: str | None = None
    user: str | None = None
    """The user of the image."""
    entrypoint: tuple[str, ...] = ()
    """What a sandbox runs when it starts. That of an image itself is not run."""


class Images:
    """Finds, pulls and builds images for one tenant. Builds are kept: the same Dockerfile is built once."""

    def __init__(
        self,
        boxes: Boxes,
        records: RecordStore,
        puller: Callable[[], Awaitable[Puller]],
        network_ready: Callable[[], Awaitable[None]],
    ) -> None:
        self._boxes = boxes
        self._records = records
        self._puller = puller
        self._network_ready = network_ready
        self._building: dict[str, asyncio.Lock] = {}

    async def named(self, name: str, provider: str, log: Log = lambda line: None) -> Origin:
        """Returns an image, pulled if the provider's store does not have it."""
        store = self._boxes.provider(provider).images
        if store is None or not store.takes_pulled:
            return Origin(name, user="root")  # the provider pulls it when the box is created
        called = local_name(name)
        try:
            image = await store.get(called)
        except ImageNotFound:
            log(f"Pulling {name}")
            try:
                image = await (await self._puller()).pull(store, name)
            except BoxError as error:
                raise bad_request(
                    f"image {name} is not on this machine and could not be pulled: {error.message}"
                ) from None
        workdir = image.config.workdir
        user = (image.config.user or "").partition(":")[0]
        return Origin(called, workdir=workdir if workdir and workdir != "/" else None, user=user or "root")

    async def at_hand(self, dockerfile: str, provider: str) -> Origin | None:
        """Returns what a Dockerfile describes if nothing has to be pulled or built for it. Raises for a bad one."""
        plan = read_dockerfile(dockerfile)
        store = self._boxes.provider(provider).images
        if store is not None and store.takes_pulled:
            try:
                await store.get(local_name(plan.image))
            except ImageNotFound:
                return None
        if not plan.is_plain and await self._earlier(_digest(dockerfile, provider)) is None:
            return None
        return await self.built(dockerfile, provider)

    async def built(self, dockerfile: str, provider: str, log: Log = lambda line: None) -> Origin:
        """Returns what a Dockerfile describes, built in a box if this was not done before."""
        plan = read_dockerfile(dockerfile)
        base = await self.named(plan.image, provider, log)
        if plan.is_plain:
            return replace(base, entrypoint=plan.entrypoint)
        env, workdir = dict(plan.env), plan.workdir or base.workdir
        digest = _digest(dockerfile, provider)
        lock = self._building.setdefault(digest, asyncio.Lock())
        async with lock:
            snapshot = await self._earlier(digest)
            if snapshot is None:
                snapshot = await self._build(plan, base, provider, log)
                now = now_ms()
                await self._records.remove(self._boxes.tenant, KIND, digest)
                document = {"snapshot": snapshot}
                await self._records.insert(self._boxes.tenant, Record(KIND, digest, digest, document, now, now))
        self._building.pop(digest, None)
        return Origin(base.image, snapshot, env, workdir, base.user, plan.entrypoint)

    async def _earlier(self, digest: str) -> str | None:
        record = await self._records.find(self._boxes.tenant, KIND, digest)
        if record is None:
            return None
        there = {each.id for each in await self._boxes.snapshots()}
        return record.document["snapshot"] if record.document["snapshot"] in there else None

    async def _build(self, plan: BuildPlan, base: Origin, provider: str, log: Log) -> str:
        await self._network_ready()
        spec = BoxSpec(provider=provider, image=base.image, network=NetworkPolicy(Network.OPEN))
        row = await self._boxes.create(spec)
        try:
            with self._boxes.using(row.id):
                async with await self._boxes.open(row.id) as box:
                    for number, step in enumerate(plan.steps, 1):
                        log(f"Step {number}/{len(plan.steps)} : {step.text[:500]}")
                        await _carry_out(step, box, log)
            return (await self._boxes.snapshot(row.id)).id
        finally:
            await asyncio.shield(self._boxes.delete(row.id))


def _digest(dockerfile: str, provider: str) -> str:
    return hashlib.sha256(f"{provider}\0{dockerfile}".encode()).hexdigest()


async def _carry_out(step: Run, box: Box, log: Log) -> None:
    def show(data: bytes) -> None:
        for line in data.decode("utf-8", "replace").splitlines():
            log(line)

    done = await box.exec(
        step.argv, env=step.env, cwd=step.workdir, timeout=_STEP_SECONDS, on_stdout=show, on_stderr=show
    )
    if not done.ok:
        raise ApiError(400, f"the build failed: {step.text[:300]} exited with {done.exit_code}")
