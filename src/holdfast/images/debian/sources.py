"""The sources of packages: those of apt on this machine, or what the caller names instead.

Only sources of the distribution itself are used. apt tells which these are only after it has fetched their lists, so
this module reads its files: `sources.list`, and its deb822 successor.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit, urlunsplit

from holdfast.images.errors import NoSources, NotVerified

SCHEMES: Final = ("http", "https", "file", "copy")
_FINGERPRINT: Final = re.compile(r"[0-9A-Fa-f]{40,64}!?")
_WORD: Final = re.compile(r"\S+")
_LARGEST_FILE: Final = 1 << 20
_DISTRIBUTION_KEYS: Final = ("debian-archive-keyring.gpg", "ubuntu-archive-keyring.gpg")
_APT: Final = Path("/etc/apt")
_KEYRINGS: Final = Path("/usr/share/keyrings")
_AUTHORITIES: Final = Path("/usr/local/share/ca-certificates")
"""Where Debian and Ubuntu have the certificates of the administrator, on a machine and in an image."""


@dataclass(frozen=True, slots=True)
class Source:
    """One suite of one mirror."""

    url: str = field(repr=False)
    """May contain a password."""
    suite: str
    components: tuple[str, ...]
    signed_by: tuple[str, ...] = ()
    """Keyring files, fingerprints, or a key itself. If empty, whatever the machine trusts."""
    architectures: tuple[str, ...] = ()
    """If empty, all."""


@dataclass(frozen=True, slots=True)
class SourceFiles:
    """Sources and their keys as files for apt: for the one that builds an image, and the one in the image."""

    sources: tuple[Source, ...]
    trusted: tuple[Path, ...] = ()
    """Keyrings for sources that name none."""
    insecure: bool = False
    """Accept sources without a signature."""
    authorities: Mapping[str, bytes] = field(default_factory=dict)
    """Certificates that the administrator of the machine added, by file name: of a company's proxy, say."""

    def files(self, keys: Path) -> dict[str, bytes]:
        """Returns the files for the apt that builds. `keys` is the folder of the keys, which is `keys/` in the
        result."""
        files, text = self._write(self.sources, str(keys), passwords=True)
        # Packages from a folder of this machine are copied, so that all are in one place.
        return {**{f"keys/{name}": data for name, data in files.items()}, "holdfast.sources": text.encode()}

    def image_files(self) -> dict[str, bytes]:
        """Returns the files for the image, by path from its root, without folders of this machine and passwords."""
        remote = [source for source in self.sources if not source.url.startswith(("file:", "copy:"))]
        files, text = self._write(remote, "/etc/apt/keyrings", passwords=False)
        found = {f"etc/apt/keyrings/{name}": data for name, data in files.items()} if remote else {}
        if remote:
            found["etc/apt/sources.list.d/holdfast.sources"] = text.encode()
        return found | {f"{_AUTHORITIES}/{name}"[1:]: data for name, data in self.authorities.items()}

    def _write(self, sources: Sequence[Source], folder: str, *, passwords: bool) -> tuple[dict[str, bytes], str]:
        names: dict[bytes, str] = {}
        stanzas = []
        for source in sources:
            signed = []
            for key in () if self.insecure else self._keys(source):
                suffix = "asc" if key.startswith(b"-----BEGIN") else "gpg"
                names.setdefault(key, f"holdfast-{len(names) + 1}.{suffix}")
                signed.append(f"{folder}/{names[key]}")
            url = re.sub("^file:", "copy:", source.url) if passwords else without_password(source.url)
            lines = ["Types: deb", f"URIs: {url}", f"Suites: {source.suite}"]
            lines += [f"Components: {' '.join(source.components)}"] if source.components else []
            lines += [f"Signed-By: {' '.join(signed)}"] if signed else []
            lines += ["Trusted: yes"] if self.insecure else []
            stanzas.append("\n".join(lines) + "\n")
        return {name: key for key, name in names.items()}, "\n".join(stanzas)

    def _keys(self, source: Source) -> list[bytes]:
        named = [each for each in source.signed_by if not _FINGERPRINT.fullmatch(each)]
        if not named:
            return [_key(path) for path in self.trusted]
        return [each.encode() if "BEGIN PGP" in each else _key(Path(each)) for each in named]


def without_password(url: str) -> str:
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def read_sources(folder: Path = _APT) -> list[Source]:
    """Returns the sources of apt on this machine. None if there is no apt."""
    sources: list[Source] = []
    for path in (folder / "sources.list", *sorted((folder / "sources.list.d").glob("*.list"))):
        sources += parse_list(_text(path))
    for path in sorted((folder / "sources.list.d").glob("*.sources")):
        sources += parse_deb822(_text(path))
    return sources


def read_trusted(folder: Path = _APT, keyrings: Path = _KEYRINGS) -> tuple[Path, ...]:
    """Returns the keyrings that apt trusts for sources that name none, and those of the distributions."""
    found = [folder / "trusted.gpg"]
    for pattern in ("*.gpg", "*.asc"):
        found += sorted((folder / "trusted.gpg.d").glob(pattern))
    found += [keyrings / name for name in _DISTRIBUTION_KEYS]
    return tuple(path for path in found if path.is_file() and path.stat().st_size)


