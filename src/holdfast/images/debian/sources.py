"""Where packages come from: the apt configuration of this machine, or what somebody says instead.

Reads what apt reads (`sources.list`, its deb822 successor, proxies), as far as a plain mirror needs it.
"""

from __future__ import annotations

import platform
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final
from urllib.parse import quote, urlsplit, urlunsplit

from holdfast.images.debian.control import stanzas, words
from holdfast.images.errors import NoSources

SCHEMES: Final = ("http", "https", "file", "copy")
_ARCHITECTURES: Final = {
    "x86_64": "amd64", "aarch64": "arm64", "armv7l": "armhf", "i686": "i386", "ppc64le": "ppc64el",
    "riscv64": "riscv64", "s390x": "s390x", "loongarch64": "loong64",
}  # fmt: skip
_FINGERPRINT: Final = re.compile(r"[0-9A-Fa-f]{40,64}!?")
_SETTING: Final = re.compile(r'^\s*(?P<name>[A-Za-z][A-Za-z0-9:-]*)\s+"(?P<value>[^"]*)"\s*;', re.MULTILINE)
_LARGEST_FILE: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Source:
    """One suite of one mirror."""

    url: str = field(repr=False)
    """May hold a password: `shown` is for people."""
    suite: str
    components: tuple[str, ...]
    signed_by: tuple[str, ...] = ()
    """Keyring files, fingerprints, or a key as it is. Empty: whatever the machine trusts."""
    architectures: tuple[str, ...] = ()
    """Empty: all."""

    @property
    def shown(self) -> str:
        return f"{without_password(self.url)} {self.suite}"


@dataclass(frozen=True, slots=True)
class AptConfiguration:
    sources: tuple[Source, ...]
    keyrings: tuple[Path, ...]
    """Trusted for sources that do not say whom to trust."""
    proxy: str | None = None
    check_valid_until: bool = True


@dataclass(frozen=True, slots=True)
class Login:
    """Of a mirror, as `auth.conf` has it."""

    machine: str
    name: str
    password: str = field(repr=False)

    def fits(self, url: str) -> bool:
        """A machine without a scheme means HTTPS only: a password is not for everybody on the way."""
        scheme, separator, place = self.machine.rpartition("://")
        parts = urlsplit(url)
        host, slash, path = place.partition("/")
        if parts.scheme != (scheme if separator else "https") or parts.netloc != host:
            return False
        return f"{parts.path}/".startswith(f"/{path.rstrip('/')}/") if slash and path.strip("/") else True


def without_password(url: str) -> str:
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def debian_architecture(machine: str | None = None) -> str:
    name = machine or platform.machine()
    if name not in _ARCHITECTURES:
        raise NoSources(f"nobody knows what Debian calls the processor {name}", hint="say it with --arch")
    return _ARCHITECTURES[name]


def read_configuration(folder: Path = Path("/etc/apt")) -> AptConfiguration:
    """What apt would use. A machine without apt has no sources."""
    sources: list[Source] = []
    for path in (folder / "sources.list", *sorted((folder / "sources.list.d").glob("*.list"))):
        sources += parse_list(_text(path))
    for path in sorted((folder / "sources.list.d").glob("*.sources")):
        sources += parse_deb822(_text(path))
    trusted = [folder / "trusted.gpg"]
    for pattern in ("*.gpg", "*.asc"):
        trusted += sorted((folder / "trusted.gpg.d").glob(pattern))
    settings: dict[str, str] = {}
    for path in (folder / "apt.conf", *sorted((folder / "apt.conf.d").glob("*"))):
        settings |= parse_settings(_text(path))
    logins = [
        login
        for path in (folder / "auth.conf", *sorted((folder / "auth.conf.d").glob("*.conf")))
        for login in parse_logins(_text(path))
    ]
    proxy = settings.get("acquire::http::proxy") or settings.get("acquire::https::proxy")
    return AptConfiguration(
        tuple(with_login(source, logins) for source in sources),
        tuple(path for path in trusted if path.is_file()),
        proxy if proxy and proxy.upper() != "DIRECT" else None,
        settings.get("acquire::check-valid-until", "true").lower() not in ("false", "no", "0"),
    )


def parse_list(text: str) -> list[Source]:
    """`deb [options] URL SUITE COMPONENT…`, a line each."""
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


def parse_settings(text: str) -> dict[str, str]:
    """The plain settings of an apt configuration (`Name::Part "value";`), their names in lower case."""
    lines = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith(("//", "#")))
    return {match["name"].lower(): match["value"] for match in _SETTING.finditer(lines)}


def parse_logins(text: str) -> list[Login]:
    """`machine example.com/debian login NAME password WORD`, on one line or several."""
    words = [word for line in text.splitlines() if not line.lstrip().startswith("#") for word in line.split()]
    found: list[dict[str, str]] = []
    for name, value in zip(words[::2], words[1::2], strict=False):
        if name == "machine":
            found.append({})
        if found:
            found[-1][name] = value
    return [
        Login(each["machine"], each["login"], each["password"])
        for each in found
        if {"machine", "login", "password"} <= set(each)
    ]


def with_login(source: Source, logins: Iterable[Login]) -> Source:
    parts = urlsplit(source.url)
    login = next((each for each in logins if each.fits(source.url)), None)
    if login is None or "@" in parts.netloc:
        return source
    netloc = f"{quote(login.name, safe='')}:{quote(login.password, safe='')}@{parts.netloc}"
    return replace(source, url=urlunsplit(parts._replace(netloc=netloc)))


def of_distribution(sources: Iterable[Source], release: Mapping[str, str]) -> list[Source]:
    """Those that the distribution itself comes from: what others add to a machine is not for every image."""
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


def given(mirror: str, suite: str, components: Sequence[str], keyrings: Sequence[Path]) -> Source:
    """A source that somebody names, instead of the machine's."""
    if urlsplit(mirror).scheme not in SCHEMES:
        raise NoSources(f"{mirror!r} is no mirror", hint=f"a URL that begins with one of {', '.join(SCHEMES)}")
    return Source(mirror, suite, tuple(components), tuple(str(path.absolute()) for path in keyrings))


def write_deb822(sources: Iterable[Source]) -> str:
    """Sources as a file of apt's. Passwords are left out: an image is passed on."""
    return "\n".join(
        "Types: deb\n"
        f"URIs: {without_password(source.url)}\n"
        f"Suites: {source.suite}\n"
        + (f"Components: {' '.join(source.components)}\n" if source.components else "")
        + (f"Signed-By: {' '.join(source.signed_by)}\n" if source.signed_by else "")
        for source in sources
    )


def signed_by(source: Source, names: Sequence[str]) -> Source:
    return replace(source, signed_by=tuple(names))


def _usable(
    urls: Iterable[str],
    suites: Iterable[str],
    components: tuple[str, ...],
    signed_by: tuple[str, ...],
    architectures: tuple[str, ...],
) -> list[Source]:
    """A suite that ends in / names a folder instead: nothing that a system could be made of lies there."""
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


def is_fingerprint(text: str) -> bool:
    return _FINGERPRINT.fullmatch(text) is not None


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(_LARGEST_FILE).decode("utf-8", "replace")
    except (FileNotFoundError, IsADirectoryError, PermissionError):
        return ""
