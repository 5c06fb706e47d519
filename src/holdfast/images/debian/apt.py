"""The machine's own apt, in a separate folder: decides which packages are needed, and verifies and fetches them.

It runs as the user that builds, with its own lists and cache, and never touches the packages of the machine. It uses
the machine's settings for the network: proxies, certificates, logins of mirrors.
"""

from __future__ import annotations

import asyncio
import contextlib
import difflib
import fcntl
import hashlib
import os
import re
import shutil
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from holdfast.images.debian.sources import SourceFiles
from holdfast.images.errors import MirrorFailed, NoSources, NotVerified, Unresolvable
from holdfast.time_limit import time_limit

ESSENTIAL: Final = "?essential"
"""What dpkg and the scripts of packages may assume to exist."""
EVERYWHERE: Final = "?or(?essential,?priority(required))"
"""What every system has."""
_ARCHITECTURE: Final = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_UNUSABLE: Final = re.compile(r'[\s,"\\]')
_NAME: Final = re.compile(r"[a-z0-9][a-z0-9+.-]+")
_URI: Final = re.compile(r"'(\S+)' (\S+\.deb) (\d+) SHA256:([0-9a-f]{64})")
_INSTALL: Final = re.compile(r"Inst (\S+) ")
_PROGRESS: Final = re.compile(rb"dlstatus:[^:]*:([\d.]+):")
_UNKNOWN: Final = re.compile(r"Unable to locate package (\S+)|Couldn't find any package by regex '([^']+)'")
_UNSIGNED: Final = re.compile(
    r"NO_PUBKEY|is not signed|not be authenticated|BADSIG|EXPKEYSIG|NODATA|signatures? (were|was) invalid|"
    r"is not valid yet|is expired|weak security|Clearsigned file"
)
_SECONDS: Final = 3600.0
_OUTPUT: Final = 1 << 20
_KEPT_SECONDS: Final = 90 * 86400.0
"""Packages that no build has used for this long are removed."""

Moved = Callable[[float], None]
"""Called with the progress, from 0 to 1."""


@dataclass(frozen=True, slots=True)
class Package:
    """One package as a mirror lists it."""

    name: str
    file: str
    """Name of its file, which includes its version and architecture."""
    size: int
    sha256: str


