"""Boxes on this machine, confined by bubblewrap."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

from holdfast.boxes.box import BoxInfo, Step
from holdfast.boxes.capabilities import Capability
from holdfast.boxes.errors import BoxConflict, BoxError, CannotIsolate
from holdfast.boxes.spec import BoxSpec
from holdfast.providers.local import bubblewrap, limits, machine, runtime, volumes
from holdfast.providers.local.ground import BoxRecord, Ground
from holdfast.providers.local.guard import DiskGuard, Watched
from holdfast.providers.local.guest_provider import GuestProvider
from holdfast.providers.local.launch import Launcher, stage_for
from holdfast.providers.local.link import GuestRefused, Link

log = logging.getLogger(__name__)

_HOLD_SECONDS: Final = 0.5
_STOP_SECONDS: Final = 5.0
_DEFAULT_PIDS: Final = 4096
_MEMORY_SHARE: Final = 0.8
"""Of the machine's memory, for a box that was given no limit of its own."""
_PATH: Final = f"{bubblewrap.HOME}/.local/bin:{bubblewrap.HOME}/.cargo/bin:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"


class LocalProvider(GuestProvider):
    """Boxes confined by bubblewrap. They outlive this object, and the server."""

    name = "local"

    def __init__(self, home: Path) -> None:
        """`home` is the server's folder; boxes are kept in `local` below it, and never see the rest."""
        path = home.absolute() / "local"
        uid, gid = runtime.chosen_user(path)
        super().__init__(Ground(path, uid, gid))
        self._home = home.absolute()
        self._as_root = os.geteuid() == 0
        self.owner = (uid, gid) if self._as_root else None
        self._group_name = hashlib.sha256(os.fsencode(path)).hexdigest()[:12]
        self._backend = limits.LimitBackend(limits.RLIMITS, {}, {})
        self._own_files = 0
        self._runtime: runtime.Runtime | None = None
        self._launcher: Launcher | None = None
        self._guard: DiskGuard | None = None

    async def open(self) -> None:
        if self._launcher is not None:
            return
        try:
            await self._open()
        except BaseException:
            await self.close()
            raise

    async def _open(self) -> None:
        await super().open()
        self._own_files = limits.raise_own_limit()
        made, self._backend = await self.on_disk(self._prepare)
        self._runtime = made
        self.capabilities = _capabilities(self._backend)
        binds = [[str(self.ground.path), "local"]]
        if made.python_prefix is not None:
            binds.append([str(made.python_prefix), "python"])
        self._launcher = Launcher(
            {
                "stage": stage_for(self.ground.path) if self._as_root else None,
                "binds": binds,
                "uid": self.ground.uid if self._as_root else None,
                "gid": self.ground.gid if self._as_root else None,
            }
        )
        await self._launcher.start()
        self._guard = DiskGuard(self.ground.path, self._running, self._stop_writers)

    def _running(self) -> list[Watched]:
        return [
            Watched(record.id, self.ground.box(record.id), record.spec.disk)
            for record in self.ground.records()
            if Link(record.id, self.ground.box(record.id)).alive()
        ]

    async def _stop_writers(self, id: str) -> None:
        link = Link(id, self.ground.box(id))
        try:
            await link.ask({"op": "kill_all", "number": signal.SIGKILL.value}, seconds=_STOP_SECONDS)
        except (BoxError, GuestRefused):  # its guest is of no help: then all of it
            with contextlib.suppress(BoxError):
                await self._kill(link)

    @property
    def mounted(self) -> runtime.Runtime:
        """What is mounted into boxes now."""
        if self._runtime is None:
            raise RuntimeError("the provider is not open: use it in `async with`, or await its open()")
        return self._runtime

    def _prepare(self) -> tuple[runtime.Runtime, limits.LimitBackend]:
        seen = runtime.seen_by_boxes(self._home)
        if seen is not None:
            raise CannotIsolate(
                f"the home {self._home} lies in {seen}, which every box sees",
                hint="give another --home: boxes must not see the server's data",
            )
        self.ground.prepare()
        return runtime.prepare(self.ground, machine.require_bubblewrap().path), limits.detect()

    async def close(self) -> None:
        if self._guard is not None:
            await self._guard.close()
            self._guard = None
        await super().close()
        if self._launcher is not None:
            self._launcher.close()
            self._launcher = None

    # --- a box ---

    def first_layers(self) -> tuple[str, ...]:
        return (runtime.BASE,)

    def workdir(self, info: BoxInfo) -> str:
        return info.spec.workdir

    def environment(self, info: BoxInfo) -> dict[str, str]:
        return {
            "PATH": _PATH,
            "HOME": bubblewrap.HOME,
            "USER": bubblewrap.USER,
            "LOGNAME": bubblewrap.USER,
            "SHELL": "/bin/bash",
            "LANG": "C.UTF-8",
            "TMPDIR": "/tmp",
            "npm_config_prefix": f"{bubblewrap.HOME}/.local",
            "HOLDFAST_BOX": info.id,
        }

    def check(self, spec: BoxSpec) -> None:
        super().check(spec)
        volumes.check(self.ground, spec, self._home)

    def _reachable(self, path: Path) -> str:
        """A path as the launcher has it."""
        if not self._as_root:
            return str(path)
        return f"{stage_for(self.ground.path)}/local/{path.relative_to(self.ground.path)}"

    async def launch(self, record: BoxRecord) -> int:
        assert self._runtime is not None
        assert self._launcher is not None
        spec = record.spec
        folder = self.ground.box(record.id)
        places = [target for _, target in self._runtime.programs]
        places += ["/etc", "/proc", "/dev", "/run", bubblewrap.GUEST, bubblewrap.PYTHON]
        places += [volume.path for volume in spec.volumes] + [mount.path for mount in spec.mounts]
        volumes.check_places(self.ground, record.layers, folder / "upper", places)
        sources = volumes.sources(self.ground, spec, self._home)
        filter = os.open(self._runtime.seccomp, os.O_RDONLY | os.O_CLOEXEC)  # read to its end by each box that starts
        try:
            first = bubblewrap.FIRST_DESCRIPTOR
            staged = [each.place(number) for number, each in enumerate(sources)]
            mounts = [
                bubblewrap.Mount(
                    f"{stage_for(self.ground.path)}/{place}" if self._as_root else first + 1 + number,
                    source.path,
                    source.read_only,
                )
                for number, (source, place) in enumerate(zip(sources, staged, strict=True))
            ]
            prefix = None
            if self._runtime.python_prefix is not None:
                stage = stage_for(self.ground.path)
                prefix = f"{stage}/python" if self._as_root else str(self._runtime.python_prefix)
            machine = bubblewrap.Machine(
                self._runtime.programs,
                self._runtime.masked_files,
                self._runtime.masked_folders,
                self._reachable(self._runtime.etc),
                self._reachable(self._runtime.guest),
                self._runtime.python,
                prefix,
            )
            files = bubblewrap.Files(
                tuple(self._reachable(self.ground.layers / layer / "files") for layer in record.layers),
                self._reachable(folder / "upper"),
                self._reachable(folder / "work"),
            )
            memory, pids = _memory_of(spec), spec.pids or _DEFAULT_PIDS
            by_group = self._backend.enforces
            arguments = bubblewrap.arguments(
                machine, files, record.id, mounts, first, None if by_group("pids") else pids
            )
            request = {
                "folder": str(folder),
                "program": self._reachable(self._runtime.bwrap),
                "argv": [name_of(record.id), *arguments],
                "environment": {},
                "mounts": [
                    {"root": source.root, "parts": source.parts, "place": place}
                    for source, place in zip(sources, staged, strict=True)
                ],
                "rlimits": limits.rlimits_for(None if by_group("memory") else memory, spec.disk, self._own_files),
            }
            self._make_group(record)
            return await self._launcher.launch(request, [filter])
        finally:
            os.close(filter)

    def _make_group(self, record: BoxRecord) -> limits.BoxGroup:
        spec = record.spec
        memory, pids = _memory_of(spec), spec.pids or _DEFAULT_PIDS
        return limits.create(self._backend, self._group_name, record.id, spec.cpu, memory, pids)

    async def confine(self, record: BoxRecord, pid: int) -> None:
        with contextlib.suppress(ProcessLookupError):  # it did not stay up: its socket tells
            await self.on_disk(self._group(record.id).join, pid)

    def _group(self, id: str) -> limits.BoxGroup:
        return limits.BoxGroup(self._backend, self._group_name, id)

    async def end(self, link: Link) -> None:
        held = await _hold_files(link)
        try:
            await self._kill(link)
        finally:
            for each in held:
                self._later(self.on_disk(os.close, each))

    async def _kill(self, link: Link) -> None:
        """By its group where it has one. A sandbox that was cut short while it came up has a name, and no guest yet."""
        group = self._group(link.box)
        if group.exists:
            await self.on_disk(group.kill)
        if link.alive():
            await self.on_disk(_kill_unborn, link.box)
        await link.kill()

    def release(self, id: str) -> None:
        self._group(id).remove()

    def explain(self, id: str) -> BoxError:
        told = self.start_log(id)
        if "bwrap:" in told or "launcher:" in told:
            return machine.explain(told, machine.look())
        return super().explain(id)

    def usage(self, id: str) -> limits.Usage:
        return self._group(id).usage()

    @contextlib.asynccontextmanager
    async def held_still(self, id: str) -> AsyncIterator[None]:
        group = self._group(id)
        if not group.can_freeze:
            async with super().held_still(id):
                yield
            return
        try:
            await self.on_disk(group.freeze)
        except TimeoutError:
            raise BoxConflict(
                f"box {id} does not hold still: its processes wait for the disk", hint="try again when it is less busy"
            ) from None
        try:
            yield
        finally:
            await self.on_disk(group.thaw)

    def ails(self, id: str) -> bool:
        return super().ails(id) or self._group(id).held or self._is_ending(id) or self._is_loose(id)

    def _is_loose(self, id: str) -> bool:
        """Whether a box runs that nobody got to put under its limits."""
        if not self._backend.roots:
            return False
        try:
            pid = Link(id, self.ground.box(id)).pid()
            return pid is not None and f"/{self._group_name}/{id}" not in Path(f"/proc/{pid}/cgroup").read_text()
        except (BoxError, OSError):
            return False

    def _is_ending(self, id: str) -> bool:
        """Whether somebody who ended a box did not get to the end of it."""
        group = self._group(id)
        try:
            pid = Link(id, self.ground.box(id)).pid()
        except BoxError:
            return group.condemned
        if pid is None:
            return group.exists
        # A sandbox whose maker was killed before it could begin waits for ever, and holds the guest's socket.
        return group.condemned or (pid != 0 and not Path("/proc", str(pid)).exists())

    async def mend(self, id: str) -> None:
        if self._is_ending(id):
            await self.end(Link(id, self.ground.box(id)))
            self.release(id)
        elif self._group(id).held:
            await self.on_disk(self._group(id).thaw)
        elif self._is_loose(id) and (pid := Link(id, self.ground.box(id)).pid()) is not None:
            record = self.ground.read(id)
            self._make_group(record)
            await self.confine(record, pid)
        await super().mend(id)

    def sweep_machine(self) -> list[str]:
        removed = []
        known = set(self.ground.ids())
        for id in limits.list_groups(self._backend, self._group_name):
            if id not in known:
                group = self._group(id)
                group.kill()
                if group.remove():
                    removed.append(f"control group of box {id}")
        limits.clear_leftovers(self._backend, self._group_name)
        return removed

    async def _diagnose_provider(self) -> list[Step]:
        steps = await super()._diagnose_provider()
        why = self._backend.why
        return [
            *steps,
            Step("limits", True, 0.0, self._backend.kind if why is None else f"{self._backend.kind}: {why}"),
        ]


