"""A Debian system as an image: what its sources have, what is needed of it, and a box in which it configures itself."""

from __future__ import annotations

import asyncio
import bz2
import gzip
import hashlib
import json
import lzma
import zlib
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Protocol

from holdfast.boxes.images import Image, ImageConfig
from holdfast.boxes.network_policy import NetworkPolicy
from holdfast.images.build_host import BUILD, BUILD_OF, LastOutput, Workshop, build_spec, for_a_while, image_or_none
from holdfast.images.debian.download import Downloads, MissingFile, Wanted
from holdfast.images.debian.index import Package, PackageIndex, fulfils
from holdfast.images.debian.release import IndexFile, Release, check_age, dearmour, parse_release, verify
from holdfast.images.debian.resolve import resolve
from holdfast.images.debian.rootfs import CONFIGURE, DPKG_RULES, RootFilesystem, in_order, in_pieces
from holdfast.images.debian.sources import Source, is_fingerprint, signed_by, write_deb822
from holdfast.images.errors import MirrorFailed, NoSources, NotVerified, StepFailed
from holdfast.images.progress import Progress

_FORMAT: Final = 1
"""Of what is made of the packages: another one makes another image of the same packages."""
_LARGEST_RELEASE: Final = 16 * 1024 * 1024
_LARGEST_INDEX: Final = 512 * 1024 * 1024
_CONFIGURE_SECONDS: Final = 3600.0
_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_POLICY: Final = b"#!/bin/sh\n# Packages that are installed in a box start no services.\nexit 101\n"
_APT: Final = b"""\
// A box has one user: apt cannot step down to another.
APT::Sandbox::User "root";
Acquire::Languages "none";
Acquire::GzipIndexes "true";
"""


class Trust(Protocol):
    """How a release file is believed."""

    async def release(self, source: Source, downloads: Downloads) -> str:
        """Its text, as far as it is signed. Raises `NotVerified`."""

    def keys(self, source: Source) -> bytes:
        """What apt in the image is to trust for this source."""


class Signed:
    """By a signature of somebody whom the source names, or whom the machine trusts."""

    def __init__(self, trusted: Sequence[Path], *, gpgv: str = "gpgv") -> None:
        self._trusted = tuple(trusted)
        self._gpgv = gpgv

    async def release(self, source: Source, downloads: Downloads) -> str:
        inside = await downloads.read(_place(source, "InRelease"), _LARGEST_RELEASE)
        if inside is not None:
            return await verify(inside, None, source, self._trusted, self._gpgv)
        text, signature = await asyncio.gather(
            downloads.read(_place(source, "Release"), _LARGEST_RELEASE),
            downloads.read(_place(source, "Release.gpg"), _LARGEST_RELEASE),
        )
        if text is None:
            raise _no_release(source)
        if signature is None:
            raise NotVerified(f"{source.shown} is not signed", hint="--insecure goes on all the same")
        return await verify(text, signature, source, self._trusted, self._gpgv)

    def keys(self, source: Source) -> bytes:
        named = [each for each in source.signed_by if not is_fingerprint(each)]
        keys = [each.encode() if "BEGIN PGP" in each else Path(each).read_bytes() for each in named]
        return b"".join(dearmour(each) for each in keys or [path.read_bytes() for path in self._trusted])


class Unsigned:
    """By its word. For who trusts the way to the mirror, and says so."""

    async def release(self, source: Source, downloads: Downloads) -> str:
        for name in ("InRelease", "Release"):
            data = await downloads.read(_place(source, name), _LARGEST_RELEASE)
            if data is not None:
                return _without_armour(data.decode("utf-8", "replace"))
        raise _no_release(source)

    def keys(self, source: Source) -> bytes:
        return b""


