"""Sandboxes over boxes: creating, finding, listing and their lifecycle."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, Final

from holdfast.api.box.box import Box
from holdfast.api.box.network import NetworkPolicy
from holdfast.api.box.records import BoxState
from holdfast.api.box.spec import BoxSpec
from holdfast.api.errors.boxes import BoxConflict, BoxError, BoxNotFound
from holdfast.api.ids import new_id
from holdfast.boxes.capabilities import Capability
from holdfast.boxes.rows import BoxRow
from holdfast.boxes.service.boxes import Boxes
from holdfast.compat.daytona import entrypoint
from holdfast.compat.daytona.http.errors import ApiError, bad_request, conflict, not_found, not_supported
from holdfast.compat.daytona.intervals import Due, due
from holdfast.compat.daytona.models import NewNetwork, NewSandbox, Resources
from holdfast.compat.daytona.network import policy_of
from holdfast.compat.daytona.pending import Pending
from holdfast.compat.daytona.records import Record, RecordStore
from holdfast.compat.daytona.sandbox_record import KIND, Sandbox, SandboxDetails
from holdfast.compat.daytona.secrets import DaytonaSecrets, NewMounts
from holdfast.compat.daytona.snapshot.images import Images, Origin
from holdfast.compat.daytona.snapshot.snapshots import DEFAULT, Snapshots
from holdfast.compat.daytona.volumes import Volumes

HOME: Final = "/home/daytona"
"""Daytona's own. Programs name it, so it is the home and the working folder of sandboxes without an image."""
_ENVIRONMENT: Final = {
    "HOME": HOME,
    "PATH": f"{HOME}/.local/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
}
_OWN_VARIABLES: Final = frozenset({*_ENVIRONMENT, "USER", "LOGNAME"})
_USER: Final = "daytona"
_USER_NAME: Final = re.compile(r"(?!(?:root|nobody|nogroup)$)[a-z_][a-z0-9_-]{0,31}")
_GIGABYTE: Final = 1 << 30
_MOST: Final = 10_000
_SWEEP_SECONDS: Final = 10.0
_LIMITS: Final = {
    "cpu": Capability.CPU_LIMIT,
    "memory": Capability.MEMORY_LIMIT,
    "disk": Capability.DISK_LIMIT,
}
_ON_THIS_MACHINE: Final = frozenset({"local", "docker"})
"""Providers whose boxes may use what the machine has, if they have no limit of their own."""
log = logging.getLogger(__name__)


