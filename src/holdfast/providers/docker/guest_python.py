"""Packs the guest and a Python that runs it in any image into one tar archive, small enough to send to a daemon.

It contains this machine's Python with its loader and libraries, and only the modules that the guest and the runners
import.
"""

from __future__ import annotations

import ast
import importlib.util
import io
import json
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from holdfast.api.errors.boxes import CannotIsolate
from holdfast.providers import portable_python

PLACE: Final = "/.python"
"""The path in a box. The loader is built for this path."""
_SECONDS: Final = 60.0
_ALWAYS: Final = (
    "encodings.ascii", "encodings.idna", "encodings.latin_1", "encodings.utf_8", "json", "linecache", "os", "re",
    "select", "shutil", "socket", "struct", "tarfile", "traceback", "zipimport",
)  # fmt: skip
_FOR_RUNNERS: Final = (
    "_blake2", "_ctypes", "_socket", "argparse", "base64", "binascii", "errno", "glob", "http.client", "importlib",
    "queue", "secrets", "signal", "stat", "subprocess", "threading", "time", "typing", "urllib.parse",
)  # fmt: skip
"""What a runner imports, including the reader and the driver of an agent. It arrives over stdin."""
MODULES: Final = (*_ALWAYS, *_FOR_RUNNERS)
"""Modules that are always included, in addition to the guest's imports. A test tries every agent with them."""
_INSPECT: Final = r"""
import importlib, json, os, sys, sysconfig
for name in sys.argv[1:]:
    try:
        importlib.import_module(name)
    except ImportError:
        pass
standard = [os.path.realpath(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib")]
files = {}
for name, module in list(sys.modules.items()):
    path = getattr(module, "__file__", None)
    if path and not name.startswith("__main__"):
        path = os.path.realpath(path)
        for folder in standard:
            if path.startswith(folder + "/"):
                files[path[len(folder) + 1:]] = path
mapped = [line.split(None, 5)[5].rstrip("\n") for line in open("/proc/self/maps") if line.count("/")]
libraries = sorted({path for path in mapped if ".so" in path.rsplit("/", 1)[-1]} - set(files.values()))
print(json.dumps({"executable": os.path.realpath("/proc/self/exe"), "files": files, "libraries": libraries,
                  "name": "python%d.%d" % sys.version_info[:2]}))
"""


def python_here() -> Path:
    """Returns the real interpreter, not the link in a virtual environment."""
    return Path(getattr(sys, "_base_executable", None) or sys.executable).resolve()


def pack(sources: Mapping[str, bytes], folder: str) -> tuple[bytes, tuple[str, ...]]:
    """Returns an archive to unpack at `PLACE`, and the command that starts its interpreter. Blocks.

    `sources` are the guest's modules by name, which go into `folder`.
    """
    found = _inspect(sources)
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        library = f"lib/{found['name']}"
        _add(tar, f"bin/{found['name']}", Path(found["executable"]).read_bytes(), 0o755)
        for name, path in found["files"].items():
            _add_module(tar, f"{library}/{name}", Path(path).read_bytes())
        # Python recognizes the standard library by this file.
        _add(tar, f"{library}/lib-dynload/.here", b"", 0o644)
        loader = None
        for path in map(Path, found["libraries"]):
            if path.name.startswith("ld-"):
                loader = portable_python.deafened(path.read_bytes(), path)
                _add(tar, "lib/ld.so", loader, 0o755)
            else:
                data = path.read_bytes()
                for name in portable_python.names_of(path):
                    _add(tar, f"lib/{name}", data, 0o755)
        if loader is None:
            raise CannotIsolate("this machine's Python has no loader: a Python that is linked to glibc is needed")
        for name, source in sources.items():
            _add_module(tar, f"{folder}/{name}.py", source)
    program = f"{PLACE}/bin/{found['name']}"
    start = (f"{PLACE}/lib/ld.so", "--inhibit-cache", "--library-path", f"{PLACE}/lib", "--argv0", program, program)
    return buffer.getvalue(), start


def _inspect(sources: Mapping[str, bytes]) -> dict[str, Any]:
    wanted = sorted({*MODULES, *(name for source in sources.values() for name in imports_of(source))} - set(sources))
    done = subprocess.run(
        [python_here(), "-I", "-S", "-c", _INSPECT, *wanted],
        capture_output=True,
        timeout=_SECONDS,
        check=False,
        text=True,
    )
    if done.returncode != 0:
        raise CannotIsolate(f"cannot list the files of {python_here()}: {done.stderr.strip()[-300:]}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def imports_of(source: bytes) -> set[str]:
    """Returns every module that a program imports, anywhere in it."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module)
    return {name for name in found if not name.startswith(("holdfast", "typing", "collections.abc"))} | {"collections"}


def _add_module(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    _add(tar, name, data, 0o644)
    if name.endswith(".py"):
        folder, _, file = name.rpartition("/")
        code = compile(data, f"{PLACE}/{name}", "exec", dont_inherit=True)
        _add(tar, f"{folder}/__pycache__/{file[:-3]}.{sys.implementation.cache_tag}.pyc", _bytecode(code, data), 0o644)


def _bytecode(code: Any, source: bytes) -> bytes:
    """Returns a .pyc that the interpreter loads without checking the source."""
    from importlib._bootstrap_external import _code_to_hash_pyc  # type: ignore[attr-defined]

    made: bytes = bytes(_code_to_hash_pyc(code, importlib.util.source_hash(source), False))
    return made


def _add(tar: tarfile.TarFile, name: str, data: bytes, mode: int) -> None:
    member = tarfile.TarInfo(name)
    member.size, member.mode, member.mtime = len(data), mode, 1
    tar.addfile(member, io.BytesIO(data))