@dataclass(frozen=True, slots=True)
class System:
    """All that an image is made of."""

    packages: tuple[Package, ...]
    sources: tuple[Source, ...]
    architecture: str
    keys: tuple[bytes, ...]
    """One per source."""
    env: Mapping[str, str] = field(default_factory=dict)
    """For processes in boxes of the image."""

    @property
    def download(self) -> int:
        return sum(package.size for package in self.packages)

    @property
    def hash(self) -> str:
        """The same for what makes the same image."""
        document = {
            "format": _FORMAT,
            "architecture": self.architecture,
            "packages": [(package.name, package.version, package.sha256) for package in self.packages],
            "files": {path: hashlib.sha256(data).hexdigest() for path, (_, data) in self.files().items()},
            "configure": CONFIGURE,
            "config": self.config.to_json(),
        }
        return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()

    @property
    def config(self) -> ImageConfig:
        return ImageConfig(env={"PATH": _PATH, "LANG": "C.UTF-8", **self.env})

    def files(self) -> dict[str, tuple[int, bytes]]:
        """What there is beside the packages: how apt and dpkg are to behave in a box."""
        files = {
            "etc/apt/apt.conf.d/90holdfast": (0o644, _APT),
            "etc/dpkg/dpkg.cfg.d/holdfast": (0o644, DPKG_RULES.encode()),
            "usr/sbin/policy-rc.d": (0o755, _POLICY),
        }
        sources = []
        names: dict[bytes, str] = {}
        for source, keys in zip(self.sources, self.keys, strict=True):
            if source.url.startswith(("file:", "copy:")):
                continue  # a folder of this machine: no box sees it
            if keys and keys not in names:
                names[keys] = f"etc/apt/keyrings/holdfast-{len(names) + 1}.gpg"
                files[names[keys]] = (0o644, keys)
            sources.append(signed_by(source, [f"/{names[keys]}"] if keys else []))
        if sources:
            files["etc/apt/sources.list.d/holdfast.sources"] = (0o644, write_deb822(sources).encode())
        return files


async def choose(
    downloads: Downloads,
    sources: Sequence[Source],
    wanted: Sequence[str],
    *,
    trust: Trust,
    architecture: str,
    env: Mapping[str, str] | None = None,
    now: Callable[[], datetime] | None = None,
    progress: Progress,
) -> System:
    """Ask the sources, and decide which packages it takes. `now` checks that release files are not too old."""
    fitting = [each for each in sources if not each.architectures or architecture in each.architectures]
    if not fitting:
        raise NoSources(
            f"no source has packages for {architecture}",
            hint="name a mirror with --mirror URL --suite NAME --keyring FILE",
        )
    progress.begin("packages", f"of {', '.join(dict.fromkeys(source.suite for source in fitting))}")
    index = PackageIndex(architecture)
    for source in fitting:
        release = parse_release(await trust.release(source, downloads), source)
        if now is not None:
            check_age(release, source, now())
        for component in source.components:
            for text in await _indexes(downloads, source, release, component, architecture):
                await asyncio.to_thread(index.add, text, source.url)
    packages = await asyncio.to_thread(resolve, index, [*index.essential(), *wanted])
    progress.end(f"{len(packages)} of {len(index)} are needed")
    keys = tuple(trust.keys(source) for source in fitting)
    return System(tuple(packages), tuple(fitting), architecture, keys, env or {})


async def build_system(
    workshop: Workshop, downloads: Downloads, system: System, name: str, progress: Progress
) -> Image:
    """Bring the packages, unpack them as an image, configure them in a box of it, and give the result its name."""
    wanted = [Wanted(package.url, package.size, package.sha256) for package in system.packages]
    progress.begin("download", f"{len(wanted)} packages", total=system.download)
    paths = await downloads.fetch_all(wanted, progress.advance)
    progress.end()
    unpacked = f"holdfast/unpacked:{system.hash[:24]}"
    progress.begin("unpack", f"{len(wanted)} packages", total=len(wanted))
    files = dict(zip((package.name for package in system.packages), paths, strict=True))
    root = RootFilesystem(system.architecture)
    await workshop.import_image(unpacked, _archive(root, system, files, progress))
    progress.end(f"{root.files} files")
    try:
        return await _configured(workshop, system, unpacked, name, progress)
    finally:
        await workshop.remove_image(unpacked)


async def is_current(workshop: Workshop, system: System, name: str) -> Image | None:
    """The image of that name, where these very packages made it."""
    image = await image_or_none(workshop, name)
    return image if image is not None and image.labels.get(BUILD) == system.hash else None


async def _configured(workshop: Workshop, system: System, unpacked: str, name: str, progress: Progress) -> Image:
    progress.begin("configure", f"{len(system.packages)} packages", total=len(system.packages))
    output = LastOutput()
    lines = _SettingUp(progress)

    def take(data: bytes) -> None:
        output.take(data)
        lines.take(data)

    spec = build_spec(workshop, unpacked, NetworkPolicy(), name)
    async with for_a_while(await workshop.create(spec)) as box:
        done = await box.exec(
            ["/bin/sh", "-c", CONFIGURE, "configure", system.architecture],
            cwd="/",
            timeout=_CONFIGURE_SECONDS,
            on_stdout=take,
            on_stderr=take,
        )
        if not done.ok:
            raise StepFailed(
                f"the packages could not be configured: dpkg ended with {done.exit_code}",
                output=output.data,
                hint="what it printed is above; leave out the package that fails",
            )
        progress.end()
        snapshot = await box.snapshot(labels={BUILD_OF: name})
        try:
            labels = {BUILD: system.hash, BUILD_OF: name}
            return await workshop.name_snapshot(snapshot.id, name, config=system.config, labels=labels)
        finally:
            await workshop.delete_snapshot(snapshot.id)


