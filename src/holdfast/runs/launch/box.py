"""The box of a launch: acquired, moved or restored, opened, and with the files that the run begins with."""

from __future__ import annotations

import asyncio
import json
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Protocol

from holdfast.api.box.box import Box, Liveness
from holdfast.api.box.network import Network, NetworkPolicy
from holdfast.api.box.records import BoxState, Owner
from holdfast.api.box.spec import BoxSpec
from holdfast.api.environments import EnvironmentUse
from holdfast.api.errors.boxes import (
    BoxConflict,
    BoxGone,
    BoxStopped,
    BoxUnreachable,
    SnapshotNotFound,
    Unsupported,
)
from holdfast.boxes.capabilities import Capability
from holdfast.boxes.labels import BASE, BASE_LOST, KEY, MOVED_FROM, TENANT
from holdfast.boxes.rows import BoxRow
from holdfast.boxes.service.acquire_rules import Acquired, BaseFiles, How
from holdfast.boxes.service.boxes import Boxes
from holdfast.boxes.workspace_copy import NOTES, home_of, is_noted
from holdfast.runs.errors import LaunchFailed
from holdfast.runs.launch.launch import Launch, LaunchBox, report
from holdfast.runs.launch.plan import key_of
from holdfast.runs.launch.sessions import FilesHow
from holdfast.runs.run_log import RunLog
from holdfast.runs.workspace.store import Workspaces
from holdfast.threads.checkpoints import Base
from holdfast.threads.run_events import box_found, environment_used, setup_run
from holdfast.time_limit import time_limit

_BOX_SECONDS: Final = 900.0
_GIT_IDENTITY: Final = b"[user]\n\tname = Holdfast agent\n\temail = agent@holdfast.invalid\n"
_BOX_TRIES: Final = 4
_SETUP_TRIES: Final = 3
_BOX_PAUSE: Final = 0.3
_STEP_SECONDS: Final = 300.0
_REMEMBERED: Final = 10_000


class RunSetups(Protocol):
    """The setups of environments, for runs."""

    async def ensure(
        self, use: EnvironmentUse, spec: BoxSpec, workspace: Path | None, on_build: Callable[[], Awaitable[None]]
    ) -> tuple[str, bool]:
        """Returns the snapshot that a new box starts from, and whether it was built now. Calls `on_build` first if it
        has to be built."""
        ...


