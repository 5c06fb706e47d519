"""Root filesystems for tests, made of what this machine has: a tar by hand, busybox alone, a small Debian with apt, and
a system whose package manager is dnf."""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import tarfile
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pytest

APPLETS: Final = (
    "cat", "chmod", "chown", "chroot", "cp", "date", "dd", "echo", "env", "false", "find", "grep", "head", "hostname",
    "id", "kill", "ln", "ls", "mkdir", "mkfifo", "mknod", "mount", "mv", "printf", "ps", "pwd", "readlink", "rm", "sed",
    "seq", "sh", "sleep", "sort", "stat", "sync", "tail", "tar", "test", "touch", "true", "umount", "unshare", "wc",
)  # fmt: skip
_WANTED: Final = (
    "apt", "base-files", "base-passwd", "bash", "coreutils", "dash", "debianutils", "diffutils", "dpkg", "findutils",
    "grep", "gzip", "libc-bin", "mawk", "perl-base", "python3-minimal", "sed", "tar",
)  # fmt: skip
_SKIPPED: Final = re.compile(r"/usr/share/(doc|man|locale|info|lintian)/|\.pyc$|/usr/lib/python3/dist-packages/")
_WANTED_WITH_DNF: Final = (
    "base-files", "base-passwd", "bash", "coreutils", "createrepo-c", "dash", "diffutils", "dnf", "findutils", "grep",
    "libc-bin", "libcap2-bin", "passwd", "rpm", "sed", "tar",
)  # fmt: skip
_NOT_WITH_DNF: Final = re.compile(r"apt$|dpkg|debconf|(lib)?perl|gnupg|dirmngr|gpg-|gpgsm")
"""Packages that others name, and that neither rpm nor dnf needs to run: no second package manager among them."""
_SKIPPED_WITH_DNF: Final = re.compile(
    r"/usr/share/(doc|man|locale|info|lintian)/|\.pyc$|/gconv/|/usr/lib/python3/dist-packages/"
    r"(?!dnf|libdnf|hawkey|rpm|gpg|libcomps)"
)


async def pieces(data: bytes | Path, size: int = 1 << 18) -> AsyncIterator[bytes]:
    """An archive as a stream."""
    if isinstance(data, bytes):
        for start in range(0, len(data), size):
            yield data[start : start + size]
        return
    with data.open("rb") as file:
        while piece := file.read(size):
            yield piece


class Tar:
    """A tar archive, entry by entry, with whatever an entry is to say."""

    def __init__(self) -> None:
        self._out = io.BytesIO()
        self._tar = tarfile.TarFile(fileobj=self._out, mode="w", format=tarfile.PAX_FORMAT)

    def add(self, name: str, kind: bytes, **fields: Any) -> Tar:
        entry = tarfile.TarInfo(name)
        entry.type = kind
        data = fields.pop("data", b"")
        for field, value in fields.items():
            setattr(entry, field, value)
        entry.size = len(data)
        self._tar.addfile(entry, io.BytesIO(data))
        return self

    def file(self, name: str, data: bytes = b"", mode: int = 0o644, **fields: Any) -> Tar:
        return self.add(name, tarfile.REGTYPE, data=data, mode=mode, **fields)

    def folder(self, name: str, mode: int = 0o755, **fields: Any) -> Tar:
        return self.add(name, tarfile.DIRTYPE, mode=mode, **fields)

    def link(self, name: str, target: str) -> Tar:
        return self.add(name, tarfile.SYMTYPE, linkname=target, mode=0o777)

    def hard_link(self, name: str, target: str) -> Tar:
        return self.add(name, tarfile.LNKTYPE, linkname=target)

    def done(self) -> bytes:
        self._tar.close()
        return self._out.getvalue()


def busybox_program() -> bytes:
    """The static busybox of this machine. Skips the test where there is none."""
    program = shutil.which("busybox")
    if program is None:
        pytest.skip("this machine has no busybox to make an image of: apt install busybox-static")
    return Path(program).read_bytes()


def busybox() -> Tar:
    """An image of one program."""
    tar = Tar().folder("bin").folder("etc").folder("tmp", 0o1777).folder("var")
    tar.file("bin/busybox", busybox_program(), 0o755)
    for applet in APPLETS:
        tar.link(f"bin/{applet}", "busybox")
    tar.file("etc/passwd", b"root:x:0:0:root:/root:/bin/sh\nsailor:x:1234:1235:Sailor:/home/sailor:/bin/sh\n")
    return tar.file("etc/group", b"root:x:0:\nsailor:x:1235:\n")


