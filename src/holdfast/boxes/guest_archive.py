"""A program of ours as bytes: its modules in one archive, and what it takes to start that in a box.

Nothing is installed in a box for it: archive and configuration come over standard input, and stay in memory. A token in
the configuration so is in no file, argument or environment of the box.
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
"""How a file of it begins that is not to be compared with its source."""
_PACKED: Final = ("holdfast.api.", "holdfast.guest.", "holdfast.harnesses.")
_BOOT: Final = """\
import _signal
_signal.signal(_signal.SIGTERM, _signal.SIG_IGN)  # "look now": it looks as soon as it can
%(first)s
import os, select, sys
# What the program will want, while whoever started it is busy with something else.
import %(early)s
def take(count):
    pieces = []
    while count:
        heard = select.select([0], [], [], 120)[0]
        piece = os.read(0, min(count, 1 << 20)) if heard else b""
        if not piece:
            sys.exit("what it was to be started with did not come")
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
    """Starts a program that comes over its standard input: `main(archive, configuration)` of module `entry`. `python`
    is what runs it in the box; `early` are modules of the standard library to load while it comes; `first` is code
    to run before anything else."""
    told = {"entry": entry, "early": ", ".join(early), "first": first}
    return [*python, "-I", "-S", "-B", "-X", "utf8", "-c", _BOOT % told]


def stdin_of(archive: bytes, configuration: Mapping[str, Any]) -> bytes:
    """What to write to a booting program: all that it will ever read."""
    told = json.dumps(configuration).encode()
    return len(archive).to_bytes(8, "big") + archive + len(told).to_bytes(8, "big") + told


def pack(wanted: Iterable[str], more: Iterable[tuple[str, Path]] = ()) -> bytes:
    """The archive of these modules, and of all of ours that they import. `more` are modules of others to be added, by
    the name that they get. Takes a tenth of a second the first time."""
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
                raise ModuleNotFoundError(f"{name} is to be packed for a box, and is not there", name=name)
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
    """Most of the work of a first archive: what all of them share is done once."""
    source = path.read_bytes()
    tree = ast.parse(source)
    code = compile(source, f"{name.replace('.', '/')}.py", "exec", dont_inherit=True, optimize=2)
    return _Module(source, _BYTECODE + importlib.util.source_hash(source) + marshal.dumps(code), tuple(_imports(tree)))


def _is_module(name: str, sources: Mapping[str, Path]) -> bool:
    return name.startswith(_PACKED) and (name in sources or find_source(name) is not None)


def find_source(module: str) -> Path | None:
    """The file of a module of ours."""
    path = _ROOT.joinpath(*module.split(".")[1:]).with_suffix(".py")
    return path if path.is_file() else None


def _imports(module: ast.Module) -> list[str]:
    """What a module may import when it runs. What only a type checker imports is left out."""
    names: list[str] = []
    look: list[ast.AST] = [module]
    while look:
        node = look.pop()
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            look += node.orelse
            continue
        if isinstance(node, ast.Import):
            names += [each.name for each in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            names += [node.module, *(f"{node.module}.{each.name}" for each in node.names)]
        look += ast.iter_child_nodes(node)
    return names


def _archive(modules: Mapping[str, _Module]) -> bytes:
    """Not compressed, so that nothing has to be loaded to read it. Compiled, for an interpreter of our own version; any
    other finds the source beside it. Packages are empty: their own code is for this side."""
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
