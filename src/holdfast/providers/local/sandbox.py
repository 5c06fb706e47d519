"""Runs boxes under bubblewrap: launches, confines, freezes and ends them, and connects them to the network."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import functools
import logging
import os
import re
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

from holdfast.api.box.box import BoxInfo
from holdfast.api.box.network import Network, NetworkPolicy
from holdfast.api.box.spec import WORKSPACE, BoxSpec
from holdfast.api.errors.boxes import BoxConflict, BoxError, CannotIsolate
from holdfast.boxes.capabilities import Capability
from holdfast.boxes.network_policy import Egress, Traffic
from holdfast.providers import portable_python
from holdfast.providers.guest_protocol import GuestRefused, number_in
from holdfast.providers.host import limits
from holdfast.providers.host.disk import layers, volumes
from holdfast.providers.host.disk.data_dir import BoxImage, BoxRecord, DataDir
from holdfast.providers.host.disk.disk_guard import default_limit
from holdfast.providers.host.guest_client import PAUSED, GuestClient, monitor_name
from holdfast.providers.host.launcher_client import Launcher, stage_for
from holdfast.providers.host.sandbox import Sandbox
from holdfast.providers.local import bubblewrap, machine, runtime
from holdfast.providers.local.egress import CAPABILITIES, LocalEgress
from holdfast.providers.local.images import store as image_store

log = logging.getLogger(__name__)

_HOLD_SECONDS: Final = 0.5
_STOP_SECONDS: Final = 5.0
_END_TRIES: Final = 100
_END_PAUSE: Final = 0.02
_EGRESS_MARKER: Final = "way-out"
"""In the folder of a box while its guest has an egress listener."""
_DEFAULT_PIDS: Final = 4096
_SANDBOX_PROCESSES: Final = 2
"""Processes of each box that are not the user's: bubblewrap and the guest."""
_MEMORY_SHARE: Final = 0.8
"""The share of the machine's memory that a box without a limit may use."""
_USER_NAME: Final = re.compile(r"(?!(?:root|nobody|nogroup)$)[a-z_][a-z0-9_-]{0,31}")
_USER_HOME: Final = re.compile(r"/[A-Za-z0-9/._-]{0,255}")
_PATH: Final = f"{bubblewrap.HOME}/.local/bin:{bubblewrap.HOME}/.cargo/bin:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
_IMAGE_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class LocalSandbox(Sandbox):
    """The provider opens and closes it. Boxes outlive it."""

    tools = bubblewrap.TOOLS

    def __init__(self, provider: str, home: Path, *, egress: Egress | None, box_disk: int | None) -> None:
        path = home / "local"
        uid, gid = runtime.chosen_user(path)
        super().__init__(provider, DataDir(path, uid, gid))
        self._home = home
        self._tools = home / "tools"
        self._mounted_tools: tuple[int, int] | None = None
        self._as_root = os.geteuid() == 0
        self.other_user = self._as_root
        self.backend = limits.LimitBackend(limits.RLIMITS, {}, {})
        self._own_files = 0
        self._box_disk = box_disk
        self._runtime: runtime.Runtime | None = None
        self._launcher: Launcher | None = None
        self._interpreter: portable_python.Interpreter | None = None
        self._egress = LocalEgress(egress)

    @functools.cached_property
    def _group_name(self) -> str:
        return limits.home_name(self.data_dir.path)

    @property
    def is_open(self) -> bool:
        return self._launcher is not None

    @property
    def serves_egress(self) -> bool:
        return self._egress.serves

    async def open(self) -> None:
        """Raises `CannotIsolate`. A failure leaves it closed, except for what `close` releases."""
        self._own_files = limits.raise_own_limit()
        made, self.backend = await self.workers.on_disk(self._prepare)
        self._runtime = made
        self.capabilities = _capabilities(self.backend)
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

    def close(self) -> None:
        self._egress.close()
        if self._launcher is not None:
            self._launcher.close()
            self._launcher = None

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
        """Create the folder of tools, and return its device and inode.

        The folder is mounted while it is empty and is never replaced, so tools added later appear in running boxes.
        """
        with contextlib.suppress(FileExistsError):
            self._tools.mkdir()
            self._tools.chmod(0o755)
        status = self._tools.stat()
        return status.st_dev, status.st_ino

    @property
    def mounted(self) -> runtime.Runtime:
        """What is mounted into new boxes."""
        if self._runtime is None:
            raise RuntimeError("the provider is not open: use it in `async with`, or await its open()")
        return self._runtime

    @property
    def launcher(self) -> Launcher:
        assert self._launcher is not None
        return self._launcher

    # --- commands ---

    def _image_and_policy(self, info: BoxInfo) -> tuple[BoxImage | None, NetworkPolicy]:
        """Returns the image of a box, and its current policy, which may be newer than the handle."""
        try:
            record = self.data_dir.read(info.id)
        except BoxError:
            return None, info.spec.network
        return record.image, record.spec.network

    def workdir(self, info: BoxInfo) -> str:
        if info.spec.workdir == WORKSPACE and (image := self._image_and_policy(info)[0]) is not None:
            return image.workdir or info.spec.workdir
        return info.spec.workdir

    def environment(self, info: BoxInfo) -> dict[str, str]:
        image, policy = self._image_and_policy(info)
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

    # --- the network ---

    async def open_egress(self, guest: GuestClient, record: BoxRecord) -> None:
        if self._has_egress(record):
            await self._open_egress(guest, record)

    def has_guest_api(self, record: BoxRecord) -> bool:
        return self._egress.serves and (self.data_dir.box(record.id) / _EGRESS_MARKER).exists()

    async def open_guest_api(self, guest: GuestClient, record: BoxRecord) -> None:
        if not self._egress.serves:
            await super().open_guest_api(guest, record)
        await self._open_egress(guest, record)

    async def _open_egress(self, guest: GuestClient, record: BoxRecord) -> None:
        await self._egress.open(guest, record.spec.network, record.labels)
        (self.data_dir.box(record.id) / _EGRESS_MARKER).touch()

    def _has_egress(self, record: BoxRecord) -> bool:
        """Whether the guest has a listener. It keeps it under a policy that allows nothing, to refuse at once."""
        return record.spec.network.mode is not Network.NONE or (self.data_dir.box(record.id) / _EGRESS_MARKER).exists()

    def is_cut_off(self, id: str) -> bool:
        """Returns whether a box runs without the egress that it should have, or with that of a guest that has ended."""
        try:
            guest = self.guest(id)
            if not self._egress.serves or not self._has_egress(self.data_dir.read(id)) or guest.paused:
                return False
            pid = guest.pid()
        except BoxError:
            return False
        return pid is not None and not self._egress.has(id, pid)

    def traffic(self, id: str) -> Traffic | None:
        return self._egress.traffic(id)

    # --- starting ---

    def check(self, spec: BoxSpec) -> None:
        super().check(spec)
        volumes.check(self.data_dir, spec, self._home)

    def first_layers(self, spec: BoxSpec) -> tuple[tuple[str, ...], BoxImage | None]:
        return ((layers.BASE,), None) if spec.image is None else image_store.beginning(self.data_dir, spec.image)

    def disk_limit(self, spec: BoxSpec) -> int:
        """Returns the bytes that a box may have on disk."""
        return spec.disk or self._box_disk or default_limit(self.data_dir.path)

    def user_of(self, id: str) -> int:
        """Returns the user, as the machine sees it, that a box runs as if it is started now."""
        own = runtime.box_user(self.data_dir.path, id) if self._launcher is not None and self._launcher.maps else None
        return self.data_dir.uid if own is None else own

    def _launcher_path(self, path: Path) -> str:
        """Returns a path as the launcher sees it."""
        if not self._as_root:
            return str(path)
        return f"{stage_for(self.data_dir.path)}/local/{path.relative_to(self.data_dir.path)}"

    async def launch(self, record: BoxRecord) -> int:
        spec = record.spec
        folder = self.data_dir.box(record.id)
        (folder / _EGRESS_MARKER).unlink(missing_ok=True)
        image = record.image
        places = ["/proc", "/dev", "/run", bubblewrap.GUEST, portable_python.PYTHON]
        if image is None:
            places += ["/etc", *(target for _, target in self.mounted.programs)]
        places += [volume.path for volume in spec.volumes] + [mount.path for mount in spec.mounts]
        volumes.check_places(self.data_dir, record.layers, folder / "upper", places)
        sources = volumes.sources(self.data_dir, spec, self._home)
        as_root_inside = image is not None and image.uid == 0
        filter_file = self.mounted.root_seccomp if as_root_inside else self.mounted.seccomp
        filter = os.open(filter_file, os.O_RDONLY | os.O_CLOEXEC)  # a box reads it to its end, so each has its own
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
                tools = f"{stage_for(self.data_dir.path)}/tools" if self._as_root else str(self._tools)
                mounts.insert(0, bubblewrap.Mount(tools, bubblewrap.TOOLS, read_only=True))
            if image is None:
                mounts += self._user_mounts(spec, folder)
            files = bubblewrap.Files(
                tuple(self._launcher_path(self.data_dir.layers / layer / "files") for layer in record.layers),
                self._launcher_path(folder / "upper"),
                self._launcher_path(folder / "work"),
            )
            memory, pids = _memory_of(spec), spec.pids or _DEFAULT_PIDS
            by_group = self.backend.enforces
            processes = None if by_group("pids") else pids
            if image is None:
                arguments = bubblewrap.arguments(
                    self._machine(), files, record.id, mounts, first, processes, spec.workdir
                )
            else:
                inside = await self._image_machine(image)
                arguments = bubblewrap.image_arguments(inside, files, record.id, mounts, first, processes, spec.workdir)
            request = {
                "folder": str(folder),
                "program": self._launcher_path(self.mounted.bwrap),
                "argv": [monitor_name(record.id), *arguments],
                "environment": {},
                "user": self.user_of(record.id),
                "mounts": [
                    {"root": source.root, "parts": source.parts, "place": place}
                    for source, place in zip(sources, staged, strict=True)
                ],
                "rlimits": limits.rlimits_for(
                    None if by_group("memory") else memory, self.disk_limit(spec), self._own_files
                ),
            }
            self._make_group(record)
            return await self.launcher.launch(request, [filter])
        finally:
            os.close(filter)

    def _sees_tools(self, record: BoxRecord, folder: Path) -> bool:
        """Returns whether the tools can be mounted: not if the box has something else at their path."""
        others = [volume.path for volume in record.spec.volumes] + [mount.path for mount in record.spec.mounts]
        if any(path.startswith(f"{bubblewrap.TOOLS}/") for path in others):
            return False
        if self._make_tools() != self._mounted_tools:  # it was deleted: the launcher still has the old one mounted
            return False
        return volumes.has_place(self.data_dir, record.layers, folder / "upper", bubblewrap.TOOLS)

    def _user_mounts(self, spec: BoxSpec, folder: Path) -> list[bubblewrap.Mount]:
        """Returns the files that name the user of a box, if its environment has another USER than most boxes."""
        user, home = spec.env.get("USER", bubblewrap.USER), spec.env.get("HOME", bubblewrap.HOME)
        if user == bubblewrap.USER or not _USER_NAME.fullmatch(user) or not _USER_HOME.fullmatch(home):
            return []
        mounts = []
        for name, text in runtime.user_files(user, home).items():
            (folder / name).write_text(text)
            (folder / name).chmod(0o644)
            mounts.append(bubblewrap.Mount(self._launcher_path(folder / name), f"/etc/{name}", read_only=True))
        return mounts

    def _machine(self) -> bubblewrap.Machine:
        """Returns what a box without an image sees of this machine."""
        made = self.mounted
        prefix = None
        if made.python_prefix is not None:
            prefix = f"{stage_for(self.data_dir.path)}/python" if self._as_root else str(made.python_prefix)
        return bubblewrap.Machine(
            made.programs,
            made.masked_files,
            made.masked_folders,
            self._launcher_path(made.etc),
            self._launcher_path(made.guest),
            made.python,
            prefix,
            self._launcher_path(made.sys),
        )

    async def _image_machine(self, image: BoxImage) -> bubblewrap.ImageMachine:
        """Returns what a box with an image sees of this machine."""
        made = self.mounted
        if self._interpreter is None:
            self._interpreter = await self.workers.on_disk(portable_python.prepare, self.data_dir, made.host_python)
        return bubblewrap.ImageMachine(
            made.masked_files,
            made.masked_folders,
            self._launcher_path(made.guest),
            self._launcher_path(self._interpreter.folder),
            self._interpreter.command,
            image.uid,
            image.gid,
            self._launcher_path(made.sys),
        )

    def start_error(self, id: str) -> BoxError:
        output = self.start_log(id)
        if "bwrap:" in output or "launcher:" in output:
            # The stage exists only in the mount namespace of the launcher: name the path that the operator knows.
            output = output.replace(f"{stage_for(self.data_dir.path)}/local", str(self.data_dir.path))
            return machine.explain(output, machine.find_facts())
        return super().start_error(id)

    # --- control groups ---

    def _make_group(self, record: BoxRecord) -> limits.BoxGroup:
        spec = record.spec
        memory, pids = _memory_of(spec), spec.pids or _DEFAULT_PIDS
        return limits.create(self.backend, self._group_name, record.id, spec.cpu, memory, pids)

    def _group(self, id: str) -> limits.BoxGroup:
        return limits.BoxGroup(self.backend, self._group_name, id)

    async def confine(self, record: BoxRecord, pid: int) -> None:
        with contextlib.suppress(ProcessLookupError):  # it has ended already: its socket shows that
            await self.workers.on_disk(self._group(record.id).join, pid)

    def release(self, id: str) -> None:
        self._group(id).remove()

    def usage(self, id: str) -> limits.GroupUsage:
        return self._group(id).usage()

    # --- ending ---

    async def end(self, guest: GuestClient) -> None:
        files = await _keep_mounted(guest)
        try:
            await self._kill(guest)
        finally:
            self._egress.shut(guest.box)
            for each in files:
                self.workers.in_background(self.workers.on_disk(os.close, each))

    async def _kill(self, guest: GuestClient) -> None:
        """Kill the control group of a box if it has one, then its guest.

        A sandbox that was interrupted while it started has no guest yet. Its processes are found by their name.
        """
        group = self._group(guest.box)
        if group.exists:
            await self.workers.on_disk(group.kill)
        if guest.is_socket_open():
            upper = self._launcher_path(self.data_dir.box(guest.box) / "upper")
            await self.workers.on_disk(_kill_unborn, guest.box, upper)
        await guest.kill()

    async def kill_processes(self, id: str) -> None:
        """Kill the processes of a box that exceeds its disk limit. Returns when they have ended, if that is soon."""
        guest = self.guest(id)
        try:
            await guest.ask({"op": "kill_all", "number": signal.SIGKILL.value}, seconds=_STOP_SECONDS)
            for _ in range(_END_TRIES):  # a process that is writing ends only after its write
                if not number_in(await guest.ask({"op": "activity"}, seconds=_STOP_SECONDS), "processes"):
                    break
                await asyncio.sleep(_END_PAUSE)
        except (BoxError, GuestRefused):  # the guest does not help, so it is killed too
            with contextlib.suppress(BoxError):
                await self._kill(guest)

    # --- files ---

    async def seal_files(self, guest: GuestClient) -> bool:
        pid = guest.pid()
        if pid is None:
            return False
        try:
            namespace = os.open(f"/proc/{pid}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            if guest.pid() != pid:  # otherwise another process may have had this pid when it was opened
                return False
            number = await self.launcher.seal(namespace)
        finally:
            os.close(namespace)
        if number not in (0, errno.EBUSY):
            log.warning("cannot make the files of box %s read-only: %s", guest.box, os.strerror(number))
        return number == 0

    async def copy_files(self, source: int, target: int) -> dict[str, Any]:
        return await self.launcher.copy(source, target)

    # --- freezing ---

    @contextlib.asynccontextmanager
    async def frozen(self, id: str) -> AsyncIterator[None]:
        if self.guest(id).paused:
            yield  # it stays paused while it is locked
            return
        if not self._group(id).can_freeze:
            async with super().frozen(id):
                yield
            return
        await self.freeze(id)
        try:
            yield
        finally:
            await self.thaw(id)

    async def freeze(self, id: str) -> None:
        try:
            await self.workers.on_disk(self._group(id).freeze)
        except TimeoutError:
            raise BoxConflict(
                f"box {id} cannot be frozen: its processes wait for the disk", hint="try again when it is less busy"
            ) from None

    async def thaw(self, id: str) -> None:
        await self.workers.on_disk(self._group(id).thaw)

    def frozen_activity(self, id: str) -> dict[str, Any] | None:
        try:
            since = (self.data_dir.box(id) / PAUSED).stat().st_mtime
        except FileNotFoundError:
            return None
        processes = max(0, len(self._group(id).processes()) - _SANDBOX_PROCESSES)
        return {"processes": processes, "connections": 0, "idle": max(0, int((time.time() - since) * 1000))}

    # --- repair ---

    def needs_repair(self, id: str) -> bool:
        return (
            super().needs_repair(id)
            or self._is_wrongly_frozen(id)
            or self._is_half_ended(id)
            or self._is_unconfined(id)
            or self.is_cut_off(id)
        )

    def _is_wrongly_frozen(self, id: str) -> bool:
        """Whether a process died between marking a box as paused and freezing it, or while it copied a frozen box."""
        group = self._group(id)
        return group.exists and group.can_freeze and group.held is not self.guest(id).paused

    def _is_unconfined(self, id: str) -> bool:
        """Returns whether a box runs outside of its control group."""
        if not self.backend.roots:
            return False
        try:
            pid = self.guest(id).pid()
            return pid is not None and f"/{self._group_name}/{id}" not in Path(f"/proc/{pid}/cgroup").read_text()
        except (BoxError, OSError):
            return False

    def _is_half_ended(self, id: str) -> bool:
        """Returns whether a process died while it ended a box."""
        group = self._group(id)
        try:
            pid = self.guest(id).pid()
        except BoxError:
            return group.condemned
        if pid is None:
            return group.exists
        # If the process that creates a sandbox is killed early, the sandbox waits for ever and holds its socket.
        return group.condemned or (pid != 0 and not Path("/proc", str(pid)).exists())

    async def repair(self, id: str) -> None:
        guest = self.guest(id)
        if self._is_half_ended(id):
            await self.end(guest)
            self.release(id)
        elif self._is_wrongly_frozen(id):
            await (self.freeze(id) if guest.paused else self.thaw(id))
        elif self._is_unconfined(id) and (pid := guest.pid()) is not None:
            record = self.data_dir.read(id)
            self._make_group(record)
            await self.confine(record, pid)
        elif self.is_cut_off(id):
            await self.open_egress(guest, self.data_dir.read(id))
        await super().repair(id)

    def sweep_machine(self) -> list[str]:
        removed = []
        for id in limits.list_groups(self.backend, self._group_name):
            # Checked after listing the groups: a new box has a folder before it has a group.
            if not self.data_dir.box(id).exists():
                group = self._group(id)
                group.kill()
                if group.remove():
                    removed.append(f"control group of box {id}")
        limits.clear_leftovers(self.backend, self._group_name)
        return removed


async def _keep_mounted(guest: GuestClient) -> list[int]:
    """Returns descriptors that keep the files of a box mounted a moment longer than the box lives.

    When the last user of an overlay closes it, the kernel writes everything to disk and that user waits. A thread in
    the background should be that user, not the end of the box.
    """
    try:
        _, descriptors = await guest.ask_descriptors({"op": "hold"}, seconds=_HOLD_SECONDS)
    except (BoxError, GuestRefused):
        return []
    return descriptors


def _kill_unborn(id: str, upper: str) -> None:
    """Kill the processes of a sandbox whose guest does not run yet. Another home may have a box of the same id."""
    name, files = monitor_name(id).encode(), os.fsencode(upper)
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                first, *others = Path(entry.path, "cmdline").read_bytes().split(b"\0")
                if first == name and files in others:
                    os.kill(int(entry.name), signal.SIGKILL)


def environment_in(image: BoxImage) -> dict[str, str]:
    """Returns the default environment of processes in a box with this image."""
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
