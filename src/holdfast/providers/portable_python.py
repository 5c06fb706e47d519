"""An interpreter for the guest that runs in any image: another libc, or none, an old Python, or none.

It is a copy of this machine's, with its standard library, its libraries and its loader, which is told where these are.
A box's own root can write to its /etc, and a loader reads files there before anything else: names of those are taken
out of the copy, so that process 1 loads nothing that a box put there.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from holdfast.boxes.errors import CannotIsolate
from holdfast.providers.host.data_dir import DataDir
from holdfast.threads.ids import new_id

PYTHON: Final = "/.python"
"""Where boxes find it."""
_VERSION: Final = 1
_SECONDS: Final = 60.0
_LEFT_OUT: Final = (
    "test", "tests", "idlelib", "ensurepip", "tkinter", "turtledemo", "lib2to3", "pydoc_data", "distutils",
    "site-packages", "dist-packages", "config-*", "_tkinter*", "_crypt*", "nis.*", "_test*", "_dbm*", "_gdbm*",
    "readline*", "_curses*", "EXTERNALLY-MANAGED",
)  # fmt: skip
"""Of the standard library: what no guest needs."""
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
    """To be mounted at `/.python`."""
    command: tuple[str, ...]
    """How it is started in a box."""


def prepare(data_dir: DataDir, python: str) -> Interpreter:
    """A copy of an interpreter, made where it is missing: a second, once for each version. Blocks."""
    with data_dir.making_in(data_dir.runtime):
        about = Path(python).resolve().stat()
        known = [_VERSION, python, about.st_ino, about.st_mtime_ns, about.st_size]
        folder = data_dir.runtime / f"python-{hashlib.sha256(json.dumps(known).encode()).hexdigest()[:16]}"
        if not folder.exists():
            made = data_dir.runtime / f".{folder.name}.{new_id('x')}"
            try:
                _copy(_look(python), made)
                made.rename(folder)
            except (OSError, shutil.Error) as error:
                shutil.rmtree(made, ignore_errors=True)
                if not folder.exists():  # else another process was quicker
                    raise CannotIsolate(f"the guest's interpreter cannot be copied: {error}") from None
    program = f"{PYTHON}/bin/{json.loads((folder / 'about.json').read_bytes())['name']}"
    loader = (f"{PYTHON}/lib/ld.so", "--inhibit-cache", "--library-path", f"{PYTHON}/lib", "--argv0", program)
    return Interpreter(folder, (*loader, program))


def _look(python: str) -> dict[str, Any]:
    done = subprocess.run(
        [python, "-I", "-S", "-c", _PROBE], capture_output=True, timeout=_SECONDS, check=False, text=True
    )
    if done.returncode != 0:
        raise CannotIsolate(f"{python} cannot say what it consists of: {done.stderr.strip()[-300:]}")
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def _copy(told: dict[str, Any], target: Path) -> None:
    name = told["name"]
    (target / "bin").mkdir(parents=True)
    shutil.copyfile(told["executable"], target / "bin" / name)
    library = target / "lib" / name
    shutil.copytree(told["stdlib"], library, ignore=shutil.ignore_patterns(*_LEFT_OUT), symlinks=False)
    if not (library / "lib-dynload").exists() and Path(told["dynload"]).is_dir():
        shutil.copytree(told["dynload"], library / "lib-dynload", ignore=shutil.ignore_patterns(*_LEFT_OUT))
    for path in map(Path, told["libraries"]):
        if path.name.startswith("ld-"):
            (target / "lib" / "ld.so").write_bytes(deafened(path.read_bytes(), path))
        else:
            # Under the name that it is asked for by: what is mapped is the file behind a link.
            first, *others = sorted(names_of(path))
            shutil.copyfile(path, target / "lib" / first)
            for other in others:
                (target / "lib" / other).hardlink_to(target / "lib" / first)
    if not (target / "lib" / "ld.so").exists():
        raise CannotIsolate("this machine's Python has no loader of its own: images need one that is linked to glibc")
    (target / "about.json").write_text(json.dumps({"name": name, "version": told["version"]}))
    for path in (target, *target.rglob("*")):
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() or path.parent.name in ("bin", "lib") else 0o644)


def names_of(library: Path) -> set[str]:
    """All names in its folder by which a library goes: `libz.so.1` for `libz.so.1.2.13`."""
    stem = library.name.split(".so", 1)[0]
    names = {library.name}
    for other in library.parent.glob(f"{stem}.so*"):
        if other.suffix != ".so" and other.is_symlink() and other.resolve() == library.resolve():
            names.add(other.name)
    return names


def deafened(loader: bytes, path: Path) -> bytes:
    """A loader that asks no file of a box what to load."""
    for name in _READ_BY_LOADERS:
        if loader.count(name) != 1:
            raise CannotIsolate(f"the loader {path} is not of a kind that we know: images need one of glibc")
        nowhere = PYTHON.encode() + b"/"
        loader = loader.replace(name, nowhere + b"-" * (len(name) - 1 - len(nowhere)) + b"\0")
    return loader
