"""Packages put together as one root filesystem, written as a tar archive piece by piece.

This is what `dpkg --unpack` would leave on a disk, its database included, without a disk: scripts of packages do not
run here. They run in a box of the image, by `dpkg --configure`, which `CONFIGURE` is the script for.
"""

from __future__ import annotations

import hashlib
import re
import tarfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import IO, Final

from holdfast.images.debian.control import stanza
from holdfast.images.debian.deb import Deb, clean_path
from holdfast.images.debian.index import Package
from holdfast.images.errors import BadPackage

_PIECE: Final = 1 << 20
_BLOCK: Final = 512
_MERGED: Final = re.compile(r"lib(32|64|x32|o32)")
_TRIGGER: Final = re.compile(r"[!-~]+")
_HOPS: Final = 40
_DATABASE: Final = "var/lib/dpkg"

EXCLUDED: Final = (
    "/usr/share/doc/*",
    "/usr/share/man/*",
    "/usr/share/info/*",
    "/usr/share/locale/*",
    "/usr/share/lintian/*",
)
INCLUDED: Final = ("/usr/share/doc/*/copyright", "/usr/share/locale/locale.alias")
"""Manuals and translations are for people at a desk; licences stay. dpkg in the image keeps to the same rules."""

DPKG_RULES: Final = "".join(
    [f"path-exclude {pattern}\n" for pattern in EXCLUDED] + [f"path-include {pattern}\n" for pattern in INCLUDED]
)

CONFIGURE: Final = r"""
set -eu
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
export DEBIAN_FRONTEND=noninteractive DEBCONF_NONINTERACTIVE_SEEN=true DEBCONF_NOWARNINGS=yes LC_ALL=C HOME=/root
cd /
before() {  # what dpkg would have run before it unpacked the package
    name=${1##*/}; name=${name%.preinst}
    DPKG_MAINTSCRIPT_NAME=preinst DPKG_MAINTSCRIPT_PACKAGE=${name%:*} DPKG_MAINTSCRIPT_PACKAGE_REFCOUNT=1 \
    DPKG_MAINTSCRIPT_ARCH="$architecture" DPKG_ADMINDIR=/var/lib/dpkg DPKG_ROOT= "$1" install
}
architecture=$1
info=/var/lib/dpkg/info
# Users and groups come first: the scripts of others ask for them.
if [ -e $info/base-passwd.preinst ]; then before $info/base-passwd.preinst; fi
for script in $info/*.preinst; do
    case $script in */base-passwd.preinst|*'*.preinst') ;; *) before "$script" ;; esac
done
if [ -e $info/base-passwd.list ]; then /usr/bin/dpkg --force-depends --configure base-passwd; fi
/usr/bin/dpkg --configure -a
rm -rf /var/lib/dpkg/*-old /var/cache/debconf/*-old /var/log/dpkg.log /var/log/alternatives.log /var/log/bootstrap.log
rm -rf /var/cache/ldconfig/aux-cache /tmp/* /var/tmp/*
"""
"""Run by `sh` in a box of the image, with the architecture as its argument."""


@dataclass(frozen=True, slots=True)
class _Node:
    kind: bytes
    package: str
    target: str = ""
    mode: int = 0


@dataclass(slots=True)
class _Triggers:
    files: list[str] = field(default_factory=list)
    named: dict[str, list[str]] = field(default_factory=dict)