class Apt:
    """Owns its folder. One process uses it at a time, and others wait."""

    def __init__(self, folder: Path, architecture: str | None = None) -> None:
        if architecture is not None and not _ARCHITECTURE.fullmatch(architecture):
            raise NoSources(f"{architecture!r} is not an architecture of Debian", hint="--arch amd64, or arm64")
        self._folder = folder.absolute()
        if _UNUSABLE.search(str(self._folder)):
            raise NoSources(
                f"apt cannot work in {self._folder}: blanks, commas and quotes in a path mean something to it",
                hint="give a --home without them; or pull an image instead: holdfast image pull debian:12",
            )
        self._archives = self._folder / "archives"
        self._architecture = architecture

    @contextlib.asynccontextmanager
    async def locked(self) -> AsyncIterator[None]:
        self._archives.mkdir(parents=True, exist_ok=True, mode=0o700)
        with (self._folder / "lock").open("ab") as file:
            while True:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    await asyncio.sleep(0.2)
            yield

    async def architecture(self) -> str:
        """Returns Debian's name of the processor."""
        return self._architecture or (await _run(["dpkg", "--print-architecture"], {})).strip()

    async def update(self, sources: SourceFiles) -> None:
        """Fetch the lists of the sources. apt verifies their signatures. Raises `NotVerified` or `MirrorFailed`."""
        await self._configure(sources)
        await self._apt("update", "-o", "APT::Update::Error-Mode=any")

    async def resolve(self, wanted: Sequence[str]) -> list[Package]:
        """Returns the packages and all dependencies, in the order of installation. Raises `Unresolvable`."""
        order = await self.order(wanted)
        # Without an archive folder: apt does not list files that it has already.
        listed = await self._apt(
            "--print-uris",
            *("-o", "Acquire::ForceHash=SHA256"),
            *("-o", f"Dir::Cache::archives={self._folder / 'no-archives'}"),
            *("install", "--", *wanted),
        )
        found = {}
        for _, file, size, sha256 in _URI.findall(listed):
            name = file.partition("_")[0]
            found[name] = Package(name, file, int(size), sha256)
        if set(order) != set(found):
            raise MirrorFailed(f"apt names {len(order)} packages and has {len(found)} of them with a SHA-256 checksum")
        return [found[name] for name in order]

    async def order(self, wanted: Sequence[str]) -> list[str]:
        """Returns the names of these packages and all dependencies, as apt would install them. Raises
        `Unresolvable`."""
        for name in wanted:
            # apt would interpret some words as a pattern, a file, or a package to remove.
            if name not in (ESSENTIAL, EVERYWHERE) and (not _NAME.fullmatch(name) or name.endswith("-")):
                raise Unresolvable(f"there is no package {name}", hint="check its name")
        simulated = await self._apt("--simulate", "install", "--", *wanted)
        return [name.partition(":")[0] for name in _INSTALL.findall(simulated)]

    async def download(self, wanted: Sequence[str], packages: Sequence[Package], moved: Moved) -> list[Path]:
        """Returns the files of these packages, complete and verified. `wanted` is what they were resolved for."""
        paths = [self._archives / package.file for package in packages]
        await asyncio.to_thread(_remove_damaged, paths, packages)  # apt would accept them by their names
        await self._apt("--download-only", "install", "--", *wanted, moved=moved)
        if broken := await asyncio.to_thread(_remove_damaged, paths, packages):
            raise NotVerified(
                f"{broken[0]} is not what the mirror has signed", hint="build again: it is fetched once more"
            )
        if missing := [path.name for path in paths if not path.exists()]:
            raise MirrorFailed(f"apt did not fetch {missing[0]}", hint="build again; what was downloaded is kept")
        return paths

    async def names(self) -> list[str]:
        """Returns the names of all packages in the sources."""
        return (await _run(["apt-cache", "pkgnames"], self._environment)).split()

    def forget_old(self, now: float | None = None) -> None:
        """Remove packages that no build has used for months."""
        before = (time.time() if now is None else now) - _KEPT_SECONDS
        earlier = self._folder.glob("??/*")  # where version 0.1 stored them
        for path in (*self._archives.glob("*.deb"), *earlier):
            with contextlib.suppress(FileNotFoundError):
                if path.stat().st_mtime < before:
                    path.unlink()

    # --- how it is run ---

    @property
    def _environment(self) -> dict[str, str]:
        return {**os.environ, "APT_CONFIG": str(self._folder / "apt.conf"), "LC_ALL": "C.UTF-8"}

    async def _apt(self, *arguments: str, moved: Moved | None = None) -> str:
        try:
            return await _run(["apt-get", "-q", "-y", *arguments], self._environment, moved)
        except _Failed as failed:
            raise await self._explained(failed.output) from None

    async def _explained(self, output: str) -> Exception:
        errors = [line[3:] for line in output.splitlines() if line.startswith(("E: ", "W: "))] or [output[-300:]]
        reason = "; ".join(dict.fromkeys(errors))[:600]
        if unknown := _UNKNOWN.search(output):
            name = unknown[1] or unknown[2]
            similar = difflib.get_close_matches(name, await self.names(), n=3, cutoff=0.8)
            hint = f"perhaps {' or '.join(similar)}" if similar else "check its name, and that the sources have it"
            return Unresolvable(f"there is no package {name}", hint=hint)
        if "unmet dependencies" in output or "no installation candidate" in output:
            detail = " ".join(output.partition("unmet dependencies")[2].partition("E: ")[0].split())[:400]
            return Unresolvable(f"apt cannot have these packages together{detail}", hint="leave one of them out")
        if _UNSIGNED.search(output):
            return NotVerified(
                f"apt does not trust the release file: {reason}",
                hint="give the keyring with --keyring; package debian-archive-keyring or ubuntu-keyring has them. "
                "--insecure continues anyway, if you trust the connection to the mirror",
            )
        return MirrorFailed(
            f"apt failed: {reason}",
            hint="run the command again, which keeps what was downloaded; or name another mirror",
        )

    async def _configure(self, sources: SourceFiles) -> None:
        # Unverified files are stored apart from those that apt has verified.
        state = "unverified" if sources.insecure else "state"
        for name in (f"{state}/lists/partial", "archives/partial", "no-archives/partial", "cache", "keys"):
            (self._folder / name).mkdir(parents=True, exist_ok=True, mode=0o700)
        for name, data in sources.files(self._folder / "keys").items():
            (self._folder / name).write_bytes(data)
        (self._folder / "status").write_bytes(b"")
        own = {
            "Dir::Etc::main": "/dev/null",
            "Dir::Etc::parts": "/dev/null",
            "Dir::Etc::sourcelist": self._folder / "holdfast.sources",
            "Dir::Etc::sourceparts": "/dev/null",
            "Dir::Etc::preferences": "/dev/null",
            "Dir::Etc::preferencesparts": "/dev/null",
            "Dir::State": self._folder / state,
            "Dir::State::status": self._folder / "status",
            "Dir::Cache": self._folder / "cache",
            "Dir::Cache::archives": self._archives,
            "Dir::Log": self._folder / "log",
            "APT::Architecture": await self.architecture(),
            "APT::Architectures": await self.architecture(),
            "APT::Install-Recommends": "false",
            "APT::Sandbox::User": "",
            "Acquire::GzipIndexes": "false",  # compressed lists are slow to search
            "Acquire::Languages": "none",
            "Acquire::Retries": "3",
        }
        lines = [f'{name} "{value}";' for name, value in own.items()]
        network = _network_settings(await _run(["apt-config", "dump"], {**os.environ, "LC_ALL": "C.UTF-8"}))
        (self._folder / "apt.conf").write_text("\n".join([*network, *lines]) + "\n")