async def _hold_files(link: Link) -> list[int]:
    """Keep a box's files mounted for a moment longer than it lives.

    The kernel writes everything to disk when the last user of an overlay lets go, and whoever that is waits. Let that
    be a thread of ours, not the end of the box.
    """
    try:
        _, held = await link.ask_descriptors({"op": "hold"}, seconds=_HOLD_SECONDS)
    except (BoxError, GuestRefused):
        return []
    return held


def _kill_unborn(id: str) -> None:
    """End the processes of a sandbox whose guest does not run yet."""
    name = name_of(id).encode()
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if Path(entry.path, "cmdline").read_bytes().split(b"\0", 1)[0] == name:
                    os.kill(int(entry.name), signal.SIGKILL)


def _memory_of(spec: BoxSpec) -> int:
    return spec.memory or int(_MEMORY_SHARE * os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))


def name_of(id: str) -> str:
    """What a box's sandbox is called in a list of the machine's processes."""
    return f"holdfast-box {id}"


def _capabilities(backend: limits.LimitBackend) -> frozenset[Capability]:
    able = {
        Capability.ISOLATION,
        Capability.STOP,
        Capability.SNAPSHOTS,
        Capability.FORK,
        Capability.EXPORT,
        Capability.VOLUMES,
        Capability.HOST_MOUNTS,
        Capability.MEMORY_LIMIT,
        Capability.DISK_LIMIT,
        Capability.PIDS_LIMIT,
        Capability.NETWORK_NONE,
        Capability.PTY,
        Capability.DETACHED,
        Capability.CONNECT,
    }
    if backend.enforces("cpu"):
        able.add(Capability.CPU_LIMIT)
    return frozenset(able)