class RootFilesystem:
    """Give it every package, then `finish`: what they yield is the archive."""

    def __init__(self, architecture: str) -> None:
        self._architecture = architecture
        self._nodes: dict[str, _Node] = {}
        self._status: list[str] = []
        self._triggers = _Triggers()
        self.files = 0
        self.size = 0

    def begin(self) -> Iterator[bytes]:
        for path in ("", "usr", "usr/bin", "usr/sbin", "usr/lib", "etc", "var", "var/lib"):
            yield from self._folder(path, 0o755, 0, "")
        for name in ("bin", "sbin", "lib"):
            yield from self._link(name, f"usr/{name}", 0, "")

    def add(self, path: Path, package: Package, replaces: Mapping[str, Sequence[str]] | None = None) -> Iterator[bytes]:
        """One package, from its file. `replaces` says whose files each package may take over."""
        with Deb(path, package.name) as deb:
            control = deb.control()
            text = _first_stanza(control["control"])
            fields = stanza(text)
            if (fields.get("package"), fields.get("version")) != (package.name, package.version):
                raise BadPackage(f"the file of package {package} is one of {fields.get('package')}")
            conffiles = {
                clean_path(line.split()[-1].lstrip("/"), package.name)
                for line in control.get("conffiles", b"").decode("utf-8", "replace").splitlines()
                if line.strip() and not line.startswith("remove-on-upgrade")
            }
            sums: dict[str, str] = {}
            listed = ["/."]
            taken = frozenset((replaces or {}).get(package.name, ()))
            for entry, name, content in deb.entries():
                if not name:
                    continue
                listed.append(f"/{name}")
                if is_excluded(name, is_folder=entry.isdir()):
                    continue
                yield from self._install(entry, name, content, package.name, taken, conffiles, sums)
        yield from self._record(package, fields, text, control, listed, sums)

    def finish(self, files: Mapping[str, tuple[int, bytes]]) -> Iterator[bytes]:
        """The database of dpkg, and more files: paths from the root, with mode and content."""
        for name in ("info", "triggers", "updates", "alternatives", "parts"):
            yield from self._folder(f"{_DATABASE}/{name}", 0o755, 0, "")
        database: dict[str, tuple[int, bytes]] = {
            f"{_DATABASE}/status": (0o644, _encode("\n".join(self._status))),
            f"{_DATABASE}/available": (0o644, b""),
            f"{_DATABASE}/info/format": (0o644, b"1\n"),
            f"{_DATABASE}/triggers/File": (0o644, _lines(self._triggers.files)),
        }
        for name, packages in self._triggers.named.items():
            database[f"{_DATABASE}/triggers/{name}"] = (0o644, _lines(packages))
        for path, (mode, data) in {**database, **files}.items():
            yield from self._whole(path, mode, data)
        yield b"\0" * (2 * _BLOCK)

    # --- one entry ---

    def _install(
        self,
        entry: tarfile.TarInfo,
        name: str,
        content: IO[bytes] | None,
        package: str,
        replaces: frozenset[str],
        conffiles: set[str],
        sums: dict[str, str],
    ) -> Iterator[bytes]:
        path, before = self._place(name, package)
        yield from before
        if entry.isdir():
            yield from self._merge(path)
        known = self._nodes.get(path)
        if entry.isdir():
            # Where a link is, whoever made it knows best: this is how / and /usr were merged.
            if known is not None and known.kind not in (tarfile.DIRTYPE, tarfile.SYMTYPE):
                raise BadPackage(f"/{name} is a folder of package {package}, and a file of {known.package}")
            if known is None:
                yield from self._folder(path, entry.mode, int(entry.mtime), package)
            return
        if known is not None:
            if known.kind == tarfile.DIRTYPE and entry.issym():
                return
            if entry.issym() and known.kind == tarfile.SYMTYPE and _same_target(known.target, entry.linkname):
                return
            if known.kind == tarfile.DIRTYPE or known.package not in replaces:
                raise BadPackage(
                    f"/{name} of package {package} belongs to package {known.package or 'base'} already",
                    hint="leave one of the two out",
                )
        if entry.issym():
            yield from self._link(path, entry.linkname, int(entry.mtime), package)
        elif entry.islnk():
            target, _ = self._place(clean_path(entry.linkname, package), package)
            original = self._nodes.get(target)
            if original is None or original.kind != tarfile.REGTYPE or original.package != package:
                raise BadPackage(f"/{name} of package {package} is a hard link to what is not its own: /{target}")
            self._nodes[path] = original
            # With the mode of the file, whatever it says itself: Docker gives the file the mode of the link.
            yield _header(path, tarfile.LNKTYPE, original.mode, int(entry.mtime), link=target)
        else:
            assert content is not None
            yield from self._file(path, entry, content, package, hashed=sums if name in conffiles else None, name=name)

    def _file(
        self,
        path: str,
        entry: tarfile.TarInfo,
        content: IO[bytes],
        package: str,
        *,
        hashed: dict[str, str] | None,
        name: str,
    ) -> Iterator[bytes]:
        self._nodes[path] = _Node(tarfile.REGTYPE, package, mode=entry.mode)
        self.files += 1
        self.size += entry.size
        yield _header(path, tarfile.REGTYPE, entry.mode, int(entry.mtime), size=entry.size)
        digest = hashlib.md5(usedforsecurity=False)
        left = entry.size
        while left:
            piece = content.read(min(left, _PIECE))
            if not piece:
                raise BadPackage(f"package {package} ends in the middle of /{name}")
            left -= len(piece)
            if hashed is not None:
                digest.update(piece)
            yield piece
        yield _padding(entry.size)
        if hashed is not None:
            hashed[name] = digest.hexdigest()

    def _whole(self, path: str, mode: int, data: bytes) -> Iterator[bytes]:
        place, before = self._place(path, "")
        yield from before
        self._nodes[place] = _Node(tarfile.REGTYPE, "")
        yield _header(place, tarfile.REGTYPE, mode, 0, size=len(data)) + data + _padding(len(data))

    def _folder(self, path: str, mode: int, modified: int, package: str) -> Iterator[bytes]:
        if path not in self._nodes:
            self._nodes[path] = _Node(tarfile.DIRTYPE, package)
            yield _header(path or ".", tarfile.DIRTYPE, mode, modified)

    def _link(self, path: str, target: str, modified: int, package: str) -> Iterator[bytes]:
        self._nodes[path] = _Node(tarfile.SYMTYPE, package, target)
        yield _header(path, tarfile.SYMTYPE, 0o777, modified, link=target)

    def _place(self, path: str, package: str) -> tuple[str, list[bytes]]:
        """Where a path really lies, given the links that are there, and the folders that have to be made on the way.

        Nothing ever leads out: `..` at the root is the root.
        """
        waiting = path.split("/")
        place: list[str] = []
        made: list[bytes] = []
        hops = 0
        while len(waiting) > 1:
            part = waiting.pop(0)
            if part in ("", "."):
                continue
            if part == "..":
                place = place[:-1]
                continue
            at = "/".join((*place, part))
            if not place:
                made += self._merge(part)
            node = self._nodes.get(at)
            if node is None:
                made += self._folder(at, 0o755, 0, package)
            elif node.kind == tarfile.SYMTYPE:
                hops += 1
                if hops > _HOPS:
                    raise BadPackage(f"/{path} of package {package} lies behind links that go round in circles")
                if node.target.startswith("/"):
                    place = []
                waiting = [*node.target.split("/"), *waiting]
                continue
            elif node.kind != tarfile.DIRTYPE:
                raise BadPackage(f"/{path} of package {package} lies in /{at}, which is a file of {node.package}")
            place.append(part)
        return "/".join((*place, waiting[0])), made

    def _merge(self, name: str) -> Iterator[bytes]:
        """`/lib64` and its like are those of `/usr`, where an architecture has them."""
        if name not in self._nodes and _MERGED.fullmatch(name):
            yield from self._folder(f"usr/{name}", 0o755, 0, "")
            yield from self._link(name, f"usr/{name}", 0, "")

    # --- the database ---

    def _record(
        self,
        package: Package,
        fields: Mapping[str, str],
        text: str,
        control: Mapping[str, bytes],
        listed: Sequence[str],
        sums: Mapping[str, str],
    ) -> Iterator[bytes]:
        shared = fields.get("multi-arch", "") == "same"
        name = f"{package.name}:{fields.get('architecture')}" if shared else package.name
        yield from self._folder(f"{_DATABASE}/info", 0o755, 0, "")
        yield from self._whole(f"{_DATABASE}/info/{name}.list", 0o644, _lines(listed))
        for member, data in control.items():
            if member != "control":
                script = member in ("preinst", "postinst", "prerm", "postrm", "config")
                yield from self._whole(f"{_DATABASE}/info/{name}.{member}", 0o755 if script else 0o644, data)
        self._note_triggers(name, control.get("triggers", b"").decode("utf-8", "replace"))
        first, _, rest = text.partition("\n")
        if not first.lower().startswith("package:"):
            first, rest = f"Package: {package.name}", re.sub(r"(?im)^package:.*\n?", "", text)
        status = f"{first}\nStatus: install ok unpacked\n{rest.rstrip()}\n"
        if sums:
            status += "Conffiles:\n" + "".join(f" /{path} {digest}\n" for path, digest in sorted(sums.items()))
        self._status.append(status)

    def _note_triggers(self, package: str, text: str) -> None:
        """Who wants to be told what: dpkg reads these when it configures."""
        for line in text.splitlines():
            parts = line.split("#")[0].split()
            if len(parts) != 2 or not parts[0].startswith("interest") or not _TRIGGER.fullmatch(parts[1]):
                continue
            who = f"{package}/noawait" if parts[0] == "interest-noawait" else package
            if parts[1].startswith("/"):
                self._triggers.files.append(f"{parts[1]} {who}")
            elif "/" not in parts[1] and parts[1] not in (".", "..", "File", "Unincorp", "Lock"):
                self._triggers.named.setdefault(parts[1], []).append(who)


