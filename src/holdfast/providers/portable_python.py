"""A Python for the guest that runs in any image, even one with another libc, an old Python or none.

It is a copy of this machine's Python with its standard library, shared libraries and loader. A loader reads files in
/etc first, which root of a box can write. Their names are removed from the copied loader, so that process 1 loads
nothing from the box.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from holdfast.api.errors.boxes import CannotIsolate
from holdfast.api.ids import new_id
from holdfast.providers.host.disk.data_dir import DataDir

PYTHON: Final = "/.python"
"""Where it is mounted in boxes."""
_VERSION: Final = 1
_SECONDS: Final = 60.0
_LEFT_OUT: Final = (
    "test", "tests", "idlelib", "ensurepip", "tkinter", "turtledemo", "lib2to3", "pydoc_data", "distutils",
    "site-packages", "dist-packages", "config-*", "_tkinter*", "_crypt*", "nis.*", "_test*", "_dbm*", "_gdbm*",
    "readline*", "_curses*", "EXTERNALLY-MANAGED",
)  # fmt: skip
"""Parts of the standard library that no guest needs."""
_READ_BY_LOADERS: Final = (b"/etc/ld.so.preload\0", b"/etc/ld.so.cache\0")
_PROBE: Final = r"""
import json, os, sys, sysconfig
stdlib = sysconfig.get_path("stdlib")
dynload = os.path.join(sysconfig.get_path("platstdlib"), "lib-dynload")
for name in sorted(os.listdir(dynload)) if os.path.isdir(dynload) else ():
    module = name.split(".", 1)[0]
    if not module.startswith(("_tkinter", "_crypt", "nis", "_test", "xx", "_dbm", "_gdbm", "readline", "_curses")):
        try:
            __import__(module)
        except Exception:
            pass  # what cannot be loaded here needs no libraries there
import ctypes
try:
    ctypes.CDLL("libgcc_s.so.1")
except OSError:
    pass
maps = [line.split(None, 5)[5].rstrip("\n") for line in open("/proc/self/maps") if line.count("/")]
libraries = sorted({path for path in maps if ".so" in path.rsplit("/", 1)[-1] and not path.startswith(dynload)})
print(json.dumps({"executable": os.path.realpath("/proc/self/exe"), "stdlib": stdlib, "dynload": dynload,
                  "libraries": libraries, "name": "python%d.%d" % sys.version_info[:2], "version": sys.version}))
"""


@dataclass(frozen=True, slots=True)
class Interpreter:
    folder: Path
    """Mounted at `/.python`."""
    command: tuple[str, ...]
    """The command that starts it in a box."""


def prepare(data_dir: DataDir, python: str) -> Interpreter:
    """Returns a copy of an interpreter. Copies it if needed, which takes a second for each version. Blocks."""
    with data_dir.making_in(data_dir.runtime):
        about = Path(python).resolve().stat()
        known = [_VERSION, python, about.st_ino, about.st_mtime_ns, about.st_size]
        folder = data_dir.runtime / f"python-{hashlib.sha256(json.dumps(known).encode()).hexdigest()[:16]}"
        if not folder.exists():
            made = data_dir.runtime / f".{folder.name}.{new_id('x')}"
            try:
                _copy(_inspect(python), made)
                made.rename(folder)
            except (OSError, shutil.Error) as error:
                shutil.rmtree(made, ignore_errors=True)
                if not folder.exists():  # otherwise another process has made the copy
                    raise CannotIsolate(f"cannot copy Python for the guest: {error}") from None
    program = f"{PYTHON}/bin/{json.loads((folder / 'about.json').read_bytes())['name']}"
    loader = (f"{PYTHON}/lib/ld.so", "--inhibit-cache", "--library-path", f"{PYTHON}/lib", "--argv0", program)
    return Interpreter(folder, (*loader, program))


def _inspect(python: str) -> dict[str, Any]:
    done = subprocess.run(
        [python, "-I", "-S", "-c", _PROBE], capture_output=True, timeout=_SECONDS, check=False, text=True
    )
    if done.returncode != 0:
        raise CannotIsolate(f"cannot list the files of {python}: {done.stderr.strip()[-300:]}")
    parts: dict[str, Any] = json.loads(done.stdout)
    return parts


def _copy(parts: dict[str, Any], target: Path) -> None:
    name = parts["name"]
    (target / "bin").mkdir(parents=True)
    shutil.copyfile(parts["executable"], target / "bin" / name)
    library = target / "lib" / name
    shutil.copytree(parts["stdlib"], library, ignore=shutil.ignore_patterns(*_LEFT_OUT), symlinks=False)
    if not (library / "lib-dynload").exists() and Path(parts["dynload"]).is_dir():
        shutil.copytree(parts["dynload"], library / "lib-dynload", ignore=shutil.ignore_patterns(*_LEFT_OUT))
    for path in map(Path, parts["libraries"]):
        if path.name.startswith("ld-"):
            (target / "lib" / "ld.so").write_bytes(deafened(path.read_bytes(), path))
        else:
            # Copied under its link names, which programs ask for. The mapped file is the target of the links.
            first, *others = sorted(names_of(path))
            shutil.copyfile(path, target / "lib" / first)
            for other in others:
                (target / "lib" / other).hardlink_to(target / "lib" / first)
    if not (target / "lib" / "ld.so").exists():
        raise CannotIsolate("this machine's Python has no loader: images need a Python that is linked to glibc")
    (target / "about.json").write_text(json.dumps({"name": name, "version": parts["version"]}))
    for path in (target, *target.rglob("*")):
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() or path.parent.name in ("bin", "lib") else 0o644)


def names_of(library: Path) -> set[str]:
    """Returns all names of a library in its folder, such as `libz.so.1` for `libz.so.1.2.13`."""
    stem = library.name.split(".so", 1)[0]
    names = {library.name}
    for other in library.parent.glob(f"{stem}.so*"):
        if other.suffix != ".so" and other.is_symlink() and other.resolve() == library.resolve():
            names.add(other.name)
    return names


def deafened(loader: bytes, path: Path) -> bytes:
    """Returns a loader that reads no configuration from the box."""
    for name in _READ_BY_LOADERS:
        if loader.count(name) != 1:
            raise CannotIsolate(f"the loader {path} is of an unknown kind: images need the loader of glibc")
        nowhere = PYTHON.encode() + b"/"
        loader = loader.replace(name, nowhere + b"-" * (len(name) - 1 - len(nowhere)) + b"\0")
    return loader