def require_apt() -> None:
    """Raises `NoSources` if the machine has no apt."""
    programs = ("apt-get", "apt-cache", "apt-config", "dpkg", "dpkg-deb")
    missing = [name for name in programs if shutil.which(name) is None]
    if missing:
        raise NoSources(
            f"this image is made by the machine's apt and dpkg, and this machine has no {missing[0]}",
            hint="pull an image instead: holdfast image pull debian:12",
        )


class _Failed(Exception):
    def __init__(self, output: str) -> None:
        super().__init__(output[-300:])
        self.output = output


async def _run(command: Sequence[str], environment: Mapping[str, str], moved: Moved | None = None) -> str:
    """Returns the output of a program. Raises `_Failed` with all output if it fails. Cancelling ends the program."""
    read, write = os.pipe()
    status = ["-o", f"APT::Status-Fd={write}"] if moved is not None else []
    try:
        process = await asyncio.create_subprocess_exec(
            *command[:1],
            *status,
            *command[1:],
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env=dict(environment) or None,
            pass_fds=(write,),
            start_new_session=True,
        )
    except BaseException:
        os.close(read)
        raise
    finally:
        os.close(write)
    loop = asyncio.get_running_loop()

    def report(part: float) -> None:
        if moved is not None:
            loop.call_soon_threadsafe(moved, part)

    following = asyncio.ensure_future(asyncio.to_thread(_follow, read, report))
    assert process.stdout is not None
    output = bytearray()
    try:
        async with time_limit(_SECONDS):
            while piece := await process.stdout.read(1 << 16):
                output += piece
                del output[: -_OUTPUT * 16]
            await process.wait()
    except TimeoutError:
        raise MirrorFailed(f"{command[0]} did not end within {_SECONDS / 60:.0f} minutes") from None
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, 9)
            await process.wait()
        await asyncio.gather(following, return_exceptions=True)
    text = output.decode("utf-8", "replace")
    if process.returncode != 0:
        raise _Failed(text)
    return text


def _follow(descriptor: int, moved: Moved) -> None:
    """Read apt's progress to the end. Blocks."""
    with os.fdopen(descriptor, "rb") as file:
        for line in file:
            if progress := _PROGRESS.match(line):
                moved(float(progress[1]) / 100)


def _network_settings(dump: str) -> list[str]:
    """Returns the machine's settings for fetching, from the output of `apt-config dump`."""
    lines = [line for line in dump.splitlines() if line.startswith("Acquire::")]
    return [line for line in lines if not line.startswith(("Acquire::IndexTargets", "Acquire::Languages"))]


def _remove_damaged(paths: Sequence[Path], packages: Sequence[Package]) -> list[str]:
    """Remove files that are damaged. Returns their names."""
    removed = []
    for path, package in zip(paths, packages, strict=True):
        try:
            with path.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
        except FileNotFoundError:
            continue
        if digest == package.sha256:
            os.utime(path)
        else:
            path.unlink()
            removed.append(path.name)
    return removed
