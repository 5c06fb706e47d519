"""The box service: creates, acquires, stops, starts, deletes and cleans up the boxes of one tenant on one store.

Callers use only this class. The work is done by the other modules of this package. They are built here in order, each
receives what it needs, and none knows this class.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, suppress
from typing import Final

from holdfast.api.box.box import Box, Deleted, Liveness, Power
from holdfast.api.box.network import NetworkPolicy
from holdfast.api.box.records import Owner
from holdfast.api.box.snapshots import Snapshot, Volume
from holdfast.api.box.spec import BoxSpec, check_name
from holdfast.api.errors.boxes import BoxStopped
from holdfast.api.ids import now_ms
from holdfast.api.progress import Progress
from holdfast.boxes.capabilities import Capability, require
from holdfast.boxes.labels import CHECKPOINT
from holdfast.boxes.network_policy import NoSecrets, PolicySecrets
from holdfast.boxes.provider import Provider
from holdfast.boxes.rows import BoxFilter, BoxPage, BoxRow, BoxRows
from holdfast.boxes.service.acquire import Acquire
from holdfast.boxes.service.acquire_rules import Acquired, BaseFiles, all_changes
from holdfast.boxes.service.creation import CheckCount, Creation
from holdfast.boxes.service.idle.hibernation import Hibernation
from holdfast.boxes.service.idle.idleness import Activity, OneShots, WatchInterval
from holdfast.boxes.service.idle.sleep_snapshots import SleepSnapshots
from holdfast.boxes.service.leases import TURN_SECONDS, Leases
from holdfast.boxes.service.move import Move, Moved
from holdfast.boxes.service.network_update import NetworkUpdate
from holdfast.boxes.service.pool import Pool
from holdfast.boxes.service.pool_rules import PoolSettings
from holdfast.boxes.service.power_switch import PowerSwitch
from holdfast.boxes.service.providers import Providers
from holdfast.boxes.service.registry import Registry
from holdfast.boxes.service.removal import Removal
from holdfast.boxes.service.snapshot_store import SnapshotStore
from holdfast.boxes.service.states import BoxStates
from holdfast.boxes.service.sweep import Pruned, Sweep
from holdfast.boxes.shielded import to_the_end

_ANYBODY: Final = Owner()
_NO_POOL: Final = PoolSettings()
_NO_SECRETS: Final = NoSecrets()


class Boxes:
    """Owns its sweep, pool and leases from `start` (or first use) to `close`. Does not own its rows and providers."""

    def __init__(
        self,
        rows: BoxRows,
        providers: Mapping[str, Provider],
        *,
        node: str,
        tenant: str = "default",
        clock: Callable[[], int] = now_ms,
        sweep_seconds: float = 30.0,
        pool: PoolSettings = _NO_POOL,
        secrets: PolicySecrets = _NO_SECRETS,
        check_count: CheckCount | None = None,
    ) -> None:
        """`providers` that are `Providers` may change while the service runs. `check_count` raises if there may not be
        another box."""
        self.rows = rows
        self.node = node
        self.tenant = tenant
        self.clock = clock
        self.secrets = secrets
        self.providers = known = providers if isinstance(providers, Providers) else Providers(providers)
        self.leases = leases = Leases(rows, tenant, clock)
        self._activity = activity = Activity(rows, tenant, clock)
        interval = WatchInterval()
        self._registry = registry = Registry(rows, leases, activity, interval, tenant=tenant, node=node, clock=clock)
        sleep = SleepSnapshots(known)
        self._states = states = BoxStates(registry, known, sleep)
        self._hibernation = hibernation = Hibernation(registry, known, leases, activity, states, sleep)
        self._power = PowerSwitch(registry, known, leases, activity, states, hibernation)
        self._removal = removal = Removal(registry, known, leases, sleep)
        self.pool = Pool(registry, known, leases, pool)
        self._snapshots = snapshots = SnapshotStore(registry, known, activity, states)
        self._creation = creation = Creation(registry, known, states, self.pool, snapshots, check_count)
        self._network_update = network = NetworkUpdate(registry, known, leases)
        self._acquire = Acquire(registry, known, leases, states, hibernation, removal, creation, network)
        self._move = Move(registry, known, leases, activity, states, hibernation, removal, creation)
        self._sweep = Sweep(
            registry,
            known,
            leases,
            activity,
            interval,
            states,
            hibernation,
            removal,
            self.pool,
            snapshots,
            sleep,
            seconds=sweep_seconds,
        )
        self.one_shots = OneShots(activity, self._sweep.end_one_shot)

    # --- from start to end ---

    async def start(self) -> None:
        """Clean up after processes that died, now and periodically."""
        await self._sweep.start()

    async def close(self) -> None:
        """Stop the background work of this service. Boxes keep running. Closing twice has no effect."""
        await self._sweep.close()
        await self.one_shots.close()
        await self.pool.close()
        await self.leases.close()

    async def join(self) -> int:
        """Show other processes that this one is alive. Returns when this store first knew of this node."""
        return await self._registry.join()

    # --- creating ---

    def check(self, spec: BoxSpec) -> None:
        """Raises if no box of this spec can be created. Creates nothing."""
        self.providers.for_spec(spec)
        self.secrets.check(spec.network)

    async def create(self, spec: BoxSpec, *, owner: Owner = _ANYBODY, id: str | None = None) -> BoxRow:
        """Create a box. A failure leaves only a tombstone with the reason."""
        self.check(spec)
        return await self._new(await self._creation.create(spec, owner, id))

    async def restore(self, snapshot: str, spec: BoxSpec | None = None, *, owner: Owner = _ANYBODY) -> BoxRow:
        """Create a box with the files of a snapshot. `spec` defaults to that of the box the snapshot came from."""
        if spec is not None:
            self.secrets.check(spec.network)
        return await self._new(await self._creation.restore(snapshot, spec, owner))

    async def fork(
        self, id: str, *, owner: Owner | None = None, key: str | None = None, idle_seconds: int | None = None
    ) -> BoxRow:
        """Create another box with the same spec and files, with no key or one that has no box yet.

        The owner defaults to that of the original. With `idle_seconds` the new box is ephemeral.
        """
        return await self._new(await self._creation.fork(id, owner, key, idle_seconds))

    async def acquire(
        self,
        key: str,
        spec: BoxSpec,
        *,
        owner: Owner = _ANYBODY,
        timeout: float = TURN_SECONDS,
        fresh: bool = False,
        replaces: bool = True,
        base: BaseFiles | None = None,
        start: str | None = None,
    ) -> Acquired:
        """Returns the box of a key: the existing one, one restored from the latest snapshot, or a new one.

        Concurrent callers get the same box. A box with another spec is replaced, which `replaced` and `why` report;
        without `replaces`, it raises `BoxDiffers`. One-shot boxes are always new. With `fresh`, an existing box is
        deleted and no snapshot is used. With `base`, a box that did not start from these files is replaced by one that
        does. If they cannot be restored, it raises `SnapshotNotFound` or `WrongSnapshot`. With
        `start`, a box that has to be created has the files of that snapshot; an existing box stays.
        """
        self.secrets.check(spec.network)
        found = await self._acquire.acquire(
            key, spec, owner, timeout, fresh=fresh, replaces=replaces, base=base, start=start
        )
        await self._place_secrets(found.row)
        return found

    async def move(
        self,
        id: str,
        change: Callable[[BoxSpec], BoxSpec],
        *,
        stop: bool = False,
        keep: bool = False,
        progress: Progress | None = None,
    ) -> Moved:
        """Replace a box by one of another spec, usually of another provider, with the files of its workspace.

        `change` returns the new spec. The new box has the key and the owner of the old one, which is deleted, or with
        `keep` stopped. Raises `Unsupported` if the new provider lacks something that the spec asks for, and
        `BoxConflict` if processes run in the box, unless `stop` ends them. A failure leaves the old box as it was.
        """
        moved = await self._move.move(id, change, stop=stop, keep=keep, progress=progress)
        await self._place_secrets(moved.row)
        return moved

    def differs(self, row: BoxRow, spec: BoxSpec) -> bool:
        """Returns whether a box with this spec would be another machine than the given one."""
        network_live = Capability.NETWORK_LIVE in self.providers.named(row.provider).capabilities
        return bool(all_changes(row.spec, spec, network_live=network_live))

    async def check_move(self, id: str, change: Callable[[BoxSpec], BoxSpec]) -> None:
        """Raises if `move` would refuse to move the box. Changes nothing."""
        await self._move.check(id, change)

    async def set_network(self, id: str, policy: NetworkPolicy) -> BoxRow:
        """Change what a box may reach. Takes effect immediately."""
        self.secrets.check(policy)
        row = await self._network_update.set(id, policy)
        with suppress(BoxStopped):  # then they are written when it starts
            await self._place_secrets(row)
        return row

    async def _new(self, row: BoxRow) -> BoxRow:
        """Write what a new box needs for its secrets, or delete it."""
        try:
            await self._place_secrets(row)
        except BaseException as error:
            await to_the_end(self._creation.undo(row, error))
            raise
        return row

    async def _place_secrets(self, row: BoxRow) -> None:
        if self.secrets.needs_files(row.spec.network):
            async with await self.open(row.id) as box:
                await self.secrets.place(box, row.owner.thread, row.spec.network)

    # --- inspecting ---

    def provider(self, name: str) -> Provider:
        """Raises `Unsupported` if there is no provider of that name."""
        return self.providers.named(name)

    async def get(self, id: str) -> BoxRow:
        """Returns a box, dead or alive. Raises `BoxNotFound`."""
        return await self._registry.get(id)

    async def of_key(self, key: str) -> BoxRow | None:
        """Returns the live box of a key. Ignores one-shot boxes."""
        return await self._registry.of_key(key)

    async def resolve(self, name: str) -> str:
        """The id of the box with this id, or else of the live box with this key. Raises `BoxNotFound`."""
        return (await self._registry.named(name)).id

    async def open(self, id: str) -> Box:
        """Returns a handle to a box, running or stopped. The caller closes it.

        Wakes a sleeping box, now and whenever the handle is used later. A stopped box stays stopped.
        """
        return await self._hibernation.open(id)

    async def peek(self, id: str) -> Box:
        """Returns a handle that does not wake the box. The caller closes it."""
        return await self._states.peek(id)

    async def look(self, row: BoxRow) -> tuple[Liveness, Power | None]:
        """Returns whether the box exists and runs, as its provider reports it."""
        return await self._states.look(row)

    # --- stop, start, delete ---

    async def stop(self, id: str) -> BoxRow:
        """End every process and keep the files. Does nothing if the box is stopped."""
        return await self._power.stop(id)

    async def stop_unused(self, row: BoxRow) -> BoxRow:
        """Stop a running box that was chosen by its row. Raises `BoxConflict` if it was used or changed since."""
        return await self._power.stop_unused(row)

    async def pause_unused(self, row: BoxRow) -> BoxRow:
        """Pause a running box that was chosen by its row. Raises `BoxConflict` if it was used or changed since."""
        return await self._power.pause_unused(row)

    async def delete_unused(self, row: BoxRow, why: str) -> None:
        """Delete a box that was chosen by its row. Raises `BoxConflict` if it was used or changed since."""
        await self._removal.delete_unused(row, why)

    async def start_box(self, id: str) -> BoxRow:
        """Start a stopped box with its files, or wake a sleeping one. Does nothing if the box runs."""
        row = await self._power.start(id)
        await self._place_secrets(row)
        return row

    async def pause(self, id: str) -> BoxRow:
        """Freeze every process until the next request. Raises `BoxConflict` if the box is in use."""
        return await self._power.pause(id)

    async def hibernate(self, id: str) -> BoxRow:
        """Take a snapshot and stop the box until the next request. Raises `BoxConflict` if the box is in use."""
        return await self._power.hibernate(id)

    async def delete(self, id: str) -> Deleted:
        """Delete the box and its files. Does nothing if the box no longer exists."""
        return await self._removal.delete(id)

    # --- snapshots and volumes ---

    async def snapshot(
        self, id: str, labels: Mapping[str, str] | None = None, *, checkpoint: str | None = None
    ) -> Snapshot:
        """Save the files of the box as they are now. The snapshot is labelled with the box's key, spec and owner, and
        with what it is a checkpoint of.
        """
        return await self._snapshots.take(id, labels, checkpoint)

    async def snapshot_cost(self, row: BoxRow) -> int | None:
        """Returns how many bytes a snapshot of this box would copy now, or None if that is unknown."""
        return await self.providers.named(row.provider).snapshot_cost(row.id)

    async def find_snapshot(self, id: str, provider: str) -> Snapshot:
        """Raises `SnapshotNotFound`, also if it is not one of this tenant."""
        return await self._snapshots.find(id, provider)

    async def checkpoints(self, *, provider: str | None = None, of: str | None = None) -> list[Snapshot]:
        """Returns the snapshots that are checkpoints, or those of one provider or one purpose, oldest first.

        Leaves out those of providers that do not answer.
        """
        return await self._snapshots.checkpoints(provider, {} if of is None else {CHECKPOINT: of})

    async def snapshots(self, *, box: str | None = None, key: str | None = None) -> list[Snapshot]:
        """Returns the snapshots of every provider, oldest first."""
        return await self._snapshots.all(box=box, key=key)

    async def delete_snapshot(self, id: str) -> int:
        """Returns the bytes freed. Raises `SnapshotNotFound`."""
        return await self._snapshots.delete(id)

    async def volumes(self, provider: str = "local") -> list[Volume]:
        return await self._with_volumes(provider).volumes()

    async def create_volume(self, name: str, provider: str = "local") -> Volume:
        check_name(name, "volume")
        return await self._with_volumes(provider).create_volume(name)

    async def delete_volume(self, name: str, provider: str = "local") -> int:
        found = self._with_volumes(provider)
        await self.pool.drain_volume(provider, name)
        return await found.delete_volume(name)

    def _with_volumes(self, name: str) -> Provider:
        provider = self.providers.named(name)
        require(name, provider.capabilities, Capability.VOLUMES)
        return provider

    # --- use ---

    def working(self, id: str) -> AbstractContextManager[None]:
        """A caller works in the box (a command, channel or port), so it is not idle. Ends a one-shot box afterwards."""
        return self.one_shots.working(id)

    def using(self, id: str) -> AbstractContextManager[None]:
        """A caller uses the box (an upload or download), so it is not idle. This is not the work of a one-shot box."""
        return self._activity.using(id)

    # --- sweeping ---

    async def sweep(self) -> Pruned:
        """Reap idle boxes, finish what dead processes began, record boxes that are gone, and remove unknown boxes."""
        return await self._sweep.run()

    async def prune(self) -> Pruned:
        """Sweep, and delete every ephemeral box that is stopped or idle now."""
        return await self._sweep.prune()

    # Last, so that `list` means the builtin everywhere above.
    async def list(self, wanted: BoxFilter) -> BoxPage:
        """Returns rows by state, label and key, newest first."""
        return await self.rows.list(self.tenant, wanted)