def read_authorities(folder: Path = _AUTHORITIES) -> dict[str, bytes]:
    """Returns the certificates that the administrator of this machine added, by file name."""
    found = {}
    for path in sorted(folder.glob("*.crt")):
        if path.is_file() and 0 < path.stat().st_size <= _LARGEST_FILE:
            found[path.name] = path.read_bytes()
    return found


def parse_list(text: str) -> list[Source]:
    """Parses lines `deb [options] URL SUITE COMPONENT…`."""
    found = []
    for line in text.splitlines():
        line = line.partition("#")[0].strip()
        kind, _, rest = line.partition(" ")
        rest = rest.strip()
        if kind != "deb":
            continue
        options: dict[str, str] = {}
        if rest.startswith("["):
            inside, _, rest = rest[1:].partition("]")
            options = {
                name.lower(): value
                for name, equals, value in (each.partition("=") for each in inside.split())
                if equals
            }
        parts = rest.split()
        if len(parts) < 2:
            continue
        found += _usable(
            [parts[0]],
            [parts[1]],
            tuple(parts[2:]),
            tuple(filter(None, options.get("signed-by", "").split(","))),
            tuple(filter(None, options.get("arch", "").split(","))),
        )
    return found


def parse_deb822(text: str) -> list[Source]:
    found = []
    for fields in stanzas(text):
        if fields.get("enabled", "yes").lower() in ("no", "false", "0") or "deb" not in words(fields, "types"):
            continue
        found += _usable(
            words(fields, "uris"),
            words(fields, "suites"),
            words(fields, "components"),
            _signed_by(fields.get("signed-by", "")),
            words(fields, "architectures"),
        )
    return found


def of_distribution(sources: Iterable[Source], release: Mapping[str, str]) -> list[Source]:
    """Returns the sources of the distribution itself. Others that were added to the machine are not for every image."""
    codename = release.get("VERSION_CODENAME") or release.get("UBUNTU_CODENAME") or ""
    if not codename:
        return [source for source in sources if "main" in source.components]
    return [source for source in sources if source.suite == codename or source.suite.startswith(f"{codename}-")]


def read_os_release(path: Path = Path("/etc/os-release")) -> dict[str, str]:
    found = {}
    for line in _text(path).splitlines():
        name, equals, value = line.partition("=")
        if equals and name.strip() and not name.startswith("#"):
            try:
                found[name.strip()] = " ".join(shlex.split(value))
            except ValueError:
                continue
    return found


def named_source(mirror: str, suite: str, components: Sequence[str], keyrings: Sequence[Path]) -> Source:
    """Returns a source that the caller names instead of the machine's."""
    if urlsplit(mirror).scheme not in SCHEMES:
        raise NoSources(f"{mirror!r} is not a mirror", hint=f"a URL that begins with one of {', '.join(SCHEMES)}")
    if any(not _WORD.fullmatch(each) for each in (mirror, suite, *components)):
        raise NoSources("a mirror, a suite and a component have no blanks in them", hint="--suite bookworm")
    return Source(mirror, suite, tuple(components), tuple(str(path.absolute()) for path in keyrings))


def stanzas(text: str) -> Iterator[dict[str, str]]:
    """Yields stanzas as mappings with lower-case names, without comments and invalid lines.

    A continued field keeps its line ends. Its first line is what follows the colon.
    """
    fields: dict[str, str] = {}
    name = ""
    for line in text.splitlines():
        if line.startswith("#"):
            continue
        if not line.strip():
            if fields:
                yield fields
            fields, name = {}, ""
        elif line[0] in " \t":
            if name:
                fields[name] += "\n" + line.strip()
        else:
            before, colon, after = line.partition(":")
            name = before.strip().lower() if colon else ""
            if name:
                fields[name] = after.strip()
    if fields:
        yield fields


def words(fields: Mapping[str, str], name: str) -> tuple[str, ...]:
    return tuple(fields.get(name, "").split())


def _usable(
    urls: Iterable[str],
    suites: Iterable[str],
    components: tuple[str, ...],
    signed_by: tuple[str, ...],
    architectures: tuple[str, ...],
) -> list[Source]:
    """A suite that ends in / names a folder, which cannot contain a complete system."""
    return [
        Source(url, suite, components, signed_by, architectures)
        for url in urls
        for suite in suites
        if urlsplit(url).scheme in SCHEMES and not suite.endswith("/")
    ]


def _signed_by(text: str) -> tuple[str, ...]:
    if "BEGIN PGP" in text:
        lines = ["" if line.strip() == "." else line for line in text.splitlines()]
        return ("\n".join(lines).strip() + "\n",)
    return tuple(filter(None, re.split(r"[\s,]+", text)))


def _key(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise NotVerified(
            f"the keyring {path} cannot be read: {(error.strerror or str(error)).lower()}",
            hint="give another with --keyring; package debian-archive-keyring or ubuntu-keyring has one",
        ) from None


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(_LARGEST_FILE).decode("utf-8", "replace")
    except (FileNotFoundError, IsADirectoryError, PermissionError):
        return ""
