"""Packs a Holdfast program into one archive, and starts it in a box.

Nothing is installed in the box. Archive and configuration arrive over standard input and stay in memory, so a token in
the configuration is in no file, argument or environment of the box.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
import io
import json
import marshal
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

_ROOT: Final = Path(__file__).parents[1]
_BYTECODE: Final = importlib.util.MAGIC_NUMBER + (1).to_bytes(4, "little")
"""The header of a .pyc file that is not compared with its source."""
_PACKED: Final = ("holdfast.api.", "holdfast.guest.", "holdfast.harnesses.")
_BOOT: Final = """\
import _signal
_signal.signal(_signal.SIGTERM, _signal.SIG_IGN)  # "look now": it looks as soon as it can
%(first)s
import os, select, sys
# Import what the program needs while the sender is busy.
import %(early)s
def take(count):
    pieces = []
    while count:
        readable = select.select([0], [], [], 120)[0]
        piece = os.read(0, min(count, 1 << 20)) if readable else b""
        if not piece:
            sys.exit("the program did not arrive over stdin")
        pieces.append(piece)
        count -= len(piece)
    return b"".join(pieces)
program = os.memfd_create("holdfast")
archive = take(int.from_bytes(take(8), "big"))
while archive:
    archive = archive[os.write(program, archive):]
configuration = take(int.from_bytes(take(8), "big"))
os.dup2(os.open("/dev/null", os.O_RDONLY), 0)
sys.path.insert(0, "/proc/self/fd/%%d" %% program)
from %(entry)s import main
main(program, configuration)
"""


def boot_argv(python: Sequence[str], entry: str, early: Sequence[str], first: str = "") -> list[str]:
    """Returns a command that reads a program from stdin and runs `main(archive, configuration)` of module `entry`.

    `python` starts Python in the box. `early` names modules of the standard library to import while the program is
    received. `first` is code to run before anything else.
    """
    values = {"entry": entry, "early": ", ".join(early), "first": first}
    return [*python, "-I", "-S", "-B", "-X", "utf8", "-c", _BOOT % values]


def stdin_of(archive: bytes, configuration: Mapping[str, Any]) -> bytes:
    """Returns the bytes to write to the stdin of the command that `boot_argv` returned."""
    encoded = json.dumps(configuration).encode()
    return len(archive).to_bytes(8, "big") + archive + len(encoded).to_bytes(8, "big") + encoded


def pack(wanted: Iterable[str], more: Iterable[tuple[str, Path]] = ()) -> bytes:
    """Returns an archive of these modules and all Holdfast modules that they import.

    `more` adds third-party modules under the given names. The first call takes a tenth of a second.
    """
    return _pack(tuple(sorted(set(wanted))), tuple(sorted(more)))


@functools.cache
def _pack(modules: tuple[str, ...], more: tuple[tuple[str, Path], ...]) -> bytes:
    sources = dict(more)
    wanted = [*modules, *sources]
    found: dict[str, _Module] = {}
    while wanted:
        name = wanted.pop()
        if name not in found:
            path = sources.get(name) or find_source(name)
            if path is None:
                raise ModuleNotFoundError(f"{name} is to be packed for a box, but it does not exist", name=name)
            found[name] = _compile(name, path)
            wanted += [each for each in found[name].imports if each not in found and _is_module(each, sources)]
    return _archive(found)


@dataclass(frozen=True, slots=True)
class _Module:
    source: bytes
    bytecode: bytes
    imports: tuple[str, ...]


@functools.cache
def _compile(name: str, path: Path) -> _Module:
    """Cached, because this is most of the work and archives share modules."""
    source = path.read_bytes()
    tree = ast.parse(source)
    code = compile(source, f"{name.replace('.', '/')}.py", "exec", dont_inherit=True, optimize=2)
    return _Module(source, _BYTECODE + importlib.util.source_hash(source) + marshal.dumps(code), tuple(_imports(tree)))


def _is_module(name: str, sources: Mapping[str, Path]) -> bool:
    return name.startswith(_PACKED) and (name in sources or find_source(name) is not None)


def find_source(module: str) -> Path | None:
    """Returns the file of a Holdfast module, or None."""
    path = _ROOT.joinpath(*module.split(".")[1:]).with_suffix(".py")
    return path if path.is_file() else None


def _imports(module: ast.Module) -> list[str]:
    """Returns what a module may import when it runs, without imports under `TYPE_CHECKING`."""
    names: list[str] = []
    pending: list[ast.AST] = [module]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            pending += node.orelse
            continue
        if isinstance(node, ast.Import):
            names += [each.name for each in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            names += [node.module, *(f"{node.module}.{each.name}" for each in node.names)]
        pending += ast.iter_child_nodes(node)
    return names


def _archive(modules: Mapping[str, _Module]) -> bytes:
    """Builds an uncompressed archive, so that reading it needs no further modules.

    It holds bytecode for our own Python version, and sources for others. `__init__.py` files are empty: their code is
    for the host.
    """
    packages = {name.rsplit(".", depth)[0] for name in modules for depth in range(1, name.count(".") + 1)}
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_STORED) as archive:

        def add(path: str, data: bytes) -> None:
            archive.writestr(zipfile.ZipInfo(path), data)

        for package in sorted(packages):
            add(f"{package.replace('.', '/')}/__init__.py", b"")
        for name in sorted(modules):
            path = name.replace(".", "/")
            add(f"{path}.pyc", modules[name].bytecode)
            add(f"{path}.py", modules[name].source)
    return packed.getvalue()