def sha256(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def oci_layout(
    layers: Sequence[bytes],
    config: Mapping[str, Any] | None = None,
    *,
    packed: Sequence[bytes] | None = None,
    lies: Mapping[str, Any] | None = None,
    index: Any = None,
) -> bytes:
    """`packed` are the layers as they are stored; `lies` replaces what the documents say."""
    stored = list(packed or layers)
    told = dict(lies or {})
    inner = {
        "architecture": {"x86_64": "amd64", "aarch64": "arm64"}[os.uname().machine],
        "os": "linux",
        "config": dict(config or {}),
        "rootfs": {"type": "layers", "diff_ids": [sha256(layer) for layer in layers]},
        **told.get("config", {}),
    }
    config_blob = json.dumps(inner).encode()

    def describe(data: bytes, kind: str) -> dict[str, Any]:
        return {"mediaType": kind, "digest": sha256(data), "size": len(data), **told.get("descriptor", {})}

    manifest = json.dumps(
        {
            "schemaVersion": 2,
            "config": describe(config_blob, "application/vnd.oci.image.config.v1+json"),
            "layers": [describe(each, "application/vnd.oci.image.layer.v1.tar") for each in stored],
        }
    ).encode()
    whole = index if index is not None else {"manifests": [{"digest": sha256(manifest), "size": len(manifest)}]}
    tar = Tar().file("oci-layout", b'{"imageLayoutVersion": "1.0.0"}').file("index.json", json.dumps(whole).encode())
    tar.folder("blobs").folder("blobs/sha256")
    for blob in {sha256(each): each for each in (config_blob, manifest, *stored)}.values():
        tar.file(f"blobs/sha256/{told.get('blob', sha256(blob)[7:])}" if blob in stored else
                 f"blobs/sha256/{sha256(blob)[7:]}", blob)  # fmt: skip
    return tar.done()


def docker_archive(layers: Sequence[bytes], config: Mapping[str, Any] | None = None) -> bytes:
    """As `docker save` wrote it before it wrote OCI layouts."""
    inner = {"config": dict(config or {}), "rootfs": {"diff_ids": [sha256(layer) for layer in layers]}}
    blob = json.dumps(inner).encode()
    name = f"{sha256(blob)[7:]}.json"
    tar, names = Tar(), []
    seen: dict[bytes, str] = {}
    for number, layer in enumerate(layers):
        id = hashlib.sha256(b"%d" % number).hexdigest()
        tar.folder(id).file(f"{id}/VERSION", b"1.0")
        if layer in seen:
            tar.link(f"{id}/layer.tar", f"../{seen[layer]}/layer.tar")
        else:
            tar.file(f"{id}/layer.tar", layer)
            seen[layer] = id
        names.append(f"{id}/layer.tar")
    tar.file(name, blob)
    return tar.file("manifest.json", json.dumps([{"Config": name, "RepoTags": None, "Layers": names}]).encode()).done()


# --- a Debian of this machine's own files -----------------------------------------------------------------------------


def has_debian() -> bool:
    return Path("/var/lib/dpkg/status").exists() and shutil.which("dpkg-deb") is not None


def debian(target: Path) -> Path:
    """A tarball with apt, dpkg and what they need, from the packages that are installed here."""
    known = _installed()
    names = _closure(known, _WANTED)
    with tarfile.open(target, "w") as tar:
        packed = _pack(tar, sorted(names), _SKIPPED, database=True)
        _put_users(tar)
        _put_file(tar, "var/lib/dpkg/status", ("\n\n".join(known[name] for name in packed) + "\n").encode())
        for path in ("var/lib/dpkg/updates", "var/lib/dpkg/parts", "var/cache/apt/archives/partial", "var/log/apt",
                     "var/lib/apt/lists/partial", "etc/apt/apt.conf.d", "etc/apt/preferences.d", "root"):  # fmt: skip
            _put_folder(tar, path)
    return target


def has_dnf() -> bool:
    return has_debian() and {"createrepo-c", "dnf", "rpm"} <= _installed().keys()


def with_dnf(target: Path) -> Path:
    """A tarball with dnf and rpm, without apt and dpkg. No package has been installed there yet."""
    known = _installed()
    names = {name for name in _closure(known, _WANTED_WITH_DNF) if not _NOT_WITH_DNF.match(name)}
    with tarfile.open(target, "w") as tar:
        _pack(tar, sorted(names), _SKIPPED_WITH_DNF, database=False)
        _put_users(tar)
        for path in ("etc/yum.repos.d", "var/log", "var/lib/rpm", "var/cache", "root"):
            _put_folder(tar, path)
    return target


def _pack(tar: tarfile.TarFile, names: Sequence[str], skipped: re.Pattern[str], *, database: bool) -> list[str]:
    """The files of packages, and with `database` what dpkg keeps of them; says which packages have any."""
    info = Path("/var/lib/dpkg/info")
    done: set[str] = set()

    def put(path: str) -> None:
        """A path with the folders and links on the way to it, each where it really is."""
        parent, _, _ = path.rpartition("/")
        if parent and parent not in done:
            put(parent)
        real = os.path.realpath(parent or "/").rstrip("/") + "/" + path.rpartition("/")[2]
        if path in done or not os.path.lexists(path):
            return
        done.add(path)
        if real != path:
            put(real)
            return
        tar.add(path, path[1:], recursive=False, filter=_plain)

    packed = []
    for name in names:
        listed = next((each for each in (info / f"{name}.list", *info.glob(f"{name}:*.list")) if each.exists()), None)
        if listed is None:
            continue
        for line in listed.read_text().splitlines():
            if line not in ("/.", "/") and not skipped.search(line):
                put(line)
        stem = listed.name.removesuffix(".list")
        for each in info.glob(f"{stem}.*") if database else ():
            put(str(each))
        packed.append(name)
    return packed


def _put_users(tar: tarfile.TarFile) -> None:
    for name in ("passwd", "group"):
        data = Path(f"/usr/share/base-passwd/{name}.master").read_bytes().replace(b":*:", b":x:")
        _put_file(tar, f"etc/{name}", data)


def _put_file(tar: tarfile.TarFile, path: str, data: bytes) -> None:
    entry = tarfile.TarInfo(path)
    entry.size = len(data)
    entry.mode = 0o644
    tar.addfile(entry, io.BytesIO(data))


def _put_folder(tar: tarfile.TarFile, path: str) -> None:
    entry = tarfile.TarInfo(path)
    entry.type = tarfile.DIRTYPE
    entry.mode = 0o755
    tar.addfile(entry)


def _plain(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    return entry if entry.isreg() or entry.isdir() or entry.issym() or entry.islnk() else None


def _installed() -> dict[str, str]:
    stanzas = Path("/var/lib/dpkg/status").read_text().strip().split("\n\n")
    found = {}
    for stanza in stanzas:
        name = re.search(r"^Package: (\S+)", stanza, re.M)
        if name is not None and "Status: install ok installed" in stanza:
            found[name[1]] = stanza
    return found


def _closure(known: Mapping[str, str], wanted: Sequence[str]) -> set[str]:
    names: set[str] = set()
    waiting = [name for name in wanted if name in known]
    while waiting:
        name = waiting.pop()
        if name in names:
            continue
        names.add(name)
        needs = " , ".join(re.findall(r"^(?:Pre-)?Depends: (.*)$", known[name], re.M))
        for need in re.split(r"[,|]", needs):
            other = re.sub(r"[\s:(].*", "", need.strip())
            if other in known:
                waiting.append(other)
    return names


def package(folder: Path, name: str, files: Mapping[str, bytes], scripts: Mapping[str, str] | None = None) -> Path:
    """A Debian package, whose files belong to somebody who is not root."""
    tree = folder / f"{name}-tree"
    control = f"Package: {name}\nVersion: 1.0\nArchitecture: all\nMaintainer: Nobody <nobody@example.org>\n"
    control += f"Description: {name}\n"
    (tree / "DEBIAN").mkdir(parents=True)
    (tree / "DEBIAN" / "control").write_text(control)
    for script, text in (scripts or {}).items():
        (tree / "DEBIAN" / script).write_text(text)
        (tree / "DEBIAN" / script).chmod(0o755)
    for path, data in files.items():
        (tree / path).parent.mkdir(parents=True, exist_ok=True)
        (tree / path).write_bytes(data)
        (tree / path).chmod(0o755)
    if os.geteuid() == 0:
        for each in files:
            os.chown(tree / each, 33, 1000)
    made = folder / f"{name}_1.0_all.deb"
    subprocess.run(["dpkg-deb", "-Zgzip", "-b", str(tree), str(made)], check=True, capture_output=True, timeout=240)
    shutil.rmtree(tree)
    return made


def repository(packages: Sequence[Path]) -> dict[str, bytes]:
    """The files of a repository with these packages, by name."""
    files = {each.name: each.read_bytes() for each in packages}
    stanzas = []
    for each in packages:
        told = subprocess.run(["dpkg-deb", "-f", str(each)], check=True, capture_output=True, text=True, timeout=240)
        data = files[each.name]
        stanzas.append(
            f"{told.stdout.strip()}\nFilename: ./{each.name}\nSize: {len(data)}\nSHA256: {sha256(data)[7:]}\n"
        )
    return {**files, "Packages": "\n".join(stanzas).encode()}