class _SettingUp:
    """Counts the packages that dpkg says it sets up."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._line = b""

    def take(self, data: bytes) -> None:
        *lines, self._line = (self._line + data).split(b"\n")
        self._line = self._line[-4096:]
        self._progress.output(data)
        if count := sum(line.startswith(b"Setting up ") for line in lines):
            self._progress.advance(count)


async def _archive(
    root: RootFilesystem, system: System, files: Mapping[str, Path], progress: Progress
) -> AsyncIterator[bytes]:
    """The next piece is made while this one is on its way."""
    pieces = in_pieces(_write(root, system, files, progress))
    making = asyncio.ensure_future(asyncio.to_thread(next, pieces, None))
    try:
        while (piece := await making) is not None:
            making = asyncio.ensure_future(asyncio.to_thread(next, pieces, None))
            yield piece
    finally:
        making.cancel()
        await asyncio.gather(making, return_exceptions=True)


def _write(root: RootFilesystem, system: System, files: Mapping[str, Path], progress: Progress) -> Iterator[bytes]:
    replaces = replacements(system.packages)
    yield from root.begin()
    for package in in_order(system.packages, replaces):
        yield from root.add(files[package.name], package, replaces)
        progress.advance(1)
    yield from root.finish(system.files())


def replacements(packages: Sequence[Package]) -> dict[str, list[str]]:
    """Which of these packages may take over files of which others."""
    by_name = {package.name: package for package in packages}
    found: dict[str, list[str]] = {}
    for package in packages:
        others = [by_name.get(relation.name) for relation in package.replaces]
        names = [
            other.name
            for other, relation in zip(others, package.replaces, strict=True)
            if other is not None and other is not package and fulfils(other, relation)
        ]
        if names:
            found[package.name] = names
    return found


async def _indexes(
    downloads: Downloads, source: Source, release: Release, component: str, architecture: str
) -> list[str]:
    texts = []
    for name in (architecture, "all") if release.all_apart else (architecture,):
        files = release.indexes(component, name)
        if files:
            texts.append(await _index(downloads, source, release, files))
    if not texts:
        raise MirrorFailed(
            f"{source.shown} has no component {component} for {architecture}", hint="check --component and --arch"
        )
    return texts


async def _index(downloads: Downloads, source: Source, release: Release, files: Sequence[IndexFile]) -> str:
    for file in files:
        if file.size > _LARGEST_INDEX:
            raise MirrorFailed(f"{file.path} of {source.shown} is larger than any index should be")
        folder, _, _ = file.path.rpartition("/")
        places = [f"{folder}/by-hash/SHA256/{file.sha256}"] if release.by_hash else []
        for place in (*places, file.path):
            try:
                path = await downloads.fetch(Wanted(_place(source, place), file.size, file.sha256))
            except MissingFile:
                continue
            return await asyncio.to_thread(_decompress, path, file.path)
    raise MirrorFailed(f"{source.shown} does not have the index that its release file names: {files[0].path}")


def _decompress(path: Path, name: str) -> str:
    opener = {"xz": lzma.open, "gz": gzip.open, "bz2": bz2.open}.get(name.rpartition(".")[2], open)
    try:
        with opener(path, "rb") as file:  # type: ignore[operator]
            data: bytes = file.read(_LARGEST_INDEX + 1)
    except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
        raise MirrorFailed(f"the index {name} cannot be read: {error}") from None
    if len(data) > _LARGEST_INDEX:
        raise MirrorFailed(f"the index {name} is larger than any index should be")
    return data.decode("utf-8", "replace")


def _place(source: Source, name: str) -> str:
    return f"{source.url.rstrip('/')}/dists/{source.suite}/{name}"


def _no_release(source: Source) -> MirrorFailed:
    return MirrorFailed(f"{source.shown} has no release file", hint="check the mirror's URL, and the suite's name")


def _without_armour(text: str) -> str:
    begin, end = "-----BEGIN PGP SIGNED MESSAGE-----", "\n-----BEGIN PGP SIGNATURE-----"
    if not text.startswith(begin):
        return text
    _, _, body = text.partition("\n\n")
    return body.partition(end)[0]


def utc_now() -> datetime:
    return datetime.now(UTC)
