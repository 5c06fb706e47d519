"""Installs agents on this machine, once each, with npm and the versions of their lock files. They are then read-only.

    <home>/tools/pi-0.87.1-5c1f0a9b42/   node_modules, and installed.json, which is written last
    <home>/tools/node-24.19.0/bin/node
    <home>/installing/                   unfinished installations and locks, which boxes cannot see
    <home>/npm-cache/                    npm's cache, unless the user's environment sets another

Boxes see the folder `tools`, or get a copy of what they need (`holdfast.harnesses.placement`).
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import hashlib
import inspect
import json
import os
import platform
import shutil
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from holdfast.api.errors.agents import CannotInstall
from holdfast.api.ids import new_id
from holdfast.harnesses.command import run
from holdfast.harnesses.harness import Harness, Package
from holdfast.harnesses.node import Node, find_node
from holdfast.harnesses.npm import UNREACHED, explain

LOCK: Final = "package-lock.json"
_MANIFEST: Final = "package.json"
_NOTE: Final = "installed.json"
_CACHE_SETTING: Final = "npm_config_cache"
_INSTALL_SECONDS: Final = 900.0
_WAIT_SECONDS: Final = 1800.0
_PAUSE: Final = 0.1
_TICK: Final = 0.5
_PROCESSORS: Final = {"x86_64": "x64", "amd64": "x64", "aarch64": "arm64", "arm64": "arm64"}


@dataclass(frozen=True, slots=True)
class Installed:
    """An agent on this machine."""

    folder: Path
    node: Path
    """The program."""
    version: str


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress to show to a waiting user. Reported at the start, regularly, and at the end."""

    what: str
    """`node`, or an agent with its version."""
    seconds: float
    done: bool


OnProgress = Callable[[Progress], None]


def processor(machine: str) -> str:
    """Returns npm's name for the processor that the kernel calls `machine`. Raises `CannotInstall`."""
    try:
        return _PROCESSORS[machine.lower()]
    except KeyError:
        raise CannotInstall(f"agents are not available for the processor {machine!r}") from None


