"""Builds a Debian system as an image: the packages that apt chooses, installed by dpkg in a box without a network."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from holdfast.api.box.network import NetworkPolicy
from holdfast.api.images import Image, ImageConfig
from holdfast.api.progress import Progress
from holdfast.images.build_host import BUILD, BUILD_OF, BuildHost, LastOutput, build_spec, image_or_none, temporary_box
from holdfast.images.debian.apt import ESSENTIAL, EVERYWHERE, Apt, Package, require_apt
from holdfast.images.debian.essential import essential_archive, in_pieces
from holdfast.images.debian.sources import (
    SourceFiles,
    of_distribution,
    read_authorities,
    read_os_release,
    read_sources,
    read_trusted,
)
from holdfast.images.errors import NoSources, StepFailed
from holdfast.images.tar_stream import END, from_disk

_FORMAT: Final = 2
"""Version of how packages become an image. Another version makes another image of the same packages."""
_INSTALL_SECONDS: Final = 3600.0
_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_PACKAGES: Final = "/tmp/packages"
_BUNDLE: Final = "/etc/ssl/certs/ca-certificates.crt"
"""Written by the package ca-certificates, with those of the administrator."""
_POLICY: Final = b"#!/bin/sh\n# Packages that are installed in a box start no services.\nexit 101\n"
_APT: Final = b"""\
// A box has one user: apt cannot step down to another.
APT::Sandbox::User "root";
Acquire::Languages "none";
Acquire::GzipIndexes "true";
"""
_EXCLUDED: Final = (
    "/usr/share/doc/*",
    "/usr/share/man/*",
    "/usr/share/info/*",
    "/usr/share/locale/*",
    "/usr/share/lintian/*",
)
_INCLUDED: Final = ("/usr/share/doc/*/copyright", "/usr/share/locale/locale.alias")
"""Manuals and translations are left out; licences stay. dpkg in the image follows the same rules."""

_DPKG_RULES: Final = "".join(
    [f"path-exclude {pattern}\n" for pattern in _EXCLUDED] + [f"path-include {pattern}\n" for pattern in _INCLUDED]
)

INSTALL: Final = r"""
set -eu
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
export DEBIAN_FRONTEND=noninteractive DEBCONF_NONINTERACTIVE_SEEN=true DEBCONF_NOWARNINGS=yes LC_ALL=C HOME=/root
cd /
# Scripts use awk before mawk has been configured.
if [ -e /usr/bin/mawk ] && [ ! -e /usr/bin/awk ]; then ln -s mawk /usr/bin/awk; fi
# Users and groups come first: the scripts of others ask for them.
for package in "$1"/essential/*-base-passwd_*.deb; do
    if [ -e "$package" ]; then /usr/bin/dpkg --force-depends --install "$package"; fi
done
for group in essential others; do
    if [ -e "$1/$group" ]; then
        /usr/bin/dpkg --force-depends --unpack "$1/$group"/*.deb
        /usr/bin/dpkg --configure -a
    fi
done
# Manuals are left out, and scripts of packages link into their folders all the same.
for section in 1 2 3 4 5 6 7 8; do mkdir -p /usr/share/man/man$section; done
rm -rf "$1" /var/lib/dpkg/*-old /var/cache/debconf/*-old /var/log/dpkg.log /var/log/alternatives.log
rm -rf /var/log/bootstrap.log /var/cache/ldconfig/aux-cache /tmp/* /var/tmp/*
"""
"""Run by `sh` in a box of the essential packages, with the folder of all packages as its argument."""


@dataclass(frozen=True, slots=True)
class System:
    """Everything that an image is built from."""

    packages: tuple[Package, ...]
    """In the order of installation."""
    essential: frozenset[str]
    """Names of those that are installed first."""
    wanted: tuple[str, ...]
    """What apt was asked for."""
    sources: SourceFiles
    env: Mapping[str, str] = field(default_factory=dict)
    """For processes in boxes of the image."""

    @property
    def hash(self) -> str:
        """Equal for systems that result in the same image."""
        document = {
            "format": _FORMAT,
            "packages": sorted((package.file, package.sha256) for package in self.packages),
            "files": {path: hashlib.sha256(data).hexdigest() for path, (_, data) in self.files().items()},
            "install": INSTALL,
            "config": self.config.to_json(),
        }
        return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()

    @property
    def config(self) -> ImageConfig:
        env = {"PATH": _PATH, "LANG": "C.UTF-8", **self.env}
        if self.sources.authorities:
            env["NODE_EXTRA_CA_CERTS"] = _BUNDLE  # node brings certificates of its own
        return ImageConfig(env=env)

    def files(self) -> dict[str, tuple[int, bytes]]:
        """Returns the files in addition to the packages: settings of apt and dpkg for boxes."""
        return {
            "etc/apt/apt.conf.d/90holdfast": (0o644, _APT),
            "etc/dpkg/dpkg.cfg.d/holdfast": (0o644, _DPKG_RULES.encode()),
            "usr/sbin/policy-rc.d": (0o755, _POLICY),
            **{path: (0o644, data) for path, data in self.sources.image_files().items()},
        }


def machine_sources() -> SourceFiles:
    """Returns the sources of this machine's distribution. Raises `NoSources` if apt has none."""
    own = of_distribution(read_sources(), read_os_release())
    if not own:
        raise NoSources(
            "apt on this machine has no source of its distribution",
            hint="name a mirror: holdfast image build base --mirror URL --suite NAME --keyring FILE",
        )
    return SourceFiles(tuple(own), read_trusted(), authorities=read_authorities())


async def build_of_machine(
    host: BuildHost,
    name: str,
    packages: Sequence[str],
    *,
    env: Mapping[str, str],
    cache: Path,
    progress: Progress,
    sources: Callable[[], SourceFiles] = machine_sources,
    architecture: str | None = None,
    again: bool = False,
) -> Image:
    """Build an image of these packages and their dependencies.

    Returns the existing image of that name if it was built from exactly these packages, unless `again`. Sources and
    processor default to the machine's.

    Raises `NoSources`, `NotVerified`, `MirrorFailed`, `Unresolvable`, `BadPackage`, `StepFailed`.
    """
    await asyncio.to_thread(require_apt)
    apt = Apt(cache, architecture)
    async with apt.locked():
        system = await choose(apt, await asyncio.to_thread(sources), packages, env, progress)
        if not again and (image := await is_current(host, system, name)) is not None:
            progress.skip("image", f"{name} is made of these very packages")
            return image
        image = await build_system(host, apt, system, name, progress)
        await asyncio.to_thread(apt.forget_old)
        return image


async def choose(
    apt: Apt, sources: SourceFiles, packages: Sequence[str], env: Mapping[str, str], progress: Progress
) -> System:
    """Fetch the lists, and let apt decide on the packages."""
    architecture = await apt.architecture()
    fitting = [each for each in sources.sources if not each.architectures or architecture in each.architectures]
    if not fitting:
        raise NoSources(
            f"no source has packages for {architecture}",
            hint="name a mirror with --mirror URL --suite NAME --keyring FILE",
        )
    chosen = replace(sources, sources=tuple(fitting))
    progress.begin("packages", f"of {', '.join(dict.fromkeys(source.suite for source in fitting))}")
    await apt.update(chosen)
    essential = await apt.order([ESSENTIAL])
    wanted = (EVERYWHERE, *packages)
    found = await apt.resolve(wanted)
    progress.end(f"{len(found)} are needed")
    return System(tuple(found), frozenset(essential), wanted, chosen, env)


async def build_system(host: BuildHost, apt: Apt, system: System, name: str, progress: Progress) -> Image:
    """Fetch the packages, create an image of the essential ones, install all in a box with it, and save that as the
    image."""
    total = sum(package.size for package in system.packages)
    progress.begin("download", f"{len(system.packages)} packages", total=total)
    done = 0

    def moved(part: float) -> None:
        nonlocal done
        progress.advance(int(part * total) - done)
        done = int(part * total)

    paths = await apt.download(system.wanted, system.packages, moved)
    progress.end()
    first = [path for path, package in zip(paths, system.packages, strict=True) if package.name in system.essential]
    unpacked = f"holdfast/unpacked:{system.hash[:24]}"
    progress.begin("unpack", f"{len(first)} packages")
    await host.import_image(unpacked, _archive(first, system))
    progress.end()
    try:
        return await _installed(host, system, paths, unpacked, name, progress)
    finally:
        await host.remove_image(unpacked)


async def is_current(host: BuildHost, system: System, name: str) -> Image | None:
    """Returns the image of that name if it was built from exactly these packages."""
    image = await image_or_none(host, name)
    return image if image is not None and image.labels.get(BUILD) == system.hash else None


async def _installed(
    host: BuildHost, system: System, paths: Sequence[Path], unpacked: str, name: str, progress: Progress
) -> Image:
    progress.begin("configure", f"{len(system.packages)} packages", total=len(system.packages))
    output = LastOutput()
    lines = _SettingUp(progress)

    def take(data: bytes) -> None:
        output.take(data)
        lines.take(data)

    spec = build_spec(host, unpacked, NetworkPolicy(), name)
    async with temporary_box(await host.create(spec)) as box:
        await box.files.upload_tar(_packages(system, paths), _PACKAGES)
        done = await box.exec(
            ["/bin/sh", "-c", INSTALL, "install", _PACKAGES],
            cwd="/",
            timeout=_INSTALL_SECONDS,
            on_stdout=take,
            on_stderr=take,
        )
        if not done.ok:
            raise StepFailed(
                f"the packages could not be installed: dpkg ended with {done.exit_code}",
                output=output.data,
                hint="what it printed is above; leave out the package that fails",
            )
        progress.end()
        snapshot = await box.snapshot(labels={BUILD_OF: name})
        try:
            labels = {BUILD: system.hash, BUILD_OF: name}
            return await host.name_snapshot(snapshot.id, name, config=system.config, labels=labels)
        finally:
            await host.delete_snapshot(snapshot.id)


class _SettingUp:
    """Counts the packages that dpkg reports as set up."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._line = b""

    def take(self, data: bytes) -> None:
        *lines, self._line = (self._line + data).split(b"\n")
        self._line = self._line[-4096:]
        self._progress.output(data)
        if count := sum(line.startswith(b"Setting up ") for line in lines):
            self._progress.advance(count)


async def _archive(packages: Sequence[Path], system: System) -> AsyncIterator[bytes]:
    """Prepares the next piece while the current one is sent."""
    pieces = in_pieces(essential_archive(packages, system.files()))
    making = asyncio.ensure_future(asyncio.to_thread(next, pieces, None))
    try:
        while (piece := await making) is not None:
            making = asyncio.ensure_future(asyncio.to_thread(next, pieces, None))
            yield piece
    finally:
        making.cancel()
        await asyncio.gather(making, return_exceptions=True)


async def _packages(system: System, paths: Sequence[Path]) -> AsyncIterator[bytes]:
    """Yields the files of all packages, numbered, so that the shell sorts them in order."""
    for number, (package, path) in enumerate(zip(system.packages, paths, strict=True)):
        group = "essential" if package.name in system.essential else "others"
        async for piece in from_disk(f"{group}/{number:05}-{package.file}", path, package.size):
            yield piece
    yield END
