"""Boxes on this machine, confined by bubblewrap."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import functools
import logging
import os
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

from holdfast.api.box.box import BoxInfo, Power
from holdfast.api.box.network import Network, NetworkPolicy
from holdfast.api.box.records import Step
from holdfast.api.box.spec import WORKSPACE, BoxSpec
from holdfast.api.errors.boxes import BoxConflict, BoxError, CannotIsolate
from holdfast.boxes.capabilities import Capability
from holdfast.boxes.network_policy import Egress, Traffic
from holdfast.providers import portable_python
from holdfast.providers.guest_answers import GuestRefused
from holdfast.providers.host import layers, limits, volumes
from holdfast.providers.host.data_dir import BoxImage, BoxRecord, DataDir
from holdfast.providers.host.disk_guard import DiskGuard, Watched, default_limit
from holdfast.providers.host.guest_client import PAUSED, GuestClient, monitor_name
from holdfast.providers.host.guest_provider import GuestProvider
from holdfast.providers.host.launch import Launcher, stage_for
from holdfast.providers.local import bubblewrap, machine, runtime
from holdfast.providers.local.egress import CAPABILITIES, LocalEgress
from holdfast.providers.local.images import LocalImages
from holdfast.providers.local.images import store as image_store

log = logging.getLogger(__name__)

_HOLD_SECONDS: Final = 0.5
_STOP_SECONDS: Final = 5.0
_EGRESS_MARKER: Final = "way-out"
"""In a box's folder, while its guest keeps the listener of its egress."""
_AT_ONCE: Final = 16
"""Boxes that are asked for their way out when a server comes back."""
_DEFAULT_PIDS: Final = 4096
_SANDBOX_PROCESSES: Final = 2
"""Of each box: bubblewrap, and the guest."""
_MEMORY_SHARE: Final = 0.8
"""Of the machine's memory, for a box that was given no limit of its own."""
_PATH: Final = f"{bubblewrap.HOME}/.local/bin:{bubblewrap.HOME}/.cargo/bin:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"