class Tools:
    """The folder of installed agents. If several processes install the same agent, one does and the others wait."""

    def __init__(self, home: Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.folder = home.absolute() / "tools"
        self._clock = clock

    def find(self, harness: Harness, cpu: str | None = None) -> Installed | None:
        """Returns an installed agent, or None. Reads only two files."""
        if harness.package is None:
            return None
        folder = self.folder / self._name(harness, harness.package, cpu)
        try:
            note = json.loads((folder / _NOTE).read_bytes())
            node = self.folder / str(note["node"]) / "bin" / "node"
            return Installed(folder, node, str(note["version"])) if node.exists() else None
        except (OSError, ValueError, KeyError, TypeError):
            return None

    async def install(
        self, harness: Harness, *, cpu: str | None = None, on_progress: OnProgress | None = None
    ) -> Installed:
        """Install an agent if needed. `cpu` is npm's name for the processor of the box. Raises `CannotInstall`.

        Waits for another process that installs the same agent. An interrupted installation is not used.
        """
        package = harness.package
        if package is None:
            raise CannotInstall(f"Holdfast does not install agent {harness.name}: it must be in the box")
        found = await asyncio.to_thread(self.find, harness, cpu)
        if found is not None:
            return found
        name = self._name(harness, package, cpu)
        try:
            async with self._alone(name) as work:
                found = await asyncio.to_thread(self.find, harness, cpu)
                return found or await self._install(harness, package, name, work, cpu, on_progress)
        except OSError as error:
            raise CannotInstall(
                f"cannot install {harness.title} in {self.folder}: {error}", hint=_hint_for(error)
            ) from None

    # --- one at a time ---

    def _name(self, harness: Harness, package: Package, cpu: str | None) -> str:
        pinned = (_beside(harness) / LOCK).read_bytes()
        identity = hashlib.sha256(pinned + (cpu or processor(platform.machine())).encode())
        return f"{harness.name}-{package.version}-{identity.hexdigest()[:10]}"

    @contextlib.asynccontextmanager
    async def _alone(self, name: str) -> AsyncIterator[Path]:
        """Locks one tool. Yields a folder to build it in."""
        self.folder.mkdir(parents=True, exist_ok=True)
        # Next to the resolved folder, so that it can be renamed into it. Not inside it: a box could take the lock.
        place = self.folder.resolve().with_name("installing")
        place.mkdir(mode=0o700, exist_ok=True)
        lock = os.open(place / f"{name}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            await self._take(lock, name)
            for left in place.glob(f"{name}.made-*"):
                await asyncio.to_thread(shutil.rmtree, left, ignore_errors=True)
            work = place / f"{name}.made-{new_id('x')}"
            work.mkdir()
            work.chmod(0o755)
            try:
                yield work
            finally:
                await asyncio.shield(asyncio.to_thread(shutil.rmtree, work, ignore_errors=True))
        finally:
            os.close(lock)

    async def _take(self, lock: int, name: str) -> None:
        deadline = self._clock() + _WAIT_SECONDS
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if self._clock() > deadline:
                    raise CannotInstall(f"another process has been installing {name} for too long") from None
                await asyncio.sleep(_PAUSE)
            else:
                return

    # --- installing ---

    async def _install(
        self,
        harness: Harness,
        package: Package,
        name: str,
        work: Path,
        cpu: str | None,
        on_progress: OnProgress | None,
    ) -> Installed:
        async with self._told("node", on_progress):
            node = await find_node()
            kept = await self._keep_node(node)
        async with self._told(f"{harness.name} {package.version}", on_progress):
            for each in (_MANIFEST, LOCK):
                await asyncio.to_thread(shutil.copyfile, _beside(harness) / each, work / each)
            await self._npm(node, harness, work, cpu or processor(platform.machine()))
            await asyncio.to_thread(_check_whole, work, harness, cpu or processor(platform.machine()))
            await asyncio.to_thread(_link_program, work, package.command, harness)
            await asyncio.to_thread(_seal, work, {"version": package.version, "node": kept})
            await asyncio.to_thread(_move, work, self.folder.resolve() / name)
        return Installed(self.folder / name, self.folder / kept / "bin" / "node", package.version)

    async def _npm(self, node: Node, harness: Harness, work: Path, cpu: str) -> None:
        """Runs npm, without the scripts of packages. Only packages of the lock file are installed."""
        done = await run(
            [
                str(node.program), "--use-system-ca", str(node.npm), "ci", "--ignore-scripts", "--omit=dev",
                "--os=linux", f"--cpu={cpu}", "--libc=glibc",
                "--no-audit", "--no-fund", "--no-update-notifier", "--no-progress", "--loglevel=error",
                *self._cache(),
            ],
            seconds=_INSTALL_SECONDS,
            cwd=work,
        )  # fmt: skip
        if done.code != 0:
            message, hint = explain(done.output)
            raise CannotInstall(f"cannot install {harness.title}: {message}", hint=hint)

    def _cache(self) -> list[str]:
        """Uses a cache in Holdfast's home, not the user's, so that removing the home removes everything."""
        if any(name.lower() == _CACHE_SETTING for name in os.environ):
            return []
        return [f"--cache={self.folder.resolve().with_name('npm-cache')}"]

    async def _keep_node(self, node: Node) -> str:
        """Puts the node program where boxes see it. Returns the name of its folder."""
        name = f"node-{node.version}"
        target = self.folder.resolve() / name
        if not await asyncio.to_thread((target / "bin" / "node").exists):
            async with self._alone(name) as work:
                if not (target / "bin" / "node").exists():
                    await asyncio.to_thread(_link_or_copy, node.program, work / "bin" / "node")
                    await asyncio.to_thread(_move, work, target)
        return name

    @contextlib.asynccontextmanager
    async def _told(self, what: str, on_progress: OnProgress | None) -> AsyncIterator[None]:
        if on_progress is None:
            yield
            return
        began = self._clock()

        async def tick() -> None:
            while True:
                on_progress(Progress(what, self._clock() - began, done=False))
                await asyncio.sleep(_TICK)

        ticking = asyncio.create_task(tick())
        try:
            yield
        finally:
            ticking.cancel()
            await asyncio.gather(ticking, return_exceptions=True)
        on_progress(Progress(what, self._clock() - began, done=True))


def _beside(harness: Harness) -> Path:
    return Path(inspect.getfile(type(harness))).parent


def _check_whole(work: Path, harness: Harness, cpu: str) -> None:
    """Raises if a package is missing. npm does not report a failed download of an optional package."""
    for path, package in json.loads((work / LOCK).read_bytes())["packages"].items():
        fits = cpu in package.get("cpu", [cpu]) and "linux" in package.get("os", ["linux"])
        if fits and "glibc" in package.get("libc", ["glibc"]) and not (work / path).exists():
            name = path.rpartition("node_modules/")[2]
            raise CannotInstall(f"cannot install {harness.title}: npm did not fetch {name}", hint=UNREACHED)


def _link_program(work: Path, command: str, harness: Harness) -> None:
    """Links the agent's program into `node_modules/.bin`, as npm does for a package that declares it."""
    modules = work / "node_modules"
    link = modules / ".bin" / command
    if not link.exists():
        packages = [*modules.glob("[!.@]*"), *modules.glob("@*/*")]
        found = [path for each in packages for path in (each / command, each / "bin" / command) if path.is_file()]
        if len(found) != 1:
            raise CannotInstall(
                f"{harness.title} is not available for this processor",
                hint="use another agent, or another machine",
            )
        link.parent.mkdir(exist_ok=True)
        link.unlink(missing_ok=True)
        link.symlink_to(os.path.relpath(found[0], link.parent))
    link.resolve().chmod(0o755)


def _seal(work: Path, note: dict[str, str]) -> None:
    """Makes everything readable by all users, and writes it to disk before it is used."""
    for folder, _, names in os.walk(work):
        Path(folder).chmod(0o755)
        for name in names:
            path = Path(folder, name)
            if not path.is_symlink():
                path.chmod(0o755 if path.stat().st_mode & 0o100 else 0o644)
    (work / _NOTE).write_text(json.dumps(note))
    (work / _NOTE).chmod(0o644)
    os.sync()


def _move(work: Path, target: Path) -> None:
    if target.exists():  # an incomplete installation, without its note
        shutil.rmtree(target)
    work.rename(target)
    work.mkdir()  # the caller removes it


def _link_or_copy(source: Path, target: Path) -> None:
    target.parent.mkdir()
    target.parent.chmod(0o755)
    source = source.resolve()
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
        target.chmod(0o755)
    if target.stat().st_mode & 0o555 != 0o555:  # a link to a file that others cannot read
        target.unlink()
        shutil.copyfile(source, target)
        target.chmod(0o755)


def _hint_for(error: OSError) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "free some disk space and try again"
    return "make the folder writable for the server's user, or choose another --home"