class LaunchBoxes:
    """Finds the boxes of launches, and prepares them. Keeps no state of a run."""

    def __init__(
        self,
        log: RunLog,
        boxes: Boxes,
        workspaces: Workspaces,
        *,
        ticks: Callable[[], int],
        network_ready: Callable[[], Awaitable[None]],
        setups: RunSetups | None = None,
    ) -> None:
        self._log = log
        self._boxes = boxes
        self._workspaces = workspaces
        self._ticks = ticks
        self._network_ready = network_ready
        self._setups = setups
        self._homes: OrderedDict[str, str] = OrderedDict()

    @asynccontextmanager
    async def prepared(self, launch: Launch) -> AsyncIterator[LaunchBox]:
        """Yields the box of a launch, which is in use until the end of the block."""
        began = self._ticks()
        await self._report_environment(launch)
        moved_from = await self._ready_for(launch)
        for left in reversed(range(_BOX_TRIES)):
            acquired = await self._acquire(launch)
            with self._boxes.using(acquired.row.id):
                try:
                    prepared = await self._open(launch, acquired, began, moved_from)
                except (BoxStopped, BoxGone, BoxUnreachable, BoxConflict):
                    if not left:
                        raise
                else:
                    async with prepared.box:
                        yield prepared
                    return
            # The box was about to end or to move: for example, the previous run was killed with everything in it.
            await asyncio.sleep(_BOX_PAUSE)
        raise AssertionError("the last try returns or raises")

    async def _ready_for(self, launch: Launch) -> BoxRow | None:
        """Move the thread's box if this run wants another machine. Returns the old box if it was moved."""
        spec = launch.options.box
        if spec.network.mode is not Network.NONE:
            await self._network_ready()
        if launch.options.shares is not None:
            return None  # the box is another thread's, and stays as it is
        row = await self._boxes.of_key(key_of(launch.thread))
        if row is None:
            return None
        if launch.base is not None and row.labels.get(BASE) != launch.base.id:
            # Its files are not those of this conversation. What it has to start from may be of another machine than
            # this run wants, so that comes first.
            try:
                row = (await self.start_from(launch.thread, replace(spec, **_machine(launch.base)), launch.base)).row
            except SnapshotNotFound:
                return None  # the box is made without them, unless they are there and cannot be restored
        if not self._boxes.differs(row, spec):
            if launch.options.fresh:
                await self._retire(row)
            return None
        # Another provider is a choice: what else runs in the box is not ended for it.
        stops = Capability.STOP in self._boxes.provider(row.provider).capabilities
        try:
            moved = await self._boxes.move(row.id, lambda _: spec, stop=stops and row.provider == spec.provider)
        except BoxGone:
            return None
        return moved.source

    async def start_from(self, thread: str, spec: BoxSpec, base: Base) -> Acquired:
        """Returns the box of a thread that was forked or rewound. A box with other files is replaced."""
        if spec.network.mode is not Network.NONE:
            await self._network_ready()
        return await self._boxes.acquire(
            key_of(thread), spec, owner=Owner(thread=thread), timeout=_BOX_SECONDS, base=_base_files(base)
        )

    async def _report_environment(self, launch: Launch) -> None:
        use = launch.options.environment
        if use is not None:
            await self._report(
                launch,
                environment_used(run=launch.run, environment=use.reference, digest=use.digest, warnings=use.warnings),
            )

    async def _acquire(self, launch: Launch) -> Acquired:
        options, use = launch.options, launch.options.environment
        owner = Owner(thread=launch.thread, environment=None if use is None or use.is_file else use.group)
        key, spec = key_of(options.shares or launch.thread), options.box
        if options.shares is not None:
            row = await self._boxes.of_key(key)
            if row is None:
                raise LaunchFailed(
                    "box_gone",
                    f"the box of thread {options.shares}, which this thread shares, is gone",
                    f"continue that thread first: holdfast resume {options.shares}",
                )
            spec, owner = row.spec, row.owner
        elif launch.is_fork and await self._boxes.of_key(key) is None:
            assert options.forks is not None
            with suppress(BoxConflict):  # an earlier attempt has made it
                await self._boxes.fork(options.forks, owner=owner, key=key)
        base = None if options.shares is not None else _base_files(launch.base)
        for left in reversed(range(_SETUP_TRIES)):
            start = await self._set_up(launch, key, base)
            try:
                return await self._boxes.acquire(key, spec, owner=owner, timeout=_BOX_SECONDS, start=start, base=base)
            except SnapshotNotFound:
                if launch.base is not None and base is not None and base.required and await self._is_gone(launch.base):
                    base = replace(base, required=False)  # as for a thread whose box is gone
                elif start is None or not left:
                    raise  # otherwise, the setup was deleted meanwhile because there are newer ones
        raise AssertionError("the last try returns or raises")

    async def _is_gone(self, base: Base) -> bool:
        try:
            await self._boxes.find_snapshot(base.files.snapshot, base.files.provider)
        except SnapshotNotFound:
            return True
        return False

    async def _set_up(self, launch: Launch, key: str, base: BaseFiles | None) -> str | None:
        """Returns the snapshot with the setup of the environment, if a new box is needed."""
        use, spec = launch.options.environment, launch.options.box
        if use is None or not use.setup or self._setups is None or (base is not None and base.required):
            return None
        row = await self._boxes.of_key(key)
        if row is not None and (await self._boxes.look(row))[0] is not Liveness.GONE:
            return None
        own = {KEY: key, TENANT: self._boxes.tenant, **({} if base is None else {BASE: base.id})}
        if await self._boxes.provider(spec.provider).snapshots(own):
            return None  # the box had these files, and what came of them
        began = self._ticks()
        digest = launch.options.workspace or launch.before.workspace

        async def on_build() -> None:
            await self._report(launch, setup_run(run=launch.run, environment=use.reference, ms=None))

        workspace = None if digest is None else self._workspaces.path(digest)
        snapshot, built = await self._setups.ensure(use, spec, workspace, on_build)
        ms = self._ticks() - began
        await self._report(launch, setup_run(run=launch.run, environment=use.reference, ms=ms, built=built))
        return snapshot

    async def _retire(self, row: BoxRow) -> None:
        """Delete a box. If the provider has snapshots, the next box of its key starts from its files."""
        capabilities = self._boxes.provider(row.provider).capabilities
        with suppress(BoxGone, Unsupported):
            if Capability.STOP in capabilities and row.state is not BoxState.STOPPED:
                await self._boxes.stop(row.id)
            if Capability.SNAPSHOTS in capabilities:
                await self._boxes.snapshot(row.id)
        await self._boxes.delete(row.id)

    async def _open(self, launch: Launch, acquired: Acquired, began: int, moved_from: BoxRow | None) -> LaunchBox:
        """Open the box and prepare it. The caller closes it."""
        box = await self._boxes.open(acquired.row.id)
        try:
            return await self._prepare(launch, acquired, box, began, moved_from)
        except BaseException:
            await box.close()
            raise

    async def _prepare(
        self, launch: Launch, acquired: Acquired, box: Box, began: int, moved_from: BoxRow | None
    ) -> LaunchBox:
        """Unpack the workspace, and let the box reach the guest API."""
        last = launch.before.latest
        home, guest_api = await asyncio.gather(self._home(box), box.open_guest_api())
        note = f"{home}/{NOTES}/{launch.thread}"
        known = last is not None and last.box == box.id and last.session is not None
        files = _FILES[acquired.how]
        exact = _is_exact(launch, acquired.row)
        digest = launch.options.workspace or launch.before.workspace
        if not known and (acquired.how is How.CREATED or not await is_noted(box, home, launch.thread)):
            # An interrupted launch leaves no such note, so the workspace is unpacked again. A moved box has it.
            if launch.is_fork:
                await self._forget_sessions(box, home)
                files = FilesHow.FORK
            elif not _is_from_base(launch, acquired.row):
                files = await self._unpack(box, digest)
            await box.files.write(note, json.dumps({"workspace": digest}).encode())
        if not known:
            await self._identify(box, home)
        changed = last is not None and last.box is not None and last.box != box.id
        if changed and exact:
            files = FilesHow.CHECKPOINT
        how = "live" if acquired.how is How.RESUMED and acquired.why == "it was there" else _HOW[acquired.how]
        why = "" if how == "live" else acquired.why
        if moved_from is not None and acquired.row.labels.get(MOVED_FROM) == moved_from.id:
            how, why = "moved", f"moved from box {moved_from.id} of {moved_from.provider}"
        await self._report(
            launch,
            box_found(
                run=launch.run,
                box=box.id,
                provider=acquired.row.provider,
                how=how,
                files=files.value,
                ms=self._ticks() - began,
                why=why,
                isolation=self._isolation(acquired),
            ),
        )
        return LaunchBox(box, files, changed, home, guest_api, self._ticks())

    def _isolation(self, acquired: Acquired) -> str:
        row = acquired.row
        isolation, policy = self._boxes.provider(row.provider).isolation, row.spec.network
        return describe_isolation(isolation, policy, self._boxes.secrets.exposed(policy))

    async def _unpack(self, box: Box, digest: str | None) -> FilesHow:
        if digest is None:
            return FilesHow.EMPTY
        async with time_limit(_STEP_SECONDS):
            await box.files.upload_tar(self._workspaces.read(digest), box.spec.workdir)
        return FilesHow.WORKSPACE

    async def _forget_sessions(self, box: Box, home: str) -> None:
        """Delete what the agents of the copied box kept: their sessions and tokens are not those of this thread."""
        for folder in ("threads", "runs"):
            path = f"{home}/.holdfast/{folder}"
            if await box.files.exists(path):
                await box.files.delete(path, recursive=True)

    async def _identify(self, box: Box, home: str) -> None:
        """Give git a name and an address, so that the agent can commit. Settings of the repository take precedence."""
        configuration = f"{home}/.config/git/config"
        if not await box.files.exists(configuration):
            await box.files.write(configuration, _GIT_IDENTITY)

    async def _home(self, box: Box) -> str:
        home = self._homes.get(box.id)
        if home is None:
            home = await home_of(box)
            self._homes[box.id] = home
            while len(self._homes) > _REMEMBERED:
                self._homes.popitem(last=False)
        return home

    async def _report(self, launch: Launch, payload: dict[str, Any]) -> None:
        await report(self._log, launch, payload)