_IMAGE_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class LocalProvider(GuestProvider):
    """Boxes confined by bubblewrap. They outlive this object and the server."""

    name = "local"
    isolation = "bubblewrap, seccomp"
    images: LocalImages

    def __init__(self, home: Path, *, egress: Egress | None = None, box_disk: int | None = None) -> None:
        """`home` is the server's folder; boxes are kept in `local` below it, and never see the rest.

        Without an `egress`, boxes have no network. Of several providers on one home, the first that has one serves it.
        `box_disk` is how many bytes a box may have on disk whose spec does not say.
        """
        path = home.absolute() / "local"
        uid, gid = runtime.chosen_user(path)
        super().__init__(DataDir(path, uid, gid))
        self._home = home.absolute()
        self._tools = self._home / "tools"
        self._mounted_tools: tuple[int, int] | None = None
        self.tools = bubblewrap.TOOLS
        self._as_root = os.geteuid() == 0
        self.other_user = self._as_root
        self._backend = limits.LimitBackend(limits.RLIMITS, {}, {})
        self._own_files = 0
        self._box_disk = box_disk
        self._runtime: runtime.Runtime | None = None
        self._launcher: Launcher | None = None
        self._guard: DiskGuard | None = None
        self._interpreter: portable_python.Interpreter | None = None
        self.images = LocalImages(self.data_dir, self._collect)
        self._egress = LocalEgress(egress)

    @functools.cached_property
    def _group_name(self) -> str:
        return limits.home_name(self.data_dir.path)

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
        self.edition = made.folder.name
        self.capabilities = _capabilities(self._backend)
        if self._egress.serves:
            self.capabilities |= CAPABILITIES
        binds = [[str(self.data_dir.path), "local"], [str(self._tools), "tools"]]
        if made.python_prefix is not None:
            binds.append([str(made.python_prefix), "python"])
        self._launcher = Launcher(
            {
                "stage": stage_for(self.data_dir.path) if self._as_root else None,
                "binds": binds,
                "uid": self.data_dir.uid if self._as_root else None,
                "gid": self.data_dir.gid if self._as_root else None,
            }
        )
        await self._launcher.start()
        self._guard = DiskGuard(self.data_dir.path, self._running, self._stop_writers)
        if self._egress.serves:
            self._later(self._let_out_again())

    def _running(self) -> list[Watched]:
        return [
            Watched(
                record.id,
                self.data_dir.box(record.id),
                self._disk_of(record.spec),
                tuple(layers.own(self.data_dir, record)),
                by_default=record.spec.disk is None,
            )
            for record in self.data_dir.records()
            if self._power(GuestClient(record.id, self.data_dir.box(record.id))) is Power.RUNNING
        ]

    def _disk_of(self, spec: BoxSpec) -> int:
        """Bytes that a box may have on disk."""
        return spec.disk or self._box_disk or default_limit(self.data_dir.path)

    async def _stop_writers(self, id: str) -> None:
        guest = GuestClient(id, self.data_dir.box(id))
        try:
            await guest.ask({"op": "kill_all", "number": signal.SIGKILL.value}, seconds=_STOP_SECONDS)
        except (BoxError, GuestRefused):  # its guest is of no help: then all of it
            with contextlib.suppress(BoxError):
                await self._kill(guest)

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
                hint="choose another --home: boxes must not see the server's data",
            )
        try:
            self.data_dir.prepare()
        except OSError as error:
            if not self._as_root or error.errno != errno.EINVAL:
                raise
            raise CannotIsolate(
                f"the user id {self.data_dir.uid}, which boxes are to run as, does not exist in this user namespace",
                hint="run the server as a user other than root, or map more user ids into the namespace",
            ) from None
        self._mounted_tools = self._make_tools()
        self._egress.claim(self.data_dir.path)
        return runtime.prepare(self.data_dir, machine.require_bubblewrap().path), limits.detect()

    def _make_tools(self) -> tuple[int, int]:
        """The folder is mounted before anything is in it, and stays: what comes later appears in boxes that run."""
        with contextlib.suppress(FileExistsError):
            self._tools.mkdir()
            self._tools.chmod(0o755)
        status = self._tools.stat()
        return status.st_dev, status.st_ino

    async def close(self) -> None:
        if self._guard is not None:
            await self._guard.close()
            self._guard = None
        await super().close()
        self._egress.close()
        if self._launcher is not None:
            self._launcher.close()
            self._launcher = None

    # --- a box ---

    def beginning(self, spec: BoxSpec) -> tuple[tuple[str, ...], BoxImage | None]:
        return ((layers.BASE,), None) if spec.image is None else image_store.beginning(self.data_dir, spec.image)

    def _latest(self, info: BoxInfo) -> tuple[BoxImage | None, NetworkPolicy]:
        """A box's image, and its policy as it is now: it may have changed since a handle was made."""
        try:
            record = self.data_dir.read(info.id)
        except BoxError:
            return None, info.spec.network
        return record.image, record.spec.network

    def workdir(self, info: BoxInfo) -> str:
        if info.spec.workdir == WORKSPACE and (image := self._latest(info)[0]) is not None:
            return image.workdir or info.spec.workdir
        return info.spec.workdir

    async def open_egress(self, guest: GuestClient, record: BoxRecord) -> None:
        if self._has_egress(record):
            await self._egress.open(guest, record.spec.network, record.labels)
            (self.data_dir.box(record.id) / _EGRESS_MARKER).touch()

    def _has_egress(self, record: BoxRecord) -> bool:
        """Whether its guest keeps a listener: also one that nothing is allowed through any more, to say so at once."""
        return record.spec.network.mode is not Network.NONE or (self.data_dir.box(record.id) / _EGRESS_MARKER).exists()

    async def open_guest_api(self, id: str) -> None:
        if not self._egress.serves:
            await super().open_guest_api(id)
        async with self._alone(id) as record:
            guest = GuestClient(id, self.data_dir.box(id))
            await self._egress.open(guest, record.spec.network, record.labels)
            (self.data_dir.box(id) / _EGRESS_MARKER).touch()

    def traffic(self, id: str) -> Traffic | None:
        return self._egress.traffic(id)

    async def _let_out_again(self) -> None:
        """Boxes outlive whoever served them: what they connected to meanwhile waits for us."""
        cut_off = [record.id for record in self.data_dir.records() if self._is_cut_off(record.id)]
        turns = asyncio.Semaphore(_AT_ONCE)

        async def reconnect(id: str) -> None:
            try:
                async with turns, self._alone(id) as record:
                    if self._is_cut_off(id):
                        await self.open_egress(GuestClient(id, self.data_dir.box(id)), record)
            except BoxError as error:
                log.warning("box %s has no egress: %s", id, error)

        await asyncio.gather(*(reconnect(id) for id in cut_off))

    def _is_cut_off(self, id: str) -> bool:
        """Whether a box runs that should have an egress, and has none, or that of a guest which is no more."""
        try:
            guest = GuestClient(id, self.data_dir.box(id))
            if not self._egress.serves or not self._has_egress(self.data_dir.read(id)) or guest.paused:
                return False
            pid = guest.pid()
        except BoxError:
            return False
        return pid is not None and not self._egress.has(id, pid)

    def environment(self, info: BoxInfo) -> dict[str, str]:
        image, policy = self._latest(info)
        if image is not None:
            return {**environment_in(image), "HOLDFAST_BOX": info.id, **self._egress.environment(policy)}
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
            **self._egress.environment(policy),
        }

    def check(self, spec: BoxSpec) -> None:
        super().check(spec)
        volumes.check(self.data_dir, spec, self._home)

    def user_of(self, id: str) -> int:
        """Who the processes of a box are, outside of it, when it is started now."""
        own = runtime.box_user(self.data_dir.path, id) if self._launcher is not None and self._launcher.maps else None
        return self.data_dir.uid if own is None else own

    def _reachable(self, path: Path) -> str:
        """A path as the launcher has it."""
        if not self._as_root:
            return str(path)
        return f"{stage_for(self.data_dir.path)}/local/{path.relative_to(self.data_dir.path)}"

    async def launch(self, record: BoxRecord) -> int:
        assert self._runtime is not None
        assert self._launcher is not None
        spec = record.spec
        folder = self.data_dir.box(record.id)
        (folder / _EGRESS_MARKER).unlink(missing_ok=True)
        image = record.image
        places = ["/proc", "/dev", "/run", bubblewrap.GUEST, portable_python.PYTHON]
        if image is None:
            places += ["/etc", *(target for _, target in self._runtime.programs)]
        places += [volume.path for volume in spec.volumes] + [mount.path for mount in spec.mounts]
        volumes.check_places(self.data_dir, record.layers, folder / "upper", places)
        sources = volumes.sources(self.data_dir, spec, self._home)
        pretends = image is not None and image.uid == 0
        filter_file = self._runtime.root_seccomp if pretends else self._runtime.seccomp
        filter = os.open(filter_file, os.O_RDONLY | os.O_CLOEXEC)  # read to its end by each box that starts
        try:
            first = bubblewrap.FIRST_DESCRIPTOR
            staged = [each.place(number) for number, each in enumerate(sources)]
            mounts = [
                bubblewrap.Mount(
                    f"{stage_for(self.data_dir.path)}/{place}" if self._as_root else first + 1 + number,
                    source.path,
                    source.read_only,
                )
                for number, (source, place) in enumerate(zip(sources, staged, strict=True))
            ]
            if self._sees_tools(record, folder):
                reached = f"{stage_for(self.data_dir.path)}/tools" if self._as_root else str(self._tools)
                mounts.insert(0, bubblewrap.Mount(reached, bubblewrap.TOOLS, read_only=True))
            files = bubblewrap.Files(
                tuple(self._reachable(self.data_dir.layers / layer / "files") for layer in record.layers),
                self._reachable(folder / "upper"),
                self._reachable(folder / "work"),
            )
            memory, pids = _memory_of(spec), spec.pids or _DEFAULT_PIDS
            by_group = self._backend.enforces
            processes = None if by_group("pids") else pids
            if image is None:
                arguments = bubblewrap.arguments(self._machine(), files, record.id, mounts, first, processes)
            else:
                inside = await self._image_machine(image)
                arguments = bubblewrap.image_arguments(inside, files, record.id, mounts, first, processes)
            request = {
                "folder": str(folder),
                "program": self._reachable(self._runtime.bwrap),
                "argv": [monitor_name(record.id), *arguments],
                "environment": {},
                "user": self.user_of(record.id),
                "mounts": [
                    {"root": source.root, "parts": source.parts, "place": place}
                    for source, place in zip(sources, staged, strict=True)
                ],
                "rlimits": limits.rlimits_for(
                    None if by_group("memory") else memory, self._disk_of(spec), self._own_files
                ),
            }
            self._make_group(record)
            return await self._launcher.launch(request, [filter])
        finally:
            os.close(filter)

    def _sees_tools(self, record: BoxRecord, folder: Path) -> bool:
        """A box that has something else in their place starts without them."""
        others = [volume.path for volume in record.spec.volumes] + [mount.path for mount in record.spec.mounts]
        if any(path.startswith(f"{bubblewrap.TOOLS}/") for path in others):
            return False
        if self._make_tools() != self._mounted_tools:  # somebody removed it: the launcher has the one that is no more
            return False
        return volumes.has_place(self.data_dir, record.layers, folder / "upper", bubblewrap.TOOLS)

    def _machine(self) -> bubblewrap.Machine:
        """What of this machine a box without an image sees."""
        made = self.mounted
        prefix = None
        if made.python_prefix is not None:
            prefix = f"{stage_for(self.data_dir.path)}/python" if self._as_root else str(made.python_prefix)
        return bubblewrap.Machine(
            made.programs,
            made.masked_files,
            made.masked_folders,
            self._reachable(made.etc),
            self._reachable(made.guest),
            made.python,
            prefix,
            self._reachable(made.sys),
        )

    async def _image_machine(self, image: BoxImage) -> bubblewrap.ImageMachine:
        """The same for a box of an image."""
        made = self.mounted
        if self._interpreter is None:
            self._interpreter = await self.on_disk(portable_python.prepare, self.data_dir, made.host_python)
        return bubblewrap.ImageMachine(
            made.masked_files,
            made.masked_folders,
            self._reachable(made.guest),
            self._reachable(self._interpreter.folder),
            self._interpreter.command,
            image.uid,
            image.gid,
            self._reachable(made.sys),
        )

    def _make_group(self, record: BoxRecord) -> limits.BoxGroup:
        spec = record.spec
        memory, pids = _memory_of(spec), spec.pids or _DEFAULT_PIDS
        return limits.create(self._backend, self._group_name, record.id, spec.cpu, memory, pids)

    async def confine(self, record: BoxRecord, pid: int) -> None:
        with contextlib.suppress(ProcessLookupError):  # it did not stay up: its socket tells
            await self.on_disk(self._group(record.id).join, pid)

    def _group(self, id: str) -> limits.BoxGroup:
        return limits.BoxGroup(self._backend, self._group_name, id)

    async def end(self, guest: GuestClient) -> None:
        held = await _hold_files(guest)
        try:
            await self._kill(guest)
        finally:
            self._egress.shut(guest.box)
            for each in held:
                self._later(self.on_disk(os.close, each))

    async def _kill(self, guest: GuestClient) -> None:
        """By its group where it has one. A sandbox that was cut short while it came up has a name, and no guest yet."""
        group = self._group(guest.box)
        if group.exists:
            await self.on_disk(group.kill)
        if guest.is_held():
            await self.on_disk(_kill_unborn, guest.box, self._reachable(self.data_dir.box(guest.box) / "upper"))
        await guest.kill()

    async def seal(self, guest: GuestClient) -> bool:
        assert self._launcher is not None
        pid = guest.pid()
        if pid is None:
            return False
        try:
            namespace = os.open(f"/proc/{pid}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            if guest.pid() != pid:  # the number was the guest's when it was opened only if it still is
                return False
            number = await self._launcher.seal(namespace)
        finally:
            os.close(namespace)
        if number not in (0, errno.EBUSY):
            log.warning("cannot make the files of box %s read-only: %s", guest.box, os.strerror(number))
        return number == 0

    async def copy_files(self, source: int, target: int) -> dict[str, Any]:
        assert self._launcher is not None
        return await self._launcher.copy(source, target)

    def release(self, id: str) -> None:
        self._group(id).remove()

    def explain(self, id: str) -> BoxError:
        told = self.start_log(id)
        if "bwrap:" in told or "launcher:" in told:
            # As the operator knows the place: the stage exists in the launcher's mount namespace alone.
            told = told.replace(f"{stage_for(self.data_dir.path)}/local", str(self.data_dir.path))
            return machine.explain(told, machine.look())
        return super().explain(id)

    def usage(self, id: str) -> limits.GroupUsage:
        return self._group(id).usage()

    @contextlib.asynccontextmanager
    async def held_still(self, id: str) -> AsyncIterator[None]:
        if self._is_paused(id):
            yield  # for as long as we have the box to ourselves
            return
        if not self._group(id).can_freeze:
            async with super().held_still(id):
                yield
            return
        await self.hold(id)
        try:
            yield
        finally:
            await self.go_on(id)

    async def hold(self, id: str) -> None:
        try:
            await self.on_disk(self._group(id).freeze)
        except TimeoutError:
            raise BoxConflict(
                f"box {id} cannot be frozen: its processes wait for the disk", hint="try again when it is less busy"
            ) from None

    async def go_on(self, id: str) -> None:
        await self.on_disk(self._group(id).thaw)

    def _is_paused(self, id: str) -> bool:
        return GuestClient(id, self.data_dir.box(id)).paused

    def held_activity(self, id: str) -> dict[str, Any] | None:
        try:
            since = (self.data_dir.box(id) / PAUSED).stat().st_mtime
        except FileNotFoundError:
            return None
        processes = max(0, len(self._group(id).processes()) - _SANDBOX_PROCESSES)
        return {"processes": processes, "connections": 0, "idle": max(0, int((time.time() - since) * 1000))}

    def ails(self, id: str) -> bool:
        return (
            super().ails(id)
            or self._is_held_wrongly(id)
            or self._is_ending(id)
            or self._is_loose(id)
            or self._is_cut_off(id)
        )

    def _is_held_wrongly(self, id: str) -> bool:
        """Whether somebody died between the mark of a pause and the pause, or while they held a box to copy it."""
        group = self._group(id)
        return group.exists and group.can_freeze and group.held is not self._is_paused(id)

    def _is_loose(self, id: str) -> bool:
        """Whether a box runs that nobody got to put under its limits."""
        if not self._backend.roots:
            return False
        try:
            pid = GuestClient(id, self.data_dir.box(id)).pid()
            return pid is not None and f"/{self._group_name}/{id}" not in Path(f"/proc/{pid}/cgroup").read_text()
        except (BoxError, OSError):
            return False

    def _is_ending(self, id: str) -> bool:
        """Whether somebody who ended a box did not get to the end of it."""
        group = self._group(id)
        try:
            pid = GuestClient(id, self.data_dir.box(id)).pid()
        except BoxError:
            return group.condemned
        if pid is None:
            return group.exists
        # A sandbox whose maker was killed before it could begin waits for ever, and holds the guest's socket.
        return group.condemned or (pid != 0 and not Path("/proc", str(pid)).exists())

    async def mend(self, id: str) -> None:
        if self._is_ending(id):
            await self.end(GuestClient(id, self.data_dir.box(id)))
            self.release(id)
        elif self._is_held_wrongly(id):
            await (self.hold(id) if self._is_paused(id) else self.go_on(id))
        elif self._is_loose(id) and (pid := GuestClient(id, self.data_dir.box(id)).pid()) is not None:
            record = self.data_dir.read(id)
            self._make_group(record)
            await self.confine(record, pid)
        elif self._is_cut_off(id):
            await self.open_egress(GuestClient(id, self.data_dir.box(id)), self.data_dir.read(id))
        await super().mend(id)

    def sweep_machine(self) -> list[str]:
        removed = []
        for id in limits.list_groups(self._backend, self._group_name):
            # Asked after the groups were listed: a box has its folder before it has a group.
            if not self.data_dir.box(id).exists():
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


async def _hold_files(guest: GuestClient) -> list[int]:
    """Keep a box's files mounted for a moment longer than it lives.

    The kernel writes everything to disk when the last user of an overlay lets go, and whoever that is waits. Let that
    be a thread of ours, not the end of the box.
    """
    try:
        _, held = await guest.ask_descriptors({"op": "hold"}, seconds=_HOLD_SECONDS)
    except (BoxError, GuestRefused):
        return []
    return held


def _kill_unborn(id: str, upper: str) -> None:
    """End the processes of a sandbox whose guest does not run yet. Another home may have a box of the same name."""
    name, files = monitor_name(id).encode(), os.fsencode(upper)
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                first, *others = Path(entry.path, "cmdline").read_bytes().split(b"\0")
                if first == name and files in others:
                    os.kill(int(entry.name), signal.SIGKILL)


def environment_in(image: BoxImage) -> dict[str, str]:
    """What processes in a box of an image find, unless they are told otherwise."""
    name = "root" if image.uid == 0 else (image.user or "").partition(":")[0]
    return {
        "PATH": _IMAGE_PATH,
        "HOME": image.home,
        "USER": name,
        "LOGNAME": name,
        "SHELL": "/bin/sh",
        "LANG": "C.UTF-8",
        **image.env,
    }


def _memory_of(spec: BoxSpec) -> int:
    return spec.memory or int(_MEMORY_SHARE * os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))


def _capabilities(backend: limits.LimitBackend) -> frozenset[Capability]:
    able = {
        Capability.ISOLATION,
        Capability.STOP,
        Capability.SNAPSHOTS,
        Capability.FORK,
        Capability.EXPORT,
        Capability.VOLUMES,
        Capability.HOST_MOUNTS,
        Capability.IMAGES,
        Capability.MEMORY_LIMIT,
        Capability.DISK_LIMIT,
        Capability.PIDS_LIMIT,
        Capability.NETWORK_NONE,
        Capability.PTY,
        Capability.DETACHED,
        Capability.CONNECT,
        Capability.POOL,
    }
    if backend.enforces("cpu"):
        able.add(Capability.CPU_LIMIT)
    if backend.enforces("freezer"):
        able.add(Capability.PAUSE)
    return frozenset(able)