class Sandboxes:
    """The sandboxes of one tenant. Owns the task that watches their intervals, from `open` to `close`."""

    def __init__(
        self,
        boxes: Boxes,
        records: RecordStore,
        images: Images,
        snapshots: Snapshots,
        volumes: Volumes,
        secrets: DaytonaSecrets,
        network_ready: Callable[[], Awaitable[None]],
        set_public: Callable[[str, bool], None],
        close_ports: Callable[[str], None],
    ) -> None:
        """`set_public` and `close_ports` are called with the id of a box: who may visit its ports, and that nobody can
        any more."""
        self.boxes = boxes
        self._records = records
        self._images = images
        self._snapshots = snapshots
        self._volumes = volumes
        self._secrets = secrets
        self._network_ready = network_ready
        self._set_public = set_public
        self._close_ports = close_ports
        self._used: Counter[str] = Counter()
        self._watch: asyncio.Task[None] | None = None
        self._listeners: set[Callable[[Sandbox, str], None]] = set()
        self.pending = Pending(self._tell)

    @property
    def tenant(self) -> str:
        return self.boxes.tenant

    def open(self) -> None:
        self._watch = asyncio.create_task(self._keep_watch(), name="intervals of Daytona sandboxes")

    async def close(self) -> None:
        await self.pending.close()
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.gather(self._watch, return_exceptions=True)

    # --- events ---

    @contextlib.contextmanager
    def listening(self, listener: Callable[[Sandbox, str], None]) -> Iterator[None]:
        """Call `listener` with each sandbox whose state changed, and its new state."""
        self._listeners.add(listener)
        try:
            yield
        finally:
            self._listeners.discard(listener)

    def _tell(self, sandbox: Sandbox, state: str | None = None) -> Sandbox:
        for listener in list(self._listeners):
            listener(sandbox, state or sandbox.state)
        return sandbox

    # --- finding ---

    async def find_any(self, id_or_name: str) -> Sandbox:
        """Returns a sandbox, also one that has no box yet."""
        return self.pending.find(id_or_name) or await self._find(id_or_name)

    async def find(self, id_or_name: str) -> Sandbox:
        """Returns a sandbox that has a box."""
        if (pending := self.pending.find(id_or_name)) is not None:
            raise bad_request(f"Sandbox {pending.id} is {pending.state}: is it started?")
        return await self._find(id_or_name)

    async def _find(self, id_or_name: str) -> Sandbox:
        record, row = None, None
        if len(id_or_name) <= 255:
            # Read at once: nearly every sandbox has the id of its box, and nearly every request names it so.
            finding = self._records.find(self.tenant, KIND, id_or_name)
            record, row = await asyncio.gather(finding, self._row(id_or_name))
        if record is not None:
            if row is None or row.id != record.document["box"]:
                row = await self._row(record.document["box"])
            if row is not None and not row.tombstone:
                return Sandbox(record, row)
            await self._records.remove(self.tenant, KIND, record.id)  # its box was deleted outside of this API
        raise not_found(f"Sandbox with ID or name {id_or_name[:200]} not found")

    async def _row(self, box: str) -> BoxRow | None:
        try:
            return await self.boxes.get(box)
        except BoxNotFound:
            return None

    async def all(self) -> list[Sandbox]:
        """All sandboxes, newest first."""
        live, records = await asyncio.gather(
            self.boxes.rows.live(self.tenant, self.boxes.node), self._records.list(self.tenant, KIND)
        )
        rows = {row.id: row for row in live}
        found = [(record, rows.get(record.document["box"])) for record in records]
        return [*self.pending.all(), *(Sandbox(record, row) for record, row in found if row is not None)]

    # --- creating ---

    def provider_of(self, target: str | None) -> str:
        """A target that is the name of a provider selects it. Any other is the default one."""
        return target if target is not None and target in self.boxes.providers else BoxSpec().provider

    async def create(self, new: NewSandbox, by: str) -> Sandbox:
        _refuse_unsupported(new)
        if await self._records.count(self.tenant, KIND) >= _MOST:
            raise ApiError(403, f"this server keeps at most {_MOST} sandboxes")
        policy_of(bool(new.network_block_all), new.network_allow_list, new.domain_allow_list)  # raises
        provider = self.provider_of(new.target)
        mounts = await self._volumes.mounts(new.volumes or [])
        snapshot = None
        limited = {name: getattr(new, name) for name in _LIMITS if getattr(new, name) is not None}
        resources: dict[str, int] = {"cpu": 1, "memory": 1, "disk": 3}
        origin: Origin | None
        if new.build_info is not None:
            origin = await self._images.at_hand(new.build_info.dockerfile_content, provider)
        else:
            snapshot = await self._snapshots.find(new.snapshot or DEFAULT)
            if limited:
                raise bad_request("Cannot specify Sandbox resources when using a snapshot")
            resources = {name: snapshot.document[name] for name in _LIMITS}
            limited = {name: snapshot.document[name] for name in snapshot.document["limited"]}
            origin = await self._snapshots.origin(snapshot)
        secrets = await self._secrets.mount(new.secrets or [], by)
        details = partial(
            SandboxDetails,
            labels=new.labels or {},
            env=new.env or {},
            public=bool(new.public),
            target=new.target or provider,
            snapshot=None if snapshot is None else snapshot.name,
            **{**resources, **limited},
            auto_stop=_or(new.auto_stop_interval, 15),
            auto_pause=_or(new.auto_pause_interval, 0),
            auto_archive=_or(new.auto_archive_interval, 7 * 24 * 60),
            auto_delete=_or(new.auto_delete_interval, -1),
            ttl_minutes=_or(new.ttl_minutes, 0),
            block_all=bool(new.network_block_all),
            allow_list=new.network_allow_list,
            domains=new.domain_allow_list,
            volumes=[each.model_dump(by_alias=True, exclude_none=True) for each in new.volumes or []],
            dockerfile=None if new.build_info is None else new.build_info.dockerfile_content,
            secrets=secrets,
        )
        policy = details(box="").policy
        spec = BoxSpec(provider=provider, volumes=mounts, network=policy, **self._limits(provider, limited))

        def with_box(box: str, origin: Origin | None) -> SandboxDetails:
            entrypoint = [] if origin is None else list(origin.entrypoint)
            return details(box=box, user=user_of(new.user, origin), entrypoint=entrypoint)

        if origin is None:
            assert new.build_info is not None
            return await self._begin_build(new.name, new.build_info.dockerfile_content, spec, with_box)
        beginning, user = origin, user_of(new.user, origin)
        return await self._made(
            new.name, lambda box: with_box(box, beginning), lambda: self._box(spec, beginning, user)
        )

    async def _begin_build(
        self, name: str | None, dockerfile: str, spec: BoxSpec, details: Callable[[str, Origin | None], SandboxDetails]
    ) -> Sandbox:
        """Answer at once with a sandbox that has no box yet. The build goes on, and its log can be followed."""
        await self._check_free(name)
        id, now = new_id("b"), self.boxes.clock()
        # The SDKs keep what they are told first: of images, nearly all have this user.
        record = Record(
            KIND, id, name or id, details(id, Origin(image=dockerfile, user="root")).to_document(), now, now
        )
        row = BoxRow(
            id=id,
            tenant=self.tenant,
            node=self.boxes.node,
            provider=spec.provider,
            key=None,
            spec=spec,
            labels={},
            state=BoxState.CREATING,
            created_at=now,
            changed_at=now,
            last_active_at=now,
        )

        async def make(log: Callable[[str], None]) -> None:
            origin = await self._images.built(dockerfile, spec.provider, log)
            await self._made(record.name, lambda box: details(box, origin), lambda: self._box(spec, origin, _USER), id)

        return self.pending.begin(Sandbox(record, row), make)

    async def _box(self, spec: BoxSpec, origin: Origin, user: str) -> BoxRow:
        own = {} if origin.image else {**_ENVIRONMENT, "USER": user, "LOGNAME": user}
        spec = replace(
            spec,
            image=origin.image,
            env={**own, **origin.env},
            workdir=origin.workdir or HOME,
        )
        if spec.network != NetworkPolicy():
            await self._network_ready()
        if origin.snapshot is not None:
            return await self.boxes.restore(origin.snapshot, spec)
        return await self.boxes.create(spec)

    async def _made(
        self,
        name: str | None,
        details: Callable[[str], SandboxDetails],
        make: Callable[[], Awaitable[BoxRow]],
        id: str | None = None,
    ) -> Sandbox:
        """Make the box, then write the record. A failure leaves neither. A sandbox has the id of its box, if no other
        is given."""
        if id is None:
            await self._check_free(name)
        row = await make()
        now = self.boxes.clock()
        record = Record(KIND, id or row.id, name or row.id, details(row.id).to_document(), now, now)
        try:
            if not await self._records.insert(self.tenant, record):
                raise conflict(f"Sandbox with name {name} already exists")
        except BaseException:
            await asyncio.shield(self.boxes.delete(row.id))
            raise
        sandbox = Sandbox(record, row)
        self._set_public(row.id, sandbox.details.public)
        await self._run_entrypoint(sandbox)
        return self._tell(sandbox)

    async def _run_entrypoint(self, sandbox: Sandbox) -> None:
        """Run it in a box that has no process yet. A sandbox is started also if that fails."""
        details = sandbox.details
        if not details.entrypoint:
            return
        try:
            async with self.opened(sandbox) as box:
                await entrypoint.begin(box, details.entrypoint, details.variables)
        except (BoxError, ApiError, TimeoutError) as error:
            log.warning("Daytona sandbox %s: its entrypoint could not be run: %s", sandbox.id, error)

    async def _check_free(self, name: str | None) -> None:
        if name is None:
            return
        if self.pending.find(name) is not None or await self._records.find(self.tenant, KIND, name) is not None:
            raise conflict(f"Sandbox with name {name} already exists")

    def _limits(self, provider: str, wanted: dict[str, int]) -> dict[str, Any]:
        """Limits that the provider can keep. Daytona's are sizes of a machine, so others are left out, not refused."""
        able = self.boxes.provider(provider).capabilities
        limits: dict[str, Any] = {}
        for name, value in wanted.items():
            if _LIMITS[name] in able:
                limits[name] = float(value) if name == "cpu" else value * _GIGABYTE
        return limits

    # --- changing ---

    async def change(self, sandbox: Sandbox, **changes: Any) -> Sandbox:
        return await self._change(sandbox, **changes)

    async def _change(self, sandbox: Sandbox, row: BoxRow | None = None, **changes: Any) -> Sandbox:
        record = await self._records.change(
            self.tenant, KIND, sandbox.id, lambda document: {**document, **changes}, self.boxes.clock()
        )
        if record is None:
            raise not_found(f"Sandbox with ID or name {sandbox.id} not found")
        return Sandbox(record, row or sandbox.row)

    async def set_public(self, sandbox: Sandbox, public: bool) -> Sandbox:
        """Let anybody visit the ports of a sandbox, or not."""
        changed = await self._change(sandbox, public=public)
        self._set_public(sandbox.row.id, public)
        return changed

    async def set_network(self, sandbox: Sandbox, new: NewNetwork) -> Sandbox:
        details = sandbox.details
        block_all = details.block_all if new.network_block_all is None else new.network_block_all
        allow_list = details.allow_list if new.network_allow_list is None else new.network_allow_list or None
        domains = details.domains if new.domain_allow_list is None else new.domain_allow_list or None
        if new.network_block_all:  # lists from before do not count
            allow_list, domains = new.network_allow_list or None, new.domain_allow_list or None
        elif allow_list or domains:
            block_all = bool(new.network_block_all)
        return await self._set_policy(sandbox, block_all=block_all, allow_list=allow_list, domains=domains)

    async def set_secrets(self, sandbox: Sandbox, new: NewMounts, by: str) -> Sandbox:
        """Mount these secrets in place of those that are mounted."""
        return await self._set_policy(sandbox, secrets=await self._secrets.mount(new.secrets, by))

    async def _set_policy(self, sandbox: Sandbox, **changes: Any) -> Sandbox:
        policy = replace(sandbox.details, **changes).policy
        if policy != NetworkPolicy():
            await self._network_ready()
        row = await self.boxes.set_network(sandbox.row.id, policy)
        return await self._change(sandbox, row, **changes)

    # --- lifecycle ---

    async def start(self, sandbox: Sandbox) -> Sandbox:
        if sandbox.row.state is BoxState.RUNNING:
            return sandbox
        had_processes = sandbox.row.state not in (BoxState.STOPPED, BoxState.HIBERNATED)
        sandbox = replace(sandbox, row=await self.boxes.start_box(sandbox.row.id))
        if sandbox.details.archived:
            sandbox = await self._change(sandbox, archived=False)
        if not had_processes:
            await self._run_entrypoint(sandbox)
        return self._tell(sandbox)

    async def stop(self, sandbox: Sandbox) -> Sandbox:
        if sandbox.state in ("stopped", "archived"):
            raise bad_request("Sandbox is not started")
        return await self._stopped(sandbox, await self.boxes.stop(sandbox.row.id))

    async def _stopped(self, sandbox: Sandbox, row: BoxRow) -> Sandbox:
        stopped = self._tell(replace(sandbox, row=row))
        if stopped.details.auto_delete == 0:
            with contextlib.suppress(BoxConflict):  # it was started again at once
                await self._delete_unused(stopped)
        return stopped

    async def _stop_unused(self, sandbox: Sandbox) -> Sandbox:
        return await self._stopped(sandbox, await self.boxes.stop_unused(sandbox.row))

    async def _pause_unused(self, sandbox: Sandbox) -> Sandbox:
        return self._tell(replace(sandbox, row=await self.boxes.pause_unused(sandbox.row)))

    async def _delete_unused(self, sandbox: Sandbox) -> Sandbox:
        await self.boxes.delete_unused(sandbox.row, "deleted, as its intervals ask for")
        return await self._forget(sandbox)

    async def pause(self, sandbox: Sandbox) -> Sandbox:
        if sandbox.row.state is not BoxState.RUNNING:
            raise bad_request("Sandbox is not started")
        return self._tell(replace(sandbox, row=await self.boxes.pause(sandbox.row.id)))

    async def archive(self, sandbox: Sandbox) -> Sandbox:
        """Mark a stopped sandbox as archived. Its files are on this machine anyway, so nothing is moved."""
        if sandbox.state != "stopped":
            raise bad_request("Sandbox is not stopped")
        return self._tell(await self._change(sandbox, archived=True))

    async def delete(self, sandbox: Sandbox) -> Sandbox:
        if sandbox.phase is not None:
            await self.pending.remove(sandbox.id)
            return self._tell(sandbox, "destroyed")
        await self.boxes.delete(sandbox.row.id)
        return await self._forget(sandbox)

    async def _forget(self, sandbox: Sandbox) -> Sandbox:
        self._close_ports(sandbox.row.id)
        await self._records.remove(self.tenant, KIND, sandbox.id)
        return self._tell(sandbox, "destroyed")

    async def fork(self, sandbox: Sandbox, name: str | None) -> Sandbox:
        details = partial(replace, sandbox.details, parent=sandbox.id, archived=False, expired_previews=[], links=[])
        return await self._made(name, lambda box: details(box=box), lambda: self.boxes.fork(sandbox.row.id))

    async def snapshot(self, sandbox: Sandbox, name: str) -> Record:
        details, spec = sandbox.details, sandbox.row.spec
        like = {
            "image": spec.image,
            "env": {name: value for name, value in spec.env.items() if name not in _OWN_VARIABLES},
            "user": details.user,
            "workdir": spec.workdir,
            "cpu": details.cpu,
            "memory": details.memory,
            "disk": details.disk,
            "limited": [name for name in _LIMITS if getattr(spec, name) is not None],
            "entrypoint": details.entrypoint,
        }
        return await self._snapshots.of_sandbox(sandbox.id, sandbox.row.id, name, like)

    async def resize(self, sandbox: Sandbox, wanted: Resources) -> Sandbox:
        """Give a sandbox other limits. Boxes keep theirs, so its files move to a new box, and its processes end.

        A running one that may use more than that already stays as it is.
        """
        given = {name: getattr(wanted, name) for name in _LIMITS if getattr(wanted, name) is not None}
        if not given:
            raise bad_request("at least one of cpu, memory and disk is needed")
        details, row = sandbox.details, sandbox.row
        if row.state is BoxState.PAUSED:  # its processes wait, and would end
            raise bad_request("Sandbox is paused: start or stop it before it is resized")
        started = row.state is BoxState.RUNNING
        if "disk" in given and given["disk"] < details.disk:
            raise bad_request(f"Disk size cannot be decreased from {details.disk} to {given['disk']}")
        if "disk" in given and given["disk"] != details.disk and started:
            raise bad_request("Disk can be resized only while the sandbox is stopped")
        for name, label in (("cpu", "CPU"), ("memory", "Memory")):
            if started and given.get(name, getattr(details, name)) < getattr(details, name):
                change = f"from {getattr(details, name)} to {given[name]}"
                raise bad_request(f"{label} of a running sandbox cannot be decreased {change}: stop it before")
        limits = self._limits(row.provider, given)
        if started and row.provider in _ON_THIS_MACHINE:
            limits = {name: value for name, value in limits.items() if getattr(row.spec, name) is not None}
        if not any(getattr(row.spec, name) != value for name, value in limits.items()):
            return await self._change(sandbox, **given)
        taken = await self.boxes.snapshot(row.id)
        try:
            moved = await self.boxes.restore(taken.id, replace(row.spec, **limits))
        finally:
            with contextlib.suppress(BoxError):  # the new box may still need its files: then it stays
                await self.boxes.delete_snapshot(taken.id)
        if not started:
            moved = await self.boxes.stop(moved.id)
        sandbox = await self._change(sandbox, moved, box=moved.id, links=[], **given)
        if started:
            await self._run_entrypoint(sandbox)
        self._set_public(moved.id, details.public)
        await self.boxes.delete(row.id)
        self._close_ports(row.id)
        return self._tell(sandbox)

    # --- use ---

    async def note_activity(self, sandbox: Sandbox) -> None:
        """Write at once that a sandbox is used. Of other use, each sweep of the boxes writes it."""
        await self.boxes.rows.touch(self.tenant, sandbox.row.id, BoxState.RUNNING, self.boxes.clock())

    @contextlib.contextmanager
    def _using(self, id: str) -> Iterator[None]:
        self._used[id] += 1
        try:
            yield
        finally:
            self._used[id] -= 1
            if not self._used[id]:
                del self._used[id]

    @contextlib.asynccontextmanager
    async def opened(self, sandbox: Sandbox) -> AsyncIterator[Box]:
        """A handle on the box of a started sandbox, which is in use meanwhile."""
        if sandbox.row.state in (BoxState.STOPPED, BoxState.STOPPING):
            raise bad_request(f"Sandbox {sandbox.id} is {sandbox.state}: is it started?")
        with self._using(sandbox.id), self.boxes.working(sandbox.row.id):
            async with await self.boxes.open(sandbox.row.id) as box:
                yield box

    # --- intervals ---

    async def _keep_watch(self) -> None:
        # At first, all count as in use: their clients come back when the server does.
        all_in_use = True
        while True:
            try:
                await self.sweep(all_in_use=all_in_use)
            except Exception:
                log.exception("the intervals of Daytona sandboxes could not be checked")
            all_in_use = False
            await asyncio.sleep(_SWEEP_SECONDS)

    async def sweep(self, *, all_in_use: bool = False) -> None:
        """Do what the intervals of sandboxes ask for now."""
        actions = {
            Due.STOP: self._stop_unused,
            Due.PAUSE: self._pause_unused,
            Due.ARCHIVE: self.archive,
            Due.DELETE: self._delete_unused,
            Due.END: self.delete,
        }

        def judge(sandbox: Sandbox) -> Due | None:
            return due(sandbox, self.boxes.clock(), in_use=all_in_use or sandbox.id in self._used)

        for listed in await self.all():
            if listed.phase is not None or judge(listed) is None:
                continue
            try:
                # Read again: the list is old by now, because what it asks for takes time.
                sandbox = await self._find(listed.id)
                what = judge(sandbox)
                if what is None:
                    continue
                await actions[what](sandbox)
                log.info("Daytona sandbox %s: %s, as its intervals ask for", sandbox.id, what.value)
            except (BoxConflict, ApiError):
                continue  # somebody uses or changes it just now
            except BoxError as error:
                log.warning("Daytona sandbox %s: cannot do what its intervals ask for: %s", listed.id, error)


def user_of(wanted: str | None, origin: Origin | None) -> str:
    """The user of a new sandbox, as `whoami` says it. Images have their own. Nobody is root without an image."""
    if origin is not None and origin.image is not None:
        return origin.user or "root"
    return wanted if wanted is not None and _USER_NAME.fullmatch(wanted) else _USER


def _refuse_unsupported(new: NewSandbox) -> None:
    """Raises for what would silently be something else."""
    if new.gpu:
        raise not_supported("this server has no GPUs")
    if new.outbound_proxy_url:
        raise not_supported("this server cannot give one sandbox a proxy: start it with --egress-proxy")
    if new.linked_sandbox:
        raise not_supported("this server cannot link sandboxes")
    if new.build_info is not None and new.snapshot is not None:
        raise bad_request("either snapshot or buildInfo, not both")
    if new.build_info is not None and new.build_info.context_hashes:
        raise not_supported("this server takes no build context: upload the files into a sandbox and take a snapshot")


def _or(value: int | None, default: int) -> int:
    return default if value is None else value