def _base_files(base: Base | None) -> BaseFiles | None:
    return None if base is None else BaseFiles(base.id, base.files.snapshot)


def _machine(base: Base) -> dict[str, Any]:
    return {"provider": base.files.provider, "image": base.files.image}


def _is_from_base(launch: Launch, row: BoxRow) -> bool:
    return launch.base is not None and row.labels.get(BASE) == launch.base.id and BASE_LOST not in row.labels


def _is_exact(launch: Launch, row: BoxRow) -> bool:
    """Returns whether the box has the files of the end of the last turn, because the thread was forked or rewound."""
    base, last = launch.base, launch.before.latest
    if base is None or last is None or last.run != base.run:
        return False
    return _is_from_base(launch, row) and row.snapshot == base.files.snapshot


_FILES: Final = {How.RESUMED: FilesHow.KEPT, How.RESTORED: FilesHow.SNAPSHOT, How.CREATED: FilesHow.EMPTY}
_HOW: Final = {How.RESUMED: "started", How.RESTORED: "restored", How.CREATED: "created"}


def describe_isolation(isolation: str, policy: NetworkPolicy, exposed: Collection[str]) -> str:
    """Describes for people what separates a box from the rest. `exposed` are the secrets whose values are in it."""
    network = "no network" if policy.mode is Network.NONE else f"network {policy.mode}"
    outside = [use for use in policy.secrets if use.partition(":")[0] not in exposed]
    secrets = f"secrets outside of it: {', '.join(outside)}" if outside else ""
    loud = f"SECRETS IN THE BOX: {', '.join(exposed)}" if exposed else ""
    return ", ".join(filter(None, (isolation, network, secrets, loud)))