def in_pieces(parts: Iterable[bytes], least: int = _PIECE) -> Iterator[bytes]:
    """The same bytes in fewer, larger pieces."""
    kept = bytearray()
    for part in parts:
        kept += part
        if len(kept) >= least:
            yield bytes(kept)
            kept.clear()
    if kept:
        yield bytes(kept)


def is_excluded(path: str, *, is_folder: bool) -> bool:
    """By the rules that dpkg in the image keeps to, too. Folders of manuals stay: scripts link into them."""
    name = f"/{path}"
    if is_folder and name.startswith(("/usr/share/man/", "/usr/share/info/")):
        return False
    if any(fnmatchcase(name, pattern) for pattern in INCLUDED):
        return False
    return any(fnmatchcase(name, pattern) for pattern in EXCLUDED)


def in_order(packages: Iterable[Package], replaces: Mapping[str, Sequence[str]]) -> list[Package]:
    """Those whose files are taken over first, so that the later ones win. Otherwise by name."""
    by_name = {package.name: package for package in packages}
    ordered: dict[str, Package] = {}

    def visit(name: str, above: frozenset[str]) -> None:
        if name in ordered or name in above or name not in by_name:
            return
        for other in sorted(replaces.get(name, ())):
            visit(other, above | {name})
        ordered[name] = by_name[name]

    for name in sorted(by_name):
        visit(name, frozenset())
    return list(ordered.values())


def _header(path: str, kind: bytes, mode: int, modified: int, *, size: int = 0, link: str = "") -> bytes:
    entry = tarfile.TarInfo(path)
    entry.type, entry.mode, entry.mtime, entry.size, entry.linkname = kind, mode & 0o7777, max(0, modified), size, link
    return entry.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape")


def _padding(size: int) -> bytes:
    return b"\0" * (-size % _BLOCK)


def _first_stanza(control: bytes) -> str:
    text = control.decode("utf-8", "surrogateescape").replace("\r", "").strip("\n")
    return re.split(r"\n[ \t]*\n", text)[0]


def _same_target(one: str, other: str) -> bool:
    return one.strip("/") == other.strip("/")


def _lines(lines: Iterable[str]) -> bytes:
    return _encode("".join(f"{line}\n" for line in lines))


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")
